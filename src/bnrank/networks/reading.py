"""Reading any module into its layers, its segments, and the values that flow through them, without changing it."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.text import render
from bnrank.networks import reasons
from bnrank.networks.chain import Segment, outermost, parts_of
from bnrank.networks.functional import Functional, example, unwrap
from bnrank.networks.reasons import Skipped

_KINDS: dict[Any, str] = {nn.Linear: "linear", nn.Conv1d: "conv1d", nn.Conv2d: "conv2d", nn.Conv3d: "conv3d"}


@dataclass(frozen=True)
class Layer:
    """A linear or convolutional layer of a module.

    Attributes
    ----------
    index : int
        1..L, in order of execution where the module was read with an example, else of registration.
    name : str
        The submodule's name, e.g. ``"layers.0"``.
    kind : str
        "linear", "conv1d", "conv2d" or "conv3d".
    module : torch.nn.Module
        The layer itself (not a copy).
    input_shape, output_shape : tuple of int, optional
        Shapes of one sample before and after the layer; None where read without an example.
    """

    index: int
    name: str
    kind: str
    module: nn.Module
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None

    @property
    def weight(self) -> Tensor:
        """The weight, (out, in) or (out, in / groups, *kernel)."""
        return cast(Tensor, self.module.weight)

    @property
    def bias(self) -> Tensor | None:
        """The bias, (out,), or None."""
        return cast("Tensor | None", self.module.bias)


@dataclass(frozen=True)
class Reading(Printed):
    """The contents of a module.

    Attributes
    ----------
    layers : tuple of Layer
        Linear and convolutional layers, counted from 1.
    skipped : tuple of Skipped
        Everything else that owns parameters.
    segments : tuple of Segment
        Outermost ``nn.Sequential`` modules and MLPs, and single layers elsewhere, in order of registration. A segment
        shares no parameter with other places and, where the module was read with an example, runs exactly once.
    """

    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]
    segments: tuple[Segment, ...] = ()

    def __str__(self) -> str:
        rows = [{"": x.index, "layer": x.name, "kind": x.kind, "weight": tuple(x.weight.shape)} for x in self.layers]
        return "\n".join([render(rows) if rows else "no layers", *(f"skipped {part}" for part in self.skipped)])


@dataclass(frozen=True)
class Captured:
    """Inputs and outputs of the layers for one block of samples.

    Attributes
    ----------
    rows : slice
        The samples of x.
    inputs : tuple of Tensor
        The tensor entering each layer, (n, ...).
    preactivations : tuple of Tensor
        The output of each layer, (n, ...): a~_l.
    output : Tensor
        The module's output, (n, ...).
    """

    rows: slice
    inputs: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    output: Tensor

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """The input of the next layer; for the last layer the module's output."""
        return (*self.inputs[1:], self.output)


def read(net: nn.Module, x: Tensor | np.ndarray | None = None) -> Reading:
    """Return the linear and convolutional layers of a module, its segments, and the parts that are not read.

    Everything else that owns parameters is listed in ``skipped`` with the reason; modules without parameters
    (activations, dropout, pooling, flattening) are neither.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; not changed.
    x : Tensor or ndarray, optional
        Samples, (N, ...). The first two are run through the module: layers then come in order of execution, with
        their shapes, and layers that run never or more than once are skipped. Without it the order is that of
        registration.

    Returns
    -------
    Reading
        ``layers`` (counted from 1) and ``skipped``.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is not a module, has lazy parameters without a shape, or cannot be run on ``x``.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> reading = read(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    >>> [(layer.index, layer.name, layer.kind) for layer in reading.layers]
    [(1, '0', 'linear'), (2, '3', 'linear')]
    >>> [(s.name, s.type) for s in reading.skipped]
    [('1', 'BatchNorm1d')]
    """
    net = unwrap(net)
    candidates, skipped = _candidates(net)
    if x is None:
        plain = {}
        for name, layer in candidates.items():
            if _overrides_forward(layer):
                skipped.append(Skipped.part(name, layer, "its class overrides forward; give an example x to check it"))
            else:
                plain[name] = layer
        layers = [Layer(i, name, _KINDS[_base(sub)], sub) for i, (name, sub) in enumerate(plain.items(), start=1)]
        return Reading(tuple(layers), tuple(skipped), tuple(_segments(net, layers, None)))
    runs = _trial_run(net, example(net, x)[:2])
    found: list[Layer] = []
    for name, layer in sorted(candidates.items(), key=lambda item: runs[item[1]][0].order if runs[item[1]] else -1):
        reason = _reason_of_runs(runs[layer])
        if reason:
            skipped.append(Skipped.part(name, layer, reason))
        else:
            run = runs[layer][0]
            found.append(Layer(len(found) + 1, name, _KINDS[_base(layer)], layer, run.before, run.after))
    return Reading(tuple(found), tuple(skipped), tuple(_segments(net, found, runs)))


