import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import bnrank
from bnrank.networks import LinearNetwork
from bnrank.theory.cost import least_linear_loss, linear_tradeoff, solved_tradeoff
from bnrank.theory.facts import Facts
from bnrank.theory.statements import regression
from bnrank.theory.verdicts import HOLDS, NOT_APPLICABLE, VIOLATED
from helpers import normal

RIDGE = 0.02


def white(n, d, seed=0):
    """n samples with X^T X / n = I."""
    return torch.linalg.qr(normal(n, d, seed=seed))[0] * n**0.5


def problem(seed, n=12, d=3, out=4):
    x = white(n, d, seed)
    return x, x @ normal(out, d, seed=seed + 50).T + 0.3 * normal(n, out, seed=seed + 90)


def objective(a, x, y, k, ridge=RIDGE):
    values = np.linalg.svd(a, compute_uv=False)[:k]
    return ((x @ a.T - y) ** 2).sum() / len(x) + 2 * ridge * np.log(values).sum()


@pytest.mark.parametrize("seed", range(3))
def test_white_inputs_against_a_search_over_factors(seed):
    x, y = (v.numpy() for v in problem(seed, d=2, out=3))
    found = linear_tradeoff(x, y, RIDGE)
    assert found.exact
    assert found.ranks == (0, 1, 2)
    assert found.costs[0] == pytest.approx((y**2).sum() / len(y))
    for k in (1, 2):
        g, ends = np.random.default_rng(seed), []

        def matrix(theta, k=k):
            return np.outer(theta[:3], theta[3:]) if k == 1 else theta.reshape(3, 2)

        def value(theta, k=k, matrix=matrix):
            return objective(matrix(theta), x, y, k)

        for _ in range(8):  # Nelder-Mead over maps of rank k, without derivatives, from large random ones
            options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-9, "fatol": 1e-12, "adaptive": True}
            end = minimize(value, 2 * g.normal(size=5 if k == 1 else 6), method="Nelder-Mead", options=options)
            if np.linalg.svd(matrix(end.x), compute_uv=False)[k - 1] > 1e-3:
                ends.append(end.fun)
        assert found.costs[k] + RIDGE * found.corrections[k] == pytest.approx(min(ends), abs=1e-5)
        a = found.maps[k].numpy()
        assert np.linalg.matrix_rank(a) == k
        assert objective(a, x, y, k) == pytest.approx(found.costs[k] + RIDGE * found.corrections[k])


@pytest.mark.parametrize("seed", range(3))
def test_other_inputs_are_stationary_and_below_other_starts(seed):
    x, y = normal(15, 3, seed=seed), normal(15, 3, seed=seed + 1)
    y = x @ normal(3, 3, seed=seed + 2).T + 0.1 * y
    found = linear_tradeoff(x, y, 0.003)
    assert not found.exact
    x, y = x.numpy(), y.numpy()
    for k in range(1, 4):
        a = found.maps[k]
        if a is None:
            assert found.corrections[k] == math.inf
            continue
        a, value = a.numpy(), found.costs[k] + 0.003 * found.corrections[k]
        assert objective(a, x, y, k, 0.003) == pytest.approx(value)
        s = np.linalg.svd(a, compute_uv=False)
        g = np.random.default_rng(seed)
        for _ in range(20):  # a local minimum among maps of rank k
            step = 1e-2 * s[k - 1] * g.normal(size=a.shape)
            near = np.linalg.svd(a + step)
            near = (near[0][:, :k] * near[1][:k]) @ near[2][:k]
            assert objective(near, x, y, k, 0.003) >= value - 1e-12


def test_the_numerical_search_agrees_with_the_closed_form():
    x, y = problem(1)
    exact = linear_tradeoff(x, y, RIDGE)
    stretched = x * torch.tensor([1.0, 1.0, 1 + 1e-7])
    searched = linear_tradeoff(stretched, y, RIDGE)
    assert (exact.exact, searched.exact) == (True, False)
    assert searched.losses(10) == pytest.approx(exact.losses(10), abs=1e-5)


def test_small_directions_have_no_local_minimum():
    x = white(8, 2)
    y = x @ torch.diag(torch.tensor([2.0, 0.1], dtype=torch.float64))  # 0.01 < 4 lambda
    found = linear_tradeoff(x, y, RIDGE)
    assert found.corrections[2] == math.inf
    assert found.losses(3)[2] == math.inf
    zero = linear_tradeoff(x, 0 * y, RIDGE)
    assert (zero.ranks, zero.loss(5), zero.rank(5)) == ((0,), 0.0, 0)
    one = linear_tradeoff(x[:1], y[:1], RIDGE)
    assert one.ranks == (0, 1)


