import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory.cost.pruning import prune
from bnrank.theory.cost.rescaling import balancing
from helpers import norm

SLOPES = [0.0, 0.3, -0.5, 1.0]


def random(widths, slope=0.0, bias=True, seed=0):
    net = from_layers([torch.zeros(b, a) for a, b in itertools.pairwise(widths)], (), slope)
    g = torch.Generator().manual_seed(seed)
    weights = [torch.randn(w.shape, generator=g, dtype=torch.float64) for w in net.weights]
    return from_layers(weights, [torch.randn(len(w), generator=g, dtype=torch.float64) for w in weights] * bias, slope)


def agree(net, other, x=None, tolerance=1e-12):
    if x is None:
        x = 3 * torch.randn(200, net.widths[0], dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y, z = net(x), other(x)
    scale = float(y.abs().max()) + 1e-300
    return float((y - z).abs().max()) <= tolerance * scale


def with_copies(net, layer, copies, seed=0):
    """The same function, neuron i of a hidden layer (from 0) in copies[i] parallel pieces."""
    g = np.random.default_rng(seed)
    weights, biases = [w.detach().numpy() for w in net.weights], [b.detach().numpy() for b in net.biases]
    index = np.repeat(np.arange(len(copies)), copies)
    scale = 10 ** g.uniform(-2, 2, len(index))
    share = g.uniform(0.1, 1, len(index))
    share /= np.bincount(index, share)[index]
    order = g.permutation(len(index))
    weights[layer] = (weights[layer][index] * scale[:, None])[order]
    weights[layer + 1] = (weights[layer + 1][:, index] * share / scale)[:, order]
    if biases:
        biases[layer] = (biases[layer][index] * scale)[order]
    return from_layers([torch.from_numpy(w) for w in weights], [torch.from_numpy(b) for b in biases], net.slope)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    slope=st.sampled_from(SLOPES),
    bias=st.booleans(),
    copies=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    layer=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_parallel_neurons_become_one(slope, bias, copies, layer, seed):
    plain = random([3, 4, 4, 4, 2], slope, bias, seed)
    net = with_copies(plain, layer, copies, seed)
    found = prune(net)
    assert found.network.widths == plain.widths
    assert agree(net, found.network)
    assert agree(plain, found.network, tolerance=1e-10)
    assert found.exact_on == "everywhere"
    assert (found.norm_before, found.norm) == (pytest.approx(norm(net)), pytest.approx(norm(found.network)))
    assert found.norm <= found.norm_before
    assert balancing(found.network).norm == pytest.approx(balancing(plain).norm, rel=1e-10)
    assert len(found.merged[layer]) == sum(c > 1 for c in copies)
    assert sum(len(others) for _, others in found.merged[layer]) == sum(copies) - 4
    assert not any(found.removed)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    slope=st.sampled_from(SLOPES),
    bias=st.booleans(),
    widths=st.lists(st.integers(1, 4), min_size=3, max_size=6),
    density=st.sampled_from([0.2, 0.5, 0.8]),
    seed=st.integers(0, 999),
    samples=st.booleans(),
)
def test_nothing_is_lost_and_the_norm_never_rises(slope, bias, widths, density, seed, samples):
    g = torch.Generator().manual_seed(seed)
    net = random(widths, slope, bias, seed)
    with torch.no_grad():
        for p in net.parameters():  # few values, so that rows are often parallel
            p.copy_((torch.rand(p.shape, generator=g) < density) * p.sign() * 2 ** p.round())
    x = torch.randn(3, widths[0], generator=g, dtype=torch.float64) if samples else None
    found = prune(net, x)
    assert agree(net, found.network, x if found.exact_on == "samples" else None)
    assert found.norm <= found.norm_before * (1 + 1e-14)
    assert balancing(found.network).norm <= balancing(net).norm * (1 + 1e-12)
    assert all(after <= before for after, before in zip(found.network.widths, widths, strict=True))
    gone = [len(r) + sum(len(o) for _, o in m) for r, m in zip(found.removed, found.merged, strict=True)]
    empty = [not layer.any() for layer in found.network.weights[:-1]]
    for before, after, lost, nothing in zip(widths[1:], found.network.widths[1:], gone, empty, strict=False):
        assert before - after <= lost <= before - after + nothing
    again = prune(found.network, x)
    assert again.network.widths == found.network.widths
    assert not any(again.merged)


def test_dead_neurons_go():
    net = random([3, 5, 4, 2], seed=1)
    with torch.no_grad():
        net.weights[0][1] = 0.0
        net.biases[0][1] = 0.0
        net.weights[2][:, 2] = 0.0
        net.weights[1][[0, 1, 3], 4] = 0.0  # leads to a dead neuron alone
    found = prune(net)
    assert found.removed == ((1, 4), (2,))
    assert found.network.widths == [3, 3, 3, 2]
    assert agree(net, found.network)


@pytest.mark.parametrize(("slope", "value"), [(0.0, 0.0), (0.3, -0.3), (-0.5, 0.5), (1.0, -1.0)])
def test_constant_neurons_are_folded_into_the_next_bias(slope, value):
    net = random([2, 3, 2], slope, seed=2)
    with torch.no_grad():
        net.weights[0][1] = 0.0
        net.biases[0][1] = -1.0
    found = prune(net)
    assert found.removed == ((1,),)
    torch.testing.assert_close(
        found.network.biases[1].detach(), (net.biases[1] + value * net.weights[1][:, 1]).detach(), rtol=1e-14, atol=0
    )
    assert agree(net, found.network)


