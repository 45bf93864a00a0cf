"""Whether layers with small weights contract what passes a network, as far as data show it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core.sampling import evenly_spaced
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import Reading, Taker, UnobservedError, stream

MAX_SAMPLES = 64  # that are looked at
INTEGERS = 1.0  # the variation of integers, such as tokens: that of vectors with a 1 at their place, at most
ROUNDING = 16.0  # a variation up to this many units of the last place of the values may be rounding


@dataclass(frozen=True)
class Variations:
    """How much values vary over samples: the root mean square of the distance from the mean.

    Attributes
    ----------
    before : float
        That of what enters a layer; 0 where it does not vary by more than rounding, as for a single sample.
    after : float
        The largest one of what enters later layers and of the outputs.
    """

    before: float
    after: float


def variations(
    net: nn.Module,
    x: Samples,
    reading: Reading,
    start: int,
    *,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
) -> Variations:
    """Return how much what enters layer ``start``, counted from 1, varies over samples, and what comes after it.

    Where layers have no values, x stands for what enters, and the outputs for what comes after.

    Examples
    --------
    >>> import bnrank
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> for layer, scale in zip(net, (0.25, 2.0)):
    ...     _ = nn.init.constant_(layer.weight, scale)
    >>> variations(net, torch.tensor([[2.0], [-2.0]]), bnrank.networks.read(net), 1)     # then 0.5 and 1
    Variations(before=2.0, after=1.0)
    """
    some = x[evenly_spaced(len(x), MAX_SAMPLES).to(x.device)]
    passes: dict[str, Any] = {"chunk_size": chunk_size, "dtype": dtype, "layers": False}
    found = _Spreads(len(reading.layers))
    try:
        stream(net, some, reading, [found], **passes)
    except UnobservedError:  # only some samples reach a layer
        found = _Spreads(0)
        stream(net, some, replace(reading, layers=()), [found], **passes)
    spreads = [*(found.entering[start - 1 :] or [_of(some)]), found.leaving]
    varies = _differ(some) and not spreads[0].is_rounding
    return Variations(spreads[0].variation if varies else 0.0, max(spread.variation for spread in spreads[1:]))


def _differ(x: Samples) -> bool:
    """Return whether not all samples are the same; of equal ones, values may differ by any rounding."""
    tensors, dim = (x.tensors, x.dim) if isinstance(x, Inputs) else ([x], 0)
    return any(not torch.equal(tensor, tensor.narrow(dim, 0, 1).expand_as(tensor)) for tensor in tensors)


class _Spread:
    """The distances of values from their mean over samples, which come in blocks."""

    def __init__(self) -> None:
        self.count, self.distance, self.size, self.eps = 0, 0.0, 0.0, 0.0
        self.mean = torch.zeros(())
        self.integers = False

    def add(self, values: Tensor) -> None:
        """Add a block, (n, ...): its distances from its mean, and that of its mean from the one so far."""
        values = torch.view_as_real(values) if values.is_complex() else values
        flat = values.detach().double().flatten(1) if values.ndim > 1 else values.detach().double()[:, None]
        mean, count, total = flat.mean(0), len(flat), self.count + len(flat)
        between = 0.0
        if self.count:
            step = mean - self.mean
            between = _norm(step) * math.sqrt(self.count * count / total)
            mean = self.mean + step * (count / total)
        self.size = math.hypot(self.size, _norm(flat))
        self.distance = math.hypot(self.distance, _norm(flat - flat.mean(0)), between)
        self.mean, self.count, self.integers = mean, total, not values.is_floating_point()
        self.eps = 0.0 if self.integers else torch.finfo(values.dtype).eps

    @property
    def variation(self) -> float:
        """The root mean square of the distances; of integers that differ that of the vectors that they stand for."""
        if self.integers:
            return INTEGERS if self.distance else 0.0
        return self.distance / math.sqrt(self.count)

    @property
    def is_rounding(self) -> bool:
        """Whether the values differ from their mean by no more than rounding."""
        return self.distance <= ROUNDING * self.eps * self.size


def _of(x: Samples) -> _Spread:
    """Return the spread of samples; several tensors count as integers."""
    found = _Spread()
    found.add(x if isinstance(x, Tensor) else torch.arange(len(x)))
    return found


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))


class _Spreads(Taker):
    """The spread of what enters every layer, and of the outputs."""

    def __init__(self, layers: int) -> None:
        self.entering, self.leaving = [_Spread() for _ in range(layers)], _Spread()

    def inputs(self, layer: int, values: Tensor) -> None:
        """Add a block of what enters a layer."""
        self.entering[layer].add(values)

    def output(self, values: Tensor) -> None:
        """Add a block of the outputs."""
        self.leaving.add(values)
