"""Which weights a module holds, and the values that enter and leave each of them when the module runs."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bnrank.networks import projections, recurrent
from bnrank.networks.following import Following
from bnrank.networks.functional import Functional, PrecisionError
from bnrank.networks.inputs import Samples
from bnrank.networks.layers import (
    KINDS,
    Layer,
    Source,
    base_of,
    computed_of,
    derived,
    effective,
    has_complex_weight,
    is_weight,
)

Values = tuple[Tensor, Tensor, Tensor | None]  # what enters, what leaves, and the activations where they are known
MATRIX = "matrix"


@dataclass(frozen=True)
class Weight:
    """A weight that a module holds: its name, kind and place (None for the weight of a plain layer)."""

    name: str
    kind: str
    source: Source | None = None


def weights_of(part: nn.Module, name: str) -> list[Weight]:
    """Return the weights of a module itself, without its submodules, except for the output projection of attention.

    Examples
    --------
    >>> [weight.name for weight in weights_of(nn.MultiheadAttention(4, 2), "block.attn")]
    ['block.attn.q', 'block.attn.k', 'block.attn.v', 'block.attn.out_proj']
    """
    inside = f"{name}." if name else ""
    if has_complex_weight(part):
        return []
    if isinstance(part, nn.MultiheadAttention):
        return [Weight(f"{inside}{key}", "linear", source) for key, source in projections.weights(part, name)]
    if isinstance(part, nn.RNNBase | nn.RNNCellBase):
        return [Weight(f"{inside}{key}", "recurrent", source) for key, source in recurrent.weights(part, name)]
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return [Weight(name, "embedding", Source(name, "weight", None))]
    base = base_of(part)
    if base is not None:
        if base is nn.Linear and derived(part, "weight") is None and is_weight(part._parameters.get("weight")):
            fused = projections.thirds(part, name, cast(Tensor, part.weight), False)
            if fused:
                return [Weight(f"{inside}{key}", "linear", source) for key, source in fused]
        usable = part._parameters.get("weight") is not None or derived(part, "weight") is not None
        return [Weight(name, KINDS[base])] if usable else []
    matrices = [key for key, p in _held(part).items() if is_weight(p)]
    bias = _bias_of(part) if len(matrices) == 1 else None
    if len(matrices) == 1 and not any(True for _ in part.children()):
        transposed = _is_transposed(part, matrices[0], bias)
        fused = projections.thirds(part, name, _held(part)[matrices[0]], transposed)
        if fused and matrices[0] == "weight":
            return [Weight(f"{inside}{key}", "linear", source) for key, source in fused]
        return [Weight(name, MATRIX, Source(name, matrices[0], bias, None, transposed))]
    return [Weight(f"{inside}{key}", MATRIX, Source(name, key, None)) for key in matrices]


def _held(part: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a module, and in place of those that hooks of torch.nn.utils need what they give."""
    found: dict[str, Tensor] = {}
    for key, parameter in part._parameters.items():
        name = computed_of(part, key)
        if parameter is not None and name not in found:
            found[name or key] = effective(part, name) if name else parameter
    return found


def _bias_of(part: nn.Module) -> str | None:
    vectors = [key for key, p in _held(part).items() if p.ndim == 1]
    return vectors[0] if len(vectors) == 1 else None


def _is_transposed(part: nn.Module, key: str, bias: str | None) -> bool:
    """Return whether a matrix of a leaf is (in, out), by the length of its bias or by its class (GPT-2's Conv1D)."""
    held = _held(part)
    rows, columns = held[key].shape
    length = -1 if bias is None else len(held[bias])
    return (length == columns != rows) or type(part).__name__ == "Conv1D"


def _observed(part: nn.Module, weights: list[Weight], args: Any, kwargs: Any, output: Any) -> list[Values | None]:
    """Return the values of every weight of a module in one call, None where they cannot be told."""
    nothing: list[Values | None] = [None] * len(weights)
    if isinstance(part, nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase):
        bound = _bound(part, args, kwargs)
        observe: Any = projections.observe if isinstance(part, nn.MultiheadAttention) else recurrent.observe
        return nothing if bound is None else observe(part, bound, output)
    given = args if args else tuple(kwargs.values())
    before = given[0] if len(given) == 1 else None
    if not isinstance(before, Tensor) or not isinstance(output, Tensor) or not before.ndim or not output.ndim:
        return nothing
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return [(before, output, output)]
    if len(weights) == 1 and weights[0].source is None:
        return [(before, output, None)]
    thirds = output.chunk(len(weights), -1)
    return [(before, third, third if len(weights) > 1 else None) for third in thirds]


