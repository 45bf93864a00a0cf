"""Modules that call their layers in unusual ways, or keep unusual state: compressed, saved and loaded."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
from bnrank import compress
from bnrank.discovery import storage
from bnrank.discovery.compression import Timing, lowrank, widths
from helpers import normal

QUICK = {"timing": Timing(repeats=1, batch_size=8)}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


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


@pytest.mark.parametrize("kind", [ByName, Frozen])
def test_layers_called_by_keyword_or_without_gradients_are_compressed(kind, tmp_path):
    net, width = kind().double().eval(), 12 if kind is ByName else 8
    found = compress(net, normal(300, width), tol=0.05, **QUICK)
    assert found.changed
    assert found.certificate.parameters < 0.9 * found.certificate.parameters_before
    new = normal(100, width, seed=5)
    assert change(found.network, net, new) < 0.06
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), kind().double())
    assert torch.equal(loaded(new), found.network(new))


class Entering(nn.Module):
    """Enters a context that it keeps around a part of its forward pass."""

    def __init__(self, context):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.context = nn.Sequential(low_rank(12, 20, 3), nn.Tanh(), nn.Linear(20, 12)), context

    def forward(self, x):
        with self.context:
            half = x / 2
        return self.body(x) + half


class Nothing(contextlib.nullcontext):
    pass


@pytest.mark.parametrize("kind", [torch.no_grad, torch.enable_grad, Nothing])
def test_a_network_that_keeps_a_context_loads_into_itself_also_after_use(kind, tmp_path):
    net, x = Entering(kind()).double().eval(), normal(200, 12)
    found = compress(net, x, tol=0.05, **QUICK)
    assert found.changed
    path = found.save(tmp_path / "small.safetensors")
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            net(x)
        for module in (net, Entering(kind()).double()):
            assert torch.equal(bnrank.load(path, module)(x), found.network(x))
    other = torch.enable_grad if kind is torch.no_grad else torch.no_grad
    with pytest.raises(ValueError, match=r"got another network \(net\.context: stored"):
        bnrank.load(path, Entering(other()).double())


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


class Twice(nn.ReLU):
    """A subclass of a layer of torch, which computes something else."""

    def forward(self, input):
        return 2 * super().forward(input)


def narrow(part, width=16):
    """Return a Sequential with a part before the last layers, of which half of the units can go."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), low_rank(16, 16, 2), part, nn.ReLU(), nn.Linear(width, 3))
    with torch.no_grad():
        net[2].weight.mul_(20)  # far from linear
    return net.eval()


@pytest.mark.parametrize(
    "part",
    [
        nn.GLU(), nn.RMSNorm(16), nn.RReLU(), nn.Threshold(0.1, 0.0), nn.Hardshrink(0.2), nn.Softshrink(0.1),
        nn.Tanhshrink(), nn.Softmin(1), nn.Softplus(2.0, threshold=5.0),
    ],
    ids=lambda part: type(part).__name__,
)  # fmt: skip
def test_any_layer_of_torch_between_two_others_is_stored_with_its_arguments(part, tmp_path):
    x = normal(100, 8).float()
    found = compress(narrow(part, 8 if isinstance(part, nn.GLU) else 16), x, tol=0.1, **QUICK)
    assert any(type(own) is type(part) for own in found.network)
    assert torch.equal(bnrank.load(found.save(tmp_path / "small.safetensors"))(x), found.network(x))


def hooked():
    part = nn.ReLU()
    part.register_forward_hook(lambda _, __, out: 2 * out)
    return part


