"""T41 at its edges: samples on kinks, against the loss itself over many neurons; layers of zeros; extreme units."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bnrank._core.validation import RangeError
from bnrank.networks import from_layers
from bnrank.theory.escape.joins import exit_time, join_rate


def network(weights, slope):
    return from_layers([torch.from_numpy(w) for w in weights], slope=slope)


def gains(weights, x, y, layer, v, u, slope=0.0, step=1e-4):
    """Fall of the mean square error by neurons step v, step u, over step^2; (K, n_{l-1}) and (K, n_{l+1}), NumPy."""

    def cost(added):
        a, total = x[None], 0.0
        for number, w in enumerate(weights, 1):
            z = a @ w.T
            if number == layer:
                new = np.einsum("ni,ki->kn", a[0], v)
                new = step * np.where(new > 0, new, slope * new)
            if number == layer + 1 and added:
                z = z + step * new[:, :, None] * u[:, None, :]
            a = np.where(z > 0, z, slope * z)
        total = z - y
        return (total**2).sum((1, 2)) / len(x)

    return (cost(False) - cost(True)) / step**2


def circle_pairs(count):
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.repeat(circle, count, 0), np.tile(circle, (count, 1))


def test_a_growing_neuron_is_found_where_all_samples_are_silent():
    """Neither all samples opened nor none: the best output opens one of two neurons only."""
    x, y = np.diag([1.0, 2.0]), np.array([[-2.0, 2.0], [-2.0, 0.0]])
    weights = [np.array([[-1.0, -1.0]]), np.array([[2.0], [1.0]]), np.array([[1.0, 1.0], [2.0, -2.0]])]
    rate = join_rate(network(weights, 0.0), "mse", x, y, layers=[1])
    best = gains(weights, x, y, 1, *circle_pairs(64)).max()
    assert best == pytest.approx(2.0, rel=1e-3)
    assert rate.kappa == pytest.approx(2.0, rel=1e-9)
    assert rate.upper >= rate.kappa
    assert not rate.per_layer[1].exact


def test_small_weights_need_not_hide_a_kink():
    """A small neuron pushes a silent sample off its kink; within ``kink_rtol`` the rate is that without the neuron."""
    x, y = np.eye(2), np.ones((2, 1))
    above, small = [np.array([[1.0, -1e-3]]), np.eye(1)], np.array([[1.0, 0.0], [0.0, 1e-3]])
    without = [np.array([[1.0, 0.0]]), np.eye(1), np.eye(1)]
    assert join_rate(network(without, 0.0), "mse", x, y, layers=[1]).kappa == pytest.approx(1.0, rel=1e-9)
    pushed = network([small, *above], 0.0)
    assert join_rate(pushed, "mse", x, y, layers=[1]).kappa == 0
    assert join_rate(pushed, "mse", x, y, layers=[1], kink_rtol=1e-3).kappa == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("slope", [0.0, 0.2, -0.3])
def test_brackets_at_kinks_against_pairs_of_angles(slope):
    """Everything silent after layer 1, layer 2 of width 2: the loss itself over a grid of v and u."""
    v, u = circle_pairs(48)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y = np.diag(rng.integers(1, 3, 2)) * 1.0, rng.integers(-2, 3, (2, 2)) * 1.0
        middle = rng.integers(1, 3, (2, 1)) * (1.0 if slope == 0 else 0.0)
        weights = [-np.ones((1, 2)), middle, rng.integers(-2, 3, (2, 2)) * 1.0]
        found = join_rate(network(weights, slope), "mse", x, y, layers=[1], starts=8).per_layer[1]
        best = gains(weights, x, y, 1, v, u, slope).max()
        assert found.lower >= 0.995 * best - 2e-3
        assert found.upper >= best - 2e-3
        if found.lower > 0:
            at = gains(weights, x, y, 1, found.direction.numpy()[None], found.output.numpy()[None], slope)
            assert at == pytest.approx(found.lower, rel=1e-2, abs=1e-3)


def test_upper_ends_hold_between_all_opened_and_none():
    """Some samples on kinks of one neuron of layer 2, some of the other: the best output opens one of both."""
    x = np.array([[-1.6, 0.1, -0.8], [-0.1, -0.8, -0.8], [-0.2, -0.3, 0.0]])
    y = np.array([[-0.9, 0.5], [-0.2, 0.4], [0.1, -0.1]])
    weights = [
        np.array([[0.3, -0.2, -0.2], [0.4, -1.9, -0.5]]),
        np.array([[-1.6, -0.3], [-2.1, 0.9]]),
        np.array([[-0.8, -1.0], [-0.4, -0.5]]),
    ]
    rng = np.random.default_rng(0)
    v, u = rng.normal(size=(40_000, 3)), rng.normal(size=(40_000, 2))
    v, u = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (v, u))
    best = gains(weights, x, y, 1, v, u).max()
    found = join_rate(network(weights, 0.0), "mse", x, y, layers=[1]).per_layer[1]
    assert found.lower >= best
    assert found.upper > found.lower
    assert found.method == "sides"


def test_leaky_kinks_take_the_side_of_every_sample():
    """sigma(v . a) has both signs, so a neuron opens some samples and closes others."""
    weights, x, y = [np.ones((1, 1)), np.zeros((1, 1)), np.ones((1, 1))], np.array([[1.0], [-2.0]]), np.ones((2, 1))
    found = join_rate(network(weights, 0.2), "mse", x, y, layers=[1]).per_layer[1]
    signs = np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.array([[1.0], [-1.0], [1.0], [-1.0]])
    best = gains(weights, x, y, 1, *signs, slope=0.2, step=1e-5).max()
    assert best == pytest.approx(1.96, rel=1e-6)
    assert found.exact
    assert found.lower == found.upper == pytest.approx(1.96, rel=1e-12)


@pytest.mark.parametrize(
    ("first", "second"), [(np.eye(2), np.zeros((1, 2))), (np.zeros((2, 2)), np.ones((1, 2)))], ids=["above", "below"]
)
def test_without_a_chain_the_exit_is_undecided(first, second):
    """A layer of zeros: size 0, and log(size) would be -inf."""
    net = network([first, second], 0.0)
    rate = join_rate(net, "mse", torch.eye(2), torch.ones(2, 1))
    assert rate.kappa == pytest.approx(math.sqrt(2))
    assert rate.size == 0
    assert rate.amplitude > 0
    assert math.isnan(rate.predicted_exit)
    assert math.isnan(rate.exit_after(0.1))
    assert math.isnan(exit_time(net, "mse", torch.eye(2), torch.ones(2, 1)))
    assert rate.exit_after(0.0) == math.inf


def test_exit_where_no_growth_was_found():
    rate = join_rate(network([np.eye(2), np.ones((1, 2))], 0.0), "mse", torch.eye(2), torch.ones(2, 1))
    assert rate.kappa == rate.upper == 0
    assert rate.exit_after(1e-3) == rate.predicted_exit == math.inf
    assert rate.exit_after(2.0) == 0
    assert math.isnan(dataclasses.replace(rate, upper=1.0).exit_after(1e-3))


def test_a_small_neuron_along_the_chain_may_join():
    """More of the second neuron lies along the chain than beside it, but it is a thousandth of the chain."""
    weights = [np.array([[1.0, 0.0], [1e-3, 1e-4]]), np.array([[1.0, 1e-3]])]
    rate = join_rate(network(weights, 0.0), "mse", torch.eye(2), torch.ones(2, 1))
    np.testing.assert_allclose(rate.direction, [0, 1], atol=2e-3)
    assert rate.amplitude == pytest.approx(0.5e-4, rel=0.05)
    large = [np.array([[1.0, 0.0], [0.1, 0.01]]), np.array([[1.0, 0.1]])]
    assert join_rate(network(large, 0.0), "mse", torch.eye(2), torch.ones(2, 1)).amplitude < 1e-3


@pytest.mark.parametrize("unit", [1e150, 1e-140])
def test_rates_in_extreme_units(unit):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=(30, 1))
    weights = [np.array([[1.0, 0.2, 0.1], [0.1, -0.3, 0.2]]), np.array([[1.0, -0.4]])]
    one = join_rate(network(weights, 0.0), "mse", x, y)
    other = join_rate(network(weights, 0.0), "mse", x * unit, y * unit)
    assert other.kappa == pytest.approx(one.kappa * unit**2, rel=1e-6)
    assert other.upper == pytest.approx(one.upper * unit**2, rel=1e-3)
    assert other.gradient_norm == pytest.approx(one.gradient_norm * unit**2, rel=1e-9)
    assert other.amplitude == pytest.approx(one.amplitude, abs=1e-3)
    with pytest.raises(RangeError, match="too large for float64"):
        join_rate(network(weights, 0.0), "mse", x * 1e200, y * 1e200)
    with pytest.raises(RangeError, match="outputs of net overflow"):
        join_rate(network([1e200 * w for w in weights], 0.0), "mse", x, y)
