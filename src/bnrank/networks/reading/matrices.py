"""The matrices that a network holds, from its tensors: one list for modules, state dicts and files."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.reading import files
from bnrank.networks.reading.computed import resolved
from bnrank.networks.reading.stored import Stored, distinct, of_mapping, of_module

PRODUCTS = "as the matrix (out, in1 x in2) that maps products of an entry of each input to the output"
UNKNOWN = "read as (out, in, taps) of one group: tensors alone do not tell transposed or grouped convolutions"
STACK = "a stack of matrices, measured one by one"
GATES = {4: ("input", "forget", "cell", "output"), 3: ("reset", "update", "new"), 1: ("",)}
TIED = ("tied: the same tensor as ", ", counted once")  # around the name
_CODES = ("int8", "uint8", "int4", "uint4", "int32", "qint8", "quint8", "qint32")  # int64 are indices
_RECURRENT = re.compile(r"(?P<stem>.*?)weight_(?P<which>ih|hh|hr)(?P<suffix>(_l\d+(_reverse)?)?)$")
_PROJECTION = re.compile(r"^(?P<stem>(.*\.)?)(?P<which>[qkv])_proj_weight$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|qkv_proj|wqkv|to_qkv|in_proj)\.weight)$", re.IGNORECASE)
_INTERLEAVED = re.compile(r"(^|\.)query_key_value\.weight$")
_EMBEDDING = re.compile(r"(^|[._])(wte|wpe|emb|embed|embedd?ings?|tok_embeddings|embed_tokens)[._]", re.IGNORECASE)
_WEIGHT = re.compile(r"(^|[._/])((weight|kernel|filter)\w*|w)$", re.IGNORECASE)
_KERNEL = re.compile(rf"{_WEIGHT.pattern}|^CONSTANTS\.", re.IGNORECASE)  # also constants of TorchScript, without names
_STATISTICS = {
    "running_mean": "running statistic of a normalization",
    "running_var": "running statistic of a normalization",
    "num_batches_tracked": "counter of batches",
}
_NORM = re.compile(r"(^|[._])(\w*norm\w*|bn\d*|ln\w*|\w*_bn|\w*_ln)\.(weight|scale|gamma)$", re.IGNORECASE)

Shapes = Mapping[str, tuple[int, ...]]
Source = nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Matrix:
    """One weight of a network: a matrix, the kernel of a convolution, or a part of a tensor that holds several.

    Attributes
    ----------
    name : str
        The name of its tensor without a final ".weight", and of the part where the tensor holds several: "layers.0",
        "attn.q", "lstm.l0.ih.forget", "experts.up[0]".
    kind : str
        "linear", "conv1d" to "conv3d", "transposed conv1d" to "transposed conv3d", "embedding", "recurrent" (one gate),
        "expert" (one of a stack), "bilinear", or "matrix" where nothing tells.
    stored : Stored
        The tensor, with ``module`` and ``key`` where it is one of a module.
    shape : tuple of int
        (out, in), or that of the kernel as it is stored.
    take : callable
        Returns the weight of the loaded tensor.
    groups : int
        Number of groups of a convolution.
    rows : tuple of int, optional
        First row in the tensor and the row after the last, of (out, in); all of them where None.
    is_turned : bool
        Whether the tensor is stored as (in, out).
    bias_stored : Stored, optional
        The tensor that has its bias, at ``rows`` or, of projections in tensors of their own, at ``bias_rows``.
    tied : tuple of str
        Names of other tensors that are the same one.
    note : str
        How it was read, where this is not evident.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 5), nn.MultiheadAttention(5, 1))
    >>> with listing(net) as held:
    ...     [(matrix.name, matrix.kind, matrix.shape) for matrix in held.matrices][:2]
    [('0', 'linear', (5, 3)), ('1.q', 'linear', (5, 5))]
    """

    name: str
    kind: str
    stored: Stored
    shape: tuple[int, ...]
    take: Callable[[Tensor], Tensor]
    groups: int = 1
    rows: tuple[int, int] | None = None
    is_turned: bool = False
    bias_stored: Stored | None = None
    bias_rows: tuple[int, int] | None = None
    tied: tuple[str, ...] = ()
    note: str = ""

    @property
    def tensor(self) -> str:
        """The name of its tensor."""
        return self.stored.name

    @property
    def module(self) -> nn.Module | None:
        """The module that holds its tensor (not a copy); None for a state dict or a file."""
        return self.stored.module

    @property
    def size(self) -> tuple[int, int]:
        """(rows, columns) of each of its ``blocks()``."""
        if len(self.shape) == 2:
            return self.shape[0], self.shape[1]
        first, second, taps = self.shape[0] // self.groups, self.shape[1], math.prod(self.shape[2:])
        return (second, first * taps) if self.kind.startswith("transposed") else (first, second * taps)

    def weight(self, tensor: Tensor | None = None) -> Tensor:
        """Return the weight as it is now, (out, in), or the kernel as it is stored; float8 as float32.

        With ``tensor``, the loaded tensor, nothing is loaded.

        Raises
        ------
        ValueError
            If it cannot be read.
        """
        tensor = (self.stored.load() if tensor is None else tensor).detach()
        return self.take(tensor.float() if tensor.element_size() == 1 else tensor)

    def blocks(self, tensor: Tensor | None = None) -> Tensor:
        """Return the weight as (groups, out, in x taps): what maps a patch of each group to its outputs.

        ``tensor`` as for :meth:`weight`.
        """
        return blocks(self.weight(tensor), self.kind.startswith("transposed"), self.groups)

    def bias(self) -> Tensor | None:
        """Return the bias, (out,), or None."""
        if self.bias_stored is None:
            return None
        rows, bias = self.bias_rows or self.rows, self.bias_stored.load().detach()
        return bias if rows is None else bias[slice(*rows)]


def blocks(kernel: Tensor, transposed: bool = False, groups: int = 1) -> Tensor:
    """Return a weight as the matrices (groups, out, in x taps), which map a patch of each group to its outputs.

    Parameters
    ----------
    kernel : Tensor
        (out, in / groups, ...), or (in, out / groups, ...) of a transposed convolution.
    transposed : bool
        Whether it is that of a transposed convolution.
    groups : int
        Number of groups.

    Examples
    --------
    >>> import torch
    >>> blocks(torch.ones(4, 6, 3, 3), transposed=True, groups=2).shape
    torch.Size([2, 6, 18])
    """
    kernel = kernel.reshape(groups, kernel.shape[0] // groups, kernel.shape[1], -1)
    return (kernel.transpose(1, 2) if transposed else kernel).flatten(2)


@dataclass(frozen=True)
class Other:
    """A tensor that is not measured: its name, its type and shape, and why."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True)
