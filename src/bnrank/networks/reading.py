"""Reading any module into its layers and its segments, without changing it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank._core.content import Part, Table, remarks
from bnrank._core.results import Printed
from bnrank.networks import observing, reasons
from bnrank.networks.chain import Segment, outermost, parts_of, registered
from bnrank.networks.functional import example, unwrap
from bnrank.networks.inputs import Example
from bnrank.networks.layers import Layer, base_of, derived, has_complex_weight
from bnrank.networks.observing import MATRIX, Holders, Weight, overrides_forward
from bnrank.networks.reasons import Skipped

__all__ = ["Layer", "Reading", "read"]


@dataclass(frozen=True)
class Reading(Printed):
    """The contents of a module.

    Attributes
    ----------
    layers : tuple of Layer
        Weights with the values that enter and leave them, counted from 1: linear and convolutional layers, projections
        of attention, gates of recurrent layers, embeddings, and other modules that compute x W^T + b.
    skipped : tuple of Skipped
        Everything else that owns parameters, and layers whose values are not observed.
    segments : tuple of Segment
        Outermost ``nn.Sequential`` modules and MLPs, and single layers elsewhere, in order of registration. A segment
        shares no parameter or layer with other places and, where the module was read with an example, runs exactly
        once.
    unobserved : tuple of Layer
        Weights without these values (``reason`` says why), such as those of a layer that runs more than once. Weights
        that are stored once are listed once.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2))
    >>> reading = bnrank.networks.read(net)                     # a bnrank.networks.Reading
    >>> [layer.name for layer in reading.layers], [part.name for part in reading.skipped]
    (['0', '2'], ['1'])
    """

    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]
    segments: tuple[Segment, ...] = ()
    unobserved: tuple[Layer, ...] = ()

    @property
    def weights(self) -> tuple[Layer, ...]:
        """All weights: ``layers``, then ``unobserved``."""
        return (*self.layers, *self.unobserved)

    @property
    def unread(self) -> tuple[Skipped, ...]:
        """The entries of ``skipped`` that are not the weight of a layer in ``unobserved``."""
        weights = {(layer.name, layer.reason) for layer in self.unobserved}
        return tuple(part for part in self.skipped if (part.name, part.reason) not in weights)

    def _content(self) -> list[Part]:
        rows = [{"": x.index, "layer": x.name, "kind": x.kind, "weight": tuple(x.weight.shape)} for x in self.weights]
        shown: list[Part] = [Table("Layers", rows)] if rows else ["no layers"]
        return shown + remarks((f"skipped {part}" for part in self.skipped), "skipped")


def read(net: nn.Module, x: Example | None = None) -> Reading:
    """Return the layers of a module, its segments, and the parts that are not read.

    Layers are linear and convolutional modules (parametrized and pruned ones with the effective weight), the
    projections of attention (three where they are stored as one), the gates of recurrent layers, embeddings, and other
    modules whose output is x W^T + b. Everything else that owns parameters is listed in ``skipped`` with the reason;
    modules without parameters (activations, dropout, pooling, flattening) are neither.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; not changed.
    x : Tensor or ndarray, tuple or mapping of them, optional
        Samples, (N, ...); a tuple or mapping for modules with several arguments. The first are run through the module:
        layers then come in order of execution, with their shapes, and layers that run never or more than once are
        in ``unobserved``. The module runs in float64, or if it fails in it, in float32 or its own precision. A
        layer with several names has the first. Without x the order is that of registration, and layers with several
        names are in ``unobserved``.

    Returns
    -------
    Reading
        ``layers`` (counted from 1), ``unobserved`` and ``skipped``.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is not a module, is scripted or quantized, has lazy parameters without a shape, or cannot be run on
        ``x``.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> reading = read(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    >>> [(layer.index, layer.name, layer.kind) for layer in reading.layers]
    [(1, '0', 'linear'), (2, '3', 'linear')]
    >>> [(s.name, s.type) for s in reading.skipped]
    [('1', 'BatchNorm1d')]
    >>> [layer.name for layer in read(nn.MultiheadAttention(4, 2)).layers]
    ['q', 'k', 'v', 'out_proj']
    """
    return read_except(net, x, {})


def read_except(
    net: nn.Module, x: Example | None, unobserved_for: Mapping[str, str], dtype: torch.dtype = torch.float64
) -> Reading:
    """Return what :func:`read` does, with further layers unobserved, by name with the reason, that other samples show.

    ``dtype`` is the precision in which the module is run.

    Examples
    --------
    >>> reading = read_except(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), torch.ones(2, 2), {"1": "not called"})
    >>> [layer.name for layer in reading.layers], reading.unobserved[0].reason
    (['0'], 'not called')
    """
    net = unwrap(net)
    reasons.refuse(net)
    holders = weight_holders(net)
    run = None if x is None else observing.Run(net, holders, example(net, x, inputs=True), dtype)
    names, sharing, skipped = _others(net, holders, run)
    sharing = {**unobserved_for, **sharing}
    found: list[tuple[int, Layer]] = []
    unobserved: list[Layer] = []
    for part, weights in holders.items():
        for i, weight in enumerate(weights):
            layer = Layer(0, weight.name, weight.kind, _owner_of(net, weight, part), source=weight.source)
            reason = sharing.get(weight.name, "")
            if run is not None:
                layer, seen = run.seen(layer, part, i)
                reason = reason or seen
            elif not reason:
                reason = _reason_unseen(part, weight)
            if reason:
                unobserved.append(replace(layer, reason=reason))
            else:
                found.append((0 if run is None else run.order(part), layer))
    found.sort(key=lambda pair: pair[0])  # stable: of one call in the order of its weights
    layers = [replace(layer, index=number) for number, (_, layer) in enumerate(found, 1)]
    if run is not None:
        layers = run.apart(layers)
    listed = [*skipped, *(Skipped.part(x.name, x.module, x.reason) for x in unobserved)]
    position = {name: i for i, name in enumerate(names)}
    listed.sort(key=lambda part: position.get(part.name, len(position)))
    once = _once(net, layers, unobserved)
    segments = tuple(_segments(net, layers, run))
    return Reading(tuple(layers), tuple(listed), segments, tuple(once))


def read_or(reading: Reading | None, net: nn.Module, x: Example | None, dtype: torch.dtype = torch.float64) -> Reading:
    """Return a reading that a caller gave, or that of the module, run in a precision, where none is given."""
    return read_except(net, x, {}, dtype) if reading is None else validation.kind(reading, "reading", Reading)


def _segments(net: nn.Module, layers: Sequence[Layer], run: observing.Run | None) -> Iterator[Segment]:
    uses = Counter(id(p) for part in net.modules() for p in part._parameters.values() if p is not None)
    whole = [layer for layer in layers if base_of(layer.module) is not None and not layer.samples_dim]
    single = {layer.module for layer in whole if not layer.is_transposed}
    observed = {layer.module for layer in layers}
    first, places = {part: name for name, part in net.named_modules()}, registered(net)
    for sub in dict.fromkeys(sub for _, sub in outermost(net, single)):
        name, inside = first[sub], set(sub.modules())
        names, parts = zip(*parts_of(sub, name), strict=True)
        shared = any(uses[id(p)] > 1 for p in sub.parameters())
        with_layers = [part for part in inside - {sub} if any(base_of(one) is not None for one in part.modules())]
        shared |= any(holder not in inside for part in with_layers for holder, _ in places[part])
        if run is not None:
            shared |= any(part not in observed for part in parts if base_of(part) is not None)
            shared |= sub not in observed and not run.is_once(sub)
        if not shared:
            yield Segment(name, parts, names)


def weight_holders(net: nn.Module) -> Holders:
    """Return the modules that hold weights, in order of registration."""
    claimed = {part.out_proj for part in net.modules() if isinstance(part, nn.MultiheadAttention)}
    for part in net.modules():
        claimed |= set(cast(Any, part).parametrizations.modules()) if parametrize.is_parametrized(part) else set()
    holders: Holders = {}
    for name, part in net.named_modules():
        if part not in claimed and not isinstance(part, torch.jit.ScriptModule):
            holders[part] = observing.weights_of(part, name)
    return {part: weights for part, weights in holders.items() if weights}


def _others(
    net: nn.Module, holders: Holders, run: observing.Run | None
) -> tuple[list[str], dict[str, str], list[Skipped]]:
    """Return names in order, why weights are shared or unusual, and all parts that hold no weights."""
    places, owners, order = defaultdict(list), defaultdict(list), []
    for name, part in net.named_modules(remove_duplicate=False):
        places[part].append(name)
    for name, part in net.named_modules():
        order.append(name)
        for parameter in _own(part).values():
            owners[parameter.data_ptr() or id(parameter)].append(name)
    sharing: dict[str, str] = {}
    inside = {part for holder in holders for part in (getattr(holder, "out_proj", None),) if part is not None}
    skipped: list[Skipped] = []
    for name, part in net.named_modules():
        lists = ".parametrizations." in f".{name}."  # reported at the layer
        if part in holders:
            plain = base_of(part) is not None and not any(key.endswith("_orig") for key in part._parameters)
            plain &= derived(part, "weight") is None
            reason = reasons.of_parameters(part) if plain else None
            once = run is not None and len(run.calls[part]) < 2  # under however many names
            reason = reason or _reason_of_sharing(name, part, [name] if once else places[part], owners)
            for weight in holders[part]:
                at = order.index(name)
                order.insert(at + 1, weight.name)
                if reason:
                    sharing[weight.name] = reason
            rest = _rest(part, holders[part])
            if rest and not reason:
                skipped.append(Skipped.part(name, part, f"parameters besides its weights: {', '.join(rest)}"))
        elif (_own(part) or parametrize.is_parametrized(part)) and not lists and part not in inside:
            skipped.append(Skipped.part(name, part, reasons.of_type(part) or _reason_of_parameters(part)))
    return order, sharing, skipped


def _rest(part: nn.Module, weights: list[Weight]) -> list[str]:
    """Return the parameters of a module that are no weight or bias of one."""
    used: set[str | None] = {"weight", "bias"} if weights[0].source is None else set()
    for weight in weights:
        used |= set() if weight.source is None else {weight.source.weight, weight.source.bias}
    return [key for key in _own(part) if key.removesuffix("_orig") not in used and not key.startswith("weight_")]


def _owner_of(net: nn.Module, weight: Weight, part: nn.Module) -> nn.Module:
    """Return the module that stores a weight: of the output projection of attention, a child."""
    return part if weight.source is None else net.get_submodule(weight.source.owner)


def _reason_unseen(part: nn.Module, weight: Weight) -> str:
    if weight.kind == MATRIX:
        return "a matrix of a module that bnrank does not know; give an example x to see what it does with it"
    if base_of(part) is not None and overrides_forward(part):
        return "its class overrides forward; give an example x to check it"
    return ""


def _once(net: nn.Module, layers: Sequence[Layer], unobserved: Sequence[Layer]) -> list[Layer]:
    """Return the unobserved weights, numbered after the others, without those that are stored as another one is."""
    seen: set[Any] = set()
    found: list[Layer] = []
    for layer in [*layers, *unobserved]:
        name = "weight" if layer.source is None else layer.source.weight
        rows = None if layer.source is None else layer.source.rows
        own = None if derived(layer.module, name) is not None else cast(Tensor, getattr(layer.module, name))
        key = (id(layer.module) if own is None else (own.data_ptr() or id(own), tuple(own.shape)), rows)
        if key not in seen and layer.reason:
            found.append(replace(layer, index=len(layers) + len(found) + 1))
        seen.add(key)
    return found


def _reason_of_parameters(part: nn.Module) -> str:
    if parametrize.is_parametrized(part):
        which = ", ".join(cast(Any, part).parametrizations.keys())
        return f"parametrized ({which}) and not a linear or convolutional layer"
    if has_complex_weight(part):
        return "its weight has complex numbers, which a profile without samples measures"
    held = ", ".join(_own(part))
    if any(True for _ in part.children()):
        return f"parameters registered on the module itself: {held}"
    return f"not a linear or convolutional layer (parameters: {held})"


def _reason_of_sharing(name: str, part: nn.Module, names: list[str], owners: dict[int, list[str]]) -> str | None:
    if len(names) > 1:
        return f"shared: the same module is used in more than one place, {', '.join(map(repr, names))}"
    for key, parameter in _own(part).items():
        others = [owner for owner in owners[parameter.data_ptr() or id(parameter)] if owner != name]
        if others:
            return f"its {key} is shared with {', '.join(map(repr, others))}"
    return None


def _own(part: nn.Module) -> dict[str, nn.Parameter]:
    return {key: p for key, p in part._parameters.items() if p is not None}
