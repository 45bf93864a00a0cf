"""Windows, components and the verdict of films, against slow versions."""

import numpy as np
import pytest
from scipy.stats import norm, t

from bnrank.discovery.films.components import components_of
from bnrank.discovery.films.frames import Windows, choose_stride, read_films, split, windows_of
from bnrank.discovery.films.verdict import groups_of, is_predicted, judge, time_apart

RNG = np.random.default_rng(0)


def test_windows_are_four_frames_of_one_film() -> None:
    films = [RNG.normal(size=(length, 3)).astype(np.float32) for length in [9, 12, 7] * 4]
    windows = windows_of([len(film) for film in films], stride=2)
    expected = [
        [film[t], film[t + 2], film[t + 4], film[t + 6]]
        for film in films
        for t in range(len(film))
        if t + 6 < len(film)
    ]
    assert np.array_equal(windows.pick(films, range(4)), np.array(expected))
    assert np.array_equal(windows.pick(films, [1, 3]), np.array(expected)[:, [1, 3]])
    assert np.array_equal(windows.unit, windows.film)


def test_a_single_film_is_cut_into_blocks_that_share_no_frame() -> None:
    windows = windows_of([150], stride=1)
    assert len(np.unique(windows.unit)) == 12
    frames = [{int(s) + i for s in windows.start[windows.unit == u] for i in range(4)} for u in np.unique(windows.unit)]
    assert sum(map(len, frames)) == len(set.union(*frames))


def test_a_quarter_of_the_films_is_held_out_as_a_whole() -> None:
    windows = windows_of([8] * 40, stride=1)
    rows, held_out = split(windows, seed=0)
    assert len(held_out) == 10 * 5
    assert not set(windows.film[rows]) & set(windows.film[held_out])
    assert len(rows) + len(held_out) == len(windows)


def test_the_stride_makes_changes_visible() -> None:
    times = np.linspace(0, 2 * np.pi, 240)[:, None, None]
    slow = [np.sin(times + phase).astype(np.float32) for phase in np.arange(20)]
    changes = [np.mean([np.square(f[s:] - f[:-s]).mean() for f in slow]) for s in range(1, 60)]
    spread = 2 * np.concatenate(slow).var()
    expected = 1 + int(np.argmax(np.array(changes) >= 0.1 * spread))
    assert choose_stride([film[..., None] for film in slow], "auto") == expected > 5
    assert choose_stride([film[..., None] for film in slow], 3) == 3


def test_components_are_the_principal_ones() -> None:
    films = [(RNG.normal(size=(30, 5)) @ RNG.normal(size=(5, 12))).reshape(30, 3, 4, 1) for _ in range(4)]
    films = [film.astype(np.float32) for film in films]
    found = components_of(films, seed=0)
    table = np.concatenate(films).reshape(120, 12)
    centered = table - table.mean(0)
    _, s, v = np.linalg.svd(centered, full_matrices=False)
    number = found.basis.shape[1]
    assert np.allclose(found.basis @ found.basis.T, v[:number].T @ v[:number], atol=1e-4)
    assert found.scale == pytest.approx(np.sqrt(np.square(centered).sum(1).mean()), rel=1e-5)
    assert found.share == pytest.approx(np.square(s[:number]).sum() / np.square(s).sum(), rel=1e-5)
    codes = found.project(films[0])
    assert np.allclose(found.restore(codes), films[0].reshape(30, 12), atol=0.2)
    assert np.abs(found.project(found.restore(codes).reshape(30, 3, 4, 1)) - codes).max() < 1e-4


def test_equal_frames_have_no_scale() -> None:
    assert components_of([np.full((9, 4, 4, 1), 0.1, dtype=np.float32)], seed=0).scale == 0
    assert components_of([np.zeros((9, 4, 4, 1), dtype=np.float32)], seed=0).scale == 0


def test_dimensions_of_arrays_of_films() -> None:
    assert [f.shape for f in read_films(np.ones((5, 8, 9)))] == [(5, 8, 9, 1)]
    assert [f.shape for f in read_films(np.ones((5, 8, 9, 3)))] == [(5, 8, 9, 3)]
    assert [f.shape for f in read_films(np.ones((2, 5, 8, 9)))] == [(5, 8, 9, 1)] * 2
    assert [f.shape for f in read_films(np.ones((2, 5, 8, 9, 3)))] == [(5, 8, 9, 3)] * 2
    assert [f.shape for f in read_films([np.ones((5, 8, 9)), np.ones((6, 8, 9))])] == [(5, 8, 9, 1), (6, 8, 9, 1)]


def _square(n: int, frames: int, step: float) -> tuple[np.ndarray, Windows]:
    """Points that move straight in a square, in three coordinates, as windows of films."""
    start, way = RNG.uniform(-1, 1, (n, 1, 2)), RNG.normal(size=(n, 1, 2))
    way /= np.linalg.norm(way, axis=2, keepdims=True)
    points = (start + step * way * np.arange(frames)[:, None]).reshape(-1, 2)
    film, begin = np.repeat(np.arange(n), frames), np.tile(np.arange(frames), n)
    return np.column_stack([points, 1e-3 * RNG.normal(size=len(points))]), Windows(film, begin, 1, film)


def test_windows_that_follow_each_other_are_not_different_points() -> None:
    z, windows = _square(150, 12, step=0.004)
    apart = time_apart(z, windows, seed=0)
    assert apart == 12  # the whole film is nearer than its neighbors
    assert len(np.unique(groups_of(windows, apart))) == 150
    assert judge([z], windows, [0.1], seed=0).dimension == 2
    quick, windows = _square(150, 12, step=0.5)
    assert time_apart(quick, windows, seed=0) == 1
    assert judge([quick], windows, [0.1], seed=0).dimension == 2


def test_the_verdict_is_that_of_most_networks_and_doubts_are_said() -> None:
    z, windows = _square(300, 3, step=0.5)
    line = z * [1, 0, 0]
    assert judge([z, z, line], windows, [0.2, 0.3, 0.1], seed=0).dimension == 2
    assert judge([z, z, line], windows, [0.2, 0.3, 0.1], seed=0).interval == (1, 2)
    solid = np.column_stack([z, RNG.uniform(-1, 1, (len(z), 1))])
    wide = judge([solid, solid, np.column_stack([line, line[:, 1]])], windows, [0.1, 0.2, 0.3], seed=0)
    assert (wide.dimension, wide.interval[0], wide.undetermined) == (3, 1, True)
    assert "give 1 to" in wide.reason
    split_vote = judge([z, line], windows, [0.1, 0.2], seed=0)
    assert split_vote.undetermined
    assert "only 1 of 2 networks" in split_vote.reason
    assert "60%" in judge([z], windows, [0.6], seed=0).reason
    assert "n_latent" in judge([z[:, :2]], windows, [0.1], seed=0).reason
    few = judge(
        [z[:60]], Windows(*(v[:60] for v in (windows.film, windows.start)), 1, windows.film[:60]), [0.1], seed=0
    )
    assert few.undetermined


def test_errors_must_be_smaller_than_those_of_the_mean_by_more_than_chance() -> None:
    unit = np.repeat(np.arange(10), 4)
    gain = RNG.normal(size=40)
    sums = np.array([gain[unit == u].sum() for u in range(10)])
    for shift in np.linspace(-1, 1, 21):
        better = (sums + 4 * shift).mean() > t.ppf(norm.cdf(2), 9) * sums.std(ddof=1) / np.sqrt(10)
        assert is_predicted(np.ones(40), 1 + gain + shift, unit) == better