def _bound(part: nn.Module, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Return all arguments of a call by name, with the defaults; None where forward is not that of torch."""
    plain = next(base for base in type(part).__mro__ if base.__module__.startswith("torch.nn.modules"))
    if "forward" in vars(part) or type(part).forward is not plain.forward:  # type: ignore[attr-defined]
        return None
    bound = inspect.signature(type(part).forward).bind(part, *args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "self"}


Holders = dict[nn.Module, list[Weight]]
Note = Callable[[nn.Module, list[Values | None]], None]


@contextmanager
def watching(holders: Holders, note: Note) -> Iterator[None]:
    """Call ``note(part, values of its weights)`` whenever one of the modules runs."""

    def hook(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        note(part, _observed(part, holders[part], args, kwargs, output))

    with ExitStack() as stack:
        for part in holders:
            stack.callback(part.register_forward_hook(hook, with_kwargs=True).remove)
        yield


Key = tuple[int, int]  # memory and version: views of one tensor have the same


@dataclass(frozen=True)
class Call:
    """One call of a module in a trial run.

    Attributes
    ----------
    order : int
        The number of the call among those of all modules.
    values : list
        For every weight what entered and left it, or None.
    keys : list
        Which tensors these are at this time, before and after.
    faithful : bool
        Whether the module computes what its weight says, a linear map or a convolution.
    """

    order: int
    values: list[Values | None]
    keys: list[tuple[Key, Key] | None]
    faithful: bool


class Run:
    """A run of a module on a few samples: which weights act once, on what, and where the samples are.

    Samples lie along the dimension whose size follows the number of samples, found by a second run where the first
    cannot tell. Tensors are kept until the end, so that none takes the memory of another. Where the module fails in the
    precision, but runs in another one, that is taken.
    """

    def __init__(self, net: nn.Module, holders: Holders, x: Samples, dtype: torch.dtype = torch.float64) -> None:
        self.holders = holders
        self.calls: dict[nn.Module, list[Call]]
        self.shapes: dict[nn.Module, list[tuple[tuple[int, ...], tuple[int, ...]]]]
        self._made: list[tuple[int, Tensor, Key]]  # by other modules, with the number of calls so far
        self._again: dict[nn.Module, list[Call]] = {}
        function, first = Functional(net, dtype, whole=x), x[torch.arange(2, device=x.device) % len(x)]
        try:
            out = self._run(function, first, net)
        except PrecisionError as error:  # another one does as well: no number of this run is a result
            function = Functional(net, cast(torch.dtype, error.dtype))
            out = self._run(function, first, net)
        self._out = _key(out), out
        values = [
            value for calls in self.calls.values() for call in calls for value in call.values if value is not None
        ]
        if any(before.ndim != 2 or not before.is_floating_point() or len(before) != 2 for before, _, _ in values):
            once = self.calls, self.shapes, self._made
            with suppress(ValueError):
                self._run(function, x[torch.arange(3, device=x.device) % len(x)], net)
                self._again = self.calls
            self.calls, self.shapes, self._made = once
        self._following = Following(function, holders, first)

    def _run(self, function: Functional, x: Samples, net: nn.Module) -> Tensor:
        order = itertools.count()
        self.calls, self.shapes, self._made = defaultdict(list), defaultdict(list), []

        def note(part: nn.Module, values: list[Values | None]) -> None:
            pairs = zip(self.holders[part], values, strict=True)
            faithful = all(value is None or _is_faithful(part, weight, value) for weight, value in pairs)
            keys = [None if value is None else (_key(value[0]), _key(value[1])) for value in values]
            self.calls[part].append(Call(next(order), values, keys, faithful))

        def shape(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = [*args, *kwargs.values()]
            alone = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
            self.shapes[part].append((tuple(given[0].shape), tuple(output.shape)) if alone else ((), ()))
            for value in output if isinstance(output, tuple | list) else [output]:
                if isinstance(value, Tensor):
                    self._made.append((next(order), value, _key(value)))

        def start(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)]
            self._made += [(next(order), value, _key(value)) for value in given]

        with torch.no_grad(), watching(self.holders, note), ExitStack() as stack:
            stack.callback(net.register_forward_pre_hook(start, with_kwargs=True).remove)
            for part in net.modules():
                if part not in self.holders and not isinstance(part, torch.jit.ScriptModule):
                    stack.callback(part.register_forward_hook(shape, with_kwargs=True).remove)
            return function(x)

    def order(self, part: nn.Module) -> int:
        """Return the number of the first call of a module."""
        return self.calls[part][0].order

    def seen(self, layer: Layer, part: nn.Module, number: int) -> tuple[Layer, str]:
        """Return a layer with its shapes, and why its values cannot be observed, or ""."""
        calls = self.calls[part]
        if not calls:
            return layer, "never called on the example x (or its weight is used without calling it)"
        found = {self._shapes(part, i, number, layer) for i in range(len(calls))}
        known = next(iter(found)) if len(found) == 1 else None
        if known is not None:
            layer = replace(layer, input_shape=known[0], output_shape=known[1], samples_dim=known[2])
        if len(calls) > 1:
            return layer, f"called {len(calls)} times on the example x: its weight is shared between places"
        value = calls[0].values[number]
        if value is None:
            return layer, _unknown(part, layer)
        if known is None:
            shape = tuple(value[0].shape)
            return layer, f"its input has shape {shape}, and no dimension of it is that of the samples"
        if not calls[0].faithful:
            if layer.kind == MATRIX:
                return layer, "its module does something other than x W^T + b with it"
            return layer, "its class overrides forward with something other than the plain layer"
        return layer, ""

    def _shapes(
        self, part: nn.Module, call: int, number: int, layer: Layer
    ) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Return the shapes of one sample before and after, and the dimension of the samples."""
        value = self.calls[part][call].values[number]
        if value is None:
            return None
        shapes = [tuple(tensor.shape) for tensor in value[:2]]
        dims = [_first(shape) for shape in shapes]
        others = self._again.get(part, [])
        other = others[call].values[number] if len(others) == len(self.calls[part]) else None
        if other is not None:
            dims = [_moved(shape, tuple(tensor.shape)) for shape, tensor in zip(shapes, other[:2], strict=True)]
        if dims[0] is None or dims[0] != dims[1]:
            return None
        dim = dims[0]
        before, after = (shape[:dim] + shape[dim + 1 :] for shape in shapes)
        least = layer.weight.ndim - 1 if layer.is_convolution or layer.is_transposed else 0
        return (before, after, dim) if len(before) >= least else None

    def apart(self, layers: list[Layer]) -> list[Layer]:
        """Return the layers, in order of execution, with whether and how the next one reads what they return."""
        places = {weight.name: (part, i) for part, own in self.holders.items() for i, weight in enumerate(own)}
        observed = {places[layer.name][0] for layer in layers}
        others = [part for part, calls in self.calls.items() if calls and part not in observed]
        existing: set[Key] = set()
        made = self._made[::-1]
        found: list[Layer] = []
        for layer, after in itertools.zip_longest(layers, layers[1:]):
            call, value, (entered, left) = self._of(*places[layer.name])
            reader = None if after is None else places[after.name][0]
            existing.add(entered)
            while made and made[-1][0] < call.order:
                existing.add(made.pop()[2])
            reads = self._following.reads(reader, places[layer.name][0])
            if reads is None:
                following = self._out[0] if after is None else self._of(*places[after.name])[2][0]
                reads = following not in existing
            reads &= after is None or self._of(*places[after.name])[1][0].is_floating_point()
            if reads:
                end = math.inf if after is None else self.order(places[after.name][0])
                between = [part for part in others if any(call.order < c.order < end for c in self.calls[part])]
                reads = not any(self._by_way_of(places[layer.name][0], part, reader) for part in between)
            apart = value[2] is not None or not reads
            layer = replace(layer, apart=apart)
            found.append(layer if apart else self._flattened(layer, places[layer.name][0], reader))
            existing.add(left)
        return found

    def _by_way_of(self, part: nn.Module, other: nn.Module, reader: nn.Module | None) -> bool:
        """Return whether another module reads what a part returns, and what is read follows from it, or may do so."""
        follows = self._following.reads
        return follows(other, part) is not False and follows(reader, other) is not False

    def _flattened(self, layer: Layer, part: nn.Module, reader: nn.Module | None) -> Layer:
        """Return a layer with the shape before flattening, and the dimension of its units in what is read."""
        shape = self._following.unflattened(reader, part)
        given = shape or (tuple(self._out[1].shape[1:]) if reader is None else ())
        own = layer.output_shape or ()
        vector = len(own) == 1
        if len(given) < 2 or not own or (vector and (not shape or math.prod(shape) == own[0])):
            return layer
        axis = 0 if "conv" in layer.kind else len(own) - 1
        dim = axis if axis < layer.samples_dim else axis + 1
        found = self._following.units_dim(reader, part, dim, own[axis], given, vector)
        if vector and found is None:  # something else than its units
            return layer
        if shape and found is None:
            found = 0 if "conv" in layer.kind else len(shape) - 1
        return replace(layer, unflattened=shape, units_dim=found)

    def _of(self, part: nn.Module, number: int) -> tuple[Call, Values, tuple[Key, Key]]:
        """Return the first call of a module, and the values of one of its weights in it."""
        call = self.calls[part][0]
        return call, cast(Values, call.values[number]), cast("tuple[Key, Key]", call.keys[number])

    def is_once(self, part: nn.Module) -> bool:
        """Return whether a module that holds no weight runs once, on one tensor with the samples first."""
        shapes = self.shapes[part]
        return len(shapes) == 1 and all(len(shape) > 0 and shape[0] == 2 for shape in shapes[0])


def _first(shape: tuple[int, ...]) -> int | None:
    return 0 if shape and shape[0] == 2 else None


def _moved(first: tuple[int, ...], second: tuple[int, ...]) -> int | None:
    """Return the only dimension whose size differs, from 2 to 3."""
    if len(first) != len(second):
        return None
    changed = [i for i, sizes in enumerate(zip(first, second, strict=True)) if sizes[0] != sizes[1]]
    return changed[0] if len(changed) == 1 and (first[changed[0]], second[changed[0]]) == (2, 3) else None


def _unknown(part: nn.Module, layer: Layer) -> str:
    if isinstance(part, nn.MultiheadAttention) and layer.name.endswith("out_proj"):
        return "the heads that enter it are not returned by its attention layer"
    if isinstance(part, nn.RNNBase) and layer.name.endswith(".hr"):
        return "the values that enter the projection are not returned by its recurrent layer"
    return "its input or output is not one tensor with a dimension for the samples"


def _key(tensor: Tensor) -> Key:
    try:
        return tensor.untyped_storage().data_ptr(), tensor._version
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own: a fake one, or of functorch
        return id(tensor), tensor._version


def _is_faithful(part: nn.Module, weight: Weight, values: Values) -> bool:
    before, after, _ = values
    if weight.kind == MATRIX or (weight.source is not None and weight.source.transposed):
        assert weight.source is not None
        own = _held(part)
        if len(own) != 1 + (weight.source.bias is not None):
            return False
        matrix = weight.source.matrix(own[weight.source.weight])
        bias: Tensor | None = None if weight.source.bias is None else own[weight.source.bias]
        if bias is not None and weight.source.rows is not None:
            bias = bias[slice(*weight.source.rows)]
        if before.shape[-1] != matrix.shape[1] or not before.is_floating_point():
            return False
        fits = bias is None or bias.shape == matrix.shape[:1]
        return fits and _close(linear(before, matrix, bias), after)
    base: Any = base_of(part)
    if base is None or not overrides_forward(part):
        return True
    if base is nn.Linear:
        plain = nn.Linear.forward(cast(nn.Linear, part), before)
        return _close(plain if weight.source is None else plain[..., slice(*cast(Any, weight.source.rows))], after)
    if not hasattr(base, "_conv_forward"):
        return _close(base.forward(part, before), after)
    return _close(base._conv_forward(part, before, part.weight, part.bias), after)


def _close(plain: Tensor, after: Tensor) -> bool:
    if plain.dtype == torch.float64 or not plain.is_floating_point():
        rtol, atol = 1e-9, 1e-12
    else:  # of sums that cancel, the terms have the size of the largest
        rtol = torch.finfo(plain.dtype).eps ** 0.5
        atol = rtol * float(plain.abs().max()) if plain.numel() else 0.0
    return plain.shape == after.shape and torch.allclose(plain, after, rtol=rtol, atol=atol)


def overrides_forward(layer: nn.Module) -> bool:
    """Return whether a linear or convolutional layer has a forward of its own."""
    base, methods = base_of(layer), ("forward", "_conv_forward")
    return "forward" in vars(layer) or any(getattr(type(layer), m, 0) is not getattr(base, m, 0) for m in methods)
