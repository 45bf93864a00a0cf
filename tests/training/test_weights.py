"""Weights of samples, in the cost and its gradient and in a training run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.tasks import Task
from bnrank.training.ensemble import Workers
from bnrank.training.kronecker import KroneckerCurvature
from bnrank.training.objectives import MLPObjective, ModuleObjective

from .common import flat, mlp, put, random_task

KINDS = pytest.mark.parametrize("kind", [MLPObjective, ModuleObjective])
LOSSES = pytest.mark.parametrize("loss", ["mse", "cross_entropy", "logistic"])


def made(loss, n=600):
    if loss != "logistic":
        return random_task(n, 3, 2, loss)
    task = random_task(n, 3, 1)
    return Task(task.x, torch.sign(task.y), loss="logistic")


def weights_of(n):
    weights = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3
    return weights / weights.mean()


def evaluated(kind, net, task, rows, weights, batch=None):
    y = task.y if task.loss == "cross_entropy" else task.y.double()
    with Workers(2) as workers:
        objective = kind(net, task.x.double(), y, task.loss, len(rows), workers, weights)
        objective.theta.copy_(rows)
        objective.evaluate(batch)
    return objective


def slow(net, task, row, weights):
    """The sum over samples of w_i l_i / N, with its gradient, by autograd in float64."""
    net = put(net, row)
    output, y = net(task.x.double()), task.y
    losses = {
        "mse": lambda: (output - y).square().sum(1),
        "cross_entropy": lambda: -output.log_softmax(1)[torch.arange(len(y)), y],
        "logistic": lambda: (1 + (-y * output).exp()).log()[:, 0],
    }[task.loss]()
    cost = (weights * losses).sum() / len(weights)
    return cost, torch.cat([g.flatten() for g in torch.autograd.grad(cost, list(net.parameters()))])


@KINDS
@LOSSES
@pytest.mark.parametrize("batched", [False, True])
def test_cost_and_gradient_are_those_of_autograd(kind, loss, batched):
    task, weights = made(loss, 1300), weights_of(1300)
    net = mlp(3, 7, task.d_out)
    rows = 0.6 * torch.randn(2, len(flat(net)), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = torch.stack([torch.arange(0, 600), torch.arange(1299, 699, -1)]) if batched else None
    objective = evaluated(kind, net, task, rows, weights, batch)
    for i, row in enumerate(rows):
        part = slice(None) if batch is None else batch[i]
        cost, gradient = slow(net, replace(task, x=task.x[part], y=task.y[part]), row, weights[part])
        assert float(objective.cost[i]) == pytest.approx(float(cost.detach()), rel=1e-12)
        assert float((objective.gradient[i] - gradient).norm()) <= 1e-12 * float(gradient.norm())


@pytest.mark.parametrize("optimizer", ["adam+lbfgs", "adam"])
def test_training_with_integer_weights_is_training_on_repeated_samples(optimizer):
    task, times = random_task(30, 3, 2), torch.arange(30) % 4
    times[0] = 7
    weighted = replace(task, weights=times.double() / 3)
    repeated = Task(task.x.repeat_interleave(times, 0), task.y.repeat_interleave(times, 0))
    options = {"ridge": 1e-2, "steps": 260, "optimizer": optimizer, "dtype": torch.float64, "progress": False}
    first, second, plain = (bnrank.train(mlp(3, 6, 2), data, **options) for data in (weighted, repeated, task))
    losses = [float(run.summary.loss[0]) for run in (first, second, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert abs(losses[0] - losses[2]) > 0.01 * losses[2]
    x = task.x
    assert torch.allclose(first.network(0)(x), second.network(0)(x), atol=1e-3)


def test_only_ratios_of_weights_matter():
    task, weights = random_task(30, 3, 2), weights_of(30)
    runs = [
        bnrank.train(mlp(3, 6, 2), replace(task, weights=w), steps=20, progress=False)
        for w in (weights, 1024 * weights, weights * 2.0**-1000)
    ]
    assert all(torch.equal(flat(run.network(0)), flat(runs[0].network(0))) for run in runs)


def test_weights_belong_to_what_a_run_resumes(tmp_path):
    task = replace(random_task(30, 3, 2), weights=weights_of(30))
    bnrank.train(mlp(3, 6, 2), task, steps=20, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="weights"):
        bnrank.train(mlp(3, 6, 2), replace(task, weights=task.weights.flip(0)), steps=20, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="weights"):
        bnrank.train(mlp(3, 6, 2), replace(task, weights=None), steps=20, out=tmp_path, progress=False)


def test_the_curvature_is_weighted():
    """Weights 1 and 2 give the factor of the inputs of the samples once and twice."""
    net, x = mlp(3, 2), random_task(40, 3, 2).x.double()
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64).repeat(20)
    found = KroneckerCurvature(net, x, "mse", 1e-3, 0, weights / 1.5)
    twice = KroneckerCurvature(net, x.repeat_interleave(weights.long(), 0), "mse", 1e-3, 0)
    for curvature in (found, twice):
        curvature.refresh(flat(net).double(), 1)
    (u, _, _), (u2, _, _) = found.bases[0], twice.bases[0]
    assert torch.allclose((u.mT @ u2).abs(), torch.eye(4, dtype=torch.float64), atol=1e-6)


def test_other_functions_refuse_a_task_with_weights():
    task = replace(random_task(30, 3, 2), weights=weights_of(30))
    message = "^task: got a task with weights, expected none: only bnrank.train and bnrank.sweep weight samples"
    for call in (
        lambda: bnrank.flow(mlp(3, 6, 2), task, 1.0),
        lambda: bnrank.tasks.autoencoder(task),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1.0] * 5, TypeError, r"^weights: got \[1.0, .* \(list\), expected floating-point"),
        (np.ones(4), ValueError, "^weights: got 4 values, expected 5, one for each sample"),
        (np.ones((5, 1)), ValueError, r"^weights: got shape \(5, 1\), expected \(N,\)"),
        (np.array([1, 1, -1, 1, 1.0]), ValueError, "^weights: got -1, expected numbers of at least 0"),
        (np.array([1, 1, np.nan, 1, 1]), ValueError, "^weights: got NaN or infinite entries"),
        (np.zeros(5), ValueError, "^weights: got zeros only, expected at least one above 0"),
    ],
)
def test_bad_weights(weights, error, message):
    with pytest.raises(error, match=message):
        Task(torch.ones(5, 2), torch.ones(5, 1), weights=weights)


@pytest.mark.parametrize(
    ("net", "optimizer"),
    [(nn.Sequential(nn.Linear(3, 2), nn.Identity()), "lbfgs"), (mlp(3, 2), "kfac-lbfgs"), (mlp(3, 2), "lbfgs")],
)
def test_an_affine_network_reaches_the_weighted_least_squares(net, optimizer):
    """The closed form, (X^T W X)^-1 X^T W y."""
    task, weights = random_task(50, 3, 2), weights_of(50)
    options = {"steps": 200, "optimizer": optimizer, "dtype": torch.float64, "progress": False}
    run = bnrank.train(net, replace(task, weights=weights), **options)
    x = torch.cat([task.x, torch.ones(50, 1, dtype=torch.float64)], dim=1)
    best = torch.linalg.solve(x.T @ (weights[:, None] * x), x.T @ (weights[:, None] * task.y))
    assert torch.allclose(run.network(0).double()(task.x), x @ best, atol=1e-5)
