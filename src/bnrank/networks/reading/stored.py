"""The tensors of a module or a state dict: one record each, loaded when it is measured."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from bnrank._core import validation
from bnrank.networks.functional import unwrap
from bnrank.networks.replicas import replica, sandbox

_TRAINING = re.compile(r"(^|_)(optim|optimi[sz]ers?|(lr_)?sched(ulers?)?|scaler|rng|amp|opt_state)(_|$)", re.IGNORECASE)
_OPTIMIZER = {"state", "param_groups"}  # keys of its state
_SOURCE = re.compile(r"(^|\.)parametrizations\.|_(orig|mask|g|v|u)$")  # in the names of what a tensor is computed from
_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


class UnreadableError(ValueError):
    """A tensor whose numbers cannot be had."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a network, loaded where it is measured.

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
    module, key : torch.nn.Module or None, str
        The module that holds it and its attribute there; None and "" for tensors without their module.
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
    module: nn.Module | None = None
    key: str = ""

    @property
    def is_tensor(self) -> bool:
        """False for other entries of a checkpoint, such as the number of the epoch."""
        return self.dtype != ""

    @property
    def owner(self) -> str:
        """The name of the module that holds it."""
        return self.name.rpartition(".")[0]


def nothing() -> Tensor:
    """Return no numbers: what entries load that are no tensors."""
    return torch.zeros(0)


def record(name: str, value: object, load: Callable[[], Tensor] | None = None, **more: Any) -> Stored:
    """Return the record of a tensor in memory; of any other object, with the reason why it is not measured.

    Sharded tensors are gathered and quantized ones dequantized when they are loaded.
    """
    if not isinstance(value, Tensor):
        return _of_other(name, value)
    tensor = value.detach()
    read: Callable[[], Tensor] = (lambda: tensor) if load is None else lambda: load().detach()
    plain = type(tensor) is Tensor and tensor.layout == torch.strided
    is_usual = plain and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    floating, shape = tensor.is_floating_point() or tensor.is_complex(), () if tensor.is_nested else tuple(tensor.shape)
    more = {"storage": _place(tensor) if is_usual else None, **more}
    stored = Stored(name, shape, str(tensor.dtype).removeprefix("torch."), read, floating, **more)
    return stored if is_usual else _unusual(stored, tensor)


def _of_other(name: str, value: object) -> Stored:
    """Return the record of an object that is no tensor, with the reason why it is not measured."""
    what = "quantized weights in packed form" if "packed" in name else "not a tensor"
    advice = "; measure the network before quantization" if "packed" in name else ""
    return Stored(name, (), "", nothing, reason=f"{what} ({type(value).__name__}){advice}")


def _place(tensor: Tensor) -> object:
    """Return where the numbers of a tensor lie in memory; None where there are none."""
    place = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
    return (*place, tuple(tensor.shape), tuple(tensor.stride())) if tensor.numel() else None


def _unusual(stored: Stored, tensor: Any) -> Stored:
    """Return the record of a tensor that has to be gathered or dequantized, or that cannot be measured as it is."""
    if tensor.is_meta:
        return replace(stored, reason="on the meta device, which holds no numbers")
    if hasattr(tensor, "full_tensor"):  # a DTensor
        note = "sharded; gathered from all processes of its group"
        return replace(stored, note=note, load=lambda: _gathered(stored.name, stored.load()))
    if tensor.is_quantized or type(tensor).dequantize is not Tensor.dequantize:
        note = f"dequantized from {stored.dtype}"
        return replace(stored, note=note, load=lambda: stored.load().dequantize(), floating=True)
    if tensor.is_nested:
        return replace(stored, reason="nested; torch.nested.to_padded_tensor makes it measurable")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return replace(stored, reason=f"{layout} layout; .to_dense() makes it measurable")
    return replace(stored, storage=stored.storage or _place(tensor))


def _gathered(name: str, tensor: Any) -> Tensor:
    try:
        whole: Tensor = tensor.full_tensor()
    except Exception as error:  # whatever torch.distributed raises
        advice = "measure it in all processes of its group, or gather it there by .full_tensor()"
        raise UnreadableError(f"{name} is sharded and cannot be gathered ({error}); {advice}") from error
    return whole.detach()


