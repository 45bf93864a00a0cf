"""L-BFGS alone and with Kronecker-factored curvature: closed forms, SciPy, and dense matrices."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import bnrank
from bnrank.tasks import Task
from bnrank.training import kronecker
from bnrank.training.ensemble import Workers
from bnrank.training.kronecker import KroneckerCurvature
from bnrank.training.objectives import MLPObjective
from bnrank.training.quasi_newton import LBFGS

from .common import cost_of, flat, mlp, put, random_task, trained

FLOAT64 = {"dtype": torch.float64, "progress": False}


def ridge_regression(task, ridge):
    """argmin (1/N) ||X W^T + b - Y||^2 + ridge (||W||^2 + ||b||^2), as a row of parameters."""
    x = torch.cat([task.x, torch.ones(task.n, 1, dtype=torch.float64)], dim=1)
    normal = x.T @ x / task.n + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    solution = torch.linalg.solve(normal, x.T @ task.y / task.n)
    return torch.cat([solution[:-1].T.flatten(), solution[-1]])


@pytest.mark.parametrize(("optimizer", "steps"), [("lbfgs", 60), ("kfac-lbfgs", 40)])
@pytest.mark.parametrize("ridges", [[1e-3, 0.1, 2.0]])
def test_ridge_regression_is_solved(optimizer, steps, ridges):
    task = random_task(80, d_in=6, d_out=3)
    run = trained(mlp(6, 3, init=0.5), task, ridge=ridges, optimizer=optimizer, steps=steps, **FLOAT64)
    for i, ridge in enumerate(ridges):
        expected = ridge_regression(task, ridge)
        assert float((run.parameters[i] - expected).norm() / expected.norm()) < 1e-7
    assert (run.summary.gradient_norm < 1e-6).all()


@pytest.mark.parametrize("optimizer", ["lbfgs", "kfac-lbfgs"])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_accepted_loss_never_rises(optimizer, loss, dtype):
    task = random_task(60, loss=loss)
    run = trained(
        mlp(3, 12, 12, 12, 2, seed=1),
        task,
        ridge=[1e-4, 1e-2],
        optimizer=optimizer,
        steps=150,
        every=1,
        dtype=dtype,
        progress=False,
    )
    losses = run.history.loss.values
    rounding = 8 * torch.finfo(dtype).eps * np.abs(losses[:, :-1])
    assert (np.diff(losses, axis=1) <= rounding).all()
    assert (losses[:, -1] < 0.9 * losses[:, 0]).all()


def scipy_loss(net, task, ridge, evaluations):
    """What SciPy's L-BFGS-B reaches with so many evaluations of the same loss."""
    with Workers(1) as workers:
        objective = MLPObjective(net, task.x, task.y, "mse", 1, workers)

        def loss(row):
            objective.theta.copy_(torch.from_numpy(row))
            cost = float(objective.evaluate())
            return cost + ridge * row @ row, (objective.gradient[0] + 2 * ridge * objective.theta[0]).numpy().copy()

        start = flat(net).double().numpy()
        return minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxfun": evaluations}).fun


@pytest.mark.parametrize(("optimizer", "mean", "worst"), [("lbfgs", 1.1, 1.6), ("kfac-lbfgs", 0.6, 0.9)])
def test_not_worse_than_scipy(optimizer, mean, worst):
    ratios = []
    for seed in range(8):
        task, net = random_task(60, seed=seed), mlp(3, 12, 12, 12, 2, seed=seed)
        run = trained(net, task, ridge=1e-3, optimizer=optimizer, steps=200, **FLOAT64)
        ratios.append(float(run.summary.loss[0]) / scipy_loss(net, task, 1e-3, 200))
    assert math.exp(np.mean(np.log(ratios))) < mean
    assert max(ratios) < worst