def own_forward():
    part = nn.ReLU()
    part.forward = torch.tanh
    return part


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(16, 16))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (hooked, r"ReLU\), which has forward hooks: remove them before compress"),
        (own_forward, r"ReLU\), which has a forward that its class does not have: call it in the forward of a module"),
        (old_weight_norm, r"which has weight normalization: torch.nn.utils.remove_weight_norm makes it plain"),
        (
            lambda: nn.utils.spectral_norm(nn.Linear(16, 16)),
            r"which has spectral .* torch.nn.utils.remove_spectral_norm",
        ),
        (Twice, r"Twice\), which is not a layer of torch that runs by itself: call it in the forward of a module"),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), r"which is parametrized: "),
        (lambda: nn.Threshold(torch.zeros(()), 0.0), r"Threshold\), which has arguments that are no plain values \("),
    ],
)
def test_a_part_that_the_file_cannot_hold_is_named_with_the_reason(part, words, tmp_path):
    found = compress(narrow(part()), normal(100, 8).float(), tol=0.1, **QUICK)
    assert found.changed
    with pytest.raises(TypeError, match=r"^network: the file cannot hold part \d \(.*" + words):
        found.save(tmp_path / "small.safetensors")


def test_a_hook_that_comes_later_is_refused_too_and_one_that_goes_is_not(tmp_path):
    x, path = normal(100, 8).float(), tmp_path / "small.safetensors"
    found = compress(narrow(nn.Tanh()), x, tol=0.1, **QUICK)
    handle = found.network[0].register_forward_hook(lambda _, __, out: 2 * out)
    with pytest.raises(TypeError, match=r"^network: the file cannot hold part 0 \(Linear\), which has forward hooks"):
        found.save(path)
    handle.remove()
    handle = found.network.register_forward_hook(lambda _, __, out: 2 * out)
    with pytest.raises(TypeError, match=r"^network: got forward hooks on the Sequential, which the file cannot hold"):
        found.save(path)
    handle.remove()
    assert torch.equal(bnrank.load(found.save(path))(x), found.network(x))


class Around(nn.Module):
    """Calls in its forward what no file can hold inside of a Sequential."""

    def __init__(self):
        super().__init__()
        net = narrow(nn.Identity())
        self.body, self.part, self.head = net[:3], Twice(), net[5]

    def forward(self, x):
        return self.head(self.part(self.body(x)))


def test_what_the_message_advises_works(tmp_path):
    x, path = normal(100, 8).float(), tmp_path / "small.safetensors"
    found = compress(Around().eval(), x, tol=0.1, **QUICK)
    assert torch.equal(bnrank.load(found.save(path), Around())(x), found.network(x))
    found = compress(narrow(Twice()), x, tol=0.1, **QUICK)
    torch.save(found.network, tmp_path / "network.pt")
    assert torch.equal(torch.load(tmp_path / "network.pt", weights_only=False)(x), found.network(x))
    net = narrow(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)))
    nn.utils.parametrize.remove_parametrizations(net[3], "weight")
    found = compress(net, x, tol=0.1, **QUICK)
    assert torch.equal(bnrank.load(found.save(path))(x), found.network(x))


def test_a_layer_that_was_changed_has_no_description():
    layer, same = nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.MaxPool1d([2])
    assert storage.obstacle(layer) == storage.obstacle(same) == ""
    layer.padding = (2,)
    assert storage.obstacle(layer).startswith("was changed since it was made")


