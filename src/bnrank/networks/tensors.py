"""Tensors of a state dict or a module, and what each is: matrices to measure, or the reason why it has none."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank.networks.functional import unwrap

PATCHES = (
    "kernels as (out, in x taps) matrices, which map a patch of the input to one position of the output. Without an "
    "image size these are not the singular values of the convolution on images; their squares are the eigenvalues of "
    "the covariance of the output channels where the input is white noise. For kernels of one tap both agree"
)
GATES = {4: ("input", "forget", "cell", "output"), 3: ("reset", "update", "new")}
QKV = ("q", "k", "v")
_RECURRENT = re.compile(r"(?P<stem>.*?)weight_(?P<which>ih|hh)(?P<suffix>(_l\d+(_reverse)?)?)$")
_FUSED = re.compile(r"(^|\.)(in_proj_weight|(qkv|c_attn|qkv_proj|wqkv|Wqkv|to_qkv)\.weight)$")
_INTERLEAVED = re.compile(r"(^|\.)query_key_value\.weight$")
_EMBEDDING = re.compile(r"(^|[._])(wte|wpe|emb|embed|embedd?ings?|tok_embeddings|embed_tokens)[._]", re.IGNORECASE)
_WEIGHT = re.compile(r"(^|[._/])((weight|kernel|filter)\w*|w)$", re.IGNORECASE)
_TRAINING = re.compile(r"(^|_)(optim|optimi[sz]ers?|(lr_)?sched(ulers?)?|scaler|rng|amp|opt_state)(_|$)", re.IGNORECASE)
_NORM = re.compile(r"(^|[._])(\w*norm\w*|bn\d*|ln\w*|\w*_bn|\w*_ln)\.(weight|scale|gamma)$", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """One tensor, loaded where it is measured.

    Attributes
    ----------
    name : str
        Its name in the state dict or file.
    shape : tuple of int
        Its shape.
    dtype : str
        For example "float32".
    load : callable
        Returns the tensor.
    floating : bool
        Whether its entries are floating-point or complex numbers.
    storage : object
        Equal for tensors that are one in memory; None where unknown.
    role : str
        "linear", "embedding", "conv", "transposed", or "recurrent" where known; "" otherwise.
    groups : int
        Of a convolution, where known.
    gates : tuple of str
        Parts in which the rows are fused, where known.
    reason : str
        Why it holds no matrix, where known.
    note : str
        What else to know.
    is_tensor : bool
        False for other entries of a checkpoint, such as the number of the epoch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Tensor]
    floating: bool = True
    storage: object = None
    role: str = ""
    groups: int = 0
    gates: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""
    is_tensor: bool = True


@dataclass(frozen=True)
class Piece:
    """One matrix of a tensor, or as many as a convolution has groups.

    Attributes
    ----------
    name : str
        That of the tensor, and of the part in brackets.
    kind : str
        "linear", "matrix", "embedding", "conv2d", "conv2d patches" and so on.
    shape : tuple of int
        (rows, columns).
    take : callable
        Returns the matrix, or matrices (groups, rows, columns), of the loaded tensor.
    """

    name: str
    kind: str
    shape: tuple[int, int]
    take: Callable[[Tensor], Tensor]


def entry(name: str, tensor: object, **more: Any) -> Entry:
    """Return the record of a tensor in memory; of any other object, with the reason why it is not measured."""
    if not isinstance(tensor, Tensor):
        what = "quantized weights in packed form" if "packed" in name else "not a tensor"
        advice = "; measure the network before quantization" if "packed" in name else ""
        more["reason"] = f"{what} ({type(tensor).__name__}){advice}"
        return Entry(name, (), type(tensor).__name__, lambda: torch.zeros(0), is_tensor=False, **more)
    tensor = tensor.detach()
    dtype = str(tensor.dtype).removeprefix("torch.")
    more.setdefault("floating", tensor.is_floating_point() or tensor.is_complex())
    if tensor.is_meta:
        more["reason"] = "on the meta device, which holds no numbers"
    elif tensor.is_quantized:
        more["reason"] = f"quantized ({dtype}); measure the network before quantization"
    elif tensor.layout != torch.strided or tensor.is_nested:
        more["reason"] = f"{str(tensor.layout).removeprefix('torch.')} layout; .to_dense() makes it measurable"
    elif tensor.numel():
        offset = tensor.storage_offset()
        key = (tensor.untyped_storage()._cdata, offset, tuple(tensor.shape), tuple(tensor.stride()))
        more.setdefault("storage", key)
    return Entry(name, tuple(tensor.shape), dtype, lambda: tensor, **more)


def of_mapping(state: Mapping[Any, object], name: str = "net") -> list[Entry]:
    """Return the records of a state dict, or of a checkpoint that holds one.

    Mappings inside are read too, and lists of tensors or mappings, except for the state of an optimizer, a schedule or
    a random generator.
    """
    if not state:
        raise ValueError(f"{name}: got an empty mapping, expected names and tensors")
    if not any(isinstance(value, Tensor | Mapping) for value in state.values()):
        got = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in list(state.items())[:3])
        raise TypeError(f"{name}: got a mapping without tensors ({got}), expected names and tensors")
    return normalized(list(_walk(state, "")))


