"""The shortest path through the outputs, what it costs rank one (T13), and when rank k is cheaper (T17b)."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist, pdist

from bnrank.theory import tours
from bnrank.theory.constructions import identity, line_interpolant
from bnrank.theory.tours import diameter, samples_for_rank, shortest_path_bounds, tsp_bound


def length(points, order):
    return float(np.linalg.norm(np.diff(points[np.asarray(order)], axis=0), axis=1).sum())


def shortest(points):
    return min(length(points, order) for order in itertools.permutations(range(len(points))))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 10**6))
def test_few_points_get_the_shortest_path(n, d, seed):
    y = np.random.default_rng(seed).integers(0, 4, (n, d)).astype(float)  # points come twice
    found = shortest_path_bounds(y)
    assert found.exact
    assert found.lower == found.upper == pytest.approx(shortest(y), abs=1e-12)
    assert sorted(found.order.tolist()) == list(range(n))
    assert length(y, found.order) == pytest.approx(found.upper, abs=1e-12)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(2, 3), st.integers(0, 10**6))
def test_bounds_hold_the_shortest_path_and_beat_the_spanning_tree(d, seed):
    y = np.random.default_rng(seed).random((9, d))
    exact = shortest_path_bounds(y).upper
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tours, "EXACT", 2)
        found = shortest_path_bounds(y)
    tree = minimum_spanning_tree(cdist(y, y)).sum()
    assert not found.exact
    assert tree * (1 - 1e-12) <= found.lower <= exact * (1 + 1e-12)
    assert exact <= found.upper * (1 + 1e-12)
    assert length(y, found.order) == pytest.approx(found.upper)
    assert found.lower >= tree + 0.3 * (exact - tree) - 1e-12


@pytest.mark.parametrize("most", [2, 2048])
def test_many_points_with_and_without_the_matrix_of_distances(most, monkeypatch):
    monkeypatch.setattr(tours, "MATRIX", most)
    y = np.random.default_rng(0).random((150, 2))
    found = shortest_path_bounds(y)
    assert sorted(found.order.tolist()) == list(range(150))
    assert length(y, found.order) == pytest.approx(found.upper)
    assert minimum_spanning_tree(cdist(y, y)).sum() < found.lower < found.upper
    assert found.upper / found.lower < (1.15 if most == 2048 else 1.45)


def test_points_on_a_line_are_exact():
    y = np.random.default_rng(0).permutation(np.repeat(np.linspace(-3, 4, 40), 2))[:, None] * [[0.6, 0.8]]
    found = shortest_path_bounds(y)
    assert found.lower == pytest.approx(7, rel=1e-12)
    assert found.upper == pytest.approx(7, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_path_grows_like_the_power_one_minus_one_over_k(k):
    rng = np.random.default_rng(k)
    counts = (80, 480)
    lengths = [shortest_path_bounds(rng.random((n, k)) @ np.eye(k, 5)).lower for n in counts]
    assert math.log(lengths[1] / lengths[0]) / math.log(6) == pytest.approx(1 - 1 / k, abs=0.04)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_diameter(n, d, seed):
    x = np.random.default_rng(seed).standard_normal((n, d)) + 100
    assert diameter(x) == pytest.approx(pdist(x).max(initial=0), abs=1e-9)


def test_diameter_of_points_that_all_count():
    x = np.random.default_rng(0).standard_normal((3000, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert diameter(torch.from_numpy(x)) == pytest.approx(pdist(x).max(), rel=1e-12)


def steepest(net, start, end, steps=20001):
    """The largest slope of f along a segment, by differences."""
    t = torch.linspace(0, 1, steps, dtype=torch.float64)[:, None]
    with torch.no_grad():
        values = net(start + t * (end - start))
    return float((values[1:] - values[:-1]).norm(dim=1).max() * (steps - 1) / (end - start).norm())


@pytest.mark.parametrize("seed", range(3))
def test_rank_one_fits_are_as_steep_and_as_large_as_the_tour_says(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    for depth in (4, 12):
        bound = tsp_bound(x, y, depth)
        net = line_interpolant(x, y, depth, seed)
        norm = sum(float((p.detach() ** 2).sum()) for p in net.parameters())
        assert bound.parameter_norm <= norm
        assert bound.slope == pytest.approx(shortest_path_bounds(y).lower / pdist(x.numpy()).max())
        z = net.layers[0](x).detach()[:, 0]
        assert bound.slope <= steepest(net, x[z.argmin()], x[z.argmax()]) * (1 + 1e-3)


def test_the_bound_is_attained_on_a_line():
    x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    bound = tsp_bound(x, 3 * x, 5)
    assert bound.slope == pytest.approx(3)
    assert bound.parameter_norm == pytest.approx(5 * 3 ** (2 / 5))  # five weights 3^{1/5}


def test_the_certified_side_is_taken():
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 2)), rng.random((40, 3))
    found = tsp_bound(x, y, 6)
    assert found.path.lower < found.path.upper
    assert found.slope == pytest.approx(found.path.lower / pdist(x).max())
    assert found.parameter_norm == pytest.approx(6 * found.slope ** (1 / 3))


def test_degenerate_data():
    assert tsp_bound(torch.ones(1, 2), torch.ones(1, 3), 3).parameter_norm == 0
    assert tsp_bound(torch.randn(9, 2), torch.ones(9, 3), 3).slope == 0
    assert tsp_bound(torch.ones(4, 2), torch.ones(4, 1), 3).slope == 0
    with pytest.raises(ValueError, match="y: got different outputs for one and the same input"):
        tsp_bound(torch.ones(2, 2), torch.eye(2), 3)


@pytest.mark.parametrize("depth", [3, 4])
def test_rank_two_is_cheaper_from_the_number_of_samples_on(depth):
    """f* the identity of the unit square, at norm 2 L; TSP is about 0.7124 sqrt N, diam about sqrt 2."""
    rate = (0.7124 / math.sqrt(2)) ** (2 / depth)
    samples = samples_for_rank(2, depth, 0.0, rate)
    assert rate * samples ** (1 / depth) == pytest.approx(2)
    norm = sum(float((p.detach() ** 2).sum()) for p in identity(2, depth).parameters())
    assert norm == pytest.approx(2 * depth)
    rng = np.random.default_rng(0)
    few, many = rng.random((int(samples / 4), 2)), rng.random((int(1.5 * samples), 2))
    upper = shortest_path_bounds(few).upper / diameter(few)
    assert depth * upper ** (2 / depth) < norm
    assert tsp_bound(many, many, depth).parameter_norm > norm


def test_samples_for_rank():
    n = samples_for_rank(3, 10, 7.0, 0.8)
    assert 0.8 * n ** (0.2 * (1 - 1 / 3)) == pytest.approx(3.7)
    assert samples_for_rank(2, 10**6, 0.0, 0.1) == math.inf
    with pytest.raises(ValueError, match="k: got 1"):
        samples_for_rank(1, 3, 0.0, 1.0)
    with pytest.raises(ValueError, match="rate: got 0"):
        samples_for_rank(2, 3, 0.0, 0.0)
    with pytest.raises(ValueError, match="constant: got -9"):
        samples_for_rank(2, 3, -9.0, 1.0)


@pytest.mark.parametrize("n", [2, 9, 30])
def test_an_interpolant_is_no_wider_than_n_times_n_plus_one(n):
    """T17b: a width of N (N + 1) suffices on N points; to fit them, N does."""
    x, y = torch.randn(n, 4, dtype=torch.float64), torch.randn(n, 3, dtype=torch.float64)
    net = line_interpolant(x, y, 6)
    assert torch.allclose(net(x), y, atol=1e-6)
    assert max(net.widths[1:-1]) <= n


def test_bad_input_is_named():
    with pytest.raises(TypeError, match="y: got"):
        shortest_path_bounds([1.0])
    with pytest.raises(ValueError, match="y: got NaN"):
        shortest_path_bounds(torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match="y: got 2 samples, expected as many as x has, 3"):
        tsp_bound(torch.ones(3, 1), torch.ones(2, 1), 3)
    with pytest.raises(ValueError, match="depth: got 0"):
        tsp_bound(torch.ones(3, 1), torch.ones(3, 1), 0)
    assert shortest_path_bounds(torch.tensor([[0.0], [1.0]], dtype=torch.float32)).lower == 1.0


@pytest.mark.parametrize("size", [1e150, 1e300, 1e-150, 1e-300])
@pytest.mark.parametrize("n", [1, 8, 20])
def test_lengths_of_any_size(size, n):
    y = np.random.default_rng(0).random((n, 2))
    found, huge = shortest_path_bounds(y), shortest_path_bounds(size * y)
    assert (huge.lower, huge.upper) == (pytest.approx(size * found.lower), pytest.approx(size * found.upper))
    assert diameter(size * y) == pytest.approx(size * diameter(y))
    for depth in (1, 2, 9):
        with np.errstate(over="ignore"):
            slope = np.float64(size) * found.lower / diameter(y) if n > 1 else 0.0
            assert tsp_bound(y, size * y, depth).parameter_norm == pytest.approx(depth * slope ** (2 / depth))


def test_distances_beyond_the_range_are_named():
    far = torch.tensor([[1.7e308], [-1.7e308]], dtype=torch.float64)
    with pytest.raises(OverflowError, match="y: got points farther apart"):
        shortest_path_bounds(far)
    with pytest.raises(OverflowError, match="x: got points farther apart"):
        diameter(far)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 7), st.integers(0, 10**6))
def test_the_lower_bound_allows_for_errors_of_the_points(n, seed):
    """Points moved by at most ``error`` each: their shortest path is not below the bound of the given ones."""
    rng = np.random.default_rng(seed)
    y, step = rng.random((n, 2)), rng.standard_normal((n, 2))
    moved = y + 0.01 * step / np.linalg.norm(step, axis=1, keepdims=True)
    found, true = shortest_path_bounds(moved, atol=0.01), shortest_path_bounds(y)
    assert found.lower <= true.upper
    assert found.lower == pytest.approx(max(found.upper - 0.02 * (n - 1), 0), abs=1e-12)
    pair = shortest_path_bounds(np.array([[0.0], [1.0]]), atol=0.1)  # 0.1 and 0.9 may be meant
    assert pair.lower == pytest.approx(0.8)
