"""The matrices that a tensor of weights holds, or the reason why it has none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from bnrank.networks.tensors import Entry

PATCHES = (
    "kernels as (out, in x taps) matrices, which map a patch of the input to one position of the output. Without an "
    "image size these are not the singular values of the convolution on images; their squares are the eigenvalues of "
    "the covariance of the output channels where the input is white noise. For kernels of one tap both agree"
)
PRODUCTS = "as the matrix (out, in1 x in2) that maps products of an entry of each input to the output"
UNTOLD = "read as (out, in, taps) of one group: tensors alone do not tell transposed or grouped convolutions"
GATES = {4: ("input", "forget", "cell", "output"), 3: ("reset", "update", "new")}
QKV = ("q", "k", "v")
KERNELS = ("conv", "transposed")  # roles
QUANTIZED = ("int8", "uint8", "int4", "uint4", "int32", "qint8", "quint8", "qint32")  # int64 are indices
_RECURRENT = re.compile(r"(?P<stem>.*?)weight_(?P<which>ih|hh)(?P<suffix>(_l\d+(_reverse)?)?)$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|qkv_proj|wqkv|Wqkv|to_qkv)\.weight)$")
_INTERLEAVED = re.compile(r"(^|\.)query_key_value\.weight$")
_EMBEDDING = re.compile(r"(^|[._])(wte|wpe|emb|embed|embedd?ings?|tok_embeddings|embed_tokens)[._]", re.IGNORECASE)
_WEIGHT = re.compile(r"(^|[._/])((weight|kernel|filter)\w*|w)$", re.IGNORECASE)
_NORM = re.compile(r"(^|[._])(\w*norm\w*|bn\d*|ln\w*|\w*_bn|\w*_ln)\.(weight|scale|gamma)$", re.IGNORECASE)


@dataclass(frozen=True)
class Piece:
    """One matrix of a tensor, or as many as a convolution has groups.

    Attributes
    ----------
    name : str
        That of the tensor, and of the part in brackets.
    kind : str
        "linear", "matrix", "embedding", "bilinear", "conv2d", "conv2d patches" and so on.
    shape : tuple of int
        (rows, columns).
    take : callable
        Returns the matrix, or matrices (groups, rows, columns), of the loaded tensor.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    take: Callable[[Tensor], Tensor]


def pieces(found: Entry, shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[Piece], str]:
    """Return the matrices of a tensor, or none and the reason.

    Parameters
    ----------
    found : Entry
        The tensor.
    shapes : mapping
        Shapes of all tensors by name: those of the others tell gates from rows.

    Returns
    -------
    pieces : list of Piece
        Empty where it is not measured.
    text : str
        The reason, or a note on how it was read.
    """
    reason = found.reason or _reason(found, shapes)
    if reason:
        return [], reason
    shape, whole = found.shape, found.name
    if found.role == "recurrent":
        return _directions(found), found.note
    if found.role == "bilinear":
        size = shape[0], shape[1] * shape[2]
        return [Piece(whole, "bilinear", size, lambda t: t.flatten(1))], "; ".join(filter(None, (found.note, PRODUCTS)))
    if len(shape) == 2 or found.role in ("linear", "embedding"):
        return _matrices(found, shapes)
    if not found.role and not _WEIGHT.search(whole):
        if len(shape) == 3 and shape[0] == 1:
            return [Piece(whole, "matrix", shape[1:], lambda t: t[0])], "its first dimension of 1 is left out"
        if len(shape) == 3 and "expert" in whole:
            return _stacked(found), "a stack of matrices, measured one by one"
    if len(shape) == 3 and "expert" in whole and not found.role:
        return _stacked(found), "a stack of matrices, measured one by one"
    if _FUSED.search(whole) and set(shape[2:]) == {1} and shape[0] == 3 * shape[1]:
        fused = [Piece(p.name, p.kind, p.shape, _flattened(p.take)) for p in _thirds(whole, shape[:2], "conv")]
        return fused, _assumed("thirds", whole)
    return _kernel(found)


