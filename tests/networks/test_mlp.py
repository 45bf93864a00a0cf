"""MLP against its definition written out, and as a plain module."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bnrank
from bnrank import MLP
from bnrank.networks.mlp import linear


def by_definition(net, x):
    """a~_l = W_l a_{l-1} + b_l, a_l = sigma_s(a~_l), entry by entry in Python numbers."""
    a = [float(v) for v in x]
    for layer, weight in enumerate(w.tolist() for w in net.weights):
        z = []
        for row, entries in enumerate(weight):
            z.append(sum(w * v for w, v in zip(entries, a, strict=True)))
            if net.biases:
                z[-1] += float(net.biases[layer][row].detach())
        a = z if layer == net.depth - 1 else [v if v >= 0 else net.slope * v for v in z]
    return a


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    slope=st.sampled_from([0.0, 0.3, -0.4, 0.99, -0.99]),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_forward_is_the_definition(widths, slope, bias, seed):
    net = MLP(widths, slope=slope, bias=bias, init=0.8, seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for b in net.biases:
            b.copy_(torch.randn(b.shape, generator=generator))
    x = torch.randn(widths[0], generator=generator, dtype=torch.float64)
    expected = torch.tensor(by_definition(net, x), dtype=torch.float64)
    torch.testing.assert_close(net(x), expected, rtol=1e-12, atol=1e-12)
    assert net.depth == len(widths) - 1
    assert [tuple(w.shape) for w in net.weights] == list(zip(widths[1:], widths[:-1], strict=True))
    assert [tuple(b.shape) for b in net.biases] == ([(n,) for n in widths[1:]] if bias else [])
    assert len(list(net.parameters())) == net.depth * (2 if bias else 1)


@pytest.mark.parametrize("slope", [0.0, 0.5, -0.5])
def test_he_init_has_its_standard_deviation(slope):
    net = MLP([300, 400, 200], slope=slope, seed=3)
    for weight in net.weights:
        expected = math.sqrt(2 / ((1 + slope**2) * weight.shape[1]))
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.02)
        assert abs(float(weight.detach().mean())) < 0.02 * expected
    assert all(not b.any() for b in net.biases)


def test_numeric_init_is_the_standard_deviation():
    net = MLP([300, 400, 200], init=0.01, seed=3)
    for weight in net.weights:
        assert float(weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert all(not w.any() for w in MLP([3, 4, 2], init=0).weights)


def test_the_seed_decides_all_in_every_precision():
    one, same, other = MLP([5, 7, 3], seed=4), MLP([5, 7, 3], seed=4), MLP([5, 7, 3], seed=5)
    fine = MLP([5, 7, 3], seed=4, dtype=torch.float64)
    for a, b, c, d in zip(one.weights, same.weights, other.weights, fine.weights, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert d.dtype == torch.float64
        assert torch.equal(a, d.float())
        assert not torch.equal(a.double(), d)


def test_the_global_generator_is_not_touched():
    before = torch.random.get_rng_state()
    MLP([5, 7, 3], seed=4).reset(5)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(1)
    one = MLP([5, 7, 3], seed=4)
    torch.manual_seed(2)
    assert torch.equal(one.weights[0], MLP([5, 7, 3], seed=4).weights[0])


def test_reset_is_a_new_network():
    net = MLP([5, 7, 3], seed=4)
    with torch.no_grad():
        net.biases[0].fill_(3.0)
    assert net.reset(9, 0.5) is net
    assert (net.seed, net.init) == (9, 0.5)
    fresh = MLP([5, 7, 3], seed=9, init=0.5)
    for name, value in net.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name])


def test_state_dict_goes_through_torch_save(tmp_path):
    net = MLP([5, 7, 3], slope=0.2, seed=4)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    twin = MLP([5, 7, 3], slope=0.2, seed=8)
    twin.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net(x), twin(x))


@pytest.mark.parametrize("slope", [0.0, -0.3])
def test_compile_to_and_deepcopy(slope):
    net = MLP([5, 7, 7, 3], slope=slope, seed=4)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x), net(x))
    double = copy.deepcopy(net).to(torch.float64)
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    torch.testing.assert_close(double(x.double()), net(x).double(), rtol=1e-5, atol=1e-6)
    assert net.weights[0].dtype == torch.float32
    assert net(torch.ones(2, 4, 5)).shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"widths": [3]}, ValueError, r"widths: got \[3\], expected at least two"),
        ({"widths": []}, ValueError, r"widths: got \[\], expected at least two"),
        ({"widths": [3, 0, 2]}, ValueError, r"widths\[1\]: got 0, expected an integer of at least 1"),
        ({"widths": [3, -4, 2]}, ValueError, r"widths\[1\]: got -4"),
        ({"widths": [3, 4.0, 2]}, TypeError, r"widths\[1\]: got 4.0 \(float\), expected an integer"),
        ({"widths": [3, True]}, TypeError, r"widths\[1\]: got True \(bool\)"),
        ({"widths": "3,4"}, TypeError, "widths: got '3,4'"),
        ({"widths": 3}, TypeError, r"widths: got 3 \(int\)"),
        ({"slope": 1.0}, ValueError, r"slope: got 1, expected a number in the open interval \(-1, 1\)"),
        ({"slope": -1}, ValueError, "slope: got -1"),
        ({"slope": 2.5}, ValueError, "slope: got 2.5"),
        ({"slope": math.nan}, ValueError, "slope: got nan"),
        ({"slope": "relu"}, TypeError, "slope: got 'relu'"),
        ({"init": "hee"}, ValueError, "init: got 'hee'.*did you mean 'he'"),
        ({"init": -0.1}, ValueError, "init: got -0.1, expected a finite number >= 0"),
        ({"init": math.inf}, ValueError, "init: got inf"),
        ({"init": None}, TypeError, "init: got None"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"seed": 0.5}, TypeError, "seed: got 0.5"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        MLP(**({"widths": [3, 4, 2]} | arguments))


def test_seeds_of_64_bits_and_integers_that_python_does_not_write(tmp_path):
    for seed in (2**63, np.uint64(2**64 - 1)):
        net = MLP([3, 2], seed=seed)
        assert net.seed == int(seed)
        assert torch.equal(bnrank.load(bnrank.save(net, tmp_path / "net.safetensors")).weights[0], net.weights[0])
    with pytest.raises(ValueError, match=r"seed: got an integer of 16,610 bits, expected an integer of at most"):
        MLP([3, 2], seed=10**5000)
    assert bnrank.tasks.low_rank_map(n=5, seed=2**100).n == 5


def test_flags_may_be_1_or_0():
    assert MLP([3, 2], bias=1).biases
    assert not MLP([3, 2], bias=0).biases
    with pytest.raises(TypeError, match="bias: got 2"):
        MLP([3, 2], bias=2)


def test_layers_that_are_not_drawn_are_plain_and_leave_the_random_state():
    before = torch.get_rng_state()
    layer = linear(3, 4, True, torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(layer) is torch.nn.Linear
    assert [(tuple(p.shape), p.dtype, p.requires_grad) for p in layer.parameters()] == [
        ((4, 3), torch.float64, True),
        ((4,), torch.float64, True),
    ]
    assert linear(3, 4, False, torch.float32).bias is None


def test_frozen_parameters_are_redrawn_too():
    net, other = bnrank.MLP([3, 4, 2], seed=0), bnrank.MLP([3, 4, 2], seed=5)
    net.layers[0].requires_grad_(False)
    net.reset(5)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


def test_without_a_seed_all_parameters_are_zero():
    net = bnrank.MLP([3, 4, 2], seed=None)
    assert not any(bool(p.any()) for p in net.parameters())
    assert net.seed is None
