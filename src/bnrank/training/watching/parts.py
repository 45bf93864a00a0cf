"""The parts of a network that a watch measures: weight matrices, and the inputs of the layers that hold them."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnrank.measures.layerwise import TOO_FEW
from bnrank.measures.usage import LEAST
from bnrank.networks.functional import unwrap
from bnrank.networks.reasons import Skipped
from bnrank.networks.tensor_matrices import KERNELS, blocks, told_by
from bnrank.networks.tensors import Entry, computed_tensor, reparametrized
from bnrank.training.watching.records import shortened

OUTPUT = "output"
"""Name of the row of the network's output."""
ENTERING = ("weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse", "in_proj_weight", "q_proj_weight")
_CONVOLUTIONS: dict[type[nn.Module], int] = {
    **{nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3},
    **{nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3},
}


@dataclass(frozen=True)
class Part:
    """A weight of a network.

    Attributes
    ----------
    name : str
        The layer's name; with the parameter's name, unless this is "weight".
    parameter : str
        The name in the network of the parameter, or of the tensor that hooks compute from parameters.
    module : nn.Module
        The layer that holds it.
    spatial : int
        Number of dimensions of the images that the layer takes: 0 for linear layers.
    unseen : str
        Why no hook can see what the weight acts on; empty where it is the layer's own input.
    computed : bool
        Whether hooks compute the weight from parameters: weight normalization, pruning and the like.
    """

    name: str
    parameter: str
    module: nn.Module
    spatial: int = 0
    unseen: str = ""
    computed: bool = False

    def tensor(self, parameters: Mapping[str, Tensor]) -> Tensor | None:
        """Return the weight that the layer uses now, from the parameters of the network; None without it."""
        if self.computed:
            return computed_tensor(self.module, self.parameter.rpartition(".")[2])
        return parameters.get(self.parameter)

    @property
    def unit_dim(self) -> int:
        """The dimension of units (features or channels) of the layer's input."""
        return -1 - self.spatial

    def matrices(self, weight: Tensor) -> Tensor:
        """Return the weight as matrices (groups, out, in x kernel)."""
        if isinstance(self.module, nn.modules.conv._ConvNd) and weight.ndim == 2 + self.spatial:
            return blocks(weight, self.module.transposed, self.module.groups)
        return blocks(weight)


def parts_of(net: nn.Module) -> tuple[list[Part], list[Skipped]]:
    """Return the weights of a network with at least two dimensions, in order of registration, and all other parameters.

    A weight that hooks compute from parameters stands in place of these.

    Examples
    --------
    >>> found, skipped = parts_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> [part.name for part in found], [part.name for part in skipped]
    (['0'], ['0.bias', '1.weight', '1.bias'])
    """
    return present_parts(unwrap(net))


def present_parts(net: nn.Module, known: Sequence[Part] = ()) -> tuple[list[Part], list[Skipped]]:
    """Return what `parts_of` does, also of a network that has parameters without a shape or values.

    Computed weights that are known as parts are not computed again.
    """
    modules = dict(net.named_modules())
    computed = {(part.module, part.parameter) for part in known if part.computed}
    found: list[Part] = []
    skipped: list[Skipped] = []
    seen: set[str] = set()
    for name, parameter in net.named_parameters():
        p: Tensor = parameter
        owner, _, own = name.rpartition(".")
        place, key = reparametrized(name, modules)
        if key:
            skipped.append(Skipped.part(name, modules[owner], f"of a reparametrization, which gives {key}"))
            name, owner, own = f"{place}.{key}".lstrip("."), place, key
            if name in seen:
                continue
            seen.add(name)
        module = modules[owner]
        spatial = next((count for kind, count in _CONVOLUTIONS.items() if isinstance(module, kind)), 0)
        is_known = bool(key) and (module, name) in computed
        if not is_known and (reason := _reason(computed_tensor(module, own) if key else p, bool(spatial))):
            skipped.append(Skipped.part(name, module, reason))
            continue
        label = (owner or own) if own == "weight" else name
        found.append(Part(label, name, module, spatial, _unseen(own, module, _parent(owner, modules)), bool(key)))
    return found, skipped


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


def _reason(p: Tensor, kernel: bool) -> str:
    """Return why a parameter is not measured as a matrix, or an empty string."""
    if is_lazy(p):
        return "no shape yet"
    shape = tuple(p.shape)
    if not p.is_floating_point() or p.element_size() < 2:
        return f"entries of type {p.dtype}"
    if len(shape) < 2 or 0 in shape:
        return f"no matrix: shape {shape}"
    return f"a single row: shape {shape}" if len(shape) > 2 and shape[0] == 1 and not kernel else ""


def matrices_of(entries: Iterable[Entry], known: Mapping[str, Entry] | None = None) -> dict[str, Tensor]:
    """Return the weights with at least two dimensions, as matrices (groups, out, in x kernel), named as by `parts_of`.

    Parameters
    ----------
    entries : iterable of Entry
        Tensors of a network.
    known : mapping, optional
        Tensors of a module with the same names, which tell transposed and grouped convolutions.

    Examples
    --------
    >>> from bnrank.networks.tensors import of_module
    >>> found = matrices_of(of_module(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2))))
    >>> {name: tuple(matrix.shape) for name, matrix in found.items()}
    {'0': (2, 4, 18)}
    """
    found = {}
    for entry in entries:
        told = told_by(entry, (known or {}).get(entry.name))
        kernel = told.role in KERNELS
        if not entry.floating or entry.reason or _reason(tensor := entry.load(), kernel):
            continue
        owner, _, own = entry.name.rpartition(".")
        groups = max(told.groups, 1) if kernel else 1
        found[owner if own == "weight" and owner else entry.name] = blocks(tensor, told.role == "transposed", groups)
    return found
