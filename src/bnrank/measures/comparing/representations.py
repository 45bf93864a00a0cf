"""Representations of two networks on the same samples: similarities of all layers."""

from __future__ import annotations

import functools
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
from bnrank.measures.usage import FEW
from bnrank.networks.functional import Functional, check_finite, example
from bnrank.networks.reading import Reading, Taker, leaving_out, named, read_function, stream

if TYPE_CHECKING:
    import xarray as xr

LONG_NAMES = {
    "cka": "linear CKA of the centered activations (Kornblith et al., 2019)",
    "cka_debiased": "linear CKA by the unbiased estimator of HSIC (Song et al., 2012)",
    "cca": "mean canonical correlation of the components with 99 percent of variance (SVCCA)",
}
for _n in "ab":
    LONG_NAMES[f"units_{_n}"] = f"width of the layer of {_n}: features, or channels of an image"
    LONG_NAMES[f"dimension_95_{_n}"] = f"dimension of the centered activations of {_n} at 95 percent of the variance"
    LONG_NAMES[f"dimension_99_{_n}"] = f"dimension of the centered activations of {_n} at 99 percent of the variance"
    LONG_NAMES[f"dead_units_{_n}"] = f"number of units of {_n} that are 0 on all samples; NaN for a single row"
OUTPUT = -1  # in place of a layer
UNKNOWN = LayerUse(0, (math.nan, math.nan), math.nan)  # of a layer that was not reached in time


@dataclass(frozen=True)
class Seen:
    """What one network does on samples: its layers, centered Gram matrices, use of its width, and outputs.

    What was not reached in time is None, or NaN, and ``left_out`` says which it is, or why no layer has activations.
    """

    names: tuple[str, ...]
    grams: tuple[Tensor | None, ...]
    use: tuple[LayerUse, ...]
    output: Tensor | None
    samples: int
    left_out: tuple[str, ...] = ()


class _Rows(Taker):
    """The activations, (N, features), of as many layers as fit in memory together, at least of one, and the outputs."""

    def __init__(self, layers: Sequence[int], samples: int) -> None:
        self.layers, self.samples, self.room = set(layers), samples, MAX_TOGETHER
        self.blocks: dict[int, list[Tensor]] = {}

    def activations(self, layer: int, values: Tensor) -> None:
        """Keep a block of one of the layers, unless it has to wait for another pass."""
        needed = values[0].numel() * self.samples
        if layer in self.layers - self.blocks.keys() and (needed <= self.room or not self.blocks or layer == OUTPUT):
            self.blocks[layer] = []
            self.room -= needed
        if layer in self.blocks:
            self.blocks[layer].append(values.reshape(len(values), -1).clone())

    def output(self, values: Tensor) -> None:
        """Keep a block of the outputs."""
        self.activations(OUTPUT, values)


