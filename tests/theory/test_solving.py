import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import bnrank
import oracles
from bnrank import constructions
from bnrank.measures.balance import imbalance
from bnrank.networks import LinearNetwork
from bnrank.theory import cost
from bnrank.theory.cost.pruning import prune
from bnrank.theory.cost.solving import RIDGES, _Training, solve
from helpers import norm, normal

LINE = torch.linspace(-1, 1, 7, dtype=torch.float64).reshape(-1, 1)


def jacobian_bound(net, x):
    """T4, the largest over the samples."""
    values = torch.linalg.svdvals(oracles.input_jacobian(net, x))
    values = torch.where(values > 1e-9 * values[:, :1], values, 0.0)  # s^(2/L) magnifies rounding
    return float(net.depth * (values ** (2 / net.depth)).sum(1).max())


def check(found, x, y):
    with torch.no_grad():
        error = float((found.network(x) - y).abs().max())
    assert found.error == pytest.approx(error, abs=1e-14)
    assert found.norm == pytest.approx(norm(found.network), rel=1e-14)
    assert found.norm == min(found.norms)
    assert found.interpolates
    assert error <= 1e-9 * float(y.abs().max())
    assert imbalance(found.network).residual < 1e-9
    assert jacobian_bound(found.network, x) <= found.norm * (1 + 1e-9)
    assert {p.dtype for p in found.network.parameters()} == {torch.float64}


def test_the_identity_on_non_negative_data_costs_its_dimension_per_layer():
    x = normal(12, 2).abs()
    found = solve(x, x, depth=3, width=4, starts=2, steps=100)
    check(found, x, x)
    assert 6 * (1 - 1e-9) <= found.norm < 6.001


@pytest.mark.parametrize("depth", [3, 4])
def test_linear_data_cost_what_the_linear_map_costs(depth):
    a = normal(3, 2) @ normal(2, 4, seed=1)
    x = normal(10, 4, seed=2)
    found = solve(x, x @ a.T, depth, width=3, slope=1.0, bias=False, starts=3, steps=80)
    check(found, x, x @ a.T)
    cost = depth * float((torch.linalg.svdvals(a)[:2] ** (2 / depth)).sum())  # T2
    assert cost * (1 - 1e-9) <= found.norm < 1.01 * cost
    assert type(found.network) is LinearNetwork


@pytest.mark.parametrize(("bias", "seed"), [(False, 0), (True, 1)])
def test_one_point(bias, seed):
    x, y = normal(1, 3, seed=seed), normal(1, 2, seed=seed + 10)
    found = solve(x, y, depth=3, width=3, bias=bias, starts=4, steps=100)
    check(found, x, y)
    without = 3 * float(y.norm() / x.norm()) ** (2 / 3)  # one neuron per layer, aligned with x and y
    assert found.norm < without * (1 + (1e-6 if not bias else 1e-9))
    if not bias:
        assert found.norm == pytest.approx(without, rel=1e-6)


@pytest.mark.parametrize(
    ("y", "cost"), [(LINE.relu(), 2.0), (LINE.abs(), 4.0), (-LINE, 4.0)], ids=["relu", "abs", "-x"]
)
def test_scalar_functions_of_which_the_cost_is_known(y, cost):
    found = solve(LINE, y, depth=2, width=4, bias=False, starts=4, steps=60)  # 2 per side of 0 on which y is not 0
    check(found, LINE, y)
    assert cost * (1 - 1e-9) <= found.norm < cost * (1 + 1e-4)


def test_no_other_search_finds_less():
    x, y = torch.tensor([[-1.0], [0.5], [2.0]], dtype=torch.float64), torch.tensor([[1.0], [-0.5], [1.5]]).double()

    def layers(theta):
        return theta[:3, None], theta[3:6], theta[None, 6:9], theta[9:]

    def outputs(theta):
        w1, b1, w2, b2 = layers(theta)
        return (torch.relu(x @ w1.T + b1) @ w2.T + b2 - y).flatten()

    def constraint(theta):
        return outputs(torch.tensor(theta)).numpy()

    def gradient(theta):
        return torch.autograd.functional.jacobian(outputs, torch.tensor(theta)).numpy()

    g, norms = np.random.default_rng(0), []
    for _ in range(20):
        rule = {"type": "eq", "fun": constraint, "jac": gradient}
        end = minimize(lambda t: t @ t, g.normal(size=10), jac=lambda t: 2 * t, constraints=rule, method="SLSQP")
        if np.abs(constraint(end.x)).max() < 1e-6:
            norms.append(end.fun)
    found = solve(x, y, depth=2, width=3, starts=6, steps=80)
    check(found, x, y)
    assert len(norms) > 5
    assert found.norm <= min(norms) * (1 + 1e-3)  # the optimum is on a kink: both neurons are 0 at x = 1/2