def distinct(records: Iterable[Stored]) -> list[Stored]:
    """Return records without those of tensors that are, in memory, another one before."""
    found: dict[object, Stored] = {}
    for stored in records:
        found.setdefault(stored.name if stored.storage is None else stored.storage, stored)
    return list(found.values())


# State dicts ----------------------------------------------------------------------------------------------------------


def of_mapping(state: Mapping[Any, object], name: str = "net") -> list[Stored]:
    """Return the records of a state dict, or of a checkpoint that holds one.

    Mappings inside are read too, and lists of tensors or mappings, except for the state of an optimizer, a schedule or
    a random generator: known by its name, or of an optimizer by its keys, "state" and "param_groups". The names that
    wrappers put before all others are left out.
    """
    if not state:
        raise ValueError(f"{name}: got an empty mapping, expected names and tensors")
    if not any(isinstance(value, Tensor | Mapping) for value in state.values()):
        got = ", ".join(f"{key!r}: {type(value).__name__}" for key, value in list(state.items())[:3])
        raise TypeError(f"{name}: got a mapping without tensors ({got}), expected names and tensors")
    validation.expect(not state.keys() >= _OPTIMIZER, name, "the state of an optimizer", "the weights of a network")
    try:
        records = list(_walk(state, ""))
    except RecursionError as error:
        got = "mappings or lists nested too deep, or inside themselves"
        raise ValueError(f"{name}: got {got}, expected names and tensors") from error
    return unwrapped(records)


def unwrapped(records: list[Stored]) -> list[Stored]:
    """Return records without the names that wrappers put before all others.

    Examples
    --------
    >>> [stored.name for stored in of_mapping({"module._orig_mod.0.weight": torch.eye(2)})]
    ['0.weight']
    """
    for prefix in _WRAPPERS * 2:
        if all(stored.name.startswith(prefix) for stored in records):
            records = [replace(stored, name=stored.name.removeprefix(prefix)) for stored in records]
    return records


def _walk(state: Mapping[Any, object], prefix: str) -> Iterator[Stored]:
    for key, value in state.items():
        name, inside = f"{prefix}{key}", value
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor | Mapping) for item in value):
            inside = dict(enumerate(value))
        if not isinstance(inside, Mapping):
            yield record(name, value)
        elif _TRAINING.search(str(key)) or inside.keys() >= _OPTIMIZER:
            reason = f"state of the training, {_count(inside)} tensors, not of the network"
            yield Stored(name, (), "", nothing, reason=reason)
        else:
            yield from _walk(inside, f"{name}.")


def _count(value: object) -> int:
    """Return the number of tensors in nested mappings and lists."""
    if isinstance(value, Mapping | list | tuple):
        return sum(map(_count, value.values() if isinstance(value, Mapping) else value))
    return int(isinstance(value, Tensor))


# Modules --------------------------------------------------------------------------------------------------------------


def of_module(net: nn.Module) -> list[Stored]:
    """Return the records of the parameters and buffers in the state dict of a module, in its order.

    In place of what a parametrization or a hook of ``torch.nn.utils`` needs stands the tensor that it gives.
    """
    net = unwrap(net)
    owners = {} if isinstance(net, torch.jit.ScriptModule) else dict(net.named_modules(remove_duplicate=False))
    stated: Mapping[str, Any] = {}
    with suppress(Exception):  # first: it gathers what is spread over processes
        stated = net.state_dict(keep_vars=True)
    records, known = dict[str, Stored](), set[int]()
    for place, part in owners.items():
        hidden = getattr(part, "_non_persistent_buffers_set", ())
        for key, value in [*part._parameters.items(), *part._buffers.items()]:
            if value is not None and key not in hidden:
                name, load = f"{place}.{key}".lstrip("."), functools.partial(getattr, part, key)
                stored = record(name, value, load, module=part, key=key, **_role(part, key))
                records[name] = _source(stored, owners, records) if _SOURCE.search(name) else stored
                known.add(id(value))
    added = {name: value for name, value in stated.items() if name not in records and id(value) not in known}
    records |= {name: record(name, value) for name, value in added.items()}  # it can also leave out and rename tensors
    return list(records.values())


