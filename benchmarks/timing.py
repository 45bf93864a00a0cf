"""Timing things in turn: A, B, A, B, ..., and ratios pair by pair."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.rows import Spread

__all__ = ["Rounds", "in_turn", "seconds"]


def seconds(function: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Rounds(list[dict[str, float]]):
    """Measured times, one dictionary per round."""

    def spread(self, of: Callable[[dict[str, float]], float]) -> Spread:
        """Summarize a number computed in every round from that round's times alone."""
        return Spread.of([of(round_) for round_ in self])

    def ratio(self, numerator: str, denominator: str, factor: float = 1.0) -> Spread:
        """Summarize ``factor`` times one time over another."""
        best = factor * min(times[numerator] for times in self) / min(times[denominator] for times in self)
        return Spread.of([factor * times[numerator] / times[denominator] for times in self], best)


def in_turn(timed: dict[str, Callable[[], float]], rounds: int) -> Rounds:
    """Measure every entry once per round, forwards and backwards by turns, so that a drift does not favor one.

    Parameters
    ----------
    timed : dict
        Name -> function that does the work and returns a time.
    rounds : int
        Number of rounds; one more goes before as a warm-up and is not counted.
    """
    result = Rounds()
    for number in range(rounds + 1):
        names = list(timed) if number % 2 else list(timed)[::-1]
        times = {name: timed[name]() for name in names}
        if number:
            result.append(times)
    return result
