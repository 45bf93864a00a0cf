"""Whether y is a function of x: planted functions, noise of known size, trajectories that cross."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.measures import dependence


def test_prediction_is_a_weighted_ridge_fit():
    """Against a plain loop over samples, each with its own lstsq."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 2)), random.normal(size=(60, 3))
    found = dependence.predict(x, y, neighbors=15, folds=60)
    centered = x - x.mean(0)
    values, vectors = np.linalg.eigh(centered.T @ centered / 60)
    white = centered @ vectors / np.sqrt(values)
    for i in range(60):
        distance = np.linalg.norm(white - white[i], axis=1)
        near = [j for j in np.argsort(distance) if j != i][:15]
        weight = (1 - (distance[near] / distance[near[-1]] / (1 + 1e-9)) ** 3) ** 3
        weight /= weight.sum()
        middle, mean = weight @ white[near], weight @ y[near]
        u, v = np.sqrt(weight)[:, None] * (white[near] - middle), np.sqrt(weight)[:, None] * (y[near] - mean)
        penalty = np.sqrt(1e-3 * (u**2).sum()) * np.eye(2)
        slopes = np.linalg.lstsq(np.vstack([u, penalty]), np.vstack([v, np.zeros((2, 3))]), rcond=None)[0]
        assert found[i] == pytest.approx(mean + (white[i] - middle) @ slopes, rel=1e-8, abs=1e-10)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), noise=st.floats(0.2, 2))
def test_noise_of_known_size_is_found(seed, noise):
    random = np.random.default_rng(seed)
    x, e = random.normal(size=(3000, 2)), random.normal(size=(3000, 1))
    y = np.sin(x[:, :1]) + x[:, 1:] ** 2 + noise * e
    expected = noise**2 / np.var(y)
    assert dependence.unexplained(x, y, neighbors=60) == pytest.approx(expected, rel=0.12, abs=0.02)


def test_functions_and_what_is_none():
    random = np.random.default_rng(1)
    x = random.normal(size=(2000, 2))
    assert dependence.unexplained(x, np.abs(x).sum(1, keepdims=True)) < 0.005
    assert dependence.unexplained(x, random.normal(size=(2000, 2))) == pytest.approx(1.1, abs=0.1)
    assert dependence.unexplained(x[:, :1], np.abs(x[:, 1:])) > 0.95
    assert dependence.unexplained(x**2, x) > 0.95  # the square forgets the sign
    assert dependence.unexplained(x, x**2) < 0.01


def test_nothing_depends_on_linear_coordinates_of_x():
    random = np.random.default_rng(2)
    x, y = random.normal(size=(300, 2)), random.normal(size=(300, 1))
    mixed = x @ np.array([[1.0, 40.0], [0.3, -2.0]]) + 7
    np.testing.assert_allclose(dependence.predict(x, y), dependence.predict(mixed, y), rtol=1e-7)
    doubled = np.concatenate([x, x.sum(1, keepdims=True)], 1)  # the same points, in a plane of three dimensions
    assert dependence.unexplained(doubled, x) == pytest.approx(dependence.unexplained(x, x), rel=0.2)
    assert dependence.unexplained(x, 5 * y - 3) == pytest.approx(dependence.unexplained(x, y), rel=1e-9)


def test_columns_may_be_of_any_scale_and_offset():
    random = np.random.default_rng(7)
    x = random.normal(size=(400, 2))
    y = np.sin(x[:, :1]) + np.cos(x[:, 1:])
    expected = dependence.unexplained(x, y)
    for scale, offset in ((5e-6, 0.0), (1e-9, 0.0), (1e9, 0.0), (1e-5, 1.0)):
        moved = x * np.array([1.0, scale]) + offset
        assert dependence.unexplained(moved, y) == pytest.approx(expected, rel=1e-4)
    sheared = x @ np.array([[1.0, 1.0], [0.0, 1e-6]])
    assert dependence.unexplained(sheared, y) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("dtype", "offset"), [(np.float64, 0.0), (np.float64, 1e6), (np.float32, 0.0), (np.float32, 9)]
)
def test_directions_of_rounding_are_left_out(dtype, offset):
    random = np.random.default_rng(8)
    x = random.normal(size=(400, 2))
    plane = (x @ random.normal(size=(2, 4)) + offset).astype(dtype)
    assert dependence.unexplained(plane, x) == pytest.approx(dependence.unexplained(x, x), rel=0.02)


def test_what_rounding_leaves_after_many_operations_is_left_out():
    random = np.random.default_rng(8)
    x = random.normal(size=(400, 2))
    plane, turn = x @ random.normal(size=(2, 4)), np.linalg.qr(random.normal(size=(4, 4)))[0]
    for _ in range(1000):
        plane = plane @ turn
    assert dependence.unexplained(plane, x) == pytest.approx(dependence.unexplained(x, x), rel=0.02)


