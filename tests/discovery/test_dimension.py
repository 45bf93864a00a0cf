"""The local dimension of clouds of points whose dimension is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.discovery.dimension import local_dimension


def _angles(rows: int, number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 2 * np.pi, size=(rows, number))


def _cube(rows: int, number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(rows, number))


def _clouds(seed: int) -> list[tuple[str, int, np.ndarray]]:
    a, u = _angles(600, 2, seed), _cube(600, 6, seed)
    circles = np.column_stack([np.cos(a), np.sin(a)])
    return [
        ("interval", 1, u[:, :1]),
        ("square", 2, u[:, :2]),
        ("cube", 3, u[:, :3]),
        ("six dimensions", 6, u),
        ("Gaussian", 4, np.random.default_rng(seed).normal(size=(600, 4))),
        (
            "closed curve of three harmonics",
            1,
            np.column_stack([circles[:, [0, 2]], np.cos(2 * a[:, 0]), np.sin(3 * a[:, 0])]),
        ),
        ("torus", 2, circles),
        ("cylinder", 2, np.column_stack([circles[:, [0, 2]], u[:, 0]])),
        ("two angles and two velocities", 4, np.column_stack([circles, u[:, :2]])),
        ("folded surface", 2, np.column_stack([u[:, :2], u[:, 0] * u[:, 1], u[:, 0] ** 2])),
        ("noise in all directions of a circle", 1, circles[:, [0, 2]] + 0.03 * u[:, :2]),
    ]


@pytest.mark.parametrize("seed", [300, 301])
def test_the_dimension_of_known_sets_is_found(seed: int) -> None:
    found = {name: local_dimension(points) for name, _, points in _clouds(seed)}
    assert {name: result.dimension for name, result in found.items()} == {name: d for name, d, _ in _clouds(seed)}
    assert not any(result.undetermined for result in found.values())


def test_spectra_equal_those_of_sorted_distances() -> None:
    points = _cube(200, 3, 0) * [1.0, 2.0, 0.1]
    found = local_dimension(points)
    u = np.linalg.svd(points - points.mean(0), full_matrices=False)[0]
    assert found.neighbors == (10, 20)
    for size, spectrum in zip(found.neighbors, found.spectrum, strict=True):
        ratios = []
        for center in u:
            near = u[np.argsort(np.linalg.norm(u - center, axis=1))[: size + 1]]
            variances = np.sort(np.linalg.eigvalsh(np.cov(near.T)))[::-1]
            ratios.append(variances / variances[0])
        assert np.allclose(spectrum, np.median(ratios, axis=0))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_linear_coordinates_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, 300)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    mixed = circle @ rng.normal(size=(2, 5)) * 1e3 + rng.normal(size=5)
    assert local_dimension(mixed).dimension == local_dimension(circle).dimension == 1
    assert np.allclose(local_dimension(mixed).spectrum[:, :2], local_dimension(circle).spectrum, atol=1e-6)


def test_copies_are_used_once() -> None:
    points = _cube(300, 2, 1)
    assert np.allclose(local_dimension(np.repeat(points, 30, axis=0)).spectrum, local_dimension(points).spectrum)
    few = np.repeat(_cube(40, 2, 1), 30, axis=0)
    assert local_dimension(few).undetermined
    assert local_dimension(few).interval[0] == 0


def test_points_that_are_equal_have_dimension_0() -> None:
    assert local_dimension(np.ones((50, 3))).dimension == 0
    assert local_dimension(np.ones((1, 3))).dimension == 0


def test_more_directions_than_neighborhoods_can_judge_are_undetermined() -> None:
    found = local_dimension(np.random.default_rng(0).normal(size=(300, 40)))
    assert found.undetermined
    assert "too few" in found.reason
    assert str(found).startswith("local dimension: 40 (undetermined)")


@pytest.mark.parametrize("seed", [400, 401])
def test_the_interval_covers_directions_inside_clusters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = local_dimension(3 * rng.normal(size=(8, 3))[rng.integers(0, 8, 500)] + 0.3 * rng.normal(size=(500, 3)))
    assert found.interval[1] == 3
    assert found.dimension == 3 or "small ones in 3" in found.reason


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"points: got .*nan|points: .*NaN"):
        local_dimension(np.array([[np.nan, 1.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="groups: got 3 numbers, expected 200"):
        local_dimension(_cube(200, 2, 0), groups=[0, 1, 2])


def test_without_whitening_directions_of_little_extent_do_not_count() -> None:
    flat = _cube(500, 3, 0) * [1.0, 1.0, 1e-3]
    assert local_dimension(flat).dimension == 3
    assert local_dimension(flat, whiten=False).dimension == 2


def _trajectories() -> tuple[np.ndarray, np.ndarray]:
    """100 lines of 20 points each in a square, near each other along a line, and the number of each point's line."""
    start, step = _cube(100, 2, 0), 0.002 * _cube(100, 2, 1)
    return (start[:, None] + step[:, None] * np.arange(20)[:, None]).reshape(-1, 2), np.repeat(np.arange(100), 20)


def test_neighbors_of_other_groups_show_the_dimension_of_the_set_that_trajectories_fill() -> None:
    points, lines = _trajectories()
    assert local_dimension(points).dimension == 1
    assert local_dimension(points, groups=lines).dimension == 2


def test_neighbors_of_other_groups_equal_those_of_sorted_distances() -> None:
    points, lines = _trajectories()
    points, lines = points[::4], lines[::4]  # 500, so that neighborhoods are taken at all of them
    found = local_dimension(points, groups=lines, whiten=False)
    assert found.neighbors == (10,)
    ratios = []
    for center, line in zip(points, lines, strict=True):
        others = [points[lines == other] for other in range(100) if other != line]
        nearest = np.array([p[np.linalg.norm(p - center, axis=1).argmin()] for p in others])
        near = nearest[np.argsort(np.linalg.norm(nearest - center, axis=1))[:10]]
        variances = np.sort(np.linalg.eigvalsh(np.cov(np.vstack([near, center]).T)))[::-1]
        ratios.append(variances / variances[0])
    assert np.allclose(found.spectrum[0], np.median(ratios, axis=0))
