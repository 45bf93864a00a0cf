"""Tests of stationarity: closed forms, brute force over slopes, and what new neurons would do."""

import itertools

import numpy as np
import pytest
import torch
from scipy import optimize

import bnrank
from bnrank.measures import critical_points, subgradients
from bnrank.measures.critical_points import stationarity
from bnrank.measures.second_order import Evaluation, Problem


def scalar(v, w, b=None):
    """Return x -> v relu(w x + b) for scalars, one neuron."""
    layers = [torch.tensor([[w]], dtype=torch.float64), torch.tensor([[v]], dtype=torch.float64)]
    biases = None if b is None else [torch.tensor([b], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    return bnrank.networks.from_layers(layers, biases or ())


def test_a_smooth_minimum_in_closed_form():
    # C = (v w - 2)^2, lambda = 1/2: v = w = sqrt(2 - lambda) is the minimum, and 2 lambda - 2 (2 - v w) = 0 there.
    x, y, ridge = torch.ones(1, 1), torch.full((1, 1), 2.0), 0.5
    side = (2 - ridge) ** 0.5
    at = stationarity(scalar(side, side), (x, y), ridge)
    assert at.residual < 1e-15
    assert at.kind == "local minimum"
    assert at.loss == pytest.approx(ridge**2 + 2 * ridge * (2 - ridge))
    assert not len(at.slopes)
    # The Hessian of (v w - 2)^2 + (v^2 + w^2) / 2 there is [[2 w^2 + 1, 4 v w - 4], [.., 2 v^2 + 1]].
    hessian = np.array([[2 * side**2 + 1, 4 * side**2 - 4], [4 * side**2 - 4, 2 * side**2 + 1]])
    assert at.curvature == pytest.approx(np.linalg.eigvalsh(hessian)[0], rel=1e-9)
    off = stationarity(scalar(side, 1.1 * side), (x, y), ridge)
    assert off.kind == "not stationary"
    assert off.residual > 0.01


def at_a_kink():
    """Return a network, data and a ridge with a kink at the second sample whose slope 0.25 makes it stationary.

    f(x) = v relu(w x + b) + c with v = w = 1 and b = 0 at x = 1 and x = 0, where z = 0. With r_i = (y_i - f(x_i)) / 2,
    half the derivatives of C + lambda |theta|^2 are -r_1 + lambda (for w and for v), -r_1 - s r_2 (for b), and
    -r_1 - r_2 + lambda c. They vanish for s = 1/4 if r_1 = lambda, r_2 = -4 lambda and c = -3. As r_2 < 0, the second
    output should be lower: dC/da > 0.
    """
    ridge, c = 0.1, -3.0
    y = torch.tensor([[1 + c + 2 * ridge], [c - 8 * ridge]], dtype=torch.float64)
    net = bnrank.networks.from_layers([torch.ones(1, 1)] * 2, [torch.zeros(1), torch.full((1,), c)])
    return net, bnrank.Task(torch.tensor([[1.0], [0.0]], dtype=torch.float64), y), ridge


def test_the_slope_at_a_kink_in_closed_form():
    net, task, ridge = at_a_kink()
    at = stationarity(net, task, ridge)
    assert at.residual < 1e-12
    assert at.slopes == pytest.approx([0.25], abs=1e-10)
    assert (at.layers.tolist(), at.neurons.tolist(), at.samples.tolist()) == ([1], [0], [1])
    assert at.plain > 0.1
    assert at.margin == pytest.approx(0.25)
    assert at.independent


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_the_slopes_are_the_best_of_a_fine_grid(slope):
    generator = torch.Generator().manual_seed(4)
    net = bnrank.MLP([3, 4, 4, 2], slope=slope, seed=2, dtype=torch.float64)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():  # kinks of one layer at two samples, of another at one
        for neuron, sample in ((0, 1), (2, 3)):
            net.biases[0][neuron] -= (net.layers[0](x))[sample, neuron]
        hidden = torch.nn.functional.leaky_relu(net.layers[0](x), slope)
        net.biases[1][1] -= net.layers[1](hidden)[2, 1]
    at = stationarity(net, (x, y), 0.01, kink_rtol=1e-12)
    assert len(at.slopes) == 3
    p = Problem.of(net, bnrank.Task(x, y), 0.01)
    places = (at.layers - 1, at.neurons, at.samples)

    def size(values):
        return float(np.linalg.norm(Evaluation(p, p.layers(net), (), places, np.array(values)).gradient))

    grid = [size(values) for values in itertools.product(np.linspace(slope, 1, 11), repeat=3)]
    assert min(grid) * 0.999 <= size(at.slopes) <= min(grid) * (1 + 1e-9)
    assert size(at.slopes) <= size([slope] * 3)


def test_repeated_samples_share_one_slope():
    net, task, ridge = at_a_kink()
    weights = torch.tensor([2.0, 1.0, 1.0])
    same = stationarity(net, bnrank.Task(task.x[[0, 1, 1]], task.y[[0, 1, 1]], weights=weights), ridge)
    assert same.slopes == pytest.approx([0.25], abs=1e-10)
    # Two targets far apart: their mean is what counts, although separate slopes could make the gradient zero.
    apart = task.y[[0, 1, 1]] + torch.tensor([[0.0], [2.0], [-2.0]])
    at = stationarity(net, bnrank.Task(task.x[[0, 1, 1]], apart, weights=weights), ridge)
    assert at.slopes == pytest.approx([0.25], abs=1e-10)
    wrong = task.y[[0, 1, 1]] + torch.tensor([[0.0], [3.0], [-0.5]])  # the mean pulls up: no slope in [0, 1] fits
    assert stationarity(net, bnrank.Task(task.x[[0, 1, 1]], wrong, weights=weights), ridge).residual > 1e-2


def test_a_slope_at_the_end_of_its_range_is_found_exactly():
    # The kink of the closed form with the second target such that the slope 0, that of PyTorch, is the best: r_2 = 0
    # has no effect on the gradient, and a small r_2 > 0 pulls the slope below 0.
    net, _, ridge = at_a_kink()
    c = -3.0
    y = torch.tensor([[1 + c + 2 * ridge], [c + 1e-3]], dtype=torch.float64)
    x = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    at = stationarity(net, (x, y), ridge)
    assert at.slopes.tolist() in ([0.0], [1.0])
    assert at.residual <= at.plain


def test_the_residual_is_never_above_that_of_pytorch():
    generator = torch.Generator().manual_seed(0)
    net = bnrank.MLP([3, 6, 6, 2], seed=2, dtype=torch.float64)
    x, y = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (3, 2))
    with torch.no_grad():
        for neuron in range(6):
            net.biases[0][neuron] -= (net.layers[0](x))[neuron, neuron]
        hidden = torch.nn.functional.relu(net.layers[0](x))
        for neuron in range(6):
            net.biases[1][neuron] -= net.layers[1](hidden)[neuron + 3, neuron]
    at = stationarity(net, (x, y), 0.01, kink_rtol=1e-12)
    assert len(at.slopes) == 12
    assert at.residual <= at.plain
    assert at.slopes.min() == 0.0  # bounds are attained, not approached


def test_dead_neurons_and_births():
    # One live neuron on one sample; a second, dead, could take the other sign: f = relu(w x) fits y = -1 at x = -1.
    x, y, ridge = torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [1.0]]), 0.05
    side = (2 - 2 * ridge) ** 0.5  # C = ((v w - 2)^2 + 1) / 2
    live = [torch.tensor([[side], [0.0]], dtype=torch.float64), torch.tensor([[side, 0.0]], dtype=torch.float64)]
    at = stationarity(bnrank.networks.from_layers(live), (x, y), ridge)
    assert at.residual < 1e-12
    assert at.live == (1,)
    assert at.kind == "local minimum of the live network"
    # delta at x = -1 is 2 (0 - 1) / 2 = -1, so |B| = 1 at u = -1.
    assert at.births[0].lower == pytest.approx(1 / (2 * ridge))
    assert at.births[0].incoming == pytest.approx([-1.0])
    assert at.births[0].outgoing == pytest.approx([1.0])
    enough = 0.6  # now |B| = 1 < 2 lambda: the neuron stays dead
    side = (2 - 2 * enough) ** 0.5
    with torch.no_grad():
        live = [torch.tensor([[side], [0.0]], dtype=torch.float64), torch.tensor([[side, 0.0]], dtype=torch.float64)]
    at = stationarity(bnrank.networks.from_layers(live), (x, y), enough)
    assert at.kind == "local minimum"
    assert at.births[0].upper == pytest.approx(1.0)  # the copy of the live neuron


