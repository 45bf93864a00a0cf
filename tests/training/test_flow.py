"""bnrank.flow: gradient flow against theorems, closed forms and an independent integrator."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp, trapezoid
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.reporting import plots
from training.common import cost_and_gradient, flat, follow, random_task


def mlp(widths=(3, 6, 5, 2), slope=0.0, bias=False, init=0.5, seed=0):
    return bnrank.networks.mlp.make(list(widths), slope, bias, init=init, seed=seed, dtype=torch.float64)


def run(net, task, t_end, **settings):
    return follow(net, task, t_end, **settings)


@functools.cache
def reference(slope, loss, end):
    """Parameters at a time, by autograd and SciPy's DOP853 at a tight tolerance."""
    net, task = mlp(slope=slope), random_task(loss=loss)

    def velocity(_, row):
        return -cost_and_gradient(net, task, torch.from_numpy(row.copy()))[1].numpy()

    start = flat(net).double().numpy()
    return torch.from_numpy(solve_ivp(velocity, (0, end), start, "DOP853", rtol=1e-11, atol=1e-13).y[:, -1])


@pytest.mark.parametrize(
    ("method", "rtol", "within"),
    [("rk45", 1e-8, 1e-6), ("dop853", 1e-10, 1e-8), ("heun", 1e-5, 1e-3), ("lsoda", 1e-8, 1e-5), ("bdf", 1e-6, 1e-3)],
)
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_agrees_with_an_independent_integrator(method, rtol, within, loss):
    net, task = mlp(slope=1.0), random_task(loss=loss)  # smooth
    result = run(net, task, 1.0, method=method, rtol=rtol)
    assert result.status == "finished"
    assert result.times[-1] == 1.0
    expected = reference(1.0, loss, 1.0)
    difference = flat(result.network) - expected
    assert float(difference.norm() / expected.norm()) < within
    assert result.loss[-1] == pytest.approx(float(cost_and_gradient(net, task, flat(result.network))[0]), rel=1e-12)


def test_euler_is_gradient_descent():
    net, task = mlp(bias=True), random_task()
    row = flat(net)
    for _ in range(20):
        row = row - 0.05 * cost_and_gradient(net, task, row)[1]
    result = run(net, task, 1.0, method="euler", step=0.05, max_relative_step=1e9)
    torch.testing.assert_close(flat(result.network), row, rtol=1e-12, atol=1e-13)
    assert (result.steps, result.evaluations) == (20, 21)
    # a relative limit makes every step as long as that share of ||theta||
    limited = run(net, task, 1.0, method="euler", step=1e9, max_relative_step=1e-3)
    lengths = np.diff(limited.times) * limited.gradient_norm[:-1] / np.sqrt(limited.parameter_norm[:-1])
    np.testing.assert_allclose(lengths[:-1], 1e-3, rtol=1e-12)


@pytest.mark.parametrize("method", ["euler", "heun", "rk45", "dop853"])
def test_order_of_convergence(method):
    """The error falls like the step (Euler) and at least like the tolerance (adaptive methods)."""
    net, task = mlp(slope=1.0), random_task()
    exact = reference(1.0, "mse", 1.0)
    if method == "euler":
        settings = [{"step": h, "max_relative_step": 1e9} for h in (0.02, 0.002)]
    else:
        settings = [{"rtol": rtol} for rtol in (1e-4, 1e-6)]
    errors = [float((flat(run(net, task, 1.0, method=method, **s).network) - exact).norm()) for s in settings]
    factor = {"euler": 10, "heun": 100, "rk45": 30, "dop853": 10}[method]
    assert errors[1] < 1.3 * errors[0] / factor
    if method == "euler":
        assert errors[1] > errors[0] / factor / 1.3


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_loss_falls_at_the_rate_of_the_squared_gradient(slope):
    """dC/dt = -||grad C||^2."""
    result = run(mlp(slope=slope), random_task(), 1.0, method="heun", rtol=1e-4)
    rate = result.gradient_norm**2
    fall = np.concatenate([[0], np.cumsum(np.diff(result.times) * (rate[1:] + rate[:-1]) / 2)])
    np.testing.assert_allclose(
        result.loss[0] - result.loss, fall, atol=5e-3 * fall[-1]
    )  # trapezia, and chatter at kinks
    assert (np.diff(result.loss) < 0).all()


@pytest.mark.parametrize("method", ["rk45", "dop853"])
def test_conserved_quantities(method):
    """Linear: W_{l+1}^T W_{l+1} - W_l W_l^T; ReLU: its diagonal."""
    for slope in (1.0, 0.0):
        result = run(mlp(slope=slope), random_task(), 5.0, method=method, rtol=1e-7)
        (first, last) = (result.networks[0].weights, result.networks[-1].weights)

        def kept(weights, slope=slope):
            gaps = [b.T @ b - a @ a.T for a, b in itertools.pairwise([w.detach() for w in weights])]
            return gaps if slope == 1 else [gap.diagonal() for gap in gaps]

        moved = float((first[0] - last[0]).detach().norm())
        assert moved > 0.5
        for before, after in zip(kept(first), kept(last), strict=True):
            torch.testing.assert_close(before, after, rtol=0, atol=1e-5 if slope == 1 else 2e-4)