class Listing(Printed):
    """What the tensors of a network are: each is measured in matrices, or has the reason why not.

    Attributes
    ----------
    title : str
        The class of the module, the name of the file, or "a state dict".
    matrices : tuple of Matrix
        In the order of the state dict, each once.
    others : tuple of Other
        All other tensors, each with the reason.
    records : tuple of Stored
        All tensors.

    Examples
    --------
    >>> with listing(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))) as held:
    ...     print(held)
    tensor    shape  measured in
    0.weight  3, 2   0
    0.bias    3      0
    1.weight  3      not: scale of a normalization (LayerNorm)
    1.bias    3      not: shift of a normalization (LayerNorm)
    """

    title: str
    matrices: tuple[Matrix, ...]
    others: tuple[Other, ...]
    records: tuple[Stored, ...]

    @property
    def measured(self) -> dict[str, list[str]]:
        """The names of the matrices that a tensor holds or is the bias of, by its name, in the order of the tensors."""
        names: dict[int, list[str]] = defaultdict(list)
        for matrix in self.matrices:
            for stored in filter(None, (matrix.stored, matrix.bias_stored)):
                names[id(stored)].append(matrix.name)
        return {stored.name: names[id(stored)] for stored in self.records if id(stored) in names}

    def _content(self) -> list[Part]:
        measured, why = self.measured, {other.name: f"not: {other.reason}" for other in self.others}
        rows = [
            {"tensor": s.name, "shape": s.shape, "measured in": ", ".join(measured.get(s.name, ())) or why[s.name]}
            for s in self.records
        ]
        return [Table("Tensors, and where they are measured", rows)] if rows else ["no tensors"]

    @property
    def tensors(self) -> tuple[int, int]:
        """How many tensors hold the matrices, and how many there are."""
        own = [stored for stored in self.records if not stored.into and stored.is_tensor]
        return len({id(matrix.stored) for matrix in self.matrices}), len(distinct(own))

    @property
    def entries(self) -> tuple[int, int]:
        """How many numbers the matrices have, and how many all tensors that could hold some."""
        shapes = {stored.name: stored.shape for stored in self.records}
        own = [s for s in self.records if not s.into and s.is_tensor and (s.floating or _is_quantized(s, shapes))]
        held = {id(matrix.stored): matrix.stored for matrix in self.matrices}
        return _numbers(held.values()), _numbers(distinct(own))