class View:
    """A network and the samples that it is looked at on, read and checked; ``name`` is for errors."""

    def __init__(
        self, net: object, x: Any, name: str, *, max_samples: int, chunk_size: int, dtype: torch.dtype
    ) -> None:
        self.net, self.name = validation.kind(net, name, nn.Module), name  # tensors alone cannot be run
        self.chunk_size = chunk_size
        with _named(name):
            samples = example(self.net, x, inputs=True)
            rows = evenly_spaced(len(samples), max_samples)
            self.samples = samples[rows.to(samples.device)]
            check_finite(self.net)
            self.function = Functional(self.net, dtype, whole=self.samples)
            self.reading = read_function(self.function, self.samples)

    def seen(self, deadline: Deadline) -> Seen:
        """Return what the network does on the samples, as far as the time suffices.

        The activations of as many layers as fit in 128 MiB are in memory together, or those of one layer. Layers that
        only some samples reach are left out.
        """
        with _named(self.name):
            measure = functools.partial(self._seen, deadline=deadline)
            return leaving_out(self.function, self.samples, self.reading, measure)[0]

    def _seen(self, reading: Reading, deadline: Deadline) -> Seen:
        layers, count = reading.layers, len(self.samples)
        passes: dict[str, Any] = {"chunk_size": self.chunk_size, "layers": False, "over": deadline.over}
        uses, waiting = Uses(reading, count), [*range(len(layers)), OUTPUT]
        grams: dict[int, Tensor] = {}
        output = None
        while waiting:
            rows = _Rows(waiting, count)
            takers: list[Taker] = [rows, uses] if output is None else [rows]
            if deadline.over() or stream(self.function, self.samples, reading, takers, **passes) < count:
                break
            waiting = [i for i in waiting if i not in rows.blocks]
            output = torch.cat(rows.blocks.pop(OUTPUT)).cpu() if output is None else output
            for i in sorted(rows.blocks):
                values = torch.cat(rows.blocks.pop(i))
                if not bool(torch.isfinite(values).all()):
                    what = named(layers, i, "activations")
                    raise ValueError(f"net: {what}: got NaN or infinite entries, expected finite ones")
                grams[i] = similarity.gram(values)
        use = {} if output is None else uses.use()
        missed = [layer.name for i, layer in enumerate(layers) if i not in grams]
        left_out = [f"activations of {', '.join(missed)}: {deadline.missed}"] if missed else []
        if not layers:
            reasons = [str(part) for part in reading.skipped] or ["it has no weight of a layer"]
            left_out.append(f"no representations, as no layer has a value for each sample: {'; '.join(reasons[:3])}")
            left_out += [f"outputs: {deadline.missed}"] if output is None else []
        names = tuple(layer.name for layer in layers)
        used = tuple(use.get(name, UNKNOWN) for name in names)
        return Seen(names, tuple(grams.get(i) for i in range(len(layers))), used, output, count, tuple(left_out))


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

    notes = [{"name": letter, "note": text} for letter, seen in (("a", a), ("b", b)) for text in seen.left_out]
    notes += few_samples(a.samples, dict(enumerate((*a.use, *b.use)))) if a.samples < FEW else []
    grams = [
        [torch.zeros(a.samples, a.samples, dtype=torch.float64) if k is None else k for k in seen.grams]
        for seen in (a, b)
    ]
    shape = len(a.names), len(b.names)
    components = [[similarity.components(k) for k in side] for side in grams]
    cca = [similarity.mean_correlation(u, v) for u in components[0] for v in components[1]]
    debiased = similarity.cka_matrix(*grams, debiased=True) if a.samples > 3 else np.full(shape, math.nan)
    similarities = {"cka": similarity.cka_matrix(*grams), "cka_debiased": debiased, "cca": np.reshape(cca, shape)}
    data = xr.Dataset({name: (("layer_a", "layer_b"), values) for name, values in similarities.items()})
    data.attrs["samples"] = a.samples
    for letter, seen in (("a", a), ("b", b)):
        data[f"layer_{letter}"] = np.array(seen.names, dtype=str)
        columns = [(use.units or math.nan, *use.dimensions, use.dead) for use in seen.use]
        table = np.array(columns, dtype=float).reshape(-1, 4)
        for name, column in zip(("units", "dimension_95", "dimension_99", "dead_units"), table.T, strict=True):
            data[f"{name}_{letter}"] = f"layer_{letter}", column
    if a.output is not None and b.output is not None and a.output.shape == b.output.shape:
        data.attrs |= _change(a.output, b.output)
    return data, notes


def _change(a: Tensor, b: Tensor) -> dict[str, float]:
    """Return the change of the outputs over their norm, and over their spread where it exceeds rounding."""
    rounding = ROUNDING * torch.finfo(a.dtype).eps if a.is_floating_point() else 0.0
    a, b = a.double(), b.double()
    moved, size, spread = (float(values.norm()) for values in (b - a, a, a - a.mean(0)))
    change = {"output_change": moved / size} if size > 0 else {}
    return change | ({"output_change_of_spread": moved / spread} if spread > rounding * size else {})
