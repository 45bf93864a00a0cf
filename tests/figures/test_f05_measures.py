"""The measures of F5: crossings of curves, collapse of orbits, and whether y is a function of x."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bnrank
from bnrank.figures.f05_symmetry_learning import dependence, orbits
from bnrank.figures.f05_symmetry_learning.trajectories import crossing


def slow(a, b, atol):
    """Return whether a curve gets farther than atol from the other on both sides, intersection by intersection."""
    hits = []  # (place along a, place along b): segment plus share
    for i, j in itertools.product(range(len(a) - 1), range(len(b) - 1)):
        shares = np.linalg.solve(np.stack([a[i + 1] - a[i], b[j] - b[j + 1]], 1), b[j] - a[i])
        if (shares > 0).all() and (shares < 1).all():
            hits.append((i + shares[0], j + shares[1]))

    def distance(point, curve):
        found = []
        for start, end in itertools.pairwise(curve):
            share = np.dot(point - start, end - start) / np.dot(end - start, end - start)
            found.append(np.linalg.norm(point - start - min(max(share, 0), 1) * (end - start)))
        return min(found)

    def sides(curve, other, places):
        far = [n for n, point in enumerate(curve) if distance(point, other) > atol]
        return len({sum(place < n for place in places) % 2 for n in far})

    return min(sides(a, b, [place for place, _ in hits]), sides(b, a, [place for _, place in hits])) == 2


def test_crossings_of_random_curves_against_a_loop_over_their_points():
    found = []
    for seed in range(6):
        curves = np.random.default_rng(seed).normal(size=(4, 12, 2)) * [1, 0.3] + [[[0, 0.2 * i]] for i in range(4)]
        for a, b in itertools.combinations(curves, 2):
            reach = crossing(a, b)
            assert [reach > atol for atol in (0.0, 0.1, 0.4)] == [slow(a, b, atol) for atol in (0.0, 0.1, 0.4)]
            found.append(reach)
    assert min(found) == 0 < 0.1 < 0.4 < max(found)


def test_a_wave_crosses_a_line_up_to_its_height():
    t = np.linspace(0, 1, 400)
    wave, line = np.stack([t, 0.01 * np.sin(9 * np.pi * t)], 1), np.stack([t, 0 * t], 1)
    assert crossing(wave, line) == pytest.approx(0.01, rel=1e-3)
    assert crossing(wave + np.array([0, 0.005]), line) == pytest.approx(0.005, rel=1e-3)
    assert crossing(wave + np.array([0, 0.02]), line) == 0
    assert crossing(line, line) == 0


def test_curves_that_end_on_each_other_cross_by_what_lies_beyond():
    along, up = np.array([[-1.0, 0], [1, 0]]), np.array([[0, 1.0], [0, -0.05]])
    assert crossing(along, up) == crossing(up, along) == pytest.approx(0.05)
    up[1, 1] = 0
    assert crossing(along, up) == 0


def test_a_flow_of_the_plane_does_not_cross_and_a_projection_of_one_in_space_does():
    def flow(generator, starts, times):
        return np.stack([starts @ torch.linalg.matrix_exp(torch.tensor(generator * t)).numpy().T for t in times], 1)

    def pairs(curves, atol=0.0):
        return sum(crossing(a, b) > atol for a, b in itertools.combinations(curves, 2))

    generator, plane = np.random.default_rng(2), np.array([[-0.3, -1.0], [1.0, -0.3]])
    curves = flow(plane, generator.normal(size=(20, 2)), np.linspace(0, 4, 200))
    assert pairs(curves) == 0
    assert pairs(curves[:, ::40]) > 5  # polylines through the steps of a map that is one to one
    space = np.zeros((3, 3))
    space[:2, :2], space[2, 2] = plane, -0.1
    projected = flow(space, generator.normal(size=(20, 3)), np.linspace(0, 4, 100))[..., [0, 2]]
    assert pairs(projected, 0.05) > 5


@settings(max_examples=20, deadline=None, derandomize=True)
@given(d=st.integers(2, 9), seed=st.integers(0, 10**9))
def test_rotations_keep_the_axis_and_the_norm(d, seed):
    generator = torch.Generator().manual_seed(seed)
    v, axis = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((5, d), (d,)))
    points = orbits.rotations(v, axis / axis.norm(), 7, seed)
    assert points.shape == (5, 7, d)
    assert (points @ axis) == pytest.approx((v @ axis)[:, None].expand(5, 7), abs=1e-12)
    assert points.norm(dim=2) == pytest.approx(v.norm(dim=1)[:, None].expand(5, 7), abs=1e-12)


def test_rotations_are_uniform():
    """The mean is the part along the axis; the covariance across it is that of a uniform direction."""
    axis, v = torch.tensor([0.6, 0.0, 0.8]).double(), torch.tensor([[0.3, -1.2, 0.7]]).double()
    drawn = orbits.rotations(v, axis, 20_000, 1)[0]
    along = (v @ axis) * axis
    across = torch.eye(3, dtype=torch.float64) - torch.outer(axis, axis)
    assert drawn.mean(0) == pytest.approx(along, abs=0.03)
    assert torch.cov(drawn.T) == pytest.approx((v[0] - along).square().sum() / 2 * across, abs=0.03)


def plain(values):
    """Sum in loops: strata, orbits, points."""
    within = total = 0.0
    for stratum in values:
        mean = stratum.reshape(-1, stratum.shape[-1]).mean(0)
        for orbit in stratum:
            within += float(((orbit - orbit.mean(0)) ** 2).sum())
            total += float(((orbit - mean) ** 2).sum())
    return within / total


@settings(max_examples=20, deadline=None, derandomize=True)
@given(shape=st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(2, 5), st.integers(1, 3)), seed=st.integers(0))
def test_collapse_is_the_plain_sum(shape, seed):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    assert orbits.collapse(values) == pytest.approx(plain(values.numpy()), rel=1e-10)
    assert np.isnan(orbits.collapse(torch.full(shape, 0.1, dtype=torch.float64)))


def test_collapse_along_the_layers_of_a_network_that_learns_the_orbits():
    """|p| of two dimensions is (1/m) sum of relu(q^T p) over unit vectors q, up to a factor, for many of them."""
    angles = torch.arange(400, dtype=torch.float64) * 2 * torch.pi / 400
    first = torch.stack([torch.zeros_like(angles), angles.cos(), angles.sin()], 1)
    w1 = torch.cat([first, torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]], dtype=torch.float64)])
    w2 = torch.zeros(2, 402, dtype=torch.float64)
    w2[0, :400], w2[1, 400], w2[1, 401] = torch.pi / 400, 1, -1
    net = bnrank.networks.mlp.from_layers([w1, w2])
    v = torch.randn(50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    points = orbits.rotations(v, torch.eye(3, dtype=torch.float64)[0], 16, 0)
    found = orbits.collapse_by_layer(net, points)
    assert found[:2] == pytest.approx([orbits.collapse(points), orbits.collapse(torch.relu(points @ w1.T))])
    assert found[2] < 1e-8 < 0.3 < found[1]


def test_prediction_is_a_weighted_ridge_fit():
    """Against a plain loop over samples, each with its own lstsq."""
    random = np.random.default_rng(0)
    x, y, groups = random.normal(size=(60, 2)), random.normal(size=(60, 3)), np.repeat(np.arange(10), 6)
    found = dependence._predicted(x, y, groups)  # ten groups in ten folds
    centered = x - x.mean(0)
    values, vectors = np.linalg.eigh(centered.T @ centered / 60)
    white = centered @ vectors / np.sqrt(values)
    for i in range(60):
        distance = np.linalg.norm(white - white[i], axis=1)
        near = [j for j in np.argsort(distance) if groups[j] != groups[i]][:20]
        weight = (1 - (distance[near] / distance[near[-1]] / (1 + 1e-9)) ** 3) ** 3
        weight /= weight.sum()
        middle, mean = weight @ white[near], weight @ y[near]
        u, v = np.sqrt(weight)[:, None] * (white[near] - middle), np.sqrt(weight)[:, None] * (y[near] - mean)
        penalty = np.sqrt(1e-3 * (u**2).sum()) * np.eye(2)
        slopes = np.linalg.lstsq(np.vstack([u, penalty]), np.vstack([v, np.zeros((2, 3))]), rcond=None)[0]
        assert found[i] == pytest.approx(mean + (white[i] - middle) @ slopes, rel=1e-8, abs=1e-10)


def test_functions_and_what_is_none():
    random = np.random.default_rng(1)
    x = random.normal(size=(2000, 2))
    assert dependence.unexplained(x, np.abs(x).sum(1, keepdims=True)) < 0.005
    assert dependence.unexplained(x, random.normal(size=(2000, 2))) == pytest.approx(1.1, abs=0.1)
    assert dependence.unexplained(x[:, :1], np.abs(x[:, 1:])) > 0.95
    assert dependence.unexplained(x**2, x) > 0.95  # the square forgets the sign


def test_linear_coordinates_and_flat_directions_do_not_matter():
    random = np.random.default_rng(2)
    x = random.normal(size=(300, 2))
    y = np.sin(x[:, :1]) + np.cos(x[:, 1:])
    expected = dependence.unexplained(x, y)
    plane = x @ np.array([[1.0, 40.0, 3.0], [0.3, -2.0, 0.1]]) + 7
    assert dependence.unexplained(plane, y) == pytest.approx(expected, rel=1e-7)
    assert np.isnan(dependence.unexplained(0 * x + 0.1, y))


def test_trajectories_that_close_and_that_cross():
    random = np.random.default_rng(4)
    times = np.arange(12)
    states = random.uniform(0.2, 1, (120, 1, 2)) * np.stack([0.9**times, 0.8**times], 1)
    assert dependence.self_consistency(states) < 0.002
    assert dependence.self_consistency(states.sum(2, keepdims=True)) > 10 * dependence.self_consistency(states)
    walk = np.cumsum(0.002 * random.normal(size=(120, 12, 1)), axis=1)  # nearly still, and the step is open
    mixed = np.concatenate([states[..., :1], walk], axis=2)
    worst = dependence.self_consistency(mixed)
    assert worst > 0.9
    for mixing in ([[1, 40.0], [0.3, -2]], [[1, 0], [0, 1e-6]]):
        assert dependence.self_consistency(mixed @ np.array(mixing)) == pytest.approx(worst, rel=1e-6)
    walks = np.cumsum(random.normal(size=(120, 12, 2)), axis=1)
    assert 0.9 < dependence.self_consistency(walks) < 1.5  # of the worst direction, not of both
    drift = states[:, :1] + 0.1 * times[:, None] * np.array([1.0, 2.0])
    assert np.isnan(dependence.self_consistency(drift))
