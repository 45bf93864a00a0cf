from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.measures import bottlenecks, contraction, spectra
from bnrank.networks.functional import Functional
from bnrank.networks.mlp import from_layers
from bnrank.networks.reading import capturing
from oracles import circular_convolution_matrix, layer_values, spectrum


def planted(rank, depth, start, end, width=8, small=0.02):
    """Spectra with ``rank`` values near 1 in layers start..end and a slow decay elsewhere."""
    rows = np.tile(np.linspace(3.0, 0.15, width), (depth, 1))
    rows[start - 1 : end] = small
    rows[start - 1 : end, :rank] = np.linspace(1.3, 0.9, rank) if rank else 0
    return rows


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data(), rank=st.integers(0, 7), depth=st.integers(2, 20))
def test_a_planted_bottleneck_is_found(data, rank, depth):
    start = data.draw(st.integers(1, depth - 1))
    end = data.draw(st.integers(start + 1, depth))
    found = bottlenecks.detect(planted(rank, depth, start, end))
    assert (found.rank, found.start, found.end) == (rank, start, end)
    assert found.gap == pytest.approx((0.9 if rank > 1 else 1.3 if rank else 1.0) / 0.02)
    assert found.values == tuple(sorted(planted(rank, depth, start, end)[start - 1], reverse=True))
    assert found.counts[start - 1] == rank
    assert (found.atol, found.near_one, found.min_layers, found.reason) == (0.1, (0.5, 2.0), 2, "")


def test_noise_is_undetermined_and_says_why():
    found = bottlenecks.detect(spectra.weight_singular_values(bnrank.MLP([10, 50, 50, 50, 10], seed=0)))
    assert (found.rank, found.start, found.gap) == (None, None, None)
    assert "1 layer, expected 2" in found.reason  # the last, whose 10 values happen to be all near 1
    assert "no layer has a clear gap" in bottlenecks.detect(np.full((3, 2), 0.3)).reason
    one = bottlenecks.detect(planted(2, 6, 3, 3))
    assert one.rank is None
    assert "1 layer, expected 2" in one.reason
    assert bottlenecks.detect(planted(2, 6, 3, 3), min_layers=1).rank == 2


def test_a_collapsed_network_has_rank_zero():
    found = bottlenecks.detect(spectra.weight_singular_values(bnrank.MLP([5, 8, 8, 5], init=1e-4)))
    assert (found.rank, found.start, found.end) == (0, 1, 3)
    assert found.gap > 1000
    assert bottlenecks.detect(np.zeros((3, 4))).gap == float("inf")


def test_the_longest_run_wins_and_of_equal_ones_the_narrowest():
    rows = np.concatenate([planted(3, 4, 1, 4), planted(1, 3, 1, 3)])
    assert bottlenecks.detect(rows).rank == 3
    assert bottlenecks.detect(rows[1:]).rank == 1
    assert bottlenecks.detect(rows[1:]).start == 4


def test_the_tolerances_decide():
    rows = np.array([[1.25, 1.2, 0.46, 0.01]] * 3)
    assert bottlenecks.detect(rows).rank is None
    assert bottlenecks.detect(rows, near_one=(0.4, 2.0)).rank == 3
    assert bottlenecks.detect(rows, atol=0.47).rank == 2
    assert bottlenecks.detect(rows, near_one=(0.4, 1.1)).rank is None


def test_padding_missing_layers_and_full_rank():
    rows = np.full((5, 4), np.nan)
    rows[1:4, :2] = [1.1, 0.9]
    found = bottlenecks.detect(rows)
    assert (found.rank, found.start, found.end, found.gap) == (2, 2, 4, float("inf"))
    rows[2] = np.nan
    assert bottlenecks.detect(rows).rank is None
    ragged = [[1.0, 0.01], torch.tensor([1.0, 0.01, 0.0]), np.array([1.0])]
    assert bottlenecks.detect(ragged).rank == 1