def _numbers(records: Iterable[Stored]) -> int:
    return sum(math.prod(stored.shape) for stored in records)


def listing(source: Source, name: str = "source") -> AbstractContextManager[Listing]:
    """Provide the matrices of a module, a state dict or a file, which stays open; ``name`` is the argument in errors.

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or a file that cannot be read.

    Examples
    --------
    >>> import torch
    >>> with listing({"a.weight": torch.eye(3), "a.bias": torch.ones(3)}) as held:
    ...     [matrix.name for matrix in held.matrices], [other.reason for other in held.others]
    (['a'], ['bias'])
    """
    name = validation.text(name, "name")
    if isinstance(source, str | os.PathLike):
        return _of_file(source, name)
    if isinstance(source, nn.Module):
        records, title = of_module(source), type(source).__name__
        validation.expect(records, name, f"{title} without parameters and buffers", "a module with some")
    elif isinstance(source, Mapping):
        records, title = of_mapping(source, name), "a state dict"
    else:
        expected = "a torch.nn.Module, a state dict, or the path of a file of weights"
        raise TypeError(f"{name}: got {validation.describe(source)}, expected {expected}")
    return nullcontext(listed(records, title))


@contextmanager
def _of_file(path: str | os.PathLike[str], name: str) -> Iterator[Listing]:
    with files.opened(path, name) as records:
        yield listed(records, Path(path).name)


def listed(records: Sequence[Stored], title: str) -> Listing:
    """Return the listing of records as they were stored."""
    records = resolved(records)
    known = {stored.name: stored for stored in records}
    shapes = {stored.name: stored.shape for stored in records}
    matrices, others, first = list[Matrix](), list[Other](), dict[object, int]()
    for stored in records:
        held, reason = matrices_in(stored, shapes)
        same = stored.name if stored.storage is None else stored.storage
        place = first.setdefault(same, len(matrices)) if held else len(matrices)
        if place < len(matrices):
            matrices[place] = replace(matrices[place], tied=(*matrices[place].tied, stored.name))
            held, reason = [], matrices[place].stored.name.join(TIED)
        if not held:
            kind = f"{stored.dtype or 'no tensor'} {' x '.join(map(str, stored.shape))}".strip()
            others.append(Other(stored.name, kind, reason))
        matrices += [_with_bias(matrix, known) for matrix in held]
    return Listing(title, tuple(matrices), tuple(others), tuple(records))


# What a tensor holds --------------------------------------------------------------------------------------------------


def matrices_in(stored: Stored, shapes: Shapes) -> tuple[list[Matrix], str]:
    """Return the matrices of a tensor, or none and the reason."""
    reason = stored.reason or _reason(stored, shapes)
    if not reason and stored.module is not None and stored.key in stored.module._buffers and not stored.note:
        reason = "a buffer, which is not trained"
    if reason:
        return [], reason
    if stored.role in _OF_ROLE and len(stored.shape) > 2:
        return _OF_ROLE[stored.role](stored), ""
    if len(stored.shape) == 2:
        return _two_dimensional(stored, (stored.shape[0], stored.shape[1]), shapes), ""
    return _of_more_dimensions(stored, shapes), ""


