import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import LinearNetwork, from_layers, make
from bnrank.theory.cost.bounds import lower_bound
from bnrank.theory.cost.bracketing import _ranges, bracket
from bnrank.theory.cost.closed_forms import linear
from helpers import norm, normal

quick = settings(max_examples=20, deadline=None, derandomize=True)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def vector(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def network(widths, slope=0.0, bias=True, seed=0, spread=1.0):
    net = make(widths, slope, bias, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, b in enumerate(net.biases):
            b.copy_(spread * normal(len(b), seed=seed + i))
    return net


def points_of(box, n=300):
    return box[:, 0] + torch.rand(n, len(box), generator=torch.Generator().manual_seed(9)).double() * (
        box[:, 1] - box[:, 0]
    )


def check(net, x, domain="box", **kwargs):
    """Everything a bracket claims; returns it."""
    found = bracket(net, x, domain=domain, **kwargs)
    reference = copy.deepcopy(net).double()
    assert found.lower <= found.upper <= found.norm * (1 + 1e-12)
    assert found.norm == pytest.approx(norm(net))
    assert found.gap == found.upper - found.lower >= 0
    double = net.weights[0].dtype == torch.float64
    assert norm(found.network) == pytest.approx(found.upper, rel=1e-12 if double else 1e-5)
    assert found.network.depth == net.depth == found.depth
    assert found.network.slope == net.slope
    assert bnrank.cost.imbalance(found.network).residual < (1e-9 if double else 1e-5)
    points = x if domain == "data" else points_of(found.domain)
    with torch.no_grad():
        expected = reference(points.double())
        deviation = float((copy.deepcopy(found.network).double()(points.double()) - expected).abs().max())
    size = 1 + float(expected.abs().max())
    precision = 1e-9 if double else 1e-5
    assert deviation <= precision * size
    assert found.deviation <= precision * size
    again = lower_bound(net, x, domain=domain, **kwargs)
    assert again == pytest.approx(float(found.lower), rel=1e-12)
    assert torch.equal(again.point, found.lower.point)
    return found


@quick
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3, -0.5, 1.0]),
    st.booleans(),
    st.sampled_from([[2, 5, 4, 2], [1, 4, 1], [3, 4, 4, 4, 1], [2, 3]]),
    st.sampled_from(["box", "data"]),
    st.sampled_from([0.1, 3.0]),
)
def test_lower_is_at_most_upper_and_the_network_equals_f_on_the_domain(seed, slope, bias, widths, domain, spread):
    net, x = network(widths, slope, bias, seed, spread), normal(7, widths[0], seed=seed)
    check(net, x, domain)


def test_linear_networks_are_known_exactly():
    net = LinearNetwork([4, 6, 5, 3], bias=False, seed=0, dtype=torch.float64)
    found = check(net, normal(5, 4))
    product = net.weights[2] @ net.weights[1] @ net.weights[0]
    assert found.exact
    assert found.how == "affine"
    assert found.upper == pytest.approx(linear(product, 3)) == pytest.approx(float(found.lower))
    assert found.upper < 0.8 * found.norm
    assert found.network.widths == [4, 3, 3, 3]


def test_a_bias_at_the_end_of_a_linear_network_costs_its_square_at_most():
    net = network([3, 4, 2], 1.0, seed=1)
    found = check(net, normal(5, 3))
    product, constant = net.weights[1] @ net.weights[0], net(torch.zeros(1, 3).double()).detach()
    assert found.lower == pytest.approx(linear(product, 2))
    assert found.upper <= linear(product, 2) + float((constant**2).sum()) + 1e-9


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5])
def test_a_linear_map_is_as_cheap_as_without_activation_only_where_signs_allow(slope):
    net = from_layers([3 * torch.eye(2), 2 * torch.eye(2), matrix([1, 0], [0, 1])], slope=slope)  # 6 x for x >= 0
    positive, signed = check(net, matrix([0, 0], [1, 2])), bracket(net, matrix([-1, -1], [1, 2]))
    assert positive.exact
    assert positive.upper == pytest.approx(linear(6 * torch.eye(2), 3))
    assert signed.upper > positive.upper * (1 - 1e-9)
    # the same map on inputs of both signs, by biases that make the representation positive
    lifted = from_layers([torch.eye(2), torch.eye(2)], [vector(5, 5), vector(-5, -5)], slope)
    cheap = check(lifted, matrix([-1, -1], [1, 2]))
    assert cheap.how == "affine"
    assert cheap.lower == pytest.approx(4)
    assert not cheap.exact
    assert 4 + 2 < cheap.upper < norm(lifted) / 2  # biases of 1, not 5
    negative = check(lifted, -matrix([1, 0], [4, 3]))
    assert negative.upper == pytest.approx(4)  # turned round: -x is non-negative there
    assert negative.exact


