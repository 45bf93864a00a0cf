"""Ranks of low-rank adapters: planted updates, what is skipped, and bad input."""

import copy
import dataclasses
import json
import math
import pickle
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
from bnrank.discovery import adapter_training as training
from bnrank.discovery import adapters
from helpers import normal


def test_planted_updates_of_unequal_ranks_are_learned_better_than_with_uniform_ranks():
    for ranks in ((0, 6, 0, 1), (4, 0, 0, 0)):
        rows = [planted.compared(seed, ranks) for seed in (200, 201)]
        assert statistics.median(ours / uniform for _, uniform, ours, _ in rows) < 0.7


def test_equal_ranks_are_found_where_all_layers_need_them():
    rows = [planted.compared(seed, (2, 2, 2, 2)) for seed in (200, 201)]
    assert all(ours <= uniform for _, uniform, ours, _ in rows)
    assert [row[3] for row in rows] == [[2, 2, 2, 2]] * 2


def test_gains_are_the_rise_of_the_loss_when_a_unit_is_left_out():
    # one layer, squared error: the curvature is exact, but for damping and draws
    x, w = normal(400, 5), normal(3, 5, seed=1)
    net = nn.Sequential(nn.Linear(5, 3, bias=False)).double()
    update = w - net[0].weight.detach()
    pattern = bnrank.lora_ranks(net, x, x @ w.T, budget=8, steps=400, chunk_size=400)
    values = torch.linalg.svdvals(update @ _root(x.T @ x / len(x)))  # S = 2 1
    assert torch.allclose(torch.from_numpy(pattern.gains["0"]), values.square(), rtol=0.35)


def _root(moments):
    values, vectors = torch.linalg.eigh(moments)
    return (vectors * values.sqrt()) @ vectors.T


def test_unequal_ranks_that_are_no_better_are_not_returned(monkeypatch):
    net = planted.pretrained(200)
    x, y, _, _ = planted.data(net, (0, 6, 0, 1), 200)
    budget = 2 * sum(sum(layer.weight.shape) for layer in planted.linear(net))
    pattern = bnrank.lora_ranks(net, x, y, budget=budget, steps=60)
    assert not pattern.is_uniform
    monkeypatch.setattr(adapters, "MARGIN", 1.5)  # no loss is smaller by 150 percent
    pattern = bnrank.lora_ranks(net, x, y, budget=budget, steps=60)
    assert pattern.is_uniform
    assert set(pattern.ranks.values()) == {2}


def test_where_nothing_is_left_to_learn_the_ranks_are_uniform():
    net, x = bnrank.MLP([3, 8, 8, 2], seed=0), normal(50, 3).float()
    pattern = bnrank.lora_ranks(net, x, net(x).detach(), budget=40, steps=8)
    assert pattern.is_uniform
    assert pattern.ranks == {"layers.0": 1, "layers.1": 1, "layers.2": 1}


def test_ignored_labels_do_not_count():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), normal(30, 5, 4).float()
    y = torch.arange(150).reshape(30, 5) % 3
    some = torch.where(torch.arange(5) < 2, y, -100)
    masked = bnrank.lora_ranks(net, x, some, budget=30, steps=12)
    only = bnrank.lora_ranks(net, x[:, :2], y[:, :2], budget=30, steps=12)
    assert masked.ranks.keys() == only.ranks.keys()
    masked, only = [
        training.Problem(copy.deepcopy(net), dict(zip("02", (net[0], net[2]), strict=True)), "cross_entropy", z, t, 100)
        for z, t in ((x, some), (x[:, :2], y[:, :2]))
    ]
    assert torch.allclose(masked.value({}), only.value({}))


def test_the_loss_and_the_curvature_do_not_depend_on_chunks_where_labels_are_ignored():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), normal(30, 5, 4).float()
    y = torch.arange(150).reshape(30, 5) % 3
    y[:20, 1:] = -100  # 20 of 70 labels in the first two thirds
    y[:4] = -100
    found = []
    for chunk_size in (4, 7, 30):
        own = copy.deepcopy(net)
        problem = training.Problem(own, {"0": own[0], "2": own[2]}, "cross_entropy", x, y, chunk_size)
        assert problem.prepare(0) == ["0", "2"]
        found.append((problem.value({}), problem.roots["0"][0]))
    expected = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())  # ignores -100
    assert all(torch.allclose(value, expected.double()) for value, _ in found)
    # the targets are drawn in the order of the samples
    assert all(torch.allclose(root, found[0][1], rtol=1e-4) for _, root in found)


