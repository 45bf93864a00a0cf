"""The plateau around the origin, skipped: against the plain flow, T35 and T37."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn

from bnrank.networks.mlp import from_layers, make
from bnrank.tasks import Task
from bnrank.tasks.losses import gradient_at_zero
from training.common import flat, follow


def positive(loss="mse", n=12, seed=0):
    """Data on which the escape direction is smooth."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.1 + torch.rand(n, 3, generator=generator, dtype=torch.float64)
    if loss == "mse":
        return Task(x, 0.1 + torch.rand(n, 2, generator=generator, dtype=torch.float64))
    labels = (torch.rand(n, generator=generator) < 0.25).long()
    return Task(x, labels, loss="cross_entropy", classes=2)


def signed(loss="mse", n=25, seed=0):
    """Generic data, on which the flow slides along kinks."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    if loss == "mse":
        return Task(x, torch.randn(n, 2, generator=generator, dtype=torch.float64))
    labels = torch.randint(2, (n,), generator=generator)
    return Task(x, labels, loss="cross_entropy", classes=2)


def net_of(depth, init, seed=0, slope=0.0, width=6, outputs=2):
    return make([3, *[width] * (depth - 1), outputs], slope, False, init=init, seed=seed, dtype=torch.float64)


def run(net, task, *args, **settings):
    return follow(net, task, *args, **settings)


def drop(task):
    """The loss at the origin, and a fall of it that is well within the first escape."""
    zero = torch.zeros(len(task.x), 2, dtype=torch.float64)
    origin = zero.sub(task.y).square().sum() / len(zero) if task.loss == "mse" else math.log(2)
    return float(origin), (0.03 if task.loss == "mse" else 0.002) * float(origin)


def at_loss(result, level):
    """Time at which the loss has fallen to a level."""
    row = int(np.argmax(result.loss <= level))
    share = (result.loss[row - 1] - level) / (result.loss[row - 1] - result.loss[row])
    return result.times[row - 1] + share * (result.times[row] - result.times[row - 1])


PROBLEMS = [
    (positive, "mse", 3, 0.0, "rk45"),
    (positive, "mse", 4, 0.0, "dop853"),
    (signed, "mse", 3, 0.0, "heun"),
    (signed, "cross_entropy", 4, 0.0, "rk45"),
    (signed, "mse", 4, 1.0, "rk45"),
]


@pytest.mark.parametrize(("data", "loss", "depth", "slope", "method"), PROBLEMS)
def test_the_skipped_flow_is_the_plain_one(data, loss, depth, slope, method):
    """From the same small initialization: the same escape time to 1 percent, the same direction to 1e-3."""
    task, net = data(loss), net_of(depth, 1e-2, slope=slope)
    origin, fall = drop(task)
    settings = {"method": method, "rtol": 3e-4 if method == "heun" else 1e-6}
    times, points = [], []
    for skip_plateau in (False, True):
        result = run(
            net,
            task,
            1e30,
            skip_plateau=skip_plateau,
            stop=lambda row: row.loss < origin - fall,
            max_evaluations=30_000,
            max_networks=10_000,
            **settings,
        )
        assert result.status == "stopped"
        assert skip_plateau == (result.handover is not None and not result.handover.at_once)
        times.append(at_loss(result, origin - fall / 2))
        points.append(result)
    assert times[1] == pytest.approx(times[0], rel=0.01)
    radius = math.sqrt(min(float(result.parameter_norm[-1]) for result in points))
    one, other = (direction_at(result, task, radius, settings) for result in points)
    assert float((one - other).norm()) < 1e-3


def direction_at(result, task, radius, settings):
    """Unit vector of the parameters where their norm is ``radius``: from the row before, to the right time."""
    row = int(np.argmax(np.sqrt(result.parameter_norm) >= radius)) - 1
    before = dict(zip(result.network_rows, result.networks, strict=True))[row]

    def after(t):
        return flat(run(before, task, t, **settings).network)

    longest = result.times_since_handover[row + 1] - result.times_since_handover[row]
    t = brentq(lambda t: float(after(t).norm()) - radius, 1e-9 * longest, 1.5 * longest, xtol=1e-4 * longest)
    return after(t) / after(t).norm()


@pytest.mark.parametrize(("depth", "method"), [(3, "rk45"), (4, "rk45"), (3, "dop853"), (4, "heun")])
def test_the_cost_does_not_grow_as_the_weights_shrink(depth, method):
    """Evaluations to the first escape, from initializations of 1e-2 to 1e-8."""
    task = positive()
    origin, fall = drop(task)
    evaluations, radii = {}, {}
    for init in (1e-2, 1e-4, 1e-6, 1e-8):
        net = net_of(depth, init)
        result = run(
            net, task, t_after=1e6, skip_plateau=True, method=method, stop=lambda row: row.loss < origin - fall
        )
        assert result.status == "stopped"
        evaluations[init], radii[init] = result.evaluations, result.parameter_norm[-1]
    assert evaluations[1e-8] - evaluations[1e-4] <= 4 * 14  # 10 to 12 for every decade
    assert evaluations[1e-8] < 1.5 * evaluations[1e-2]


def test_the_cost_does_not_grow_where_the_flow_slides_along_kinks():
    task = signed()
    evaluations = [
        run(net_of(4, init), task, t_after=1e-3, skip_plateau=True, method="heun").evaluations
        for init in (1e-3, 1e-5, 1e-8)
    ]
    assert evaluations[2] < 1.3 * evaluations[0]


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("method", ["rk45", "euler"])
def test_the_criterion_holds_up_to_the_hand_over(loss, method):
    task = signed(loss)
    settings = {"step": 0.1} if method == "euler" else {}
    result = run(net_of(3, 1e-4), task, t_after=0.1, skip_plateau=True, method=method, max_networks=10_000, **settings)
    handover = result.handover
    assert not handover.at_once
    assert 1e-5 < handover.criterion <= 1e-4
    g = gradient_at_zero(loss, task.y, 2)
    ratios = []
    for row, net in zip(result.network_rows, result.networks, strict=True):
        y = net(task.x).detach().requires_grad_()
        cost = (y - task.y).square().sum() / len(y) if loss == "mse" else nn.functional.cross_entropy(y, task.y)
        (gradient,) = torch.autograd.grad(cost, y)
        ratios.append(float((gradient - g).norm() / g.norm()))
        phase = result.history.phase.values[row]
        assert phase == ("plateau" if row <= handover.row else "flow")
        assert ratios[-1] <= 1e-4 or phase == "flow"
        assert result.loss[row] == pytest.approx(float(cost.detach()), rel=1e-8)
        bound = (result.parameter_norm[row] ** 0.5 / math.sqrt(3)) ** 3 * float(task.x.norm())
        assert float(y.detach().norm()) <= bound * (1 + 1e-9)
    last = handover.row
    assert ratios[result.network_rows.index(last)] == pytest.approx(handover.criterion, rel=1e-6)
    assert result.times_since_handover[last] == 0
    assert result.times_since_handover[-1] == 0.1
    assert (np.diff(result.times_since_handover) >= 0).all()


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("method", ["rk45", "dop853", "heun"])
def test_norm_law_along_a_smooth_escape_direction(depth, method):
    """T37: d r/dt = L^{1 - L/2} s r^{L-1}, on positive data from a rank-one start with ||W_l|| equal."""
    task = positive()
    g = gradient_at_zero("mse", task.y)
    u, s, v = torch.linalg.svd(-g.T @ task.x)
    weights = [v[:1].abs(), *[torch.ones(1, 1)] * (depth - 2), u[:, :1].abs()]
    r0 = 1e-6
    net = from_layers([r0 / math.sqrt(depth) * w for w in weights])
    result = run(net, task, t_after=1e-3, skip_plateau=True, method=method)
    plateau = np.arange(len(result.times)) <= result.handover.row
    r, t = np.sqrt(result.parameter_norm[plateau]), result.times[plateau]
    r0, rate = r[0], depth ** (1 - depth / 2) * float(s[0])
    law = np.log(r / r0) / rate if depth == 2 else (r0 ** (2 - depth) - r ** (2 - depth)) / ((depth - 2) * rate)
    assert r[-1] > 1e3 * r0
    np.testing.assert_allclose(t[1:], law[1:], rtol=1e-8)
    direction = torch.cat([w.flatten() for w in weights]) / math.sqrt(depth)
    torch.testing.assert_close(
        flat(result.networks[-1]) / flat(result.networks[-1]).norm(), direction, rtol=0, atol=1e-6
    )


def test_small_weights_keep_their_own_dynamics():
    """A linear network's W_2^T W_2 - W_1 W_1^T is conserved through a plateau of many decades, far below rtol."""
    task = signed()
    net = net_of(3, 1e-8, slope=1.0)
    result = run(net, task, t_after=1.0, skip_plateau=True)
    assert result.handover.radius > 1e5 * math.sqrt(result.parameter_norm[0])
    for before, after in zip(
        itertools.pairwise(w.detach() for w in net.weights),
        itertools.pairwise(w.detach() for w in result.network.weights),
        strict=True,
    ):
        gaps = [b.T @ b - a @ a.T for a, b in (before, after)]
        values, vectors = torch.linalg.eigh(after[1].T @ after[1])
        bulk = vectors[:, values < 1e-6 * values.max()]  # off the escape direction
        assert bulk.shape[1] >= 3
        kept = [bulk.T @ gap @ bulk for gap in gaps]
        assert float((kept[1] - kept[0]).norm() / kept[0].norm()) < 0.05


