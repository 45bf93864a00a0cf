"""The three ensembles that speed is measured on, and how bnrank trains them."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass
from typing import Any

import bnrank
from bnrank.tasks import low_rank_map
from bnrank.training import Adam

__all__ = ["RIDGE", "THREE", "Configuration"]

RIDGE = 1e-3
LR = 3e-3


@dataclass(frozen=True)
class Configuration:
    """An ensemble of MLPs with 20 inputs and outputs, trained on a low-rank map with Adam, step size 3e-3.

    Attributes
    ----------
    members, depth, width, n : int
        Size of the ensemble, L, hidden width, number of samples.
    steps : int
        Steps in one timing, about a second's worth.
    """

    members: int
    depth: int
    width: int
    n: int
    steps: int

    def __str__(self) -> str:
        return f"{self.members} × depth {self.depth} × width {self.width}, N {self.n}"

    @property
    def widths(self) -> list[int]:
        """n_0, ..., n_L."""
        return [20, *[self.width] * (self.depth - 1), 20]

    @property
    def flops(self) -> float:
        """Floating-point operations of one step of all members, matrix products alone.

        Three products per layer: forward, gradient of the weights, gradient of the inputs (not in the first layer).
        """
        sizes = [a * b for a, b in itertools.pairwise(self.widths)]
        return 2.0 * self.n * self.members * (3 * sum(sizes) - sizes[0])

    @property
    def task(self) -> bnrank.Task:
        """The data."""
        return low_rank_map(n=self.n, n_test=0)

    def net(self, seed: int = 0) -> bnrank.MLP:
        """Return a network as member ``seed`` starts."""
        return bnrank.MLP(self.widths, seed=seed)

    def train(self, steps: int, **options: Any) -> bnrank.Run:
        """Train with Adam, recording the first and the last step alone unless told otherwise."""
        settings: dict[str, Any] = {"members": self.members, "seed": 0, "ridge": RIDGE, "optimizer": Adam(LR)}
        settings |= {"record": max(1, steps), "progress": False}
        return bnrank.train(self.net(), self.task, steps=steps, **settings | options)

    def train_step(self) -> float:
        """Return the time of one step of all members: that of steps + 1 steps less that of 1, over steps.

        So what a call costs before and after its steps (checks, the first and the last row) is left out, as it is for
        the other side.
        """
        return (self._seconds(self.steps + 1) - _fixed(self)) / self.steps

    def _seconds(self, steps: int) -> float:
        began = time.perf_counter()
        self.train(steps)
        return time.perf_counter() - began


@functools.cache
def _fixed(configuration: Configuration) -> float:
    """Return the least time that a call with one step was seen to take."""
    return min(configuration._seconds(1) for _ in range(3))


THREE = (
    (Configuration(16, 10, 100, 200, steps=60), 5.0),
    (Configuration(16, 6, 50, 100, steps=300), 8.0),
    (Configuration(4, 25, 200, 1000, steps=5), 1.0),
)
"""Each with how many times faster than a plain loop it has to be."""