def test_rotations_of_linear_neurons_are_not_counted_as_flat():
    # f(x) = V W x on positive samples, V = W^T, minimizes |V W - A|^2 + ridge (|V|^2 + |W|^2) for A = diag(3, 3):
    # every rotation of the two neurons that keeps them active is a minimum too.
    x, ridge = 3 + torch.eye(2, dtype=torch.float64), 0.05
    y = 3 * x
    turned = torch.tensor([[1.0, 0.2], [0.2, 1.0]], dtype=torch.float64)
    start = bnrank.networks.from_layers([1.7 * turned, 1.7 * turned.inverse()])
    done = bnrank.finish(start, (x, y), ridge, births=False, progress=False)
    at = done.stationarity
    assert at.residual < 1e-8
    assert at.live == (2,)
    assert not len(at.slopes)
    assert at.symmetries == 1
    assert at.flat == 0
    assert at.curvature > 1e-3
    assert at.kind == "local minimum"


@pytest.mark.parametrize("bias", [True, False])
def test_a_network_of_zeros_has_no_neuron_that_helps_beyond_the_first_layer(bias):
    net = bnrank.MLP([2, 3, 3, 1], bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    at = stationarity(net, (torch.eye(2), torch.tensor([[1.0], [-1.0]])), 1e-3)
    assert at.residual == 0
    assert at.live == (0, 0)
    assert at.births[0].upper == 0  # nothing leads from it to the output
    assert at.births[1].lower == 0  # nothing but a bias leads to it, and the targets have mean 0


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
def test_a_ridge_that_is_not_positive_is_refused(ridge):
    with pytest.raises(ValueError, match="ridge"):
        stationarity(scalar(1.0, 1.0), (torch.ones(1, 1), torch.ones(1, 1)), ridge)


def test_samples_at_zero_of_a_network_without_biases_are_no_kinks():
    net = bnrank.networks.from_layers([torch.tensor([[1.0]]), torch.tensor([[1.0]])])
    x, y = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.5], [0.2]])
    at = bnrank.cost.stationarity(net, (x, y), ridge=0.25)  # the sample at 0 only adds 0.2^2 / 2 to the loss
    alone = bnrank.cost.stationarity(net, (x[:1], y[:1]), ridge=0.5)
    assert (at.kind, len(at.slopes)) == ("local minimum", 0)
    assert at.loss == pytest.approx(alone.loss / 2 + 0.02)
    with_bias = bnrank.networks.from_layers([torch.tensor([[1.0]]), torch.tensor([[1.0]])], [torch.zeros(1)] * 2)
    assert len(bnrank.cost.stationarity(with_bias, (x, y), ridge=0.25).slopes) == 1


