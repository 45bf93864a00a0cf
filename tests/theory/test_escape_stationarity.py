"""The least residual of T36 over the subgradients at kinks."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize

import bnrank
from bnrank.measures.subgradients import _projected
from bnrank.networks import LinearNetwork, from_layers
from bnrank.theory.escape.direction import speed
from bnrank.theory.escape.stationarity import examine, residual

DEPTHS = [2, 3, 5]


def circle():
    task = bnrank.tasks.circle(dtype=torch.float64)
    return task.x, -task.y


def exact(split=1.0):
    """T40's direction of speed 1/2; below 1, the second layer in two opposite rows."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64) / 2
    w = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=torch.float64) / 2
    a, b = math.sqrt(split), math.sqrt(1 - split)
    second = torch.cat([a * w, -b * w]) if b else w
    last = torch.tensor([[-a, b]], dtype=torch.float64) if b else -torch.ones(1, 1, dtype=torch.float64)
    return from_layers([rows, second, last])


def smooth(depth):
    """Positive data and G <= 0: the optimum is the top singular pair of -G^T X."""
    rng = np.random.default_rng(0)
    x, g = rng.uniform(0.1, 1, (5, 3)), -rng.uniform(0.1, 1, (5, 2))
    u, s, v = np.linalg.svd(-g.T @ x)
    layers = [np.abs(v[:1]), *[np.ones((1, 1))] * (depth - 2), np.abs(u[:, :1])]
    return from_layers([torch.from_numpy(w) for w in layers]), x, g, s[0]


def plain_residual(net, x, g):
    """The definition, by autograd."""
    scale = math.sqrt(net.depth / sum(float(w.detach().square().sum()) for w in net.weights))
    ours = from_layers([w.detach() * scale for w in net.weights], slope=net.slope)
    loss = (torch.as_tensor(g) * ours(torch.as_tensor(x))).sum()
    grads = torch.autograd.grad(loss, ours.weights)
    s = -loss.item()
    off = sum(float((d + s * w).detach().square().sum()) for d, w in zip(grads, ours.weights, strict=True))
    return math.sqrt(off) / (s * math.sqrt(net.depth))


def residual_with(net, x, g, at):
    """The residual as a function of the derivatives at given kinks (layer, neuron, sample) of a ReLU network."""
    weights = [w.detach().numpy() for w in net.weights]
    scale = math.sqrt(len(weights) / sum((w * w).sum() for w in weights))
    weights = [w * scale for w in weights]
    inputs, slopes = [x.T], []
    for w in weights[:-1]:
        z = w @ inputs[-1]
        slopes.append((z > 0).astype(float))
        inputs.append(np.maximum(z, 0))
    s = -float((g.T * (weights[-1] @ inputs[-1])).sum())

    def value(values):
        d = [a.copy() for a in slopes]
        for (layer, neuron, sample), value in zip(at, values, strict=True):
            d[layer - 1][neuron, sample] = value
        delta, off = g.T, 0.0
        for layer in reversed(range(len(weights))):
            off += ((delta @ inputs[layer].T + s * weights[layer]) ** 2).sum()
            if layer:
                delta = (weights[layer].T @ delta) * d[layer - 1]
        return math.sqrt(off) / (s * math.sqrt(len(weights)))

    return value


def best_on_grid(net, x, g, at, points=21):
    """Least residual over a grid of derivatives."""
    value = residual_with(net, x, g, at)
    return min(value(v) for v in itertools.product(np.linspace(0, 1, points), repeat=len(at)))


def test_the_exact_direction_needs_a_subgradient():
    x, g = circle()
    found = examine(exact(), x, g)
    assert found.residual < 1e-12
    assert found.plain > 0.5
    assert found.speed == pytest.approx(0.5, abs=1e-15)
    second = found.layers == 2
    assert sorted(found.samples[second]) == [1, 3, 5, 7]
    np.testing.assert_allclose(found.derivatives[second], math.sqrt(2) / 4, atol=1e-12)


