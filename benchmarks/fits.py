"""Fits of a table in one process and in two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.rows import Row
from benchmarks.timing import in_turn, seconds
from bnrank.discovery import BottleneckRegressor
from bnrank.tasks import low_rank_map

__all__ = ["measure"]

SEED = 0


def measure(quick: bool) -> Iterator[Row]:
    """Time fits of a table of 500 x 50 -> 50, rank 4, with 10 percent noise, on one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = low_rank_map(n=500, d_in=50, d_out=50, latent=8, rank=4, seed=SEED, noise=0.1, n_test=0)
        x, y = task.x.numpy(), task.y.numpy()
        found: dict[int, np.ndarray] = {}

        def fit(processes: int) -> float:
            made = BottleneckRegressor(n_jobs=processes)
            took = seconds(lambda: made.fit(x, y))
            found[processes] = made.predict(x)
            return took

        times = in_turn({"one": lambda: fit(1), "two": lambda: fit(2)}, 1 if quick else 3)
    finally:
        torch.set_num_threads(before)
    same = "the same bits" if np.array_equal(found[1], found[2]) else "other bits"
    name = "fit of 500 x 50 -> 50"
    yield Row(
        "fits", f"{name}, n_jobs=2", "n_jobs=1", times.ratio("one", "two"), note=f"{same}; workers were started before"
    )
    for label, which in (("n_jobs=1", "one"), ("n_jobs=2", "two")):
        yield Row("fits", f"{name}, {label}", "", times.spread(lambda t, which=which: t[which]), unit="s")  # type: ignore[misc]
