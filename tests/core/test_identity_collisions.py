"""Values with another result have other descriptions, however alike they look."""

import copy
import datetime
import enum
import functools
import importlib
import itertools
import random
import re
import types
import typing
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from torch import nn

from bnrank._core import identity
from bnrank._core.identity import describe, differences


class InAList(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x):
        return self.layers[0](x)


class Mode(nn.Module):
    def forward(self, x):
        return x if self.training else -x


def activation(function):
    class Act(nn.Module):
        def forward(self, x):
            return function(x)

    return Act()


def teacher(seed):
    torch.manual_seed(seed)
    net = nn.Linear(3, 3)
    return lambda out, y: (out - net(y)).abs().mean()


def wrapped(factor):
    @functools.wraps(nn.functional.mse_loss)
    def loss(out, y):
        return factor * (out - y).abs().mean()

    return loss


def with_attribute(factor):
    def loss(out, y):
        return loss.factor * (out - y).abs().mean()

    loss.factor = factor
    return loss


class Scale(float):
    pass


class Listed(list):
    pass


def listed(unit):
    value = Listed([1])
    value.unit = unit
    return value


class HidesItems(dict):
    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())

    items = keys = values = __iter__


class HidesOrdered(OrderedDict, HidesItems):
    items = HidesItems.items


def moved(*keys):
    value = HidesOrdered(a=1, b=2)
    for key in keys:
        value.move_to_end(key)
    return value


def slotted(base):
    return type("Slotted", (base,), {"__slots__": ("__tag",)})


def with_slot(kind, value, *args):
    made = kind(*args)
    made._Slotted__tag = value
    return made


SLOTTED = {base: slotted(base) for base in (dict, list, float, str, Counter, UserDict, object)}
ENTRIES = {dict: [{1: 2}], list: [[1]], float: [1.5], str: ["a"], Counter: ["ab"], UserDict: [], object: []}


class OwnSet(set):
    def __iter__(self):
        return iter(())


class OwnFrozenset(frozenset):
    pass


class OwnArray(np.ndarray):
    pass


class OwnFloat32(np.float32):
    pass


def own_array(*values, unit="m"):
    value = np.array(values).view(OwnArray)
    value.unit = unit
    return value


def by_exec(entries):
    kind = {}
    exec("class Executed(list):\n    pass", {"__name__": "builtins"}, kind)
    value = kind["Executed"](entries)
    value.unit = entries[-1]
    return value


def with_code(factor):
    return type("Slotted", (), {"__slots__": (), "scaled": (lambda self, x: 1 * x) if factor == 1 else abs})()


class Made:
    def __init__(self):
        self.factor = 2


class MadeOtherwise:
    def __init__(self):
        self.factor = 3


def making(kind):
    return lambda x: kind().factor * x


PARTS = {"a": nn.Tanh(), "b": nn.ReLU()}
TANH, RELU = activation(torch.tanh), activation(torch.relu)
OTHER = {
    "order": [nn.Sequential(OrderedDict((name, PARTS[name]) for name in names)) for names in ("ab", "ba")],
    "list of modules": [InAList(0), InAList(1)],
    "mode": [Mode(), Mode().eval()],
    "teacher": [teacher(0), teacher(1)],
    "classes of one name": [nn.Sequential(TANH, RELU), nn.Sequential(RELU, RELU)],
    "wraps": [wrapped(2.0), wrapped(3.0)],
    "attribute of a function": [with_attribute(2.0), with_attribute(3.0)],
    "subclass of float": [Scale(2), Scale(3)],
    "subclass of list": [listed("m"), listed("km")],
    "mask": [np.ma.array([1.0, 2.0], mask=mask) for mask in ([0, 1], [0, 0])],
    "path and number": [PurePosixPath("3"), 3],
    "value of an enum": [enum.Enum("Kind", {"A": value}).A for value in (1, 2)],
    "order of a dict": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "fields": [np.zeros(2, [(a, "f4"), (b, "f4")]) for a, b in ("ab", "ba")],
    "constructor": [making(Made), making(MadeOtherwise)],
    "default factory": [defaultdict(kind, {1: 2}) for kind in (int, list)],
    "no default factory": [defaultdict(None, {1: 2}), defaultdict(int, {1: 2})],
    "code of a default factory": [defaultdict(lambda: 1), defaultdict(lambda: 2)],
    "hidden entries": [HidesItems(a=1), HidesItems(a=2)],
    "subclass of set": [OwnSet({1}), OwnSet({2})],
    "subclass of set and set": [OwnSet({1}), {1}],
    "subclass of frozenset": [OwnFrozenset({1}), OwnFrozenset({2})],
    "subclass of ndarray": [own_array(1.0), own_array(2.0)],
    "attribute of a subclass of ndarray": [own_array(1.0), own_array(1.0, unit="km")],
    "attribute of a class made by exec": [listed("m"), by_exec([1])],
    "code of a class with slots": [with_code(1), with_code(2)],
    **{
        f"slot of a subclass of {base.__name__}": [with_slot(kind, tag, *ENTRIES[base]) for tag in (1, 2)]
        for base, kind in SLOTTED.items()
    },
}