def test_histories_keep_their_leading_dimensions():
    history = np.stack([np.stack([planted(k, 6, 2, 5), np.full((6, 8), 0.3)]) for k in (0, 1, 2)])
    assert np.array_equal(bottlenecks.ranks(history), [[0, np.nan], [1, np.nan], [2, np.nan]], equal_nan=True)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"values: got shape \(2, 3, 4\)"):
        bottlenecks.detect(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="negative"):
        bottlenecks.detect(-np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"near_one: got \(0.05, 2.0\)"):
        bottlenecks.detect(np.ones((2, 3)), near_one=(0.05, 2.0))
    with pytest.raises(TypeError, match="near_one: got 3"):
        bottlenecks.detect(np.ones((2, 3)), near_one=3)
    with pytest.raises(ValueError, match="min_layers: got 0"):
        bottlenecks.detect(np.ones((2, 3)), min_layers=0)
    with pytest.raises(ValueError, match="at least one layer"):
        bottlenecks.detect([])


# find -----------------------------------------------------------------------------------------------------------


def built(values, widths, slope=0.0, seed=0):
    """A network with given singular values per layer and random singular vectors, non-negative inside."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for row, n_in, n_out in zip(values, widths, widths[1:], strict=False):
        u, v = (torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0] for n in (n_out, n_in))
        s = torch.zeros(n_out, n_in, dtype=torch.float64)
        s.diagonal()[: len(row)] = torch.tensor(row, dtype=torch.float64)
        weights.append(u @ s @ v.T)
    return from_layers(weights, [0.01 * torch.ones(n, dtype=torch.float64) for n in widths[1:]], slope)


HIGH, LOW, ZERO = [3.0, 2.0, 1.5, 0.5], [1.2, 0.9, 0.05, 0.01], [0.05, 0.01, 0.0, 0.0]
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("values", "widths", "kind", "place"),
    [
        ([HIGH, LOW, LOW, LOW, HIGH], [6, 8, 8, 8, 8, 6], "full", (2, 2, 4)),
        ([HIGH, LOW, LOW, LOW], [6, 8, 8, 8, 6], "half", (2, 2, 4)),  # nothing after it
        ([HIGH, LOW, LOW, [3.0, 0.2]], [6, 8, 8, 8, 2], "half", (2, 2, 3)),  # rank 2 = d_out
        ([HIGH, LOW, LOW, HIGH, [3.0, 0.2]], [6, 8, 8, 8, 8, 2], "half", (2, 2, 3)),
        ([LOW, LOW, LOW, HIGH], [6, 8, 8, 8, 6], "reversed half", (2, 1, 3)),
        ([[3.0, 0.2], HIGH, LOW, LOW, HIGH], [2, 8, 8, 8, 8, 6], "reversed half", (2, 3, 4)),  # rank 2 = d_in
        ([LOW, LOW, LOW, LOW], [6, 8, 8, 8, 6], "uniform", (2, 1, 4)),
        ([HIGH, ZERO, ZERO, HIGH], [6, 8, 8, 8, 6], "collapsed", (0, 2, 3)),
        ([HIGH, HIGH, LOW, HIGH], [6, 8, 8, 8, 6], "undetermined", (None, None, None)),
    ],
)
def test_kinds_of_bottlenecks(values, widths, kind, place):
    found = bnrank.bottleneck(built(values, widths), X[:, : widths[0]])
    assert (found.kind, (found.rank, found.start, found.end)) == (kind, place)
    inside = [layer.index for layer in found.layers if layer.inside]
    assert inside == (list(range(found.start, found.end + 1)) if found.start else [])
    assert (found.d_in, found.d_out) == (widths[0], widths[-1])
    assert kind in str(found).splitlines()[0]
    assert len(str(found).splitlines()) == 2 + len(values)


@pytest.mark.parametrize("rank", [0, 1, 2, 5, 8])
def test_distances_are_to_the_nearest_partial_isometry(rank):
    net = built([HIGH, LOW, LOW, HIGH], [6, 8, 8, 8, 6])
    found = bnrank.bottleneck(net, X, rank=rank)
    assert found.rank == 2  # what is found does not change
    for layer, weight in zip(found.layers, net.weights, strict=True):
        u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
        nearest = u[:, :rank] @ v[:rank]
        assert layer.distance == pytest.approx(float((weight.detach() - nearest).norm()))
        without = weight.detach() - u[:, :rank] @ torch.diag(s[:rank]) @ v[:rank]
        assert layer.rest == pytest.approx(float(torch.linalg.matrix_norm(without, 2)), abs=1e-12)
        for seed in range(20):  # no other partial isometry is nearer
            draw = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            q = torch.linalg.matrix_exp(0.1 * (draw - draw.T))
            other = q[: len(u), : len(u)] @ nearest if len(u) == 8 else nearest
            assert float((weight.detach() - other).norm()) >= layer.distance - 1e-9


def test_what_is_measured_of_a_layer():
    net = built([HIGH, LOW, LOW, HIGH], [6, 8, 8, 8, 6], slope=0.3)
    found = bnrank.bottleneck(net, X, chunk_size=7)
    preactivations = layer_values(net, list(net.layers), X)
    for layer, weight, bias, z in zip(found.layers, net.weights, net.biases, preactivations, strict=True):
        last = layer.index == 4
        a = z if last else torch.where(z > 0, z, 0.3 * z)
        assert torch.allclose(layer.preactivation_values, spectrum(z))
        assert torch.allclose(layer.activation_values, spectrum(a))
        assert torch.allclose(layer.singular_values, torch.linalg.svdvals(weight.detach()))
        assert layer.count == int((layer.singular_values > 0.1).sum())
        assert layer.bias_norm == pytest.approx(float(bias.detach().norm()))
        assert (
            np.isnan(layer.nonlinearity)
            if last
            else layer.nonlinearity == pytest.approx(float((z - a).norm() / z.norm()))
        )


def test_convolutions_by_their_operators_and_what_is_skipped():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3, padding=1),
        nn.Flatten(),
        nn.Linear(48, 5),
    )
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = bnrank.bottleneck(net, torch.randn(9, 2, 4, 4), rank=3)
    assert [layer.kind for layer in found.layers] == ["conv2d", "conv2d", "linear"]
    assert [s.type for s in found.skipped] == ["BatchNorm2d"]
    assert "BatchNorm2d" in str(found) or "skipped 1" in str(found)
    dense = circular_convolution_matrix(net[0].weight.detach(), (4, 4))
    u, _, v = torch.linalg.svd(dense, full_matrices=False)
    assert found.layers[0].distance == pytest.approx(float((dense - u[:, :3] @ v[:3]).norm()))
    assert found.layers[0].bias_norm == 0
    assert not found.layers[0].note
    assert not found.layers[1].note  # small enough to be exact
    assert (found.d_in, found.d_out) == (32, 5)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize(("d_out", "steps", "kind"), [(8, 1500, "full"), (2, 800, "half")])
def test_trained_networks(d_out, steps, kind):
    task = bnrank.tasks.low_rank_map(n=150, d_in=8, d_out=d_out, latent=4, rank=2, width=20, seed=0)
    net = bnrank.MLP([8, *[30] * 9, d_out], seed=0)
    run = bnrank.train(net, task, ridge=3e-3, steps=steps, progress=False, seed=0)
    found = bnrank.bottleneck(run.network(0), task.x, atol=0.25)
    assert found.kind == kind, str(found)
    if kind == "full":
        assert found.rank == 2
        inside, outside = ([layer for layer in found.layers if layer.inside == side] for side in (True, False))
        assert max(layer.distance for layer in inside) < max(layer.distance for layer in outside)
        assert all(layer.nonlinearity < 0.1 for layer in inside)


def test_dead_and_shallow_networks():
    dead = bnrank.bottleneck(bnrank.MLP([6, 8, 8, 4], init=0.0), X)
    assert (dead.kind, dead.rank) == ("collapsed", 0)
    assert [layer.distance for layer in dead.layers] == [0.0, 0.0, 0.0]
    assert all(np.isnan(layer.nonlinearity) for layer in dead.layers)
    one = bnrank.bottleneck(bnrank.MLP([6, 1]), X[:1])
    assert one.layers[0].singular_values.shape == (1,)


def test_errors_of_find_name_the_argument():
    net = bnrank.MLP([6, 8, 4])
    with pytest.raises(ValueError, match="rank: got -1"):
        bnrank.bottleneck(net, X, rank=-1)
    with pytest.raises(ValueError, match="chunk_size: got 0"):
        bnrank.bottleneck(net, X, chunk_size=0)
    with pytest.raises(ValueError, match="near_one: got"):
        bnrank.bottleneck(net, X, near_one=(0.01, 2.0))
    with pytest.raises(ValueError, match="no linear or convolutional layer"):
        bnrank.bottleneck(nn.ReLU(), X)
    with torch.no_grad():
        net.weights[0][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.0\.weight"):
        bnrank.bottleneck(net, X)


class Cell(nn.Module):
    """One output layer, after a cell whose eight weights act once per time step."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(5, 8), nn.Linear(8, 2)
        nn.init.orthogonal_(self.out.weight)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0])


