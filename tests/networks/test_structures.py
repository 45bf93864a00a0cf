"""The structures in which networks return tensors: dataclasses, namedtuples, objects with attributes or slots."""

from collections import namedtuple
from dataclasses import dataclass
from enum import Enum

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery import Timing
from bnrank.discovery.compression.returned import tensors
from bnrank.networks.inputs import main_output
from helpers import normal


@dataclass(slots=True)
class Slotted:
    aux: object
    logits: object


@dataclass(slots=True)
class Unnamed:
    number: int
    values: object


class BySlots:
    __slots__ = ("aux", "logits", "unset")

    def __init__(self, aux, logits):
        self.aux, self.logits = aux, logits


class ByAttributes:
    def __init__(self, aux, logits):
        self.aux, self.logits, self.itself = aux, logits, self


class Kind(Enum):
    ONE = 1


Named = namedtuple("Named", "aux logits")
STRUCTURES = {
    "slotted dataclass": Slotted,
    "without a known name": lambda aux, logits: Unnamed(1, logits),
    "namedtuple": Named,
    "namedtuple with out": namedtuple("Named", "aux out"),
    "slots": BySlots,
    "attributes": ByAttributes,
}


class Wrapped(nn.Module):
    """An MLP that returns its outputs, and their first column before them, in a structure."""

    def __init__(self, make):
        super().__init__()
        self.body, self.make = bnrank.MLP([4, 12, 12, 3], seed=0), make

    def forward(self, x):
        out = self.body(x)
        return self.make(out[:, :1], out)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_main_output_is_found_in_every_structure(kind):
    make, (aux, out) = STRUCTURES[kind], (torch.ones(5, 1), torch.ones(5, 3))
    assert main_output(make(aux, out)) is out
    found = tensors(make(aux, out))
    assert [t.shape for t in found] == [t.shape for t in ([out] if kind == "without a known name" else [aux, out])]
    x = normal(100, 4).float()
    profile, expected = (bnrank.profile(net, x) for net in (Wrapped(make), Wrapped(make).body))
    assert profile["units"].values.tolist() == expected["units"].values.tolist()


@pytest.mark.parametrize("kind", ["slotted dataclass", "namedtuple", "slots"])
def test_networks_that_return_structures_are_compressed(kind):
    x = normal(200, 4).float()
    result = compress(Wrapped(STRUCTURES[kind]), x, tol=0.3, timing=Timing(repeats=2), progress=False)
    assert result.certificate.met
    assert type(result.network(x)) is type(STRUCTURES[kind](x, x))


def test_structures_without_tensors_of_interest_are_returned_as_they_are():
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 3)])
    for value in (packed, Kind.ONE, Slotted, "text", Unnamed(1, None)):
        assert main_output(value) is value
    assert len(tensors(packed)) == 2
    assert tensors([Kind.ONE, Slotted, "text", nn.Linear(1, 1), Unnamed(1, None)]) == []
    assert main_output(Named((torch.ones(2), 1), None)).shape == (2,)