def test_starts_that_fail_are_trained_on(monkeypatch):
    again, plain = [], _Training.trained

    def spied(training, seeds, stages=RIDGES):
        again.extend(seeds if stages == (0.0,) else [])
        return plain(training, seeds, stages)

    monkeypatch.setattr(_Training, "trained", spied)
    x, y = normal(5, 2), normal(5, 1, seed=1)
    found = solve(x, y, depth=2, width=6, bias=False, starts=4, steps=150, polish=5)
    check(found, x, y)
    assert again
    assert any(math.isfinite(found.norms[seed]) for seed in again)


def test_networks_are_pruned_and_balanced_without_polish():
    found = solve(LINE, LINE.relu(), depth=2, width=8, bias=False, starts=2, steps=60, polish=0)
    check(found, LINE, LINE.relu())
    assert found.network.widths[1] < 8
    assert prune(found.network, LINE).network.widths == found.network.widths


def test_starts_are_scaled_back_to_the_units_of_the_data():
    x, y = 30 * normal(6, 2), 1e-3 * normal(6, 1, seed=1)
    training = _Training(bnrank.MLP([2, 5, 5, 1], dtype=torch.float64), x, y, steps=20)
    (start,) = training.trained([3])
    with torch.no_grad():
        outputs = training.units[1] * training.members[3](x / training.units[0])
        torch.testing.assert_close(start.network()(x), outputs, rtol=1e-12, atol=1e-15)
    assert all(b.any() for b in start.biases)


def test_homogeneity_in_the_data():
    x, y = normal(5, 2), normal(5, 1, seed=1)
    arguments = {"depth": 2, "width": 8, "bias": False, "starts": 3, "steps": 80}
    one, scaled = solve(x, y, **arguments), solve(100 * x, 1e-3 * y, **arguments)
    check(one, x, y)
    check(scaled, 100 * x, 1e-3 * y)
    assert scaled.norm == pytest.approx(1e-5 * one.norm, rel=1e-3)


def test_the_same_seed_gives_the_same_network_and_more_polish_a_lower_norm():
    x, y = normal(6, 2), normal(6, 2, seed=1)
    state = torch.random.get_rng_state()
    rough, first, second = (solve(x, y, 2, 8, starts=3, steps=40, polish=n) for n in (0, 10, 10))
    assert torch.equal(state, torch.random.get_rng_state())
    check(first, x, y)
    assert first.norms == second.norms
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True))
    assert first.norm < rough.norm
    assert imbalance(rough.network).residual < 1e-9
    assert len(first.norms) == 3


@pytest.mark.parametrize("slope", [0.3, -0.5])
def test_other_slopes(slope):
    found = solve(LINE, LINE, depth=2, width=3, slope=slope, starts=3, steps=60)
    check(found, LINE, LINE)
    assert found.network.slope == slope
    assert found.norm < 4  # sigma(x) - sigma(-x) = (1 + s) x costs 4 / (1 + s)


def test_one_layer_is_the_shortest_linear_interpolation():
    x, y = normal(3, 5), normal(3, 2, seed=1)
    found = solve(x, y, depth=1, width=7, starts=2, steps=20)
    check(found, x, y)
    shortest = np.linalg.pinv(np.c_[x.numpy(), np.ones(3)]) @ y.numpy()
    assert found.norm == pytest.approx((shortest**2).sum(), rel=1e-9)


def test_zero_and_constant_data():
    zero = solve(LINE, 0 * LINE, depth=3, width=4, starts=2)
    assert (zero.norm, zero.error, zero.norms, zero.interpolates) == (0.0, 0.0, (0.0, 0.0), True)
    assert zero.network.widths == [1, 1, 1, 1]
    y = torch.full_like(LINE, 0.5)
    found = solve(LINE, y, depth=2, width=3, starts=4, steps=100)
    assert found.norm == pytest.approx(0.25, rel=1e-6)  # a bias at the output
    assert found.interpolates


