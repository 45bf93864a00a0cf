"""The machine's own rate of matrix products: the most that dense training could run at."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bnrank.training.ensemble import Workers

__all__ = ["best_rate", "square_rate"]

SECONDS = 0.15  # for each way of multiplying


def best_rate(members: int, width: int, n: int) -> float:
    """Return floating-point operations per second of one hidden layer's three products, the best of three ways.

    The products are those of a step: A W^T, D W and D^T A with A, D of shape (members, n, width) and W of shape
    (members, width, width), the same operands over and over, so that they stay in the cache if they fit. The ways:
    `torch.bmm` over all members; `numpy.matmul` over stacks of members, one stack per thread; `numpy.matmul` member by
    member, the members shared among the threads.
    """
    torch.manual_seed(0)
    a, d, out = (torch.randn(members, n, width) for _ in range(3))
    w, gradient = torch.randn(members, width, width), torch.empty(members, width, width)

    def by_torch() -> None:
        torch.bmm(a, w.mT, out=out)
        torch.bmm(d, w, out=out)
        torch.bmm(d.mT, a, out=gradient)

    def by_numpy(first: int, last: int) -> None:
        A, D, W, O, G = (t[first:last].numpy() for t in (a, d, w, out, gradient))  # noqa: E741
        np.matmul(A, W.swapaxes(1, 2), out=O)
        np.matmul(D, W, out=O)
        np.matmul(D.swapaxes(1, 2), A, out=G)

    flops = 3 * 2.0 * members * n * width * width
    with threadpool_limits(limits=torch.get_num_threads()):
        fastest = _least(by_torch)
    with Workers() as workers:
        for stack in {1, -(-members // workers.threads)}:
            tasks = [functools.partial(by_numpy, i, min(i + stack, members)) for i in range(0, members, stack)]
            fastest = min(fastest, _least(functools.partial(workers.share, tasks)))
    return flops / fastest


def square_rate(size: int = 2000) -> float:
    """Return floating-point operations per second of one large square product, the machine's peak in practice."""
    a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return 2.0 * size**3 / _least(lambda: torch.mm(a, b, out=out))


def _least(function: Callable[[], object]) -> float:
    """Return the least time of one call among those that fit into the time there is, at least five."""
    best, count, began = float("inf"), 0, time.perf_counter()
    while count < 5 or time.perf_counter() - began < SECONDS:
        before = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - before)
        count += 1
    return best