@pytest.mark.parametrize("depth", [2, 3])
def test_scalar_linear_network_in_closed_form(depth):
    """w_1 = ... = w_L = w, x = y = 1: dw/dt = -2 w^{L-1} (w^L - 1)."""
    w0, half = 0.01, 0.5 ** (1 / depth)
    net = from_layers([torch.tensor([[w0]])] * depth, slope=1.0)
    if depth == 2:
        time = math.log((1 / w0**2 - 1) / (1 / half**2 - 1)) / 4
    else:  # int dw / (2 w^2 (1 - w^3))
        w = np.geomspace(w0, half, 200_001)
        time = trapezoid(1 / (2 * w**2 * (1 - w**3)), w)
    one = torch.ones(1, 1)
    for settings in ({}, {"method": "dop853"}, {"time": "arc"}, {"method": "bdf", "rtol": 1e-8}):
        result = follow(net, (one, one), time, **settings)
        assert float(result.network(one.double()).detach()) == pytest.approx(0.5, rel=2e-4)


def test_tiny_weights_and_huge_times():
    """Weights of 1e-8 and times of 1e15 need nothing special: dw/dt = 2 w^3 blows up at 1 / (4 w_0^2)."""
    one = torch.ones(1, 1)
    net = from_layers([torch.tensor([[1e-8]])] * 4, slope=1.0)
    beyond = follow(net, (one, one), 1.001 / 4e-16)  # where steps of 1e-2 are nothing beside t
    assert beyond.status == "stalled"
    assert beyond.times[-1] == pytest.approx(1 / 4e-16, rel=1e-3)
    result = follow(net, (one, one), 0.999 / 4e-16)
    assert result.status == "finished"
    assert float(result.network(one.double()).detach()) == pytest.approx(1e-32 / 0.001**2, rel=1e-2)


def test_arc_length_as_time_gives_the_same_flow():
    net, task = mlp(slope=1.0), random_task()
    by_time, by_arc = (run(net, task, 2.0, rtol=1e-8, time=time) for time in ("t", "arc"))
    assert by_arc.times[-1] == 2.0
    torch.testing.assert_close(flat(by_arc.network), flat(by_time.network), rtol=0, atol=1e-5)
    np.testing.assert_allclose(by_arc.history.arc_length[0, -1], by_time.history.arc_length[0, -1], rtol=1e-2)


def test_any_module_and_any_loss():
    """Autograd agrees with the gradients written by hand; the user's module is left as it is."""
    task = random_task()
    net = mlp(bias=True)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        own = [m for m in module if isinstance(m, nn.Linear)]
        for layer, weight, bias in zip(own, net.weights, net.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    module.train()
    before, state = flat(module).clone(), torch.get_rng_state()

    def loss(outputs, y):
        return (outputs - y).square().sum(1).mean()

    by_hand = run(net, task, 1.0)
    for other in (follow(module, (task.x, task.y.numpy()), 1.0), follow(net, (task.x, task.y, loss), 1.0)):
        np.testing.assert_allclose(other.loss[-1], by_hand.loss[-1], rtol=1e-5)
        torch.testing.assert_close(flat(other.network).double(), flat(by_hand.network), rtol=0, atol=1e-4)
    assert module.training
    assert torch.equal(flat(module), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_fixed_parameters_stay():
    module = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 2, dtype=torch.float64))
    module[0].weight.requires_grad_(False)
    task = random_task()
    result = follow(module, (task.x, task.y), 1.0)
    assert torch.equal(result.network[0].weight, module[0].weight)
    assert not torch.equal(result.network[2].weight, module[2].weight)
    assert result.loss[-1] < result.loss[0]


def test_float32_stays_near_float64():
    net, task = mlp(), random_task()
    wide = run(net, task, 2.0, method="heun")
    narrow = run(net, task, 2.0, method="heun", dtype=torch.float32)
    assert flat(narrow.network).dtype == torch.float32
    torch.testing.assert_close(flat(narrow.network).double(), flat(wide.network), rtol=0, atol=5e-3)