def test_what_cannot_be_interpolated_is_said():
    narrow = solve(normal(20, 2), normal(20, 1, seed=1), depth=2, width=2, starts=2, steps=50)
    assert not narrow.interpolates
    assert narrow.norms == (math.inf, math.inf)
    assert narrow.error > 0.1
    assert math.isfinite(narrow.norm)
    without_bias = solve(
        torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [1.0]]), 3, 4, bias=False, starts=2, steps=50
    )
    assert not without_bias.interpolates
    assert without_bias.error >= 1 - 1e-9


def test_repeated_samples_must_agree():
    x, y = torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([[1.0], [2.0], [1.0]])
    assert solve(x, y, 2, 2, starts=2, steps=50).norm == pytest.approx(4.0 / 2, rel=1e-4)
    with pytest.raises(ValueError, match="y: got different values at the same x, samples 0 and 2"):
        solve(x, torch.tensor([[1.0], [2.0], [1.5]]), 2, 2)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="got 7 and 3 samples"):
        solve(LINE, LINE[:3], 2, 2)
    with pytest.raises(ValueError, match=r"y: got shape \(7,\)"):
        solve(LINE, LINE[:, 0], 2, 2)
    with pytest.raises(ValueError, match="depth: got 0"):
        solve(LINE, LINE, 0, 2)
    with pytest.raises(TypeError, match="width: got"):
        solve(LINE, LINE, 2, 2.5)
    with pytest.raises(ValueError, match="slope: got 2"):
        solve(LINE, LINE, 2, 2, slope=2.0)
    with pytest.raises(ValueError, match=r"^rtol: got -1"):
        solve(LINE, LINE, 2, 2, rtol=-1)
    with pytest.raises(ValueError, match="x: got 3000 samples"):
        solve(normal(3000, 10), normal(3000, 10), 3, 100)


def test_shortening_lowers_the_norm_of_a_line_interpolant_and_keeps_its_points():
    for seed in range(2):
        x, y = normal(6, 2, seed=seed), normal(6, 2, seed=seed + 9)
        net = constructions.line_interpolant(x, y, 8)
        before = norm(net)
        polished, trained = (cost.shorten(net, x, y, steps=steps) for steps in (0, 150))
        assert trained.norm < before
        assert trained.norm <= polished.norm <= before * (1 + 1e-12)
        for found in (polished, trained):
            assert found.interpolates
            assert found.norm == pytest.approx(norm(found.network), rel=1e-12)
            assert found.norm == min(found.norms)
            assert float((found.network(x).detach() - y).abs().max()) <= 1e-6 * float(y.abs().max())
        assert len(polished.norms) == 1
        assert norm(net) == before  # not modified


@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_shortening_never_returns_a_longer_network(scale):
    x, y = normal(6, 2), scale * normal(6, 2, seed=9)
    net = constructions.line_interpolant(x, y, 8)
    found = cost.shorten(net, x, y, steps=60, polish=5)
    assert found.norm <= norm(net) * (1 + 1e-12)
    assert len(found.norms) == 5
    assert found.interpolates


def test_shortening_a_network_of_least_norm_leaves_it():
    net = constructions.identity(2, 6)
    x = normal(7, 2).abs()
    assert cost.shorten(net, x).norm == pytest.approx(12, rel=1e-9)
    assert cost.shorten(net, x, 0 * x).norm == 0
    one = cost.shorten(net, x[:1], steps=50)
    assert one.interpolates
    assert one.norm < 12  # one point takes one dimension


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.ones(3, 5)}, "x: got"),
        ({"y": torch.ones(3, 2)}, "y: got 3 samples, expected as many as x has, 7"),
        ({"y": torch.ones(7, 3)}, "y: got"),
        ({"steps": -1}, "steps: got -1"),
        ({"net": torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1))}, "net"),
    ],
)
def test_shortening_names_bad_arguments(change, words):
    with pytest.raises((TypeError, ValueError), match=words):
        cost.shorten(**{"net": constructions.identity(2, 4), "x": normal(7, 2), **change})
