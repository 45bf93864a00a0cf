"""T41: the rate at which new neurons join a chain, against gradient flow from a converged saddle."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import bnrank
from bnrank.networks import from_layers
from bnrank.theory.escape.joins import exit_time, join_rate

SAMPLES = 30


def data(outputs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 3))
    x[:, 0] = np.abs(x[:, 0]) + 0.3
    y = x[:, 0] + 0.5 * np.abs(x[:, 1]) + 0.2 * x[:, 2]
    return x, np.outer(y, [1.0, 0.75][:outputs])


class Flow:
    """Gradient flow of the mean square error by hand, in NumPy."""

    def __init__(self, shapes, x, y, slope):
        self.shapes, self.x, self.y, self.slope = shapes, x, y, slope
        self.cuts = np.cumsum([a * b for a, b in shapes])[:-1]

    def weights(self, theta):
        return [p.reshape(shape) for p, shape in zip(np.split(theta, self.cuts), self.shapes, strict=True)]

    def _outputs(self, weights):
        a, z = [self.x], []
        for w in weights:
            z.append(a[-1] @ w.T)
            a.append(np.where(z[-1] > 0, z[-1], self.slope * z[-1]))
        return a, z

    def cost(self, theta):
        return ((self._outputs(self.weights(theta))[1][-1] - self.y) ** 2).sum() / SAMPLES

    def velocity(self, _, theta):
        weights = self.weights(theta)
        a, z = self._outputs(weights)
        delta, out = 2 * (z[-1] - self.y) / SAMPLES, []
        for layer in reversed(range(len(weights))):
            out.append((delta.T @ a[layer]).ravel())
            if layer:
                delta = (delta @ weights[layer]) * np.where(z[layer - 1] > 0, 1, self.slope)
        return -np.concatenate(out[::-1])

    def converge(self, weights, time):
        start = np.concatenate([w.ravel() for w in weights])
        return solve_ivp(self.velocity, (0, time), start, method="LSODA", rtol=1e-9, atol=1e-14).y[:, -1]

    def steps(self, weights, step):
        """States after steps of classical Runge-Kutta: best directions may lie on kinks, where error control crawls."""
        theta = np.concatenate([w.ravel() for w in weights])
        while True:
            k1 = self.velocity(0, theta)
            k2 = self.velocity(0, theta + step / 2 * k1)
            k3 = self.velocity(0, theta + step / 2 * k2)
            theta = theta + step / 6 * (k1 + 2 * k2 + 2 * k3 + self.velocity(0, theta + step * k3))
            yield theta


@functools.cache
def saddle(depth, slope, outputs):
    """Weights of a chain of single neurons at which gradient flow has come to rest."""
    x, y = data(outputs)
    weights = [np.array([[1.0, 0.1, 0.1]]), *[np.ones((1, 1))] * (depth - 2), np.ones((outputs, 1))]
    flow = Flow([w.shape for w in weights], x, y, slope)
    end = flow.converge(weights, 3000.0)
    assert np.abs(flow.velocity(0, end)).max() < 1e-13
    return [w.copy() for w in flow.weights(end)]


def network(weights, slope):
    return from_layers([torch.from_numpy(np.ascontiguousarray(w)) for w in weights], slope=slope)


def with_neuron(weights, row, column):
    return [np.vstack([weights[0], row]), np.hstack([weights[1], np.reshape(column, (-1, 1))]), *weights[2:]]


CASES = [(2, 0.0, 1), (3, 0.0, 1), (4, 0.0, 2), (3, 0.2, 1), (2, 0.0, 2)]


@pytest.mark.parametrize(("depth", "slope", "outputs"), CASES)
def test_a_new_neuron_grows_at_the_rate(depth, slope, outputs):
    x, y = data(outputs)
    chain = saddle(depth, slope, outputs)
    rate = join_rate(network(chain, slope), "mse", x, y)
    assert rate.gradient_norm < 1e-12
    assert rate.layer == 1
    assert rate.upper <= rate.kappa * (1 + 3e-6)
    eps = 1e-7
    bigger = with_neuron(chain, eps * rate.direction.numpy(), eps * rate.output.numpy())
    flow = Flow([w.shape for w in bigger], x, y, slope)
    step = 0.005 / rate.kappa
    states = list(itertools.islice(flow.steps(bigger, step), 1000))
    sizes = [np.linalg.norm(flow.weights(state)[0][1]) for state in states[::100]]
    np.testing.assert_allclose(np.diff(np.log(sizes)) / (100 * step), rate.kappa, rtol=1e-3)
    assert rate.kappa > 0.05


def speed_of_shut(chain, x, y):
    """Rates over a fine set of directions if silent samples stay silent, as automatic differentiation has it."""
    a = [x]
    for w in chain[:-1]:
        a.append(np.maximum(a[-1] @ w.T, 0))
    delta = 2 * (a[-1] @ chain[-1].T - y) / SAMPLES
    for w, below in zip(chain[:1:-1], a[:1:-1], strict=True):
        delta = (delta @ w) * (below > 0)
    v = np.random.default_rng(0).normal(size=(3, 20_000))
    return np.abs(delta.T @ np.maximum(x @ (v / np.linalg.norm(v, axis=0)), 0))[0]


@pytest.mark.parametrize(("depth", "outputs"), [(3, 1), (4, 2), (5, 1)])
@pytest.mark.parametrize("opens", [True, False])
def test_silent_samples_are_opened_or_not(depth, outputs, opens):
    """A chain that is silent on half of the samples, whose targets are above or below its zeros."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(SAMPLES, 3))
    silent = (1 if opens else -1) * 0.5 * np.maximum(-x[:, 0], 0)
    y = np.outer(np.maximum(x[:, 0], 0) * (1 + 0.5 * np.abs(x[:, 1])) + silent, [1.0, 0.75][:outputs])
    weights = [np.array([[1.0, 0.0, 0.0]]), *[np.ones((1, 1))] * (depth - 2), np.ones((outputs, 1))]
    flow = Flow([w.shape for w in weights], x, y, 0.0)
    end = flow.converge(weights, 3000.0)
    chain = [w.copy() for w in flow.weights(end)]
    assert (x @ chain[0][0] < 0).any()
    rate = join_rate(network(chain, 0.0), "mse", x, y)
    assert rate.gradient_norm < 1e-9
    naive = max(speed_of_shut(chain, x, y))
    if opens:
        assert float(rate.output[0]) > 0
        assert rate.kappa > 1.05 * naive
    eps = 1e-7
    bigger = with_neuron(chain, eps * rate.direction.numpy(), eps * rate.output.numpy())
    grown = Flow([w.shape for w in bigger], x, y, 0.0)
    step = min(0.005 / rate.kappa, 0.02)
    states = list(itertools.islice(grown.steps(bigger, step), 600))
    sizes = [np.linalg.norm(grown.weights(state)[0][1]) for state in states[::100]]
    np.testing.assert_allclose(np.diff(np.log(sizes)) / (100 * step), rate.kappa, rtol=2e-3)


