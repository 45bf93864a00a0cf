"""Descriptions of values: equal ones for equal values, and others for others."""

import collections
import contextlib
import copy
import functools
import importlib
import math
import random
import re
import subprocess
import sys
import threading
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank import MLP, networks
from bnrank._core import identity
from bnrank._core.identity import describe, differences, digest

SLOPE = 0.1
QUIET = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def changed(a, b):
    """Return the names of the parts in which two values differ."""
    name = "net" if isinstance(a, nn.Module) else "v"
    found = differences(describe(a, name), describe(b, name))
    return [re.sub("^net", "v", text.split(":")[0]) for text in found]


def exact(value):
    """Return a text that tells apart 1, 1.0 and True, 0.0 and -0.0, at any depth (slow and obvious)."""
    if isinstance(value, dict):
        return "d" + repr([(key, exact(entry)) for key, entry in value.items()])
    if isinstance(value, list):
        return "l" + repr([exact(entry) for entry in value])
    return type(value).__name__ + repr(value)


@QUIET
@given(PLAIN, PLAIN)
def test_equal_digests_mean_equal_plain_values(a, b):
    assert (digest(a) == digest(b)) == (exact(a) == exact(b))
    assert digest(a) == digest(copy.deepcopy(a))


@QUIET
@given(st.lists(PLAIN, max_size=4), st.integers(0, 4))
def test_where_a_list_of_arguments_is_split_matters(values, at):
    merged = [values[:at], values[at:]]
    assert digest(*merged) == digest(*copy.deepcopy(merged))
    if at < len(values):
        assert digest(*merged) != digest(values[: at + 1], values[at + 1 :])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(2), torch.ones(2).double()),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.ones(2), torch.tensor([1, 1 + 2**-23])),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.full((1000,), 0.1), torch.cat([torch.full((500,), 0.1), torch.full((500,), 0.1 + 1e-8)])),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16)),
        (np.ones(2), np.ones(2, dtype=np.float32)),
        (np.ones(2), np.ones(2, dtype=">f8")),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3, order="F") + 1),
        (np.float32(0.1), 0.1),
        ([torch.ones(2), torch.zeros(2)], [torch.zeros(2), torch.ones(2)]),
        (torch.float32, torch.float64),
        ({1: torch.ones(2)}, {"1": torch.ones(2)}),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)),
        (torch.relu, torch.tanh),
        (nn.functional.relu, nn.functional.gelu),
        ("a" * 200, "a" * 199 + "b"),
    ],
)
def test_values_that_differ_in_anything_have_other_digests(a, b):
    assert digest(a) != digest(b)
    assert digest(a) == digest(copy.deepcopy(a))


def test_strides_and_devices_do_not_matter():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert digest(x) == digest(x.T.contiguous().T) == digest(x.clone().requires_grad_())
    assert digest(x.numpy()) == digest(np.asfortranarray(x.numpy())) == digest(x.numpy()[::-1][::-1])
    assert digest(x[::2]) == digest(x[::2].clone())
    assert digest(x + 1j) != digest((x + 1j).conj())
    assert digest((x + 1j).conj()) == digest(x - 1j)


def sequential(activation, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))


def transformer_layer(activation="relu"):
    return nn.TransformerEncoderLayer(8, 2, 4, activation=activation)


