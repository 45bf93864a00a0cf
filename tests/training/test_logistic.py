"""The logistic loss, against formulas, automatic differentiation, finite differences and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.tasks import Task
from bnrank.tasks.losses import cost_and_gradient, gradient_at_zero
from bnrank.training import Adam, GradientDescent, SkipPlateau
from bnrank.training.ensemble import Workers
from bnrank.training.gradient_flow.fields import LIPSCHITZ, AutogradCost, HandCost
from bnrank.training.kronecker import KroneckerCurvature
from bnrank.training.objectives import MLPObjective, ModuleObjective
from training.common import assert_same_run, flat, mlp, put


def labeled(n=40, d=3, seed=0):
    """Labels that no plane separates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sign(x[:, 0] + torch.randn(n, generator=generator, dtype=torch.float64))
    return Task(x, y, loss="logistic")


def cost_of(net, task, batch=None):
    """C straight from its definition."""
    x, y = (task.x, task.y) if batch is None else (task.x[batch], task.y[batch])
    return torch.log(1 + torch.exp(-y * net(x))).mean()


def oracle(net, task, row, batch=None):
    net = put(net, row)
    cost = cost_of(net, task, batch)
    gradients = torch.autograd.grad(cost, list(net.parameters()))
    return cost.detach(), torch.cat([g.flatten() for g in gradients])


def module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


# the loss of given outputs


@settings(deadline=None, derandomize=True)
@given(
    outputs=st.lists(st.floats(-30, 30), min_size=1, max_size=12),
    signs=st.integers(0, 2**12 - 1),
    members=st.integers(1, 3),
)
def test_cost_and_gradient_are_those_of_the_definition(outputs, signs, members):
    n = len(outputs)
    f = torch.tensor(outputs, dtype=torch.float64).view(1, n, 1) * torch.arange(1, members + 1).view(-1, 1, 1) / members
    y = torch.tensor([[1.0 if signs >> i & 1 else -1.0] for i in range(n)], dtype=torch.float64)
    leaf = f.clone().requires_grad_()
    expected = torch.log(1 + torch.exp(-y * leaf)).sum(dim=(1, 2)) / n
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    given_ = f.clone()
    cost = cost_and_gradient("logistic", given_, y, n)
    torch.testing.assert_close(cost, expected.detach(), rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(given_, gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [50.0, 1e3, 1e6, 1e30])
def test_extreme_margins_neither_overflow_nor_lose_what_is_left(dtype, margin):
    y = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=dtype)
    f = (y * torch.tensor([[margin], [margin], [-margin], [-margin]], dtype=dtype)).unsqueeze(0)
    right, wrong = f[:, :2].clone(), f[:, 2:].clone()
    cost = cost_and_gradient("logistic", right, y[:2], 2)
    assert cost.item() == pytest.approx(math.exp(-margin) if margin < 700 else 0.0, rel=1e-5, abs=1e-300)
    np.testing.assert_allclose(right.flatten().double(), [-cost.item() / 2, cost.item() / 2], rtol=1e-5, atol=1e-300)
    cost = cost_and_gradient("logistic", wrong, y[2:], 2)
    assert cost.item() == pytest.approx(margin, rel=1e-6)
    assert wrong.flatten().tolist() == [-0.5, 0.5]


def test_the_gradient_at_zero_is_minus_y_over_two_n():
    y = torch.tensor([[1.0], [-1.0], [1.0]])
    np.testing.assert_allclose(gradient_at_zero("logistic", y), -y / 6)


# the cost of networks


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    hidden=st.lists(st.integers(1, 5), max_size=2),
    slope=st.sampled_from([0.0, 0.3, -0.5]),
    bias=st.booleans(),
    members=st.integers(1, 3),
    batch=st.sampled_from([None, 1, 7]),
)
def test_objectives_agree_with_autograd(hidden, slope, bias, members, batch):
    task, net = labeled(30), bnrank.MLP([3, *hidden, 1], slope, bias)
    rows = torch.stack([flat(bnrank.MLP([3, *hidden, 1], slope, bias, seed=i)).double() for i in range(members)])
    numbers = None if batch is None else torch.randint(30, (members, batch), generator=torch.Generator().manual_seed(1))
    with Workers(2) as workers:
        for kind in (MLPObjective, ModuleObjective):
            objective = kind(net, task.x, task.y, "logistic", members, workers)
            objective.theta.copy_(rows)
            cost = objective.evaluate(numbers)
            for i in range(members):
                value, gradient = oracle(net, task, rows[i], None if batch is None else numbers[i])
                assert cost[i].item() == pytest.approx(value.item(), rel=1e-12)
                torch.testing.assert_close(objective.gradient[i], gradient, rtol=1e-10, atol=1e-14)


