"""Tensors of a state dict, a file or a module, and what is known of each."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank._core.devices import forked
from bnrank.networks.functional import unwrap
from bnrank.networks.layers import computed_of, effective

_TRAINING = re.compile(r"(^|_)(optim|optimi[sz]ers?|(lr_)?sched(ulers?)?|scaler|rng|amp|opt_state)(_|$)", re.IGNORECASE)
_OPTIMIZER = {"state", "param_groups"}  # keys of its state


class Memory(NamedTuple):
    """Where the entries of a tensor are: the identity of its storage, and which entries of that, as in torch."""

    storage: object
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def end(self) -> int:
        """The place after the last entry."""
        return 1 + self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def is_dense(self) -> bool:
        """Whether nothing else lies between the entries."""
        return self.end - self.offset == math.prod(self.shape)


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
        "linear", "embedding", "conv", "transposed", "bilinear" or "recurrent" where known; "" otherwise.
    groups : int
        Of a convolution, where known.
    gates : tuple of str
        Parts in which the rows are fused, where known.
    reason : str
        Why it holds no matrix, where known.
    note : str
        What else to know.
    into : str
        The tensor that is computed from it and from others, and measured in its place; "" for most.
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
    into: str = ""
    is_tensor: bool = True


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
        own = tensor.untyped_storage()._cdata
        memory = Memory(own, int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        more.setdefault("storage", memory)
    return Entry(name, tuple(tensor.shape), dtype, lambda: tensor, **more)


def once(entries: Iterable[Entry]) -> list[Entry]:
    """Return records without those of tensors that are, in memory, another one before."""
    found: dict[object, Entry] = {}
    for one in entries:
        found.setdefault(one.name if one.storage is None else one.storage, one)
    return list(found.values())


def numbers(entries: Iterable[Entry]) -> int:
    """Return the number of entries of tensors together; those in the memory of another tensor count once.

    Examples
    --------
    >>> state = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    >>> numbers(of_mapping(state | {"again": state["a"], "turned": state["a"].T, "row": state["a"][1]}))
    10
    """
    total = 0
    places: dict[object, list[Memory]] = defaultdict(list)
    for one in once(entries):
        if isinstance(one.storage, Memory):
            places[one.storage.storage].append(one.storage)
        else:
            total += math.prod(one.shape)
    for held in places.values():
        covered: list[tuple[int, int]] = []  # in order, and apart from each other
        for memory in sorted(filter(lambda one: one.is_dense, held), key=lambda one: one.offset):
            start, end = covered.pop() if covered and memory.offset <= covered[-1][1] else (memory.offset, memory.end)
            covered.append((start, max(end, memory.end)))
        total += sum(end - start for start, end in covered)
        for memory in held:  # columns of a matrix, say
            inside = memory.is_dense or any(start <= memory.offset and memory.end <= end for start, end in covered)
            total += 0 if inside else math.prod(memory.shape)
    return total


def of_mapping(state: Mapping[Any, object], name: str = "net") -> list[Entry]:
    """Return the records of a state dict, or of a checkpoint that holds one.

    Mappings inside are read too, and lists of tensors or mappings, except for the state of an optimizer, a schedule or
    a random generator: known by its name, or of an optimizer by its keys, "state" and "param_groups".
    """
    if not state:
        raise ValueError(f"{name}: got an empty mapping, expected names and tensors")
    if not any(isinstance(value, Tensor | Mapping) for value in state.values()):
        got = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in list(state.items())[:3])
        raise TypeError(f"{name}: got a mapping without tensors ({got}), expected names and tensors")
    validation.expect(not state.keys() >= _OPTIMIZER, name, "the state of an optimizer", "the weights of a network")
    try:
        found = list(_walk(state, ""))
    except RecursionError as error:
        got = "mappings or lists nested too deep, or inside themselves"
        raise ValueError(f"{name}: got {got}, expected names and tensors") from error
    return normalized(found)


def _walk(state: Mapping[Any, object], prefix: str) -> Iterator[Entry]:
    for key, value in state.items():
        name = f"{prefix}{key}"
        inside = value
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor | Mapping) for item in value):
            inside = dict(enumerate(value))
        if isinstance(inside, Mapping):
            if _TRAINING.search(str(key)) or inside.keys() >= _OPTIMIZER:
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
    """Return records in which reparametrizations of torch.nn.utils are carried out, as far as the tensors tell.

    Of the tensors of a pruned weight, or of one with weight or spectral normalization, one is replaced by the record
    of the weight, with its name in the module; the others have a reason.

    Examples
    --------
    >>> state = {"weight_orig": torch.ones(2, 2), "weight_mask": torch.eye(2)}
    >>> [(found.name, found.reason) for found in of_mapping(state)]
    [('weight', ''), ('weight_mask', 'mask of a pruning, multiplied into weight')]
    """
    found = list(entries)
    for step in (_pruning, _weight_normalization, _spectral_normalization, _unresolved):  # a pruned v is a v
        known = {one.name: one for one in found}
        changed: dict[str, Entry] = {}
        for one in found:
            if not one.reason:
                changed |= step(one, known)
        found = [changed.get(one.name, one) for one in found]
    return found


Known = Mapping[str, Entry]
_OF_PARAMETRIZATION = re.compile(r"(?P<owner>(?:.*\.)?)parametrizations\.(?P<key>[^.]+)\.(?P<rest>.+)")


def _pruning(orig: Entry, known: Known) -> dict[str, Entry]:
    """Return the records of a pruned tensor and its mask, ``torch.nn.utils.prune``."""
    name = orig.name.removesuffix("_orig")
    mask = known.get(f"{name}_mask")
    if name == orig.name or mask is None or mask.reason or mask.shape != orig.shape or not orig.floating:
        return {}

    def load() -> Tensor:
        values = orig.load()
        values = values.float() if values.element_size() == 1 else values
        return values * mask.load().to(values.dtype)

    others = {mask: f"mask of a pruning, multiplied into {name}"}
    return _merged(name, orig, others, load, "with the mask of a pruning", known)


def _weight_normalization(v: Entry, known: Known) -> dict[str, Entry]:
    """Return the records of g and v in g v / ||v||, ``weight_norm`` of both kinds."""
    names = re.sub(r"(weight[^.]*)_v$", r"\1_g", v.name), re.sub(r"_v$", "", v.name)
    if (match := _OF_PARAMETRIZATION.fullmatch(v.name)) is not None and match["rest"] == "original1":
        if _beside(match, known) != {"original0", "original1"}:
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

    others = {g: f"norms of a weight normalization, multiplied into {names[1]}"}
    return _merged(names[1], v, others, load, "with weight normalization, g v / ||v||", known)


def _spectral_normalization(orig: Entry, known: Known) -> dict[str, Entry]:
    """Return the records of W, u and v in W / (u^T W v), ``spectral_norm`` of both kinds in eval mode."""
    name = orig.name.removesuffix("_orig")
    pair = [known.get(f"{name}{end}") for end in ("_u", "_v")] if name != orig.name else []
    if (match := _OF_PARAMETRIZATION.fullmatch(orig.name)) is not None and match["rest"] == "original":
        if _beside(match, known) != {"original", "0._u", "0._v"}:
            return {}
        name = f"{match['owner']}{match['key']}"
        pair = [known.get(re.sub("original$", end, orig.name)) for end in ("0._u", "0._v")]
    vectors = [vector for vector in pair if vector is not None and not vector.reason]
    if len(vectors) != 2:
        return {}
    u, v = vectors
    size = math.prod(orig.shape)
    dims = [i for i, rows in enumerate(orig.shape) if u.shape == (rows,) and (rows * math.prod(v.shape)) == size]
    if not dims or len(v.shape) != 1:
        return {}

    def load() -> Tensor:
        weight, left, right = (_exact(part.load()) for part in (orig, u, v))
        norms = [torch.vdot(left, weight.movedim(dim, 0).flatten(1) @ right) for dim in dims]
        return weight / max(norms, key=lambda norm: float(norm.abs()))  # u and v nearly attain it along theirs

    reason = f"vector of a spectral normalization, of which {name} is computed"
    return _merged(name, orig, dict.fromkeys((u, v), reason), load, "with spectral normalization, W / (u^T W v)", known)


def _unresolved(found: Entry, known: Known) -> dict[str, Entry]:
    """Return the record, with the reason, of a tensor of another reparametrization."""
    match = _OF_PARAMETRIZATION.fullmatch(found.name)
    given = "" if match is None else f"{match['owner']}{match['key']}"
    name = found.name.removesuffix("_orig")
    if match is None and name != found.name and any(f"{name}{end}" in known for end in ("_mask", "_u")):
        given = name
    if not given:
        return {}
    text = f"of a reparametrization of {given}, which its tensors alone do not determine; give the module"
    return {found.name: replace(found, reason=text)}


def _beside(match: re.Match[str], known: Known) -> set[str]:
    """Return what follows the name of a parametrized tensor in the names of the tensors that it is computed from."""
    stem = match.string[: match.start("rest")]
    return {name.removeprefix(stem) for name in known if name.startswith(stem)}


def _merged(
    name: str, first: Entry, others: Mapping[Entry, str], load: Callable[[], Tensor], note: str, known: Known
) -> dict[str, Entry]:
    """Return the record of a tensor that is computed from several, in place of the first, and the reasons of others."""
    if name in known:  # stored too, as in some files
        given = f"of a reparametrization; {name}, which it gives, is measured"
        return {one.name: replace(one, reason=given, into=name) for one in (first, *others)}
    keys = [one.storage for one in (first, *others)]
    storage = None if None in keys else tuple(keys)
    found = {one.name: replace(one, reason=reason, into=name) for one, reason in others.items()}
    return found | {first.name: replace(first, name=name, load=load, note=note, storage=storage)}


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


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
        place, key = reparametrized(name, owners)
        if not key:
            yield entry(name, value, **_role(owners.get(place), name.rpartition(".")[2]))
            continue
        part, computed = owners[place], f"{place}.{key}".lstrip(".")
        how = "parametrization" if parametrize.is_parametrized(part, key) else "reparametrization"
        if computed not in seen:
            seen.add(computed)
            value = functools.partial(computed_tensor, part, key)
            storage = ("computed", id(part), key)  # where modules are shared
            described = entry(computed, value(), **_role(part, key), note=f"computed by a {how}")
            yield replace(described, load=value, storage=storage)
        yield replace(entry(name, value), reason=f"of a {how}; {computed}, which it gives, is measured", into=computed)


def reparametrized(name: str, owners: Mapping[str, nn.Module]) -> tuple[str, str]:
    """Return the name of a module and of its tensor that is computed from the named one; "" for a plain tensor.

    Examples
    --------
    >>> net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    >>> owners = dict(net.named_modules())
    >>> [reparametrized(name, owners) for name in ("0.bias", "0.parametrizations.weight.original1")]
    [('0', ''), ('0', 'weight')]
    """
    place, _, key = name.rpartition(".")
    if isinstance(owners.get(place), torch.jit.ScriptModule):
        return place, ""
    if ".parametrizations." in f".{name}":
        place, _, rest = f".{name}".partition(".parametrizations.")
        return place[1:], rest.split(".")[0]
    part = owners.get(place)
    return place, "" if part is None else computed_of(part, key)


def computed_tensor(part: nn.Module, key: str) -> Tensor:
    """Return a tensor that hooks compute, as in eval mode; random generators are restored."""
    device = next(itertools.chain(part.parameters(), part.buffers())).device
    with torch.no_grad(), forked(device):
        return effective(part, key).detach()


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
    if key == "weight" and isinstance(part, nn.Bilinear):
        return {"role": "bilinear"}
    if key == "weight" and isinstance(part, nn.Linear):
        return {"role": "linear"}
    return {}


def order(entries: Sequence[Entry]) -> list[Entry]:
    """Return records with numbers in their names in numerical order, for files that do not keep the order."""
    return sorted(entries, key=lambda e: [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in _split(e.name)])


def _split(name: str) -> list[str]:
    return [part for part in re.split(r"(\d+)", name) if part]