class TestModules:
    def test_the_first_difference_is_named(self):
        found = differences(describe(sequential(nn.ReLU()), "net"), describe(sequential(nn.Tanh()), "net"))
        assert found[0] == "net.1: stored ReLU, now Tanh"

    def test_values_of_trained_parameters_do_not_count_and_those_of_frozen_ones_do(self):
        a, b = sequential(nn.ReLU(), 0), sequential(nn.ReLU(), 1)
        assert changed(a, b) == []
        for net in (a, b):
            net[0].weight.requires_grad_(False)
        assert changed(a, b) == ["v.0.weight"]
        assert changed(a, sequential(nn.ReLU())) == ["v.0.weight"]

    def test_buffers_count(self):
        a, b = sequential(nn.ReLU()), sequential(nn.ReLU())
        for net, value in ((a, 1.0), (b, 1.0 + 1e-7)):
            net.register_buffer("scale", torch.tensor(value), persistent=False)
        assert changed(a, b) == ["v.scale"]

    def test_attributes_hooks_and_shared_parameters_count(self):
        net = sequential(nn.ReLU())
        other = copy.deepcopy(net)
        other.factor = 2
        assert changed(net, other) == ["v.factor"]
        other = copy.deepcopy(net)
        other[1].register_forward_hook(lambda module, args, out: 2 * out)
        assert changed(net, other)[0].startswith("v.1._forward_hooks[0]")
        tied, apart = (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)) for _ in range(2))
        tied[1].weight = tied[0].weight
        assert changed(apart, tied) == ["v.1.weight"]

    def test_the_draw_of_networks_of_bnrank_does_not_count(self):
        assert changed(MLP([3, 4, 2], seed=0), MLP([3, 4, 2], seed=1, init=0.1)) == []
        assert changed(MLP([3, 4, 2]), MLP([3, 4, 2], slope=0.1)) == ["v.slope"]
        assert changed(networks.ResNetFree(3, width=4, seed=0), networks.ResNetFree(3, width=4, seed=1)) == []

    def test_without_values_only_shapes_count(self):
        a, b = sequential(nn.ReLU()), sequential(nn.ReLU(), 1)
        a[0].weight.requires_grad_(False)
        a.register_buffer("scale", torch.ones(2))
        b.register_buffer("scale", torch.zeros(2))
        assert not differences(describe(a, "net", values=False), describe(b, "net", values=False))

    @pytest.mark.parametrize(
        ("make", "other"),
        [
            (lambda: nn.LSTM(3, 4, 2), lambda: nn.LSTM(3, 4, 2, bidirectional=True)),
            (
                lambda: nn.TransformerEncoderLayer(8, 2, 4),
                lambda: nn.TransformerEncoderLayer(8, 2, 4, activation="gelu"),
            ),
            (lambda: nn.MultiheadAttention(8, 2), lambda: nn.MultiheadAttention(8, 4)),
            (lambda: nn.utils.spectral_norm(nn.Linear(3, 2)), lambda: nn.Linear(3, 2)),
            (lambda: nn.BatchNorm1d(3), lambda: nn.BatchNorm1d(3, eps=1e-4)),
        ],
    )
    def test_layers_of_torch(self, make, other):
        net = make()
        parts = [describe(module, "net", values=False) for module in (net, copy.deepcopy(net), other())]
        identity.require(parts[0])
        assert differences(parts[0], parts[1]) == []
        assert differences(parts[0], parts[2])

    def test_lists_of_parameters_do_not_bring_in_their_values(self):
        assert changed(nn.LSTM(3, 4), nn.LSTM(3, 4)) == []
        assert describe(nn.LSTM(3, 4), "net")["net._flat_weights[0]"] == "same as net.weight_ih_l0"

    def test_parametrized_and_traced_modules(self):
        a = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        assert changed(a, copy.deepcopy(a)) == []
        assert changed(a, nn.Linear(3, 2))
        traced = [torch.fx.symbolic_trace(sequential(kind())) for kind in (nn.ReLU, nn.Tanh)]
        assert changed(traced[0], copy.deepcopy(traced[0])) == []
        assert changed(*traced) == ["v.1", "v.1.inplace"]