@pytest.mark.parametrize("split", [0.9, 0.5])
@pytest.mark.parametrize("depth", [3, 6])
def test_kinks_in_many_layers_at_once(split, depth):
    """Two opposite rows, and layers of one neuron after them: alphas multiply from layer to layer."""
    x, g = circle()
    first, second, last = (w.detach() for w in exact(split).weights)
    one = torch.ones(1, 1, dtype=torch.float64)
    layers = [first, second, -last.abs()] if depth == 3 else [first, second, last.abs(), *[one] * (depth - 4), -one]
    net = from_layers(layers)
    assert speed(net, x, g) == pytest.approx(0.5, abs=1e-12)
    found = examine(net, x, g)
    assert found.residual < 1e-10
    assert set(found.layers) == set(range(1, depth))


@pytest.mark.parametrize("depth", DEPTHS)
def test_at_a_smooth_direction_it_is_the_plain_residual(depth):
    net, x, g, s = smooth(depth)
    found = examine(net, x, g)
    assert found.residual < 1e-13
    assert found.kinks == 0
    assert found.speed == pytest.approx(s, rel=1e-13)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.2, 1.0])
def test_away_from_kinks_it_is_the_definition(depth, slope):
    rng = np.random.default_rng(depth)
    x, g = rng.normal(size=(12, 3)), rng.normal(size=(12, 2))
    make = LinearNetwork([3, *[6] * (depth - 1), 2], dtype=torch.float64) if slope == 1 else None
    net = make or bnrank.MLP([3, *[6] * (depth - 1), 2], slope=slope, bias=False, seed=1, dtype=torch.float64)
    if speed(net, x, g) < 0:
        g = -g
    assert residual(net, x, g) == pytest.approx(plain_residual(net, x, g), rel=1e-12)
    assert residual(net, x, g) > 0.1
    assert residual(net, 1e-120 * x, 1e90 * g) == pytest.approx(plain_residual(net, x, g), rel=1e-10)
    for unit in (1e-200, 1e160, 1e-300):
        assert residual(net, unit * x, g) == pytest.approx(plain_residual(net, x, g), rel=1e-10)
        assert speed(net, unit * x, g) == pytest.approx(unit * speed(net, x, g), rel=1e-10)
    assert residual(net, x, -g) == math.inf


@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_a_perturbation_shows_by_its_size(size):
    net, x, g, _ = smooth(4)
    rng = np.random.default_rng(1)
    moved = from_layers([w.detach() + size * torch.from_numpy(rng.normal(size=w.shape)) for w in net.weights])
    assert 0.1 * size < residual(moved, x, g) < 100 * size
    x, g = circle()
    moved = from_layers([w.detach() + size * torch.from_numpy(rng.normal(size=w.shape)) for w in exact().weights])
    assert residual(moved, x, g, kink_rtol=20 * size) < 100 * size
    assert residual(moved, x, g, kink_rtol=1e-3 * size) > 0.3  # off its kinks it is not stationary


@pytest.mark.parametrize(
    ("rows", "g", "expected"),
    [
        ([[1.0, -0.6], [-0.8, 1.0]], [-2.0, -1.0, -0.7, -0.5], [0.42, 0.2]),
        ([[1.0, -0.6], [2.0, -0.5]], [-2.0, -1.0, -0.7, 0.3], [0.27, 0.0]),
        ([[1.0, 1.0], [2.0, -0.5]], [-1.0, -0.7, -0.5, 0.3], [0.0, 0.0]),  # bounds
    ],
)
def test_the_residual_bound_is_that_of_a_search_over_derivatives(rows, g, expected):
    """Two neurons, each on a kink with one sample, no zero of the residual in reach."""
    x, g = np.array([[1.0, 0.0], [0.0, 1.0], *rows]), np.array(g)[:, None]
    net = from_layers([torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.8]])])
    found = examine(net, x, g)
    at = list(zip(found.layers, found.neurons, found.samples, strict=True))
    assert at == [(1, 0, 1), (1, 1, 0)]
    grid = best_on_grid(net, x, g, at, 201)
    assert found.residual <= grid
    assert found.residual == pytest.approx(grid, abs=1e-3)
    np.testing.assert_allclose(found.derivatives, expected, atol=5e-3)
    assert found.residual <= found.plain


def neuron(w, slope=0.0):
    return from_layers([torch.tensor([w], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)], slope=slope)