def test_record_networks_and_plots():
    net, task = mlp(), random_task()
    result = run(net, task, 2.0, method="euler", step=0.01, max_networks=8, spectra_every=4)
    assert 4 <= len(result.networks) <= 8
    assert result.network_rows[0] == 0
    assert result.network_rows[-1] == len(result.times) - 1
    for row, kept in zip(result.network_rows, result.networks, strict=True):
        assert float(cost_and_gradient(net, task, flat(kept))[0]) == pytest.approx(result.loss[row], rel=1e-12)
        assert float(flat(kept).square().sum()) == pytest.approx(result.parameter_norm[row], rel=1e-12)
    values = result.history.weight_singular_values.values[0]
    known = np.isfinite(values).any(axis=(1, 2))
    assert known[[0, 4, -1]].all()
    assert not known[1:4].any()
    expected = torch.linalg.svdvals(result.network.weights[1].detach())
    np.testing.assert_allclose(values[-1, 1, :5], expected, rtol=1e-6)
    assert result.spectra.sizes["step"] == known.sum()
    assert len(plots.plateaus(result.spectra)) == 4
    assert "finished" in repr(result)


def test_large_matrices_have_their_leading_singular_values():
    net = mlp((320, 320, 320), init="he")
    task = random_task(n=5, d_in=320, d_out=320)
    result = run(net, task, 1e-6, method="heun")
    for layer, weight in enumerate(result.network.weights):
        expected = torch.linalg.svdvals(weight.detach())[:10]
        found = result.history.weight_singular_values.values[0, -1, layer]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_limits():
    net, task = mlp(slope=1.0), random_task()
    assert run(net, task, 1e3, max_evaluations=50).status == "evaluations used up"
    assert 50 <= run(net, task, 1e3, max_evaluations=50).evaluations < 70
    assert run(net, task, 1e9, max_minutes=1e-4).status == "time is up"
    seen = []

    def stop(row):
        seen.append(row)
        return row.loss < 1.8

    result = run(net, task, 1e3, stop=stop)
    assert result.status == "stopped"
    assert result.loss[-1] < 1.8 <= result.loss[-2]
    assert [row.time for row in seen] == result.times.tolist()
    diverged = run(mlp(slope=1.0), task, 1e3, method="euler", step=5.0, max_relative_step=1e200)
    assert diverged.status == "diverged"
    assert diverged.steps < 10
    assert np.isfinite(diverged.loss).all()
    assert all(bool(torch.isfinite(flat(kept)).all()) for kept in diverged.networks)


def test_saddles_of_a_linear_network():
    """Singular values 3 and 1 of the target are learned one after another: ranks 0, 1, 2 at the plateaus."""
    net = mlp((2, 2, 2, 2), slope=1.0, init=1e-3)
    x = math.sqrt(2) * torch.eye(2, dtype=torch.float64)
    y = x @ torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    result = follow(net, (x, y), 3000.0, method="lsoda", rtol=1e-8)
    assert [p.ranks for p in result.plateaus][1:] == [(1, 1, 1), (2, 2, 2)]
    assert result.plateaus[1].loss == pytest.approx(1.0, abs=0.02)
    assert result.loss[-1] < 1e-3


def test_kinks_on_the_circle():
    """T40: the escape direction slides along kinks. Steps to and fro do not add up; error control alone crawls."""
    task = bnrank.tasks.circle(dtype=torch.float64)
    net = mlp((2, 8, 8, 1), init=0.3, seed=3)
    fine = run(net, task, 4.0, method="heun", rtol=3e-5)
    errors = []
    for rtol in (3e-3, 1e-3, 1e-4):
        result = run(net, task, 4.0, method="heun", rtol=rtol)
        errors.append(float((flat(result.network) - flat(fine.network)).norm() / flat(fine.network).norm()))
        if rtol == 1e-3:
            coarse = result
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 0.02
    assert errors[2] < 1e-3
    usual = run(net, task, 4.0)
    assert float((flat(usual.network) - flat(fine.network)).norm() / flat(fine.network).norm()) < 1e-3
    assert coarse.loss[-1] == pytest.approx(usual.loss[-1], abs=0.02 * (fine.loss[0] - fine.loss[-1]))
    # rk45 by error control alone does not get to the end in many times as many evaluations
    crawling = run(net, task, 4.0, kink_rtol=0, max_evaluations=10 * coarse.evaluations)
    assert crawling.status == "evaluations used up"
    assert crawling.times[-1] < 3.9


def test_mini_batches_are_reproducible():
    net, task = mlp(init=0.3), random_task(n=60)
    settings = {"method": "euler", "step": 0.02, "max_relative_step": 0.05, "batch_size": 10}
    first, second, other = (run(net, task, 2.0, seed=seed, **settings) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.loss, second.loss)
    assert torch.equal(flat(first.network), flat(second.network))
    assert not torch.equal(flat(first.network), flat(other.network))
    from bnrank.training.ensemble import BatchOrder

    batch = BatchOrder([5], 60, 10).at(0)[0]
    assert first.loss[0] == pytest.approx(float(cost_and_gradient(net, task, flat(net), batch)[0]), rel=1e-12)