def test_the_exit_takes_log_over_kappa():
    """From eps = 1e-2 to 1e-6 with a random small neuron, whose direction has to turn first."""
    x, y = data(1)
    chain = saddle(3, 0.0, 1)
    rng = np.random.default_rng(1)
    row, column = rng.normal(size=3), -np.abs(rng.normal(size=1))
    rate = join_rate(network(chain, 0.0), "mse", x, y)
    column *= -np.sign(float(rate.output[0])) or 1.0
    row *= np.sign(row @ rate.direction.numpy())
    seen, predicted = [], []
    for eps in (1e-2, 1e-4, 1e-6):
        bigger = with_neuron(chain, eps * row, eps * column)
        flow = Flow([w.shape for w in bigger], x, y, 0.0)
        joined = with_neuron(chain, rate.size * rate.direction.numpy(), rate.size * rate.output.numpy())
        level = np.mean([flow.cost(np.concatenate([w.ravel() for w in weights])) for weights in (bigger, joined)])
        step = 0.01 / rate.kappa
        states = itertools.takewhile(
            lambda theta, flow=flow, level=level: flow.cost(theta) > level, flow.steps(bigger, step)
        )
        seen.append(step * sum(1 for _ in itertools.islice(states, 5000)))
        predicted.append(exit_time(network(bigger, 0.0), "mse", x, y))
    slopes = np.diff(seen) / math.log(100)
    np.testing.assert_allclose(slopes[-1], 1 / rate.kappa, rtol=2e-3)
    np.testing.assert_allclose(slopes, 1 / rate.kappa, rtol=0.05)
    np.testing.assert_allclose(np.diff(predicted) / math.log(100), 1 / rate.kappa, rtol=1e-3)
    assert np.abs(np.subtract(seen, predicted)).max() < 2 / rate.kappa