def read_or(reading: Reading | None, net: nn.Module, x: Tensor | np.ndarray | None) -> Reading:
    """Return a reading that a caller gave, or that of the module where none is given."""
    return read(net, x) if reading is None else validation.kind(reading, "reading", Reading)


def capture(
    net: nn.Module,
    x: Tensor | np.ndarray,
    reading: Reading | None = None,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
) -> Iterator[Captured]:
    """Iterate over the inputs and outputs of every layer, one block of samples at a time.

    The module runs in eval mode, without gradients, on copies of its parameters in ``dtype``; it is not changed.

    Parameters
    ----------
    net : torch.nn.Module
        Any module.
    x : Tensor or ndarray
        Samples, (N, ...).
    reading : Reading, optional
        The layers; default: ``read(net, x)``.
    chunk_size : int
        Samples per forward pass; bounds the memory.
    dtype : torch.dtype
        Precision of the forward pass.

    Returns
    -------
    iterator of Captured
        One per block, in the order of the samples.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no layer can be read, or a layer does not run exactly once.

    Examples
    --------
    >>> import torch, bnrank
    >>> parts = list(capture(bnrank.MLP([3, 8, 2]), torch.ones(10, 3), chunk_size=4))
    >>> [tuple(part.preactivations[0].shape) for part in parts]
    [(4, 8), (4, 8), (2, 8)]
    """
    x = example(net, x)
    chunk_size = validation.integer(chunk_size, "chunk_size")
    reading = read_or(reading, net, x)
    inside, kind = dict(unwrap(net).named_modules()), type(net).__name__
    own = all(inside.get(layer.name) is layer.module for layer in reading.layers)
    validation.expect(own, "reading", "one of another module", f"what read(net, x) returns for {kind}")
    if not reading.layers:
        skipped = f". Skipped: {'; '.join(map(str, reading.skipped))}" if reading.skipped else ""
        raise ValueError(f"net: found no linear or convolutional layer in {kind}, expected at least one{skipped}")
    return _captured(Functional(net, dtype), x, reading.layers, chunk_size)


def _captured(function: Functional, x: Tensor, layers: Sequence[Layer], chunk_size: int) -> Iterator[Captured]:
    for start in range(0, len(x), chunk_size):
        rows = slice(start, min(start + chunk_size, len(x)))
        seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {layer.module: [] for layer in layers}

        def note(part: nn.Module, before: Tensor, after: Tensor, seen: Any = seen) -> None:
            seen[part].append((before.clone(), after.clone()))  # a later in-place operation must not reach them

        with torch.no_grad(), _hooks(seen, note):
            out = function(x[rows])
        for layer in layers:
            if not seen[layer.module]:
                raise ValueError(f"net: layer {layer.name!r} did not run on samples {start} to {rows.stop - 1} of x")
            if len(seen[layer.module]) > 1:
                raise ValueError(f"net: layer {layer.name!r} runs more than once; read it with an x to skip it")
        pairs = [seen[layer.module][0] for layer in layers]
        yield Captured(rows, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), out)


@dataclass(frozen=True)
class _Run:
    order: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    samples: int
    faithful: bool  # it computes what its base class does
    batched: bool  # its first dimension is that of the samples


_Runs = dict[nn.Module, list[_Run]]


