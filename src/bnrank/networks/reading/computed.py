"""Tensors that are computed from several stored ones, as far as names and shapes tell: reparametrized and quantized."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bnrank.networks.reading.stored import Stored

Known = Mapping[str, Stored]
BLOCK = 128  # rows and columns that share a scale, where this fits the number of scales (DeepSeek-V3 and others)
_OF_PARAMETRIZATION = re.compile(r"(?P<owner>(?:.*\.)?)parametrizations\.(?P<key>[^.]+)\.(?P<rest>.+)")
_SIGNS = re.compile(
    r"(^|\.)(parametrizations|weight)\.|_(orig|v)$|(^|\.)(qweight|weight_packed)$"
)  # in the names of such tensors
_CODES = re.compile(r"float8_|u?int8$")


def resolved(records: Iterable[Stored]) -> list[Stored]:
    """Return records in which reparametrizations and quantization are carried out.

    Of the tensors of a pruned weight, of one with weight or spectral normalization (``torch.nn.utils``), and of codes
    with their scales, one is replaced by the record of the weight; the others have a reason.

    Examples
    --------
    >>> from bnrank.networks.reading.stored import of_mapping
    >>> state = {"weight_orig": torch.ones(2, 2), "weight_mask": torch.eye(2)}
    >>> [(stored.name, stored.reason) for stored in resolved(of_mapping(state))]
    [('weight', ''), ('weight_mask', 'mask of a pruning, multiplied into weight')]
    """
    found = list(records)
    usual = not any(_SIGNS.search(stored.name) or _CODES.match(stored.dtype) for stored in found)
    return found if usual else _carried_out(found)


def _carried_out(found: list[Stored]) -> list[Stored]:
    for step in (_packed, _pruned, _weight_normalized, _spectrally_normalized, _scaled, _unresolved):
        known = {stored.name: stored for stored in found}  # a pruned v is a v
        changed: dict[str, Stored] = {}
        for stored in found:
            if not stored.reason:
                changed |= step(stored, known)
        found = [changed.get(stored.name, stored) for stored in found]
    return found


def _pruned(orig: Stored, known: Known) -> dict[str, Stored]:
    """Return the records of a pruned tensor and its mask, ``torch.nn.utils.prune``."""
    name = orig.name.removesuffix("_orig")
    mask = known.get(f"{name}_mask")
    if name == orig.name or mask is None or mask.reason or mask.shape != orig.shape or not orig.floating:
        return {}

    def load() -> Tensor:
        values = orig.load()
        values = values.float() if values.element_size() == 1 else values
        return values * mask.load().to(values.dtype)

    others = {mask.name: f"mask of a pruning, multiplied into {name}"}
    return _merged(name, orig, others, load, "with the mask of a pruning", known)


def _weight_normalized(v: Stored, known: Known) -> dict[str, Stored]:
    """Return the records of g and v in g v / ||v||, ``weight_norm`` of both kinds."""
    names = re.sub(r"(weight[^.]*)_v$", r"\1_g", v.name), re.sub(r"_v$", "", v.name)
    if (match := _OF_PARAMETRIZATION.fullmatch(v.name)) is not None and match["rest"] == "original1":
        if _rest(match, known) != {"original0", "original1"}:
            return {}
        names = re.sub("original1$", "original0", v.name), f"{match['owner']}{match['key']}"
    g = known.get(names[0])
    if g is None or g is v or g.reason:
        return {}
    dims = list(range(len(v.shape)))  # a single norm with dim=None
    if g.shape:
        fits = len(g.shape) == len(v.shape) and all(a in (1, b) for a, b in zip(g.shape, v.shape, strict=True))
        dims = [i for i, size in enumerate(g.shape) if size == 1] if fits else []
    if not dims:
        return {}

    def load() -> Tensor:
        directions = _exact(v.load())
        return directions * (_exact(g.load()) / torch.linalg.vector_norm(directions, dim=dims, keepdim=True))

    others = {g.name: f"norms of a weight normalization, multiplied into {names[1]}"}
    return _merged(names[1], v, others, load, "with weight normalization, g v / ||v||", known)


def _spectrally_normalized(orig: Stored, known: Known) -> dict[str, Stored]:
    """Return the records of W, u and v in W / (u^T W v), ``spectral_norm`` of both kinds in eval mode."""
    name = orig.name.removesuffix("_orig")
    names = [f"{name}{end}" for end in ("_u", "_v")] if name != orig.name else []
    if (match := _OF_PARAMETRIZATION.fullmatch(orig.name)) is not None and match["rest"] == "original":
        if _rest(match, known) != {"original", "0._u", "0._v"}:
            return {}
        name = f"{match['owner']}{match['key']}"
        names = [re.sub("original$", end, orig.name) for end in ("0._u", "0._v")]
    vectors = [known[vector] for vector in names if vector in known and not known[vector].reason]
    if len(vectors) != 2:
        return {}
    u, v = vectors
    size = math.prod(orig.shape)
    dims = [i for i, rows in enumerate(orig.shape) if u.shape == (rows,) and rows * math.prod(v.shape) == size]
    if not dims or len(v.shape) != 1:
        return {}

    def load() -> Tensor:
        weight, left, right = (_exact(part.load()) for part in (orig, u, v))
        norms = [torch.vdot(left, weight.movedim(dim, 0).flatten(1) @ right) for dim in dims]
        return weight / max(norms, key=lambda norm: float(norm.abs()))  # u and v nearly attain it along theirs

    others = dict.fromkeys(names, f"vector of a spectral normalization, of which {name} is computed")
    return _merged(name, orig, others, load, "with spectral normalization, W / (u^T W v)", known)


def _scaled(codes: Stored, known: Known) -> dict[str, Stored]:
    """Return the records of 8-bit codes and their scales: one for all, or for each row or block of rows and columns."""
    if not _CODES.match(codes.dtype) or len(codes.shape) < 2:
        return {}
    inside, _, key = codes.name.rpartition(".")
    names = (f"{codes.name}_scale", f"{codes.name}_scale_inv", f"{inside}.scale_{key}")
    scale = next((known[name] for name in names if name in known), None)
    if scale is None:
        near = [name for name in known if name.startswith(f"{inside}.") and "scale" in name]
        reason = f"8-bit codes, of which the file does not say how {', '.join(near[:2])} scale them"
        return {name: replace(known[name], reason=reason) for name in (codes.name, *near)} if near else {}
    zero, sizes = known.get(f"{codes.name}_zero_point"), _blocks(codes.shape, scale.shape)
    further = next((known[name] for name in (f"{scale.name}_2", f"{codes.name}_global_scale") if name in known), None)
    if further is not None or not scale.floating or (codes.dtype == "uint8" and zero is None):
        reason = f"packed codes of {codes.dtype} with scales of {scale.dtype}, whose format the tensors do not tell"
        return {stored.name: replace(stored, reason=reason) for stored in (codes, scale, further) if stored is not None}
    if sizes is None or (zero is not None and zero.shape != scale.shape):
        reason = f"8-bit codes of shape {codes.shape}, whose scale of shape {scale.shape} does not fit"
        return {name: replace(known[name], reason=reason) for name in (codes.name, scale.name)}

    def load() -> Tensor:
        values = codes.load().float() if codes.dtype.startswith("float8") else codes.load().double()
        if zero is not None:
            values = values - _spread(zero.load().to(values.dtype), codes.shape, sizes)
        return values * _spread(scale.load().to(values.dtype), codes.shape, sizes)

    others = {scale.name: f"scale of the quantized {codes.name}, multiplied into it"}
    others |= {} if zero is None else {zero.name: f"zero point of the quantized {codes.name}, subtracted from it"}
    blocks = "" if set(sizes) <= {1, *codes.shape} else f" of blocks of {' x '.join(map(str, sizes))}"
    return _merged(codes.name, codes, others, load, f"dequantized: {codes.dtype} times the scales{blocks}", known)


def _blocks(shape: Sequence[int], scales: Sequence[int]) -> list[int] | None:
    """Return how many entries of each dimension share a scale; None where the scales do not fit.

    Examples
    --------
    >>> _blocks((300, 256), (3, 2)), _blocks((5, 4), (5,)), _blocks((5, 4), ()), _blocks((5, 4), (3, 3))
    ([128, 128], [1, 4], [5, 4], None)
    """
    scales = (*scales, *[1] * (len(shape) - len(scales)))
    sizes = []
    for size, count in zip(shape, scales, strict=False):
        block = BLOCK if count > 1 and math.ceil(size / BLOCK) == count else size // max(count, 1)
        sizes.append(block)
        if len(scales) != len(shape) or block == 0 or math.ceil(size / block) != count:
            return None
        if count > 1 and block & (block - 1):  # of equal blocks whose size is no power of 2: as well longer ones
            return None
    return sizes


def _spread(scales: Tensor, shape: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return one scale for each entry."""
    scales = scales.reshape(*scales.shape, *[1] * (len(shape) - scales.ndim))
    for dim, (size, block) in enumerate(zip(shape, sizes, strict=True)):
        scales = scales.repeat_interleave(block, dim).narrow(dim, 0, size)
    return scales