@pytest.mark.parametrize("inside", [True, False])
def test_many_slopes_are_found_without_bounds_if_they_are_inside(inside, monkeypatch):
    generator = np.random.default_rng(0)
    u, a = generator.normal(size=(5, 4)), generator.normal(size=(5, 6))
    planted = generator.uniform(0.1, 0.9, 5)
    planted[0] = 0.3 if inside else 1.4

    def remainder(values):
        return [np.einsum("k,ki,kj->ij", values - planted, u, a)]

    monkeypatch.setattr(subgradients, "ACTIVE", 4)
    if inside:
        monkeypatch.setattr(optimize, "minimize", None)
    unknowns = subgradients.Unknowns(0.0, np.full(5, 0.5), several=True)
    found, size = subgradients.minimize(remainder, lambda _: [(u, a)], unknowns)
    assert ((found >= 0) & (found <= 1)).all()
    if inside:
        np.testing.assert_allclose(found, planted, atol=1e-10)
    else:
        assert found[0] == pytest.approx(1)
        assert size == pytest.approx(subgradients.norm(remainder(found)))


@pytest.mark.parametrize("seed", range(10))
def test_of_dependent_slopes_the_nearest_ones_within_bounds_are_taken(seed):
    """The shortest move of all that solve the equations leaves the bounds by a little: the answer stays near it."""
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(4, 8))
    rows, values = rng.normal(size=(20, 4)), few @ rng.uniform(-1, 1, 8)
    shortest = np.linalg.pinv(few) @ values
    low, high = np.full(8, -2.0), np.full(8, 2.0)
    at = int(np.argmax(np.abs(shortest)))
    (high if shortest[at] > 0 else low)[at] = 0.999 * shortest[at]
    oracle = optimize.minimize(
        lambda m: m @ m,
        np.clip(shortest, low, high),
        bounds=optimize.Bounds(low, high),
        constraints=optimize.LinearConstraint(few, values, values),
        method="SLSQP",
        options={"ftol": 1e-15},
    )
    assert oracle.success
    columns = [((rows @ few).T, np.ones((8, 1)))]
    unknowns = subgradients.Unknowns(0.0, np.zeros(8), several=False)
    move = subgradients._bounded(columns, unknowns, [-(rows @ values)[:, None]], low, high)
    np.testing.assert_allclose(few @ move, values, atol=1e-10)
    np.testing.assert_allclose(move, oracle.x, atol=1e-6)


def test_rows_are_independent_where_none_is_a_combination_of_others():
    rows = np.random.default_rng(0).normal(size=(3, 5))
    assert critical_points._independent(rows)
    assert critical_points._independent(rows[:0])
    assert not critical_points._independent(np.vstack([rows, rows[0] - rows[2]]))
    assert not critical_points._independent(np.vstack([rows, rows]))
