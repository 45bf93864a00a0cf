"""Measuring cells in this process, or in several that begin as new ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from threadpoolctl import threadpool_limits

__all__ = ["measured"]

Cell = dict[str, Any]
Measure = Callable[[Cell], dict[str, Any]]


def measured(
    cells: list[Cell], workers: int, seconds: float, measure: Measure
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Yield cells and results as they are ready, each measured on one thread; after ``seconds`` none is begun."""
    ends = time.time() + seconds
    if workers == 1:
        for cell in cells:
            if (result := _within(measure, cell, ends)) is not None:
                yield cell, result
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # of the new processes
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        running = {pool.submit(_within, measure, cell, ends): cell for cell in cells}
        for future in as_completed(running):
            if (result := future.result()) is not None:
                yield running[future], result
    finally:
        pool.shutdown(cancel_futures=True)


def _within(measure: Measure, cell: Cell, ends: float) -> dict[str, Any] | None:
    """Return the result of a cell, or None after the time is over."""
    if time.time() >= ends:
        return None
    with threadpool_limits(1):
        return measure(cell)
