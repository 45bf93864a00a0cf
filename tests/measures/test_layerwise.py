"""Dimensions of centered activations and dead units, layer by layer, against the measures of whole arrays."""

import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank._core import remarks
from bnrank.measures import describe, layerwise, usage
from bnrank.measures.layerwise import LayerUse
from bnrank.networks import read
from bnrank.networks.functional import Functional
from bnrank.networks.reading import stream
from bnrank.reporting.by_layer import headline

KNOWN = LayerUse(2, (1, 1), 0)
normal = functools.partial(helpers.normal, dtype=torch.float32)


def use(net, x, dtype=torch.float64, **options):
    reading = read(net, x)
    taker = layerwise.Uses(reading, len(x))
    stream(Functional(net, dtype), x, reading, [taker], **options)
    return list(taker.use().values())


@pytest.mark.parametrize("samples", [7, 90])
@pytest.mark.parametrize("chunk", [4, 4096])
def test_blocks_give_what_the_whole_array_gives(samples, chunk):
    net = bnrank.MLP([6, 40, 5], seed=0)
    x = 1000 + normal(samples, 6)  # far from 0: not centered, one dimension would hold all
    with torch.no_grad():
        net.layers[0].weight[3] = 0.0
        net.layers[0].bias[3] = -1.0
    a = torch.relu(net.double().layers[0](x.double())).detach()
    found = use(net.float(), x, chunk_size=chunk)
    assert found[0].units == 40
    assert found[0].dimensions == usage.centered_dimension(a)
    assert found[0].dead == int((a == 0).all(0).sum()) >= 1
    assert found[1].dimensions == usage.centered_dimension(net.double()(x.double()).detach())


def test_channels_are_units_and_positions_are_samples(monkeypatch):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 2))
    x = normal(9, 2, 6, 6) + 5
    found = use(net, x)
    assert [layer.units for layer in found] == [3, 4, 2]
    a = net[:2](x).double().movedim(1, -1).flatten(0, 2).detach()
    assert found[0].dimensions == usage.centered_dimension(a)
    monkeypatch.setattr(layerwise, "POSITIONS", 2)
    few = net[:2](x).double().flatten(2)[:, :, [0, 15]].movedim(1, -1).flatten(0, 1).detach()
    assert use(net, x)[0].dimensions == usage.centered_dimension(few)
    sequence = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    assert [layer.units for layer in use(sequence, normal(8, 7, 4))] == [5, 3]


def by_channel(values):
    """Return the width, dimensions and dead channels of (N, C, H, W), by numpy."""
    rows = np.moveaxis(values.detach().double().numpy(), 1, -1).reshape(-1, values.shape[1])
    spectrum = np.linalg.eigvalsh(np.cov(rows.T))[::-1].clip(0)
    shares = np.cumsum(spectrum) / spectrum.sum()
    return rows.shape[1], tuple(int((shares < q).sum()) + 1 for q in (0.95, 0.99)), int((rows == 0).all(0).sum())


@pytest.mark.parametrize("after", ["flatten", "method", "view", "pool", "last", "output"])
def test_flattened_images_are_measured_by_channel(after):
    torch.manual_seed(0)
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
    with torch.no_grad():
        convolutions[2].bias[:3] = -1000.0

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolutions, self.head = convolutions, nn.Linear(72 if after == "pool" else 288, 4)

        def forward(self, x):
            z = self.convolutions(x)
            if after == "pool":
                z = nn.functional.max_pool2d(z, 2)
            if after == "last":
                return self.head(z.permute(0, 2, 3, 1).flatten(1))
            z = {"flatten": nn.Flatten(), "method": lambda z: z.flatten(1)}.get(after, lambda z: z.view(len(z), -1))(z)
            return z if after == "output" else self.head(z)

    x = normal(100, 3, 6, 6)
    values = convolutions(x)
    expected = by_channel(nn.functional.max_pool2d(values, 2) if after == "pool" else values)
    found = use(Net(), x)[1]
    assert (found.units, found.dimensions, found.dead) == expected
    assert expected[2] == 3
    if after != "pool":
        unflattened = use(convolutions, x)[1]
        assert unflattened == found
    if after == "flatten":
        measured, pair = bnrank.profile(Net(), x), bnrank.compare(Net(), Net(), x)
        assert measured.units.values.tolist() == [8, 8, 4]
        assert measured.dead_units.values.tolist() == [0, 3, 0]
        assert pair.data.units_a.values.tolist() == [8, 8, 4]


class Image(nn.Module):
    """A convolution with dead channels, what follows, and a linear layer where there is a size for it."""

    def __init__(self, channels, between, size=0):
        super().__init__()
        self.conv, self.gate, self.between = nn.Conv2d(3, channels, 3), nn.Linear(channels, channels), between
        self.fc = nn.Linear(size, 4) if size else nn.Identity()
        with torch.no_grad():
            self.conv.bias[:2] = -1000.0

    def forward(self, x):
        return self.fc(self.between(self, self.conv(x).relu()))