def test_gains_are_of_the_mean_over_the_labels_that_count():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), normal(30, 5, 4).float()
    y = torch.arange(150).reshape(30, 5) % 3
    few = torch.where(torch.arange(5) < 1, y, -100)
    roots = []
    for labels in (y, few):
        own = copy.deepcopy(net)
        problem = training.Problem(own, {"2": own[2]}, "cross_entropy", x, labels, 30)
        problem.prepare(0)
        roots.append(torch.linalg.matrix_norm(problem.roots["2"][0]) ** 2)
    assert 0.7 < roots[0] / roots[1] < 1.4  # a mean over 150 labels, and over 30


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients_the_ranks_are_the_same(mode):
    def made():
        net, x = bnrank.MLP([4, 6, 3], seed=0), normal(20, 4).float()
        return net, x, torch.arange(20) % 3

    expected = bnrank.lora_ranks(*made(), budget=30, steps=8)
    with mode():
        given = made()
        assert bnrank.lora_ranks(*given, budget=30, steps=8).ranks == expected.ranks
    assert bnrank.lora_ranks(*given, budget=30, steps=8).ranks == expected.ranks  # made in this mode


def test_several_inputs_are_passed_on():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, left, right):
            return {"logits": self.a(left) + self.b(right)}

    torch.manual_seed(0)
    x = {"left": normal(30, 3).float(), "right": normal(30, 2, seed=1).float()}
    y = normal(30, 4, seed=2).float()
    named = bnrank.lora_ranks(Two(), x, y, budget=20, steps=12)
    torch.manual_seed(0)
    assert bnrank.lora_ranks(Two(), tuple(x.values()), y, budget=20, steps=12).ranks == named.ranks
    assert set(named.ranks) == {"a", "b"}


def test_a_configuration_that_holds_a_pattern_is_saved_and_copied():
    @dataclasses.dataclass
    class Config:  # as that of peft, which saves asdict(config) with every adapter
        rank_pattern: dict

    pattern = bnrank.lora_ranks(nn.Sequential(nn.Linear(4, 3)), normal(20, 4), normal(20, 3), budget=14, steps=2)
    assert dict(pattern) == {"^0": 2}
    config = Config(pattern)
    assert json.loads(json.dumps(dataclasses.asdict(config))) == {"rank_pattern": dict(pattern)}
    for again in (copy.deepcopy(config).rank_pattern, pickle.loads(pickle.dumps(pattern))):
        assert (again, again.parameters, again.ranks) == (pattern, 14, pattern.ranks)


def test_the_budget_is_kept_and_the_network_unchanged():
    net, x, y = bnrank.MLP([4, 8, 8, 2], seed=0), normal(60, 4).float(), normal(60, 2, seed=1).float()
    before = copy.deepcopy(net.state_dict())
    sizes = {"weights.0": 12, "weights.1": 16, "weights.2": 10}
    for budget in (10, 31, 76, 10_000):
        pattern = bnrank.lora_ranks(net, x, y, budget=budget, steps=12)
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
    pattern = bnrank.lora_ranks(net, normal(30, 1, 4, 4).float(), torch.arange(30) % 3, budget=60, steps=12)
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
        assert torch.allclose(training._rows(layer, x) @ layer.weight.detach().flatten(1).T, expected.detach())


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"net": 3}, TypeError, "net"),
        ({"net": nn.ReLU()}, ValueError, "net"),
        ({"net": nn.Linear(3, 2)}, ValueError, "net: got a Linear alone, expected a module with the layer inside"),
        ({"y": torch.full((20,), -100)}, ValueError, "y: got -100, to be ignored, everywhere"),
        ({"budget": 0}, ValueError, "budget"),
        ({"budget": 3}, ValueError, "budget"),
        ({"steps": 0}, ValueError, "steps"),
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
    pattern = bnrank.lora_ranks(Dead(), normal(40, 4), normal(40, 2, seed=1), budget=30, steps=12)
    assert list(pattern.ranks) == ["c"]
    assert "does not depend" in pattern.skipped["b"]


