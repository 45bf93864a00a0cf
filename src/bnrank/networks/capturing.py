"""The values that flow through the layers of a module: kept for a block of samples, or passed on as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from bnrank._core import heap, validation
from bnrank.networks import observing
from bnrank.networks.functional import Functional, example, unwrap
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.observing import Holders, Values
from bnrank.networks.reading import Layer, Reading, read_except, read_or, weight_holders

__all__ = ["Captured", "capture"]

Result = TypeVar("Result")
MAX_BLOCK = 2**18  # entries of the largest tensor of a layer in one block of `stream`: 2 MiB


class UnobservedError(ValueError):
    """Layers without a value for each sample of a block, though they have one on the example that they were read with.

    Attributes
    ----------
    reasons : dict
        Why, by the name of the layer.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})

    @classmethod
    def of(cls, layer: Layer, message: str, reason: str) -> UnobservedError:
        """Return the error of one layer."""
        return cls(f"net: layer {layer.name!r} {message}", {layer.name: reason})


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
    activations : tuple of Tensor
        a_l: the input of the next layer, and the module's output for the last one. For gates of recurrent layers the
        hidden states. For embeddings, projections of attention, and layers whose output the next layer does not read,
        or reads also by way of a layer without observed values, the layer's own output; so for the last one where the
        module's output does not follow from it, or follows also by way of such a layer.
    """

    rows: slice
    inputs: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    output: Tensor
    activations: tuple[Tensor, ...]


def capture(
    net: nn.Module,
    x: Example,
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
    samples = example(net, x, inputs=True)
    chunk_size = validation.integer(chunk_size, "chunk_size")
    reading = _checked(net, samples, reading, dtype)
    return _captured(Functional(net, dtype), samples, reading, chunk_size)


def _checked(
    net: nn.Module, samples: Samples, reading: Reading | None, dtype: torch.dtype, layers: bool = True
) -> Reading:
    """Return the reading of a module, its own and, if ``layers``, with layers."""
    reading = read_or(reading, net, samples, dtype)
    inside, kind = dict(unwrap(net).named_modules()), type(net).__name__
    own = all(
        inside.get(layer.name if layer.source is None else layer.source.owner) is layer.module
        for layer in reading.layers
    )
    validation.expect(own, "reading", "one of another module", f"what read(net, x) returns for {kind}")
    if layers and not reading.layers:
        skipped = f". Skipped: {'; '.join(map(str, reading.skipped))}" if reading.skipped else ""
        which = " that runs once, with a value for each sample," if reading.weights else ""
        raise ValueError(
            f"net: found no linear or convolutional layer{which} in {kind}, expected at least one{skipped}"
        )
    return reading


def _places(net: nn.Module, layers: Sequence[Layer]) -> tuple[Holders, dict[str, tuple[nn.Module, int]]]:
    """Return the modules that hold the weights of layers, and where each layer is among them."""
    names = {layer.name for layer in layers}
    holders = {part: own for part, own in weight_holders(net).items() if any(weight.name in names for weight in own)}
    return holders, {weight.name: (part, i) for part, own in holders.items() for i, weight in enumerate(own)}


def _captured(function: Functional, x: Samples, reading: Reading, chunk_size: int) -> Iterator[Captured]:
    layers = reading.layers
    holders, place = _places(function.module, layers)
    for start in range(0, len(x), chunk_size):
        rows = slice(start, min(start + chunk_size, len(x)))
        seen: dict[nn.Module, list[list[Values | None]]] = {part: [] for part in holders}

        def note(part: nn.Module, values: list[Values | None], seen: Any = seen) -> None:
            seen[part].append(_copies(values))  # a later in-place operation must not reach them

        with torch.no_grad(), observing.watching(holders, note):
            out = function(x[rows])
        found: list[Values] = []
        for layer in layers:
            part, number = place[layer.name]
            if not seen[part]:
                raise _never(layer, rows)
            if len(seen[part]) > 1:
                raise _twice(layer, rows)
            found.append(_samples_first(seen[part][0][number], layer, rows.stop - start))
        inputs, after = tuple(v[0] for v in found), tuple(v[1] for v in found)
        following = (*inputs[1:], out)
        activations = tuple(
            value[2] if value[2] is not None else value[1] if layer.apart else other
            for layer, value, other in zip(layers, found, following, strict=True)
        )
        yield Captured(rows, inputs, after, out, activations)


class Taker:
    """What is told of the values of layers as they come, see :func:`stream`; each method that is needed is overridden.

    Layers are counted from 0. Tensors are (n, ...) and may change after the call: what is kept of them is copied.
    """

    def inputs(self, layer: int, values: Tensor) -> None:
        """Take what enters a layer for a block of samples."""

    def preactivations(self, layer: int, values: Tensor) -> None:
        """Take the outputs of a layer for a block of samples."""

    def activations(self, layer: int, values: Tensor) -> None:
        """Take the activations a_l of a layer, see :class:`Captured`, for the same block."""

    def pairs(self, layer: int, before: Tensor, after: Tensor) -> None:
        """Take both together, which keeps a copy of the outputs until the activations are there."""

    def output(self, values: Tensor) -> None:
        """Take the output of the module for a block of samples."""


def stream(
    net: nn.Module,
    x: Example,
    reading: Reading | None,
    takers: Sequence[Taker],
    *,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    over: Callable[[], bool] = lambda: False,
    layers: bool = True,
) -> int:
    """Pass on what enters and leaves layers to takers, one layer at a time; return the number of samples that were run.

    It computes what :func:`capture` does, and keeps nothing: blocks are smaller than ``chunk_size`` where a layer has
    more than 2^18 numbers for it. After a block for which ``over()`` is true, no other is run. A module without layers
    is refused if ``layers``; else its output alone is passed on.
    """
    samples = example(net, x, inputs=True)
    chunk_size = validation.integer(chunk_size, "chunk_size")
    reading = _checked(net, samples, reading, dtype, layers)
    function = Functional.lean_on(net, dtype, samples[:2])
    shapes = [shape for layer in reading.layers for shape in (layer.input_shape, layer.output_shape) if shape]
    widest = max((int(torch.Size(shape).numel()) for shape in shapes), default=1)
    chunk_size = min(chunk_size, max(1, MAX_BLOCK // max(1, widest)))
    holders, places = _places(function.module, reading.layers)
    for start in range(0, len(samples), chunk_size):
        rows = slice(start, min(start + chunk_size, len(samples)))
        block = _Block(reading.layers, places, takers, rows)
        try:
            with torch.no_grad(), observing.watching(holders, block.note):
                out = function(samples[rows])
        except ValueError:
            if block.error is not None:  # of a taker, not of the module
                raise block.error from None
            raise
        block.end(out)
        del out
        heap.give_back()
        if over():
            return rows.stop
    return len(samples)


def leaving_out(
    net: nn.Module, x: Samples, reading: Reading, measure: Callable[[Reading], Result], dtype: torch.dtype
) -> tuple[Result, Reading, dict[str, str]]:
    """Return ``measure(reading)``, for the layers that every sample passes, with their reading and why others are left.

    Layers that only some samples reach, such as experts, may show only when all of them are run. The measure starts
    anew then.
    """
    reasons: dict[str, str] = {}
    while True:
        try:
            return measure(reading), reading, reasons
        except UnobservedError as error:
            reasons |= error.reasons
            reading = read_except(net, x, reasons, dtype)


class _Block:
    """The values of one block of samples, on their way from layers to takers."""

    def __init__(
        self, layers: Sequence[Layer], places: dict[str, tuple[nn.Module, int]], takers: Sequence[Taker], rows: slice
    ) -> None:
        self.layers, self.takers, self.rows = layers, takers, rows
        self.of_part: dict[nn.Module, list[tuple[int, int]]] = defaultdict(list)
        for i, layer in enumerate(layers):
            part, number = places[layer.name]
            self.of_part[part].append((i, number))
        self.paired = [taker for taker in takers if type(taker).pairs is not Taker.pairs]
        self.seen: set[int] = set()
        self.given: set[int] = set()
        self.waiting: dict[int, Tensor] = {}  # outputs whose activations are not there yet
        self.early: dict[int, Tensor] = {}  # activations of layers that run later than in the reading
        self.error: Exception | None = None
        self.unobserved: UnobservedError | None = None  # raised at the end, when it has all of these layers

    def note(self, part: nn.Module, values: list[Values | None]) -> None:
        """Pass on the values of one call."""
        try:
            for i, number in self.of_part[part]:
                found = self._found(i, values[number])
                if found is not None and self.unobserved is None:
                    self._take(i, found)
        except Exception as error:
            self.error = error
            raise

    def _found(self, i: int, values: Values | None) -> Values | None:
        """Return values of a layer with the samples first; None where it has none for each sample, which is noted."""
        try:
            if i in self.seen:
                raise _twice(self.layers[i], self.rows)
            self.seen.add(i)
            return _samples_first(values, self.layers[i], self.rows.stop - self.rows.start)
        except UnobservedError as error:
            self._miss(error)
            return None

    def _miss(self, error: UnobservedError) -> None:
        self.unobserved = self.unobserved or error
        self.unobserved.reasons = error.reasons | self.unobserved.reasons

    def _take(self, i: int, values: Values) -> None:
        before, after, own = values
        for taker in self.takers:
            taker.inputs(i, before)
            taker.preactivations(i, after)
        known = own if own is not None else after if self.layers[i].apart else self.early.pop(i, None)
        if known is None and self.paired:
            self.waiting[i] = after.clone()
        if known is not None:
            self._give(i, known, after)
        if i and i - 1 not in self.given and not self.layers[i - 1].apart:
            if i - 1 in self.seen:
                self._give(i - 1, before, self.waiting.pop(i - 1, None))
            else:
                self.early[i - 1] = before.clone()

    def _give(self, i: int, values: Tensor, before: Tensor | None) -> None:
        self.given.add(i)
        for taker in self.takers:
            taker.activations(i, values)
        for taker in self.paired:
            taker.pairs(i, cast(Tensor, before), values)

    def end(self, out: Tensor) -> None:
        """Pass on the output of the module, as such and as the activations of the last layer."""
        for i, layer in enumerate(self.layers):
            if i not in self.seen:
                self._miss(_never(layer, self.rows))
        if self.unobserved is not None:
            raise self.unobserved
        for taker in self.takers:
            taker.output(out)
        last = len(self.layers) - 1
        if self.layers and last not in self.given:
            self._give(last, out, self.waiting.pop(last, None))


def named(layers: Sequence[Layer], number: int, which: str) -> str:
    """Return the "activations" or "preactivations" of a layer in words, by the tensor that they are.

    Examples
    --------
    >>> layers = [Layer(1, "a", "linear", nn.Linear(2, 2)), Layer(2, "b", "linear", nn.Linear(2, 2))]
    >>> [named(layers, i, which) for i, which in enumerate(("activations", "preactivations"))]
    ["activations of layer 'a', the input of layer 'b'", "preactivations of layer 'b'"]
    >>> named(layers, 1, "activations")
    "the output of the network, after layer 'b'"
    """
    text = f"{which} of layer {layers[number].name!r}"
    if which == "preactivations" or layers[number].apart:
        return text
    if number == len(layers) - 1:
        return f"the output of the network, after layer {layers[number].name!r}"
    return f"{text}, the input of layer {layers[number + 1].name!r}"


def _never(layer: Layer, rows: slice) -> UnobservedError:
    where = f"on samples {rows.start} to {rows.stop - 1} of x"
    return UnobservedError.of(layer, f"did not run {where}", f"not called {where}")


def _twice(layer: Layer, rows: slice) -> UnobservedError:
    reason = f"called more than once on samples {rows.start} to {rows.stop - 1} of x"
    return UnobservedError.of(layer, f"runs more than once{_advice(layer)}", reason)


def _advice(layer: Layer) -> str:
    return "; read it with an x to skip it" if layer.input_shape is None else ""


def _copies(values: Sequence[Values | None]) -> list[Values | None]:
    """Return copies, one for each tensor however often it is there."""
    made: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.clone()
        return made[id(tensor)]

    return [v and (copy(v[0]), copy(v[1]), None if v[2] is None else copy(v[2])) for v in values]


def _samples_first(values: Values | None, layer: Layer, count: int) -> Values:
    """Return values with the samples along the first dimension."""
    dim = layer.samples_dim
    if values is None or any(v.ndim <= dim or v.shape[dim] != count for v in values if v is not None):
        shape = "" if values is None else f": its input has shape {tuple(values[0].shape)}"
        message = f"has no value for each of {count} samples{shape}{_advice(layer)}"
        raise UnobservedError.of(layer, message, f"no value for each sample, in a block of {count}{shape}")
    before, after, activation = (v if v is None else v.movedim(dim, 0) for v in values)
    return cast(Values, (before, after, after if values[2] is values[1] else activation))
