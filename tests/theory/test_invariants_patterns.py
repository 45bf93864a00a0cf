"""Pairs of neurons: T47 where patterns differ, conserved where they agree."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import bnrank
from bnrank.theory.invariants import find
from helpers import normal
from theory.architectures import Net, blocks, build, conv, conv2, dense, fc, relu


def made(make, seed=0):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return make().double()


def parallel(m, x):
    return m.c(torch.cat([relu(m.a(x)), functional.relu(m.b(x))], 1))


def time_first(m, x):
    h = functional.relu(m.a(x.transpose(0, 1)))  # (T, N, d)
    return m.b(h.transpose(0, 1).flatten(1))


def preactivated(m, x):
    h = m.u(x)
    h = h + m.z1(relu(m.y1(relu(h))))
    return m.v(relu(h + m.z2(relu(m.y2(functional.leaky_relu(h, 0.2))))))


def outside(m, x):
    h = functional.relu6(m.a(x)).clamp(0, 1)  # no positively homogeneous activations
    return m.d(torch.relu_(m.c(torch.sigmoid(m.b(relu(h))))))


NETS = {
    "relu": (lambda: nn.Sequential(fc(2, 4, True), nn.ReLU(), fc(4, 3), nn.ReLU(), fc(3, 2)), (2,)),
    "in place": (lambda: nn.Sequential(fc(2, 4, True), nn.ReLU(inplace=True), fc(4, 2)), (2,)),
    "leaky": (lambda: nn.Sequential(fc(2, 4), nn.LeakyReLU(0.3), fc(4, 2)), (2,)),
    "absolute value": (lambda: Net(lambda m, x: m.b(torch.abs(m.a(x))), a=fc(2, 4), b=fc(4, 2)), (2,)),
    "clamp": (lambda: Net(lambda m, x: m.b(m.a(x).clamp(min=0)), a=fc(2, 4), b=fc(4, 2)), (2,)),
    "prelu": (lambda: nn.Sequential(fc(2, 4), nn.PReLU(), fc(4, 2)), (2,)),
    "convolution": (
        lambda: nn.Sequential(conv2(1, 3, 2, True), nn.ReLU(), conv2(3, 2, 2, stride=2), nn.Flatten()),
        (1, 4, 4),
    ),
    "convolution, average, fc": (
        lambda: nn.Sequential(conv(1, 3, 2), nn.LeakyReLU(), nn.AvgPool1d(2), nn.Flatten(), fc(6, 2)),
        (1, 5),
    ),
    "groups": (
        lambda: nn.Sequential(conv(1, 4, 2), nn.ReLU(), conv(4, 2, 1, groups=2), nn.Flatten(), fc(8, 2)),
        (1, 5),
    ),
    "stream, relu after": (lambda: blocks("identity", after=True), (2,)),
    "stream, relu and leaky before": (
        lambda: Net(preactivated, u=fc(2, 3), y1=fc(3, 2), z1=fc(2, 3), y2=fc(3, 2), z2=fc(2, 3), v=fc(3, 2)),
        (2,),
    ),
    "dense": (lambda: Net(dense, a=fc(2, 3), b=fc(5, 2), c=fc(7, 2)), (2,)),
    "parallel": (lambda: Net(parallel, a=fc(2, 2), b=fc(2, 3), c=fc(5, 2)), (2,)),
    "tokens": (lambda: nn.Sequential(fc(2, 3), nn.ReLU(), nn.Flatten(), fc(15, 2)), (5, 2)),
    "as many tokens as samples": (lambda: Net(time_first, a=fc(2, 3), b=fc(18, 2)), (6, 2)),
    "outside between": (lambda: Net(outside, a=fc(2, 3), b=fc(3, 3), c=fc(3, 4), d=fc(4, 2)), (2,)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("loss", ["mse", "logistic"])
def test_pairs_drift_at_the_rate_of_t47(name, loss):
    make, shape = NETS[name]
    net = made(make)
    x, y = normal(6, *shape, seed=1), normal(6, 2, seed=2)
    y = y.sign() if loss == "logistic" else y
    pairs = find(net, x).having("pair")
    assert pairs
    largest = 0.0
    for q in pairs:
        rate, closed = q.rate(net, x, y, loss), q.closed_form_rate(net, x, y, loss)
        assert closed.shape == rate.shape == (q.size, q.size)
        torch.testing.assert_close(closed, rate, rtol=0, atol=1e-10 * float(rate.abs().max()) + 1e-16)
        same = q.pairs(net, x)
        assert (rate[same].abs() <= 1e-14).all()
        assert (closed[same].abs() <= 1e-14).all()
        largest = max(largest, float(rate.abs().max()))
    assert largest > 1e-3  # patterns differ


def test_t47_written_out():
    """One hidden layer, mse: sums over samples, entry by entry."""
    net = made(NETS["leaky"][0])
    x, y = normal(6, 2, seed=1), normal(6, 2, seed=2)
    (q,) = find(net, x).having("pair")
    p = x @ net[0].weight.T
    g = 2 / 6 * (net(x) - y) @ net[2].weight
    slope = torch.where(p > 0, torch.ones_like(p), 0.3 * torch.ones_like(p))
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for u in range(4):
        for v in range(4):
            for i in range(6):
                expected[u, v] += (slope[i, u] - slope[i, v]) * (g[i, v] * p[i, u] - g[i, u] * p[i, v])
    torch.testing.assert_close(q.closed_form_rate(net, x, y), expected.detach(), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(q.slopes(net, x), slope.detach()[:, :, None])


def slope_at_zero(bend):
    zero = torch.zeros((), requires_grad=True)
    return float(torch.autograd.grad(bend(zero), zero)[0])


CLAMPED = slope_at_zero(lambda h: h.clamp(min=0))  # 1 or 0, as the version of torch has it
AT_KINKS = {
    "relu": (relu, 0.0),
    "leaky": (lambda h: functional.leaky_relu(h, 0.3), 0.3),
    "leaky in place": (lambda h: functional.leaky_relu(1 * h, 0.2, inplace=True), 0.2),
    "clamp": (lambda h: h.clamp(min=0), CLAMPED),
    "clamp_min": (lambda h: torch.clamp_min(h, 0), CLAMPED),
    "threshold": (lambda h: functional.threshold(h, 0, 0), 0.0),
    "abs": (torch.abs, 0.0),
}


@pytest.mark.parametrize("name", AT_KINKS)
def test_at_a_kink_the_slope_is_that_of_the_gradient(name):
    """Preactivations that are 0: a dead neuron, sparse data, an activation after a ReLU."""
    bend, slope = AT_KINKS[name]
    x, y = normal(8, 3, seed=1), normal(8, 2, seed=2)
    x[::2, 0] = 0
    for before in (lambda h: h, relu):
        net = made(lambda: Net(lambda m, x: m.c(bend(before(m.a(x)))), a=fc(3, 5), c=fc(5, 2)))  # noqa: B023
        net.a.weight.data[0] = 0
        net.a.weight.data[1, 1:] = 0
        q = find(net, x).having("pair")[0]
        assert (q.slopes(net, x)[:, 0, -1] == slope).all()
        rate = q.rate(net, x, y)
        torch.testing.assert_close(q.closed_form_rate(net, x, y), rate, rtol=1e-10, atol=1e-15)
        same = q.pairs(net, x)
        assert (rate[same].abs() <= 1e-15).all()
        assert rate.abs().max() > 1e-3


def test_neurons_with_the_same_pattern():
    """Two neurons always on, two always off, one that changes: the first four are conserved in pairs."""
    net = made(lambda: nn.Sequential(fc(2, 5, True), nn.ReLU(), fc(5, 2)))
    net[0].bias.data = torch.tensor([9.0, 9, -9, -9, 0], dtype=torch.float64)
    x, y = normal(8, 2, seed=1), normal(8, 2, seed=2)
    (q,) = find(net, x).having("pair")
    same = torch.zeros(5, 5, dtype=torch.bool)
    same[0, 1] = same[1, 0] = same[2, 3] = same[3, 2] = True
    assert torch.equal(q.pairs(net, x), same)
    rate = q.rate(net, x, y)
    assert rate[same].abs().max() < 1e-12
    assert (rate[~same & ~torch.eye(5, dtype=torch.bool)].abs() > 1e-4).all()
    # and stays as it is under a step, as long as the patterns do: of second order in the step
    theta = {n: p.detach() for n, p in net.named_parameters()}
    changes = []
    for step in (1e-3, 1e-4):
        moved = copy.deepcopy(net)
        ((moved(x) - y) ** 2).sum(1).mean().backward()
        changes.append((q.of({n: p.detach() - step * p.grad for n, p in moved.named_parameters()}) - q.of(theta)).abs())
    assert float(changes[0][0, 1] / changes[1][0, 1]) == pytest.approx(100, rel=1e-3)
    assert float(changes[0][0, 4] / changes[1][0, 4]) == pytest.approx(10, rel=0.1)


def test_convolutions_compare_every_position():
    net = made(lambda: nn.Sequential(conv(1, 3, 2), nn.ReLU(), nn.Flatten(), fc(12, 2)))
    net[0].weight.data[1] = 2 * net[0].weight.data[0]  # the same pattern everywhere
    x = normal(6, 1, 5, seed=1)
    (q,) = find(net, x).having("pair")
    assert q.slopes(net, x).shape == (6, 3, 4)
    same = q.pairs(net, x)
    assert same[0, 1]
    assert int(same.sum()) == 2


def test_different_groups_are_no_pairs():
    net = made(NETS["groups"][0])
    net[0].weight.data[:] = net[0].weight.data[0]
    x = normal(6, 1, 5, seed=1)
    (q,) = find(net, x).having("pair")
    group = torch.arange(4) // 2
    assert torch.equal(q.pairs(net, x), (group[:, None] == group) & ~torch.eye(4, dtype=torch.bool))


def test_module_is_left_as_it_is_and_gradients_may_be_off():
    net = made(NETS["in place"][0]).train()
    x, y = normal(6, 2, seed=1), normal(6, 2, seed=2)
    kept = x.clone()
    (q,) = find(net, x).having("pair")
    expected = q.closed_form_rate(net, x, y)
    with torch.no_grad():
        torch.testing.assert_close(q.closed_form_rate(net, x, y), expected)
    with torch.inference_mode():
        torch.testing.assert_close(q.closed_form_rate(net, x.clone(), y.clone()), expected)
    assert torch.equal(x, kept)
    assert net.training
    assert not any(m._forward_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_refuses_another_module():
    net, _ = build("mlp")
    x = normal(3, 2, seed=0)
    q = find(net, x).having("pair")[0]
    with pytest.raises(ValueError, match="got 1 activations when run, expected 2"):
        q.pairs(nn.Sequential(fc(2, 3), nn.Identity(), fc(3, 2), nn.ReLU(), fc(2, 2)), x)


# one sample: remark 1 of LeJegelka2022 --------------------------------------------------------------------------------


def rank_of(rate):
    values = torch.linalg.svdvals(rate)
    return int((values > max(1e-10 * float(values[0]), 1e-13)).sum())


@pytest.mark.parametrize("slope", [0.0, 0.2, -0.5])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_the_rate_has_rank_four_per_sample(slope, samples):
    net = bnrank.MLP([5, 20, 18, 3], slope=slope, seed=1).double()
    x, y = normal(samples, 5), normal(samples, 3, seed=1)
    for pair in find(net, x).having("pair"):
        assert rank_of(pair.rate(net, x, y)) == pair.rate_rank(net, x) == 4 * samples
        assert pair.rate_rank(net, x[:1]) == 4  # two samples break the bound of one


@pytest.mark.parametrize(("off", "rank"), [(0, 0), (1, 2), (2, 4), (3, 4), (7, 4), (9, 2), (10, 0)])
def test_few_channels_unlike_the_others(off, rank):
    """An input that turns the first channels off."""
    net = nn.Sequential(fc(3, 10), nn.ReLU(), fc(10, 2)).double()
    x = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        net[0].weight[:, 0] = net[0].weight[:, 0].abs() + 0.1
        net[0].weight[:off, 0] *= -1
    [pair] = find(net, x).having("pair")
    assert pair.rate_rank(net, x) == rank_of(pair.rate(net, x, normal(1, 2))) == rank


def test_a_step_on_one_sample_has_rank_four():
    net = bnrank.MLP([5, 20, 3], seed=1).double()

    def difference():  # with its diagonal, of T49
        first, bias, second, _ = (p.detach() for p in net.parameters())
        return first @ first.T + torch.outer(bias, bias) - second.T @ second

    before = difference()
    torch.autograd.backward(functional.mse_loss(net(normal(1, 5)), normal(1, 3, seed=1)))
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.3 * p.grad
    assert rank_of(difference() - before) == 4


def test_the_bound_covers_positions_and_groups():
    for name in ("convolution", "groups", "convolution, average, fc", "absolute value", "prelu"):
        make, shape = NETS[name]
        for seed in range(5):
            net, x = made(make, seed), normal(1, *shape, seed=seed)
            for pair in find(net, x).having("pair"):
                assert rank_of(pair.rate(net, x, normal(1, 2))) <= pair.rate_rank(net, x) <= pair.size


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        out, rows = x.new_zeros(len(x), 2), x[:, 0] < 0
        out[rows] = self.expert(x[rows])
        return out


def test_activations_that_only_some_samples_pass_have_no_patterns():
    net, x = made(Expert), normal(30, 3)
    pair = find(net, x[:1]).having("pair")[0]
    with pytest.raises(ValueError, match=r"^net: got activation .* without a value for each of 30 samples, expected"):
        pair.slopes(net, x)
    assert "without a value for each of 30 samples" in str(bnrank.check(net, x))
