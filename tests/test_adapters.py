"""Ranks of low-rank adapters: planted updates, what is skipped, and bad input."""

import copy
import math
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import adapters as planted

import bnrank
from bnrank.discovery import adapters
from helpers import normal


def test_planted_updates_of_unequal_ranks_are_learned_better_than_with_uniform_ranks():
    for ranks in ((0, 6, 0, 1), (4, 0, 0, 0)):
        rows = [planted.compared(seed, ranks) for seed in (200, 201)]
        assert statistics.median(ours / uniform for _, uniform, ours, _ in rows) < 0.7


def test_gains_are_the_decrease_of_a_linear_layer_to_second_order():
    # one layer, squared error: the curvature is exact, and so is the decrease at full rank without damping
    x, w = normal(400, 5), normal(3, 5, seed=1)
    net = nn.Linear(5, 3, bias=False).double()
    y = x @ w.T
    found = adapters._Measured(copy.deepcopy(net), {"": (own := copy.deepcopy(net))}, "mse", x, y, 100)
    found.net = own
    found.prepare(0)
    slope = 2 * (x @ net.weight.detach().T - y).T @ x / len(x)
    a, s = x.T @ x / len(x), 2 * torch.eye(3).double()
    expected = torch.linalg.svdvals(_root(s) @ slope @ _root(a))
    assert torch.allclose(found.steps()[""][1], expected, rtol=0.15)  # S is estimated from draws
    _, values, _ = found.steps()[""]
    loss = float((x @ net.weight.detach().T - y).square().sum(1).mean())
    assert float(values.square().sum()) / 2 == pytest.approx(loss, rel=0.35)  # damping and draws


def _root(moments):
    values, vectors = torch.linalg.eigh(moments)
    return (vectors * (values + adapters.DAMPING * values.mean()).rsqrt()) @ vectors.T


def test_the_budget_is_kept_and_the_network_unchanged():
    net, x, y = bnrank.MLP([4, 8, 8, 2], seed=0), normal(60, 4).float(), normal(60, 2, seed=1).float()
    before = copy.deepcopy(net.state_dict())
    sizes = {"weights.0": 12, "weights.1": 16, "weights.2": 10}
    for budget in (10, 31, 76, 10_000):
        pattern = bnrank.lora_ranks(net, x, y, budget=budget, rounds=5)
        spent = sum(rank * size for rank, size in zip(pattern.ranks.values(), sizes.values(), strict=True))
        assert pattern.parameters == spent <= budget
        assert budget - spent < 16 or list(pattern.ranks.values()) == [4, 8, 2]
        assert pattern.alpha_pattern == dict(pattern)
        chosen = [name for name, rank in pattern.ranks.items() if rank]
        assert [name for name in pattern.ranks if re.fullmatch(pattern.target_modules, name)] == chosen
        assert all(sum(bool(re.match(rf"(.*\.)?({key})$", name)) for name in pattern.ranks) == 1 for key in pattern)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