@pytest.mark.parametrize(("depth", "slope", "outputs"), CASES)
def test_deeper_layers_do_not_join_at_a_chain(depth, slope, outputs):
    x, y = data(outputs)
    rate = join_rate(network(saddle(depth, slope, outputs), slope), "mse", x, y)
    assert set(rate.per_layer) == set(range(1, depth))
    for layer in range(2, depth):
        assert rate.per_layer[layer].upper < 1e-12
    # away from the saddle they do
    moved = [w * 0.8 for w in saddle(depth, slope, outputs)]
    away = join_rate(network(moved, slope), "mse", x, y)
    assert away.gradient_norm > 0.01
    assert all(away.per_layer[layer].lower > 0.01 for layer in range(1, depth))


def by_hand(weights, x, y, loss, layer, slope):
    """Deltas of layer + 1 by automatic differentiation, and the rate over a fine grid of directions in the plane."""
    a = torch.from_numpy(x)
    for number, w in enumerate(weights, 1):
        z = a @ torch.from_numpy(w).T
        if number == layer:
            inputs = a.detach()
        if number == layer + 1:
            z = z.detach().requires_grad_()
            held = z
        a = torch.where(z > 0, z, slope * z)
    (delta,) = torch.autograd.grad(loss(z, y), held)
    angle = torch.linspace(0, 2 * math.pi, 40001, dtype=torch.float64)
    pre = inputs @ torch.stack([angle.cos(), angle.sin()])
    return float((torch.where(pre > 0, pre, slope * pre).T @ delta).norm(dim=1).max())


@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "callable"])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_losses_and_layers_against_automatic_differentiation(loss, slope):
    """All layers of width 2, so that every rate is a maximum over an angle."""
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=(2, 2)) for _ in range(4)]
    x = rng.normal(size=(20, 2))
    classes = torch.from_numpy(rng.integers(0, 2, 20))
    targets = torch.from_numpy(rng.normal(size=(20, 2)))
    losses = {
        "mse": lambda f, y: (f - y).square().sum() / 20,
        "cross_entropy": torch.nn.functional.cross_entropy,
        "callable": lambda f, y: (f - y).abs().mean(),
    }
    y = classes if loss == "cross_entropy" else targets
    given = losses[loss] if loss == "callable" else loss
    rate = join_rate(network(weights, slope), given, x, y, rtol=0.0)
    for layer in (1, 2, 3):
        expected = by_hand(weights, x, y, losses[loss], layer, slope)
        assert expected * (1 - 1e-12) <= rate.per_layer[layer].lower <= expected * (1 + 1e-4)  # a grid of 1.6e-4
        assert rate.per_layer[layer].exact
    assert rate.kappa == max(found.lower for found in rate.per_layer.values())
    only = join_rate(network(weights, slope), given, x, y, layers=[2])
    assert list(only.per_layer) == [2]
    assert only.kappa == pytest.approx(rate.per_layer[2].lower)


def saddle_delta(chain, x, y):
    """dC/d(preactivation of layer 2) of a chain of depth 3, by hand."""
    z2 = np.maximum(x @ chain[0].T, 0) @ chain[1].T
    return (2 * (np.maximum(z2, 0) @ chain[2].T - y) / SAMPLES @ chain[2]) * (z2 > 0)