def test_the_rank_falls_with_depth():
    x, y = problem(2)
    found = linear_tradeoff(x, y, RIDGE)
    ranks = [found.rank(depth) for depth in (2, 10, 50, 250, 1250)]
    assert ranks == sorted(ranks, reverse=True)
    assert (ranks[0], ranks[-1]) == (3, 0)


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 20, 200])
def test_the_least_loss_of_linear_networks(depth):
    x, y = problem(3, d=2, out=2)
    found = least_linear_loss(x, y, RIDGE, depth)
    least = torch.linalg.lstsq(x, y).solution.T
    rest = float(((x @ least.T - y) ** 2).sum()) / len(x)
    grid, values = torch.linspace(0, 4, 400001, dtype=torch.float64), torch.linalg.svdvals(least)
    scalars = [float(((grid - m) ** 2 + RIDGE * depth * grid ** (2 / depth)).min()) for m in values]
    assert found == pytest.approx(rest + sum(scalars), abs=1e-7)
    if depth >= 20:  # the tradeoff is the expansion in 1 / L of this minimum; small m_i may remain at small depth
        tradeoff = linear_tradeoff(x, y, RIDGE)
        assert 0 <= found - tradeoff.loss(depth) < 20 * RIDGE / depth


def test_trained_linear_networks_reach_the_least_loss():
    x, y = problem(4, d=2, out=2)
    run = bnrank.train(
        LinearNetwork([2, 2, 2, 2], dtype=torch.float64),
        bnrank.Task(x, y),
        ridge=RIDGE,
        steps=600,
        seed=[0, 1, 2, 3],
        dtype=torch.float64,
        progress=False,
    )
    facts = [Facts(run.network(i), x, y, RIDGE) for i in range(4)]
    losses = [f.data_loss + RIDGE * f.parameter_norm for f in facts]
    assert min(losses) == pytest.approx(least_linear_loss(x, y, RIDGE, 3), rel=1e-5)
    name = "least loss of linear networks"
    statement = next(s for s in vars(regression).values() if getattr(s, "name", "") == name)
    best = facts[int(np.argmin(losses))]
    verdict = statement(best)
    assert verdict.status == HOLDS
    assert "least at k = 2" in verdict.note
    assert statement(best.altered(parameter_norm=best.parameter_norm - 0.01)).status == VIOLATED
    deep = bnrank.MLP([2, 3, 2], dtype=torch.float64)
    assert statement(Facts(deep, x, y, RIDGE)).status == NOT_APPLICABLE
    assert statement(Facts(run.network(0), x, y)).status == NOT_APPLICABLE


def test_the_bound_holds_for_inputs_that_are_not_white():
    x, y = normal(10, 3), normal(10, 2, seed=1)
    for seed in range(20):
        a = normal(2, 3, seed=seed + 5) * 10 ** (seed / 10 - 1)
        loss = float(((x @ a.T - y) ** 2).sum()) / 10 + RIDGE * bnrank.cost.linear(a, 5)
        assert least_linear_loss(x, y, RIDGE, 5) <= loss


def test_interpolants_on_small_data():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    y = x * torch.tensor([2.0, 0.5], dtype=torch.float64)
    found = solved_tradeoff(x, y, 0.002, [3, 4, 6], width=4, starts=2, steps=50, polish=10)
    assert found.ranks == (0, 1, 2)
    assert found.costs[2] == pytest.approx(0, abs=1e-12)
    assert found.costs[1] == pytest.approx(float(torch.linalg.svdvals(y)[1] ** 2) / 4)
    for depth in (3, 4, 6):  # the optimal linear network interpolates these non-negative points
        assert found.fits[2].predict(depth) <= 1.05 * bnrank.cost.linear([[2.0, 0.0], [0.0, 0.5]], depth)
    assert [f is None for f in found.fits] == [True, False, False]
    assert found.rank(4) == 2
    assert found.rank(60) == 1
    assert found.rank(2000) == 0
    with pytest.raises(ValueError, match="width: got 1"):
        solved_tradeoff(normal(9, 2), normal(9, 2, seed=1), 0.1, [3, 4, 5], width=1, starts=1, steps=20)


def test_bad_input_is_named():
    x, y = problem(0)
    with pytest.raises(ValueError, match="ridge: got 0"):
        linear_tradeoff(x, y, 0)
    with pytest.raises(ValueError, match="12 and 11 samples"):
        linear_tradeoff(x, y[1:], RIDGE)
    with pytest.raises(ValueError, match="depth: got 0"):
        linear_tradeoff(x, y, RIDGE).losses(0)