SOURCE = '''
import torch.nn.functional as F
from torch import nn
from {helpers} import scaled
import {helpers} as helpers

class Base(nn.Module):
    def forward(self, x):
        """A docstring: {comment}."""
        return self.act(self.layer(x))  # {comment}

class Net(Base):
    factor = {factor}
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def act(self, x):
        return helpers.bent(scaled(x)) {operation} [y for y in [{constant}]][0]
'''
HELPERS = """
SHIFT = {shift}
def scaled(x):
    return x * {scale}
def bent(x):
    return abs(x) {bend} SHIFT
"""
BASE = {"comment": "a", "factor": 1, "operation": "+", "constant": 1, "shift": 0.5, "scale": 2, "bend": "-"}


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        ({}, True),
        ({"comment": "other words,\n # on two lines"}, True),
        ({"factor": 2}, False),
        ({"operation": "-"}, False),
        ({"constant": 2}, False),
        ({"shift": 0.6}, False),
        ({"scale": 3}, False),
        ({"bend": "+"}, False),
    ],
)
def test_classes_of_a_user_count_by_what_their_code_does(change, equal, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    parts = []
    for i, values in enumerate((BASE, BASE | change)):
        name = f"{tmp_path.name.replace('-', '_')}_{i}"
        values = values | {"helpers": f"{name}_helpers"}
        values["comment"] = values["comment"] if i == 0 or "#" not in values["comment"] else "other"
        (tmp_path / f"{name}.py").write_text(SOURCE.format(**values))
        (tmp_path / f"{name}_helpers.py").write_text(HELPERS.format(**values))
        importlib.invalidate_caches()
        net = importlib.import_module(name).Net()
        parts.append({key: text for key, text in describe(net, "net").items() if not text.endswith("_helpers")})
    assert (not differences(*parts)) == equal


def test_losses_count_by_code_and_closure():
    def loss(factor, power=2):
        return lambda out, y: factor * ((out - y) ** power).mean()

    assert changed(loss(2.0), loss(2.0)) == []
    assert changed(loss(2.0), loss(3.0)) == ["v (factor)"]
    assert changed(loss(2.0), lambda out, y: (out - y).abs().mean())
    assert changed(lambda out, y: (out - y).abs().mean(), lambda out, y: (out + y).abs().mean()) == ["v (code)"]
    assert changed(nn.MSELoss(), nn.L1Loss()) == ["v"]


def test_globals_and_defaults_of_a_function_count(monkeypatch):
    def bent(x, by=1.0):
        return x * SLOPE + by

    before = describe(bent, "f")
    monkeypatch.setattr(sys.modules[__name__], "SLOPE", 0.2)
    assert [text.split(":")[0] for text in differences(before, describe(bent, "f"))] == ["f (SLOPE)"]
    before = describe(bent, "f")
    bent.__defaults__ = (2.0,)
    assert differences(before, describe(bent, "f")) == ["f (defaults): stored [1.0], now [2.0]"]


@dataclass
class Options:
    factor: float
    held: torch.Tensor


class Plain:
    def __init__(self, value):
        self.value = value


def test_objects_count_by_their_fields():
    assert changed(Options(1.0, torch.ones(2)), Options(1.0, torch.ones(2))) == []
    assert changed(Options(1.0, torch.ones(2)), Options(1.0, torch.zeros(2))) == ["v.held"]
    assert changed(Plain(1), Plain(2)) == ["v.value"]
    loop = Plain(None)
    loop.value = [loop, torch.ones(1)]
    assert describe(loop, "v")["v.value[0]"] == "same as v"


def test_objects_are_the_same_after_a_copy_of_one():
    made = type("Own", (), {})()
    made.value = torch.ones(1)
    before, text = describe(made, "v"), digest(made)
    copy.deepcopy(made)
    assert "__slotnames__" in vars(type(made))  # of `copyreg`
    assert describe(made, "v") == before
    assert digest(made) == text
    assert differences(before | {"v (Own.__slotnames__)": "[]"}, before) == []  # of files of earlier versions


@pytest.mark.parametrize(
    "make",
    [
        lambda: open("/dev/null"),  # noqa: SIM115, PTH123
        lambda: iter([1]),
        lambda: {object(): 1},
        lambda: torch.ones(2, device="meta"),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.jit.script(nn.Linear(2, 2)),
        lambda: [1].append,
        lambda: np.array([object()]),
    ],
)
def test_what_cannot_be_identified_is_refused_unless_a_version_is_named(make):
    with pytest.raises(TypeError, match=r"value: got value.* cannot be\s+identified.*tag="):
        digest({"a": make()})
    parts = describe(make(), "net")
    with pytest.raises(TypeError, match="net: got net"):
        identity.require(parts)
    identity.require(parts | {"tag": "'v1'"})
    assert not differences(parts, describe(make(), "net"))


class Hidden(tuple):
    """A tuple that shows nothing of itself, as the irreps of e3nn."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError

    __iter__ = __bool__ = __len__


class Raising(collections.UserDict):
    def __init__(self, error):
        self.error = error

    def items(self):
        raise self.error


def test_values_whose_own_methods_raise_do_not_end_the_description():
    parts = describe(Hidden((1, 2)), "v")
    assert [parts[key] for key in ("v", "v[0]", "v[1]")] == ["Hidden of 2", "1", "2"]
    assert changed(Hidden((1, 2)), Hidden((1, 3))) == ["v[1]"]
    net = nn.Linear(2, 1)
    net.table, net.other = Raising(ZeroDivisionError()), 3
    parts = describe(net, "net")
    assert parts["net.table"].endswith("Raising, which raises ZeroDivisionError where it is read")
    assert parts["net.other"] == "3"
    with pytest.raises(TypeError, match=r"net: got net\.table = .*Raising.* with by hand, and another one"):
        identity.require(parts, "by hand")
    net.table = Raising(MemoryError())
    with pytest.raises(MemoryError):
        describe(net, "net")


INSTALLED = """
import functools, torch
from torch import nn

class Recipe:
    def __init__(self, axes): self.axes = axes

class Slotted:
    __slots__ = ("axis",)
    def __init__(self, axes): self.axis = axes

class Made(Recipe):
    def __reduce__(self): return Made, ((),)

class Held(Recipe): pass

class Listed(list): pass

def optional(x):
    import a_package_that_nobody_has
    return x

class Layer(nn.Module):
    def forward(self, x):
        import a_package_that_nobody_has
        return optional(x)

class Cast(nn.Module):
    @torch.autocast("cpu", enabled=False)
    def forward(self, x): return x
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a module of an installed package."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    name = f"installed_{tmp_path.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(INSTALLED)
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name)


def identified(parts):
    return not any(text.startswith(identity.UNKNOWN) for text in parts.values())


@pytest.mark.parametrize(("kind", "field"), [("Recipe", "axes"), ("Slotted", "axis")])
def test_objects_of_packages_count_by_plain_fields(kind, field, installed):
    made = getattr(installed, kind)
    assert identified(describe(made([1, {"a": (2, None)}]), "v"))
    assert changed(made([1, {"a": (2, None)}]), made([1, {"a": (2, None)}])) == []
    assert changed(made([1, {"a": (2, None)}]), made([1, {"a": (3, None)}])) == [f"v.{field}"]
    assert describe(made(1), "v")["v"] == f"{installed.__name__}.{kind}"


def test_objects_of_packages_that_hold_more_than_plain_fields_are_not_identified(installed):
    assert not identified(describe(installed.Made(1), "v"))  # its fields are not what it is made from
    assert not identified(describe(installed.Held(torch.ones(1)), "v"))
    assert not identified(describe(installed.Held(object()), "v"))
    for c in (threading.Lock(), threading.local(), random.Random(0), np.random.default_rng(0), object()):
        assert not identified(describe(c, "v"))
    a, b = installed.Listed([1]), installed.Listed([1])
    a.unit, b.unit = "m", "km"
    assert changed(a, b) == ["v.unit"]


def test_a_module_that_is_not_installed_does_not_count_to_a_package_and_does_to_a_user(
    installed, tmp_path, monkeypatch
):
    assert identified(describe(installed.Layer(), "net"))
    code = "def own(x):\n    import {0}\n    return x\n"
    name = f"own_{tmp_path.name.replace('-', '_')}"
    for module, imported in ((name, "a_package_that_nobody_has"), (f"{name}_2", f"{name}_3"), (f"{name}_3", "sys")):
        (tmp_path / f"{module}.py").write_text(code.format(imported))
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module(name).own
    before = describe(own, "v")
    assert before["v (import a_package_that_nobody_has)"] == "'not found'"
    monkeypatch.setitem(sys.modules, "a_package_that_nobody_has", types.ModuleType("a_package_that_nobody_has"))
    assert differences(before, describe(own, "v"))
    later = importlib.import_module(f"{name}_2").own
    assert not identified(describe(later, "v"))
    importlib.import_module(f"{name}_3")
    assert identified(describe(later, "v"))


def test_contexts_around_functions_count_by_their_arguments_also_after_use(installed):
    @contextlib.contextmanager
    def scaled(by):
        yield by

    net = installed.Cast()
    net.function, other = scaled(2)(len), scaled(3)(len)
    before = describe(net, "net")
    assert identified(before)
    net(torch.ones(1))
    assert differences(before, describe(net, "net")) == []
    assert changed(net.function, other) == ["v (self).context[1]"]
    assert changed(torch.autocast("cpu", enabled=False), torch.autocast("cpu")) == ["v._enabled"]


class OwnContext(torch.no_grad):
    pass


def own_context(value):
    context = OwnContext()
    context.prev_of_own = value
    return context


CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": functools.partial(torch.autocast, "cpu"),
    "own": functools.partial(own_context, 1),
}


