"""The parts of a network that a watch measures: weight matrices, and the inputs of the layers that hold them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bnrank.measures.layerwise import TOO_FEW
from bnrank.measures.usage import LEAST
from bnrank.networks.reading.matrices import Matrix, listing
from bnrank.networks.reasons import Skipped
from bnrank.training.watching.divergence import shortened

OUTPUT = "output"
"""Name of the row of the network's output."""
ENTERING = ("weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse", "in_proj_weight", "q_proj_weight")
_CONVOLUTIONS: dict[type[nn.Module], int] = {
    **{nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3},
    **{nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3},
}


@dataclass(frozen=True)
class Part:
    """A matrix of a network, the module that holds it, and why no hook can see what it acts on, or an empty text."""

    name: str
    module: nn.Module
    matrix: Matrix
    spatial: int = 0
    unseen: str = ""

    @property
    def unit_dim(self) -> int:
        """The dimension of units (features or channels) of the layer's input."""
        return -1 - self.spatial


def parts_of(net: nn.Module) -> tuple[list[Part], list[Skipped]]:
    """Return the matrices of a network, in order of registration, and all other tensors.

    Examples
    --------
    >>> found, skipped = parts_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> [part.name for part in found], [part.name for part in skipped][:3]
    (['0'], ['0.bias', '1.weight', '1.bias'])
    """
    modules = dict(net.named_modules(remove_duplicate=False))
    with listing(net) as held:
        parts = []
        for matrix in held.matrices:
            module: Any = matrix.stored.module
            spatial = len(matrix.shape) - 2 if "conv" in matrix.kind else 0
            unseen = _unseen(matrix.stored.key, module, _parent(matrix.stored.owner, modules))
            parts.append(Part(matrix.name, module, matrix, spatial, unseen))
        return parts, [Skipped(other.name, other.type, other.reason) for other in held.others]


def _parent(owner: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
    """Return the module that holds another one, None for the network itself."""
    return modules[owner.rpartition(".")[0]] if owner else None


def _unseen(own: str, module: nn.Module, parent: nn.Module | None) -> str:
    """Return why what a parameter acts on is not the input of its module, or cannot be seen, or an empty string."""
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted layers call no hooks"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "the input is an index and not a vector"
    if type(parent) is nn.MultiheadAttention:  # subclasses may call it
        return "attention computes the input inside and does not call the layer"
    if own in ENTERING:
        return ""
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "the recurrent layer computes the input inside"
    return "the weight does not act on the first input of its module"


NOT_CALLED = (
    "no input of floating-point numbers was seen: the layer may not have been called, or in torch.compile, "
    "where x= helps"
)
NO_OUTPUT = "the network itself may not have been called, but only its layers, or returned no floating-point numbers"


def without_activations(parts: Sequence[Part], seen: Sequence[Collection[str]], output: bool = True) -> list[str]:
    """Return a remark per reason on what has no activations in measurements that have seen those of others.

    Parameters
    ----------
    parts : sequence of Part
        The weights.
    seen : sequence of collections of str
        For each measurement, the layers with activations.
    output : bool
        Whether to remark on the output of the network, too.

    Examples
    --------
    >>> without_activations(parts_of(nn.LSTM(3, 4))[0], [["weight_ih_l0", "output"]])
    ['activations not measured at weight_hh_l0: the recurrent layer computes the input inside']
    """
    found: dict[tuple[int, str], list[str]] = {}
    seen = [names for names in seen if names]
    reasons = [(part.name, part.unseen or NOT_CALLED) for part in parts]
    for name, reason in [*reasons, (OUTPUT, NO_OUTPUT)] if output else reasons:
        if without := sum(name not in names for names in seen):
            found.setdefault((without, reason), []).append(name)
    return [
        f"activations not measured at {shortened(names)}"
        f"{f' in {without} of {len(seen)} measurements' if without < len(seen) else ''}: {reason}"
        for (without, reason), names in found.items()
    ]


def without_dimensions(rows: Iterable[Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return a remark on the layers whose dimension cannot be estimated from the few rows of some measurement.

    Examples
    --------
    >>> nan = float("nan")
    >>> without_dimensions([{"0": {"rows": 2.0, "units": 5.0, "dimension_95": nan, "nonfinite_units": 0.0}}])[0][:31]
    'dimensions at 0: not estimated '
    """
    found: dict[str, None] = {}
    for one in rows:
        for name, row in one.items():
            if 1 < row.get("rows", 0) < LEAST and math.isnan(row["dimension_95"]) and not row["nonfinite_units"]:
                found[name] = None
    return [f"dimensions at {shortened(list(found))}: {TOO_FEW}"] if found else []