def test_the_seed_changes_the_draws(monkeypatch):
    drawn = []
    prepare = training.Problem.prepare
    monkeypatch.setattr(training.Problem, "prepare", lambda own, seed: (drawn.append(seed), prepare(own, seed))[1])
    for seed in (0, 100, 2**64 - 1):
        bnrank.lora_ranks(
            bnrank.MLP([3, 4, 2], seed=0), normal(20, 3), normal(20, 2, seed=1), budget=18, steps=12, seed=seed
        )
    assert drawn == [0, 1, 100, 101, 2**64 - 1, 0]


def test_linear_layers_of_other_kinds_are_listed():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
        nn.Linear(6, 2),
    )
    pattern = bnrank.lora_ranks(net, normal(20, 3, 4), normal(20, 3, 2, seed=1), budget=40, steps=12)
    assert set(pattern.ranks) == {"1.linear1", "1.linear2", "2"}
    assert "computed from other parameters" in pattern.skipped["0"]
    assert "NonDynamicallyQuantizableLinear" in pattern.skipped["1.self_attn.out_proj"]
    assert set(pattern.skipped) == {"0", "1.self_attn", "1.self_attn.out_proj"}


class Others(nn.Module):
    """Layers of kinds that take no adapter, and an output layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(5, 4), nn.LSTM(4, 6, batch_first=True)
        self.transposed, self.pair, self.out = nn.ConvTranspose1d(6, 4, 2), nn.Bilinear(4, 4, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        z = self.transposed(self.lstm(self.embed(tokens))[0].mT).mean(-1)
        return self.out(self.pair(z, z))


def test_every_layer_without_an_adapter_is_listed_with_its_reason():
    pattern = bnrank.lora_ranks(Others(), torch.arange(80).reshape(20, 4) % 5, torch.arange(20) % 3, budget=14, steps=4)
    assert set(pattern.ranks) == {"out"}
    kinds = {"embed": "Embedding", "lstm": "LSTM", "transposed": "ConvTranspose1d", "pair": "Bilinear"}
    text = "which is neither a Linear nor a convolution in one or two dimensions"
    assert pattern.skipped == {name: f"{kind}, {text}" for name, kind in kinds.items()}


class Doubled(nn.Module):
    """Changes what the operation before it needs for its gradient."""

    def forward(self, x):
        return x.mul_(2)


class Decided(nn.Sequential):
    def __init__(self, *sizes):
        super().__init__(nn.Linear(*sizes))

    def forward(self, x):
        return super().forward(x).argmax(1)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("net", "y", "changes", "names"),
    [
        (nn.Sequential(nn.Linear(3, 2)), torch.arange(20) % 3, {}, "y: got class indices from 0 to 2"),
        (nn.Sequential(nn.Linear(3, 2)), torch.arange(20) % 2 - 1, {}, "y: got class indices from -1"),
        (nn.Sequential(nn.Linear(3, 1)), torch.arange(20)[:, None] % 2, {"loss": "logistic"}, "y: got other entries"),
        (
            nn.Sequential(nn.Linear(3, 2), Detached(2, 2)),
            torch.arange(20) % 2,
            {},
            "net: got outputs without a gradient",
        ),
        (
            Decided(3, 2),
            torch.arange(20) % 2,
            {},
            "net: got outputs of dtype torch.int64, expected floating-point numb",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ReLU(), Doubled(), nn.Linear(2, 2)),
            torch.arange(20) % 2,
            {},
            "net: Sequential cannot be differentiated: one of the variables needed",
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


CODE = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "lora.md").read_text(), re.DOTALL)


def test_the_first_code_of_the_guide_runs():
    net, x, y = bnrank.MLP([30, 80, 80, 3], seed=0), normal(40, 30).float(), torch.arange(40) % 3
    names = {"net": net, "x": x, "y": y}
    exec(CODE[0].replace("budget=20_000", "budget=1_000, steps=8"), names)
    assert sum(names["pattern"].ranks.values()) > 0


def test_a_layer_with_several_names_has_the_rank_that_it_has_with_one():
    class Kept(nn.Module):
        """Holds a network twice, as a module that updates another does."""

        def __init__(self, net):
            super().__init__()
            self.net, self.also = net, nn.ModuleList([net])

        def forward(self, x):
            return self.net(x)

    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2)), torch.randn(60, 6)
    kept, y = Kept(net), torch.randn(60, 2)
    alone, found = (bnrank.lora_ranks(some, x, y, budget=60, steps=4) for some in (net, kept))
    assert found.ranks == {f"net.{name}": rank for name, rank in alone.ranks.items()}
    assert found.parameters == alone.parameters > 0
    for name, gains in alone.gains.items():
        assert np.array_equal(found.gains[f"net.{name}"], gains)


def test_a_layer_that_runs_by_another_name_than_the_first_has_no_adapter():
    class Kept(nn.Module):
        def __init__(self, by_other):
            super().__init__()
            self.a, self.b, self.by_other = nn.Linear(6, 20), nn.Linear(20, 2), by_other
            self.other = nn.ModuleList([self.a])

        def forward(self, x):
            return self.b((self.other[0] if self.by_other else self.a)(x).relu())

    x, y = torch.randn(60, 6), torch.randn(60, 2)
    assert set(bnrank.lora_ranks(Kept(False), x, y, budget=60, steps=4).ranks) == {"a", "b"}
    found = bnrank.lora_ranks(Kept(True), x, y, budget=60, steps=4)
    assert (set(found.ranks), found.target_modules) == ({"b"}, "b")
    assert found.skipped == {"a": "it runs by another of its names, and an adapter is placed under the first"}


def test_the_code_of_the_guide_with_peft_runs(capsys):
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    names = {}
    exec(CODE[1], names)
    trainable, _ = names["adapted"].get_nb_trainable_parameters()
    assert trainable == names["pattern"].parameters <= names["budget"]
    assert "{" in capsys.readouterr().out


class Scalar(nn.Module):
    """Outputs of shape (N,)."""

    def __init__(self):
        super().__init__()
        self.body = bnrank.MLP([4, 8, 1], seed=0)

    def forward(self, x):
        return self.body(x).squeeze(-1)


def test_outputs_and_targets_of_shape_n_are_one_column():
    x, y = normal(60, 4).float(), normal(60, seed=1).float()
    common = {"budget": 40, "steps": 8}
    column = dict(bnrank.lora_ranks(Scalar().body, x, y[:, None], **common))
    for net, target in ((Scalar(), y), (Scalar(), y[:, None]), (Scalar().body, y)):
        ranks = {
            name.replace("body", "").replace("^\\.", "^"): k
            for name, k in bnrank.lora_ranks(net, x, target, **common).items()
        }
        assert ranks == column
    shapes = set()

    def loss(out, y):
        shapes.add((out.ndim, y.ndim))
        return (out - y).square().mean()

    bnrank.lora_ranks(Scalar(), x, y, loss=loss, **common)
    assert shapes == {(1, 1)}


def test_messages_say_what_came_and_what_to_do():
    x, net = normal(600, 4).float(), bnrank.MLP([4, 8, 8], seed=0)
    for given, y, message in (
        (net, normal(600, 3), r"^y: got shape \(600, 3\), expected that of outputs, \(600, 8\)"),
        (net, torch.zeros(600, 3).long(), r"^y: got shape \(600, 3\), expected class indices of shape \(600,\)"),
        (Scalar(), torch.arange(600) % 2, '^y: got several classes for a network with one output.*loss="logistic"'),
        (nn.ReLU(), x, "^net: got ReLU without linear or convolutional layers, expected layers"),
        (Scalar().half(), 1e3 * normal(600), "^net: training adapters.*convert net to float32 or bfloat16"),
    ):
        with pytest.raises(ValueError, match=message):
            bnrank.lora_ranks(given, x, y, budget=100, steps=4)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module$"):
        bnrank.lora_ranks(net.state_dict(), x, x, budget=100)


def test_a_network_whose_layers_take_no_adapter_says_why():
    x, grouped = normal(8, 2, 3), [nn.Conv1d(2, 2, 1, groups=2) for _ in range(2)]
    for net, which in (
        (nn.Sequential(grouped[0]), "one layer, which takes no adapter"),
        (nn.Sequential(*grouped), "2 layers, none of which takes an adapter"),
    ):
        with pytest.raises(ValueError, match=rf"^net: got Sequential with {which} \(0: a convolution with groups, "):
            bnrank.lora_ranks(net, x, x, budget=100, steps=4)
