"""Single layers of low rank on the data, as two."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from bnrank.discovery.compression.chain import Parts, is_linear, run
from bnrank.discovery.compression.judging import Judge, channel_rows
from bnrank.discovery.compression.low_rank import AffineFit, fit, pointwise_pair
from bnrank.discovery.compression.pricing import Counts, cheapest, share

__all__ = ["factored"]

RIDGE = 1e-10  # of what a layer gives now against what it gave: nearly the same
ROWS = 8192  # rows (samples and places of a convolution) that one fit is made on


def factored(judge: Judge, parts: Parts, threshold: float, whole: Counts) -> tuple[Parts, list[tuple[int, int]]]:
    """Replace layers by two where that saves more than the change of the output is worth.

    A layer a -> W a + b whose values on the samples lie near c + B t, t in R^k, becomes a -> A W a and t -> c' + B t,
    with t chosen in the metric of the output. For a convolution t has k channels and the second layer is a convolution
    with one tap. Which rank is best is decided by :func:`~bnrank.discovery.compression.pricing.cheapest`, with changes
    to first order; layers are done in order, each fitted on what reaches it then.

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
                    step = max(1, len(z1) // ROWS)
                    fitted = fit(z1[::step], z2[::step], metrics[i], RIDGE)
                    k = _rank(part, fitted, out[0].numel(), threshold * judge.scale, whole)
                    if k is not None:
                        choice = pointwise_pair(part, fitted, k)
                        replaced.append((number, k))
            new += choice
            value = run(choice, value)
    return tuple(new), replaced


def _rank(part: Any, fitted: AffineFit, entries: int, threshold: float, whole: Counts) -> int | None:
    """Return the rank that a layer, which gives so many entries per sample, is best cut to; None to leave it."""
    n, taps = len(part.weight), part.weight[0].numel()
    places = entries / n
    bias = 0 if part.bias is None else n
    now = share((n * taps + bias, n * taps * places, 1), whole)
    each = share((taps + n, (taps + n) * places, 0), whole)
    ranks = torch.arange(1, len(fitted.tails), dtype=torch.float64)
    prices = torch.cat([torch.tensor([now], dtype=torch.float64), ranks * each + share((n, 0, 2), whole)])
    tails = torch.cat([fitted.tails.new_zeros(1), fitted.tails[1:]])
    return cheapest(prices, tails, threshold) or None


def _alone(parts: Parts, i: int) -> bool:
    """Say whether no linear part stands right before or after part i: such two are a factorization already."""
    around = itertools.chain(parts[max(i - 1, 0) : i], parts[i + 1 : i + 2])
    return not any(is_linear(part) for part in around)
