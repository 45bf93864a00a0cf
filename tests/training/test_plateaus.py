"""Plateaus planted in loss curves and found again."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.training.plateaus import Plateau, find

RATE = 2.0


def step(t):
    """A logistic fall from 1 to 0 around t = 0: 5 percent are gone at -log(19)/RATE, 95 percent at +log(19)/RATE."""
    return 1 / (1 + np.exp(np.clip(RATE * t, -700, 700)))


REACH = math.log(19) / RATE


def staircase(t, falls, centers, bottom=0.3):
    return bottom + sum(fall * step(t - center) for fall, center in zip(falls, centers, strict=True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    falls=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4),
    waits=st.lists(st.floats(12, 60), min_size=5, max_size=5),
    loss_unit=st.floats(1e-6, 1e6),
    time_unit=st.floats(1e-6, 1e6),
    rows=st.integers(800, 3000),
)
def test_planted_plateaus_are_found(falls, waits, loss_unit, time_unit, rows):
    centers = np.cumsum(waits)[: len(falls)]
    t = np.linspace(0, centers[-1] + 15, rows)
    found = find(time_unit * t, loss_unit * staircase(t, falls, centers))
    levels = 0.3 + np.append(np.cumsum(falls[::-1])[::-1], 0.0)
    assert [p.number for p in found] == list(range(1, len(falls) + 2))
    assert [p.left for p in found] == [True] * len(falls) + [False]
    spacing = t[1]
    for p, level in zip(found, levels, strict=True):
        assert p.loss / loss_unit == pytest.approx(level, abs=1e-3)
        assert p.start <= p.time <= p.end
        assert p.begin_row <= p.row <= p.end_row
        assert t[p.row] * time_unit == p.time
    for before, after, center in zip(found[:-1], found[1:], centers[: len(falls)], strict=True):
        assert before.end / time_unit == pytest.approx(center - REACH, abs=0.1 + spacing)
        assert after.start / time_unit == pytest.approx(center + REACH, abs=0.1 + spacing)
    assert found[0].start == 0
    assert found[-1].end == math.inf


@pytest.mark.parametrize("noise", [0.003, 0.03])
@pytest.mark.parametrize("smooth", [1, 15])
@pytest.mark.parametrize("seed", range(4))
def test_noise_of_mini_batches(noise, smooth, seed):
    t = np.linspace(0, 70, 3000)
    centers = [15.0, 35.0, 55.0]
    loss = staircase(t, [1.0, 0.5, 0.3], centers) + noise * np.random.default_rng(seed).normal(size=3000)
    found = find(t, loss, window=smooth)
    assert len(found) == 4
    for p, center in zip(found, centers, strict=False):
        assert p.end == pytest.approx(center - REACH, abs=1.5)
    assert not found[-1].left


@pytest.mark.parametrize("noise", [0.0, 0.003])
@pytest.mark.parametrize("size", [10.0, 50.0, 1e6])
@pytest.mark.parametrize("rows", [[5], [1, 2], [700, 1400, 1401, 1402, 1403], [1999]])
def test_spikes_hide_nothing(noise, size, rows):
    t = np.linspace(0, 70, 2000)
    centers = [15.0, 35.0, 55.0]
    loss = staircase(t, [1.0, 0.5, 0.3], centers) + noise * np.random.default_rng(0).normal(size=2000)
    loss[rows] = size
    found = find(t, loss)
    assert len(found) == 4
    for p, center in zip(found, centers, strict=False):
        assert p.end == pytest.approx(center - REACH, abs=0.5)
    assert not found[-1].left


def test_a_steep_fall_in_the_first_rows_is_no_spike():
    loss = np.concatenate([[10.0, 2.0], 2 + 0.01 * np.random.default_rng(0).normal(size=300)])
    (only,) = find(np.arange(302), loss)
    assert only.begin_row == 1


def test_constant_with_noise_is_one_plateau():
    loss = 2 + 0.1 * np.random.default_rng(0).normal(size=500)
    for smooth in (1, 11):
        (only,) = find(np.arange(500), loss, window=smooth)
        assert (only.begin_row, only.end_row, only.end) == (0, 499, math.inf)


def test_one_saddle_over_many_decades():
    """T37 at depth 6, r0 = 1e-3: the loss 1 - r^6 stands still for 1e12 units and falls at the blow-up time."""
    r0, depth = 1e-3, 6
    end = r0 ** (2 - depth)
    r = np.geomspace(r0, 1, 200)
    times = end - r ** (2 - depth)  # the norm is r then
    times = np.append(times, times[-1] + np.geomspace(1e-3, 1e5, 50))
    loss = np.append(1 - 0.9 * r**depth, np.full(50, 0.1))
    (first, second) = find(times, loss)
    assert first.end == pytest.approx(end, rel=1e-9)
    assert first.loss == pytest.approx(1.0)
    assert second.loss == pytest.approx(0.1)
    assert not second.left


def test_the_first_and_the_last_row():
    t = np.linspace(0, 30, 600)
    before, after = find(t, step(t - 15))
    assert (before.start, before.begin_row) == (0.0, 0)
    assert (after.end, after.end_row) == (math.inf, 599)
    (only,) = find(t, step(t - 31 + REACH))  # the fall is not over
    assert only.end == pytest.approx(31 - 2 * REACH, abs=1.2)
    (rest,) = find(t, step(t))  # begins in the middle of a fall
    assert rest.start > 1
    assert not rest.left


@pytest.mark.parametrize(
    "loss",
    [
        np.linspace(3, 1, 400),
        np.exp(-np.linspace(0, 2, 400)),
        1 / (1 + np.linspace(0, 4, 400)),
        2 - np.linspace(0, 1, 400) ** 1.2,
        np.array([1.0, 0.0]),
    ],
)
def test_a_steady_fall_has_no_plateau(loss):
    assert find(np.arange(len(loss)), loss) == ()


def test_noise_on_a_straight_line_makes_no_plateau():
    loss = np.linspace(5, 2, 500) + 0.1 * np.random.default_rng(0).normal(size=500)
    assert find(np.arange(500), loss) == ()


def test_the_gradient_norm_decides_on_the_row():
    t = np.linspace(0, 40, 401)
    loss = staircase(t, [1.0, 1.0], [12.0, 28.0])
    norm = 1 + np.abs(t - 17.0)
    norm[390] = 0.25
    found = find(t, loss, torch.from_numpy(norm))
    assert [p.time for p in found] == pytest.approx([t[found[0].end_row], 17.0, 39.0])
    assert found[1].gradient_norm == 1.0
    assert found[2].gradient_norm == 0.25
    assert math.isnan(find(t, loss)[0].gradient_norm)


def test_options():
    t = np.linspace(0, 100, 2001)
    loss = staircase(t, [1.0, 0.03, 1.0], [20.0, 45.0, 70.0])
    assert len(find(t, loss)) == 4
    assert len(find(t, loss, min_drop=0.05)) == 3
    short = staircase(t, [1.0, 1.0], [20.0, 24.5])  # a rest that lasts no longer than the falls
    assert len(find(t, short)) == 3
    assert len(find(t, staircase(t, [1.0, 1.0], [20.0, 23.9]))) == 2  # and one of a third of that


def test_bad_input():
    t, loss = np.arange(5.0), np.arange(5.0)[::-1]
    with pytest.raises(ValueError, match="times: got a decrease, expected numbers in non-decreasing order"):
        find([0.0, 2.0, 1.0], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="loss: got 4 rows, expected as many as times has, 5"):
        find(t, loss[:4])
    with pytest.raises(ValueError, match="gradient_norm: got 3 rows"):
        find(t, loss, loss[:3])
    with pytest.raises(ValueError, match="loss: got NaN"):
        find(t, [1, math.nan, 1, 1, 1])
    with pytest.raises(ValueError, match="times: got NaN or infinite"):
        find([0, 1, 2, 3, math.inf], loss)
    with pytest.raises(ValueError, match="gradient_norm: got a negative number"):
        find(t, loss, -loss)
    with pytest.raises(ValueError, match="times: got"):
        find([], [])
    with pytest.raises(TypeError, match="loss: got 'low'"):
        find(t, "low")
    for value in (1.0, 0.0):
        with pytest.raises(ValueError, match="min_drop: got"):
            find(t, loss, min_drop=value)
    with pytest.raises(ValueError, match="window: got 0"):
        find(t, loss, window=0)


def test_plateaus_are_records():
    p = Plateau(1, 0.0, 2.0, 0, 4, 2, 1.0, 0.5)
    assert p.left
    assert p.duration == 2.0
    assert p.ranks == ()
    with pytest.raises(AttributeError):
        p.end = 3.0