@pytest.mark.parametrize("case", OTHER)
def test_another_result_has_other_parts(case):
    a, b = OTHER[case]
    assert differences(describe(a, "net"), describe(b, "net"))
    assert not differences(describe(a, "net"), describe(a, "net"))


class OwnDeque(deque):
    pass


class OwnBytes(bytearray):
    pass


class OwnTime(datetime.datetime):
    pass


class OwnError(Exception):
    pass


class OwnRandom(random.Random):
    pass


class OwnCount(itertools.count):
    pass


class OwnPartial(functools.partial):
    def __call__(self, x):
        return -x


class OwnNamespace(types.SimpleNamespace):
    pass


class OwnModes(typing.Generic[typing.TypeVar("S")]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        OwnDeque([1]),
        OwnBytes(b"a"),
        OwnTime(2020, 1, 1),
        OwnError("a"),
        OwnRandom(0),
        OwnCount(1),
        OwnPartial(abs),
        OwnFloat32(1),
        OwnSet({object()}),
        np.array([None]).view(OwnArray),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_whose_content_is_in_no_field_are_not_identified(value):
    parts = describe(value, "v")
    assert parts["v"] == f"{identity.UNKNOWN} {__name__}.{type(value).__name__}"
    with pytest.raises(TypeError, match=f"v: got v = .*{type(value).__name__}, whose value cannot be"):
        identity.require(parts)


def test_values_of_own_classes_without_hidden_content_are_identified():
    for value in (OwnModes(), OwnNamespace(a=1), OwnFrozenset("abc"), np.ones(1).view(OwnArray)):
        copied = copy.deepcopy(value)
        parts = describe(value, "v")
        assert not [text for text in parts.values() if text.startswith(identity.UNKNOWN)]
        assert not differences(parts, describe(copied, "v"))
    assert differences(describe(OwnNamespace(a=1), "v"), describe(OwnNamespace(a=2), "v"))[0].startswith("v.a: ")
    assert describe(OwnSet("ab"), "v")["v"] == "OwnSet {'a', 'b'}"
    assert list(describe(moved("a"), "v").items())[:3] == [("v", "HidesOrdered of 2"), ("v['b']", "2"), ("v['a']", "1")]


class Pair(typing.NamedTuple):
    first: float
    second: float


PATTERN = re.compile("a")


class Common(nn.Module, typing.Generic[typing.TypeVar("T")]):
    def forward(self, x):
        return Pair(x, x).first if PATTERN.match("b") else x


def test_common_code_needs_no_version():
    loop = []
    loop.append([loop, loop])
    for value in (Common(), loop):
        parts = describe(value, "net")
        assert not [text for text in parts.values() if text.startswith(identity.UNKNOWN)]
        identity.require(parts)


def test_of_a_very_large_network_only_the_digest_is_kept():
    net = nn.Sequential(*(nn.ReLU() for _ in range(40000)))
    parts = describe(net, "net")
    assert len(parts) == 1
    net[7] = nn.Tanh()
    assert differences(parts, describe(net, "net"))[0].startswith("net: stored 80001 parts, SHA-256")


def test_modules_that_code_imports_and_chains_of_modules_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"package_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "helpers.py").write_text("K = 2.0\ndef act(x):\n    return x * K\n")
    code = (
        f"import {name}.helpers\nhelpers = {name}.helpers\n"
        f"def chain(x):\n    return {name}.helpers.act(x)\n"
        f"def inside(x):\n    from {name}.helpers import K\n    return K * x\n"
        "def closure():\n    module = helpers\n    return lambda x: module.act(x)\n"
    )
    (tmp_path / f"{name}_main.py").write_text(code)
    importlib.invalidate_caches()
    main = importlib.import_module(f"{name}_main")
    functions = [main.chain, main.inside, main.closure()]
    before = [describe(function, "f") for function in functions]
    monkeypatch.setattr(importlib.import_module(f"{name}.helpers"), "K", 3.0)
    for function, parts in zip(functions, before, strict=True):
        assert differences(parts, describe(function, "f"))
