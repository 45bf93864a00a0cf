"""`profile(what=...)`: only what was requested is computed, and by default what is cheap."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank._core import deadline
from bnrank.measures import describe, profile, profiles, samplewise, usage, weights
from bnrank.networks import read

normal = functools.partial(helpers.normal, dtype=torch.float32)
OF = {
    "weights": ("weight_singular_values", "weight_rank", "stable_rank"),
    "activations": ("activation_singular_values", "preactivation_singular_values", "nonlinearity", "dimension_95"),
    "jacobian": ("jacobian_singular_values", "log_pseudo_determinant"),
    "ntk": ("ntk_trace",),
}


def computed(dataset):
    return {name for name in dataset.data_vars if np.isfinite(dataset[name]).any()}


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("what", [*profiles.DEFAULT, ("weights", "ntk"), ("activations", "jacobian"), None])
def test_what_was_requested_is_computed_and_nothing_else(what, module):
    net, x = bnrank.MLP([4, 6, 5, 3], seed=0), normal(20, 4)
    net = nn.Sequential(net) if module else net
    ds, whole = profile(net, x, what=what), profile(net, x)
    parts = profiles.DEFAULT if what is None else (what,) if isinstance(what, str) else what
    for part, names in OF.items():
        for name in names:
            assert (name in computed(ds)) == (part in parts), name
            if part in parts:
                size = ds.sizes["index"] if "index" in ds[name].dims else None
                expected = whole[name].isel(index=slice(size)) if size else whole[name]
                np.testing.assert_allclose(ds[name].values, expected.values, rtol=1e-9)
    assert ds.attrs["what"] == sorted(parts)
    if "weights" not in parts:
        assert ds.attrs["bottleneck_reason"] == "the weights were not measured"


def test_expensive_convolutions_are_measured_by_their_kernels_unless_requested(monkeypatch):
    net = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.Conv2d(6, 3, 3), nn.Flatten(), nn.Linear(3 * 36, 2))
    x = normal(9, 2, 10, 10)
    monkeypatch.setattr(weights, "MAX_WORK", 2000)
    ds, exact = profile(net, x), profile(net, x, what=("operators", "activations"))
    named = profile(net, x, what=("weights", "activations"))
    assert named.layer_kind.values.tolist() == ds.layer_kind.values.tolist()
    np.testing.assert_array_equal(named.stable_rank, ds.stable_rank)
    assert exact.attrs["what"] == ["activations", "operators", "weights"]
    assert ds.layer_kind.values.tolist() == ["conv2d", "conv2d patches", "linear"]
    kernel = net[1].weight.detach().double().flatten(1)
    row = ds.weight_singular_values.values[1]
    np.testing.assert_allclose(row[np.isfinite(row)], torch.linalg.svdvals(kernel), rtol=1e-12)
    assert exact.layer_kind.values.tolist() == ["conv2d", "conv2d", "linear"]
    np.testing.assert_array_equal(ds.weight_rank.values[[0, 2]], exact.weight_rank.values[[0, 2]])
    assert any("what=" in line and line.startswith("1: the kernel as a matrix") for line in describe(ds))
    np.testing.assert_allclose(ds.dimension_95, exact.dimension_95)


def test_operators_on_images_need_images():
    with pytest.raises(ValueError, match=r"what: got .* expected 'weights' without x: 'operators' .* images, whose"):
        profile(nn.Conv2d(2, 3, 3), what=("operators",))


def test_expensive_spectra_of_activations_are_left_out_but_not_the_dimensions(monkeypatch):
    net, x = bnrank.MLP([4, 6, 5, 3], seed=0), normal(20, 4)
    monkeypatch.setattr(profiles, "MAX_ACTIVATION_WORK", 100)
    ds, whole = profile(net, x), profile(net, x, what=profiles.DEFAULT)
    assert not {"activation_singular_values", "preactivation_singular_values"} & computed(ds)
    assert any("spectra of whole activations" in line and "what=" in line for line in describe(ds))
    assert "activation_singular_values" in computed(whole)
    for name in ("nonlinearity", "dimension_95", "weight_rank", "ntk_trace", "dead_units"):
        np.testing.assert_allclose(ds[name], whole[name], err_msg=name)


def test_columns_of_the_activations_are_those_of_their_measures():
    net, x = bnrank.MLP([6, 40, 5], seed=0), normal(30, 6)
    with torch.no_grad():
        net.layers[0].weight[:2] = 0.0
        net.layers[0].bias[:2] = -1.0
        net.layers[1].weight[0] = 1e-40
    ds = profile(net, x)
    a = torch.relu(net.double().layers[0](x.double())).detach()
    assert (int(ds.dimension_95[0]), int(ds.dimension_99[0])) == usage.centered_dimension(a)
    assert ds.units.values.tolist() == [40, 5]
    assert ds.dead_units.values.tolist() == [2, 0]
    assert ds.subnormals.values.tolist() == [0, 40]
    rows = bnrank.reporting.tables.layer_rows(ds)
    assert rows[0]["dead units"] == 2
    assert rows[1]["subnormal weights"] == 40


class Clock:
    """Stands still for some looks, and is then beyond every limit."""

    def __init__(self, looks):
        self.looks = looks

    def monotonic(self):
        self.looks -= 1
        return 0.0 if self.looks >= 0 else 1e6


def test_what_is_not_reached_within_the_budget_is_listed_wherever_it_ends(monkeypatch):
    net, x = nn.Sequential(bnrank.MLP([4, 6, 3], seed=0)), normal(20, 4)
    whole = profile(net, x)
    found = []
    for looks in range(1, 60):
        monkeypatch.setattr(deadline, "time", Clock(looks))
        ds = profile(net, x, max_minutes=1, chunk_size=8)
        late = [line for line in describe(ds) if "max_minutes=1" in line]
        found.append((len(computed(ds)), late))
        for name in computed(ds):  # complete where it is there, except for samples and layers that are listed
            mine, expected = (dataset[name].values for dataset in (ds, whole))
            mine = mine if mine.ndim < 2 else mine[:, : expected.shape[1]]
            reached = np.isfinite(mine)
            np.testing.assert_allclose(
                mine[reached], expected[: len(mine)][..., : mine.shape[-1]][reached], rtol=1e-9, atol=1e-12
            )
        missing = computed(whole) - computed(ds)
        assert bool(late) or not missing, missing
    counts = [count for count, _ in found]
    assert counts == sorted(counts)
    assert counts[0] < counts[10] < counts[-1] == len(computed(whole))
    assert not found[-1][1]
    lines = "\n".join(line for _, late in found for line in late)
    for text in (
        "weight_singular_values: not reached",
        "cut off after 8 of 20 samples, at max_minutes=1",
        "activation spectra, cut off after 8 of 20",
        "jacobian_singular_values: cut off after 2 of 20",
        "ntk_trace: cut off after 2 of 20",
        "dimensions and dead units, not reached",
        "ntk_trace: not reached",
    ):
        assert text in lines, text


def test_wrong_choices_are_refused_by_name():
    net, x = bnrank.MLP([4, 6, 3]), normal(5, 4)
    for wrong in ("weight", ("weights", "jacobians"), ()):
        with pytest.raises(ValueError, match="what: got"):
            profile(net, x, what=wrong)
    with pytest.raises(ValueError, match=r"^what: got 'ntk', expected 'weights' without x: the others"):
        profile(net, what="ntk")
    with pytest.raises(ValueError, match=r"^what: got 'operators', expected 'weights' without x: 'operators' measures"):
        profile(net, what="operators")
    with pytest.raises(ValueError, match="max_minutes: got"):
        profile(net, x, max_minutes=0)


def test_jacobians_and_the_ntk_of_large_modules_are_computed_where_requested(monkeypatch):
    mlp, x = bnrank.MLP([4, 6, 5, 3], seed=0), normal(20, 4)
    monkeypatch.setattr(samplewise, "MAX_PASS_WORK", 20 * 3 * sum(p.numel() for p in mlp.parameters()) - 1)
    ds, whole = profile(nn.Sequential(mlp), x), profile(nn.Sequential(mlp), x, what=profiles.DEFAULT)
    assert not {"ntk_trace", "jacobian_singular_values"} & computed(ds)
    assert any("Jacobians and the NTK" in line and "what=" in line for line in describe(ds))
    np.testing.assert_allclose(whole.ntk_trace, profile(mlp, x).ntk_trace)  # closed forms of an MLP are cheap


class Scan(nn.Module):
    """A language model with a sequential scan over time: few parameters, many operations, and an output per token."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embed, self.gate = nn.Embedding(vocabulary, width), nn.Linear(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x):
        h = self.embed(x)
        gate, state, found = torch.sigmoid(self.gate(h)), torch.zeros_like(h[:, 0]), []
        for t in range(h.shape[1]):
            state = gate[:, t] * state + (1 - gate[:, t]) * h[:, t]
            found.append(state)
        return self.out(torch.stack(found, 1))


