"""Deeper networks of the same function (T29)."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bnrank.networks import from_layers
from bnrank.networks.mlp import leaky_relu
from bnrank.theory.constructions import deepen
from helpers import norm, normal
from theory.constructed import QUICK, close, network, networks


def representations(net, x):
    """a_0, ..., a_{L-1} and f, one layer after the other."""
    values = [x]
    for i, layer in enumerate(net.layers):
        z = layer(values[-1]).detach()
        values.append(z if i == net.depth - 1 else leaky_relu(z, net.slope))
    return values


@QUICK
@given(networks(), st.integers(0, 5))
def test_the_function_is_the_same_everywhere(net, extra):
    deeper, x = deepen(net, net.depth + extra), 3 * normal(15, net.widths[0])
    assert close(deeper(x), net(x))
    assert deeper.depth == net.depth + extra
    assert deeper.slope == net.slope
    assert bool(deeper.biases) == bool(net.biases)


@QUICK
@given(networks(), st.integers(1, 5), st.integers(1, 6))
def test_the_function_is_the_same_on_the_samples(net, extra, n):
    x = normal(n, net.widths[0], seed=n)
    deeper = deepen(net, net.depth + extra, x)
    assert close(deeper(x), net(x), 1e-9)
    assert deeper.depth == net.depth + extra
    assert norm(deeper) <= norm(deepen(net, net.depth + extra)) + 1e-9


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
@pytest.mark.parametrize("k", [1, 2])
def test_it_is_the_same_on_the_whole_span(slope, k):
    """Samples in the orthant on k dimensions of the input, which is the cheapest place: the projection goes there."""
    factor, net = normal(5, k, seed=1).abs(), network([5, 6, 6, 6, 3], slope)
    deeper = deepen(net, 7, normal(9, k, seed=2).abs() @ factor.T)
    assert [tuple(w.shape) for w in deeper.weights][:4] == [(5, 5)] * 3 + [(6, 5)]
    others = normal(50, k, seed=3).abs() @ factor.T
    assert close(deeper(others), net(others))
    off = normal(50, 5, seed=4).abs()
    assert not close(deeper(off), net(off), 1e-2)


@QUICK
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans(), st.integers(1, 5))
def test_without_samples_it_costs_the_narrowest_width(hidden, bias, extra):
    net = network([9, *hidden, 9], bias=bias)
    deeper = deepen(net, net.depth + extra)
    assert norm(deeper) == pytest.approx(norm(net) + min(hidden) * extra, rel=1e-13)
    place = 1 + hidden.index(min(hidden))
    assert deeper.widths == [*net.widths[:place], *[min(hidden)] * extra, *net.widths[place:]]


def test_signed_ends_are_taken_where_they_are_cheaper():
    net = network([1, 20, 20, 3], bias=False)
    deeper = deepen(net, 13)
    assert deeper.widths == [1, *[2] * 10, 20, 20, 3]
    assert norm(deeper) == pytest.approx(norm(net) + 2 * 10 + float((net.weights[0].detach() ** 2).sum()))
    out = network([30, 20, 20, 1])
    assert deepen(out, 14).widths == [30, 20, 20, *[2] * 11, 1]
    x = normal(9, 30)
    assert close(deepen(out, 14)(x), out(x))


@pytest.mark.parametrize("depth", [4, 5, 9])
@pytest.mark.parametrize("slope", [0.3, -0.5])
def test_other_slopes_need_two_neurons_per_coordinate(slope, depth):
    net, x = network([6, 5, 2, 5, 6], slope), normal(30, 6)
    deeper = deepen(net, depth)
    assert close(deeper(x), net(x))
    if depth > 5:  # for one layer, joining costs more than the layer
        assert deeper.widths == [6, 5, 2, *[4] * (depth - 4), 5, 6]
        assert norm(deepen(net, depth + 1)) == pytest.approx(norm(deeper) + 4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_with_samples_it_costs_the_planted_dimension(rank):
    """The middle layer has 10 neurons, but its representation has the planted dimension on every sample."""
    low = normal(10, rank).abs() @ normal(rank, 10, seed=1).abs()
    weights = [normal(10, 10, seed=2).abs(), low, normal(10, 10, seed=3), normal(4, 10, seed=4)]
    zero = torch.zeros(10, dtype=torch.float64)
    net = from_layers(weights, [zero, zero, 20 * normal(10, seed=6), normal(4, seed=7)])
    x = normal(40, 10, seed=5).abs() + 1
    spans = [int(torch.linalg.matrix_rank(a, rtol=1e-10)) for a in representations(net, x)]
    assert spans[:3] == [10, 10, rank]
    assert min(spans[3:]) > rank
    deeper = deepen(net, 11, x)
    assert close(deeper(x), net(x))
    assert norm(deeper) == pytest.approx(norm(net) + rank * 7, rel=1e-10)


def test_the_cost_is_the_least_span_of_all():
    for seed in range(6):
        net, x = network([7, 6, 6, 6, 7], seed=100 * seed), normal(5, 7, seed=seed)
        values = representations(net, x)
        costs = [
            (1 if bool((a >= 0).all()) else 2) * int(torch.linalg.matrix_rank(a, rtol=1e-10)) for a in values[1:-1]
        ]
        assert norm(deepen(net, 24, x)) == pytest.approx(norm(net) + 20 * min(costs), rel=1e-9)


def test_dead_layers_cost_nothing_on_the_samples():
    net = from_layers(
        [normal(5, 3), normal(5, 5, seed=1), normal(2, 5, seed=2)],
        [-100 * torch.ones(5), torch.zeros(5), torch.ones(2)],
    )
    deeper, x = deepen(net, 9, normal(4, 3)), normal(4, 3)
    assert torch.equal(deeper(x), net(x))
    assert norm(deeper) == norm(net)


def test_a_larger_tolerance_gives_an_approximate_cheaper_network():
    net, x = network([5, 8, 8, 5], bias=False), normal(30, 5)
    exact, rough = deepen(net, 8, x), deepen(net, 8, x, rtol=0.2)
    assert norm(rough) < norm(exact) - 4
    assert close(exact(x), net(x), 1e-9)
    assert not close(rough(x), net(x), 1e-3)


def test_inserted_biases_are_zero_and_the_network_is_left_alone():
    net = nn.Sequential(nn.Linear(9, 3), nn.ReLU(), nn.Linear(3, 9))
    before = [p.detach().clone() for p in net.parameters()]
    deeper = deepen(net, 5)
    assert [bool(b.any()) for b in deeper.biases] == [True, False, False, False, True]
    assert deeper.weights[0].dtype == torch.float32
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    copied = deepen(net, 2)
    assert not {p.data_ptr() for p in copied.parameters()} & {p.data_ptr() for p in net.parameters()}
    assert all(torch.equal(p, q) for p, q in zip(copied.weights, [net[0].weight, net[2].weight], strict=True))


def test_widths_add_up():
    for extra, net in itertools.product((1, 2, 3), (network([2, 2]), network([3, 1], 0.3), network([2, 4], 1.0))):
        x = normal(10, net.widths[0])
        assert close(deepen(net, 1 + extra)(x), net(x))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: deepen(network([3, 4, 2]), 1), ValueError, "depth: got 1.*at least 2"),
        (lambda: deepen(nn.Conv1d(1, 1, 1), 3), TypeError, "net: got Conv1d"),
        (lambda: deepen(network([3, 4, 2]), 3, torch.ones(2, 4)), ValueError, r"x: got shape \(2, 4\)"),
        (lambda: deepen(network([3, 4, 2]), 3, rtol=-1.0), ValueError, "rtol: got -1"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
