"""Kernel taps that read only zeros are removed, exactly those, and the output stays."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import bnrank
from bnrank.discovery.compression import Timing, compress, parameters
from bnrank.discovery.compression.taps import trimmed
from helpers import normal

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


class Padded(nn.Module):
    """A convolution on an input that the module pads by hand."""

    def __init__(self, layer, pads=()):
        super().__init__()
        self.layer, self.pads = layer.double(), pads

    def forward(self, x):
        return self.layer(F.pad(x, self.pads)) if self.pads else self.layer(x)


def taps_that_matter(net, x):
    """Perturb each tap of the kernel alone, and return which change the output: slow, and obvious."""
    weight = net.layer.weight.data
    before, found = net(x), []
    for place in torch.cartesian_prod(*(torch.arange(size) for size in weight.shape[2:])).reshape(-1, weight.ndim - 2):
        where = (slice(None), slice(None), *place.tolist())
        kept = weight[where].clone()
        weight[where] += 1.0
        found.append(not torch.equal(net(x), before))
        weight[where] = kept
    return torch.tensor(found).reshape(weight.shape[2:])


CASES = [
    (nn.Conv1d(2, 3, 9, padding=4), (), (2, 3)),
    (nn.Conv1d(2, 3, 9, padding=4, stride=3), (), (2, 5)),
    (nn.Conv1d(2, 3, 5, padding="same", dilation=2, bias=False), (), (2, 4)),
    (nn.Conv1d(2, 3, 16), (7, 8), (2, 4)),
    (nn.Conv1d(2, 3, 15), (7, 7), (2, 4)),
    (nn.Conv1d(2, 3, 3), (4, 0), (2, 6)),
    (nn.Conv2d(2, 3, 3, padding=1), (), (2, 1, 1)),
    (nn.Conv2d(2, 3, 3, padding=1, stride=2), (), (2, 2, 2)),
    (nn.Conv2d(2, 3, (7, 3), padding=(3, 1)), (), (2, 2, 5)),
    (nn.Conv2d(2, 3, (5, 3)), (1, 1, 0, 3), (2, 2, 4)),
    (nn.Conv3d(1, 2, 3, padding=1), (), (1, 1, 2, 1)),
]


@pytest.mark.parametrize(("layer", "pads", "shape"), CASES)
def test_exactly_the_taps_that_never_matter_go(layer, pads, shape):
    net, x = Padded(layer, pads), normal(6, *shape)
    with torch.no_grad():
        before, needed = net(x), taps_that_matter(net, x)
        trimmed(net, ["layer"], x)
        assert torch.allclose(net(x), before, rtol=0, atol=1e-12)
    last = net.layer[-1] if isinstance(net.layer, nn.Sequential) else net.layer
    span = [1 + int(at.amax() - at.amin()) for at in needed.nonzero().T]
    assert list(last.kernel_size) == span


def test_a_kernel_that_is_read_everywhere_stays_and_so_does_one_on_inputs_of_several_sizes():
    net = Padded(nn.Conv1d(2, 2, 3, padding=1))
    assert trimmed(net, ["layer"], normal(4, 2, 8)) == {}
    net = Padded(nn.Conv1d(2, 3, 6, padding=5, dilation=2))  # reads only padding, left and right of one entry
    assert trimmed(net, ["layer"], normal(6, 2, 1)) == {}
    assert torch.equal(net(normal(6, 2, 1)), net.layer.bias.expand(6, -1)[..., None])
    net = Padded(nn.Conv1d(2, 2, 7, padding=3))
    net.forward = lambda x: net.layer(x)[..., :1] + net.layer(x[..., :1])
    assert trimmed(net, ["layer"], normal(4, 2, 2)) == {}


class Small(nn.Module):
    """Convolutions with wide kernels on short signals, one padded by hand, and a layer after them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Conv1d(2, 6, 9, padding=4), nn.Conv1d(6, 6, 16)
            self.head = nn.Linear(24, 5)

    def forward(self, x):
        z = self.first(x).tanh()
        return self.head(self.second(F.pad(z, (7, 8))).tanh().flatten(1))


def test_compress_removes_them_says_so_and_saves_the_result(tmp_path):
    net, x = Small().eval(), normal(200, 2, 4).float()
    found = compress(net, x, tol=1e-4, **QUICK)
    assert found.steps[0].what == "kernel taps that read only zeros: first 9 to 7, second 16 to 7"
    assert parameters(found.network) <= parameters(net) - 2 * 2 * 6 - 9 * 36
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Small())
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))
        assert float((loaded(x) - net(x)).norm() / net(x).norm()) < 1e-4