def test_a_module_is_trained_by_lbfgs():
    task = random_task(60)
    net = nn.Sequential(nn.Linear(3, 2))
    run = trained(net, task, ridge=0.1, steps=40, optimizer="lbfgs", **FLOAT64)
    torch.testing.assert_close(run.parameters[0], ridge_regression(task, 0.1), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("optimizer", ["lbfgs", "kfac-lbfgs"])
def test_a_member_at_a_minimum_is_stalled(optimizer):
    x = random_task().x
    task = Task(x, torch.zeros(len(x), 2, dtype=torch.float64))  # theta = 0 is the minimum
    run = trained(mlp(3, 4, 2), task, init=[0.0, 0.5], optimizer=optimizer, steps=3, every=1, **FLOAT64)
    assert run.summary.status.values.tolist() == ["stalled", "finished"]
    assert run.summary.steps.values.tolist() == [0, 3]


class Uphill:
    """(1/2) ||theta||^2 with a gradient of the wrong sign: no line search along it finds descent."""

    def __init__(self):
        self.theta = torch.ones(1, 3, dtype=torch.float64)
        self.gradient, self.cost = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        self.members, self.size, self.workers = 1, 3, Workers(1)

    def evaluate(self):
        self.gradient.copy_(-self.theta)
        self.cost.copy_(self.theta.square().sum(1) / 2)


class Identity:
    def __init__(self):
        self.cautions = []

    def refresh(self, row, count, caution):
        self.cautions.append(caution)

    def solve(self, row):
        return row.clone()


def test_a_search_without_descent_ends_where_it_began():
    for metric in (None, Identity()):
        objective = Uphill()
        optimizer = LBFGS(objective, torch.zeros(1, dtype=torch.float64), metrics=[metric] if metric else None)
        for step in range(200):
            objective.evaluate()
            optimizer.digest()
            if bool(optimizer.stalled):
                break
            optimizer.move(step)
        assert bool(optimizer.stalled)
        assert torch.equal(optimizer.point, torch.ones(1, 3, dtype=torch.float64))
        assert float(optimizer.statistics()[0]) == 1.5
        optimizer.move(step)
        assert torch.equal(objective.theta, torch.ones(1, 3, dtype=torch.float64))
        if metric:
            assert metric.cautions == list(range(7))  # ever closer to the plain gradient


@pytest.mark.parametrize("name", ["lbfgs", "kfac-lbfgs"])
def test_a_warm_start_is_adam_and_then_lbfgs(name):
    task, net = random_task(30), mlp(3, 6, 6, 2)
    arguments = {"ridge": 1e-3, "progress": False}
    adam = trained(net, task, optimizer="adam", lr=3e-3, steps=200, **arguments)
    lbfgs = trained(adam.network(), task, optimizer=name, steps=30, **arguments)
    both = trained(net, task, optimizer=f"adam+{name}", steps=230, **arguments)
    assert torch.equal(both.parameters, lbfgs.parameters)
    assert torch.equal(trained(net, task, optimizer=f"adam+{name}", steps=200, **arguments).parameters, adam.parameters)


def test_a_pair_that_is_refused_leaves_the_history_alone():
    """The slot of the oldest pair must keep its s and y together with its rho."""
    net, task = mlp(3, 4, 2), random_task(20)
    with Workers(1) as workers:
        objective = MLPObjective(net, task.x, task.y, "mse", 1, workers)
        objective.theta.copy_(flat(net))
        optimizer = LBFGS(objective, torch.tensor([1e-2], dtype=torch.float64), memory=3)
        for step in range(30):
            objective.evaluate()
            optimizer.digest()
            optimizer.move(step)
    search = optimizer.searches[0]
    assert search.pairs > 3
    search._remember(search.x + 1.0, search.g - 1.0)  # negative curvature
    for s, y, rho in zip(search.s, search.y, search.rho, strict=True):
        assert float(rho * torch.dot(s, y)) == pytest.approx(1.0, rel=1e-12)


def dense_curvature(net, task, row, ridge, curvature, count, caution):
    """Blocks A (x) B + (2 ridge + damping) I, from per-sample Jacobians and the same random vectors."""
    net = put(net, row)
    weights = list(zip(net.weights, net.biases or [None] * net.depth, strict=True))
    activations, values = [], task.x
    inputs = []
    for layer, (weight, bias) in enumerate(weights):
        inputs.append(values)
        values = values @ weight.T + (0 if bias is None else bias)
        values.retain_grad()
        activations.append(values)
        if layer < net.depth - 1:
            values = nn.functional.leaky_relu(values, net.slope)
    vectors = curvature._random_outputs(values.detach(), count)
    (values * vectors).sum().backward()
    blocks = []
    for a, z in zip(inputs, activations, strict=True):
        a, b = a.detach(), z.grad
        if net.biases:
            a = torch.cat([a, torch.ones(len(a), 1, dtype=torch.float64)], dim=1)
        A, B = a.T @ a / len(a), b.T @ b / len(a)
        share = max(kronecker.RELATIVE * kronecker.DECAY**count, kronecker.FLOOR)
        mean = float(A.trace() * B.trace()) / (len(A) * len(B))
        damping = (2 * ridge * kronecker.DAMPING + share * mean + 1e-12) * 10**caution
        blocks.append(torch.kron(B, A) + (2 * ridge + damping) * torch.eye(len(A) * len(B), dtype=torch.float64))
    return blocks


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.4])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize(("count", "caution"), [(1, 0), (9, 2)])
def test_kronecker_solve_against_dense_matrices(bias, slope, loss, count, caution):
    net, task, ridge = mlp(3, 5, 5, 5, 2, slope=slope, bias=bias, seed=2), random_task(50, loss=loss), 1e-3
    row = flat(net).double() + 0.05
    curvature = KroneckerCurvature(net, task.x, loss, ridge, seed=7)
    curvature.refresh(row, count, caution)
    vector = torch.randn(len(row), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = curvature.solve(torch.stack([torch.ones_like(vector), vector]))
    solved = put(net, both[1])
    torch.testing.assert_close(curvature.solve(vector), both[1])
    elsewhere = torch.empty_like(both)  # as on other devices
    curvature._solve_on_device(torch.stack([torch.ones_like(vector), vector]), elsewhere)
    torch.testing.assert_close(elsewhere, both, rtol=1e-10, atol=1e-12)
    right = put(net, vector)
    for layer, block in enumerate(dense_curvature(net, task, row, ridge, curvature, count, caution)):

        def joined(n, layer=layer):
            w = n.weights[layer].detach()
            return torch.cat([w, n.biases[layer].detach()[:, None]], dim=1) if bias else w

        expected = torch.linalg.solve(block, joined(right).flatten())
        torch.testing.assert_close(joined(solved).flatten(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_kronecker_curvature_of_one_layer_is_the_hessian(loss):
    """For a linear network the Gauss-Newton matrix is the Hessian; one random vector per sample estimates it."""
    task, ridge = random_task(1000, d_in=4, d_out=3, loss=loss), 1e-6
    net = mlp(4, 3, bias=False, init=0.05, dtype=torch.float64)
    curvature = KroneckerCurvature(net, task.x, loss, ridge, seed=0)
    curvature.refresh(flat(net), count=30)
    inverse = torch.stack([curvature.solve(unit) for unit in torch.eye(12, dtype=torch.float64)])

    def cost(row):
        output = task.x @ row.view(3, 4).T
        if loss == "mse":
            return (output - task.y).square().sum() / task.n
        return nn.functional.cross_entropy(output, task.y)

    hessian = torch.autograd.functional.hessian(cost, flat(net))
    estimate = torch.linalg.inv(inverse)
    assert float((estimate - hessian).norm() / hessian.norm()) < 0.12
    assert float(cost(flat(net))) == pytest.approx(float(cost_of(net, task).detach()))


@pytest.mark.parametrize("seed", [2**45, 2**64 - 1])
def test_seeds_of_64_bits_reach_the_curvature(seed):
    run = bnrank.train(mlp(3, 5, 2), random_task(20), seed=seed, optimizer="kfac-lbfgs", steps=3, progress=False)
    assert np.isfinite(run.summary.loss.values).all()


def test_curvature_of_a_diverging_member_does_not_fail():
    net = mlp(3, 5, 2)
    curvature = KroneckerCurvature(net, random_task(20).x.float(), "mse", 1e-3, seed=0)
    for value in (math.nan, math.inf, 1e30):
        row = torch.full((len(flat(net)),), value)
        curvature.refresh(row, 1)
        assert torch.isfinite(curvature.solve(torch.ones_like(row))).all()
