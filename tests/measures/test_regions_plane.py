"""Regions in a plane, against a dense grid, lines, and arrangements that can be counted."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank.measures import regions
from bnrank.measures.regions import pieces as swept
from bnrank.measures.regions import shapes
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import LinearNetwork, from_layers
from helpers import normal
from oracles import input_jacobian

from .regions_common import network, signs


def inside(polygon, points, margin=0.0):
    """Which points lie in a counter-clockwise polygon, by half-planes."""
    after = polygon.roll(-1, 0)
    edge = after - polygon
    offset = points[:, None] - polygon
    return (edge[:, 0] * offset[..., 1] - edge[:, 1] * offset[..., 0] >= margin).all(1)


NETWORKS = {
    "shallow": network([3, 9, 2]),
    "deep": network([4, 7, 7, 7, 3], seed=1),
    "leaky": network([3, 6, 6, 2], slope=0.3),
    "negative slope": network([3, 6, 6, 1], slope=-0.5, seed=2),
    "without biases": network([2, 6, 6, 3], bias=False),
    "linear": LinearNetwork([3, 4, 2], bias=True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_regions_are_those_of_a_dense_grid(name):
    net = NETWORKS[name]
    origin, u, v = normal(3, net.widths[0], seed=7)
    found = regions.in_plane(net, 0.2 * origin, u, 3 * v, ((-1, 2), (-0.5, 0.5)))
    exact = as_mlp(net)
    assert float(found.sizes.sum()) == pytest.approx(3, rel=1e-12)
    assert float(found.sizes.min()) > 0
    a, b = torch.linspace(-0.999, 1.999, 61).double(), torch.linspace(-0.499, 0.499, 47).double()
    grid = torch.cartesian_prod(a, b)
    x = 0.2 * origin + grid[:, :1] * u + grid[:, 1:] * 3 * v
    pattern, value = signs(net, x), exact(x).detach()
    held = torch.zeros(len(grid), dtype=int)
    middles = torch.stack([region.polygon.mean(0) for region in found])
    assert torch.allclose(found.points, 0.2 * origin + middles @ torch.stack([u, 3 * v]))
    jacobians = input_jacobian(exact, found.points)
    for region, jacobian in zip(found, jacobians, strict=True):
        assert torch.allclose(region.matrix, jacobian, atol=1e-12)
        assert torch.allclose(
            value[inside(region.polygon, grid)], x[inside(region.polygon, grid)] @ region.matrix.T + region.offset
        )
        safely = inside(region.polygon, grid, 1e-9)
        held += safely
        if net.slope != 1:
            assert (pattern[safely] == region.pattern).all()
    assert held.max() == 1
    assert held.float().mean() > 0.99  # all but those on edges
    assert len(found.patterns.unique(dim=0)) == len(found)  # in a plane each pattern has one convex region
    assert {tuple(p) for p in pattern[held > 0].tolist()} <= {
        tuple(p) for p in found.patterns.tolist()
    } or net.slope == 1
    assert found.rank == int(torch.linalg.matrix_rank(jacobians, rtol=1e-6).max())
    assert not found.complete


@pytest.mark.parametrize("name", ["deep", "leaky"])
def test_a_line_in_the_plane_meets_the_same_regions(name):
    net = NETWORKS[name]
    origin, u, v = normal(3, net.widths[0], seed=8)
    plane = regions.in_plane(net, origin, u, v)
    line = regions.along_line(net, origin - u + 0.1 * v, origin + u + 0.1 * v, merge=False)
    points = torch.stack([line.intervals.mean(1) * 2 - 1, torch.full((len(line),), 0.1, dtype=torch.float64)], 1)
    met = []
    for region in plane:
        if (region.polygon[:, 1] < 0.1).any() and (region.polygon[:, 1] > 0.1).any():
            met.append(tuple(region.pattern.tolist()))
            assert inside(region.polygon, points).sum() == 1
    assert sorted(met) == sorted(map(tuple, line.patterns.tolist()))


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_lines_in_general_position(n):
    net = from_layers([normal(n, 2, seed=n), torch.ones(1, n)], [normal(n, seed=n + 1), torch.zeros(1)])
    found = regions.in_plane(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], (-1e4, 1e4))
    assert len(found) == 1 + n + math.comb(n, 2)
    assert float(found.sizes.sum()) == pytest.approx(4e8, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_lines_through_one_point(n):
    net = from_layers([normal(n, 2, seed=n), normal(3, n, seed=1)])
    found = regions.in_plane(net, [0.1, 0.2], [1.0, 0.0], [0.0, 1.0])
    assert len(found) == 2 * n
    assert float(found.sizes.sum()) == pytest.approx(4, rel=1e-12)


def test_the_limit_of_regions_limits_the_work(monkeypatch):
    sizes = []
    halved = shapes.Polygons._halved
    monkeypatch.setattr(shapes.Polygons, "_halved", lambda self, *rest: sizes.append(len(self)) or halved(self, *rest))
    wide = network([3, 100, 2])
    found = regions.in_plane(wide, torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1], max_regions=20)
    assert len(found) == 20
    assert max(sizes) <= 21
    whole = regions.in_plane(wide, torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1])
    assert len(whole) > 1000


def test_twin_neurons_parallel_and_opposite_lines():
    weight = torch.tensor([[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    net = from_layers(
        [weight, torch.ones(1, 5)], [torch.tensor([0.1, 0.3, -0.1, 0.6, 5.0], dtype=torch.float64), torch.zeros(1)]
    )
    found = regions.in_plane(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    assert sorted(found.sizes.tolist()) == pytest.approx([0.8, 1.0, 2.2])
    assert (found.patterns[:, 4] == 1).all()


def test_a_plane_inside_a_kink_takes_a_jacobian_that_f_has():
    net = from_layers(
        [torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]), torch.tensor([[1.0, -1.0, 1.0]])],
        [torch.tensor([10.0, 0.0, 0.0]), torch.tensor([-10.0])],
    )
    found = regions.in_plane(net, torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1])
    assert (len(found), found.rank) == (1, 0)


def test_regions_of_one_pattern_are_counted():
    # |x| + |y|, where a third neuron of the first layer has no effect
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0]])
    net = from_layers([first, torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])])
    found = regions.in_plane(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    assert len(found) == 6
    assert found.rank_counts == {1: 6}


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    depth=st.integers(1, 4),
    width=st.integers(1, 7),
    slope=st.sampled_from([0.0, 0.3, -0.5]),
    bias=st.booleans(),
    integers=st.booleans(),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_the_areas_fill_the_rectangle(seed, depth, width, slope, bias, integers, scale):
    net = network([3, *[width] * depth, 2], seed=seed, slope=slope, bias=bias)
    if integers:  # many lines through one point, parallel lines, neurons that are 0 on whole regions
        for parameter in net.parameters():
            parameter.data = parameter.data.mul(2).round()
    origin, u, v = normal(3, 3, seed=seed)
    if integers:
        origin, u, v = torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1]
    found = regions.in_plane(net, origin, u, v, (-scale, scale))
    assert float(found.sizes.min()) > 0
    assert float(found.sizes.sum()) == pytest.approx(4 * scale**2, rel=1e-9)
    exact = as_mlp(net)
    for region in [*found][:20]:
        x = origin + region.polygon[:, :1] * u + region.polygon[:, 1:] * v
        with torch.no_grad():
            assert torch.allclose(exact(x), x @ region.matrix.T + region.offset, rtol=1e-8, atol=1e-9 * max(scale, 1))


@pytest.mark.parametrize("batch", [1, 5])
def test_batches_make_no_difference(monkeypatch, batch):
    net, plane = NETWORKS["deep"], normal(3, 4, seed=9)
    whole = regions.in_plane(net, *plane)
    monkeypatch.setattr(swept, "BATCH", batch)
    monkeypatch.setattr(swept, "CHUNK_ENTRIES", 100)
    parts = regions.in_plane(net, *plane)
    assert sorted(map(tuple, whole.patterns.tolist())) == sorted(map(tuple, parts.patterns.tolist()))
    assert torch.allclose(whole.sizes.sort().values, parts.sizes.sort().values)


def test_the_limit_is_kept_and_told():
    found = regions.in_plane(NETWORKS["deep"], *normal(3, 4, seed=9), max_regions=7)
    assert len(found) == 7
    assert "max_regions = 7" in found.note


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "linearly independent", {"v": torch.tensor([2.0, 0.0, 0.0])}),
        (ValueError, "linearly independent", {"u": torch.zeros(3)}),
        (ValueError, "bounds: got .*expected low < high", {"bounds": (1, -1)}),
        (ValueError, r"bounds: got shape \(3,\)", {"bounds": (1, 2, 3)}),
        (TypeError, "bounds: got None", {"bounds": None}),
        (ValueError, r"origin: got shape \(2,\)", {"origin": torch.zeros(2)}),
        (TypeError, "max_regions", {"max_regions": 1.5}),
        (ValueError, "rtol", {"rtol": -1.0}),
    ],
)
def test_bad_input_is_refused_by_name(error, match, change):
    arguments = {"origin": torch.zeros(3), "u": torch.tensor([1.0, 0.0, 0.0]), "v": torch.tensor([0.0, 1e-5, 0.0])}
    with pytest.raises(error, match=match):
        regions.in_plane(NETWORKS["shallow"], **(arguments | change))


def test_thousands_of_regions_of_a_deep_network():
    net = network([20, *[50] * 9, 20], seed=3)
    origin, u, v = normal(3, 20, seed=3)
    found = regions.in_plane(net, origin, u, v)
    assert len(found) > 1000
    assert float(found.sizes.sum()) == pytest.approx(4, rel=1e-12)
    some = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:50]
    assert torch.equal(signs(net, found.points[some]), found.patterns[some])


def test_linear_layers_in_a_row_are_one_and_have_the_same_regions():
    first, second, third = nn.Linear(2, 1), nn.Linear(1, 4), nn.Linear(4, 2)
    for seed, layer in enumerate((first, second, third)):
        generator = torch.Generator().manual_seed(seed)
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
    product = nn.Linear(2, 4)
    product.weight.data = second.weight.data @ first.weight.data
    product.bias.data = second.weight.data @ first.bias.data + second.bias.data
    found = regions.in_plane(nn.Sequential(first, second, nn.ReLU(), third), [0, 0], [1, 0], [0, 1])
    expected = regions.in_plane(nn.Sequential(product, nn.ReLU(), third), [0, 0], [1, 0], [0, 1])
    assert len(found) == len(expected) > 1
    torch.testing.assert_close(sum(r.matrix for r in found), sum(r.matrix for r in expected), rtol=1e-5, atol=1e-5)
