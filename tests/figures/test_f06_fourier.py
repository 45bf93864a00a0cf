"""Networks that compute circular convolutions in Fourier space: the same function, gradients and parameters."""

import re

import pytest
import torch
from torch.func import functional_call, grad, vmap

import bnrank
from bnrank.figures.f06_falling_ball.fourier import in_fourier_space
from bnrank.networks import CircularConvolutional


@pytest.mark.parametrize(
    ("shape", "channels", "kernel", "settings"),
    [
        ((2, 6), [3, 4, 1], 6, {}),
        ((1, 5), [3, 2], 5, {"slope": 0.2, "flatten": False}),
        ((3, 7), [2, 2], 4, {"bias": False}),
        ((2, 4, 4), [3, 3, 2], 4, {}),
        ((1, 5, 6), [3, 2], (2, 6), {"slope": -0.5}),
        ((1, 3, 2), [2], 1, {"slope": 1.0, "flatten": False}),
    ],
)
def test_the_same_function_and_gradient(shape, channels, kernel, settings):
    net = CircularConvolutional(shape, channels, kernel, seed=1, dtype=torch.float64, **settings)
    for p in net.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=p.dtype)
    twin = in_fourier_space(net)
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(twin(x), net(x))
    weight = torch.linspace(-1, 1, net(x).numel(), dtype=torch.float64).reshape(net(x).shape)
    for module in (net, twin):
        (module(x) * weight).sum().backward()
    ours, theirs = dict(twin.named_parameters()), dict(net.named_parameters())
    assert list(ours) == list(theirs)
    for name, p in theirs.items():
        torch.testing.assert_close(ours[name].grad, p.grad)
        assert ours[name] is not p


def test_parameters_go_back():
    net, other = (CircularConvolutional((1, 6), [4, 4, 1], 6, seed=seed) for seed in (0, 1))
    twin = in_fourier_space(other)
    net.load_state_dict(twin.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))
    with torch.no_grad():
        next(twin.parameters()).add_(1.0)
    assert torch.equal(next(net.parameters()), next(other.parameters()))


def test_what_is_not_the_function_is_carried_over_too():
    net = CircularConvolutional((2, 4), [3, 2], 4, slope=0.2).eval()
    net.conv1.bias.requires_grad_(False)
    net(torch.ones(3, 2, 4)).sum().backward()
    twin = in_fourier_space(net)
    assert not any(part.training for part in twin.modules())
    assert [p.requires_grad for p in twin.parameters()] == [True, False, True, True]
    assert all(p.grad is None for p in twin.parameters())
    assert twin.activation1 is not net.activation1
    assert twin.activation1.negative_slope == 0.2
    assert in_fourier_space(net.train()).conv2.training
    there = in_fourier_space(net.to("meta"))
    assert {t.device.type for t in (*there.parameters(), *there.buffers())} == {"meta"}
    assert there(torch.ones(3, 2, 4, device="meta")).shape == (3, 8)


@pytest.mark.parametrize("shape", [(5, 2, 6, 4), (5, 2, 4, 6), (5, 1, 4, 4), (5, 2, 16), (2, 4, 4)])
def test_images_of_another_size_are_refused(shape):
    twin = in_fourier_space(CircularConvolutional((2, 4, 4), [3, 2], 4))
    with pytest.raises(ValueError, match=re.escape(f"x: got shape {shape}, expected images of size (4, 4)")):
        twin(torch.ones(shape))


def test_it_goes_through_torch_func_and_training():
    net = CircularConvolutional((2, 4), [3, 4 // 2], 4, seed=0)
    twin, x = in_fourier_space(net), torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(0))
    stacked = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in net.named_parameters()}

    def loss(module):
        return vmap(grad(lambda p: functional_call(module, p, (x,)).square().sum()))(stacked)

    for name, found in loss(twin).items():
        torch.testing.assert_close(found, loss(net)[name], rtol=1e-4, atol=1e-4)
    task = bnrank.Task(x, torch.randn(6, 8, generator=torch.Generator().manual_seed(1)))
    settings = {"steps": 5, "ridge": 1e-3, "optimizer": "gd", "progress": False}
    slow, fast = (bnrank.train(module, task, **settings).network(0) for module in (net, twin))
    for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