def test_a_single_layer_in_order_is_no_evidence_in_a_network_of_several_weights():
    net, x = Cell(), torch.randn(60, 3, 5)
    reason = "the longest run of layers with the same clear gap has 1 layer, expected 2"
    ds = bnrank.profile(net, x, what=("weights",))
    assert ds.sizes["layer"] == 9
    assert ds.attrs["bottleneck_reason"] == reason
    assert "bottleneck_rank" not in ds.attrs
    found = bottlenecks.bottleneck(net, x)
    assert (found.rank, found.bottleneck.reason) == (None, reason)
    assert bottlenecks.bottleneck(net, x, min_layers=1).rank == 2
    assert bottlenecks.bottleneck(net.out, torch.randn(60, 8)).rank == 2  # it is the whole network


# Paths beside the weights ---------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A residual network with small weights in its branches, and a readout of any scale."""

    def __init__(self, readout=1.0, residual=1.0, norm=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.residual = nn.Linear(6, 8), nn.Linear(8, 3), residual
        self.inner = nn.ModuleList(nn.Linear(8, 8, bias=not norm) for _ in range(4))
        self.norm = nn.LayerNorm(8, eps=1e-12) if norm else nn.Identity()
        with torch.no_grad():
            self.last.weight.mul_(readout)
            for layer in self.inner:
                layer.weight.mul_(1e-3)

    def forward(self, x):
        h = self.first(x)
        for layer in self.inner:
            h = self.residual * h + self.norm(layer(h).relu())
        return self.last(h)


@pytest.mark.parametrize("settings", [{}, {"readout": 0.01}, {"residual": 0.0, "norm": True}])
def test_networks_whose_outputs_vary_beside_small_weights_are_not_collapsed(settings):
    net = Branches(**settings)
    found = bnrank.bottleneck(net, X)
    assert (found.kind, found.rank, found.layers[1].count) == ("undetermined", None, 0)
    last = 6 if "readout" in settings else 5  # whose weight is small, too
    assert f"no singular value of layers 2 to {last} is above 0.1, but what follows them varies with x, " in str(found)
    assert bnrank.profile(net, X, what=("weights", "activations")).attrs["bottleneck_reason"] == found.bottleneck.reason
    if not settings.get("norm"):  # the residual path lets all pass: the ratio is that of what enters the branches
        h = net.double().first(X)
        inputs = [h]
        for layer in net.inner:
            h = h + layer(h).relu()
            inputs.append(h)
        sizes = [float((values - values.mean(0)).detach().norm()) for values in [*inputs, net(X)]]
        assert f" {max(sizes[1:]) / sizes[0]:.2g} times as much as what enters them" in found.bottleneck.reason


def test_small_weights_without_other_paths_are_collapsed_and_say_what_was_measured():
    found = bnrank.bottleneck(Branches(residual=0.0), X)
    assert (found.kind, found.rank) == ("collapsed", 0)
    assert str(found).startswith("bottleneck: collapsed, rank 0 (no singular value above 0.1), layers 2 to 5")
    scaled = Branches(readout=1e6**3, residual=0.0)  # what was scaled down is scaled up again
    assert bnrank.bottleneck(scaled, X).rank is None


def test_a_bottleneck_elsewhere_counts_where_rank_0_is_refuted():
    net = nn.Sequential(built([LOW, LOW], [6, 8, 8]), Branches())
    net[1].first = nn.Linear(8, 8)
    assert (lambda found: (found.rank, found.start, found.end))(bnrank.bottleneck(net, X)) == (2, 1, 2)


def test_small_weights_on_tokens():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(40, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in net[2:]:
        layer.weight.data.mul_(0.01)
    assert bnrank.bottleneck(net, torch.randint(9, (30, 5))).kind == "collapsed"
    net[0].weight.data.mul_(0.01)
    assert bnrank.bottleneck(net, torch.randint(9, (30, 5))).start == 1


def spread(values):
    """The root mean square of the distance from the mean over samples, at once."""
    flat = values.detach().double().flatten(1)
    return float((flat - flat.mean(0)).square().sum(1).mean().sqrt())


class Sizes:
    """A hook that notes the numbers of samples of all copies of its module."""

    noted: ClassVar[list[int]] = []

    def __call__(self, part, args):
        self.noted.append(len(args[0]))


def test_images_vary_in_blocks_as_all_at_once(monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))).double()
    x = 5 + torch.randn(150, 4, 24, 24, dtype=torch.float64)
    reading = bnrank.networks.read(net, x)
    monkeypatch.setattr(capturing, "MAX_BLOCK", 10 * 4 * 24 * 24)
    net.register_forward_pre_hook(Sizes())
    found = contraction.variations(Functional(net), x, reading, 2)
    assert Sizes.noted == [10] * 6 + [4]
    some = x[torch.linspace(0, 149, 64).round().long()]
    values = [net[: i + 1](some) for i in range(4)]
    assert found.before == pytest.approx(spread(values[0]), rel=1e-12)
    assert found.after == pytest.approx(max(map(spread, values[1:])), rel=1e-12)