def test_blocks_of_samples_add_up():
    task, net = labeled(2500), mlp(3, 4, 1)
    value, gradient = oracle(net, task, flat(net))
    with Workers(2) as workers:
        for kind in (MLPObjective, ModuleObjective):
            objective = kind(net, task.x, task.y, "logistic", 1, workers)
            objective.theta.copy_(flat(net))
            assert objective.evaluate().item() == pytest.approx(value.item(), rel=1e-12)
            torch.testing.assert_close(objective.gradient[0], gradient, rtol=1e-10, atol=1e-14)


def test_costs_of_the_flow_agree_with_finite_differences():
    task, net = labeled(), mlp(3, 4, 1).double()
    theta = flat(net)
    directions = torch.randn(5, len(theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with Workers(1) as workers:
        for cost in (
            HandCost(net, task.x, task.y, "logistic", workers),
            AutogradCost(net, task.x, task.y, "logistic", torch.float64, workers),
        ):
            value, gradient = cost.evaluate(theta.clone())
            gradient = gradient.clone()
            assert value == pytest.approx(cost_of(net, task).item(), rel=1e-12)
            for direction in directions:
                ends = [cost.evaluate(theta + h * direction)[0] for h in (1e-5, -1e-5)]
                assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float(gradient @ direction), rel=1e-6)
            at = cost.at_outputs(net(task.x).detach())
            expected = -task.y / (1 + torch.exp(task.y * net(task.x).detach())) / task.n
            torch.testing.assert_close(at, expected, rtol=1e-12, atol=1e-15)


def test_the_random_vectors_of_k_fac_have_the_hessian_as_covariance():
    task, net = labeled(4), mlp(3, 2, 1)
    metric = KroneckerCurvature(net, task.x, "logistic", 1e-3, seed=0)
    outputs = torch.tensor([[0.0], [1.0], [-3.0], [800.0]], dtype=torch.float64)
    draws = torch.stack([metric._random_outputs(outputs.clone(), count) for count in range(4000)])
    p = 1 / (1 + torch.exp(-outputs))
    np.testing.assert_allclose(draws.square().mean(0), p * (1 - p), rtol=0.1)
    assert bool(torch.isfinite(draws).all())


# training


@pytest.mark.parametrize("optimizer", ["kfac-lbfgs", "lbfgs"])
def test_a_linear_classifier_is_that_of_scikit_learn(optimizer):
    from sklearn.linear_model import LogisticRegression

    task, ridge = labeled(80), 1e-2
    found = LogisticRegression(C=1 / (2 * ridge * task.n), fit_intercept=False, tol=1e-12, max_iter=1000)
    found.fit(task.x.numpy(), task.y.numpy()[:, 0])
    net = bnrank.LinearNetwork([3, 1])
    run = bnrank.train(net, task, ridge=ridge, steps=60, optimizer=optimizer, dtype=torch.float64, progress=False)
    np.testing.assert_allclose(run.parameters.numpy(), found.coef_, rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["gd", "adam", "lbfgs", "kfac-lbfgs", "auto"])
def test_a_deep_linear_network_comes_to_its_minimum(optimizer):
    """With ridge lambda on two layers the map is that of the penalty 2 lambda ||w|| on w = W_2 W_1 (T2)."""
    task, ridge = labeled(80), 2e-2
    steps, lr = {"gd": (6000, 0.2), "adam": (3000, 1e-2)}.get(optimizer, (500, None))
    kind = GradientDescent if optimizer == "gd" else Adam
    net = bnrank.LinearNetwork([3, 4, 1])
    settings = {"optimizer": kind(lr) if lr else optimizer, "dtype": torch.float64, "progress": False, "record": 500}
    run = bnrank.train(net, task, ridge=ridge, steps=steps, **settings)
    w1, w2 = (p.detach() for p in run.network().weights)
    w = (w2 @ w1).requires_grad_()
    cost = torch.log(1 + torch.exp(-task.y * (task.x @ w.T))).mean() + 2 * ridge * w.norm()
    (gradient,) = torch.autograd.grad(cost, w)
    assert float(gradient.norm()) < 1e-4
    assert float(run.summary.loss[0]) == pytest.approx(cost.item(), rel=1e-6)


def test_members_are_those_of_solo_runs_and_runs_go_on(tmp_path):
    task = labeled()
    settings = {"steps": 40, "progress": False, "record": 10}
    run = bnrank.train(mlp(3, 6, 1), task, seed=[4, 5], ridge=[1e-3, 1e-2], **settings)
    for i in range(2):
        alone = bnrank.train(mlp(3, 6, 1), task, seed=4 + i, ridge=[1e-3, 1e-2][i], **settings)
        assert_same_run(run, alone, [i], [0])
    short = settings | {"steps": 20}
    bnrank.train(mlp(3, 6, 1), task, seed=[4, 5], ridge=[1e-3, 1e-2], out=tmp_path, **short)
    again = bnrank.train(mlp(3, 6, 1), task, seed=[4, 5], ridge=[1e-3, 1e-2], out=tmp_path, **settings)
    assert_same_run(again, run)
    assert bnrank.Run.open(tmp_path).settings.loss == "logistic"
    for i in range(2):
        own = cost_of(run.network(i).double(), task).item()
        assert float(run.summary.cost[i]) == pytest.approx(own, rel=1e-4)


def test_a_sweep_takes_it():
    grid = bnrank.sweep(
        labeled(), depths=[2], steps=10, grid={"width": [5], "size": [20, 40]}, processes=1, progress=False
    )
    assert grid.status.values.flatten().tolist() == ["finished"] * 2


# gradient flow


@pytest.mark.parametrize("kind", ["mlp", "module", "skip"])
def test_a_flow_by_name_is_the_one_of_the_function(kind):
    task = labeled()
    net = module().double() if kind == "module" else mlp(3, 4, 4, 1, bias=False, init=0.4, seed=1)
    settings = {"t_end": 40.0, "record": 10}
    settings |= {"plateau": SkipPlateau(handover_rtol=0.1)} if kind == "skip" else {}
    named = bnrank.flow(net, (task.x, task.y[:, 0].int(), "logistic"), **settings)

    def loss(f, y):
        return torch.log1p(torch.exp(-y * f)).mean()

    other = bnrank.flow(net, (task.x, task.y, loss), **settings)
    assert named.status == "finished"
    assert named.loss[-1] < 0.6
    np.testing.assert_allclose(named.loss[-1], other.loss[-1], rtol=1e-5)
    for p, q in zip(named.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@settings(deadline=None, derandomize=True)
@given(scale=st.floats(1e-6, 10), seed=st.integers(0, 100))
def test_the_criterion_of_a_skipped_plateau_is_bounded_by_the_outputs(scale, seed):
    """||grad C(Y) - G||_F <= ||Y||_F / (4 N), which is attained in the limit Y -> 0."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(9, 1, generator=generator).sign().double()
    outputs = scale * torch.randn(1, 9, 1, generator=generator, dtype=torch.float64)
    at = outputs.clone()
    cost_and_gradient("logistic", at, y, 9)
    ratio = float((at[0] - gradient_at_zero("logistic", y)).norm() / (outputs.norm() * LIPSCHITZ["logistic"] / 9))
    assert ratio <= 1 + 1e-9
    assert ratio > 0.999 or scale > 0.02


def test_a_skipped_plateau_hands_over_where_the_bound_says():
    task = bnrank.tasks.separable(40, 3, seed=1)
    net = mlp(3, 4, 4, 1, bias=False, init=1e-8, slope=0.5, seed=1)
    result = bnrank.flow(net, (task.x, task.y, "logistic"), plateau=SkipPlateau(t_after=2000.0), record=10)
    assert result.status == "finished"
    assert 0.5e-4 < result.handover.criterion <= 1e-4
    assert result.loss[0] == pytest.approx(math.log(2), rel=1e-9)
    assert result.loss[-1] < 0.1


def test_the_loss_of_separable_data_falls_like_one_over_t():
    """One weight, one sample: dw/dt = 1 / (1 + e^w), so that w + e^w = t + 1 from w = 0."""
    net = bnrank.networks.from_layers([torch.zeros(1, 1)], slope=1.0)
    one = torch.ones(1, 1, dtype=torch.float64)
    result = bnrank.flow(net, (one, [[1.0]] and one, "logistic"), 1e4)
    w = result.network(one).item()
    assert w + math.exp(w) == pytest.approx(1e4 + 1, rel=1e-4)
    assert result.loss[-1] == pytest.approx(math.log1p(math.exp(-w)), rel=1e-9)


# bad input

X = torch.ones(4, 2)
LABELS = [
    (torch.tensor([0, 1, 1, 0]), ValueError, r"got labels 0, expected -1 and \+1 only.*2 y - 1"),
    (torch.tensor([0.5, 1, -1, 1]), ValueError, r"got labels 0.5, expected -1 and \+1 only, for 'logistic'$"),
    (torch.tensor([math.nan, 1, -1, 1]), ValueError, "got labels nan"),
    (torch.ones(4, 2), ValueError, r"got shape \(4, 2\), expected labels \(N,\) or \(N, 1\)"),
    (torch.ones(4, dtype=torch.bool), TypeError, r"bool, expected numbers -1 and \+1"),
    (torch.ones(0), ValueError, "got shape"),
    ([1, -1, 1, 1], TypeError, "expected a torch.Tensor or numpy.ndarray"),
    (np.array(["a", "b", "c", "d"]), TypeError, "expected a torch.Tensor or numpy.ndarray"),
    (torch.ones(3), ValueError, "got 4 and 3 samples"),
]


@pytest.mark.parametrize(("y", "error", "message"), LABELS)
def test_labels_that_are_none_are_refused(y, error, message):
    with pytest.raises(error, match=message):
        Task(X, y, loss="logistic")
    if message != "got 4 and 3 samples":
        with pytest.raises(error, match=message):
            Task(X, torch.ones(4), X, y, loss="logistic")


FINE = [torch.tensor([1, -1, 1, -1]), np.array([[1.0], [-1], [1], [-1]]), torch.ones(4, 1).half()]


@pytest.mark.parametrize("y", FINE)
def test_labels_become_a_column_in_the_precision_of_x(y):
    task = Task(X, y, X[:2], y[:2], loss="logistic")
    assert (task.y.shape, task.y.dtype, task.d_out, task.classes) == ((4, 1), torch.float32, 1, None)
    assert task.y_test.shape == (2, 1)
    assert task.y.flatten().tolist() == [float(v) for v in np.asarray(y).flatten()]


def test_networks_with_several_outputs_are_refused():
    task = labeled()
    with pytest.raises(ValueError, match=r"net: got widths \[3, 4, 2\].* 1 outputs.*logistic"):
        bnrank.train(mlp(3, 4, 2), task, progress=False)
    with pytest.raises(ValueError, match=r"net: gives outputs of shape \(2,\), expected \(1,\)"):
        bnrank.flow(mlp(3, 4, 2), (task.x, task.y, "logistic"), 1.0)
    with pytest.raises(ValueError, match="y: got labels 0"):
        bnrank.flow(mlp(3, 4, 1), (task.x, torch.zeros(40), "logistic"), 1.0)


def test_lbfgs_ends_where_gradients_underflow():
    task = bnrank.tasks.separable(n=60, d=6, margin=0.3)
    run = bnrank.train(bnrank.MLP([6, 12, 8, 1], seed=0), task, steps=100, optimizer="lbfgs", progress=False)
    assert float(run.summary.cost[0]) < 1e-20


def test_a_members_cost_and_gradient_do_not_depend_on_the_others():
    """To the last bit: the vectorized functions round otherwise at the end of what they are given."""
    output, target = torch.randn(3, 37, 1, generator=torch.Generator().manual_seed(0)), torch.ones(37, 1)
    together = output.clone()
    costs = cost_and_gradient("logistic", together, target, 37)
    for i in range(3):
        alone = output[i : i + 1].clone()
        assert torch.equal(cost_and_gradient("logistic", alone, target, 37), costs[i : i + 1])
        assert torch.equal(alone, together[i : i + 1])
