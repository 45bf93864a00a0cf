"""Tensors of a state dict, a file or a module, and what is known of each."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank.networks.functional import unwrap

_TRAINING = re.compile(r"(^|_)(optim|optimi[sz]ers?|(lr_)?sched(ulers?)?|scaler|rng|amp|opt_state)(_|$)", re.IGNORECASE)


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