def _source(stored: Stored, owners: Mapping[str, nn.Module], records: dict[str, Stored]) -> Stored:
    """Return the record of a tensor; add that of the one that a parametrization or a hook computes from it, if any."""
    place, key = _computed_of(stored.name, owners)
    if not key:
        return stored
    part, name = owners[place], f"{place}.{key}".lstrip(".")
    how = "parametrization" if parametrize.is_parametrized(part, key) else "reparametrization"
    if name not in records:
        load, storage = functools.partial(effective, part, key), ("computed", id(part), key)
        about = {"module": part, "key": key, "note": f"computed by a {how}", "storage": storage, **_role(part, key)}
        records[name] = record(name, load(), load, **about)
    return replace(stored, reason=f"of a {how}; {name}, which it gives, is measured", into=name)


def _computed_of(name: str, owners: Mapping[str, nn.Module]) -> tuple[str, str]:
    """Return the name of a module, and of its tensor that is computed from the named one; "" for a plain tensor."""
    place, _, key = name.rpartition(".")
    if ".parametrizations." in f".{name}":
        place, _, rest = f".{name}".partition(".parametrizations.")
        return place[1:], rest.split(".")[0] if place[1:] in owners else ""
    part, computed = owners.get(place), ""
    while part is not None and (match := re.fullmatch(r"(.+)_(?:orig|mask|g|v|u)", key)) is not None:
        key = match[1]  # v of g v / ||v|| can be pruned
        computed = computed if derived(part, key) is None else key
    return place, computed


def derived(part: nn.Module, name: str) -> Any:
    """Return what computes a tensor of a module from other parameters, or None if it is a parameter itself."""
    if parametrize.is_parametrized(part, name):
        return cast(Any, part).parametrizations[name]
    for hook in part._forward_pre_hooks.values():
        normalizes = hasattr(hook, "compute_weight") and getattr(hook, "name", "") == name
        if normalizes or (isinstance(hook, BasePruningMethod) and hook._tensor_name == name):
            return hook
    return None


def effective(part: nn.Module, name: str) -> Tensor:
    """Return a tensor of a module, computed as in eval mode where it is parametrized; the module does not change.

    Examples
    --------
    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> torch.equal(effective(layer, "weight"), layer.weight)
    True
    """
    hook = derived(part, name)
    if hook is None:
        tensor: Tensor = getattr(part, name)
        return tensor
    with torch.no_grad():
        if isinstance(hook, nn.Module):
            with sandbox():
                computed: Tensor = replica(hook)()
        elif isinstance(hook, BasePruningMethod):
            computed = hook.apply_mask(part)
        else:  # spectral_norm's second argument is whether to iterate; weight_norm has none
            computed = hook.compute_weight(part, *([False] if hasattr(hook, "n_power_iterations") else []))
    return computed


def _role(part: nn.Module, key: str) -> dict[str, Any]:
    """Return what the module that owns a tensor says of it."""
    if isinstance(part, _NORMALIZATIONS) and key in ("weight", "bias"):
        return {"reason": f"{'scale' if key == 'weight' else 'shift'} of a normalization ({type(part).__name__})"}
    if isinstance(part, nn.PReLU):
        return {"reason": "slopes of an activation (PReLU)"}
    role = next((role for kind, role in _ROLES.items() if isinstance(part, kind)), "")
    if key == "weight":
        return {"role": role, "groups": part.groups if isinstance(part, _ConvNd) else 0}
    return {"reason": "bias"} if role and key == "bias" else {}


_NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_ROLES = {
    nn.Linear: "linear",
    nn.Embedding: "embedding",
    nn.EmbeddingBag: "embedding",
    nn.Bilinear: "bilinear",
    _ConvTransposeNd: "transposed",
    _ConvNd: "conv",
}