def is_matrix_of_integers(found: Entry, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a tensor of integers would be measured if it held floating-point numbers.

    Examples
    --------
    >>> from bnrank.networks.tensors import entry
    >>> import torch
    >>> int8 = torch.int8
    >>> [is_matrix_of_integers(entry("weight", torch.ones(*s, dtype=int8)), {}) for s in ((2, 3), (2, 3, 5, 5), (3,))]
    [True, True, False]
    """
    if found.floating or found.dtype not in QUANTIZED or not found.is_tensor:
        return False
    return bool(pieces(replace(found, floating=True, reason=""), shapes)[0])


def _reason(found: Entry, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return why a tensor is not measured, by its shape, type and name; "" if it is."""
    shape, name = found.shape, found.name
    last = name.rpartition(".")[2]
    if last in ("running_mean", "running_var"):
        return "running statistic of a normalization"
    if last == "num_batches_tracked":
        return "counter of batches"
    if not found.floating:
        if not is_matrix_of_integers(found, shapes):
            return f"integers or truth values ({found.dtype})"
        others = " or a mask" if found.dtype == "uint8" else ""
        what = f"probably quantized weights{others}; measure the network before quantization"
        return f"integers ({found.dtype}), {what}"
    if 0 in shape:
        return "empty"
    if len(shape) > 1 and not found.role and last in ("weight", "bias"):
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
    if len(shape) == 1 or (max(shape) == math.prod(shape) and not found.role and not _WEIGHT.search(name)):
        return _reason_of_vector(name, shapes)
    return ""


def _reason_of_vector(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    stem, _, last = name.rpartition(".")
    if "bias" in last or last in ("b", "beta"):
        return "bias"
    if f"{stem}.running_mean" in shapes or _NORM.search(name) or last == "gamma":
        return "scale of a normalization"
    return "a vector: neither a matrix nor a kernel of a convolution"


def _matrices(found: Entry, shapes: Mapping[str, tuple[int, ...]]) -> tuple[list[Piece], str]:
    name, shape = found.name, (found.shape[-2], found.shape[-1])
    if (match := _RECURRENT.match(name)) is not None:
        hh = shapes.get(f"{match['stem']}weight_hh{match['suffix']}", (0, 0))
        hr = shapes.get(f"{match['stem']}weight_hr{match['suffix']}")
        hidden = hr[1] if hr is not None and len(hr) == 2 else hh[-1]
        gates = GATES.get(shape[0] // hidden) if hidden and shape[0] % hidden == 0 else None
        if gates:
            return _rows(name, shape, gates, "recurrent"), found.note
        return [Piece(_part_name(name, ""), "recurrent", shape, _itself)], found.note
    if _FUSED.search(name):
        if 3 * shape[1] == shape[0] or 3 * shape[0] == shape[1]:
            return _thirds(name, shape, "linear"), _assumed("thirds", name)
        return [Piece(name, "linear", shape, _itself)], "measured whole: fused, but not in three parts of one size"
    if _INTERLEAVED.search(name):
        text = "measured whole: in most networks with this name the rows of q, k and v alternate by head"
        return [Piece(name, "linear", shape, _itself)], text
    kind = found.role or ("embedding" if _EMBEDDING.search(name) else "matrix")
    return [Piece(name, kind, shape, _itself)], found.note


def _directions(found: Entry) -> list[Piece]:
    """Return the gates of a recurrent layer that is stored as (directions, gates x hidden, inputs)."""
    count, rows, columns = found.shape
    out = []
    for i, direction in enumerate(("forward", "backward")[:count]):
        label = f"[{direction}]" if count > 1 else ""
        for piece in _rows(f"{found.name}{label}", (rows, columns), found.gates or ("",), "recurrent"):
            out.append(replace(piece, name=piece.name.removesuffix("[]"), take=_of_direction(i, piece.take)))
    return out


def _of_direction(i: int, take: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: take(tensor[i])


def _assumed(parts: str, name: str) -> str:
    return f"split in {parts}, q, k and v, {'as MultiheadAttention does' if 'in_proj' in name else 'by its name'}"


def _itself(tensor: Tensor) -> Tensor:
    return tensor.reshape(tensor.shape[-2:])


def _flattened(take: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: take(tensor.flatten(1))


def _rows(name: str, shape: tuple[int, int], parts: Sequence[str], kind: str) -> list[Piece]:
    """Return the parts in which the rows of a matrix are fused."""
    size = shape[0] // len(parts)

    def part(i: int) -> Callable[[Tensor], Tensor]:
        return lambda tensor: _itself(tensor)[i * size : (i + 1) * size]

    return [Piece(_part_name(name, label), kind, (size, shape[1]), part(i)) for i, label in enumerate(parts)]


def _part_name(name: str, label: str) -> str:
    """Return the name of a part of a tensor, the one that :func:`bnrank.networks.read` gives it in the module.

    Examples
    --------
    >>> [_part_name(name, "q") for name in ("a.in_proj_weight", "a.qkv.weight", "qkv")]
    ['a.q', 'a.qkv.q', 'qkv[q]']
    >>> _part_name("lstm.weight_ih_l0_reverse", "forget")
    'lstm.l0_reverse.ih.forget'
    """
    if (match := _RECURRENT.match(name)) is not None:
        place = match["suffix"].removeprefix("_")
        return match["stem"] + ".".join(filter(None, (place, match["which"], label)))
    for end in ("in_proj_weight", ".weight"):
        if name.endswith(end):
            return ".".join(filter(None, (name.removesuffix(end).removesuffix("."), label)))
    return f"{name}[{label}]"


def _thirds(name: str, shape: Sequence[int], kind: str) -> list[Piece]:
    if shape[0] == 3 * shape[1]:
        return _rows(name, (shape[0], shape[1]), QKV, kind)
    columns = _rows(name, (shape[1], shape[0]), QKV, kind)

    def transposed(take: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda tensor: take(tensor.mT)

    return [replace(piece, take=transposed(piece.take)) for piece in columns]


def _stacked(found: Entry) -> list[Piece]:
    def one(i: int) -> Callable[[Tensor], Tensor]:
        return lambda tensor: tensor[i]

    size = found.shape[1], found.shape[2]
    return [Piece(f"{found.name}[{i}]", "matrix", size, one(i)) for i in range(found.shape[0])]


def _kernel(found: Entry) -> tuple[list[Piece], str]:
    """Return a convolution as the matrices of its groups, (out, in x taps)."""
    shape, taps = found.shape, math.prod(found.shape[2:])
    groups, notes = max(found.groups, 1), [found.note] if found.note else []
    turned = found.role == "transposed"
    if not found.role:
        if shape[1] == 1 and shape[0] > 1:
            notes.append("one input channel: if each acts alone (depthwise), these are all filters together")
        if re.search(r"deconv|transpose|upconv|conv_?tr", found.name, re.IGNORECASE):
            notes.append("read as (out, in, taps); a transposed convolution is stored as (in, out, taps)")

    rows = shape[1] if turned else shape[0] // groups
    columns = (shape[0] // groups if turned else shape[1]) * taps
    if groups > 1:
        notes.append(f"{groups} groups, each measured alone and their singular values joined")
    kind = f"conv{len(shape) - 2}d" + ("" if taps == 1 else " patches")
    return [Piece(found.name, kind, (rows, columns), lambda tensor: blocks(tensor, turned, groups))], "; ".join(notes)


def blocks(kernel: Tensor, transposed: bool = False, groups: int = 1) -> Tensor:
    """Return a kernel as the matrices (groups, out, in x taps), which map a patch of each group to its output channels.

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


def told_by(found: Entry, other: Entry | None) -> Entry:
    """Return the record of a kernel with the role and groups of another one of its shape, where its own are unknown."""
    if other is None or found.role or other.role not in KERNELS or found.shape != other.shape:
        return found
    return replace(found, role=other.role, groups=other.groups)