class Beside(nn.Module):
    """A residual network with small weights: x passes beside them."""

    def __init__(self, first=None):
        super().__init__()
        torch.manual_seed(0)
        self.first = first or nn.Identity()
        self.mlp = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
        for layer in self.mlp:
            layer.weight.data.mul_(0.01)

    def forward(self, x):
        h = self.first(x)
        return h + self.mlp(h)


SAME = "the samples do not differ where layer {} begins"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [1, 2, 50, 77])
def test_samples_that_do_not_differ_show_no_collapse(count, dtype):
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(3)).expand(count, 6) * 1.1
    chain = Beside().mlp
    for net, first in [(Beside(), 1), (Beside(nn.Sequential(nn.Linear(6, 6), nn.Tanh())), 2), (chain, 1)]:
        found = bnrank.bottleneck(net, x, dtype=dtype)
        assert (found.kind, found.rank, found.start, found.end) == ("undetermined", None, None, None)
        assert SAME.format(first) in str(found)
        assert "pass an x with samples that differ there" in str(found)
        attrs = bnrank.profile(net, x, dtype=dtype).attrs
        assert "bottleneck_rank" not in attrs
        assert attrs["bottleneck_reason"] == found.bottleneck.reason
    assert "times as much as what enters them" in str(bnrank.bottleneck(Beside(), X, dtype=dtype))
    assert bnrank.bottleneck(chain, X, dtype=dtype).kind == "collapsed"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_differences_that_are_lost_before_small_weights_show_no_collapse(dtype):
    first = nn.Linear(6, 6)
    first.weight.data[:] = torch.tensor([1.0, 1, 1, 1, 1, -5])  # what differs below has the weight 0
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(3)).expand(50, 6)
    assert SAME.format(2) in str(bnrank.bottleneck(Beside(first), x, dtype=dtype))


