"""Copies of modules that hold results of a computation, and what is measured of them."""

import copy

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.replicas import copied
from helpers import normal


def weight_normed():
    torch.manual_seed(0)
    first, last = nn.utils.weight_norm(nn.Linear(4, 16)), nn.utils.spectral_norm(nn.Linear(16, 2))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), last).float()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_layers_with_old_weight_normalization_are_copied_and_left_unchanged():
    net, x = weight_normed(), normal(60, 4).float()
    expected = net(x)  # leaves weights that are results of a computation
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(net)
    weight = net[0].weight
    other = copied(net)
    assert net[0].weight is weight
    assert not weight.is_leaf
    assert torch.equal(other.eval()(x), net.eval()(x))
    with torch.no_grad():
        other[0].weight_g.mul_(2)
    assert not torch.allclose(other(x), net(x))  # the copy computes its weight from its own parameters
    pair = copied((net[0], net[2]))
    assert isinstance(pair, tuple)
    assert torch.equal(pair[0](x), net[0](x))
    net.train()
    assert expected.requires_grad


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_weight_normalization_can_be_compressed_checked_and_cut():
    net, x = weight_normed(), normal(80, 4).float()
    with torch.no_grad():
        for i in (2, 4):  # of rank 2
            u, s, v = torch.linalg.svd(net[i].weight)
            net[i].weight.copy_(u[:, :2] * s[:2] @ v[:2])
    net(x)
    net.eval()
    before = net(x)
    small = bnrank.compress(net, x, tol=0.02)
    assert small.certificate.parameters < small.certificate.parameters_before
    assert float((small.network(x) - before).detach().norm() / before.norm()) < 0.05
    assert torch.equal(net(x), before)
    assert bnrank.rank(net, x).upper >= 1
    assert bnrank.check(net, x, only=["T4", "T44"])
    assert bnrank.lora_ranks(net, x, before.detach(), budget=64, steps=4).parameters <= 64


def test_check_evaluates_what_it_can_on_tokens():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.a, self.b = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(self.embedding(x).mean(1)).relu())

    torch.manual_seed(0)
    net, x = Tokens(), torch.randint(20, (30, 5))
    verdicts = bnrank.check(net, x)
    assert ("T44", "holds") in {(v.id, v.status) for v in verdicts}
    assert not any(v.status == "violated" for v in verdicts)
    assert any("it has integers, such as tokens" in (v.reason or "") for v in verdicts)
    for given in ({"x": x}, (x, x)):
        with pytest.raises(TypeError, match=r"^x: got a tuple or mapping of tensors, .*wrap net"):
            bnrank.check(net, given)