def test_functions_and_sequentials_skip_too():
    task, net = signed(), net_of(3, 1e-4)
    layers = [nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=torch.float64) for w in net.weights]
    with torch.no_grad():
        for layer, weight in zip(layers, net.weights, strict=True):
            layer.weight.copy_(weight)
    sequential = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    expected = run(net, task, t_after=1.0, skip_plateau=True, method="heun")
    same = follow(sequential, (task.x, task.y), t_after=1.0, skip_plateau=True, method="heun")
    np.testing.assert_array_equal(same.loss, expected.loss)

    def loss(outputs, y):
        return (outputs - y).square().sum(1).mean()

    other = follow(net, (task.x, task.y, loss), t_after=1.0, skip_plateau=True, method="heun")
    assert other.loss[-1] == pytest.approx(expected.loss[-1], rel=1e-4)
    assert other.handover.time == pytest.approx(expected.handover.time, rel=2e-3)


def test_stochastic_flow_skips_and_ends_in_float32():
    task, net = signed(n=60), net_of(4, 1e-4)
    settings = {"method": "euler", "step": 0.05, "batch_size": 20, "dtype": torch.float32, "seed": 3}
    one, two = (run(net, task, t_after=20.0, skip_plateau=True, **settings) for _ in range(2))
    np.testing.assert_array_equal(one.loss, two.loss)
    assert torch.equal(flat(one.network), flat(two.network))
    assert one.handover.criterion <= 1e-4
    assert one.times_since_handover[-1] == pytest.approx(20.0)


