"""Convolutions with long kernels or few positions against those of PyTorch."""

import pytest
import torch
from torch import nn

from bnrank.discovery.compression import Timing, compress, long_kernels
from bnrank.discovery.compression.long_kernels import LongKernels, for_kernels_of
from helpers import normal

CASES = {
    "plain": (nn.Conv1d(3, 4, 33), (5, 3, 70)),
    "stride": (nn.Conv1d(2, 4, 130, stride=4), (5, 2, 203)),
    "stride and padding": (nn.Conv1d(2, 4, 96, stride=3, padding=11, bias=False), (5, 2, 201)),
    "first axis": (nn.Conv2d(3, 4, (40, 1)), (5, 3, 64, 2)),
    "second axis": (nn.Conv2d(3, 4, (1, 40), padding=(0, 7)), (5, 3, 2, 64)),
}
FEW = {
    "one place": (nn.Conv1d(16, 16, 64), (2, 16, 64)),
    "stride as long as half of the kernel": (nn.Conv1d(1, 128, 64, stride=32), (5, 1, 256)),
    "short": (nn.Conv1d(64, 64, 3, padding=1, bias=False), (5, 64, 4)),
    "both axes": (nn.Conv2d(40, 50, (2, 3), stride=(1, 2), padding=(0, 1)), (4, 40, 3, 8)),
}
OTHERS = {
    "short": (nn.Conv1d(3, 4, 5), (5, 3, 70)),
    "stride as long as half of the kernel": (nn.Conv1d(1, 4, 64, stride=32), (5, 1, 640)),
    "both axes": (nn.Conv2d(1, 2, (33, 3)), (2, 1, 40, 5)),
    "groups": (nn.Conv1d(4, 4, 33, groups=2), (2, 4, 40)),
    "dilation": (nn.Conv1d(2, 4, 33, dilation=2), (2, 2, 80)),
    "same": (nn.Conv1d(2, 4, 33, padding="same"), (2, 2, 80)),
}


@pytest.mark.parametrize(
    ("layer", "shape", "way"),
    [*((*case, "_line") for case in CASES.values()), *((*case, "_few") for case in FEW.values())],
    ids=[*CASES, *(f"few places, {case}" for case in FEW)],
)
def test_the_fast_ways_give_the_convolution_and_its_gradients(layer, shape, way, monkeypatch):
    layer, x = layer.double(), normal(*shape).requires_grad_(True)
    calls, fast_way = [], getattr(long_kernels, way)
    monkeypatch.setattr(long_kernels, way, lambda *given: calls.append(given) or fast_way(*given))
    found = []
    for fast in (False, True):
        if fast:
            with LongKernels():
                out = layer(x)
        else:
            out = layer(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    assert len(calls) == 1
    assert found[1][0].is_contiguous()
    for expected, got in zip(*found, strict=True):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=1e-12, atol=1e-12 * float(expected.detach().abs().max()))


@pytest.mark.parametrize("case", OTHERS)
def test_other_convolutions_are_left_as_they_are(case, monkeypatch):
    layer, shape = OTHERS[case]
    for way in ("_line", "_few"):
        monkeypatch.setattr(long_kernels, way, lambda *_: pytest.fail("not by PyTorch"))
    x, layer = normal(*shape), layer.double()
    expected = layer(x)
    with LongKernels():
        assert torch.equal(layer(x), expected)


def test_other_precisions_and_wrong_sizes_are_left_to_pytorch(monkeypatch):
    for way in ("_line", "_few"):
        monkeypatch.setattr(long_kernels, way, lambda *_: pytest.fail("not by PyTorch"))
    layer = nn.Conv1d(3, 4, 33)
    with LongKernels():
        assert layer(torch.ones(2, 3, 40)).dtype == torch.float32
        with pytest.raises(RuntimeError, match="Kernel size"):
            layer.double()(normal(2, 3, 20))


def test_functions_are_watched_only_where_a_kernel_is_long():
    assert isinstance(for_kernels_of(Sound()), LongKernels)
    assert isinstance(for_kernels_of(nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 2, 32))), LongKernels)
    for net in (nn.Conv1d(1, 2, 31), nn.Linear(64, 64), nn.ReLU()):
        assert not isinstance(for_kernels_of(net), LongKernels)


class Sound(nn.Module):
    """Two convolutions with long kernels and batch normalization after the activation, called one by one."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Conv1d(1, 8, 64, stride=2), nn.Conv1d(8, 6, 32)
            self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(6, 4)
            with torch.no_grad():
                self.head.weight.copy_(self.head.weight[:, :1] @ torch.ones(1, 6))

    def forward(self, x):
        z = self.norm(self.first(x.unsqueeze(1)).relu())
        return self.head(self.second(z).relu().mean(2))


def test_a_network_of_long_kernels_is_compressed_as_without_fourier_transforms(monkeypatch):
    net, x = Sound().eval(), normal(60, 140).float()
    found, calls, line = [], [], long_kernels._line
    monkeypatch.setattr(long_kernels, "_line", lambda *given: calls.append(found) or line(*given))
    for long in (32, 10**6):
        calls.clear()
        monkeypatch.setattr(long_kernels, "LONG", long)
        found.append(compress(net, x, tol=0.05, timing=Timing(repeats=1, batch_size=8)))
        assert (len(calls) > 20) == (long == 32)
    assert found[0].certificate.parameters == found[1].certificate.parameters < found[0].certificate.parameters_before
    assert found[0].certificate.held_out.centered == pytest.approx(found[1].certificate.held_out.centered, rel=1e-6)
    assert [step.what for step in found[0].steps] == [step.what for step in found[1].steps]


class Viewing(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(30, 100, 3), nn.Linear(800, 5)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.head(x.view(x.size(0), -1))


def test_a_network_that_views_the_output_of_a_convolution_is_compressed():
    torch.manual_seed(0)
    found = compress(Viewing(), torch.randn(60, 30, 10), tol=0.2, timing=Timing(batch_size=8, repeats=1))
    assert found.changed