def _walk(state: Mapping[Any, object], prefix: str) -> Iterator[Entry]:
    for key, value in state.items():
        name = f"{prefix}{key}"
        inside = value
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor | Mapping) for item in value):
            inside = dict(enumerate(value))
        if isinstance(inside, Mapping):
            if _TRAINING.search(str(key)):
                found = sum(1 for _ in _tensors(inside))
                reason = f"state of the training, {found} tensors, not of the network"
                yield Entry(name, (), "mapping", lambda: torch.zeros(0), reason=reason, is_tensor=False)
            else:
                yield from _walk(inside, f"{name}.")
        else:
            yield entry(name, value)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def normalized(entries: Sequence[Entry]) -> list[Entry]:
    """Return records in which weight normalization is carried out: v is loaded as g v / ||v||."""
    known = {found.name: found for found in entries}
    pairs = {}
    for g in entries:
        v = known.get(re.sub(r"weight_g$", "weight_v", re.sub(r"weight\.original0$", "weight.original1", g.name)))
        fits = v is not None and v is not g and len(v.shape) == len(g.shape) and 1 in g.shape and not v.reason
        if fits and v is not None and all(a in (1, b) for a, b in zip(g.shape, v.shape, strict=True)):
            pairs[v.name] = replace(v, load=_product(g, v), note="with weight normalization, g v / ||v||")
            pairs[g.name] = replace(g, reason=f"norms of a weight normalization, multiplied into {v.name}")
    return [pairs.get(found.name, found) for found in entries]


def _product(g: Entry, v: Entry) -> Callable[[], Tensor]:
    dims = [i for i, size in enumerate(g.shape) if size == 1]

    def load() -> Tensor:
        directions = v.load().double()
        return directions * (g.load().double() / directions.norm(dim=dims, keepdim=True))

    return load


def of_module(net: nn.Module) -> list[Entry]:
    """Return the records of all parameters and buffers of a module, in the order of its state dict."""
    net = unwrap(net)
    if isinstance(net, torch.jit.ScriptModule):
        return of_mapping(net.state_dict(keep_vars=True))
    owners = dict(net.named_modules(remove_duplicate=False))
    state = dict(net.state_dict(keep_vars=True))
    state |= {name: value for name, value in net.named_buffers(remove_duplicate=False) if name not in state}
    validation.expect(state, "net", f"{type(net).__name__} without parameters and buffers", "a module with some")
    return normalized(list(_of_modules(state, owners)))


def _of_modules(state: Mapping[str, object], owners: Mapping[str, nn.Module]) -> Iterator[Entry]:
    seen: set[str] = set()
    for name, value in state.items():
        owner, _, last = name.rpartition(".")
        if ".parametrizations." in f".{name}":
            place, _, rest = f".{name}".partition(".parametrizations.")
            place = place[1:]
            computed = f"{place}.{rest.split('.')[0]}".lstrip(".")
            if computed not in seen:
                seen.add(computed)
                yield _computed(computed, owners[place])
            yield replace(entry(name, value), reason=f"of a parametrization; {computed}, which it gives, is measured")
        else:
            yield entry(name, value, **_role(owners.get(owner), last))


def _computed(name: str, part: nn.Module) -> Entry:
    """Return the record of a parametrized tensor, computed on a copy in eval mode: some parametrizations learn."""
    with torch.no_grad(), parametrize.cached():
        value = getattr(copy.deepcopy(part).eval(), name.rpartition(".")[2])
    return entry(name, value, **_role(part, name.rpartition(".")[2]), note="computed by a parametrization")


def _role(part: nn.Module | None, key: str) -> dict[str, Any]:
    """Return what the module that owns a tensor says of it."""
    norms = nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm
    if isinstance(part, norms) and key in ("weight", "bias"):
        return {"reason": f"{'scale' if key == 'weight' else 'shift'} of a normalization ({type(part).__name__})"}
    if isinstance(part, nn.PReLU):
        return {"reason": "slopes of an activation (PReLU)"}
    if key == "weight" and isinstance(part, nn.modules.conv._ConvNd):
        return {"role": "transposed" if part.transposed else "conv", "groups": part.groups}
    if key == "weight" and isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return {"role": "embedding"}
    if key == "weight" and isinstance(part, nn.Linear):
        return {"role": "linear"}
    return {}


def order(entries: Sequence[Entry]) -> list[Entry]:
    """Return records with numbers in their names in numerical order, for files that do not keep the order."""
    return sorted(entries, key=lambda e: [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in _split(e.name)])


def _split(name: str) -> list[str]:
    return [part for part in re.split(r"(\d+)", name) if part]


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


def _reason(found: Entry, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return why a tensor is not measured, by its shape, type and name; "" if it is."""
    shape, name = found.shape, found.name
    last = name.rpartition(".")[2]
    if last in ("running_mean", "running_var"):
        return "running statistic of a normalization"
    if last == "num_batches_tracked":
        return "counter of batches"
    if not found.floating:
        quantized = len(shape) > 1 and found.dtype in ("int8", "uint8", "int4", "uint4")
        advice = ": quantized weights or a mask; measure the network before quantization" if quantized else ""
        return f"integers or truth values ({found.dtype}){advice}"
    if 0 in shape:
        return "empty"
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

    def take(tensor: Tensor) -> Tensor:
        if turned:  # (groups, in, out, taps) -> (groups, out, in, taps)
            tensor = tensor.reshape(groups, shape[0] // groups, shape[1], taps).transpose(1, 2)
        return tensor.reshape(groups, rows, -1)

    rows = shape[1] if turned else shape[0] // groups
    columns = (shape[0] // groups if turned else shape[1]) * taps
    if groups > 1:
        notes.append(f"{groups} groups, each measured alone and their singular values joined")
    kind = f"conv{len(shape) - 2}d" + ("" if taps == 1 else " patches")
    return [Piece(found.name, kind, (rows, columns), take)], "; ".join(notes)
