import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

import bnrank
from bnrank.measures.balance import imbalance
from bnrank.networks.mlp import from_layers
from bnrank.theory.cost.rescaling import balance, balancing
from helpers import norm

SLOPES = [0.0, 0.3, -0.5, 1.0]


def network(widths, slope=0.0, bias=True, seed=0, spread=0.0, density=1.0):
    """Gaussian layers, every hidden neuron rescaled by 10^-spread to 10^spread."""
    g = np.random.default_rng(seed)
    weights = [g.normal(size=(b, a)) * math.sqrt(2 / a) for a, b in itertools.pairwise(widths)]
    weights = [w * (g.random(w.shape) < density) for w in weights]
    biases = [g.normal(size=b) for b in widths[1:]] if bias else []
    for l in range(len(weights) - 1):  # noqa: E741
        c = 10 ** g.uniform(-spread, spread, widths[l + 1])
        weights[l] *= c[:, None]
        weights[l + 1] /= c
        if bias:
            biases[l] *= c
    return from_layers([torch.from_numpy(w) for w in weights], [torch.from_numpy(b) for b in biases], slope)


def same_function(net, other, tolerance=1e-12, n=50):
    x = torch.randn(n, net.widths[0], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y, z = net(x), other(x)
    assert float((y - z).abs().max()) <= tolerance * float(y.abs().max())


def in_logs(net):
    """The norm as a function of the logs of the scales, with its gradient: slow, by autograd."""
    hidden = net.widths[1:-1]
    end = [torch.zeros(net.widths[0], dtype=torch.float64), torch.zeros(net.widths[-1], dtype=torch.float64)]

    def value(u):
        u = torch.tensor(u, dtype=torch.float64, requires_grad=True)
        logs = [end[0], *u.split(hidden), end[1]]
        total = torch.zeros((), dtype=torch.float64)
        for l, w in enumerate(net.weights):  # noqa: E741
            total = total + (w.detach() ** 2 * torch.exp(2 * (logs[l + 1][:, None] - logs[l]))).sum()
        for b, v in zip(net.biases, logs[1:], strict=False):
            total = total + (b.detach() ** 2 * torch.exp(2 * v)).sum()
        total.backward()
        return float(total.detach()), u.grad.numpy()

    return value


def by_turns(net, sweeps):
    """The alternating iteration: every layer's closed form c = (out / in)^(1/2) of the norms, one after the other."""
    weights = [w.detach().clone() for w in net.weights]
    biases = [b.detach().clone() for b in net.biases]
    for _, l in itertools.product(range(sweeps), range(len(weights) - 1)):  # noqa: E741
        incoming = (weights[l] ** 2).sum(1) + (biases[l] ** 2 if biases else 0.0)
        c = ((weights[l + 1] ** 2).sum(0) / incoming) ** 0.25
        weights[l] *= c[:, None]
        weights[l + 1] /= c
        if biases:
            biases[l] *= c
    return from_layers(weights, biases, net.slope)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 4), min_size=3, max_size=6),
    bias=st.booleans(),
    slope=st.sampled_from(SLOPES),
    seed=st.integers(0, 999),
)
def test_no_scales_give_a_lower_norm(widths, bias, slope, seed):
    net = network(widths, slope, bias, seed, spread=0.5)
    found = balancing(net)
    function = in_logs(net)
    oracle = minimize(function, np.zeros(sum(widths[1:-1])), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert found.norm == pytest.approx(oracle.fun, rel=1e-9)
    assert found.norm == pytest.approx(norm(found.network), rel=1e-14)
    assert found.norm_before == pytest.approx(norm(net), rel=1e-14)
    assert found.norm <= found.norm_before * (1 + 1e-14)
    same_function(net, found.network)
    around = in_logs(found.network)
    g = np.random.default_rng(seed)
    assert all(around(1e-3 * g.normal(size=sum(widths[1:-1])))[0] > found.norm for _ in range(5))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "widths",
    [
        [1] * 101,
        [4, 1, 4],
        [3, *[5] * 20, 1],
        [6, *[12] * 99, 2],
        [10, 200, 10],
        [10, *[200] * 4, 1],
        [5, 200, 1, 50, 3],
    ],
    ids=lambda widths: f"{len(widths) - 1}x{max(widths)}",
)
def test_balanced_to_machine_precision_at_any_depth_and_scale(widths, bias):
    net = network(widths, bias=bias, seed=3, spread=6.0)
    assert imbalance(net).residual > 0.9
    found = balancing(net)
    measured = imbalance(found.network)
    assert measured.residual == found.residual
    assert found.residual <= 1e-14
    for gap, weight in zip(measured.per_neuron, found.network.weights[1:], strict=True):
        assert bool((gap <= 1e-13 * (weight.detach() ** 2).sum(0)).all())  # every neuron by itself
    assert found.newton_steps + found.sweeps <= 30
    same_function(net, found.network)


@pytest.mark.parametrize("bias", [False, True])
def test_the_alternating_iteration_creeps_to_the_same_norm(bias):
    net = network([3, *[6] * 9, 2], bias=bias, seed=1, spread=3.0)
    found = balancing(net)
    slow = by_turns(net, 1000)
    assert imbalance(by_turns(net, 20)).residual > 1e-4 > imbalance(slow).residual
    assert norm(slow) == pytest.approx(found.norm, rel=1e-9)
    assert norm(slow) >= found.norm * (1 - 1e-14)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 5), min_size=3, max_size=8),
    bias=st.booleans(),
    density=st.sampled_from([0.4, 0.8, 1.0]),
    seed=st.integers(0, 999),
)
def test_any_rescaling_of_a_network_is_balanced_to_the_same_network(widths, bias, density, seed):
    first, second = (balance(network(widths, 0.0, bias, seed, s, density)) for s in (0.0, 5.0))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)
    again = balance(first)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_step_that_would_raise_the_norm_is_a_sweep_instead():
    g = np.random.default_rng(133)
    depth = int(g.integers(2, 30))
    widths = [int(v) for v in g.integers(1, 6, depth + 1)]
    pairs = list(itertools.pairwise(widths))
    weights = [10 ** g.uniform(-100, 100, (b, a)) * (g.random((b, a)) < g.uniform(0.3, 1)) for a, b in pairs]
    biases = [10 ** g.uniform(-100, 100, b) * (g.random(b) < 0.5) for b in widths[1:]]
    found = balancing(from_layers([torch.from_numpy(w) for w in weights], [torch.from_numpy(b) for b in biases]))
    assert found.sweeps > 0
    assert found.residual <= 1e-14


