"""Convolutional networks against loops over their formula."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import fx, nn

import bnrank
from bnrank.networks import Convolutional, LinearConvolutional, Window
from bnrank.tasks import Task
from bnrank.training import GradientDescent, Record, Solver


def convolve(a, weight, bias, stride, padding):
    """A convolution by loops: a (C, *size), weight (out, C, *kernel)."""
    kernel, around = weight.shape[2:], 0 if padding == "none" else (weight.shape[2] - 1) // 2
    size = a.shape[1:]
    counts = [(s + 2 * around - k) // stride + 1 for s, k in zip(size, kernel, strict=True)]
    out = np.zeros((weight.shape[0], *counts))
    for place in itertools.product(*map(range, counts)):
        total = bias.copy()
        for offset in itertools.product(*map(range, kernel)):
            at = [p * stride + o - around for p, o in zip(place, offset, strict=True)]
            if padding == "circular":
                at = [i % s for i, s in zip(at, size, strict=True)]
            if all(0 <= i < s for i, s in zip(at, size, strict=True)):
                total += weight[(slice(None), slice(None), *offset)] @ a[(slice(None), *at)]
        out[(slice(None), *place)] = total
    return out


def average(a, pool):
    counts = [s // pool for s in a.shape[1:]]
    out = np.zeros((a.shape[0], *counts))
    for place in itertools.product(*map(range, counts)):
        window = tuple(slice(p * pool, (p + 1) * pool) for p in place)
        out[(slice(None), *place)] = a[(slice(None), *window)].reshape(len(a), -1).mean(1)
    return out


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    shape=st.one_of(st.tuples(st.integers(1, 2), st.integers(3, 9)), st.tuples(*[st.integers(1, 5)] * 3)),
    channels=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 2),
    padding=st.sampled_from(["zeros", "circular", "none"]),
    pool=st.integers(1, 2),
    tail=st.lists(st.integers(1, 3), max_size=1),
    slope=st.sampled_from([0.0, 0.3, 1.0]),
    bias=st.booleans(),
)
def test_the_network_is_its_formula(shape, channels, kernel, stride, padding, pool, tail, slope, bias):
    try:
        net = Convolutional(
            shape,
            channels,
            2,
            Window(kernel, stride, padding, pool),
            tail,
            slope,
            bias,
            init=0.5,
            dtype=torch.float64,
        )
    except ValueError:  # nothing is left of the image
        assume(False)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = {name: q.detach().numpy() for name, q in net.named_parameters()}
    for i in range(3):
        a = x[i].numpy()
        for number, count in enumerate(channels, 1):
            shift = p.get(f"conv{number}.bias", np.zeros(count))
            a = convolve(a, p[f"conv{number}.weight"], shift, stride, padding)
            a = average(np.where(a >= 0, a, slope * a), pool)
        a = a.ravel()
        for name in [f"tail{k + 1}" for k in range(len(tail))] + ["output"]:
            a = p[f"{name}.weight"] @ a + p.get(f"{name}.bias", 0)
        np.testing.assert_allclose(net(x)[i].detach(), a, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fx.symbolic_trace(net)(x), net(x))


@pytest.mark.parametrize("shape", [(2, 9), (2, 6, 5)])
def test_without_activations_it_is_linear_and_has_none(shape):
    net = LinearConvolutional(shape, [3, 4], window=Window(stride=2, padding="circular"), tail=[3], dtype=torch.float64)
    a, b = torch.randn(2, 4, *shape, dtype=torch.float64)
    torch.testing.assert_close(net(2 * a - b), 2 * net(a) - net(b))
    assert not any(isinstance(m, nn.ReLU | nn.LeakyReLU | nn.Identity) for m in net.modules())
    assert not any(name.endswith("bias") for name, _ in net.named_parameters())


def test_he_variances():
    net = Convolutional((40, 9, 9), [50, 60], 30, tail=[70], seed=1)
    for name, gain in {"conv1": 1, "conv2": 2, "tail1": 2, "output": 1}.items():
        weight = net.get_submodule(name).weight.detach()
        expected = math.sqrt(gain / weight[0].numel())
        assert float(weight.std()) == pytest.approx(expected, rel=0.03), name
    linear = LinearConvolutional((40, 9, 9), [50, 60], 30, seed=1)
    assert float(linear.conv2.weight.detach().std()) == pytest.approx(math.sqrt(1 / 450), rel=0.03)


@pytest.mark.parametrize("shape", [(1, 8), (1, 6, 6)])
def test_trained_in_an_ensemble(shape):
    flat = bnrank.tasks.separable(30, math.prod(shape))
    task = Task(flat.x.reshape(30, *shape), flat.y, loss="logistic")
    arguments = {"steps": 20, "record": 10, "progress": False, "dtype": torch.float64}
    net = LinearConvolutional(shape, [2, 3], tail=[4])
    run = bnrank.train(net, task, members=3, seed=3, optimizer=GradientDescent(0.05), **arguments)
    for i in range(3):
        alone = bnrank.train(net, task, seed=3 + i, optimizer=GradientDescent(0.05), **arguments)
        torch.testing.assert_close(run.parameters[i], alone.parameters[0], rtol=1e-10, atol=1e-12)
        assert float(run.history.loss[i, -1]) < float(run.history.loss[i, 0])
    assert run.history.layer_name.values.tolist() == ["conv1", "conv2", "tail1", "output"]


@pytest.mark.parametrize("padding", ["zeros", "circular", "none"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_flow_keeps_the_invariant_of_adjacent_convolutions(padding, stride):
    """T45 (2): K1 as out x (in k) and K2 permuted to (out k) x in, to the tolerance of the integration."""
    flat = bnrank.tasks.separable(20, 64)
    x = flat.x.reshape(20, 1, 8, 8)
    pool = 2 if stride == 1 and padding != "none" else 1
    net = LinearConvolutional((1, 8, 8), [2, 3], window=Window(padding=padding, stride=stride, pool=pool), seed=2)
    result = bnrank.flow(net, (x, flat.y, "logistic"), 1.0, solver=Solver(rtol=1e-8), record=Record(spectra_every=1000))

    def constant(net):
        first, second = net.conv1.weight.detach(), net.conv2.weight.detach()
        one, two = first.flatten(1), second.permute(0, 2, 3, 1).reshape(-1, second.shape[1])
        return one @ one.T - two.T @ two

    torch.testing.assert_close(constant(result.network), constant(net.double()), rtol=1e-6, atol=1e-6)
    assert result.loss[-1] < 0.99 * result.loss[0]


@pytest.mark.parametrize(
    "net", [Convolutional((1, 6, 6), [2], bias=True, window=Window(pool=2)), LinearConvolutional((2, 7), [3, 2])]
)
def test_saved_loaded_and_measured(tmp_path, net):
    found = bnrank.load(bnrank.save(net, tmp_path / "net.safetensors"))
    x = torch.randn(5, *net.settings["shape"], generator=torch.Generator().manual_seed(0))
    assert type(found) is type(net)
    torch.testing.assert_close(found(x), net(x), rtol=0, atol=0)
    ds = bnrank.profile(net, x)
    assert ds.layer_kind.values[0] == f"conv{x.ndim - 2}d"


BAD = [
    ({"shape": (3,)}, ValueError, r"shape: got \(3,\), expected \(channels, length\)"),
    ({"shape": (1, 0)}, ValueError, r"shape\[1\]: got 0"),
    ({"shape": 5}, TypeError, "shape: got 5"),
    ({"channels": []}, ValueError, "channels: got none"),
    ({"channels": 4}, TypeError, "channels: got 4"),
    ({"window": {"kernel": 9, "padding": "none"}}, ValueError, "of which nothing is left after 1 conv"),
    ({"window": {"kernel": 19, "padding": "circular"}}, ValueError, "kernel: got 19, which wraps more than once"),
    ({"window": {"pool": 3}}, ValueError, "of which nothing is left after 2 conv"),
    ({"window": {"padding": "same"}}, ValueError, "padding: got 'same'"),
    ({"window": {"stride": 0}}, ValueError, "stride: got 0"),
    ({"slope": -3}, ValueError, "slope: got -3"),
    ({"tail": [0]}, ValueError, r"tail\[0\]: got 0"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=[str(b[0]) for b in BAD])
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Convolutional(**{"shape": (1, 8), "channels": [2, 2]} | arguments)
