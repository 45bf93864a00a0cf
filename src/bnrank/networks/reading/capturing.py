"""The values that flow through the layers of a module: kept for a block of samples, or passed on as they come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from bnrank._core import heap, validation
from bnrank.networks.functional import Functional, example
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading.inside import Values
from bnrank.networks.reading.layers import Layer, Reading, read_function
from bnrank.networks.reading.recording import Observed, Run, recording

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
    chunk_size, function = validation.integer(chunk_size, "chunk_size"), Functional(net, dtype, whole=samples)
    reading = read_function(function, samples) if reading is None else validation.kind(reading, "reading", Reading)
    check_read(function, reading)
    return _captured(function, samples, reading, chunk_size)


def _captured(function: Functional, x: Samples, reading: Reading, chunk_size: int) -> Iterator[Captured]:
    for start in range(0, len(x), chunk_size):
        rows, kept = slice(start, min(start + chunk_size, len(x))), _Kept()
        _Block(reading, [kept], rows).run(function, x)
        values = [tuple(held[i] for i in range(len(reading.layers))) for held in (kept.before, kept.after, kept.last)]
        yield Captured(rows, values[0], values[1], kept.out, values[2])


def check_read(function: Functional, reading: Reading, layers: bool = True) -> None:
    """Raise ValueError if a reading is that of another module, or if ``layers`` and it has none."""
    inside, kind = dict(function.net.named_modules(remove_duplicate=False)), type(function.net).__name__
    own = all(inside.get(layer.matrix.stored.owner) is layer.matrix.module for layer in reading.layers)
    validation.expect(own, "reading", "one of another module", f"what read(net, x) returns for {kind}")
    if layers and not reading.layers:
        raise ValueError(_without_layers(reading, kind))


def _without_layers(reading: Reading, kind: str) -> str:
    skipped = f". Skipped: {'; '.join(map(str, reading.skipped))}" if reading.skipped else ""
    which = " that runs once, with a value for each sample," if reading.weights else ""
    return f"net: found no linear or convolutional layer{which} in {kind}, expected at least one{skipped}"


class Taker:
    """What is told of the values of layers as they come, see :func:`stream`; each method that is needed is overridden.

    Layers are counted from 0. Tensors are (n, ...) and may change after the call: what is kept of them is copied.
    """

    def inputs(self, layer: int, values: Tensor) -> None:
        """Take what enters a layer for a block of samples."""

    def preactivations(self, layer: int, values: Tensor) -> None:
        """Take the outputs of a layer for a block of samples."""

    def activations(self, layer: int, values: Tensor) -> None:
        """Take the activations a_l of a layer, see :class:`Captured`, for the same block, after its outputs."""

    def output(self, values: Tensor) -> None:
        """Take the output of the module for a block of samples."""


def stream(
    function: Functional,
    x: Samples,
    reading: Reading,
    takers: Sequence[Taker],
    *,
    chunk_size: int = 4096,
    over: Callable[[], bool] = lambda: False,
    layers: bool = True,
) -> int:
    """Pass on what enters and leaves layers to takers, one layer at a time; return the number of samples that were run.

    It computes what :func:`capture` does, and keeps nothing: blocks are smaller than ``chunk_size`` where a layer has
    more than 2^18 numbers for it. After a block for which ``over()`` is true, no other is run. A module without layers
    is refused if ``layers``; else its output alone is passed on.
    """
    check_read(function, reading, layers)
    sizes = [math.prod(shape or ()) for layer in reading.layers for shape in (layer.input_shape, layer.output_shape)]
    chunk_size = min(validation.integer(chunk_size, "chunk_size"), max(1, MAX_BLOCK // max([1, *sizes])))
    for start in range(0, len(x), chunk_size):
        rows = slice(start, min(start + chunk_size, len(x)))
        _Block(reading, takers, rows).run(function, x)
        heap.give_back()
        if over():
            return rows.stop
    return len(x)


def leaving_out(
    function: Functional, x: Samples, reading: Reading, measure: Callable[[Reading], Result]
) -> tuple[Result, Reading]:
    """Return ``measure(reading)``, for the layers that every sample passes, with their reading.

    Layers that only some samples reach, such as experts, may show only when all of them are run. The measure starts
    anew then.
    """
    while True:
        try:
            return measure(reading), reading
        except UnobservedError as error:
            known = {layer.name: layer.reason for layer in reading.unobserved}
            reading = read_function(function, x, known | error.reasons)


class _Kept(Taker):
    """Copies of all values of a block: a later in-place operation does not reach them."""

    def __init__(self) -> None:
        self.before: dict[int, Tensor] = {}
        self.after: dict[int, Tensor] = {}
        self.last: dict[int, Tensor] = {}

    def inputs(self, layer: int, values: Tensor) -> None:
        """Keep what enters a layer."""
        self.before[layer] = values.clone()

    def preactivations(self, layer: int, values: Tensor) -> None:
        """Keep the output of a layer."""
        self.after[layer] = values.clone()

    def activations(self, layer: int, values: Tensor) -> None:
        """Keep the activations of a layer."""
        self.last[layer] = values.clone()

    def output(self, values: Tensor) -> None:
        """Keep the output of the module."""
        self.out = values


@dataclass
class _Block:
    """The values of one block of samples, on their way from layers, counted from 0, to takers."""

    reading: Reading
    takers: Sequence[Taker]
    rows: slice
    passed: dict[int, bool] = field(default_factory=dict)  # whether also activations are, for the layers that ran
    early: dict[int, Tensor] = field(default_factory=dict)  # activations of layers that run later than in the reading
    missed: dict[str, str] = field(default_factory=dict)  # why a layer has no value, by its name
    error: Exception | None = None  # of a taker, not of the module

    def run(self, function: Functional, samples: Samples) -> None:
        """Run the module on the block, and pass on its output, as such and as the activations of the last layer."""
        layers = self.reading.layers
        self.numbers = {layer.matrix: i for i, layer in enumerate(layers)}
        try:
            with torch.no_grad(), recording(function.module, self.reading.holders, self.note):
                out = function(samples[self.rows]).detach()
        except ValueError as error:
            raise error if self.error is None else self.error from None
        if self.missed or len(self.passed) < len(layers):
            raise self._unobserved()
        for taker in self.takers:
            taker.output(out)
        if layers:
            self._give(len(layers) - 1, out)

    def note(self, run: Run, observed: Observed) -> None:
        """Pass on the values of one run of a module."""
        try:
            for matrix, values in observed.items():
                if matrix in self.numbers:
                    self._take(self.numbers[matrix], values)
        except Exception as error:
            self.error = error
            raise

    def _take(self, i: int, values: Values | None) -> None:
        """Pass on what enters and leaves a layer, and the activations that are known now: also those of the last."""
        layer, count = self.reading.layers[i], self.rows.stop - self.rows.start
        dim, is_first = layer.samples_dim, i not in self.passed
        self.passed[i] = False
        if not is_first or values is None or any(v.shape[dim : dim + 1] != (count,) for v in values if v is not None):
            self.missed[layer.name] = self._reason(values, is_first)
        if self.missed or values is None:
            return
        before, after, own = cast(Values, tuple(v if v is None else v.detach().movedim(dim, 0) for v in values))
        for taker in self.takers:
            taker.inputs(i, before)
            taker.preactivations(i, after)
        known = own if own is not None else after if layer.apart else self.early.pop(i, None)
        if known is not None:
            self._give(i, known)
        if i and not self.reading.layers[i - 1].apart:
            self._give(i - 1, before)

    def _give(self, i: int, values: Tensor) -> None:
        """Pass on the activations of a layer, unless they were already; keep them where it runs later."""
        if i not in self.passed:
            self.early[i] = values.clone()
        elif not self.passed[i]:
            self.passed[i] = True
            for taker in self.takers:
                taker.activations(i, values)

    def _reason(self, values: Values | None, is_first: bool) -> str:
        """Return why a layer that ran has no value for each sample of the block."""
        if not is_first:
            return f"runs more than once on {self._where}"
        shape = "" if values is None else f": its input has shape {tuple(values[0].shape)}"
        return f"has no value for each of {self.rows.stop - self.rows.start} samples{shape}"

    @property
    def _where(self) -> str:
        return f"samples {self.rows.start} to {self.rows.stop - 1} of x"

    def _unobserved(self) -> UnobservedError:
        """Return the error for the layers without values."""
        late = [layer.name for i, layer in enumerate(self.reading.layers) if i not in self.passed]
        reasons = self.missed | {name: f"did not run on {self._where}" for name in late}
        name, reason = next(iter(reasons.items()))
        return UnobservedError(f"net: layer {name!r} {reason}", reasons)


def named(layers: Sequence[Layer], number: int, which: str) -> str:
    """Return the "activations" or "preactivations" of a layer in words, by the tensor that they are.

    Examples
    --------
    >>> from collections import OrderedDict
    >>> from bnrank.networks import read
    >>> layers = read(nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Linear(2, 2)))).layers
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