def test_small_networks_with_many_backward_passes_have_no_ntk_by_default():
    torch.manual_seed(0)
    net, x = Scan(64, 24), torch.randint(64, (80, 20))
    passes, parameters = 80 * 20 * 64, sum(p.numel() for p in net.parameters())
    assert passes * parameters < samplewise.MAX_PASS_WORK
    ds = profile(net, x)
    assert "ntk_trace" not in computed(ds)
    (line,) = [line for line in describe(ds) if "Jacobians and the NTK" in line]
    products = 20 * 2 * (24 * 24 + 24 * 64)  # of the gate and the output at 20 places
    work = products + samplewise.PER_ENTRY * 20 * (24 + 24 + 64) + 3 * samplewise.PER_LAYER
    assert samplewise.pass_work(read(net, x)) == work
    hint = int(samplewise.MAX_PASS_WORK // (20 * 64 * work))
    limit = f"{passes * work:.1e} operations, the limit is 1e+10, max_jacobian_samples={hint} stays below it"
    assert f"80 samples are {limit}; what=" in line
    few = profile(net, x, max_jacobian_samples=3)
    assert not [line for line in describe(few) if "Jacobians and the NTK" in line]
    np.testing.assert_array_equal(few.ntk_trace, profile(net, x, what="ntk", max_jacobian_samples=3).ntk_trace)
    assert np.isfinite(few.ntk_trace).all()


@pytest.mark.parametrize(
    ("layer", "shape", "products", "outputs"),
    [
        (nn.Linear(5, 3), (5,), 15, 3),
        (nn.Linear(5, 3), (7, 5), 7 * 15, 7 * 3),
        (nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 6), 30 * 6 * 2 * 9, 6 * 30),
        (nn.ConvTranspose1d(4, 6, 3, groups=2, padding=1), (4, 8), 8 * 4 * 3 * 3, 6 * 8),
    ],
)
def test_a_backward_pass_is_counted_by_the_positions_at_which_a_weight_acts(layer, shape, products, outputs):
    work = samplewise.pass_work(read(layer, normal(9, *shape)))
    assert work == 2 * products + samplewise.PER_ENTRY * outputs + samplewise.PER_LAYER


class Single(nn.Module):
    """A network that runs in float32 only, with small weights or not."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        for layer in self.layers:
            layer.weight.data.mul_(scale)

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.layers(x)


def test_small_weights_are_judged_in_the_precision_of_the_profile():
    net, x = Single(0.01), normal(30, 4)
    assert profile(net, x, dtype=torch.float32).attrs["bottleneck_rank"] == 0
    found = bnrank.bottleneck(net, x, dtype=torch.float32)
    assert (found.kind, found.start, found.end) == ("collapsed", 1, 3)
