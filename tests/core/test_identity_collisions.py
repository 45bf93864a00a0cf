"""Values with another result have other descriptions, however alike they look."""

import enum
import functools
import importlib
import re
import typing
from collections import OrderedDict
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
}


@pytest.mark.parametrize("case", OTHER)
def test_another_result_has_other_parts(case):
    a, b = OTHER[case]
    assert differences(describe(a, "net"), describe(b, "net"))
    assert not differences(describe(a, "net"), describe(a, "net"))


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