@pytest.mark.parametrize(("depth", "slope", "outputs"), CASES)
def test_growth_ends_where_the_neuron_alone_lowers_the_cost_most(depth, slope, outputs):
    x, y = data(outputs)
    chain = saddle(depth, slope, outputs)
    rate = join_rate(network(chain, slope), "mse", x, y)

    def cost(size):
        weights = with_neuron(chain, size * rate.direction.numpy(), size * rate.output.numpy())
        return Flow([w.shape for w in weights], x, y, slope).cost(np.concatenate([w.ravel() for w in weights]))

    largest = math.sqrt(np.linalg.norm(chain[0], 2) * np.linalg.norm(chain[1], 2))
    assert rate.size <= largest * (1 + 1e-12)
    if rate.size < largest * (1 - 1e-9) and depth == 2:  # deeper, kinks above are crossed
        assert cost(rate.size) < min(cost(0.97 * rate.size), cost(1.03 * rate.size))
    assert cost(rate.size) < cost(0.3 * rate.size) < cost(0.0)


def test_amplitude_in_a_wide_network():
    """A chain spread over many neurons, small random neurons besides it: the amplitude is that of the small ones."""
    x, y = data(1)
    chain = saddle(3, 0.0, 1)
    rng = np.random.default_rng(0)
    spread = np.abs(rng.normal(size=8)) + 0.3
    spread /= np.linalg.norm(spread)
    w1 = np.concatenate([np.outer(spread, chain[0][0]), np.zeros((4, 3))])
    w2 = np.concatenate(
        [np.concatenate([np.outer(spread, spread) * chain[1][0, 0], np.zeros((4, 8))]), np.zeros((12, 4))], 1
    )
    w3 = np.concatenate([spread, np.zeros(4)])[None] * chain[2][0, 0]
    exact = join_rate(network([w1, w2, w3], 0.0), "mse", x, y)
    narrow = join_rate(network(chain, 0.0), "mse", x, y)
    assert exact.kappa == pytest.approx(narrow.kappa, rel=1e-9)
    other = torch.from_numpy(x) @ -narrow.direction  # both sides are as fast, and either may be found
    mirrored = np.linalg.norm(saddle_delta(chain, x, y).T @ other.clamp(min=0).numpy())
    assert mirrored == pytest.approx(narrow.kappa, rel=1e-9)
    if float(exact.direction @ narrow.direction) > 0:
        assert exact.size == pytest.approx(narrow.size, rel=1e-6)
    assert exact.amplitude == 0
    assert exact.predicted_exit == math.inf
    eps = 1e-5
    noisy = [w + eps * rng.normal(size=w.shape) for w in (w1, w2, w3)]
    rate = join_rate(network(noisy, 0.0), "mse", x, y)
    assert rate.kappa == pytest.approx(exact.kappa, rel=1e-3)
    assert 0.1 * eps < rate.amplitude < 10 * eps
    assert rate.predicted_exit == pytest.approx(math.log(rate.size / rate.amplitude) / rate.kappa)
    assert rate.exit_after(2 * rate.size) == 0


def test_linear_networks_have_a_closed_form():
    x, y = data(2)
    weights = [np.array([[0.5, 0.2, 0.1]]), np.array([[0.7], [0.1]])]
    net = bnrank.LinearNetwork([3, 1, 2], bias=False).double()
    with torch.no_grad():
        for p, w in zip(net.weights, weights, strict=True):
            p.copy_(torch.from_numpy(w))
    rate = join_rate(net, "mse", x, y)
    residual = 2 * (x @ weights[0].T @ weights[1].T - y) / SAMPLES
    assert rate.kappa == pytest.approx(np.linalg.norm(residual.T @ x, 2), rel=1e-12)


def test_compressed_brackets_hold_the_rate():
    rng = np.random.default_rng(0)
    chains = [np.outer(a, b) for a, b in itertools.pairwise([np.abs(rng.normal(size=k)) for k in (3, 20, 20, 20, 2)])]
    weights = [w.T + 1e-4 * rng.normal(size=w.T.shape) for w in chains]
    x, y = data(2)
    full = join_rate(network(weights, 0.0), "mse", x, y, rtol=0.0)
    fast = join_rate(network(weights, 0.0), "mse", x, y, rtol=1e-2)
    for layer in (1, 2, 3):
        a, b = full.per_layer[layer], fast.per_layer[layer]
        assert b.lower <= a.upper
        assert a.lower <= b.upper
        assert b.lower == pytest.approx(a.lower, rel=1e-3)