LAYOUTS = {
    "first": lambda net, z: z.flatten(1),
    "last": lambda net, z: z.permute(0, 2, 3, 1).reshape(len(z), -1),
    "last, copied": lambda net, z: z.permute(0, 2, 3, 1).contiguous().view(len(z), -1),
    "last, in memory": lambda net, z: z.to(memory_format=torch.channels_last).flatten(1),
    "last, detached": lambda net, z: z.detach().permute(0, 2, 3, 1).flatten(1),
    "last, mixed": lambda net, z: nn.functional.layer_norm(z.permute(0, 2, 3, 1), z.shape[1:2]).flatten(1),
    "last, output": lambda net, z: z.permute(0, 2, 3, 1),
    "last, output flattened": lambda net, z: z.permute(0, 2, 3, 1).flatten(1),
}


@pytest.mark.parametrize("channels", [5, 6])
@pytest.mark.parametrize("name", LAYOUTS)
def test_channels_are_found_where_images_have_as_many_rows(name, channels):
    torch.manual_seed(0)
    net, x = Image(channels, LAYOUTS[name], 0 if "output" in name else 36 * channels), normal(100, 3, 8, 8)
    values = net.conv(x).relu().double()
    if name == "last, mixed":
        values = nn.functional.layer_norm(values.movedim(1, -1), (channels,)).movedim(-1, 1)
    found = use(net, x)[0]
    assert (found.units, found.dead) == (channels, by_channel(values)[2])
    assert found.dimensions == by_channel(values)[1]
    assert found.dead == (0 if name == "last, mixed" else 2)


@pytest.mark.parametrize("channels", [5, 6])
@pytest.mark.parametrize("last", [False, True])
def test_gated_images_are_measured_by_channel(last, channels):
    torch.manual_seed(0)

    def gated(net, z):
        z = z * net.gate(z.mean((2, 3))).sigmoid()[..., None, None]
        return (z.permute(0, 2, 3, 1) if last else z).flatten(1)

    net, x = Image(channels, gated, 36 * channels), normal(100, 3, 8, 8)
    z = net.conv(x).relu()
    z = z * net.gate(z.mean((2, 3))).sigmoid()[..., None, None]
    found = use(net, x)
    assert [layer.units for layer in found] == [channels, channels, 4]
    assert (found[1].units, found[1].dimensions, found[1].dead) == by_channel(z)
    assert bnrank.profile(net, x).units.values.tolist() == [channels, channels, 4]


def test_images_flattened_one_by_one_and_vectors_that_become_images_are_measured_by_entry():
    def joined(net, z):
        return torch.cat([z.flatten(1), z.flatten(1)], 1)

    assert [layer.units for layer in use(Image(6, joined, 432), normal(60, 3, 8, 8))] == [432, 4]
    enlarge = nn.Sequential(
        nn.Unflatten(1, (1, 3, 3)), nn.Upsample(scale_factor=3), nn.Flatten(2), nn.Unflatten(2, (9, 9))
    )
    net = nn.Sequential(nn.Linear(4, 9), enlarge, nn.Flatten(1, 2), nn.Flatten(), nn.Linear(81, 2))
    assert [layer.units for layer in use(net, normal(60, 4))] == [81, 2]


def test_flattened_sequences_are_measured_by_feature_and_vectors_as_they_are():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(35, 6), nn.Unflatten(1, (2, 3)))
    net = nn.Sequential(net, nn.Tanh(), nn.Flatten(), nn.Linear(6, 2))
    assert [layer.units for layer in use(net, normal(60, 7, 4))] == [5, 6, 2]


def test_equal_samples_one_sample_and_too_many_units_have_no_false_dimension(monkeypatch):
    net = bnrank.MLP([4, 9, 3], seed=0)
    assert use(net, normal(1, 4).repeat(20, 1))[0].dimensions == (0, 0)
    assert use(net, normal(1, 4).repeat(5, 1), chunk_size=2)[0].dimensions == (0, 0)
    (single, _) = use(net, normal(1, 4))
    assert math.isnan(single.dimensions[0])
    assert single.note == "dimension and dead units: one sample has no variance"
    monkeypatch.setattr(layerwise, "MAX_ENTRIES", 20)
    large, small = use(net, normal(30, 4))
    assert "9 units need more than 20 numbers" in large.note
    assert isinstance(small, LayerUse)
    assert small.note == ""