def test_neurons_that_are_dead_on_the_domain_go():
    # relu(x) + 9 relu(x - 5) - 7 relu(-x + 8 - 10) ...: only the first matters on [0, 4]
    net = from_layers([matrix([1], [1], [-1]), matrix([1, 9, -7])], [vector(0, -5, -2), vector(0)])
    x = matrix([0], [1], [4])
    here, wide = check(net, x), check(net, x, [[-3.0, 6.0]])
    assert here.network.widths == [1, 1, 1]
    assert here.upper == pytest.approx(2) == pytest.approx(float(here.lower))
    assert here.exact
    assert wide.network.widths == [1, 3, 1]
    assert wide.lower == pytest.approx(20)
    assert wide.upper > 40
    # a neuron that wakes up between the samples counts in the box, not at the data
    bump = from_layers([matrix([1], [1], [-1]), matrix([1, 1, 1])], [vector(1, -2, -10), vector(0)])
    gap = matrix([0], [3])
    assert check(bump, gap).network.widths[1] == 2
    assert check(bump, matrix([0], [1]), "data").network.widths[1] == 1


def test_layers_of_which_nothing_is_left_are_found_through_others():
    net = network([2, 3, 3, 2], seed=0, spread=0.0)
    with torch.no_grad():
        net.biases[0].fill_(-100.0)  # layer 1 is dead, so layer 2 has no input and no bias
        net.biases[2].copy_(vector(3, 4))
    for domain in ("box", "data"):
        found = check(net, normal(6, 2), domain)
        assert found.lower == 0
        assert found.upper == pytest.approx(25)  # the constant (3, 4)


def test_exact_regions_and_intervals_agree_about_what_is_dead():
    net = from_layers([matrix([1, 0], [0, 1], [-1, -1]), torch.eye(3)], [vector(1, 1, -3), vector(0, 0, 0)])
    x = matrix([0, 0], [1, 1])
    assert check(net, x).upper == pytest.approx(check(net, x, max_regions=0).upper)
    # of relu(x0 - x1) and relu(x1 - x0) one is 0, their sum at most 1: regions see it, intervals do not
    net = from_layers(
        [matrix([1, -1], [-1, 1]), matrix([1, 1], [1, 1]), torch.eye(2)],
        [vector(0, 0), vector(-0.5, -1.2), vector(0, 0)],
    )
    seen, unseen = check(net, x), check(net, x, max_regions=0)
    assert seen.network.widths == [2, 2, 1, 2]
    assert unseen.network.widths == net.widths
    assert seen.upper < unseen.upper


def test_depth_one_and_constants():
    single = network([3, 2], bias=False)
    found = check(single, normal(4, 3))
    assert found.exact
    assert found.upper == pytest.approx(norm(single))
    constant = network([2, 3, 2])
    with torch.no_grad():
        constant.weights[0].zero_()
        constant.biases[0].fill_(1.0)
    assert check(constant, normal(4, 2)).lower == 0
    zero = from_layers([torch.zeros(3, 2), torch.zeros(1, 3)])
    assert check(zero, normal(4, 2)).upper == 0
    assert check(zero, normal(4, 2)).exact
    assert check(network([2, 3, 1]), normal(1, 2)).exact in (True, False)  # one sample


@quick
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, -0.5]), st.booleans())
def test_interval_bounds_contain_all_preactivations(seed, slope, bias):
    net, box = network([2, 4, 4, 3], slope, bias, seed), torch.tensor([[-2.0, 1.0], [0.5, 0.5]]).double()
    lows, highs = _ranges(net, box.mean(1)[None], (box[:, 1:] - box[:, :1]).T / 2)
    a = points_of(box, 500)
    for layer, low, high in zip(net.layers, lows, highs, strict=False):
        z = layer(a).detach()
        assert bool(((low <= z) & (z <= high)).all())
        a = torch.where(z > 0, z, slope * z)


def test_precision_and_form_of_what_comes_back():
    net = bnrank.MLP([2, 8, 8, 2], seed=0)
    x, before, state = normal(6, 2).float(), copy.deepcopy(net.state_dict()), torch.get_rng_state()
    found = check(net, x)
    assert found.network.weights[0].dtype == torch.float32
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    layers = [m for layer in net.layers for m in (layer, nn.ReLU())][:-1]
    sequential = bracket(nn.Sequential(*layers), x.numpy())
    assert (sequential.upper, float(sequential.lower)) == (found.upper, float(found.lower))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.upper = 0.0


def test_what_is_no_chain_is_refused():
    with pytest.raises(TypeError, match="Conv2d"):
        bracket(nn.Conv2d(1, 1, 3), normal(2, 1, 4, 4))
    net = network([2, 3, 2])
    with pytest.raises(ValueError, match="domain"):
        bracket(net, normal(3, 2), domain="everywhere")
    with torch.no_grad():
        net.biases[0][0] = math.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        bracket(net, normal(3, 2))


def test_a_trained_network_is_bracketed_more_tightly_than_at_the_start():
    task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)
    net = bnrank.MLP([3, 8, 8, 8, 3], seed=0, dtype=torch.float64)
    run = bnrank.train(net, task, ridge=1e-2, steps=400, progress=False, dtype=torch.float64)
    before, after = bracket(net, task.x), bracket(run.network(0), task.x)
    assert after.lower <= after.upper <= after.norm
    assert after.upper / after.lower < before.upper / before.lower
