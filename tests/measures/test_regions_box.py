"""All regions of a box, against all sign patterns tried one by one, and counts that are known."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

import bnrank
from bnrank.measures import regions
from bnrank.measures.regions import pieces as swept
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import LinearNetwork, from_layers
from helpers import normal
from oracles import input_jacobian

from .regions_common import network


def bounds_of(name):
    net, box = CASES[name]
    return np.broadcast_to(np.array(box, float), (net.widths[0], 2))


def facets(vertices):
    """Rows and sides of the half-spaces whose intersection is the convex hull."""
    if vertices.shape[1] == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.stack([-vertices.min(), vertices.max()])
    equations = torch.from_numpy(ConvexHull(vertices.numpy()).equations)
    return equations[:, :-1], -equations[:, -1]


@functools.cache
def patterns_one_by_one(name):
    """Every sign pattern of the hidden neurons whose inequalities leave room for a ball in the box."""
    net, box = as_mlp(CASES[name][0]), bounds_of(name)
    weights = [w.detach().numpy() for w in net.weights]
    biases = [b.detach().numpy() for b in net.biases] or [np.zeros(len(w)) for w in weights]
    found = set()
    for pattern in itertools.product([-1, 1], repeat=sum(net.widths[1:-1])):
        rest, matrix, offset, rows, sides = list(pattern), np.eye(len(box)), np.zeros(len(box)), [], []
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            matrix, offset = weight @ matrix, weight @ offset + bias
            sign, rest = np.array(rest[: len(weight)]), rest[len(weight) :]
            rows.extend(-sign[:, None] * matrix)
            sides.extend(sign * offset)
            slope = np.where(sign > 0, 1.0, net.slope)
            matrix, offset = slope[:, None] * matrix, slope * offset
        eye = np.eye(len(box))
        rows, sides = np.vstack([rows, eye, -eye]), np.concatenate([sides, box[:, 1], -box[:, 0]])
        ball = np.column_stack([rows, np.linalg.norm(rows, axis=1)])
        best = linprog([*[0] * len(box), -1], A_ub=ball, b_ub=sides, bounds=(None, None))
        if best.status == 0 and best.x[-1] > 1e-7:
            found.add(pattern)
    return found


def cross():
    """m (sign x, sign y) with m = min(|x|, |y|), by clip(x, -|y|, |y|) = (|x + |y|| - |x - |y||) / 2 (T19, E9)."""
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    x, y = torch.tensor([1.0, -1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, -1.0])
    parts = [x + y.abs(), x - y.abs(), y + x.abs(), y - x.abs()]
    second = torch.stack([sign * part for part in parts for sign in (1, -1)])
    half = torch.tensor([1.0, 1.0, -1.0, -1.0]) / 2
    return from_layers([first, second, torch.block_diag(half[None], half[None])])


CASES = {
    "shallow": (network([3, 6, 2]), (-1, 1)),
    "deep": (network([3, 4, 3, 3]), (-2, 1)),
    "deeper": (network([2, 3, 3, 2, 2], seed=4), (-2, 2)),
    "leaky": (network([2, 4, 3, 2], slope=0.3, seed=1), (-1, 3)),
    "negative slope": (network([3, 4, 3, 1], slope=-0.5, seed=2), (-1, 1)),
    "one input": (network([1, 5, 3, 2], seed=3), (-2, 2)),
    "four inputs": (network([4, 5, 2, 2], seed=5), (-1, 1)),
    "unlike sides": (network([3, 5, 2], seed=6), ((-1, 1), (0, 100), (-3, -2.5))),
}


@pytest.mark.parametrize("name", CASES)
def test_regions_are_the_patterns_with_room_in_the_box(name):
    net, box = CASES[name]
    exact = as_mlp(net)
    bounds = bounds_of(name)
    found = regions.enumerate(net, box)
    assert {tuple(p) for p in found.patterns.tolist()} == patterns_one_by_one(name)
    assert len(found.patterns.unique(dim=0)) == len(found)
    assert found.complete
    jacobians = input_jacobian(exact, found.points)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(*bounds.T, (300, len(bounds))))
    y, held = exact(x).detach(), torch.zeros(300, dtype=int)
    for region, jacobian in zip(found, jacobians, strict=True):
        rows, sides = facets(region.vertices)
        assert (rows @ region.point < sides).all()
        assert torch.allclose(region.matrix, jacobian, atol=1e-12)
        inside = (x @ rows.T < sides).all(1)
        assert torch.allclose(x[inside] @ region.matrix.T + region.offset, y[inside])
        held += inside
        corner = exact(region.vertices)
        assert torch.allclose(corner, region.vertices @ region.matrix.T + region.offset, atol=1e-10)
    assert (held == 1).all()
    assert found.rank == int(torch.linalg.matrix_rank(jacobians, rtol=1e-6).max())


@pytest.mark.parametrize(("n", "d"), [(8, 2), (8, 3), (7, 4), (7, 5)])
def test_hyperplanes_in_general_position(n, d):
    net = from_layers([normal(n, d, seed=n), torch.ones(1, n)], [normal(n, seed=d), torch.zeros(1)])
    found = regions.enumerate(net, (-1e3, 1e3))
    assert len(found) == sum(math.comb(n, j) for j in range(d + 1))


def test_hyperplanes_through_one_point():
    n, d = 6, 3
    net = from_layers([normal(n, d, seed=1), normal(2, n)])
    found = regions.enumerate(net, (-1, 1))
    assert len(found) == 2 * sum(math.comb(n - 1, j) for j in range(d))


def test_the_cross_has_jacobians_of_rank_one_everywhere():
    net = cross()
    x = normal(100, 2)
    m = x.abs().min(1).values
    assert torch.allclose(net(x).detach(), m[:, None] * x.sign())
    found = regions.enumerate(net, (-1, 1))
    assert found.complete
    assert (found.rank, found.rank_counts) == (1, {1: 8})
    assert "Rank_J over the box" in found.note
    assert torch.equal(found.singular_values[:, 1], torch.zeros(8))


@pytest.mark.parametrize("widths", [[3, 8, 8, 2], [4, 6, 6, 3]])
@pytest.mark.parametrize("bias", [True, False])
def test_vertices_and_volumes(widths, bias):
    net = network(widths, seed=2, bias=bias)
    found = regions.enumerate(net, (-1, 1))
    volumes = [ConvexHull(region.vertices.numpy()).volume for region in found]
    assert sum(volumes) == pytest.approx(2 ** widths[0], rel=1e-9)
    assert min(volumes) > 0


def test_there_are_no_more_vertices_than_corners():
    # wedges around a plane in four dimensions, where more hyperplanes meet than two, and a cut across that plane
    weight = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, -1, 0, 0], [0, 0, 1, 0.3]])
    net = from_layers([weight, torch.ones(1, 5)], [torch.tensor([0, 0, 0, 0, 0.1]), torch.zeros(1)])
    found = regions.enumerate(net, (-1, 1))
    assert len(found) == 16
    assert {len(region.vertices) for region in found} == {12}  # triangle times trapezium


@settings(derandomize=True, deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 3), slope=st.sampled_from([0.0, 0.5, -0.5]), third=st.booleans())
def test_regions_fill_the_box_where_many_kinks_meet(seed, d, slope, third):
    # small integers: parallel and coinciding kinks, many through one point, neurons that are 0 on whole regions
    rng = np.random.default_rng(seed)
    widths = [d, *rng.integers(1, 5, rng.integers(1, 4)), 2]
    draws = [rng.integers(-2, 3, shape) for shape in zip(widths[1:], widths, strict=False)]
    biases = [rng.integers(-2, 3, width) for width in widths[1:]]
    scale = 3 if third else 1
    net = from_layers(
        [torch.from_numpy(w) / scale for w in draws], [torch.from_numpy(b) / scale for b in biases], slope
    )
    found = regions.enumerate(net, (-2, 2))
    assert len(found.patterns.unique(dim=0)) == len(found)
    volumes = [
        ConvexHull(r.vertices.numpy()).volume if d > 1 else float(r.vertices.max() - r.vertices.min()) for r in found
    ]
    assert sum(volumes) == pytest.approx(4**d)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", [True, False])
def test_a_box_with_an_idle_input_has_the_regions_of_one_without(seed, bias):
    """Intervals, polygons and polytopes are cut by code of their own."""
    for d in (1, 2, 3):
        net = network([d, 5, 5, 2], seed=seed, bias=bias)
        wider = [net.weights[0].detach().double(), *net.weights[1:]]
        wider[0] = torch.cat([wider[0], torch.zeros(5, 1)], 1)
        few, many = regions.enumerate(net, (-1, 1)), regions.enumerate(from_layers(wider, net.biases), (-1, 1))
        assert sorted(map(tuple, few.patterns.tolist())) == sorted(map(tuple, many.patterns.tolist()))
        assert few.rank_counts == many.rank_counts


def test_kinks_that_coincide_or_only_touch_the_box():
    eye = torch.eye(3, dtype=torch.float64)
    weight = torch.cat([eye, 2 * eye[:1], -eye[:1], torch.ones(1, 3), torch.zeros(1, 3)])
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -3.0, 0.0], dtype=torch.float64)  # x + y + z = 3: one corner
    net = from_layers([weight, normal(2, 7)], [bias, torch.zeros(2)])
    found = regions.enumerate(net, (-1, 1))
    assert len(found) == 8
    assert (found.patterns[:, 5:] == torch.tensor([-1, 0])).all()


def test_rank_over_a_box_is_more_than_over_a_sample():
    # x -> (relu(x), relu(y - 0.99)): full rank in a corner that few samples hit
    net = from_layers([torch.eye(2), torch.eye(2)], [torch.tensor([0.0, -0.99]), torch.zeros(2)])
    x = normal(20, 2) / 10
    assert bnrank.Jacobian(net, x).rank().rank == 1
    found = regions.enumerate(net, (-1, 1))
    assert found.rank == 2
    assert bnrank.Jacobian(net, found.witness.point[None]).rank().rank == 2


def test_the_interval_of_one_input():
    net = from_layers([torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, 1.0]])])
    found = regions.enumerate(net, ((-1, 3),))
    assert [r.vertices.flatten().tolist() for r in found] == [[-1, 0], [0, 3]]
    assert found.points.flatten().tolist() == [-0.5, 1.5]
    assert found.sizes.tolist() == [1, 3]


@pytest.mark.parametrize("d_in", [1, 2, 3])
def test_the_limit_is_kept_and_told(d_in):
    net = network([d_in, 4, 3, 3], seed=1)
    whole = len(regions.enumerate(net, (-3, 3)))
    cut = regions.enumerate(net, (-3, 3), max_regions=whole - 1)
    assert (len(cut), cut.complete) == (whole - 1, False)
    assert "lower bound on Rank_J over the box: not all regions are covered." in cut.note
    assert f"The search stopped at max_regions = {whole - 1}" in cut.note
    assert regions.enumerate(net, (-3, 3), max_regions=whole).complete


def test_a_limit_stops_a_search_that_would_not_end():
    net = network([6, 200, 200, 2])
    found = regions.enumerate(net, (-1, 1), max_regions=20)
    assert (len(found), found.complete) == (20, False)


def test_networks_without_kinks_have_one_region():
    for net in (LinearNetwork([3, 4, 2]), network([3, 2]), network([3, 4, 2], init=0.0)):
        found = regions.enumerate(net, (-1, 1))
        assert (len(found), found.complete) == (1, True)
    assert (found.rank, found.rank_counts) == (0, {0: 1})


def test_a_batch_makes_no_difference(monkeypatch):
    net = network([3, 5, 5, 2], seed=8)
    whole = regions.enumerate(net, (-1, 1))
    monkeypatch.setattr(swept, "BATCH", 2)
    parts = regions.enumerate(net, (-1, 1))
    assert sorted(map(tuple, whole.patterns.tolist())) == sorted(map(tuple, parts.patterns.tolist()))


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, r"box: got shape \(3,\)", {"box": (1, 2, 3)}),
        (ValueError, r"box: got .* expected low < high", {"box": (1, 1)}),
        (ValueError, "box: got NaN or infinite", {"box": (0, math.inf)}),
        (TypeError, "box: got 'unit'", {"box": "unit"}),
        (ValueError, "net: got 13 inputs, expected at most 12", {"net": network([13, 2])}),
        (ValueError, "max_regions: got -1", {"max_regions": -1}),
    ],
)
def test_bad_input_is_refused_by_name(error, match, change):
    with pytest.raises(error, match=match):
        regions.enumerate(**({"net": network([3, 4, 2]), "box": (-1, 1)} | change))


def test_volumes_of_many_dimensions_are_refused():
    with pytest.raises(ValueError, match="d_in = 3"):
        _ = regions.enumerate(network([3, 4, 2]), (-1, 1)).sizes
