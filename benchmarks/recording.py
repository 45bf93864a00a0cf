"""What it costs to record the top-10 spectra of all layers every 100 steps."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.configurations import Configuration
from benchmarks.rows import Row
from benchmarks.timing import in_turn
from bnrank.training import Record

__all__ = ["measure"]

EVERY = 100
CONFIGURATIONS = (
    Configuration(16, 10, 100, 200, steps=24),
    Configuration(4, 6, 500, 200, steps=12),
)


def measure(quick: bool) -> Iterator[Row]:
    """Measure at the usual width and at a large one."""
    for configuration in CONFIGURATIONS:
        yield _row(configuration, rounds=2 if quick else 5)


def _row(configuration: Configuration, rounds: int) -> Row:
    """Record 6 rows more than the first and the last, and convert to one row in 100 steps.

    Recording as seldom as in use would leave the cost below the noise of a shared machine.
    """
    steps, rows = configuration.steps, 6

    def run(every: int) -> float:
        began = time.perf_counter()
        configuration.train(steps, record=Record(every=every, top_k=10))
        return time.perf_counter() - began

    times = in_turn(
        {"step": configuration.train_step, "with": lambda: run(steps // rows), "without": lambda: run(steps)}, rounds
    )
    extra = rows - 1
    cost = times.spread(lambda t: 100 * (t["with"] - t["without"]) / extra / (EVERY * t["step"]))
    row = times.spread(lambda t: 1e3 * (t["with"] - t["without"]) / extra).median
    return Row(
        "recording",
        f"record every {EVERY} steps, {configuration}",
        "the same training without",
        cost,
        at_most=10.0,
        unit="%",
        note=f"one row takes {row:.0f} ms",
    )