def _packed(stored: Stored, known: Known) -> dict[str, Stored]:
    """Return the record, with the reason, of a tensor of a layer whose weight is packed, as by GPTQ, AWQ and NF4."""
    advice = "; dequantize the network and measure that"
    packed = [name for key in ("qweight", "weight_packed") if (name := f"{stored.owner}.{key}".lstrip(".")) in known]
    if packed:
        text = f"of the packed weights {packed[0]}, whose number of bits and order are not in the tensors"
    elif any(stored.name.startswith(f"{name}.") for name in _parents(stored.name) if name in known):
        text = f"of the packed weights {stored.owner}"
    else:
        return {}
    return {stored.name: replace(stored, reason=f"{text}{advice}")}


def _parents(name: str) -> list[str]:
    """Return the names of which this is a continuation after a dot."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _unresolved(stored: Stored, known: Known) -> dict[str, Stored]:
    """Return the record, with the reason, of a tensor of another reparametrization."""
    match = _OF_PARAMETRIZATION.fullmatch(stored.name)
    computed = "" if match is None else f"{match['owner']}{match['key']}"
    name = stored.name.removesuffix("_orig")
    if match is None and name != stored.name and any(f"{name}{end}" in known for end in ("_mask", "_u")):
        computed = name
    if not computed:
        return {}
    text = f"of a reparametrization of {computed}, which its tensors alone do not determine; give the module"
    return {stored.name: replace(stored, reason=text)}


def _rest(match: re.Match[str], known: Known) -> set[str]:
    """Return what follows the name of a parametrized tensor in the names of the tensors that it is computed from."""
    stem = match.string[: match.start("rest")]
    return {name.removeprefix(stem) for name in known if name.startswith(stem)}


def _merged(
    name: str, first: Stored, others: Mapping[str, str], load: Callable[[], Tensor], note: str, known: Known
) -> dict[str, Stored]:
    """Return the record of a tensor that is computed from several, in place of the first, and the reasons of others."""
    if name in known and name != first.name:  # stored too, as in some files
        reason = f"of a reparametrization; {name}, which it gives, is measured"
        return {key: replace(known[key], reason=reason, into=name) for key in (first.name, *others)}
    keys = [first.storage, *(known[key].storage for key in others)]
    storage = None if None in keys else tuple(keys)
    computed = replace(first, name=name, load=load, note=note, storage=storage, floating=True)
    return {key: replace(known[key], reason=reason, into=name) for key, reason in others.items()} | {
        first.name: computed
    }


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
