"""Tests of losses, gradients and Hessians of chains against automatic differentiation and differences."""

import itertools

import numpy as np
import pytest
import torch

import bnrank
from bnrank.measures.second_order import Evaluation, Problem, join, split
from bnrank.tasks.losses import SAMPLE_LOSSES


def problem(loss="mse", slope=0.1, *, bias=True, n=7, widths=(3, 4, 5, 4, 2), repeated=False, weighted=False):
    generator = torch.Generator().manual_seed(0)
    if loss == "logistic":
        widths = (*widths[:-1], 1)
    x = torch.randn(n, widths[0], generator=generator, dtype=torch.float64)
    if repeated:
        x[3], x[5] = x[1], x[1]
    y = {
        "mse": torch.randn(n, widths[-1], generator=generator, dtype=torch.float64),
        "cross_entropy": torch.randint(widths[-1], (n,), generator=generator),
        "logistic": torch.randn(n, 1, generator=generator, dtype=torch.float64).sign(),
    }[loss]
    y = y if loss != "cross_entropy" else torch.cat([torch.arange(widths[-1]), y[widths[-1] :]])
    weights = torch.rand(n, generator=generator, dtype=torch.float64) if weighted else None
    task = bnrank.Task(x, y, loss=loss, weights=weights)
    net = bnrank.MLP(widths, slope=slope, bias=bias, seed=1, dtype=torch.float64)
    return net, task, Problem.of(net, task, 2e-3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "logistic"])
def test_the_loss_and_its_gradient_are_those_of_autograd(loss, bias):
    net, task, p = problem(loss, bias=bias, repeated=True, weighted=True)
    at = Evaluation(p, p.layers(net))
    share = task.weights / task.weights.sum()
    exact = (share * SAMPLE_LOSSES[loss](net(task.x), task.y)).sum()
    exact = exact + p.ridge * sum(q.square().sum() for q in net.parameters())
    exact.backward()
    assert at.loss == pytest.approx(float(exact.detach()), rel=1e-13)
    parts = split(at.gradient, [layer.shape for layer in at.layers])
    for number, part in enumerate(parts):
        columns = net.widths[number]
        np.testing.assert_allclose(part[:, :columns], net.weights[number].grad, atol=1e-13)
        if bias:
            np.testing.assert_allclose(part[:, -1], net.biases[number].grad, atol=1e-13)


@pytest.mark.parametrize(
    ("loss", "slope", "bias", "repeated"),
    [
        ("mse", 0.0, True, False),
        ("mse", 0.3, False, True),
        ("cross_entropy", -0.2, True, True),
        ("logistic", 0.0, True, False),
    ],
)
def test_the_hessian_is_the_derivative_of_the_gradient(loss, slope, bias, repeated):
    net, _, p = problem(loss, slope, bias=bias, repeated=repeated)
    layers = p.layers(net)
    theta, shapes, smooth = join(layers), [layer.shape for layer in layers], [0.1, 0.2, 0.3]
    step = 1e-5
    moved = [[Evaluation(p, split(theta + s * step * e, shapes), smooth) for s in (1, -1)] for e in np.eye(len(theta))]
    numeric = np.array([(a.gradient - b.gradient) / (2 * step) for a, b in moved])
    slopes = np.array([(a.loss - b.loss) / (2 * step) for a, b in moved])
    at = Evaluation(p, layers, smooth)
    np.testing.assert_allclose(at.gradient, slopes, atol=1e-8)
    np.testing.assert_allclose(at.hessian(), numeric, atol=1e-6)


def test_the_gradients_of_preactivations_are_differences():
    net, _, p = problem(slope=0.0)
    layers = p.layers(net)
    theta, shapes = join(layers), [layer.shape for layer in layers]
    places = np.array(list(itertools.product(range(3), range(3), (0, 4)))).T
    rows = Evaluation(p, layers).preactivation_gradients(*places)
    step = 1e-6
    for e in range(len(theta)):
        ahead, behind = theta.copy(), theta.copy()
        ahead[e] += step
        behind[e] -= step
        zs = [Evaluation(p, split(t, shapes)).z for t in (ahead, behind)]
        numeric = [(zs[0][a][c, b] - zs[1][a][c, b]) / (2 * step) for a, b, c in places.T]
        np.testing.assert_allclose(rows[:, e], numeric, atol=1e-8)


def test_slopes_at_kinks_replace_the_derivative():
    net, _, p = problem(slope=0.0)
    layers = p.layers(net)
    kinks = (np.array([1]), np.array([2]), np.array([4]))
    with_slope = Evaluation(p, layers, (), kinks, np.array([0.3]))
    assert with_slope.first[1][4, 2] == 0.3
    others = Evaluation(p, layers).first[1] != with_slope.first[1]
    assert others.sum() == 1


def test_sizes_that_differ_are_refused():
    _, task, _ = problem()
    with pytest.raises(ValueError, match=r"task: got 3 inputs and 2 outputs, expected 4 inputs and 2 outputs"):
        Problem.of(bnrank.MLP([4, 5, 2]), task, 0.1)


def test_second_derivatives_are_taken_where_they_make_the_cost_convex():
    net, _, p = problem()
    layers = p.layers(net)
    at = Evaluation(p, layers, np.full(len(layers) - 1, 0.1))
    every, convex, none = (at.hessian(bends) for bends in ("all", "convex", "none"))
    assert np.linalg.eigvalsh(convex - every)[0] > -1e-12
    assert np.linalg.eigvalsh(convex - none)[0] > -1e-12
    assert np.abs(convex - every).max() > 1e-6
    assert np.abs(convex - none).max() > 1e-6
