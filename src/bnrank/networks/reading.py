"""Reading any module into its layers, and what flows through them, without leaving a trace on the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bnrank._core import validation
from bnrank.networks.functional import Functional, example, unwrap

__all__ = ["Captured", "Layer", "Reading", "Skipped", "capture", "read"]

_BASES: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.Linear, "linear"),
    (nn.Conv1d, "conv1d"),
    (nn.Conv2d, "conv2d"),
    (nn.Conv3d, "conv3d"),
)
_REASONS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    (
        (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
        "normalization layer, scales each feature by itself and has no weight matrix",
    ),
    ((nn.Embedding, nn.EmbeddingBag), "look-up table, its input is an index and not a vector"),
    ((nn.RNNBase, nn.RNNCellBase), "recurrent layer, its weights act once per time step"),
    ((nn.MultiheadAttention,), "attention layer, its weights act inside a softmax of the input"),
    ((nn.modules.conv._ConvTransposeNd,), "transposed convolution, which bnrank does not read"),
    ((nn.Bilinear,), "bilinear layer, it has two inputs"),
    ((nn.PReLU,), "activation with a learned slope and no weight matrix"),
)


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
class Skipped:
    """A module with parameters that was not read as a layer, and why."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True)
class Reading:
    """The layers of a module and everything with parameters that is not among them."""

    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Captured:
    """What flowed through the layers for one chunk of samples.

    Attributes
    ----------
    rows : slice
        Which samples of x.
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
        """What enters the next layer read; for the last layer the module's output."""
        return (*self.inputs[1:], self.output)