def test_groups_stay_together():
    """Twins give each other away unless they are in one fold."""
    random = np.random.default_rng(3)
    x = np.repeat(random.normal(size=(200, 1)), 5, axis=0) + 1e-6 * random.normal(size=(1000, 1))
    y, twins = np.repeat(random.normal(size=(200, 1)), 5, axis=0), np.repeat(np.arange(200), 5)
    assert dependence.unexplained(x, y, neighbors=4) < 0.1
    assert dependence.unexplained(x, y, twins, neighbors=20) > 0.9


def test_trajectories_that_close_and_that_cross():
    random = np.random.default_rng(4)
    start = random.uniform(0.2, 1, (120, 1, 2))
    times = np.arange(12)
    states = start * np.stack([0.9**times, 0.8**times], 1)
    turned = states @ np.linalg.qr(random.normal(size=(5, 2)))[0].T  # the same plane, elsewhere
    assert dependence.self_consistency(states) < 0.002
    assert dependence.self_consistency(torch.from_numpy(turned)) < 0.002
    assert dependence.self_consistency(states.sum(2, keepdims=True)) > 10 * dependence.self_consistency(states)
    memory = states + 0.1 * np.cumsum(random.normal(size=(120, 1, 2)) * np.ones((120, 12, 2)), axis=1)
    assert dependence.self_consistency(memory) > 0.5  # velocities that the present state does not show


def test_it_is_the_step_that_counts():
    """A slow random walk: the present state is nearly the next, and says nothing of the step."""
    walk = np.cumsum(np.random.default_rng(5).normal(size=(100, 50, 1)), axis=1)
    present, after = walk[:, :-1].reshape(-1, 1), walk[:, 1:].reshape(-1, 1)
    assert dependence.unexplained(present, after) < 0.1
    assert dependence.self_consistency(walk) > 0.9


def test_one_coordinate_that_does_not_close_is_enough():
    random = np.random.default_rng(9)
    closes = random.uniform(0.2, 1, (120, 1, 1)) * 0.9 ** np.arange(12)[:, None]
    walk = np.cumsum(0.002 * random.normal(size=(120, 12, 1)), axis=1)
    states = np.concatenate([closes, walk], axis=2)
    assert dependence.unexplained(states[:, :-1].reshape(-1, 2), np.diff(states, axis=1).reshape(-1, 2)) < 0.05
    worst = dependence.self_consistency(states)
    assert worst > 0.9
    for mixing in ([[1, 40.0], [0.3, -2]], [[1, 1], [-1, 1]], [[1, 0], [0, 1e-6]]):
        assert dependence.self_consistency(states @ np.array(mixing)) == pytest.approx(worst, rel=1e-6)
    assert dependence.self_consistency(closes) < 0.002


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_that_are_constant_up_to_rounding_have_no_share(dtype):
    start = torch.rand(40, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drift = start + 0.1 * torch.arange(10.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0])
    assert np.isnan(dependence.self_consistency(drift.to(dtype)))
    decaying = start[..., :1] * 0.9 ** torch.arange(10.0, dtype=torch.float64)[:, None]
    assert dependence.self_consistency(torch.cat([drift, decaying], 2).to(dtype)) < 0.05


def test_it_is_reproducible():
    x = np.random.default_rng(6).normal(size=(100, 1))
    assert dependence.unexplained(x, x**3) == dependence.unexplained(torch.from_numpy(x), torch.from_numpy(x**3))
    assert dependence.unexplained(x, x**3, seed=1) != dependence.unexplained(x, x**3)
    assert np.isnan(dependence.unexplained(x, np.full((100, 1), 0.1)))


ONES = np.ones((30, 1))
RAMP = np.arange(30.0)[:, None]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dependence.predict(ONES, RAMP), ValueError, "x: got the same point"),
        (lambda: dependence.predict(0.1 * ONES, RAMP), ValueError, "x: got the same point"),
        (lambda: dependence.predict(RAMP, RAMP[:20]), ValueError, "x, y: got 30 and 20 samples"),
        (lambda: dependence.predict(RAMP[:, 0], RAMP), ValueError, r"x: got shape \(30,\)"),
        (lambda: dependence.predict(RAMP, RAMP, np.zeros(30)), ValueError, "groups: got one group"),
        (lambda: dependence.predict(RAMP, RAMP, np.zeros(29)), ValueError, r"groups: got shape \(29,\)"),
        (lambda: dependence.predict(RAMP, RAMP, neighbors=28), ValueError, "neighbors: got 28, but one fold leaves"),
        (lambda: dependence.predict(RAMP, RAMP, folds=1), ValueError, "folds: got 1"),
        (lambda: dependence.predict(RAMP.astype(int), RAMP), TypeError, "x: got dtype"),
        (lambda: dependence.self_consistency(RAMP), ValueError, "states: "),
        (lambda: dependence.self_consistency(np.ones((5, 1, 2))), ValueError, "two trajectories and two times"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
