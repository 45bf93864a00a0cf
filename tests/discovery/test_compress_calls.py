"""Modules that call their layers in unusual ways, or keep unusual state: compressed, saved and loaded."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
from bnrank.discovery.compression import Timing, compress, search, zeros
from bnrank.discovery.compression.judging import Judge
from helpers import normal

QUICK = {"timing": Timing(repeats=1, batch_size=8)}


def low_rank(n, m, k):
    layer = nn.Linear(n, m)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(m, k) @ torch.randn(k, n) / n)
    return layer


class ByName(nn.Module):
    """Calls a segment, a layer of low rank and a layer with superfluous inputs by keyword."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(low_rank(12, 20, 3), nn.Tanh(), nn.Linear(20, 12))
            self.wide, self.read = low_rank(12, 24, 2), nn.Linear(24, 12)
            self.conv, self.head = nn.Conv1d(1, 2, 5, padding=2), nn.Linear(24, 3)

    def forward(self, x):
        x = x + self.body(input=x)
        x = x + self.read(input=self.wide(input=x).relu())
        return self.head(input=self.conv(input=x[:, None]).flatten(1))


class Frozen(nn.Module):
    """Runs a segment and a layer without gradients, beside layers with them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
            self.fixed, self.own, self.head = nn.Linear(8, 16), low_rank(8, 16, 2), nn.Linear(16, 3)

    def forward(self, x):
        with torch.no_grad():
            fixed = self.fixed(self.body(x)).tanh()
        return self.head(fixed + self.own(x).relu())


class State(nn.Module):
    """Keeps a state that is no tensor."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.wide, self.head = low_rank(8, 20, 2), nn.Linear(20, 8)

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass

    def forward(self, x):
        return x + self.head(self.wide(x).relu())


def change(after, before, x):
    with torch.no_grad():
        a, b = after(x), before(x)
    return float((a - b).norm() / (b - b.mean(0)).norm())


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("kind", [ByName, Frozen])
def test_layers_called_by_keyword_or_without_gradients_are_compressed(kind, thin, tmp_path):
    net, width = kind().double().eval(), 12 if kind is ByName else 8
    found = compress(net, normal(300, width), tol=0.05, zeros=thin, **QUICK)
    assert found.changed
    assert found.certificate.nonzero < 0.9 * found.certificate.nonzero_before
    new = normal(100, width, seed=5)
    assert change(found.network, net, new) < 0.06
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), kind().double())
    assert torch.equal(loaded(new), found.network(new))


def test_a_state_that_is_no_tensor_is_refused_by_name_when_saved(tmp_path):
    found = compress(State().double(), normal(200, 8), tol=0.05, **QUICK)
    assert found.changed
    with pytest.raises(TypeError, match=r"network: got a state that is no tensor \(_extra_state, from get_extra_state"):
        found.save(tmp_path / "small.safetensors", tag="v1")


def normed():
    return nn.utils.weight_norm(nn.Linear(8, 10))


def pruned():
    return prune.l1_unstructured(nn.Linear(8, 10), "weight", 0.5)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("layer", [normed, pruned])
def test_old_weight_norm_and_masks_load_into_a_module_made_anew(layer, tmp_path):
    class Net(nn.Module):
        def __init__(self, seed):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.first, self.rest = layer(), State()
                self.rest.__class__ = Plain

        def forward(self, x):
            return self.rest(x) + self.first(x)[:, :8]

    x = normal(200, 8).float()
    net = Net(0).eval()
    found = compress(net, x, tol=0.05, **QUICK)
    assert found.changed
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Net(1))
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))


class Plain(State):
    """The same without the state."""

    get_extra_state, set_extra_state = nn.Module.get_extra_state, nn.Module.set_extra_state


def test_equal_entries_that_become_zero_together_are_all_counted(monkeypatch):
    x = torch.cat([torch.eye(8, dtype=torch.float64), -torch.eye(8, dtype=torch.float64)]).repeat(8, 1)
    net = nn.Sequential(nn.Linear(8, 8, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(8) + 0.01)
        out = net(x)
    judge = Judge((x[:96], torch.clone, out[:96]), (x[96:], torch.clone, out[96:]), out)
    one, ones = torch.eye(8).double(), torch.ones(8).double()  # of inputs and outputs that matter all the same
    alike = zeros.Curvature(net[0].weight.detach(), one, one, ones, ones, (ones, one, ones, one))
    monkeypatch.setattr(zeros, "curvatures", lambda *_: {"0": alike})
    monkeypatch.setattr(zeros, "TRIALS", 1)  # 20 percent, where 56 of 64 entries are equal
    layers, _, count = zeros.thinned(judge, net, ["0"], 0.1, 100)
    assert count == int((layers["0"].weight == 0).sum()) == 56


def test_where_rounding_spoils_the_zeros_the_outcome_without_them_stays(monkeypatch):
    net, x = Plain().eval(), normal(200, 8).float()
    original = zeros.with_zeros

    def spoiled(*arguments):
        found = original(*arguments)
        for name, value in found.values.items():
            if name.startswith("head"):
                value.zero_()
        return found

    monkeypatch.setattr(search, "with_zeros", spoiled)
    found = compress(net, x, tol=0.05, zeros=True, **QUICK)
    assert "with zeros changes the output by" in found.reason
    assert found.changed
    assert "zero" not in {step.kind for step in found.steps}
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before / 2


@pytest.mark.parametrize("minutes", [None, 1e-9])
def test_without_zeros_the_outcome_is_that_of_the_whole_tolerance(minutes, monkeypatch):
    x = normal(300, 6)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / p[0].numel() ** 0.5)
    whole = compress(net, x, tol=0.1, **QUICK)
    monkeypatch.setattr(search, "with_zeros", lambda *_: None)
    found = compress(net, x, tol=0.1, zeros=True, max_minutes=minutes, **QUICK)
    if minutes is None:
        assert found.certificate.parameters == whole.certificate.parameters < whole.certificate.parameters_before
        assert found.reason == whole.reason
    else:
        assert "was over" in found.reason


class Unseen(nn.Module):
    """Layers of full rank that run without gradients, are detached, or change nothing, and one that is as usual."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.fixed, self.cut, self.idle, self.own = (nn.Linear(8, 8) for _ in range(4))
            self.thin, self.head = low_rank(8, 16, 2), nn.Linear(16, 3)

    def forward(self, x):
        self.idle(x)
        with torch.no_grad():
            fixed = self.fixed(x).tanh()
        return self.head(self.thin(fixed + self.cut(x).tanh().detach() + self.own(x)).relu())


def test_layers_that_no_gradient_reaches_are_listed():
    found = compress(Unseen().eval(), normal(200, 8), tol=1e-3, **QUICK)
    assert [part.name for part in found.skipped] == ["idle", "fixed", "cut"]  # as they run
    assert {part.type for part in found.skipped} == {"Linear"}
    assert all("no gradient of the output reaches it" in part.reason for part in found.skipped)
    assert "thin" in found.plan


def test_of_layers_without_gradients_only_those_that_stay_are_listed():
    net = Unseen()
    with torch.no_grad():
        net.fixed.weight.copy_(low_rank(8, 8, 1).weight)
    found = compress(net.eval(), normal(200, 8), tol=0.02, **QUICK)
    assert "fixed" in found.plan
    assert [part.name for part in found.skipped] == ["idle", "cut"]
