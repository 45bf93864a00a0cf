"""Modes, masks and precisions: what a network has before, it has after, whatever runs in between."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
from bnrank import compress
from bnrank.discovery import Timing
from bnrank.discovery.compression.parts import parameters, segments
from helpers import normal

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


class Body(nn.Module):
    """Layers called one by one, with normalization and dropout between them, and a segment."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.5)
        self.tail = nn.Sequential(nn.Linear(32, 2), nn.Linear(2, 32), nn.Tanh(), nn.BatchNorm1d(32), nn.Linear(32, 2))
        self.attention, self.last = nn.MultiheadAttention(2, 1, dropout=0.1), nn.Linear(2, 2)

    def forward(self, x):
        rows = self.tail(self.drop(torch.tanh(self.norm(self.first(x)))))
        return self.last(rows + self.attention(rows[None], rows[None], rows[None])[0][0] * 0 + rows)


class Wrap(nn.Module):
    """A fresh module, in training mode, around another one."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x)


def trained():
    body = Body()
    for seed in range(20):
        body(2 * normal(100, 6, seed=seed).float() + 1)
    return body


X, NEW = 2 * normal(300, 6).float() + 1, 2 * normal(60, 6, seed=1).float() + 1


def change(net, small, x):
    with torch.no_grad():
        before, after = net(x), small(x)
    return float((after - before).norm() / (before - before.mean(0)).norm())


def modes(net, names):
    return {name: net.get_submodule(name).training for name in names}


def test_a_network_in_eval_mode_inside_a_fresh_wrapper_is_returned_as_it_was_given():
    net = Wrap(trained().eval())
    small = compress(net, X, tol=0.05, **QUICK)
    assert small.changed
    assert modes(net, ("", "inside", "inside.drop")) == {"": True, "inside": False, "inside.drop": False}
    inside = [name for name, _ in small.network.named_modules() if name]
    assert not any(modes(small.network, inside).values())
    assert small.network.training
    assert change(net, small.network, NEW) < 0.06  # and not as with dropout


def test_frozen_normalization_stays_frozen_in_layers_and_in_segments_and_everything_else_in_training_mode():
    net = trained().train()
    net.norm.eval()
    net.tail[3].eval()
    small = compress(net, X, tol=0.05, **QUICK)
    assert {step.kind for step in small.steps} & {"collapse", "narrow", "factor"}
    leaves = [part for part in small.network.modules() if not list(part.children())]
    assert sum(isinstance(part, nn.BatchNorm1d) for part in leaves) == 2
    for part in leaves:
        assert part.training == (not isinstance(part, nn.BatchNorm1d))
    assert list(modes(net, ("norm", "tail.3", "tail", "drop")).values()) == [False, False, True, True]


@pytest.mark.parametrize("frozen", ["rnn", "attention", "tail"])
def test_a_replacement_takes_the_mode_of_what_it_replaces(frozen):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.attention = nn.LSTM(6, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)
            self.tail = nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 2))

        def forward(self, x):
            rows = self.rnn(x)[0]
            return self.tail(rows + self.attention(rows, rows, rows)[0]).mean(1)

    net = Mixed().double()
    net.get_submodule(frozen).eval()
    small = compress(net, normal(120, 4, 6), tol=0.2, **QUICK).network
    assert type(small.get_submodule(frozen)) is not type(net.get_submodule(frozen)) or frozen == "tail"
    for name, part in small.named_modules():
        assert part.training == (name.split(".")[0] != frozen), name


def test_a_pruned_layer_is_compressed_as_what_it_computes():
    """Half of the units are exactly 0, with their biases: the count is that after the mask is made permanent."""

    def net():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
        prune.ln_structured(made[0], "weight", 0.5, n=2, dim=0)
        with torch.no_grad():
            made[0].bias.mul_(made[0].weight_mask[:, 0])
        return made

    masked, plain, x = net(), net(), normal(300, 10).float()
    prune.remove(plain[0], "weight")
    found, expected = (compress(one, x, tol=0.01, **QUICK) for one in (masked, plain))
    assert prune.is_pruned(masked)
    assert not prune.is_pruned(found.network)
    assert (parameters(masked), parameters(found.network)) == (563, 283)
    assert found.certificate.parameters == expected.certificate.parameters == 283
    assert found.skipped == expected.skipped == ()
    assert change(masked, found.network, x) < 1e-6


@pytest.mark.parametrize("dim", [0, 1])
def test_layers_that_code_calls_are_compressed_with_their_masks_and_load_again(dim, tmp_path):
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(10, 40), nn.Linear(40, 3)
            prune.ln_structured(self.last if dim else self.first, "weight", 0.5, n=2, dim=dim)
            prune.random_unstructured(self.last if dim else self.first, "bias", 0.3)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    net, x = Called().double(), normal(300, 10)
    small = compress(net, x, tol=0.01, **QUICK)
    assert small.certificate.parameters < 0.7 * small.certificate.parameters_before
    assert change(net, small.network, x) < 0.01
    loaded = bnrank.load(small.save(tmp_path / "small.safetensors"), Called().double())
    assert torch.equal(loaded(x), small.network(x))


class Single(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype == torch.float64:
            raise RuntimeError("expected Float32, got Double")
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope


class SinglePrecision(nn.Module):
    """Runs an operation that there is not in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh())
        self.last = nn.Linear(30, 3)

    def forward(self, x):
        return self.last(Single.apply(self.body(x)))