@pytest.mark.parametrize(
    ("x", "g", "slope"),
    [
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1.0, -1.0, -1.0], 0.0),  # alpha and 1 - alpha
        ([[2.0, 0.0], [-0.5, 0.0], [0.0, 1.0]], [0.5, -2.0, -1.0], 0.0),  # of other lengths
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [1.0, -1.0, -1.0], 0.2),  # alpha and 1.2 - alpha
        ([[1.0, 0.0], [1.0, 0.0], [0.3, 1.0]], [-3.0, 2.0, -1.0], 0.0),  # one alpha for both
        ([[1.0, 0.0], [4.0, 0.0], [0.3, 1.0]], [-3.0, 0.5, -1.0], 0.0),
    ],
)
def test_samples_on_one_line_have_one_derivative(x, g, slope):
    """A point that is not stationary, though it would be with a derivative for each sample."""
    x, g = np.array(x), np.array(g)[:, None]
    found = examine(neuron([0.0, 1.0], slope), x, g)
    assert found.kinks == 2
    assert found.groups.tolist() == [0, 0]
    same = found.sides[0] == found.sides[1]
    assert same == (x[1, 0] > 0)
    assert found.derivatives[1] == pytest.approx(found.derivatives[0] if same else 1 + slope - found.derivatives[0])
    turns = np.linspace(0, 1, 101)
    ascent = [-g[0, 0] * x[0, 0] * a - g[1, 0] * x[1, 0] * (a if same else 1 + slope - a) for a in turns if a >= slope]
    least = np.abs(np.array(ascent) - g[2, 0] * x[2, 0]).min() / math.sqrt(2)  # the speed is 1
    assert least > 0.2
    assert found.residual == pytest.approx(least, abs=1e-12)


def test_after_the_first_layer_opposite_samples_have_their_own_derivatives():
    """A layer of two opposite neurons takes x and -x to directions that are no multiples, and 2 x to one that is."""
    x, g = np.array([[1.0], [2.0], [-1.0]]), np.array([[1.0], [-1.0], [1.0]])
    layers = [[[1.0], [-1.0]], [[0.0, 0.0], [1.0, 1.0]], [[1.0, -1.0]]]
    found = examine(from_layers([torch.tensor(w, dtype=torch.float64) for w in layers]), x, g)
    assert (found.layers.tolist(), found.samples.tolist()) == ([2, 2, 2], [0, 1, 2])
    assert found.groups.tolist() == [0, 0, 1]
    assert found.sides.tolist() == [1, 1, 1]


def test_dependent_samples_that_are_no_multiples_are_not_tied():
    """What the docstring says of the residual: 0 here, with derivatives 0, 0, 0.8 that no nearby points have.

    The Clarke subdifferential is at a distance of 0.3 * 2^(1/2) from 0, and the speed has a slope along (1, 1, 0).
    """
    x = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.8, 0.8, 1.0]])
    g = np.array([[-1.0], [-1.0], [1.0], [-1.0]])
    found = examine(neuron([0.0, 0.0, 1.0]), x, g)
    assert found.residual < 1e-12
    assert found.groups.tolist() == [0, 1, 2]
    for h in (1e-4, -1e-4):
        assert (speed(neuron([h, h, 1.0]), x, g) - found.speed) / h == pytest.approx(1.6, abs=1e-3)


def test_an_activation_that_counts_as_zero_makes_the_next_kinks():
    """The first neuron is 1e-9 off its kink with the first sample, and all that the second layer sees of that."""
    x, g = np.array([[1.0, 1e-9], [0.0, 1.0]]), np.array([[-1.0], [-1.0]])
    net = from_layers([torch.tensor([[0.0, 1.0]]), torch.ones(1, 1), torch.ones(1, 1)])
    found = examine(net, x, g)
    assert (found.layers.tolist(), found.samples.tolist()) == ([1, 2], [0, 0])


