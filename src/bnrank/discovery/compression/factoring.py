"""Single layers of low rank on the data, as two."""

from __future__ import annotations

import itertools

import torch

from bnrank.discovery.compression.chain import Parts, is_linear, run
from bnrank.discovery.compression.costs import multiply_adds
from bnrank.discovery.compression.judging import Judge, channel_rows
from bnrank.discovery.compression.low_rank import fit, pointwise_pair

__all__ = ["factored"]

RIDGE = 1e-10  # of what a layer gives now against what it gave: nearly the same
ROWS = 8192  # rows (samples and places of a convolution) that one fit is made on


def factored(judge: Judge, parts: Parts, threshold: float) -> tuple[Parts, list[tuple[int, int]]]:
    """Replace layers by two of less multiply-adds where that changes the output by at most ``threshold`` each.

    A layer a -> W a + b whose values on the samples lie near c + B t, t in R^k, becomes a -> A W a and t -> c' + B t,
    with t chosen in the metric of the output. For a convolution t has k channels and the second layer is a convolution
    with one tap. The threshold is to first order; layers are done in order, each fitted on what reaches it then.

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
                    z1, z2 = channel_rows(part, part(value)), channel_rows(part, old[i + 1])
                    step = max(1, len(z1) // ROWS)
                    fitted = fit(z1[::step], z2[::step], metrics[i], RIDGE)
                    k = max(1, int((fitted.tails / judge.scale > threshold).sum()))
                    if k <= len(fitted.reading):
                        two = pointwise_pair(part, fitted, k)
                        work = [
                            sum(multiply_adds(p, run(some[:q], value[:1])) for q, p in enumerate(some))
                            for some in (two, (part,))
                        ]
                        if work[0] < work[1]:
                            choice = two
                            replaced.append((number, k))
            new += choice
            value = run(choice, value)
    return tuple(new), replaced


def _alone(parts: Parts, i: int) -> bool:
    """Say whether no linear part stands right before or after part i: such two are a factorisation already."""
    around = itertools.chain(parts[max(i - 1, 0) : i], parts[i + 1 : i + 2])
    return not any(is_linear(part) for part in around)