class Clamped(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.before, self.after = net[:2], net[2:]

    def forward(self, x):
        return self.after(self.before(x).clamp(max=0.3))


@pytest.mark.parametrize("kind", [nn.ReLU, nn.BatchNorm1d])
def test_a_part_with_a_hook_is_neither_balanced_nor_pruned_nor_folded_away(kind):
    """With the hook the same function as without it in two segments."""
    x = normal(200, 8).float()
    net = narrow(nn.ReLU())
    net[1] = kind() if kind is nn.ReLU else kind(16)
    with torch.no_grad():
        net[0].weight[8:], net[0].bias[8:] = 0.5 * net[0].weight[:8], 0.5 * net[0].bias[:8]
    net.eval()
    net[1].register_forward_hook(lambda _, __, out: out.clamp(max=0.3))
    found = compress(net, x, tol=0.1, **QUICK)
    assert found.changed
    assert found.certificate.met
    net[1]._forward_hooks.clear()
    assert change(found.network, Clamped(net), x) <= 0.1


class Experts(nn.Module):
    """Each expert is called on the samples that the gate sends to it: the last one never, the others not on every x."""

    def __init__(self, first=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 2)
            self.experts = nn.ModuleList(
                nn.Sequential(low_rank(8, 12, 2), nn.ReLU(), nn.Linear(12, 8)) for _ in range(4)
            )
        with torch.no_grad():
            self.gate.bias[0], self.gate.bias[3] = 0.5, -50.0
        self.first = nn.Identity() if first is None else first

    def forward(self, x):
        x = self.first(x)
        chosen, z = self.gate(x).argmax(1), x.new_zeros(len(x), 8)
        for i, expert in enumerate(self.experts):
            z[chosen == i] = expert(x[chosen == i])
        return self.head(z.relu())


def test_a_mixture_of_experts_is_compressed_where_experts_get_no_sample():
    net, x = Experts().eval(), normal(300, 8).float()
    found = compress(net, x, tol=0.2, **QUICK)
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before
    idle = [(part.name, part.reason) for part in found.skipped if part.name.startswith("experts.3")]
    assert idle == [(f"experts.3.{i}", "no sample reaches it") for i in (0, 2)]
    with torch.no_grad():
        chosen = net.experts[int(net.gate(x[:1]).argmax())]
    called = [net.gate, chosen[0], chosen[2], net.head]
    assert found.certificate.multiply_adds_before == sum(layer.weight.numel() for layer in called)


@pytest.mark.parametrize("kind", [lowrank.Factoring, widths.Narrowing])
def test_an_expert_is_fitted_where_other_samples_reach_it_than_before(kind, monkeypatch):
    """The layers before the gate change, so that the gate sends samples elsewhere."""
    counts, original = set(), kind.chosen

    def seen(self, name, *given):
        if name == "experts.0.2":
            counts.add(len(given[-3 if kind is lowrank.Factoring else 0]))
        return original(self, name, *given)

    monkeypatch.setattr(kind, "chosen", seen)
    first = nn.Sequential(low_rank(8, 20, 8), nn.Tanh(), low_rank(20, 8, 8))
    with torch.no_grad():
        first[2].weight.mul_(5)
    found = compress(Experts(first).eval(), normal(200, 8).float(), tol=0.3, **QUICK)
    assert len(counts) > 1
    assert found.changed


def test_units_count_as_read_by_the_next_layer_only_where_the_trial_reaches_both():
    net, x = Experts().eval().double(), normal(300, 8)
    with torch.no_grad():
        x = x[net.gate(x).argmax(1) == 0]
    names = [f"experts.{i}.{j}" for i in range(3) for j in (0, 2)]
    assert [(pair.layer, pair.reader) for pair in widths.pairs(net, names, x)] == [("experts.0.0", "experts.0.2")]


class Width(nn.Module):
    """Raises an error of its own kind where the first layer has another number of units."""

    def __init__(self, checked):
        super().__init__()
        self.first, self.last, self.checked = low_rank(8, 16, 2), nn.Linear(16, 2), checked

    def forward(self, x):
        return self.last(self.checked(self.first(x).relu()))


def asserted(z):
    assert z.shape[-1] == 16, "sixteen units"
    return z


@pytest.mark.parametrize(
    "checked",
    [asserted, lambda z: z * {16: 1.0}[z.shape[-1]], lambda z: torch.stack([z[:, i] for i in range(16)], 1)],
)
def test_whatever_a_forward_raises_on_another_width_its_layer_keeps_its_units(checked):
    found = compress(Width(checked).eval(), normal(200, 8).float(), tol=0.1, **QUICK)
    assert "narrow" not in {step.kind for step in found.steps}
    assert found.network.last.in_features == 16
    assert found.certificate.met


class Heads(nn.Module):
    """Attention with heads made by ``view(..., heads, -1)``, which takes any even number of units."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def heads(self, z):
        return z.view(*z.shape[:-1], 2, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.out(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)).mean(1)


def in_groups(z):
    return z.view(len(z), 2, -1).tanh().flatten(1)


def test_a_layer_whose_units_are_grouped_into_heads_keeps_its_units():
    net, x = Heads().double().eval(), normal(8, 5, 8)
    assert widths.pairs(net, ["q", "k", "v", "out"], x) == []
    grouped = Width(in_groups).double().eval()
    assert widths.pairs(grouped, ["first", "last"], normal(8, 8)) == []
    grouped.checked = torch.tanh
    assert [pair.layer for pair in widths.pairs(grouped, ["first", "last"], normal(8, 8))] == ["first"]


@pytest.mark.parametrize("net", [Heads, lambda: Width(in_groups)])
def test_a_network_with_heads_is_compressed_and_its_change_is_the_measured_one(net):
    net = net().double().eval()
    x, kept = (normal(n, *((8,) if isinstance(net, Width) else (5, 8)), seed=n) for n in (120, 60))
    found = compress(net, x, tol=0.3, held_out=kept, **QUICK)
    assert found.changed
    with torch.no_grad():
        before, after = net(kept), found.network(kept)
    change = (after - before).norm() / (before - before.mean(0)).norm()
    assert found.certificate.held_out.centered == pytest.approx(float(change), rel=1e-6)


def at_least(six):
    def check(z):
        if z.shape[-1] < 6:
            raise six
        return z

    return check


def test_widths_on_which_a_forward_raises_anything_are_not_taken():
    net = Width(at_least(KeyError("fewer than six"))).eval()
    found = compress(net, normal(200, 8).float(), tol=0.1, **QUICK)
    assert found.certificate.met
    (step,) = (step for step in found.steps if step.kind == "narrow")
    assert 6 <= int(step.what.rpartition(" ")[2]) < 16
    with pytest.raises(MemoryError):
        compress(Width(at_least(MemoryError())).eval(), normal(200, 8).float(), tol=0.1, **QUICK)


class Picky(nn.Module):
    """Raises an error of its own kind where one part is replaced by another module."""

    def __init__(self, part):
        super().__init__()
        self.part, self.last, self.kinds = part, low_rank(8, 3, 1), {type(part): 1.0}

    def forward(self, x):
        x = self.part(x, x, x)[0] if nn.MultiheadAttention in self.kinds else self.part(x)
        return self.last(x.relu() * self.kinds[type(self.part)])


def test_a_layer_without_which_a_forward_raises_anything_is_listed():
    found = compress(Picky(low_rank(8, 8, 2)).eval(), normal(200, 8).float(), tol=0.1, **QUICK)
    assert list(found.plan) == ["last"]
    assert [part.name for part in found.skipped] == ["part"]
    assert "cannot be run with another module in its place" in found.skipped[0].reason


def test_a_lack_of_memory_is_no_reason_to_keep_a_layer():
    class Full(dict):
        def __missing__(self, kind):
            raise MemoryError(kind)

    net = Picky(low_rank(8, 8, 2)).eval()
    net.kinds = Full(net.kinds)
    with pytest.raises(MemoryError):
        compress(net, normal(200, 8).float(), tol=0.1, **QUICK)


def test_of_a_segment_without_which_a_forward_raises_anything_the_layers_are_replaced():
    body = nn.Sequential(low_rank(8, 16, 2), nn.ReLU(), nn.Linear(16, 8))
    found = compress(Picky(body).eval(), normal(200, 8).float(), tol=0.1, **QUICK)
    assert sorted(found.plan) == ["last", "part.0", "part.2"]


def test_attention_without_which_a_forward_raises_anything_stays():
    net = Picky(nn.MultiheadAttention(8, 2, batch_first=True)).eval()
    found = compress(net, normal(100, 3, 8).float(), tol=0.1, **QUICK)
    assert found.changed
    assert type(found.network.part) is nn.MultiheadAttention