def test_kinks_in_two_layers_need_more_than_one_start():
    """Eight kinks; from 1/2 alone a local minimum, 12 percent higher. Against L-BFGS-B from random starts."""
    rng = np.random.default_rng(126)
    n, outputs = int(rng.integers(3, 7)), int(rng.integers(1, 3))
    x, g = np.round(rng.normal(size=(n, 3)), 1), np.round(rng.normal(size=(n, outputs)), 1)

    def orthogonal(samples):
        basis = np.linalg.svd(samples)[2][2:]
        return rng.normal(size=len(basis)) @ basis

    first = np.stack([orthogonal(x[rng.choice(n, 2, replace=False)]) for _ in range(3)])
    hidden = np.maximum(first @ x.T, 0).T
    second = np.stack([orthogonal(hidden[rng.choice(n, 2, replace=False)]) for _ in range(3)])
    net = from_layers([torch.from_numpy(w) for w in (first, second, rng.normal(size=(outputs, 3)))])
    found = examine(net, x, g)
    assert found.kinks == 8
    value = residual_with(net, x, g, list(zip(found.layers, found.neurons, found.samples, strict=True)))
    assert value(found.derivatives) == pytest.approx(found.residual, rel=1e-9)
    starts = [rng.uniform(size=found.kinks) for _ in range(8)]
    best = min(minimize(value, v, method="L-BFGS-B", bounds=[(0, 1)] * found.kinks).fun for v in starts)
    assert found.residual <= best * (1 + 1e-4)


def test_kinks_do_not_count_where_nothing_depends_on_them():
    x, g = circle()
    net = exact()
    idle = from_layers(
        [
            torch.cat([net.weights[0].detach(), torch.tensor([[1e-9, 0.0]], dtype=torch.float64)]),
            torch.cat([net.weights[1].detach(), torch.zeros(1, 1, dtype=torch.float64)], 1),
            net.weights[2].detach(),
        ]
    )
    assert examine(idle, x, g).kinks == examine(net, x, g).kinks


def test_samples_in_blocks_give_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    x[7], x[31] = [0, 1, 0], [0, 0, 2]
    net = bnrank.MLP([3, 6, 6, 2], bias=False, seed=0, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0][0, 1:] = 0
    g = g if speed(net, x, g) > 0 else -g
    whole = examine(net, x, g)
    assert whole.kinks == 2
    monkeypatch.setattr(sys.modules["bnrank.theory.escape.stationarity"], "BLOCK", 12 * 8)
    parts = examine(net, x, g)  # in blocks of eight samples, and by the normal equations
    assert parts.residual == pytest.approx(whole.residual, rel=1e-7)
    np.testing.assert_array_equal(parts.samples, whole.samples)
    np.testing.assert_allclose(parts.derivatives, whole.derivatives, atol=1e-6)


def test_many_kinks_are_solved_by_projected_gradient_steps():
    """Against SciPy's active-set method."""
    rng = np.random.default_rng(0)
    matrix, target = rng.normal(size=(40, 25)), rng.normal(size=40)
    low, high = -rng.uniform(0, 0.1, 25), rng.uniform(0, 0.1, 25)
    found = _projected(matrix.T @ matrix, matrix.T @ target, low, high)
    exact_ = lsq_linear(matrix, target, (low, high), method="bvls").x
    np.testing.assert_allclose(found, exact_, atol=1e-8)
    assert ((found > low) & (found < high)).sum() >= 3


def test_bad_arguments_are_refused():
    x, g = circle()
    with pytest.raises(ValueError, match=r"net: got a network with biases.*not homogeneous"):
        residual(bnrank.MLP([2, 4, 1], dtype=torch.float64), x, g)
    with pytest.raises(TypeError, match="Tanh"):
        residual(torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Tanh()), x, g)
    with pytest.raises(ValueError, match="g: got zeros only"):
        residual(exact(), x, 0 * g)
    with pytest.raises(ValueError, match="x: got zeros only"):
        residual(exact(), 0 * x, g)
    with pytest.raises(ValueError, match="g: got 7 samples, expected as many as x has, 8"):
        residual(exact(), x, g[1:])
    with pytest.raises(ValueError, match="2 inputs and 1 outputs, expected 3 and 1"):
        residual(exact(), torch.ones(8, 3), g)
    with pytest.raises(OverflowError, match="x, g: got largest entries"):
        residual(exact(), x / x.abs().max() * 1e200, g / g.abs().max() * 1e200)
    with pytest.raises(ValueError, match="kink_rtol"):
        residual(exact(), x, g, kink_rtol=-1)
    with pytest.raises(ValueError, match="all zero"):
        residual(from_layers([torch.zeros(3, 2), torch.zeros(1, 3)]), x, g)