def _of_more_dimensions(stored: Stored, shapes: Shapes) -> list[Matrix]:
    """Return the matrices of a tensor that has not two dimensions."""
    shape = stored.shape
    if len(shape) > 2:  # dimensions of 1 are none, such as those of a position embedding
        shape = tuple(size for size in shape if size > 1)
    if len(shape) == 2 or stored.role:
        return _two_dimensional(stored, (shape[-2], shape[-1]), shapes)
    named_kernel = stored.module is None and _KERNEL.search(stored.name) and "expert" not in stored.name
    return _stack(stored, shape) if len(shape) == 3 and not named_kernel else _kernel(stored)


def _reason(stored: Stored, shapes: Shapes) -> str:
    """Return why a tensor is not measured, by its name, type and shape; "" if it is."""
    last = stored.name.rpartition(".")[2]
    if last in _STATISTICS or not stored.floating:
        return _STATISTICS.get(last) or _reason_of_integers(stored, shapes)
    if 0 in stored.shape:
        return "empty"
    return "" if stored.role and 1 < len(stored.shape) < 6 else _reason_by_name(stored.name, stored.shape, shapes)


def _reason_of_integers(stored: Stored, shapes: Shapes) -> str:
    if not _is_quantized(stored, shapes):
        return f"integers or truth values ({stored.dtype})"
    mask = " or a mask" if stored.dtype == "uint8" else ""
    return f"integers ({stored.dtype}), probably quantized weights{mask}; measure the network before quantization"


def _reason_by_name(name: str, shape: tuple[int, ...], shapes: Shapes) -> str:
    """Return why a tensor whose class does not tell what it is, is not measured; "" if it is."""
    last = name.rpartition(".")[2]
    if len(shape) > 1 and last in ("weight", "bias"):
        other = f"{name.removesuffix(last)}{'bias' if last == 'weight' else 'weight'}"
        if shapes.get(other) == shape:  # of a linear map or a convolution, the bias is a vector
            what = "scale" if last == "weight" else "shift"
            return f"{what} of a normalization, applied entry by entry, since weight and bias have one shape"
        if last == "bias" and len(shape) > 2:
            return "bias"
    if not shape:
        return "a single number"
    if len(shape) > 5:
        return f"{len(shape)} dimensions: neither a matrix nor a kernel of a convolution"
    if len(shape) == 1 or (max(shape) == math.prod(shape) and not _WEIGHT.search(name)):
        return _reason_of_vector(name, shapes)
    return ""


def _reason_of_vector(name: str, shapes: Shapes) -> str:
    stem, _, last = name.rpartition(".")
    if "bias" in last or last in ("b", "beta"):
        return "bias"
    if f"{stem}.running_mean" in shapes or _NORM.search(name) or last == "gamma":
        return "scale of a normalization"
    return "a vector: neither a matrix nor a kernel of a convolution"


def _is_quantized(stored: Stored, shapes: Shapes) -> bool:
    """Return whether a tensor of integers would be measured if it held floating-point numbers."""
    if stored.floating or stored.dtype not in _CODES:
        return False
    return not _reason(replace(stored, floating=True), shapes)


def _two_dimensional(stored: Stored, shape: tuple[int, int], shapes: Shapes) -> list[Matrix]:
    """Return the matrix of a tensor with two dimensions, or the parts that are fused in it."""
    name = stored.name
    if (gates := _RECURRENT.match(name)) is not None:
        return _gates(stored, shape, gates, shapes)
    if (projection := _PROJECTION.match(name)) is not None:
        return [_projection(stored, shape, projection)]
    turned = not stored.role and _is_turned(stored, shape, shapes)
    kind = stored.role or ("embedding" if _EMBEDDING.search(name) else "matrix")
    size = shape[::-1] if turned else shape
    take = (lambda tensor: tensor.T) if turned else (lambda tensor: tensor.reshape(shape))
    matrix = Matrix(name.removesuffix(".weight"), kind, stored, size, take, is_turned=turned, note=stored.note)
    return _fused(matrix) if _FUSED.search(name) or _INTERLEAVED.search(name) else [matrix]


