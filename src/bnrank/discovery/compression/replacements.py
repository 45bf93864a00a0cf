"""Replacements of layers by maps of low rank: across depth, and layer by layer."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch

from bnrank.discovery.compression.chain import Parts, convolution, is_linear, run
from bnrank.discovery.compression.costs import Counts, cheapest, cost, share
from bnrank.discovery.compression.fits import AffineFit, equivariant_fit, fit, pair, pointwise_pair
from bnrank.discovery.compression.judging import Judge, channel_rows

TRIES = 5  # ranks tried for a pair of layers
AHEAD = 2  # layers tried beyond the first that fails
MAX_SVD = 4e8  # N n1 min(N, n1), the cost of an SVD: at most seconds


@dataclass(frozen=True)
class Collapse:
    """A run of parts replaced by an affine map of rank k.

    Attributes
    ----------
    first, last : int
        Linear parts, counted from 1: the map includes both.
    rank : int
        k.
    by : str
        "samples", or "frequency" where the map was fitted frequency by frequency.
    parts : tuple of torch.nn.Module
        The whole segment afterwards.
    change : float
        Measured change of the output.
    cost : float
        Cost of the whole segment, see :func:`~bnrank.discovery.compression.costs.cost`.
    """

    first: int
    last: int
    rank: int
    by: str
    parts: Parts
    change: float
    cost: float


class Collapsing:
    """The search for runs of layers that can be replaced, with cached fits.

    Parameters
    ----------
    judge : Judge
        Measures changes.
    parts : tuple of torch.nn.Module
        Parts of the segment.
    whole : tuple of int
        The reference of relative costs, see :func:`~bnrank.discovery.compression.costs.counts`.
    """

    def __init__(self, judge: Judge, parts: Parts, whole: Counts) -> None:
        self.judge, self.parts, self.whole = judge, parts, whole
        self.places = [i for i, part in enumerate(parts) if is_linear(part)]
        self.values, self.metrics = judge.trace(parts), judge.metrics(parts)
        self.now = cost(parts, judge.x, whole)
        self.nearest = math.inf
        """Smallest measured change of the output by a replacement of at least two layers."""
        self.skipped = 0
        """Number of runs of layers with too many values for a fit."""
        self._fitted: dict[tuple[int, int], tuple[str, AffineFit, float] | None] = {}
        self._tried: dict[tuple[int, int, int], Collapse | None] = {}

    def best(self, limit: float) -> Collapse | None:
        """Return the cheapest replacement of a run of layers with a change of at most ``limit``; None without any.

        For every first layer p the last one q increases while a rank is found; for p + 1 it starts there, since a run
        inside a replaceable one is replaceable too. For p and q the smallest rank within the limit that is cheaper than
        the layers is used.
        """
        found: list[Collapse] = []
        reached = 1
        for p in range(len(self.places) - 1):
            misses = 0
            for q in range(max(p + 1, reached), len(self.places)):
                best = self._smallest(p, q, limit)
                if best is not None:
                    found.append(best)
                    reached, misses = q, 0
                else:
                    misses += 1
                if misses > AHEAD:
                    break
        return min(found, key=lambda c: (c.cost, c.change), default=None)

    def _smallest(self, p: int, q: int, limit: float) -> Collapse | None:
        """Return the replacement of linear parts p to q (from 0) of smallest rank within the limit."""
        if (p, q) not in self._fitted:
            self._fitted[p, q] = self._fit(self.places[p], self.places[q])
        fit_ = self._fitted[p, q]
        if fit_ is None:
            return None
        _, fitted, size = fit_
        i, j = self.places[p], self.places[q]
        old = cost(self.parts[i : j + 1], self.values[i], self.whole)
        entries = self.values[i][0].numel() + self.values[j + 1][0].numel()
        affordable = int(old / share((1, 1, 0), self.whole) / entries)  # larger ranks cost more than the layers
        rank = len(fitted.reading)
        for k in _schedule(min(int((fitted.tails > limit * size).sum()), rank), min(affordable, rank)):
            if (p, q, k) not in self._tried:
                self._tried[p, q, k] = self._replaced(p, q, k)
            found = self._tried[p, q, k]
            if found is not None:
                self.nearest = min(self.nearest, found.change)
                if found.change <= limit:
                    return found
        return None

    def _replaced(self, p: int, q: int, k: int) -> Collapse | None:
        """Return the replacement of rank k; None where it is no cheaper."""
        i, j, fit_ = self.places[p], self.places[q], self._fitted[p, q]
        assert fit_ is not None
        a, z2 = self.values[i], self.values[j + 1]
        middle = pair(self.parts[i], tuple(a.shape[1:]), tuple(z2.shape[1:]), fit_[1], k)
        new = (*self.parts[:i], *middle, *self.parts[j + 1 :])
        price = cost(new, self.judge.x, self.whole)
        return Collapse(p + 1, q + 1, k, fit_[0], new, self.judge(new), price) if price < self.now else None

    def _fit(self, i: int, j: int) -> tuple[str, AffineFit, float] | None:
        """Return how the output of part j was fitted to that of part i, the fit, and the scale of its tails."""
        a, z1, z2 = self.values[i], self.values[i + 1], self.values[j + 1]
        smallest = min(len(a), z1[0].numel())
        if a.ndim < 2 or len(a) * smallest * max(z1[0].numel(), z2[0].numel()) > MAX_SVD:
            self.skipped += 1
            return None
        if convolution(self.parts[i]) and convolution(self.parts[j]):
            equivariant = equivariant_fit(self.parts[i : j + 1], z1, z2)
            if equivariant is not None:
                return "frequency", equivariant, float(equivariant.tails[0])
        metric = self.metrics.get(j) if z2.ndim == 2 else None
        fitted = fit(z1.flatten(1), z2.flatten(1), metric)
        return "samples", fitted, float(fitted.tails[0]) if metric is None else self.judge.scale


def _schedule(smallest: int, largest: int) -> list[int]:
    """Return ranks to try, ascending in growing steps."""
    ranks: list[int] = []
    step = 1
    k = smallest
    while k <= largest and len(ranks) < TRIES:
        ranks.append(k)
        k, step = k + step, step if len(ranks) < 3 else 2 * step
    return ranks


RIDGE = 1e-10  # in fits of a layer's original output by its present one, which are nearly equal
MAX_ROWS = 8192  # (samples and positions of a convolution) of one fit


def factored(judge: Judge, parts: Parts, scale: float, whole: Counts) -> tuple[Parts, list[tuple[int, int]]]:
    """Return the parts with layers replaced by two where that saves more than the change of the output is worth.

    A layer a -> W a + b whose values on the samples lie near c + B t, t in R^k, becomes a -> A W a and t -> c' + B t,
    with t chosen in the metric of the output. For a convolution t has k channels and the second layer is a convolution
    with one tap. :func:`~bnrank.discovery.compression.costs.cheapest` decides the rank, with changes to first order;
    layers are done in order, each fitted on its input at that point.

    Returns
    -------
    tuple of torch.nn.Module
        The parts.
    list of (int, int)
        Linear parts, counted from 1 as they were, and the rank of each that was replaced.
    """
    old, metrics = judge.trace(parts), judge.metrics(parts)
    new: list[torch.nn.Module] = []
    replaced = []
    value, number = judge.x, 0
    alone = [_alone(parts, i) for i in range(len(parts))]
    with torch.no_grad():
        for i, part in enumerate(parts):
            choice: Parts = (part,)
            if is_linear(part):
                number += 1
                if i in metrics and alone[i]:
                    out = part(value)
                    z1, z2 = channel_rows(part, out), channel_rows(part, old[i + 1])
                    step = max(1, len(z1) // MAX_ROWS)
                    fitted = fit(z1[::step], z2[::step], metrics[i], RIDGE)
                    k = _rank(part, fitted, out[0].numel(), scale * judge.scale, whole)
                    if k is not None:
                        choice = pointwise_pair(part, fitted, k)
                        replaced.append((number, k))
            new += choice
            value = run(choice, value)
    return tuple(new), replaced


def _rank(part: Any, fitted: AffineFit, entries: int, scale: float, whole: Counts) -> int | None:
    """Return the best rank of a layer with the given number of output entries; None to leave it."""
    n, taps = len(part.weight), part.weight[0].numel()
    places = entries / n
    bias = 0 if part.bias is None else n
    now = share((n * taps + bias, n * taps * places, 1), whole)
    each = share((taps + n, (taps + n) * places, 0), whole)
    ranks = torch.arange(1, len(fitted.tails), dtype=torch.float64)
    prices = torch.cat([torch.tensor([now], dtype=torch.float64), ranks * each + share((n, 0, 2), whole)])
    tails = torch.cat([fitted.tails.new_zeros(1), fitted.tails[1:]])
    return cheapest(prices, tails, scale) or None


def _alone(parts: Parts, i: int) -> bool:
    """Return whether no linear part is adjacent to part i: two such are a factorization already."""
    around = itertools.chain(parts[max(i - 1, 0) : i], parts[i + 1 : i + 2])
    return not any(is_linear(part) for part in around)