def test_scales_beyond_the_range_of_their_squares_and_products():
    tiny, huge = torch.tensor([[1e-200]], dtype=torch.float64), torch.tensor([[1e200]], dtype=torch.float64)
    assert balancing(from_layers([huge, tiny])).norm == pytest.approx(2.0, rel=1e-14)
    chain = from_layers([torch.tensor([[1e-30]])] * 50 + [torch.tensor([[1e30]])] * 50)
    found = balancing(chain)  # the scale of layer 50 is 1e1500
    assert found.norm == pytest.approx(100.0, rel=1e-6)  # 1e30 in float32
    assert found.residual <= 1e-14
    smallest = from_layers([torch.full((1, 1), v, dtype=torch.float64) for v in (5e-324, 1e300, 1e8)])
    assert 0 < balancing(smallest).norm < 1e-9


def test_neurons_on_no_path_are_set_to_zero_and_the_function_stays():
    net = network([3, 6, 5, 4, 2], seed=2)
    with torch.no_grad():
        net.weights[0][0] = 0.0  # no way in
        net.biases[0][0] = 0.0
        net.weights[1][:, 1] = 0.0  # no way out
        net.weights[1][3, 1:] = 0.0  # fed by neuron 0 of layer 1 alone
        net.biases[1][3] = 0.0
        net.weights[3][:, 2] = 0.0
        net.weights[2][[0, 1, 3], 4] = 0.0  # leads to neuron 2 of layer 3 alone
    found = balancing(net)
    assert [torch.nonzero(d).flatten().tolist() for d in found.dead] == [[0, 1], [3, 4], [2]]
    for l, dead in enumerate(found.dead):  # noqa: E741
        assert not found.network.weights[l][dead].any()
        assert not found.network.biases[l][dead].any()
        assert not found.network.weights[l + 1][:, dead].any()
    assert found.residual <= 1e-14
    same_function(net, found.network)
    assert norm(net) > found.norm


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("bias", [False, True])
def test_networks_of_which_nothing_is_left(slope, bias):
    net = network([2, 3, 3, 1], slope, bias)
    with torch.no_grad():
        net.weights[1].zero_()
        if bias:
            net.biases[1].zero_()
    found = balancing(net)
    assert found.norm == (float(net.biases[-1].detach()) ** 2 if bias else 0.0)
    assert all(bool(d.all()) for d in found.dead)
    same_function(net, found.network)
    zero = balancing(from_layers([torch.zeros(2, 3), torch.zeros(1, 2)]))
    assert zero.norm == zero.residual == 0.0


def test_a_constant_that_comes_in_half_way():
    bias = [torch.tensor([0.0, 0.0]), torch.tensor([7.0]), torch.tensor([3.0])]
    net = from_layers([torch.ones(2, 2), torch.zeros(1, 2), torch.tensor([[5.0]])], bias)
    found = balancing(net)
    assert found.norm == pytest.approx(2 * 7 * 5 + 9)
    same_function(net, found.network)


def test_a_network_of_one_layer_stays_as_it_is():
    net = bnrank.MLP([3, 2], seed=0)
    found = balancing(net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), found.network.parameters(), strict=True))
    assert (found.residual, found.dead, found.norm) == (0.0, (), found.norm_before)


def test_type_precision_and_structure_are_kept_and_the_network_is_not_changed():
    net = nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(4, 9), nn.LeakyReLU(0.3), nn.Linear(9, 7, bias=False), nn.LeakyReLU(0.3)),
        nn.Dropout(0.5),
        nn.Linear(7, 2),
    )
    net.train()
    net[1][0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in net.parameters()]
    state = torch.random.get_rng_state()
    found = balancing(net)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert [type(m) for m in found.network.modules()] == [type(m) for m in net.modules()]
    assert found.network[1][2].bias is None
    assert not found.network[1][0].weight.requires_grad
    assert {p.dtype for p in found.network.parameters()} == {torch.float32}
    x = torch.randn(20, 2, 2)
    with torch.no_grad():
        torch.testing.assert_close(found.network.eval()(x), net.eval()(x), rtol=1e-5, atol=1e-6)
    assert found.residual <= 1e-14 < imbalance(bnrank.networks.as_mlp(found.network)).residual < 1e-7
    linear = balance(bnrank.networks.LinearNetwork([3, 4, 2]))
    assert type(linear) is bnrank.networks.LinearNetwork
    assert linear.weights[0].dtype == torch.float32


def test_what_is_no_chain_or_not_finite_is_refused():
    with pytest.raises(TypeError, match="Conv2d"):
        balance(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)))
    with pytest.raises(TypeError, match="net: got"):
        balance("a network")
    net = bnrank.MLP([2, 2, 1])
    with torch.no_grad():
        net.weights[1][0, 0] = math.nan
    with pytest.raises(ValueError, match=r"NaN or infinite entries in layers\.1\.weight"):
        balance(net)