def test_a_constant_is_kept_where_folding_it_would_raise_the_norm():
    bias = [torch.tensor([3.0, 0.5]), torch.tensor([0.0])]
    net = from_layers([torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0, 1.0]])], bias)
    found = prune(net)  # 3 * 3 by way of the neuron costs 18, a bias of 9 costs 81
    assert found.network.widths == [1, 2, 1]
    assert found.norm == found.norm_before
    with torch.no_grad():
        net.weights[1][0, 0] = 0.1
    assert prune(net).network.widths == [1, 1, 1]


def test_neurons_inactive_on_the_samples_go_with_the_samples_only():
    net = random([2, 30, 10, 1], seed=3)
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = prune(net, x)
    assert prune(net).network.widths == net.widths
    with torch.no_grad():
        inactive = (net.layers[0](x) <= 0).all(0)
    assert set(found.removed[0]) >= set(torch.nonzero(inactive).flatten().tolist()) != set()
    assert found.exact_on == "samples"
    assert agree(net, found.network, x)
    assert not agree(net, found.network)
    for slope in (0.3, -0.5, 1.0):
        assert prune(random([2, 30, 10, 1], slope, seed=3), x).removed == ((), ())


@pytest.mark.parametrize("slope", SLOPES)
def test_neurons_parallel_on_the_samples_are_merged_into_the_cheapest(slope):
    x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], dtype=torch.float64)  # one line
    net = from_layers([torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0, 1.0]])], (), slope)
    found = prune(net, x)
    assert found.network.widths == [2, 1, 1]
    assert found.merged == (((2, (0, 1)),),)  # 5 for sqrt(5): the least in-norm for its activation
    assert agree(net, found.network, x)
    assert found.norm == pytest.approx(2 * 8 / math.sqrt(5))  # f = 8 x_0 = (8 / 5) (x_0 + 2 x_1)
    assert prune(net, x, rtol=0.0).norm <= found.norm_before


def test_activations_of_opposite_sign_are_merged_on_the_samples():
    net = from_layers([torch.tensor([[1.0], [-2.0]]), torch.tensor([[1.0, 1.0]])], (), 0.5)
    x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)  # activations x and -x
    found = prune(net, x)
    assert (found.network.widths, found.norm) == ([1, 1, 1], 0.0)
    assert agree(net, found.network, x, tolerance=0.0)


def test_opposite_neurons_are_merged_where_the_activation_is_linear():
    layers = [torch.tensor([[1.0, 2.0], [-2.0, -4.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]])]
    assert prune(from_layers(layers, (), 1.0)).network.widths == [2, 2, 1]
    assert prune(from_layers(layers, (), 0.0)).network.widths == [2, 3, 1]
    first = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    found = prune(from_layers([first, torch.tensor([[3.0, -1.0]])]))  # 3 - 0.3 / 0.1 = 0, in spite of rounding
    assert found.norm == 0.0


def test_an_empty_layer_keeps_one_zero_neuron():
    net = random([2, 4, 3, 3, 1], seed=4)
    with torch.no_grad():
        net.weights[1].zero_()
        net.biases[1].copy_(torch.tensor([-1.0, -2.0, 0.0]))
    found = prune(net)
    assert found.network.widths[:3] == [2, 1, 1]
    assert not found.network.weights[0].any()
    assert not found.network.weights[1].any()
    assert agree(net, found.network)
    x = -torch.rand(5, 1, dtype=torch.float64)
    silent = prune(from_layers([torch.ones(2, 1), torch.ones(1, 2)]), x)
    assert (silent.network.widths, silent.norm, silent.exact_on) == ([1, 1, 1], 0.0, "samples")


def test_tolerance_precision_and_the_network_given():
    weights = [torch.tensor([[1.0, 0.0], [1.0, 1e-5]]), torch.tensor([[1.0, 1.0]])]
    near = from_layers(weights)
    assert prune(near).network.widths == [2, 2, 1]
    assert prune(near, rtol=1e-4).network.widths == [2, 1, 1]
    exact = from_layers([torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0, 1.0]])])
    assert prune(exact, rtol=0.0).network.widths == [2, 1, 1]
    net = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.3), nn.Linear(3, 1))
    before = [p.detach().clone() for p in net.parameters()]
    found = prune(net, torch.randn(5, 2))
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert type(found.network) is bnrank.MLP
    assert found.network.slope == 0.3
    assert found.network.weights[0].dtype == torch.float32
    assert type(prune(bnrank.networks.LinearNetwork([2, 3, 1])).network) is bnrank.networks.LinearNetwork
    assert prune(bnrank.MLP([2, 3])).network.widths == [2, 3]


def test_what_is_no_chain_or_not_finite_is_refused():
    net = bnrank.MLP([2, 3, 1])
    with pytest.raises(TypeError, match="Conv2d"):
        prune(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    with pytest.raises(ValueError, match=r"x: got shape \(4, 3\), expected \(N, 2\)"):
        prune(net, torch.randn(4, 3))
    with pytest.raises(ValueError, match="rtol: got -1"):
        prune(net, rtol=-1)
    with torch.no_grad():
        net.weights[0][0, 0] = math.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        prune(net)
