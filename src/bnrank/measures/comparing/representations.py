"""Representations of two networks on the same samples: similarities of all layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.deadline import Deadline
from bnrank._core.sampling import evenly_spaced
from bnrank.measures import similarity
from bnrank.measures.layerwise import ROUNDING, LayerUse, Uses, few_samples
from bnrank.measures.spectra import MAX_TOGETHER
from bnrank.networks.functional import check_finite, example
from bnrank.networks.reading import Reading, Taker, leaving_out, named, read, stream

if TYPE_CHECKING:
    import xarray as xr

LONG_NAMES = {
    "cka": "linear CKA of the centered activations (Kornblith et al., 2019)",
    "cka_debiased": "linear CKA by the unbiased estimator of HSIC (Song et al., 2012)",
    "cca": "mean canonical correlation of the components with 99 percent of variance (SVCCA)",
    **{f"units_{n}": f"width of the layer of {n}: features, or channels of an image" for n in "ab"},
    **{
        f"dimension_{share}_{n}": f"dimension of the centered activations of {n} at {share} percent of the variance"
        for share in ("95", "99")
        for n in "ab"
    },
    **{f"dead_units_{n}": f"number of units of {n} that are 0 on all samples; NaN for a single row" for n in "ab"},
}

MAX_REASONS = 3  # shown of why no layer has activations
UNKNOWN = LayerUse(0, (math.nan, math.nan), 0)


@dataclass(frozen=True)
class Seen:
    """What one network does on samples: its layers, centered Gram matrices, use of its width, and outputs.

    What was not reached in time is None, or NaN, and ``left_out`` says which it is, or why no layer has activations.
    ``precision`` is the spacing of numbers near 1 in the type of the outputs.
    """

    names: tuple[str, ...]
    grams: tuple[Tensor | None, ...]
    use: tuple[LayerUse, ...]
    output: Tensor | None
    samples: int
    left_out: tuple[str, ...] = ()
    precision: float = 0.0


class _Rows(Taker):
    """The activations, (N, features) in float64, of as many layers as fit, and, for the first pass, the outputs."""

    def __init__(self, layers: Sequence[int], samples: int, first: bool) -> None:
        self.layers, self.samples, self.first, self.room = set(layers), samples, first, MAX_TOGETHER
        self.held: dict[int, Tensor] = {}
        self.filled: dict[int, int] = {}
        self.outputs: list[Tensor] = []
        self.precision = 0.0

    def activations(self, layer: int, values: Tensor) -> None:
        """Keep a block of one of the layers."""
        if layer not in self.layers:
            return
        rows = values.flatten(1) if values.ndim > 1 else values[:, None]
        if layer not in self.held and self.held and rows[0].numel() * self.samples > self.room:
            return  # in a later pass
        if layer not in self.held:
            self.room -= rows[0].numel() * self.samples
            self.held[layer] = rows.new_empty((self.samples, rows.shape[1]), dtype=torch.float64)
        start = self.filled.get(layer, 0)
        self.filled[layer] = start + len(rows)
        self.held[layer][start : start + len(rows)] = rows

    def output(self, values: Tensor) -> None:
        """Keep the outputs."""
        if self.first:
            self.precision = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
            self.outputs.append(values.flatten(1).to("cpu", torch.float64, copy=True))


class View:
    """A network and the samples that it is looked at on, read and checked; ``name`` is for errors."""

    def __init__(self, net: object, x: Any, name: str, max_samples: int, dtype: torch.dtype) -> None:
        if not isinstance(net, nn.Module):
            expected = "a torch.nn.Module where x is given: tensors alone cannot be run"
            raise TypeError(f"{name}: got {validation.describe(net)}, expected {expected}")
        self.net, self.name, self.dtype = net, name, dtype
        with _named(name):
            samples = example(net, x, inputs=True)
            rows = evenly_spaced(len(samples), max_samples)
            self.samples = samples[rows.to(samples.device)]
            check_finite(net)
            self.reading = read(net, self.samples, dtype=dtype)
        empty = [layer.name for layer in self.reading.layers if 0 in layer.weight.shape]
        validation.expect(not empty, name, f"layers {empty} without units", "at least one unit in each")

    def seen(self, chunk_size: int, deadline: Deadline) -> Seen:
        """Return what the network does on the samples, as far as the time suffices.

        The activations of as many layers as fit in 128 MiB are in memory together, or those of one layer. Layers that
        only some samples reach are left out.
        """
        with _named(self.name):
            measure = lambda reading: self._seen(reading, chunk_size, deadline)  # noqa: E731
            found, _, _ = leaving_out(self.net, self.samples, self.reading, measure, self.dtype)
        return found

    def _seen(self, reading: Reading, chunk_size: int, deadline: Deadline) -> Seen:
        layers, count = reading.layers, len(self.samples)
        passes: dict[str, Any] = {"chunk_size": chunk_size, "dtype": self.dtype, "layers": False}
        grams: list[Tensor | None] = [None] * len(layers)
        used: dict[str, LayerUse] = {}
        output, precision = None, 0.0
        uses, rest = Uses(reading, count), list(range(len(layers)))
        while rest or output is None:
            kept = _Rows(rest, count, output is None)
            takers: list[Taker] = [kept, uses] if output is None else [kept]
            if deadline.over() or stream(self.net, self.samples, reading, takers, **passes, over=deadline.over) < count:
                break
            if output is None:
                used, output, precision = uses.use(), torch.cat(kept.outputs), kept.precision
            rest = [i for i in rest if i not in kept.held]
            for i in sorted(kept.held):
                grams[i] = self._gram(kept.held.pop(i), named(layers, i, "activations"))
        missed = [layer.name for layer, found in zip(layers, grams, strict=True) if found is None]
        left_out = [f"activations of {', '.join(missed)}: {deadline.missed}"] if missed else []
        if not layers:
            left_out = [_no_activations(reading), *([f"outputs: {deadline.missed}"] if output is None else [])]
        names = tuple(layer.name for layer in layers)
        use = tuple(used.get(n, UNKNOWN) for n in names)
        return Seen(names, tuple(grams), use, output, count, tuple(left_out), precision)

    def _gram(self, values: Tensor, name: str) -> Tensor:
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"net: {name}: got NaN or infinite entries, expected finite ones")
        return similarity.gram(values)


def _no_activations(reading: Reading) -> str:
    """Return why no layer of a network has activations, and so no representations are compared."""
    reasons = [str(part) for part in reading.skipped] or ["it has no weight of a layer"]
    shown = "; ".join(reasons[:MAX_REASONS]) + (
        f" and {len(reasons) - MAX_REASONS} others" * (len(reasons) > MAX_REASONS)
    )
    return f"no representations, as no layer has a value for each sample: {shown}"


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Raise errors of the argument ``net`` as those of another."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(error).startswith("net"):
            raise type(error)(f"{name}{str(error).removeprefix('net')}") from error
        raise


def dataset(a: Seen, b: Seen) -> tuple[xr.Dataset, list[dict[str, str]]]:
    """Return the similarities over (layer_a, layer_b), the use of widths, the changes of the outputs, and notes."""
    import xarray as xr

    notes = []
    found = {name: np.full((len(a.names), len(b.names)), math.nan) for name in ("cka", "cka_debiased", "cca")}
    notes += [{"name": letter, "note": text} for letter, one in (("a", a), ("b", b)) for text in one.left_out]
    places = [[i for i, k in enumerate(one.grams) if k is not None] for one in (a, b)]
    first, second = ([k for k in one.grams if k is not None] for one in (a, b))
    known = np.ix_(*places)
    notes += few_samples(a.samples, dict(enumerate((*a.use, *b.use))))
    if a.samples < 2:
        notes.append({"name": "x", "note": "one sample: representations have no variation, and no CKA"})
    else:
        found["cka"][known] = similarity.cka_matrix(first, second)
        u, v = ([similarity.components(k) for k in grams] for grams in (first, second))
        found["cca"][known] = np.array([[similarity.mean_correlation(p, q) for q in v] for p in u]).reshape(
            len(first), len(second)
        )
        if a.samples < 4:
            notes.append({"name": "x", "note": f"{a.samples} samples: the debiased CKA needs 4"})
        else:
            found["cka_debiased"][known] = similarity.cka_matrix(first, second, debiased=True)
        for letter, one in (("a", a), ("b", b)):
            constant = [name for name, k in zip(one.names, one.grams, strict=True) if k is not None and not k.any()]
            if constant:
                notes.append({"name": ", ".join(constant), "note": f"constant in {letter}: no CKA"})
    variables: dict[str, Any] = {name: (("layer_a", "layer_b"), values) for name, values in found.items()}
    for letter, one in (("a", a), ("b", b)):
        variables |= {f"{name}_{letter}": (f"layer_{letter}", column) for name, column in _columns(one.use).items()}
    names = {"layer_a": np.array(a.names, dtype=str), "layer_b": np.array(b.names, dtype=str)}
    attrs: dict[str, Any] = {"samples": a.samples}
    if a.output is None or b.output is None:
        pass  # late, which a note says
    elif a.output.shape == b.output.shape:
        attrs |= _change(a.output, b.output, ROUNDING * a.precision)
    else:
        text = f"shapes {tuple(a.output.shape[1:])} and {tuple(b.output.shape[1:])}: no change"
        notes.append({"name": "outputs", "note": text})
    return xr.Dataset(variables, names, attrs), notes


def _columns(used: Sequence[LayerUse]) -> dict[str, np.ndarray]:
    columns = {
        "units": [use.units or math.nan for use in used],
        "dimension_95": [use.dimensions[0] for use in used],
        "dimension_99": [use.dimensions[1] for use in used],
        "dead_units": [use.dead if use.units else math.nan for use in used],
    }
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def _change(a: Tensor, b: Tensor, rtol: float) -> dict[str, float]:
    """Return the change of the outputs over their norm, and over their spread where it exceeds ``rtol`` of the norm."""
    moved, size, spread = (float(values.norm()) for values in (b - a, a, a - a.mean(0)))
    found = {"output_change": moved / size} if size > 0 else {}
    return found | ({"output_change_of_spread": moved / spread} if spread > rtol * size else {})