@pytest.mark.parametrize("case", CONTEXTS)
def test_contexts_of_torch_are_the_same_before_and_after_they_are_entered(case):
    make = CONTEXTS[case]
    context = make()
    with context:
        assert changed(make(), context) == []
    with torch.no_grad(), context:
        assert changed(make(), context) == []
    assert changed(make(), context) == []
    assert identified(describe(context, "v"))


def test_what_contexts_of_torch_are_made_with_counts():
    assert changed(torch.inference_mode(True), torch.inference_mode(False)) == ["v.mode"]
    assert changed(own_context(1), own_context(2)) == ["v.prev_of_own"]
    with torch.no_grad():  # the mode that `set_grad_enabled` restores is the one in which it is made
        inner = torch.set_grad_enabled(True)
        with inner:
            pass
    made = torch.set_grad_enabled(True)
    before = describe(made, "v")
    assert changed(made, inner) == ["v.prev"]
    with torch.no_grad(), made:
        assert describe(made, "v") == before
    assert describe(torch.no_grad(), "v") == {"v": "no_grad", "v.prev": "False"}  # as in files of earlier versions


def test_digests_do_not_depend_on_the_process():
    code = (
        "import torch; from torch import nn; from bnrank._core.identity import digest\n"
        "net = nn.Sequential(nn.LayerNorm(2), nn.ReLU())\n"
        "class A(nn.Module):\n    names = {'a', 'b', 'c', 'd'}\n"
        "    def forward(self, x):\n        return x if x in {'a', 'b', 'c'} else (lambda y: y + 1)(x)\n"
        "print(digest(net, A(), {'a', 'b', 'c'}, torch.ones(3), lambda x: x + 1))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=None) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 64


def test_not_a_number_and_signed_zeros():
    assert digest(math.nan) == digest(float("nan"))
    assert digest(0.0) != digest(-0.0)


def test_stored_digests_stay_what_they_are():
    """A change here makes stored results unusable: it needs a new number ``identity.FORMAT``."""
    net = nn.Sequential(nn.Linear(2, 1), nn.ReLU())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    value = {"rate": 0.1, "widths": [3, 2], "name": "x", "none": None, "data": np.arange(4.0), "net": net}
    assert (identity.FORMAT, digest(value)[:16]) == (2, "beeccfcf880627dc")


class Hashed:
    """Remembers its own hash, which with texts differs between processes, as configurations of transformers do."""

    def __init__(self, size):
        self.size, self.label_hash = size, 3
        self._original_hash = hash(self)

    def __hash__(self):
        return hash(("text", self.size))


class Labelled:
    def __init__(self):
        self._label_hash = 3


def test_the_hash_that_an_object_keeps_of_itself_does_not_count_and_other_numbers_do():
    assert identity.plain_fields(Hashed(2)) == {"size": "2", "label_hash": "3"}
    assert identity.plain_fields(Labelled()) == {"_label_hash": "3"}