def _gates(stored: Stored, shape: tuple[int, int], match: re.Match[str], shapes: Shapes) -> list[Matrix]:
    """Return the gates of a recurrent layer as torch stores it, by the size of its hidden states."""
    hh = shapes.get(f"{match['stem']}weight_hh{match['suffix']}", (0, 0))
    hr = shapes.get(f"{match['stem']}weight_hr{match['suffix']}")
    hidden = hr[1] if hr is not None and len(hr) == 2 else hh[-1]
    fits = hidden and shape[0] % hidden == 0 and match["which"] != "hr"
    gates = GATES.get(shape[0] // hidden, ("",)) if fits else ("",)
    inside = match["stem"] + ".".join(filter(None, (match["suffix"].removeprefix("_"), match["which"])))
    return _parts(
        Matrix(inside, "recurrent", stored, shape, lambda tensor: tensor.reshape(shape), note=stored.note), gates
    )


def _projection(stored: Stored, shape: tuple[int, int], match: re.Match[str]) -> Matrix:
    """Return the projection of an attention whose projections are tensors of their own, and share a bias."""
    number, name = "qkv".index(match["which"]), f"{match['stem']}{match['which']}"
    rows = number * shape[0], (number + 1) * shape[0]
    return Matrix(name, "linear", stored, shape, lambda tensor: tensor.reshape(shape), bias_rows=rows, note=stored.note)


def _fused(matrix: Matrix) -> list[Matrix]:
    """Return the three projections of attention that are fused in a matrix, or it as a whole."""
    stored, shape, note = matrix.stored, matrix.shape, matrix.note
    matrix = replace(matrix, kind=stored.role or "linear")
    if _INTERLEAVED.search(stored.name):
        text = "measured whole: in most networks with this name the rows of q, k and v alternate by head"
        return [replace(matrix, note=_joined(note, text))]
    if shape[0] != 3 * shape[1]:
        text = "measured whole: fused, but not in three parts of one size"
        return [replace(matrix, note=_joined(note, text))]
    how = "as MultiheadAttention does" if "in_proj" in stored.name else "by its name"
    note = _joined(note, f"split in thirds, q, k and v, {how}") if stored.module is None else note
    inside = matrix.name.removesuffix("in_proj_weight").removesuffix(".")
    return _parts(replace(matrix, name=inside, kind="linear", note=note), "qkv")


def _is_turned(stored: Stored, shape: tuple[int, int], shapes: Shapes) -> bool:
    """Return whether a matrix is (in, out), by the length of its bias or by its class (GPT-2's Conv1D)."""
    if type(stored.module).__name__ == "Conv1D" or (_FUSED.search(stored.name) and shape[1] == 3 * shape[0]):
        return True
    bias = shapes.get(_name_of_bias(stored.name), ())
    return bias == (shape[1],) and shape[0] != shape[1]


def _parts(matrix: Matrix, labels: Sequence[str]) -> list[Matrix]:
    """Return the parts of one size in which the rows of a matrix are fused."""
    size = matrix.shape[0] // len(labels)

    def part(i: int, label: str) -> Matrix:
        rows = i * size, (i + 1) * size
        name = ".".join(filter(None, (matrix.name, label)))
        return replace(
            matrix, name=name, shape=(size, matrix.shape[1]), rows=rows, take=lambda t: matrix.take(t)[slice(*rows)]
        )

    return [part(i, label) for i, label in enumerate(labels)] if len(labels) > 1 else [matrix]


def _directions(stored: Stored) -> list[Matrix]:
    """Return the gates of a recurrent layer that is stored as (directions, gates x hidden, inputs), as in ONNX."""
    count, rows, columns = stored.shape

    def direction(i: int) -> Matrix:
        label = f"[{('forward', 'backward')[i]}]" if count > 1 else ""
        return Matrix(f"{stored.name}{label}", "recurrent", stored, (rows, columns), lambda t: t[i], note=stored.note)

    gates = stored.gates or ("",)
    parts = [_parts(direction(i), [f"[{gate}]" for gate in gates] if stored.gates else gates) for i in range(count)]
    return [replace(part, name=part.name.replace(".[", "[")) for whole in parts for part in whole]


def _stack(stored: Stored, shape: Sequence[int]) -> list[Matrix]:
    """Return the matrices of a tensor (number, out, in)."""
    name, note = stored.name.removesuffix(".weight"), _joined(stored.note, STACK)

    def one(i: int) -> Matrix:
        take = lambda tensor: tensor.reshape(*shape)[i]  # noqa: E731
        return Matrix(f"{name}[{i}]", "expert", stored, (shape[1], shape[2]), take, note=note)

    return [one(i) for i in range(shape[0])]


def _kernel(stored: Stored) -> list[Matrix]:
    """Return the kernel of a convolution."""
    shape, notes = stored.shape, [stored.note]
    turned = "transposed " if stored.role == "transposed" else ""
    if not stored.role:
        notes.append(UNKNOWN)
        if shape[1] == 1 and shape[0] > 1:
            notes.append("one input channel: if each acts alone (depthwise), these are all filters together")
        if re.search(r"deconv|transpose|upconv|conv_?tr", stored.name, re.IGNORECASE):
            notes.append("a transposed convolution is stored as (in, out, taps)")
    groups = max(stored.groups, 1)
    notes += [f"{groups} groups, each measured alone and their singular values joined"] if groups > 1 else []
    kind, name = f"{turned}conv{len(shape) - 2}d", stored.name.removesuffix(".weight")
    return [Matrix(name, kind, stored, shape, lambda tensor: tensor, groups, note=_joined(*notes))]


def _bilinear(stored: Stored) -> list[Matrix]:
    name, note, size = stored.name.removesuffix(".weight"), _joined(stored.note, PRODUCTS), stored.shape[0]
    shape = size, math.prod(stored.shape[1:])
    return [Matrix(name, "bilinear", stored, shape, lambda tensor: tensor.flatten(1), note=note)]


def _name_of_bias(name: str) -> str:
    return re.sub(r"weight(?=[^.]*$)", "bias", _PROJECTION.sub(r"\g<stem>in_proj_weight", name))


def _with_bias(matrix: Matrix, known: Mapping[str, Stored]) -> Matrix:
    """Return a matrix with its bias: by its name, or as the only vector that is a parameter of its module."""
    own, name = matrix.stored, _name_of_bias(matrix.stored.name)
    bias = known.get(name) if name != own.name else None
    if bias is None and own.module is not None and own.key != "weight" and not own.role:
        bias = _only_vector(own.module, known)
    if bias is None or len(bias.shape) != 1 or matrix.kind in ("embedding", "expert"):
        return matrix
    out = matrix.shape[1] * matrix.groups if matrix.kind.startswith("transposed") else matrix.shape[0]
    rows = matrix.bias_rows or matrix.rows
    fits = bias.shape[0] >= rows[1] if rows else bias.shape[0] == out
    return replace(matrix, bias_stored=bias) if fits else matrix


def _only_vector(module: nn.Module, known: Mapping[str, Stored]) -> Stored | None:
    """Return the only parameter of a module that is a vector, beside a single other one; else None."""
    inside = [stored for stored in known.values() if stored.module is module and stored.key in module._parameters]
    vectors = [stored for stored in inside if len(stored.shape) == 1]
    alone = len(vectors) == len([stored for stored in inside if len(stored.shape) > 1]) == 1
    return vectors[0] if alone else None


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


_OF_ROLE: Mapping[str, Callable[[Stored], list[Matrix]]] = {
    "recurrent": _directions,
    "bilinear": _bilinear,
    "conv": _kernel,
    "transposed": _kernel,
}
