"""Whether layers with small weights contract what passes a network, as far as data show it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnrank._core.sampling import evenly_spaced
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import Reading, Taker, UnobservedError, stream

MAX_SAMPLES = 64  # that are looked at
INTEGERS = 1.0  # the variation of integers, such as tokens: that of vectors with a 1 at their place, at most
ROUNDING = 16.0  # a variation up to this many units of the last place of the values may be rounding


class Variations(NamedTuple):
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


def variations(function: Functional, x: Samples, reading: Reading, start: int, chunk_size: int = 4096) -> Variations:
    """Return how much what enters layer ``start``, counted from 1, varies over samples, and what comes after it.

    Where layers have no values, x stands for what enters, and the outputs for what comes after.

    Examples
    --------
    >>> import bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    >>> for layer, scale in zip(net, (0.25, 2.0)):
    ...     _ = torch.nn.init.constant_(layer.weight, scale)
    >>> variations(Functional(net), torch.tensor([[2.0], [-2.0]]), bnrank.networks.read(net), 1)  # then 0.5 and 1
    Variations(before=2.0, after=1.0)
    """
    few = x[evenly_spaced(len(x), MAX_SAMPLES).to(x.device)]
    passes: dict[str, Any] = {"chunk_size": chunk_size, "layers": False}
    spreads = _Spreads(len(reading.layers))
    try:
        stream(function, few, reading, [spreads], **passes)
    except UnobservedError:  # only some samples reach a layer
        spreads = _Spreads(0)
        stream(function, few, replace(reading, layers=(), holders={}), [spreads], **passes)
    entering = spreads.entering[start - 1 :]
    if not entering:
        entering = [_Spread()]
        entering[0].add(few if isinstance(few, Tensor) else torch.arange(len(few)))  # several tensors count as integers
    varies = _differ(few) and entering[0].distance > ROUNDING * entering[0].eps * entering[0].size
    after = max(spread.variation for spread in (*entering[1:], spreads.leaving))
    return Variations(entering[0].variation if varies else 0.0, after)


def _differ(x: Samples) -> bool:
    """Return whether not all samples are the same; of equal ones, values may differ by any rounding."""
    tensors, dim = (x.tensors, x.dim) if isinstance(x, Inputs) else ([x], 0)
    return any(not torch.equal(tensor, tensor.narrow(dim, 0, 1).expand_as(tensor)) for tensor in tensors)


class _Spread:
    """The distances of values from their mean over samples, which come in blocks."""

    def __init__(self) -> None:
        self.count, self.distance, self.size, self.eps = 0, 0.0, 0.0, 0.0
        self.mean, self.integers = torch.zeros(()), False

    def add(self, values: Tensor) -> None:
        """Add a block, (n, ...): its distances from its mean, and that of its mean from the one so far."""
        values = torch.view_as_real(values) if values.is_complex() else values
        self.integers = not values.is_floating_point()
        self.eps = 0.0 if self.integers else torch.finfo(values.dtype).eps
        flat = values.detach().double().reshape(len(values), -1)
        mean, total = flat.mean(0), self.count + len(flat)
        step = mean - self.mean
        between = float(step.norm()) * math.sqrt(self.count * len(flat) / total)
        self.distance = math.hypot(self.distance, float((flat - mean).norm()), between)
        self.size = math.hypot(self.size, float(flat.norm()))
        self.mean, self.count = self.mean + step * (len(flat) / total), total

    @property
    def variation(self) -> float:
        """The root mean square of the distances; of integers that differ that of the vectors that they stand for."""
        if self.integers:
            return INTEGERS if self.distance else 0.0
        return self.distance / math.sqrt(self.count)


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
