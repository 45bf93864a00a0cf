"""How much of its width each layer of a network uses on data: dimensions of centered activations and dead units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnrank.measures.accumulating import Pieces
from bnrank.measures.usage import FEW, LEAST, SHARES, dimensions
from bnrank.networks.reading import Layer, Reading, Taker

NUMBERS = ("units", "dimension_95", "dimension_99", "dead_units")
POSITIONS = 64  # of one sample, in an image or a sequence
ROUNDING = 100  # units in the last place within which activations of equal rows can differ
TOO_FEW = f"not estimated where fewer than {LEAST} rows (samples, or positions) vary in as many dimensions as they can"
UNKNOWN = (math.nan,) * len(SHARES)
MAX_ENTRIES = 2**25  # of a covariance matrix, or of the rows of few samples: 256 MiB


@dataclass(frozen=True)
class LayerUse:
    """What one layer uses.

    Attributes
    ----------
    units : int
        The width: features, or channels.
    dimensions : tuple of float
        Dimension of the centered activations at 95 and 99 percent of the variance, corrected for few samples; NaN where
        it is not computed, or cannot be estimated from fewer than 10 rows.
    dead : float
        Number of units that are 0 on all samples and positions; NaN for one sample with one position.
    note : str
        Why a dimension is missing, other than for few rows.
    """

    units: int
    dimensions: tuple[float, ...]
    dead: float
    note: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers, by variable."""
        return dict(zip(NUMBERS, map(float, (self.units, *self.dimensions, self.dead)), strict=True))


class _Rows:
    """Statistics of ``samples`` rows that come in blocks: what varies, and the spectrum of the centered rows.

    Means are combined by the formula of Chan, Golub and LeVeque (1979), which subtracts no large numbers.
    """

    def __init__(self, units: int, samples: int) -> None:
        self.units, self.samples, self.count, self.precision = units, samples, 0, 0.0
        self.low = torch.full((units,), math.inf, dtype=torch.float64)
        self.high, self.mean = -self.low, torch.zeros(units, dtype=torch.float64)
        self.centered = Pieces("qr" if samples < units else "gram")
        self.is_too_large = units * min(units, samples) > MAX_ENTRIES

    def add(self, values: Tensor) -> None:
        """Add activations (n, places, units)."""
        low, high = (side.cpu().double() for side in torch.aminmax(values.flatten(0, 1), dim=0))
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.precision = torch.finfo(values.dtype).eps
        if self.is_too_large:
            return
        places = torch.linspace(0, values.shape[1] - 1, min(values.shape[1], POSITIONS)).round().long()
        rows = values[:, places.to(values.device)].flatten(0, 1).to(torch.float64)
        mean, count = rows.mean(0), self.count + len(rows)
        shift = mean - self.mean.to(mean.device)
        self.centered.add(torch.cat([rows - mean, math.sqrt(self.count * len(rows) / count) * shift[None]]))
        self.mean, self.count = self.mean.to(mean.device) + len(rows) / count * shift, count

    def use(self) -> LayerUse:
        """Return the result for all rows so far."""
        dead = float(((self.low == 0) & (self.high == 0)).sum()) if self.samples > 1 else math.nan
        if not self.units or self.is_too_large or self.count < 2:
            return self._without_dimensions(dead)
        values = torch.full((1,), math.inf)
        with suppress(ValueError):  # activations that are not finite
            values = self.centered.singular_values().square().cpu()
        if not bool(torch.isfinite(values).all()):
            return LayerUse(self.units, UNKNOWN, dead, "dimension: activations, or their squares, are not finite")
        values = torch.where(values > 1e-14 * values.max() * len(values), values, 0.0)  # rounding of equal rows
        varying = self.varying()
        values = values[: min(self.count - 1, varying)]
        return LayerUse(self.units, dimensions(values, self.count, max(1, varying)), dead)

    def _without_dimensions(self, dead: float) -> LayerUse:
        """Return the result where there are no units, or too many, or where a single row has no variance."""
        if not self.units:
            return LayerUse(0, (0,) * len(SHARES), 0)
        note = "dimension and dead units: one sample has no variance"
        if self.is_too_large:
            note = f"dimension: {self.units} units need more than {MAX_ENTRIES} numbers"
        return LayerUse(self.units, UNKNOWN, dead, note)

    def varying(self) -> int:
        """Return how many units vary; 0 where none does by more than rounding, which depends on the rows in a block.

        Rounding is in proportion to the units themselves, or to most units of the layer: not to a few large ones.
        """
        sizes, moved = torch.maximum(self.low.abs(), self.high.abs()), self.high - self.low
        rounding = ROUNDING * self.precision * sizes.clamp(min=float(sizes.median()))
        return int((moved > 0).sum()) if bool((moved > rounding).any()) else 0


def few_samples(samples: int, used: Mapping[Any, LayerUse]) -> list[dict[str, str]]:
    """Return notes on dimensions that are estimated from few samples, fewer than 50.

    Examples
    --------
    >>> few_samples(9, {"a": LayerUse(5, (3, 4), 0)})
    [{'name': 'dimensions', 'note': 'from 9 samples; with fewer than 50 they can be several times too large'}]
    """
    texts = []
    if any(math.isfinite(d) for use in used.values() for d in use.dimensions):
        texts.append(f"from {samples} samples; with fewer than {FEW} they can be several times too large")
    unknown = (use for use in used.values() if use.units > 0 and not use.note)
    if any(math.isnan(d) for use in unknown for d in use.dimensions):
        texts.append(TOO_FEW)
    return [{"name": "dimensions", "note": text} for text in texts]


class Uses(Taker):
    """Statistics of the activations of every layer, as blocks of samples come."""

    def __init__(self, reading: Reading, samples: int) -> None:
        self.layers, self.samples = reading.layers, samples
        self.found: dict[str, _Rows] = {}

    def activations(self, layer: int, values: Tensor) -> None:
        """Add a block."""
        own, reader = self.layers[layer], self.layers[min(layer + 1, len(self.layers) - 1)]
        rows = _by_unit(values, own, own if own.apart else reader)
        if own.name not in self.found:
            self.found[own.name] = _Rows(rows.shape[2], self.samples * min(rows.shape[1], POSITIONS))
        self.found[own.name].add(rows)

    def use(self, over: Callable[[], bool] = lambda: False) -> dict[str, LayerUse]:
        """Return what each layer uses, without what remains when ``over()``."""
        return {layer.name: self.found.pop(layer.name).use() for layer in self.layers if not over()}


def _by_unit(values: Tensor, own: Layer, reader: Layer) -> Tensor:
    """Return activations as (n, places, units): channels come second where a convolution reads them, else last.

    Where they were flattened, or leave the module, the reading tells where they are.
    """
    if values.ndim == 2 and own.unflattened and math.prod(own.unflattened) == values.shape[1]:
        values = values.reshape(len(values), *own.unflattened)
    dim = 0 if own.is_convolution or own.is_transposed else -1
    if own.output_shape and own.output_shape[dim] == 1 and values.shape[1:].numel() == math.prod(own.output_shape):
        return values.reshape(len(values), -1, 1)  # a single unit, whose dimension may have been left out
    if values.ndim < 3:
        return values.reshape(len(values), 1, -1)
    units_dim = own.units_dim
    if units_dim is None:
        units_dim = 0 if "conv" in reader.kind else values.ndim - 2
    values = values.movedim(1 + units_dim, -1)
    return values.reshape(len(values), -1, values.shape[-1])