class Placed(nn.Module):
    """Rounding in float32, by the place of a sample among the others, as some matrix products have."""

    def forward(self, x):
        return x + 1e-7 * torch.arange(len(x), dtype=x.dtype)[:, None]


def test_rounding_of_equal_samples_shows_nothing():
    net, x = Beside(Placed()), torch.ones(50, 6)
    for layers in (net, nn.Sequential(Placed(), net.mlp)):
        assert SAME.format(1) in str(bnrank.bottleneck(layers, x))


class Positions(nn.Module):
    """Small weights, then an embedding of the same number for all samples."""

    def __init__(self):
        super().__init__()
        self.mlp, self.places = Beside().mlp, nn.Embedding(3, 6)

    def forward(self, x):
        h = self.mlp(x)
        return h + self.places(torch.ones(len(x), dtype=torch.long))


def test_integers_that_are_equal_do_not_vary():
    net = Positions()
    reading = bnrank.networks.read(net, X)
    found = contraction.variations(Functional(net), X, reading, 1)
    net = net.double()
    assert found.before == pytest.approx(spread(X), rel=1e-12)
    assert found.after == pytest.approx(spread(net.mlp[0](X.double())), rel=1e-12)
    assert bnrank.bottleneck(net, X).kind == "collapsed"


def test_equal_tokens_show_no_collapse():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(40, 8), nn.Linear(8, 8))
    for part in (net[0], net[2], net[3]):
        part.weight.data.mul_(0.01)
    tokens = torch.randint(9, (30, 5))
    assert bnrank.bottleneck(net, tokens).kind == "collapsed"
    for few in (tokens[:1], tokens[:1].expand(30, 5)):
        assert SAME.format(1) in str(bnrank.bottleneck(net, few))


