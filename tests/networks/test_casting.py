"""Large weights that are cast while their layer runs, against a copy of all."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from bnrank.networks import casting, functional, read
from bnrank.networks.reading import Taker, stream
from bnrank.networks.functional import Functional
from helpers import normal


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let weights of a few entries count as large."""
    monkeypatch.setattr(casting, "LARGE", 12)
    monkeypatch.setattr(casting, "TOGETHER", 12)


class Mixed(nn.Module):
    """Plain layers of different sizes, one of them twice, and others whose weights stay copies."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.up, self.twice = nn.Conv1d(2, 8, 3, padding=1), nn.Linear(8, 16), nn.Linear(16, 16)
            self.norm, self.attend = nn.BatchNorm1d(8), nn.MultiheadAttention(16, 2, batch_first=True)
            self.tied = nn.Linear(16, 16)
            self.tied.weight = self.attend.out_proj.weight
            self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)
            self.two.weight = self.one.weight

    def forward(self, x):
        z = self.up(self.norm(self.conv(x)).transpose(1, 2).relu())
        z = self.twice(self.twice(z).tanh())
        return self.two(self.one(self.tied(self.attend(z, z, z)[0]))).mean(1)


class Reading(nn.Module):
    """Reads the weight of a layer without calling it."""

    def __init__(self, how):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second, self.how = nn.Linear(6, 6), nn.Linear(6, 6), how

    def forward(self, x):
        if self.how == "product":
            return self.second(F.linear(x, self.first.weight))
        return self.second(self.first(x)) * self.first.weight.norm()


class Values(Taker):
    def __init__(self):
        self.found = []

    def activations(self, layer, values):
        self.found.append((layer, values.clone()))


def test_only_large_weights_of_plain_layers_are_not_copied():
    net = Mixed()
    assert list(casting.large_weights(net, torch.float64)) == ["conv.weight", "up.weight", "twice.weight"]
    assert not casting.large_weights(net, torch.float32)
    held = Functional(net, lean=True).parameters
    lean = {name for name, p in held.items() if p.dtype == torch.float32}
    assert lean == {"conv.weight", "up.weight", "twice.weight"}


def test_few_entries_are_copied(monkeypatch):
    monkeypatch.setattr(casting, "TOGETHER", 10**6)
    assert not casting.large_weights(Mixed(), torch.float64)


def test_values_of_layers_are_those_with_a_copy_bit_by_bit(monkeypatch):
    net, x = Mixed().eval(), normal(9, 2, 5).float()
    before = {name: p.clone() for name, p in net.named_parameters()}
    assert Functional.lean_on(net, torch.float64, x[:2])._large
    found = []
    for large in (casting.large_weights, lambda *_: {}):
        monkeypatch.setattr(functional, "large_weights", large)
        taker = Values()
        stream(net, x, read(net, x), [taker], chunk_size=4)
        found.append(taker.found)
    assert len(found[0]) > 6
    for (i, lean), (j, copied) in zip(*found, strict=True):
        assert i == j
        assert lean.dtype == torch.float64
        assert torch.equal(lean, copied)
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in net.named_parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())


@pytest.mark.parametrize("how", ["product", "norm"])
def test_where_others_read_a_weight_all_are_copied(how):
    net, x = Reading(how).eval(), normal(5, 6).float()
    found = Functional.lean_on(net, torch.float64, x[:2])
    assert all(p.dtype == torch.float64 for p in found.parameters.values())
    assert torch.equal(found(x), Functional(net)(x))


class Catching(nn.Module):
    """Calls a layer on inputs that it refuses before it calls it on others."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            self.first(x[:, :3])
        return self.first(self.second(x))


def test_a_layer_that_raises_has_its_own_weight_again():
    net, x = Catching(), normal(3, 6).float()
    assert torch.equal(Functional(net, lean=True)(x), Functional(net)(x))
    with pytest.raises(ValueError, match="failed on x"):
        Functional(net, lean=True)(normal(3, 5))
    assert all(isinstance(p, nn.Parameter) and p.dtype == torch.float32 for p in net._modules["first"].parameters())