def test_operations_without_float64_run_in_the_precision_that_the_error_names():
    net, x = SinglePrecision(), X
    with pytest.raises(ValueError, match=r"dtype=torch\.float32"):
        compress(net, x, tol=0.05, **QUICK)
    small = compress(net, x, tol=0.05, dtype=torch.float32, **QUICK)
    assert small.certificate.met
    assert small.certificate.parameters < 0.5 * small.certificate.parameters_before
    assert change(net, small.network, NEW) < 0.05


@pytest.mark.parametrize("kind", ["chain", "images", "recurrent"])
def test_in_float32_about_as_much_is_removed_as_in_float64(kind):
    torch.manual_seed(0)
    if kind == "images":
        parts = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(192, 3)
        net, x = nn.Sequential(*parts), normal(100, 1, 6, 6).float()
    elif kind == "recurrent":
        net, x = Recurrent(), normal(150, 5, 6).float()
    else:
        net, x = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 3)), X
    double, single = (
        compress(net.eval(), x, tol=0.05, dtype=dtype, **QUICK) for dtype in (torch.float64, torch.float32)
    )
    counts = [found.certificate.parameters for found in (double, single)]
    assert counts[0] < single.certificate.parameters_before
    assert counts[1] == pytest.approx(counts[0], rel=0.05)
    assert single.certificate.met
    assert single.certificate.jacobian_rank == double.certificate.jacobian_rank


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.last = nn.LSTM(6, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.rnn(x)[0][:, -1])


def test_a_replacement_has_the_precision_of_what_it_replaces():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.LayerNorm(6)
            self.body = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 3)).bfloat16()

        def forward(self, x):
            rows = self.norm(x)
            return self.body(rows.to(self.body[0].weight.dtype)).to(x.dtype)

    small = compress(Mixed(), X, tol=0.1, **QUICK)
    assert small.changed
    assert {p.dtype for p in small.network.body.parameters()} == {torch.bfloat16}
    assert small.network.norm.weight.dtype == torch.float32


class Mixing(nn.Module):
    """Multiplies by tensors that are plain attributes, and notes in another one what it is run on."""

    def __init__(self):
        super().__init__()
        self.mask, self.held = torch.eye(30), {"shift": [torch.zeros(30)]}

    def forward(self, x):
        self.latest = x.detach()
        return x @ self.mask + self.held["shift"][0]


def test_plain_tensors_inside_a_segment_are_returned_as_they_were():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), Mixing(), nn.Tanh(), nn.Linear(30, 30), nn.Linear(30, 3))
    net[2].eval()
    small = compress(net, X, tol=0.05, **QUICK).network
    (mixing,) = (part for part in small.modules() if isinstance(part, Mixing))
    assert {mixing.mask.dtype, mixing.held["shift"][0].dtype} == {torch.float32}
    assert vars(mixing).keys() == vars(net[2]).keys()
    assert not mixing.training
    assert mixing.mask is not net[2].mask
    assert change(net, small, NEW) < 0.05
    assert not any("_given" in key for part in small.modules() for key in vars(part))


def test_segments_share_no_layer_with_other_places_and_are_listed_once():
    class Keeper(nn.Module):
        """Keeps a module that runs elsewhere."""

        def __init__(self, kept):
            super().__init__()
            self.kept = kept

    class Kept(nn.Module):
        def __init__(self, net, *others):
            super().__init__()
            self.net, self.others = net, nn.ModuleList(map(Keeper, others))

        def forward(self, x):
            return self.net(x)

    x = torch.ones(4, 6, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2)).double()
    cases = ((), ["net"]), ((net,), ["net"]), ((net[1],), ["net"]), ((net, net[0]), ["net.0"])
    for others, names in cases:
        assert [segment.name for segment in segments(Kept(net, *others).eval(), x)[0]] == names
