"""T37 with E2's normalization, against the flow of L0 itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from bnrank._core.validation import RangeError
from bnrank.theory.escape.laws import blow_up_time, norm_at, time_to


def positive_direction(depth):
    """Positive data and G <= 0: W_L ... W_1 = the top singular pair of -G^T X is a smooth escape direction."""
    rng = np.random.default_rng(0)
    x, g = rng.uniform(0.1, 1, (5, 3)), -rng.uniform(0.1, 1, (5, 2))
    u, s, v = np.linalg.svd(-g.T @ x)
    weights = [np.abs(v[:1]), *[np.ones((1, 1))] * (depth - 2), np.abs(u[:, :1])]
    return x, g, weights, s[0]


def flow_of_l0(weights, x, g, t, rtol=1e-11):
    """||theta(t)|| under d theta/dt = -grad L0, by integrating all parameters."""
    shapes = [w.shape for w in weights]
    cuts = np.cumsum([w.size for w in weights])[:-1]

    def velocity(_, theta):
        matrices = [p.reshape(shape) for p, shape in zip(np.split(theta, cuts), shapes, strict=True)]
        a, inputs = x.T, []
        for w in matrices[:-1]:
            inputs.append(a)
            a = np.maximum(w @ a, 0)
        inputs.append(a)
        delta, result = g.T, []
        for layer in reversed(range(len(matrices))):
            result.append((delta @ inputs[layer].T).ravel())
            delta = (matrices[layer].T @ delta) * (inputs[layer] > 0)
        return -np.concatenate(result[::-1])

    start = np.concatenate([w.ravel() for w in weights])
    end = solve_ivp(velocity, (0, t), start, rtol=rtol, atol=1e-14 * np.linalg.norm(start), method="DOP853").y[:, -1]
    return float(np.linalg.norm(end))


@pytest.mark.parametrize("depth", range(2, 9))
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0])
def test_the_flow_of_l0_grows_by_the_law(depth, scale):
    x, g, direction, speed = positive_direction(depth)
    weights = [scale * w for w in direction]
    r0 = scale * math.sqrt(depth)
    for grown in (1.01, 3.0):  # much later, the time is that of the blow-up in all digits
        t = time_to(grown * r0, r0, speed, depth)
        assert flow_of_l0(weights, x, g, t) == pytest.approx(grown * r0, rel=1e-6)
    half = t / 2
    assert flow_of_l0(weights, x, g, half) == pytest.approx(norm_at(half, r0, speed, depth), rel=1e-6)


@pytest.mark.parametrize("depth", range(2, 9))
def test_the_derivative_is_the_law(depth):
    r0, speed, t = 0.7, 0.3, 0.4
    h = 1e-5
    slope = (norm_at(t + h, r0, speed, depth) - norm_at(t - h, r0, speed, depth)) / (2 * h)
    assert slope == pytest.approx(depth ** (1 - depth / 2) * speed * norm_at(t, r0, speed, depth) ** (depth - 1))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    depth=st.integers(2, 12),
    r0=st.floats(1e-8, 10),
    speed=st.floats(1e-3, 1e3),
    log=st.floats(-3, 3).filter(lambda value: abs(value) > 1e-12),
)
def test_time_and_norm_invert_each_other(depth, r0, speed, log):
    r = r0 * math.exp(log)
    t = time_to(r, r0, speed, depth)
    assert (t > 0) == (r > r0)
    assert time_to(r0, r, speed, depth) == pytest.approx(-t, rel=1e-9)  # the same stretch, backwards
    lost = max(1.0, (r / r0) ** (depth - 2))  # t/T is this near to 1
    assert norm_at(t, r0, speed, depth) == pytest.approx(r, rel=1e-14 * lost + 1e-13)


@pytest.mark.parametrize("depth", [2, 3, 8, 50])
def test_no_cancellation_where_the_norm_hardly_grows(depth):
    """To first order the time is (r - r0) / (dr/dt), with r^{2-L} equal to r0^{2-L} in all digits."""
    speed = 0.5
    for r0 in (0.3, 0.37, 1.7, 40.0):
        r = r0 * (1 + 1e-13)
        first = (r - r0) / (depth ** (1 - depth / 2) * speed * r0 ** (depth - 1))
        assert time_to(r, r0, speed, depth) == pytest.approx(first, rel=1e-10, abs=0)


def test_e2_numbers_and_tiny_norms():
    assert norm_at(6.0, 0.1 * math.sqrt(3), 0.5, 3) == pytest.approx(0.2474, abs=5e-5)
    assert blow_up_time(1e-8, 1.0, 8) == pytest.approx(1e48 * 8**3 / 6)
    assert time_to(1.0, 1e-8, 1.0, 8) == pytest.approx(blow_up_time(1e-8, 1.0, 8), rel=1e-15)
    assert blow_up_time(0.2, 1.0, 2) == math.inf
    assert norm_at(-5.0, 1.0, 0.5, 2) == pytest.approx(math.exp(-2.5))


def test_arrays_broadcast_and_scalars_stay_floats():
    times = np.array([0.0, 0.1, 0.2])
    speeds = np.array([[0.5], [1.0]])
    norms = norm_at(times, 0.5, speeds, 4)
    assert norms.shape == (2, 3)
    assert norms[1, 2] == norm_at(0.2, 0.5, 1.0, 4)
    np.testing.assert_allclose(time_to(torch.from_numpy(norms), 0.5, speeds, 4), np.tile(times, (2, 1)), atol=1e-14)
    assert type(norm_at(0.1, 0.5, 0.5, 4)) is type(time_to(1, 2, 3, 4)) is type(blow_up_time(1, 1, 3)) is float
    assert blow_up_time([1.0, 2.0], 1.0, 2).tolist() == [math.inf, math.inf]


def test_bad_input():
    end = blow_up_time(0.5, 0.7, 5)
    with pytest.raises(ValueError, match=rf"t: got .*before {end:.4g}\d*, when the norm is infinite"):
        norm_at(end, 0.5, 0.7, 5)
    with pytest.raises(ValueError, match="t: got 99, expected a time before"):
        norm_at([0.0, 99.0], 0.5, 0.7, 5)
    for speed in (0, -1.0):
        with pytest.raises(ValueError, match=r"speed: got -?\d.*no direction along which it falls"):
            time_to(1, 0.5, speed, 3)
    with pytest.raises(ValueError, match=r"depth: got 1, expected at least 2.*no saddle"):
        blow_up_time(1, 1, 1)
    with pytest.raises(TypeError, match="depth: got 3"):
        blow_up_time(1, 1, 3.0)
    with pytest.raises(ValueError, match="r0: got 0, expected a number > 0"):
        norm_at(1, 0, 1, 3)
    with pytest.raises(ValueError, match="r: got NaN"):
        time_to(math.nan, 1, 1, 3)
    with pytest.raises(TypeError, match="t: got 'now'"):
        norm_at("now", 1, 1, 3)
    with pytest.raises(RangeError, match=r"r0: got .*exceeds 1\.8e308"):
        blow_up_time(1e-60, 1, 8)
    with pytest.raises(RangeError, match="r: got"):
        time_to(1e-60, 1.0, 1.0, 8)
    with pytest.raises(RangeError, match="t: got"):
        norm_at(1e4, 1.0, 1.0, 2)


def test_shapes_that_do_not_broadcast_are_named():
    for call, names in ((lambda: norm_at([0.1, 0.2], [1.0] * 3, 1.0, 3), "t, r0, speed"),
                        (lambda: time_to([2.0, 3.0], [1.0] * 3, 1.0, 3), "r, r0, speed"),
                        (lambda: blow_up_time([1.0, 2.0], [1.0] * 3, 3), "r0, speed")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{names}: got shapes .*, expected ones that broadcast together"):
            call()
