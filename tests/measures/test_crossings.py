"""Crossings of curves: against determinants, on flows and maps, and under displacements."""

import itertools

import numpy as np
import pytest
import torch

from bnrank.measures import crossings


def pairs(curves, atol=0.0):
    return int(crossings.count(curves, atol)[np.triu_indices(len(curves), 1)].sum())


def flow(generator, starts, times):
    return np.stack([starts @ np.asarray(torch.linalg.matrix_exp(torch.tensor(generator * t))).T for t in times], 1)


def test_straight_lines_against_their_equations():
    lines = np.random.default_rng(0).normal(size=(30, 2, 2))
    expected = np.zeros((30, 30), dtype=int)
    for i in range(30):
        for j in range(30):
            if i != j:
                (a, b), (c, d) = lines[i], lines[j]
                shares = np.linalg.solve(np.stack([b - a, c - d], 1), c - a)
                expected[i, j] = ((shares > 0) & (shares < 1)).all()
    assert 50 < expected.sum() // 2 < 300
    assert np.array_equal(crossings.count(lines), expected)
    assert np.array_equal(crossings.count(torch.from_numpy(lines)), expected)


def slow(a, b, atol):
    """Return how often one curve changes sides of the other, intersection by intersection along each."""
    hits = []  # (place along a, place along b): segment plus share
    for i in range(len(a) - 1):
        for j in range(len(b) - 1):
            shares = np.linalg.solve(np.stack([a[i + 1] - a[i], b[j] - b[j + 1]], 1), b[j] - a[i])
            if (shares > 0).all() and (shares < 1).all():
                hits.append((i + shares[0], j + shares[1]))

    def distance(point, curve):
        found = []
        for start, end in itertools.pairwise(curve):
            share = np.dot(point - start, end - start) / np.dot(end - start, end - start)
            found.append(np.linalg.norm(point - start - min(max(share, 0), 1) * (end - start)))
        return min(found)

    def changes(curve, other, places):
        last, count = None, 0
        for n, point in enumerate(curve):
            side = sum(place < n for place in places) % 2
            if distance(point, other) > atol:
                count += last is not None and side != last
                last = side
        return count

    return min(changes(a, b, [one for one, _ in hits]), changes(b, a, [other for _, other in hits]))


@pytest.mark.parametrize("atol", [0.0, 0.1, 0.4])
def test_random_curves_against_a_loop_over_their_points(atol):
    found = []
    for seed in range(4):
        curves = np.random.default_rng(seed).normal(size=(4, 20, 2))
        counts = crossings.count(curves, atol)
        for i, j in itertools.combinations(range(4), 2):
            assert counts[i, j] == slow(curves[i], curves[j], atol)
            found.append(counts[i, j])
    assert max(found) > 1


def test_a_wave_crosses_a_line_at_every_zero():
    t = np.linspace(0, 1, 400)
    wave, line = np.stack([t, 0.01 * np.sin(9 * np.pi * t)], 1), np.stack([t, 0 * t], 1)
    assert pairs(np.stack([wave, line])) == 8  # the zeros at both ends are touched only
    assert pairs(np.stack([wave, line]), 0.0098) == 8
    assert pairs(np.stack([wave, line]), 0.0101) == 0
    assert pairs(np.stack([wave + np.array([0, 0.005]), line]), 0.006) == 0
    assert pairs(np.stack([wave + np.array([0, 0.02]), line])) == 0


def test_short_stays_on_a_side_are_skipped():
    t = np.linspace(-1, 1, 400)  # no point on the line
    ripples = np.where(np.abs(t) < 0.1, 0.005 * np.sin(50 * np.pi * t), t)
    curves = np.stack([np.stack([t, ripples], 1), np.stack([t, 0 * t], 1)])
    assert pairs(curves) > 5
    assert pairs(curves, 0.05) == 1
    curves[0, :, 1] = np.abs(ripples)
    assert pairs(curves) == 0


def test_curves_that_end_on_each_other_do_not_cross():
    along, up = np.array([[-1.0, 0], [1, 0]]), np.array([[0, 1.0], [0, -0.05]])
    assert pairs(np.stack([along, up])) == 1
    assert pairs(np.stack([along, up]), 0.1) == 0
    assert pairs(np.stack([up, along]), 0.1) == 0
    up[1, 1] = 0
    assert pairs(np.stack([along, up])) == 0


def test_what_remains_at_a_distance_survives_displacements_below_half_of_it():
    generator = np.random.default_rng(1)
    t = np.linspace(-1, 1, 60)
    curves = np.stack([np.stack([t, t**3], 1), np.stack([t, -0.5 * t], 1)])
    assert pairs(curves, 0.2) == 1
    for _ in range(20):
        angle = generator.uniform(0, 2 * np.pi, curves.shape[:2])
        moved = curves + 0.099 * np.stack([np.cos(angle), np.sin(angle)], -1)
        assert pairs(moved) % 2 == 1


def test_a_flow_of_the_plane_does_not_cross_and_a_projection_of_one_in_space_does():
    generator, plane = np.random.default_rng(2), np.array([[-0.3, -1.0], [1.0, -0.3]])
    starts, times = generator.normal(size=(20, 2)), np.linspace(0, 4, 100)
    curves = flow(plane, starts, times)
    assert pairs(curves) == 0
    assert pairs(np.stack([np.exp(curves[..., 0]), curves[..., 1] + curves[..., 0] ** 2], -1)) == 0
    space = np.zeros((3, 3))
    space[:2, :2], space[2, 2] = plane, -0.1
    projected = flow(space, generator.normal(size=(20, 3)), times) @ np.linalg.qr(generator.normal(size=(3, 2)))[0]
    assert pairs(projected) > 20
    assert pairs(projected, 0.05) > 5


def test_polylines_through_the_steps_of_a_map_cross_although_it_is_one_to_one():
    starts = np.random.default_rng(3).normal(size=(20, 2))
    curves = flow(np.array([[-0.3, -1.0], [1.0, -0.3]]), starts, np.linspace(0, 4, 200))
    assert pairs(curves[:, ::40]) > 5
    assert pairs(curves[:, ::4]) == 0


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e300])
def test_counts_do_not_depend_on_the_unit(scale):
    curves = np.random.default_rng(5).normal(size=(6, 10, 2))
    expected = crossings.count(curves, 0.3)
    assert expected.sum() > 0
    assert np.array_equal(crossings.count(scale * curves, scale * 0.3), expected)
    assert np.array_equal(crossings.count(torch.tensor(curves, requires_grad=True), 0.3), expected)


def test_one_curve_and_equal_curves():
    curve = np.random.default_rng(4).normal(size=(1, 9, 2))
    assert crossings.count(curve).tolist() == [[0]]
    assert pairs(np.repeat(curve, 3, axis=0), 0.01) == 0
    assert pairs(np.zeros((3, 5, 2))) == 0


@pytest.mark.parametrize(
    ("curves", "atol", "message"),
    [
        (np.zeros((3, 2)), 0.0, "curves"),
        (np.zeros((3, 5, 3)), 0.0, r"curves.*expected \(m, points, 2\)"),
        (np.zeros((3, 1, 2)), 0.0, r"curves.*expected \(m, points, 2\)"),
        (np.full((3, 4, 2), np.nan), 0.0, "curves"),
        (np.zeros((3, 4, 2)), -1.0, "atol"),
        (np.zeros((3, 4, 2)), np.nan, "atol"),
    ],
)
def test_wrong_arguments_are_refused(curves, atol, message):
    with pytest.raises(ValueError, match=message):
        crossings.count(curves, atol)