class Heads(nn.Module):
    """Heads side by side, of full rank: each has as many singular values as outputs, and all are near 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 20), nn.Linear(4, 3)
        self.heads = nn.ModuleList(nn.Linear(20, 4) for _ in range(3))
        for layer in self.heads:
            nn.init.orthogonal_(layer.weight)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(sum(head(h).tanh() for head in self.heads))


def test_full_ranks_side_by_side_are_no_bottleneck_but_narrow_widths_in_order_are():
    found = bnrank.bottleneck(Heads(), X)
    assert [layer.count for layer in found.layers][1:4] == [4, 4, 4]
    assert (found.kind, found.bottleneck.reason[:40]) == ("undetermined", "the longest run of layers with the same ")
    narrow = built([HIGH, [1.1, 0.9], [1.0, 0.8], [1.2, 0.7], HIGH], [6, 8, 2, 2, 8, 6])
    found = bnrank.bottleneck(narrow, X)
    assert (found.kind, found.rank, found.start, found.end) == ("full", 2, 2, 4)
    rows = [line.split() for line in str(found).splitlines()[2:]]
    assert [row[3] for row in rows[1:4]] == ["–", "–", "–"]  # a third singular value does not exist
    assert [row[3] for row in (rows[0], rows[4])] == ["1.5", "1.5"]
    assert [layer.rest for layer in found.layers[1:4]] == [0, 0, 0]