class Several(nn.Module):
    """Convolutions, with groups and without, tied, frozen and unused layers, and logits in an object."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, groups=2)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.frozen, self.unused = nn.Linear(16, 3), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        z = self.grouped(self.convolution(x).relu()).relu().flatten(1)
        self.last = self.frozen(self.second(self.first(z).relu()).relu())
        return type("Output", (), {"logits": self.last})()


def test_convolutions_frozen_tied_and_unused_layers_and_outputs_with_logits():
    torch.manual_seed(0)
    net = Several()
    pattern = bnrank.lora_ranks(net, normal(30, 1, 4, 4).float(), torch.arange(30) % 3, budget=60, rounds=3)
    assert set(pattern.ranks) == {"convolution", "frozen"}
    assert "groups" in pattern.skipped["grouped"]
    assert "shared" in pattern.skipped["first"]
    assert "shared" not in pattern.skipped["unused"]
    assert pattern.parameters == pattern.ranks["convolution"] * (4 + 9) + pattern.ranks["frozen"] * 19 <= 60


def test_patches_are_those_of_the_convolution():
    for layer, x in (
        (nn.Conv2d(2, 3, (3, 2), stride=2, padding=1, dilation=(1, 2)), normal(4, 2, 7, 6)),
        (nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"), normal(4, 2, 5, 5)),
        (nn.Conv1d(2, 3, 3, padding=1), normal(4, 2, 9)),
    ):
        layer = layer.double()
        expected = (layer(x) - layer.bias.reshape(-1, *[1] * (x.ndim - 2))).movedim(1, -1).reshape(-1, 3)
        assert torch.allclose(adapters._rows(layer, x) @ layer.weight.detach().flatten(1).T, expected.detach())


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"net": 3}, TypeError, "net"),
        ({"net": nn.ReLU()}, ValueError, "net"),
        ({"budget": 0}, ValueError, "budget"),
        ({"budget": 3}, ValueError, "budget"),
        ({"rounds": 0}, ValueError, "rounds"),
        ({"x": "samples"}, TypeError, "x"),
        ({"y": normal(5, 2)}, ValueError, "y"),
        ({"y": normal(20, 3)}, ValueError, "y"),
        ({"y": None}, TypeError, "y"),
        ({"y": np.full((20, 2), np.nan)}, ValueError, "y"),
        ({"loss": "hinge"}, ValueError, "loss"),
        ({"loss": lambda out, y: out}, ValueError, "loss"),
        ({"loss": "cross_entropy"}, ValueError, "y"),
    ],
)
def test_bad_input(changes, error, names):
    given = {
        "net": bnrank.MLP([3, 4, 2], seed=0),
        "x": normal(20, 3),
        "y": normal(20, 2, seed=1),
        "budget": 30,
    } | changes
    with pytest.raises(error, match=f"^{names}"):
        bnrank.lora_ranks(given.pop("net"), given.pop("x"), given.pop("y"), **given)


def test_a_layer_whose_inputs_are_all_zero_has_no_adapter():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(4, 2)
            nn.init.constant_(self.a.bias, -100.0)

        def forward(self, x):
            return self.b(self.a(x).relu()) + self.c(x)

    torch.manual_seed(0)
    pattern = bnrank.lora_ranks(Dead(), normal(40, 4), normal(40, 2, seed=1), budget=30, rounds=3)
    assert list(pattern.ranks) == ["c"]
    assert "does not depend" in pattern.skipped["b"]


def test_the_seed_changes_the_draws_of_every_round(monkeypatch):
    drawn = []
    prepare = adapters._Measured.prepare
    monkeypatch.setattr(adapters._Measured, "prepare", lambda own, seed: (drawn.append(seed), prepare(own, seed))[1])
    for seed in (0, 100, 2**64 - 1):
        bnrank.lora_ranks(
            bnrank.MLP([3, 4, 2], seed=0), normal(20, 3), normal(20, 2, seed=1), budget=18, rounds=3, seed=seed
        )
    assert len(set(drawn[:6])) == len(drawn[:6]) == 6


def test_linear_layers_of_other_kinds_are_listed():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        nn.Linear(6, 2),
    )
    pattern = bnrank.lora_ranks(net, normal(20, 3, 4), normal(20, 3, 2, seed=1), budget=40, rounds=1)
    assert set(pattern.ranks) == {"1.linear1", "1.linear2", "2"}
    assert "computed from other parameters" in pattern.skipped["0"]
    assert "NonDynamicallyQuantizableLinear" in pattern.skipped["1.self_attn.out_proj"]


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("net", "y", "changes", "names"),
    [
        (nn.Linear(3, 2), torch.arange(20) % 3, {}, "y: got class indices from 0 to 2"),
        (nn.Linear(3, 2), torch.arange(20) % 2 - 1, {}, "y: got class indices from -1"),
        (nn.Linear(3, 1), torch.arange(20)[:, None] % 2, {"loss": "logistic"}, "y: got other entries"),
        (
            nn.Sequential(nn.Linear(3, 2), Detached(2, 2)),
            torch.arange(20) % 2,
            {},
            "net: got outputs without a gradient",
        ),
        (
            nn.Linear(3, 2).requires_grad_(False).apply(lambda m: m.weight.fill_(math.nan)),
            torch.arange(20) % 2,
            {},
            "net",
        ),
    ],
)
def test_labels_and_networks_that_do_not_fit(net, y, changes, names):
    with pytest.raises(ValueError, match=f"^{names}"):
        bnrank.lora_ranks(net, normal(20, 3), y, budget=30, **changes)
