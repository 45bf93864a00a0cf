"""Circular convolutional networks against loops over their formula, and their translations."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks import CircularConvolutional
from oracles import layer_values

CASES = [((2, 5), kernel) for kernel in (1, 2, 3, 4, 5)]
CASES += [((1, 3, 3), 3), ((2, 4, 3), 2), ((2, 4, 3), [4, 3]), ((1, 3, 4), [1, 4]), ((2, 1), 1), ((1, 1, 2), [1, 2])]


def images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(shape, channels, kernel, seed=1, **arguments):
    """A network with biases away from zero."""
    net = CircularConvolutional(shape, channels, kernel, seed=seed, dtype=torch.float64, **arguments)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.add_(0.1 + 0.01 * i)
    return net


def convolve(a, weight, bias):
    """One convolution by loops: tap t reads t - (k - 1) // 2 places further, around the torus."""
    size, kernel = a.shape[1:], weight.shape[2:]
    out = np.zeros((len(weight), *size))
    for place in itertools.product(*map(range, size)):
        total = bias.copy()
        for tap in itertools.product(*map(range, kernel)):
            at = [(p + t - (k - 1) // 2) % n for p, t, k, n in zip(place, tap, kernel, size, strict=True)]
            total += weight[(slice(None), slice(None), *tap)] @ a[(slice(None), *at)]
        out[(slice(None), *place)] = total
    return out


@pytest.mark.parametrize("slope", [0.0, -0.4, 1.0])
@pytest.mark.parametrize(("shape", "kernel"), CASES)
def test_the_network_is_its_formula(shape, kernel, slope):
    net = network(shape, [3, 4, 2], kernel, slope=slope)
    p = {name: q.detach().numpy() for name, q in net.named_parameters()}
    x = images(2, *shape)
    for sample, out in zip(x.numpy(), net(x).detach().numpy(), strict=True):
        a = sample
        for i in (1, 2, 3):
            a = convolve(a, p[f"conv{i}.weight"], p[f"conv{i}.bias"])
            a = np.where(a >= 0, a, slope * a) if i < 3 else a
        np.testing.assert_allclose(out, a.ravel(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("shape", "kernel"), CASES)
def test_it_commutes_with_every_translation_of_the_torus(shape, kernel):
    net = network(shape, [4, 3, 2], kernel, slope=0.2, flatten=False)
    x, dims = images(3, *shape), tuple(range(2, len(shape) + 1))
    out = net(x)
    assert out.shape == (3, 2, *shape[1:])
    for shifts in itertools.product(*map(range, shape[1:])):
        torch.testing.assert_close(net(x.roll(shifts, dims)), out.roll(shifts, dims), rtol=1e-13, atol=1e-13)


def test_its_bias_acts_at_frequency_zero_only():
    net = network((1, 6), [2], 3, flatten=False)
    change = torch.fft.fft(net(torch.zeros(1, 1, 6, dtype=torch.float64)).detach()).real[0]
    torch.testing.assert_close(change[:, 0], 6 * net.conv1.bias.detach())
    assert float(change[:, 1:].abs().max()) < 1e-12


def test_parts_variances_and_seeds():
    net = CircularConvolutional((3, 7), [40, 50, 2], 5, seed=4)
    assert [name for name, _ in net.named_children()] == [
        "conv1",
        "activation1",
        "conv2",
        "activation2",
        "conv3",
        "flatten",
    ]
    for name, gain in {"conv1": 1, "conv2": 2, "conv3": 2}.items():
        weight = net.get_submodule(name).weight.detach()
        assert float(weight.std()) == pytest.approx(math.sqrt(gain / weight[0].numel()), rel=0.07), name
    assert not any(bool(p.any()) for name, p in net.named_parameters() if name.endswith("bias"))
    again, other = CircularConvolutional((3, 7), [40, 50, 2], 5, seed=4), CircularConvolutional((3, 7), [40, 50, 2], 5)
    assert torch.equal(net.conv2.weight, again.conv2.weight)
    assert not torch.equal(net.conv2.weight, other.conv2.weight)
    linear = CircularConvolutional((3, 7), [4, 2], slope=1, bias=False)
    assert [name for name, _ in linear.named_parameters()] == ["conv1.weight", "conv2.weight"]
    assert not any(isinstance(m, nn.ReLU | nn.LeakyReLU | nn.Identity) for m in linear.modules())


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (((6,), [2]), ValueError, r"shape: got \(6,\), expected \(channels, length\)"),
        (((1, 2, 3, 4), [2]), ValueError, "shape: got"),
        ((6, [2]), TypeError, "shape: got 6"),
        (((1, 0), [2]), ValueError, r"shape\[1\]: got 0"),
        (((1, 6), []), ValueError, "channels: got none"),
        (((1, 6), [2.0]), TypeError, r"channels\[0\]: got 2.0"),
        (((1, 6), [2], 7), ValueError, r"kernel: got 7, expected one integer or 1, none larger than the image \(6,\)"),
        (((1, 6, 4), [2], 5), ValueError, r"kernel: got 5, .* none larger than the image \(6, 4\)"),
        (((1, 6, 4), [2], [3]), ValueError, r"kernel: got \(3,\), expected one integer or 2"),
        (((1, 6), [2], 0), ValueError, "kernel: got 0"),
        (((1, 6), [2], 2.5), TypeError, "kernel: got 2.5"),
        (((1, 6), [2], "33"), TypeError, "kernel: got '33'"),
        (((1, 6), [2], 3, 1.5), ValueError, "slope: got 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments, error, match):
    with pytest.raises(error, match=match):
        CircularConvolutional(*arguments)


@pytest.mark.parametrize(("shape", "kernel"), [((1, 6), 6), ((2, 4, 5), [3, 5])])
def test_saved_traced_and_measured(tmp_path, shape, kernel):
    net = network(shape, [4, 4, 2], kernel, slope=0.1)
    x = images(50, *shape)
    found = bnrank.load(bnrank.save(net, tmp_path / "net.safetensors"))
    assert type(found) is CircularConvolutional
    assert found.settings == net.settings
    torch.testing.assert_close(found(x), net(x), rtol=0, atol=0)
    ds = bnrank.profile(net, x)
    assert bnrank.measures.describe(ds) == []  # the true operators: nothing is assumed
    layers = layer_values(net, [net.conv1, net.conv2, net.conv3], x)
    for i, values in enumerate(layers):
        found = ds.preactivation_singular_values.values[i]
        np.testing.assert_allclose(found[np.isfinite(found)], torch.linalg.svdvals(values.flatten(1)) / len(x) ** 0.5)
    assert [node.op for node in bnrank.graph.trace(net, x).nodes].count("conv") == 3
    direct = torch.func.vmap(torch.func.jacrev(lambda s: net(s[None])[0]))(x).flatten(2)
    torch.testing.assert_close(bnrank.Jacobian(net, x).singular_values, torch.linalg.svdvals(direct.detach()))


@pytest.mark.parametrize("shape", [(1, 6), (1, 4, 4)])
def test_it_learns_a_translation(shape):
    """Image to image, in an ensemble; a step to the right is one tap of the kernel."""
    x = images(40, *shape)
    task = bnrank.Task(x, x.roll(1, -1).flatten(1))
    net = CircularConvolutional(shape, [6, 1])
    run = bnrank.train(net, task, steps=300, members=2, seed=5, progress=False)
    assert run.history.layer_name.values.tolist() == ["conv1", "conv2"]
    assert (run.history.cost[:, -1] < 0.01 * run.history.cost[:, 0]).all()
    stored = bnrank.train(net, task, steps=5, seed=5, progress=False)
    assert type(stored.network(0)) is CircularConvolutional