def test_bad_input():
    x, y = data(1)
    net = bnrank.MLP([3, 4, 1], bias=False, seed=0)
    with pytest.raises(ValueError, match="net: got a network with biases"):
        join_rate(bnrank.MLP([3, 4, 1]), "mse", x, y)
    with pytest.raises(ValueError, match="net: got depth 1"):
        join_rate(bnrank.MLP([3, 1], bias=False), "mse", x, y)
    with pytest.raises(ValueError, match=r"loss: got 'mes'.*'mse'"):
        join_rate(net, "mes", x, y)
    with pytest.raises(ValueError, match="y: got 29 samples"):
        join_rate(net, "mse", x, y[:-1])
    with pytest.raises(ValueError, match=r"y: got shape \(30, 2\)"):
        join_rate(net, "mse", x, np.ones((30, 2)))
    with pytest.raises(ValueError, match=r"y: got .*expected class indices from 0 to 0"):
        join_rate(net, "cross_entropy", x, torch.ones(30, dtype=torch.long))
    with pytest.raises(TypeError, match="y: got"):
        join_rate(net, "mse", x, [1.0])
    with pytest.raises(ValueError, match=r"x: got shape \(30, 2\)"):
        join_rate(net, "mse", x[:, :2], y)
    with pytest.raises(ValueError, match=r"layers: got \[2\], expected hidden layers, from 1 to 1"):
        join_rate(net, "mse", x, y, layers=[2])
    with pytest.raises(TypeError, match=r"loss: got .*expected a scalar tensor"):
        join_rate(net, lambda f, y: f, x, y)
    before = [w.detach().clone() for w in net.weights]
    state = torch.get_rng_state()
    join_rate(net, "mse", x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, net.weights, strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rate_agrees_with_what_a_small_neuron_gains(seed):
    """Oracle in the plane: the first-order change of the cost by a neuron, by finite differences, over all angles."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (2, 3))
    weights = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((1, 2), (1, 1), (1, 1), (3, 1))]
    weights[1:3] = [w.abs() for w in weights[1:3]]
    kappa = join_rate(from_layers(weights), "mse", x, y, layers=[1]).kappa

    def cost(extra):
        hidden = (x @ weights[0].T).relu() @ weights[1].T + extra
        outputs = (hidden.relu() @ weights[2].T).relu() @ weights[3].T
        return float((outputs - y).square().sum()) / len(x)

    step, angles = 1e-7, np.linspace(0, 2 * np.pi, 720)
    gains = [
        (cost(0.0) - cost(u * step * (x @ v).relu()[:, None])) / step
        for t in angles
        for u in (1, -1)
        for v in [torch.tensor([math.cos(t), math.sin(t)], dtype=torch.float64)]
    ]
    assert kappa == pytest.approx(max(gains), rel=2e-3)


def test_neurons_on_the_other_side_count_into_the_amplitude():
    """No sample is silent, so that -v* is as fast as v*; all that is small is there."""
    x, y = data(1)
    chain = saddle(3, 0.0, 1)
    rate = join_rate(network(chain, 0.0), "mse", x, y)
    other = np.maximum(x @ -rate.direction.numpy(), 0) @ saddle_delta(chain, x, y)
    assert np.linalg.norm(other) == pytest.approx(rate.kappa, rel=1e-9)
    eps = 1e-6
    row, column = -eps * rate.direction.numpy(), -eps * other / np.linalg.norm(other)
    mirrored = join_rate(network(with_neuron(chain, row, column), 0.0), "mse", x, y)
    if float(mirrored.direction @ rate.direction) > 0:
        assert mirrored.amplitude == pytest.approx(eps, rel=0.2)
    seen = [math.isfinite(mirrored.predicted_exit)]
    # and with the found direction turned round, whichever it is
    row, column = eps * rate.direction.numpy(), eps * rate.output.numpy()
    seen.append(math.isfinite(join_rate(network(with_neuron(chain, row, column), 0.0), "mse", x, y).predicted_exit))
    assert seen == [True, True]