@pytest.mark.parametrize("samples", [10, 13, 20])
def test_few_samples_have_no_more_dimensions_than_units_that_vary(samples):
    """Of 50 units 20 never turn on, so that at most 30 dimensions exist, however few samples show them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 3))
    with torch.no_grad():
        net[0].bias[:20] = -1000.0
    x = normal(samples, 30)
    assert max(use(net, x)[0].dimensions) <= 30
    assert max(usage.centered_dimension(net[:2](x).detach())) <= 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_constant_unit_hides_no_dimension(dtype):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), normal(200, 10)
    before = use(net, x, dtype=dtype)[0].dimensions
    with torch.no_grad():
        net[0].weight[0], net[0].bias[0] = 0.0, 3e5
    after = use(net, x, dtype=dtype)[0].dimensions
    assert min(after) > 9
    assert all(abs(a - b) <= 1 for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_equal_rows_is_no_dimension(dtype):
    """Rows of a matrix product can differ in their last place although the inputs are equal."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).to(dtype)
    found = use(net, torch.ones(30, 20, dtype=dtype), dtype=dtype, chunk_size=7)
    assert [layer.dimensions for layer in found] == [(0, 0)] * 3


def test_dimensions_from_few_samples_are_said_to_be_uncertain():
    net = bnrank.MLP([4, 9, 3], seed=0)
    few, enough = (bnrank.profile(net, normal(n, 4)) for n in (12, 50))
    assert "dimensions: from 12 samples; with fewer than 50 they can be several times too large" in describe(few)
    assert headline(few).endswith("uncertain with 12 samples.")
    assert not any("dimensions" in line for line in describe(enough))
    assert "uncertain" not in headline(enough)
    notes = remarks.rows(bnrank.compare(net, net, normal(12, 4)).data, "note")
    assert layerwise.few_samples(12, {0: KNOWN})[0] in notes


def test_a_page_of_two_samples_claims_no_dimensions():
    net, x = bnrank.MLP([5, 20, 31, 9], seed=0), normal(2, 5)
    profile = bnrank.profile(net, x)
    assert bool(profile.dimension_95.isnull().all())
    assert headline(profile).endswith("): dimensions unknown with 2 samples.")
    assert f"dimensions: {layerwise.TOO_FEW}" in describe(profile)
    assert not any("too large" in line for line in describe(profile))
    notes = remarks.rows(bnrank.compare(net, net, x).data, "note")
    assert {"name": "dimensions", "note": layerwise.TOO_FEW} in notes


def test_a_headline_says_of_how_many_layers_the_dimensions_are_unknown():
    profile = bnrank.profile(bnrank.MLP([4, 8, 2], seed=0), normal(5, 4))
    assert profile.dimension_95.isnull().values.tolist() == [True, False]
    assert headline(profile).endswith("): dimensions of 1 of 2 layers unknown with 5 samples.")


def test_activations_whose_squares_overflow_have_no_dimension():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = 1e200 * torch.randn(20, 3, dtype=torch.float64)
    assert all(math.isnan(found.dimensions[0]) and "not finite" in found.note for found in use(net, x))


def test_a_single_row_has_no_dead_units():
    """Every unit of a single row has one value; a watch says so, too."""
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), normal(1, 4)
    assert np.isnan(bnrank.profile(net, x).dead_units.values).all()
    watch = bnrank.watch(net, x=x)
    watch.step()
    watch.close()
    assert np.isnan(watch.history.dead_units.values).all()
    image = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Conv2d(3, 2, 1))
    with torch.no_grad():
        image[0].bias[0] = -1000.0
    assert [layer.dead for layer in use(image, normal(1, 1, 5, 5))] == [1, 0]  # 25 rows


class Squeezed(nn.Module):
    """A network that leaves out the dimension of its only unit, or joins samples and positions."""

    def __init__(self, join=False):
        super().__init__()
        self.layer, self.join = nn.Linear(8, 1), join

    def forward(self, x):
        out = self.layer(x).squeeze(-1)
        return out.flatten() if self.join else out


@pytest.mark.parametrize(
    ("net", "shape", "units"),
    [
        (Squeezed(), (50, 40, 8), [1]),
        (Squeezed(), (40, 8), [1]),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(), nn.Linear(40, 3)), (50, 40, 8), [1, 3]),
        (nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 5)), (50, 40, 8), [1, 5]),
        (nn.Sequential(nn.Conv1d(3, 1, 1), nn.Flatten(), nn.Linear(40, 3)), (50, 3, 40), [1, 3]),
        (nn.Sequential(nn.Conv1d(3, 4, 1), nn.Conv1d(4, 1, 1), nn.Conv1d(1, 5, 1)), (50, 3, 40), [4, 1, 5]),
    ],
)
def test_a_layer_of_one_unit_has_one_unit(net, shape, units):
    assert [layer.units for layer in use(net, normal(*shape))] == units


def test_outputs_that_join_samples_and_positions_are_refused_with_advice():
    with pytest.raises(
        ValueError, match=r"net: .* shape \(14,\) for 2 samples, .* 7 rows for each sample, .*unflatten\(0"
    ):
        bnrank.profile(Squeezed(join=True), normal(50, 7, 8))


def test_outputs_without_units_have_no_dimension():
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            return self.layer(x)[:, :0]

    profile = bnrank.profile(Empty(), normal(60, 3))
    assert (profile.units.item(), profile.dimension_95.item(), profile.dead_units.item()) == (0, 0, 0)
    assert any("without outputs" in line for line in describe(profile))
