"""Linear pieces along lines, against dense sampling, known functions and the tent map."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.measures import regions
from bnrank.measures.regions import pieces as swept
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import LinearNetwork, from_layers
from helpers import normal
from oracles import input_jacobian

from .regions_common import network, signs


def tent(depth):
    """The tent map on [0, 1], depth times."""
    first, last = torch.tensor([[2.0], [2.0]]), torch.tensor([[1.0, -2.0]])
    weights = [first, *[first @ last] * (depth - 1), last]
    return from_layers(weights, [*[torch.tensor([0.0, -1.0])] * depth, torch.zeros(1)])


ABSOLUTE = from_layers([torch.tensor([[1.0], [-1.0]]), torch.ones(1, 2)])

NETWORKS = {
    "shallow": network([3, 12, 2]),
    "deep": network([4, 10, 10, 10, 10, 3], seed=1),
    "leaky": network([3, 8, 8, 2], slope=0.3),
    "negative slope": network([3, 8, 8, 1], slope=-0.5),
    "without biases": network([3, 8, 8, 5], bias=False),
    "no hidden layer": network([3, 2]),
    "linear": LinearNetwork([3, 4, 2], bias=True),
    "sequential": nn.Sequential(
        nn.Linear(3, 9), nn.LeakyReLU(0.1), nn.Linear(9, 9), nn.LeakyReLU(0.1), nn.Linear(9, 2)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_pieces_are_those_of_dense_sampling(name):
    net = NETWORKS[name]
    d_in = as_mlp(net).widths[0]
    start, end = 3 * normal(2, d_in, seed=5)
    pieces = regions.along_line(net, start, end, merge=False)
    exact = as_mlp(net)
    low, high = pieces.intervals.T.contiguous()
    assert low[0] == 0
    assert high[-1] == 1
    assert torch.equal(low[1:], high[:-1])
    t = torch.linspace(0, 1, 4001, dtype=torch.float64)
    x = start + t[:, None] * (end - start)
    at = torch.searchsorted(high, t).clamp(max=len(pieces) - 1)
    inside = (t > low[at] + 1e-9) & (t < high[at] - 1e-9)
    if exact.slope == 1:
        assert not pieces.patterns.any()
    else:
        assert torch.equal(pieces.patterns[at][inside], signs(net, x)[inside])
        assert (pieces.patterns[1:] != pieces.patterns[:-1]).any(1).all()
    jacobians = input_jacobian(exact, pieces.points)
    for piece, jacobian in zip(pieces, jacobians, strict=True):
        assert torch.allclose(piece.matrix, jacobian, atol=1e-12)
        assert torch.allclose(piece.singular_values, torch.linalg.svdvals(jacobian), atol=1e-12)
        ends = start + torch.tensor(piece.interval, dtype=torch.float64)[:, None] * (end - start)
        assert torch.allclose(exact(ends), ends @ piece.matrix.T + piece.offset, atol=1e-11)
    assert torch.allclose(pieces.singular_values, torch.linalg.svdvals(jacobians), atol=1e-12)
    assert torch.allclose(pieces.points, start + (low + high)[:, None] / 2 * (end - start))
    assert pieces.rank == int(torch.linalg.matrix_rank(jacobians, rtol=1e-6).max()) == pieces.witness.rank
    assert not pieces.complete
    assert "lower bound" in pieces.note


def test_the_witness_has_the_widest_margin():
    pieces = regions.along_line(NETWORKS["deep"], -2 * torch.ones(4), 2 * torch.ones(4))
    ratio = pieces.singular_values[:, pieces.rank - 1] / pieces.singular_values[:, 0]
    best = pieces.witness.singular_values
    assert best[pieces.rank - 1] / best[0] == ratio[pieces.ranks == pieces.rank].max()
    assert sum(pieces.rank_counts.values()) == len(pieces) > 1


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_the_tent_map_of_depth_n_has_2_to_the_n_pieces(depth):
    pieces = regions.along_line(tent(depth), [0.0], [1.0])
    assert len(pieces) == 2**depth
    assert torch.equal(pieces.intervals[:, 0], torch.arange(2**depth) / 2**depth)
    slopes = torch.stack([piece.matrix[0, 0] for piece in [*pieces][:64]])
    assert torch.equal(slopes.abs(), torch.full_like(slopes, 2**depth))
    assert torch.equal(slopes[1:], -slopes[:-1])


def test_absolute_value_and_maximum():
    pieces = regions.along_line(ABSOLUTE, [-1.0], [3.0])
    assert [(p.interval, p.matrix.item(), p.offset.item()) for p in pieces] == [
        ((0.0, 0.25), -1.0, 0.0),
        ((0.25, 1.0), 1.0, 0.0),
    ]
    # max(x, y) = y + relu(x - y), y = relu(y) - relu(-y)
    maximum = from_layers([torch.tensor([[1.0, -1.0], [0.0, 1.0], [0.0, -1.0]]), torch.tensor([[1.0, 1.0, -1.0]])])
    pieces = regions.along_line(maximum, [-1.0, 1.0], [1.0, -3.0])
    whole = regions.along_line(maximum, [-1.0, 1.0], [1.0, -3.0], merge=False)
    assert len(whole) == 3  # y changes sign on the way, to no effect
    assert [p.interval for p in pieces] == [(0.0, pytest.approx(1 / 3)), (pytest.approx(1 / 3), 1.0)]
    assert [p.matrix.tolist() for p in pieces] == [[[0.0, 1.0]], [[1.0, 0.0]]]


def test_pieces_with_the_same_map_are_merged_unless_asked_not_to():
    identity = from_layers([torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, -1.0]])])
    merged = regions.along_line(identity, [-1.0], [2.0])
    assert len(merged) == 1
    assert merged[0].interval == (0.0, 1.0)
    assert merged[0].pattern.tolist() == [1, -1]  # of the longer piece
    assert merged.points.item() == 1.0
    assert len(regions.along_line(identity, [-1.0], [2.0], merge=False)) == 2
    # a neuron whose way to the output is dead
    dead = from_layers([torch.eye(2), -torch.ones(1, 2), torch.ones(1, 1)])
    assert len(regions.along_line(dead, [-1.0, 1.0], [1.0, 1.0])) == 1
    assert len(regions.along_line(dead, [-1.0, 1.0], [1.0, 1.0], merge=False)) == 2


def test_maps_that_only_rounding_tells_apart_are_the_same():
    b, c = normal(5, 3, seed=1), normal(2, 5, seed=2)
    net = from_layers([torch.cat([b, -b]), torch.cat([c, -c], 1)])  # relu(z) - relu(-z) = z
    pieces = regions.along_line(net, normal(3, seed=3), normal(3, seed=4))
    assert len(pieces) == 1
    apart = regions.along_line(net, normal(3, seed=3), normal(3, seed=4), merge=False)
    assert len(apart) > 2
    assert max(float((p.matrix - c @ b).abs().max()) for p in apart) < 1e-14


def test_merging_does_not_cross_from_one_line_to_the_next():
    identity = LinearNetwork([2, 2])
    pieces = regions.along_lines(identity, -torch.ones(3, 2), torch.ones(3, 2))  # three times the same
    assert pieces.lines.tolist() == [0, 1, 2]


@pytest.mark.parametrize("batch", [1, 3, 4096])
@pytest.mark.parametrize("merge", [True, False])
def test_many_lines_are_as_many_single_lines(monkeypatch, batch, merge):
    monkeypatch.setattr(swept, "BATCH", batch)
    net = NETWORKS["deep"]
    starts, ends = normal(4, 4, seed=1), 2 * normal(4, 4, seed=2)
    together = regions.along_lines(net, starts, ends, merge=merge)
    monkeypatch.setattr(swept, "BATCH", 4096)
    first = 0
    for i in range(4):
        alone = regions.along_line(net, starts[i], ends[i], merge=merge)
        part = slice(first, first + len(alone))
        assert (together.lines[part] == i).all()
        assert torch.allclose(together.intervals[part], alone.intervals, atol=1e-12)
        assert torch.equal(together.patterns[part], alone.patterns)
        first += len(alone)
    assert first == len(together)


def test_a_line_inside_a_kink_takes_a_jacobian_that_f_has():
    # relu(y + 10) - 10 - relu(y) + relu(-y) = 0 for y > -10. At y = 0 both the last two have the derivative 0, so that
    # autograd finds 1.
    net = from_layers(
        [torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, -1.0]]), torch.tensor([[1.0, -1.0, 1.0]])],
        [torch.tensor([10.0, 0.0, 0.0]), torch.tensor([-10.0])],
    )
    pieces = regions.along_line(net, [-1.0, 0.0], [1.0, 0.0])
    with pytest.warns(UserWarning, match="kink"):
        assert bnrank.Jacobian(net, pieces.points).rank().rank == 1
    assert len(pieces) == 1
    assert pieces.rank == 0
    assert pieces[0].pattern.tolist() in ([1, 1, -1], [1, -1, 1])


def test_a_line_in_the_kinks_of_a_deep_network_borders_on_what_is_found():
    net = network([3, 6, 6, 2], seed=3, bias=False)
    weight = net.weights[0].data
    weight[:, 2] = weight[:, 0] * 0
    weight[0], weight[1] = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, -2.0])
    pieces = regions.along_line(net, [-1.0, 0.3, 0.0], [1.0, 1.0, 0.0], merge=False)
    assert (pieces.patterns[:, 0] == -pieces.patterns[:, 1]).all()
    beside = torch.tensor([0.0, 0.0, 1e-9]) * pieces.patterns[0, 0]
    assert torch.allclose(input_jacobian(net, pieces.points + beside), torch.stack([p.matrix for p in pieces]))


def test_neurons_that_are_zero_everywhere_have_sign_0():
    net = network([2, 3, 3, 2], seed=1)
    net.weights[0].data.zero_()
    net.biases[0].data.copy_(torch.tensor([-1.0, 0.0, -2.0]))
    net.biases[1].data.zero_()
    pieces = regions.along_line(net, [-1.0, 0.0], [1.0, 0.0])
    assert [p.tolist() for p in pieces.patterns] == [[-1, 0, -1, 0, 0, 0]]
    assert (pieces.rank, pieces.rank_counts) == (0, {0: 1})
    assert pieces.witness.matrix.tolist() == [[0, 0], [0, 0]]


def test_twin_neurons_and_near_twins_break_once():
    first = torch.tensor([[1.0], [3.0], [1.0], [0.1]], dtype=torch.float64)
    bias = -0.3 * first[:, 0]
    bias[2] += 1e-14
    net = from_layers([first, torch.ones(2, 4), torch.ones(1, 2)], [bias, -torch.ones(2) / 2, torch.zeros(1)])
    pieces = regions.along_line(net, [0.0], [1.0], merge=False)
    kinks = [0.3, 0.3 + 0.5 / 5.1]  # the second layer's neurons are twins too
    assert np.allclose(pieces.intervals[1:, 0], kinks, atol=1e-14, rtol=0)
    assert pieces.patterns[-1].tolist() == [1] * 6


def test_a_jacobian_that_cancels_has_rank_0():
    net = network([4, 9, 9, 4], seed=2)
    copy = [w.detach() for w in net.weights]
    weights = [torch.cat([copy[0]] * 2), torch.block_diag(copy[1], copy[1]), torch.cat([copy[2], -copy[2]], 1)]
    net = from_layers(weights)
    # cancellation with what rounding leaves
    with torch.no_grad():
        net.weights[0][9:] *= 3.0
        net.weights[2][:, 9:] /= 3.0
    pieces = regions.along_line(net, -torch.ones(4), torch.ones(4) * torch.tensor([1, 2, 3, 4]), rtol=0)
    assert float(pieces.singular_values.max()) > 0
    assert pieces.rank == 0


def test_small_singular_values_count_down_to_the_tolerance():
    net = network([3, 20, 20, 20, 3], seed=1)
    u, _, v = torch.linalg.svd(net.weights[0].detach().double(), full_matrices=False)
    net = from_layers([u * torch.tensor([1.0, 1e-3, 1e-5]) @ v, *net.weights[1:]], net.biases)
    start, end = normal(2, 3, seed=1)
    values = input_jacobian(net, regions.along_line(net, start, end).points)
    ratios = torch.linalg.svdvals(values)
    for rtol in (0.0, 1e-9, 1e-4, 1e-2):
        pieces = regions.along_line(net, start, end, rtol=rtol)
        assert torch.equal(pieces.ranks, (ratios > rtol * ratios[:, :1]).sum(1))
        assert pieces.rtol == rtol
    assert pieces.rank < 3 == regions.along_line(net, start, end).rank


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 5),
    width=st.integers(1, 6),
    slope=st.sampled_from([0.0, 0.3, -0.5]),
    bias=st.booleans(),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_every_network_is_affine_between_its_break_points(seed, depth, width, slope, bias, scale):
    net = network([2, *[width] * depth, 2], seed=seed, slope=slope, bias=bias)
    start, end = scale * normal(2, 2, seed=seed)
    pieces = regions.along_line(net, start, end)
    t = torch.rand(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = start + t[:, None] * (end - start)
    with torch.no_grad():
        y = as_mlp(net)(x)
    at = torch.searchsorted(pieces.intervals[:, 1].contiguous(), t)
    for i, value, k in zip(at, y, range(len(t)), strict=True):
        assert torch.allclose(pieces[int(i)].matrix @ x[k] + pieces[int(i)].offset, value, rtol=1e-9, atol=1e-9 * scale)
    assert float(pieces.sizes.sum()) == pytest.approx(1)
    assert len(pieces) <= len(regions.along_line(net, start, end, merge=False)) <= 10**5


def test_kinks_at_the_very_ends():
    close = torch.tensor([-1e-14, 1e-14, -1 + 1e-14, -1 - 1e-14, -0.5], dtype=torch.float64)
    net = from_layers([torch.ones(5, 1), torch.ones(1, 5)], [close, torch.zeros(1)])
    assert regions.along_line(net, [0.0], [1.0]).intervals.tolist() == [[0, 0.5], [0.5, 1]]
    net = from_layers([torch.ones(2, 1), torch.ones(1, 2)], [torch.tensor([-1e-7, -1 + 1e-7]).double(), torch.zeros(1)])
    assert len(regions.along_line(net, [0.0], [1.0])) == 3


def test_the_limit_is_kept_and_told():
    pieces = regions.along_line(tent(8), [0.0], [1.0], max_regions=100)
    assert len(pieces) == 100
    assert "max_regions = 100" in pieces.note
    assert "max_regions" not in regions.along_line(tent(8), [0.0], [1.0], max_regions=256).note
    assert len(regions.along_lines(LinearNetwork([2, 1]), -torch.ones(9, 2), torch.ones(9, 2), max_regions=4)) == 4


def test_a_search_that_stops_between_batches_is_not_over(monkeypatch):
    monkeypatch.setattr(swept, "BATCH", 1)
    pieces = regions.along_line(tent(4), [0.0], [1.0], max_regions=7)
    assert [p.interval[0] for p in pieces] == [k / 16 for k in range(7)]
    assert "max_regions = 7" in pieces.note


def test_it_is_a_sequence():
    pieces = regions.along_line(tent(3), [0.0], [1.0])
    assert pieces[-1].interval == (0.875, 1.0)
    assert [p.interval for p in pieces][2:4] == [pieces[2].interval, pieces[-5].interval]
    with pytest.raises(IndexError, match="8"):
        pieces[8]
    assert str(pieces).startswith("8 regions, 8 of rank 1. The rank is a lower bound")
    assert "Region" in repr(pieces)


def test_the_network_is_read_once_and_left_alone():
    net = network([3, 5, 2], dtype=torch.float32)
    before = [p.clone() for p in net.parameters()]
    pieces = regions.along_line(net, torch.ones(3), -torch.ones(3))
    assert all(torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    matrix = pieces[0].matrix.clone()
    net.weights[0].data.zero_()
    assert torch.equal(pieces[0].matrix, matrix)
    assert matrix.dtype == pieces.points.dtype == torch.float64


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (TypeError, "Tanh", lambda n, x: regions.along_line(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), x, -x)),
        (TypeError, "Conv2d", lambda n, x: regions.along_line(nn.Sequential(nn.Conv2d(1, 1, 1)), x, -x)),
        (TypeError, "expected a torch.nn.Module", lambda n, x: regions.along_line(lambda z: z, x, -x)),
        (ValueError, r"start: got shape \(2,\), expected \(3,\)", lambda n, x: regions.along_line(n, x[:2], -x)),
        (TypeError, "start: got 'a'", lambda n, x: regions.along_line(n, "a", -x)),
        (ValueError, "end: got NaN", lambda n, x: regions.along_line(n, x, x * torch.nan)),
        (ValueError, "end: got the start itself, expected", lambda n, x: regions.along_line(n, x, x)),
        (
            ValueError,
            "end: got the start itself in segment 1",
            lambda n, x: regions.along_lines(n, x.repeat(2, 1), torch.stack([-x, x])),
        ),
        (
            ValueError,
            "ends: got 1 points, expected as many as starts, 2",
            lambda n, x: regions.along_lines(n, x.repeat(2, 1), -x[None]),
        ),
        (ValueError, r"starts: got shape \(3,\)", lambda n, x: regions.along_lines(n, x, -x)),
        (ValueError, "rtol: got 1", lambda n, x: regions.along_line(n, x, -x, rtol=1.0)),
        (ValueError, "max_regions: got 0", lambda n, x: regions.along_line(n, x, -x, max_regions=0)),
        (ValueError, "layer 1 has values of 1e150 and more", lambda n, x: regions.along_line(n, 1e151 * x, -x)),
    ],
)
def test_bad_input_is_refused_by_name(error, match, call):
    with pytest.raises(error, match=match):
        call(network([3, 40, 4]), torch.ones(3, dtype=torch.float64))


def test_parameters_that_are_not_finite_are_refused():
    net = network([3, 4, 2])
    net.weights[1].data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"layers\.1\.weight"):
        regions.along_line(net, torch.ones(3), -torch.ones(3))