def test_large_outputs_are_handed_over_at_once():
    task, net = positive(), net_of(3, 0.5)
    result = run(net, task, t_after=1.0, skip_plateau=True)
    plain = run(net, task, 1.0)
    assert result.handover.at_once
    assert result.handover.time == 0
    np.testing.assert_array_equal(result.loss, plain.loss)


@pytest.mark.parametrize("method", ["rk45", "euler"])
def test_an_end_within_the_plateau(method):
    task, net = positive(), net_of(3, 1e-4)
    whole = run(net, task, t_after=1.0, skip_plateau=True)
    t_end = whole.handover.time / 3
    settings = {"step": 0.1, "max_relative_step": 0.01} if method == "euler" else {}
    result = run(net, task, t_end, skip_plateau=True, method=method, **settings)
    assert result.handover is None
    assert result.status == "finished"
    assert result.times[-1] == t_end
    plain = run(net, task, t_end)
    difference = flat(result.network) - flat(plain.network)
    assert float(difference.norm() / flat(plain.network).norm()) < (0.05 if method == "euler" else 2e-3)


def test_no_escape_is_said():
    """x >= 0, y < 0 and one hidden neuron with positive weights: the outputs can only shrink."""
    x = torch.ones(4, 1, dtype=torch.float64)
    net = from_layers([torch.tensor([[1e-3]])] * 3)
    result = follow(net, (x, -x), 1e12, skip_plateau=True)
    assert result.status == "no escape"
    dead = from_layers([torch.tensor([[-1e-3]])] * 3)
    assert follow(dead, (x, x), 1e12, skip_plateau=True).status == "stationary"