def read(net: nn.Module, x: Tensor | np.ndarray | None = None) -> Reading:
    """Read a module into its linear and convolutional layers.

    Everything else that owns parameters is listed in ``skipped`` with the reason; modules without parameters
    (activations, dropout, pooling, flattening) are neither.

    Parameters
    ----------
    net : torch.nn.Module
        Any module. It is left as it was: hooks removed, modes, buffers and random state untouched.
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
        If ``net`` is no module, has lazy parameters without a shape, or cannot be run on ``x``.

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
        for name, layer in list(candidates.items()):
            if _overrides_forward(layer):
                skipped.append(_skip(name, layer, "its class overrides forward; give an example x to check it"))
                del candidates[name]
        layers = [
            Layer(i, name, _kind(layer) or "", layer) for i, (name, layer) in enumerate(candidates.items(), start=1)
        ]
        return Reading(tuple(layers), tuple(skipped))
    calls = _trial_run(net, example(net, x)[:2], candidates)
    found: list[Layer] = []
    for name, runs in sorted(calls.items(), key=lambda item: item[1][0].order if item[1] else -1):
        reason = _reason_of_runs(runs)
        if reason:
            skipped.append(_skip(name, candidates[name], reason))
        else:
            kind = _kind(candidates[name]) or ""
            found.append(Layer(len(found) + 1, name, kind, candidates[name], runs[0].before, runs[0].after))
    return Reading(tuple(found), tuple(skipped))


def capture(
    net: nn.Module,
    x: Tensor | np.ndarray,
    reading: Reading | None = None,
    chunk: int = 4096,
    dtype: torch.dtype = torch.float64,
) -> Iterator[Captured]:
    """Iterate over what enters and leaves every layer, a chunk of samples at a time.

    The module is run in eval mode, without gradients, on copies of its parameters in ``dtype``; between two chunks
    and afterwards it is as it was before.

    Parameters
    ----------
    net : torch.nn.Module
        Any module.
    x : Tensor or ndarray
        Samples, (N, ...).
    reading : Reading, optional
        Which layers; ``read(module, x)`` by default.
    chunk : int
        Samples per forward pass; bounds the memory.
    dtype : torch.dtype
        Precision of the forward pass.

    Returns
    -------
    iterator of Captured
        One per chunk, in the order of the samples.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, there is no layer to read, or a layer runs other than once.

    Examples
    --------
    >>> import torch, bnrank
    >>> parts = list(capture(bnrank.MLP([3, 8, 2]), torch.ones(10, 3), chunk=4))
    >>> [tuple(part.preactivations[0].shape) for part in parts]
    [(4, 8), (4, 8), (2, 8)]
    """
    x = example(net, x)
    chunk = validation.integer(chunk, "chunk")
    reading = read(net, x) if reading is None else reading
    inside = dict(unwrap(net).named_modules())
    if any(inside.get(layer.name) is not layer.module for layer in reading.layers):
        raise ValueError(
            f"reading: got one of another module, expected what read(module, x) returns for {type(net).__name__}"
        )
    if not reading.layers:
        why = "; ".join(f"{s.name or 'the module itself'} ({s.type}): {s.reason}" for s in reading.skipped)
        raise ValueError(
            f"net: found no linear or convolutional layer in {type(net).__name__}, expected at least one"
            + (f". Skipped: {why}" if why else "")
        )
    return _captured(Functional(net, dtype), x, reading.layers, chunk)


def _captured(function: Functional, x: Tensor, layers: Sequence[Layer], chunk: int) -> Iterator[Captured]:
    for start in range(0, x.shape[0], chunk):
        rows = slice(start, min(start + chunk, x.shape[0]))
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        again: list[str] = []

        def note(name: str, before: Tensor, after: Tensor, seen: Any = seen, again: list[str] = again) -> None:
            if name in seen:
                again.append(name)
            seen[name] = before.clone(), after.clone()  # a later in-place operation must not reach them

        with torch.no_grad(), _hooks({layer.name: layer.module for layer in layers}, note):
            out = function(x[rows])
        for layer in layers:
            if layer.name in again:
                raise ValueError(f"net: layer {layer.name!r} runs more than once; read it with an x to skip it")
            if layer.name not in seen:
                raise ValueError(f"net: layer {layer.name!r} did not run on samples {start} to {rows.stop - 1} of x")
        pairs = [seen[layer.name] for layer in layers]
        yield Captured(rows, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), out)


@dataclass(frozen=True)
class _Run:
    order: int
    samples: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    faithful: bool
    batched: bool


def _trial_run(net: nn.Module, x: Tensor, candidates: dict[str, nn.Module]) -> dict[str, list[_Run]]:
    calls: dict[str, list[_Run]] = {name: [] for name in candidates}
    order = iter(range(2**31))

    def note(name: str, before: Tensor, after: Tensor) -> None:
        layer = candidates[name]
        faithful = not _overrides_forward(layer) or _is_plain(layer, before, after)
        dimensions = 2 if _kind(layer) == "linear" else cast(Tensor, layer.weight).ndim
        batched = before.shape[0] == x.shape[0] and before.ndim >= dimensions
        shapes = tuple(before.shape[1:]), tuple(after.shape[1:])
        calls[name].append(_Run(next(order), before.shape[0], *shapes, faithful, batched))

    function = Functional(net)
    with torch.no_grad(), _hooks(candidates, note):
        function(x)
    return calls


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


def _candidates(net: nn.Module) -> tuple[dict[str, nn.Module], list[Skipped]]:
    names: dict[int, list[str]] = {}
    for name, sub in net.named_modules(remove_duplicate=False):
        names.setdefault(id(sub), []).append(name)
    owners: dict[int, list[str]] = {}
    for name, sub in net.named_modules():
        for parameter in _own(sub).values():
            owners.setdefault(parameter.data_ptr() or id(parameter), []).append(name)
    candidates: dict[str, nn.Module] = {}
    skipped: list[Skipped] = []
    attention: list[str] = []
    for name, sub in net.named_modules():
        if isinstance(sub, nn.MultiheadAttention):
            attention.append(f"{name}." if name else "")
        parametrized = parametrize.is_parametrized(sub)
        if (not _own(sub) and not parametrized) or isinstance(sub, parametrize.ParametrizationList):
            continue  # what is parametrized is reported at the layer it belongs to
        if _kind(sub) is None or parametrized:
            skipped.append(_skip(name, sub, _reason_of_type(sub)))
        elif any(name.startswith(prefix) for prefix in attention):
            skipped.append(_skip(name, sub, "belongs to an attention layer, which uses its weight without calling it"))
        elif reason := _reason_of_parameters(name, sub, names[id(sub)], owners):
            skipped.append(_skip(name, sub, reason))
        else:
            candidates[name] = sub
    return candidates, skipped


def _reason_of_type(sub: nn.Module) -> str:
    if parametrize.is_parametrized(sub):
        which = ", ".join(cast(nn.ModuleDict, sub.parametrizations).keys())
        return f"parametrized ({which}); torch.nn.utils.parametrize.remove_parametrizations makes it a plain layer"
    for types, reason in _REASONS:
        if isinstance(sub, types):
            return reason
    held = ", ".join(_own(sub))
    if any(True for _ in sub.children()):
        return f"parameters registered on the module itself: {held}"
    return f"not a linear or convolutional layer (parameters: {held})"


def _reason_of_parameters(name: str, sub: nn.Module, names: list[str], owners: dict[int, list[str]]) -> str | None:
    own = _own(sub)
    if "weight" not in own:
        return f"its weight is computed from other parameters ({', '.join(own)})"
    if extra := sorted(set(own) - {"weight", "bias"}):
        return f"has parameters besides weight and bias: {', '.join(extra)}"
    if len(names) > 1:
        return f"shared: the same module is registered as {', '.join(map(repr, names))}"
    for key, parameter in own.items():
        others = [owner for owner in owners[parameter.data_ptr() or id(parameter)] if owner != name]
        if others:
            return f"its {key} is shared with {', '.join(map(repr, others))}"
    return None


def _own(sub: nn.Module) -> dict[str, nn.Parameter]:
    return {key: p for key, p in sub._parameters.items() if p is not None}


def _kind(sub: nn.Module) -> str | None:
    return next((kind for base, kind in _BASES if isinstance(sub, base)), None)


def _base(sub: nn.Module) -> Any:
    return next(base for base, _ in _BASES if isinstance(sub, base))


def _overrides_forward(layer: nn.Module) -> bool:
    base = _base(layer)
    if "forward" in vars(layer):
        return True
    return any(getattr(type(layer), key, None) is not getattr(base, key, None) for key in ("forward", "_conv_forward"))


def _is_plain(layer: nn.Module, before: Tensor, after: Tensor) -> bool:
    base = _base(layer)
    if base is nn.Linear:
        plain = nn.Linear.forward(cast(nn.Linear, layer), before)
    else:
        plain = base._conv_forward(layer, before, layer.weight, layer.bias)
    return plain.shape == after.shape and torch.allclose(plain, after, rtol=1e-9, atol=1e-12)


def _skip(name: str, sub: nn.Module, reason: str) -> Skipped:
    return Skipped(name, type(sub).__name__, reason)


@contextmanager
def _hooks(layers: dict[str, nn.Module], note: Callable[[str, Tensor, Tensor], None]) -> Iterator[None]:
    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
            note(name, args[0] if args else kwargs["input"], output)

        return hook

    handles = []
    try:
        for name, layer in layers.items():
            handles.append(layer.register_forward_hook(hook_of(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
