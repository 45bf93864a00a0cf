"""F5's dynamics: the map of the summary statistics against plain gradient descent, and what the task draws."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bnrank
from bnrank.tasks import matrix_factorization, rank_one_factorization


def plain_cost(descent, v):
    return (torch.outer(v, v) - torch.outer(descent.w, descent.w) - descent.error).square().sum()


def plain_descent(descent, v, steps):
    """Follow the gradient that autograd gives, one vector at a time."""
    states = [v.clone()]
    for _ in range(steps):
        at = states[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(plain_cost(descent, at), at)
        states.append(states[-1] - descent.lr * gradient)
    return torch.stack(states)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(d=st.integers(2, 12), lr=st.floats(1e-3, 0.08), noise=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 10**9))
def test_trajectories_are_gradient_descent(d, lr, noise, seed):
    descent = rank_one_factorization(d, lr, noise, seed)
    v = torch.randn(3, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / d**0.5
    states = descent.trajectory(v, 6)
    expected = torch.stack([plain_descent(descent, row, 6) for row in v])
    torch.testing.assert_close(states, expected, rtol=1e-12, atol=1e-13)
    costs = torch.stack([torch.stack([plain_cost(descent, at) for at in path]) for path in expected])
    torch.testing.assert_close(descent.cost(states), costs, rtol=1e-11, atol=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(d=st.integers(2, 20), lr=st.floats(1e-3, 0.1), seed=st.integers(0, 10**9))
def test_statistics_step_exactly_without_noise(d, lr, seed):
    descent = rank_one_factorization(d, lr, seed=seed)
    v = torch.randn(20, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / d**0.5
    u = descent.statistics(v)
    assert u == pytest.approx(torch.stack([(v @ descent.w) ** 2, (v**2).sum(1) - (v @ descent.w) ** 2], 1), abs=1e-14)
    assert (descent.statistics(descent.step(v)) - descent.step_statistics(u)).abs().max() < 1e-14 * max(1, u.max())
    assert (descent.cost(v) - descent.cost_of_statistics(u)).abs().max() < 1e-14 * max(1, u.sum(1).max() ** 2)
    again = descent.representative(u)
    assert (descent.statistics(again) - u).abs().max() < 1e-14 * max(1, u.max())


def test_small_steps_have_the_limit_in_print():
    """d(w^T v)^2 = -8 (||v||^2 - 1) (w^T v)^2 dt and d||Pv||^2 = -8 ||v||^2 ||Pv||^2 dt (Jacot2023b section 5)."""
    descent = rank_one_factorization(lr=1e-7)
    u = torch.tensor([[0.3, 0.8], [1.7, 0.2]], dtype=torch.float64)
    r = u.sum(1)
    rate = (descent.step_statistics(u) - u) / descent.lr
    assert rate == pytest.approx(torch.stack([-8 * (r - 1) * u[:, 0], -8 * r * u[:, 1]], 1), rel=1e-5)


def test_what_is_drawn():
    descent = rank_one_factorization(9, noise=0.5, seed=4)
    assert descent.w.norm().item() == pytest.approx(1, abs=1e-15)
    assert descent.across.norm().item() == pytest.approx(1, abs=1e-15)
    assert abs((descent.w @ descent.across).item()) < 1e-15
    errors = torch.stack([rank_one_factorization(9, noise=0.5, seed=seed).error for seed in range(200)])
    assert errors.square().sum((1, 2)).mean().item() == pytest.approx(0.25, rel=0.05)
    assert not torch.equal(errors[0], errors[0].T)
    assert not rank_one_factorization(9).error.any()
    assert torch.equal(rank_one_factorization(9, lr=0.01, seed=4).w, descent.w)


@pytest.mark.parametrize("start", ["even", "gaussian"])
def test_the_task_is_what_gradient_descent_costs(start):
    task = matrix_factorization(50, 5, 4, 0.04, noise=0.1, seed=2, n_test=20, start=start, radius=1.0)
    descent = rank_one_factorization(5, 0.04, 0.1, 2)
    for x, y in ((task.x, task.y), (task.x_test, task.y_test)):
        paths = torch.stack([plain_descent(descent, v, 4) for v in x.double()])
        costs = torch.stack([torch.stack([plain_cost(descent, v) for v in path[1:]]) for path in paths])
        scale = (y.double() * costs).sum() / costs.square().sum()
        torch.testing.assert_close(y.double(), scale * costs, rtol=1e-6, atol=1e-6)
    assert task.y.var(0, correction=0).mean().item() == pytest.approx(1, rel=1e-5)
    assert task.truth is None
    assert {task.x.dtype, task.y.dtype} == {torch.float32}
    raw = matrix_factorization(50, 5, 4, 0.04, noise=0.1, seed=2, n_test=0, start=start, radius=1.0, y_variance=None)
    assert torch.equal(raw.x, task.x)
    assert raw.x_test is None
    assert raw.y * float(scale) == pytest.approx(task.y, rel=1e-5)


def test_the_truth_gives_the_outputs():
    task = matrix_factorization(80, 7, 6, seed=1, n_test=30)
    truth = task.truth
    assert truth.rank == 2
    for u, x, y in ((truth.latents, task.x, task.y), (truth.latents_test, task.x_test, task.y_test)):
        assert truth.y_of_latents(u) == pytest.approx(y, abs=1e-5)
        assert truth.y_of_latents(u).dtype == u.dtype == torch.float32
        descent = rank_one_factorization(7, 0.03, seed=1)
        other = truth.x_of_latents(u)  # another point of the orbit, with the same costs
        assert (other - x).norm(dim=1).min() > 1e-3
        assert descent.cost(descent.trajectory(other, 6)) == pytest.approx(
            descent.cost(descent.trajectory(x, 6)), abs=1e-5
        )
    jacobian = torch.func.vmap(torch.func.jacrev(truth.y_of_latents))(truth.latents.double())
    ranks = torch.linalg.matrix_rank(jacobian, rtol=1e-3)  # 1 at u = 0 and less than a thousandth from it
    assert ranks.max() == 2
    assert (ranks == 2).double().mean() > 0.9
    assert matrix_factorization(10, steps=1).truth.rank == 1


def test_even_starts_cover_the_quotient_evenly():
    task = matrix_factorization(20_000, 10, 1, lr=0.01, n_test=0, radius=2.0)
    u = task.truth.latents.double()
    r, phi = u.sum(1).sqrt() / 2, torch.atan2(u[:, 1].sqrt(), u[:, 0].sqrt()) / (torch.pi / 2)
    for values in (r, phi):
        assert torch.histc(values, 10, 0, 1) == pytest.approx(2000, abs=250)
    w = rank_one_factorization(10, 0.01).w
    assert abs((task.x.double() @ w).sign().mean().item()) < 0.03
    rest = task.x.double() - (task.x.double() @ w)[:, None] * w
    rest /= rest.norm(dim=1, keepdim=True)
    assert torch.linalg.eigvalsh(rest.T @ rest / 20_000)[1:] == pytest.approx(1 / 9, abs=0.006)


def test_gaussian_starts():
    task = matrix_factorization(20_000, 10, 1, lr=0.005, n_test=0, radius=2.0, start="gaussian")
    assert (task.x.double().T @ task.x.double() / 20_000) == pytest.approx(torch.eye(10) * 4 / 30, abs=0.008)


def test_draws_depend_on_the_seed_alone():
    before = torch.get_rng_state()
    long, short = matrix_factorization(50, n_test=9), matrix_factorization(20, n_test=9, steps=3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(long.x_test, short.x_test)
    assert not torch.equal(long.x[:9], long.x_test)
    assert not torch.equal(matrix_factorization(20, seed=1).x, short.x)
    assert short.settings["steps"] == 3
    assert bnrank.tasks.matrix_factorization is matrix_factorization


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n: got 0"),
        ({"d": 1}, "d: got 1, expected an integer of at least 2"),
        ({"steps": 0}, "steps: got 0"),
        ({"lr": 0.0}, "lr: got 0.0, expected a finite number > 0"),
        ({"lr": 0.5}, "lr: got 0.5, expected below 1 / (4 max ||v(0)||^2) = 0.07"),
        ({"noise": -1.0}, "noise: got -1.0"),
        ({"start": "evn"}, "did you mean 'even'?"),
        ({"radius": 0}, "radius: got 0"),
        ({"y_variance": 0.0}, "y_variance: got 0.0"),
        ({"radius": 1e-50}, "y_variance: the costs are the same for all samples"),
        ({"n": 1}, "y_variance: the costs are the same for all samples"),
        ({"n_test": -1}, "n_test: got -1"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        matrix_factorization(**{"n": 20, **changes})


def test_bad_states():
    descent = rank_one_factorization(4)
    with pytest.raises(ValueError, match=r"v: got Tensor of shape \(2, 3\).*expected floating point \(..., 4\)"):
        descent.step(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"v: .*int64"):
        descent.cost(torch.ones(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"u: got .*expected floating point \(..., 2\)"):
        descent.step_statistics(torch.ones(5, 3))
    with pytest.raises(ValueError, match="steps: got -1"):
        descent.trajectory(torch.ones(1, 4), -1)