def _trial_run(net: nn.Module, x: Tensor) -> _Runs:
    """Return the calls of all submodules when a module runs on a few samples."""
    runs: _Runs = defaultdict(list)
    order = itertools.count()

    def note(part: nn.Module, before: Any, after: Any) -> None:
        if not isinstance(before, Tensor) or not isinstance(after, Tensor) or not before.ndim or not after.ndim:
            runs[part].append(_Run(next(order), (), (), 0, False, False))
            return
        base = _base(part)
        dimensions = 1 if base is None else 2 if base is nn.Linear else cast(Tensor, part.weight).ndim
        faithful = base is None or not _overrides_forward(part) or _is_plain(part, before, after)
        batched = len(before) == len(x) == len(after) and before.ndim >= dimensions
        shapes = tuple(before.shape[1:]), tuple(after.shape[1:])
        runs[part].append(_Run(next(order), *shapes, len(before), faithful, batched))

    function = Functional(net)
    hookable = [part for part in net.modules() if not isinstance(part, torch.jit.ScriptModule)]
    with torch.no_grad(), _hooks(hookable, note):
        function(x)
    return runs


def _reason_of_runs(runs: list[_Run]) -> str | None:
    if not runs:
        return "never called on the example x (or its weight is used without calling it)"
    if len(runs) > 1:
        return f"called {len(runs)} times on the example x: its weight is shared between places"
    if not runs[0].batched:
        shape = (runs[0].samples, *runs[0].before)
        return f"its input has shape {shape}, whose first dimension is not the samples"
    if not runs[0].faithful:
        return "its class overrides forward with something other than the plain layer"
    return None


def _segments(net: nn.Module, layers: Sequence[Layer], runs: _Runs | None) -> Iterator[Segment]:
    uses = Counter(id(p) for part in net.modules() for p in part._parameters.values() if p is not None)
    single = {layer.module for layer in layers}
    for name, sub in outermost(net, single):
        names, parts = zip(*parts_of(sub, name), strict=True)
        shared = any(uses[id(p)] > 1 for p in sub.parameters())
        if runs is not None:
            shared |= any(len(runs[part]) > 1 for part in parts if _base(part) is not None)
            shared |= len(runs[sub]) != 1 or not (runs[sub][0].faithful and runs[sub][0].batched)
        if not shared:
            yield Segment(name, parts, names)


def _candidates(net: nn.Module) -> tuple[dict[str, nn.Module], list[Skipped]]:
    names, owners = defaultdict(list), defaultdict(list)
    for name, part in net.named_modules(remove_duplicate=False):
        names[part].append(name)
    for name, part in net.named_modules():
        for parameter in _own(part).values():
            owners[parameter.data_ptr() or id(parameter)].append(name)
    attention = [name and f"{name}." for name, part in net.named_modules() if isinstance(part, nn.MultiheadAttention)]
    candidates: dict[str, nn.Module] = {}
    skipped: list[Skipped] = []
    for name, part in net.named_modules():
        parametrized = parametrize.is_parametrized(part)
        if (not _own(part) and not parametrized) or isinstance(part, parametrize.ParametrizationList):
            continue  # a parametrization is reported at its layer
        if parametrized:
            reason = reasons.of_parameters(part)
        elif _base(part) is None:
            reason = reasons.of_type(part) or _reason_of_parameters(part)
        elif any(name.startswith(prefix) for prefix in attention):
            reason = "belongs to an attention layer, which uses its weight without calling it"
        else:
            reason = reasons.of_parameters(part) or _reason_of_sharing(name, part, names[part], owners)
        if reason:
            skipped.append(Skipped.part(name, part, reason))
        else:
            candidates[name] = part
    return candidates, skipped


def _reason_of_parameters(part: nn.Module) -> str:
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


def _base(part: nn.Module) -> Any:
    return next((base for base in _KINDS if isinstance(part, base)), None)


def _overrides_forward(layer: nn.Module) -> bool:
    base, methods = _base(layer), ("forward", "_conv_forward")
    return "forward" in vars(layer) or any(getattr(type(layer), m, 0) is not getattr(base, m, 0) for m in methods)


def _is_plain(layer: nn.Module, before: Tensor, after: Tensor) -> bool:
    base: Any = _base(layer)
    if base is nn.Linear:
        plain = nn.Linear.forward(cast(nn.Linear, layer), before)
    else:
        plain = base._conv_forward(layer, before, layer.weight, layer.bias)
    return plain.shape == after.shape and torch.allclose(plain, after, rtol=1e-9, atol=1e-12)


@contextmanager
def _hooks(parts: Iterable[nn.Module], note: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    """Call ``note(part, input, output)`` whenever one of the parts runs; input None where it is not one tensor."""

    def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args if args else tuple(kwargs.values())
        note(part, given[0] if len(given) == 1 else None, output)

    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.register_forward_hook(hook, with_kwargs=True).remove)
        yield
