"""Identity blocks, composition, sums and networks of a factorization (T29)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bnrank.networks import LinearNetwork, from_layers
from bnrank.theory.constructions import add, bottleneck, compose, identity
from helpers import norm, normal
from theory.constructed import QUICK, SLOPES, close, layer_norms, network, networks


@QUICK
@given(st.integers(1, 5), st.integers(1, 6), SLOPES, st.integers(0, 99))
def test_identity_on_the_orthant_costs_k_per_layer(k, depth, slope, seed):
    net, x = identity(k, depth, slope), normal(7, k, seed=seed).abs()
    assert torch.equal(net(x), x)
    assert norm(net) == k * depth
    assert net.widths == [k] * (depth + 1)
    assert net.slope == slope
    assert not net.biases


@QUICK
@given(st.integers(1, 5), st.integers(1, 6), SLOPES, st.integers(0, 99))
def test_signed_identity_is_exact_everywhere(k, depth, s, seed):
    net, x = identity(k, depth, s, signed=True), normal(7, k, seed=seed)
    assert close(net(x), x, 1e-14)
    if depth == 1 or s == 1:
        expected = k * depth
    elif depth == 2:
        expected = 2 * k + 2 * k / (1 + s) ** 2
    else:
        expected = 2 * k * (depth - 1) + 2 * k * (1 + s**2) / (1 - s**2) ** 2
    assert norm(net) == pytest.approx(expected, rel=1e-14)


def test_plain_identity_is_relu_elsewhere():
    x = normal(20, 3)
    assert torch.equal(identity(3, 1)(x), x)
    assert torch.equal(identity(3, 4)(x), torch.relu(x))
    assert isinstance(identity(3, 4, 1), LinearNetwork)
    assert torch.equal(identity(3, 4, 1)(x), x)


@QUICK
@given(st.data(), SLOPES)
def test_composition(data, slope):
    g = data.draw(networks(slope=slope))
    h = data.draw(networks(d_in=g.widths[-1], slope=slope))
    net, x = compose(h, g), normal(15, g.widths[0])
    assert close(net(x), h(g(x)))
    assert net.depth == h.depth + g.depth - 1
    merged = h.weights[0] @ g.weights[-1]
    bias = h.weights[0] @ g.biases[-1] if g.biases else torch.zeros(len(merged), dtype=torch.float64)
    bias = bias + h.biases[0] if h.biases else bias
    one = float((merged.detach() ** 2).sum() + (bias.detach() ** 2).sum())
    expected = norm(h) + norm(g) - layer_norms(h)[0] - layer_norms(g)[-1] + one
    assert norm(net) == pytest.approx(expected, rel=1e-12)
    assert bool(net.biases) == bool(h.biases or g.biases)


@QUICK
@given(st.data(), SLOPES)
def test_parallel_sum(data, slope):
    f = data.draw(networks(slope=slope))
    g = data.draw(networks(d_in=f.widths[0], d_out=f.widths[-1], slope=slope))
    net, x = add(f, g), normal(15, f.widths[0])
    assert close(net(x), f(x) + g(x))
    assert net.depth == max(f.depth, g.depth)
    if f.depth == g.depth > 1:
        cross = 2 * float((f.biases[-1] * g.biases[-1]).detach().sum()) if f.biases and g.biases else 0.0
        assert norm(net) == pytest.approx(norm(f) + norm(g) + cross, rel=1e-12)


def test_sums_of_different_depth_cost_the_width_of_the_narrowest_layer():
    f, g = network([4, 6, 2, 5, 3], bias=False), network([4, 6, 6, 6, 6, 6, 3], bias=False, seed=1)
    assert norm(add(f, g)) == pytest.approx(norm(f) + norm(g) + 2 * 2, rel=1e-13)
    assert norm(add(g, f)) == pytest.approx(norm(f) + norm(g) + 2 * 2, rel=1e-13)


def test_sum_of_affine_maps_adds_weights():
    f, g = network([4, 3]), network([4, 3], seed=1)
    assert torch.equal(add(f, g).weights[0], f.weights[0] + g.weights[0])
    assert torch.equal(add(f, g).biases[0], f.biases[0] + g.biases[0])


@QUICK
@given(st.data(), SLOPES, st.integers(0, 6))
def test_bottleneck_network_costs_k_per_layer(data, slope, extra):
    g = data.draw(networks(slope=slope))
    k = g.widths[-1]
    h = data.draw(networks(d_in=k, slope=slope))
    x = normal(15, g.widths[0])
    least, lower = g.depth + h.depth, g(x).detach().amin(0)
    net, base = (bottleneck(h, g, depth, lower=lower) for depth in (least + extra, least))
    assert close(net(x), h(g(x)))
    assert net.depth == least + extra
    assert norm(net) == pytest.approx(norm(base) + k * extra, rel=1e-12)
    assert net.widths[g.depth : g.depth + extra + 1] == [k] * (extra + 1)


@QUICK
@given(st.data(), SLOPES, st.integers(-1, 5))
def test_identities_for_both_signs_between_networks_are_exact_everywhere(data, slope, extra):
    g = data.draw(networks(slope=slope))
    k = g.widths[-1]
    h = data.draw(networks(d_in=k, slope=slope))
    x = 10 * normal(15, g.widths[0])
    net = compose(h, compose(identity(k, extra + 2, slope, signed=True), g))
    assert close(net(x), h(g(x)))
    assert net.depth == g.depth + h.depth + extra
    if extra > 1:
        shallower = compose(h, compose(identity(k, extra + 1, slope, signed=True), g))
        assert norm(net) - norm(shallower) == pytest.approx(k if slope == 1 else 2 * k, rel=1e-9)


def test_bottleneck_network_has_the_norm_of_the_theorem():
    """Where g(x) >= 0 nothing is moved, and the norm is ||theta_g||^2 + k (L - L_g - L_h) + ||theta_h||^2."""
    g, h = identity(3, 2), network([3, 8, 2], bias=False)
    net = bottleneck(h, g, 50, lower=0.0)
    assert not net.biases
    assert norm(net) == pytest.approx(norm(g) + 3 * 46 + norm(h), rel=1e-13)
    x = normal(9, 3).abs()
    assert close(net(x), h(x))


def test_bottleneck_network_is_only_exact_above_the_bound():
    g, h = network([2, 2], bias=False), network([2, 2], bias=False, seed=3)
    net = bottleneck(h, g, 5, lower=torch.tensor([-1.0, 0.0]))
    x = torch.linalg.solve(g.weights[0].detach(), torch.tensor([[-1.0, -1.1, 5.0], [0.0, 3.0, -0.1]]).double()).T
    exact = (net(x) - h(g(x))).abs().amax(1) < 1e-12
    assert exact.tolist() == [True, False, False]


def test_only_outputs_below_zero_are_moved():
    g, h = network([2, 5, 3]), network([3, 5, 2], seed=3)
    net = bottleneck(h, g, 6, lower=torch.tensor([0.5, -1.0, 0.0]))
    shift = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert close(net.biases[1], g.biases[1] + shift)
    assert close(net.biases[4], h.biases[0] - h.weights[0] @ shift)
    assert not any(b.any() for b in net.biases[2:4])


def test_one_affine_layer_fits_any_slope():
    affine, leaky = nn.Linear(3, 3).double(), network([3, 5, 3], slope=0.3)
    x = normal(6, 3)
    assert close(compose(affine, leaky)(x), affine(leaky(x)))
    assert close(add(leaky, affine)(x), affine(x) + leaky(x))
    assert compose(leaky, affine).slope == 0.3


def test_modules_are_left_alone_and_precision_is_the_higher():
    f = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).train()
    before = {name: value.clone() for name, value in f.state_dict().items()}
    g, x = network([3, 4, 3]), normal(5, 3)
    assert compose(f, f).weights[0].dtype == torch.float32
    assert compose(f, g).weights[0].dtype == torch.float64
    assert close(compose(f, g)(x), f.double()(g(x)))
    f.float()
    assert all(torch.equal(before[name], value) for name, value in f.state_dict().items())
    assert f.training


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: compose(network([3, 4, 2]), network([3, 4, 2])), ValueError, "h: got 3 inputs.*outputs, 2"),
        (lambda: compose(network([2, 4, 2], 0.3), network([2, 4, 2])), ValueError, "h: got slope 0.3.*g.*with_slope"),
        (lambda: add(network([2, 4, 2]), network([3, 4, 2])), ValueError, "g: got 3 inputs.*2"),
        (lambda: add(network([2, 4, 2]), network([2, 4, 1])), ValueError, "g: got 1 outputs.*2"),
        (lambda: add(network([2, 4, 2]), nn.Conv2d(1, 1, 1)), TypeError, "g: got Conv2d"),
        (lambda: compose("net", network([2, 2])), TypeError, "h: got 'net'"),
        (lambda: compose(from_layers([torch.tensor([[torch.nan]])]), network([1, 1])), ValueError, "h: got NaN"),
        (lambda: bottleneck(network([2, 4, 2]), network([2, 4, 2]), 3, lower=0.0), ValueError, "depth: got 3.*4"),
        (lambda: bottleneck(network([2, 2]), network([2, 2]), 9, lower=torch.zeros(3)), ValueError, r"lower: .*\(2,\)"),
        (lambda: identity(0, 3), ValueError, "k: got 0"),
        (lambda: identity(2, 3.0), TypeError, "depth: got 3.0"),
        (lambda: identity(2, 3, -1.0), ValueError, "slope: got -1"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
