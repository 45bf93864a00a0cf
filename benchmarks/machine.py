"""A whole training step against the machine's own rate of matrix products at that width."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.configurations import THREE
from benchmarks.products import best_rate, square_rate
from benchmarks.rows import Row, Spread
from benchmarks.timing import in_turn

__all__ = ["measure"]


def measure(quick: bool) -> Iterator[Row]:
    """Compare the three configurations with their own hidden layers' products."""
    for configuration, _ in THREE:
        rates = in_turn(
            {
                "step": lambda c=configuration: c.flops / c.train_step(),  # type: ignore[misc]
                "products": lambda c=configuration: best_rate(c.members, c.width, c.n),  # type: ignore[misc]
            },
            rounds=2 if quick else 7,
        )
        median = rates.spread(lambda r: r["products"] / 1e9).median
        yield Row(
            "machine",
            f"step, {configuration}",
            "its products alone, best of torch and numpy",
            rates.ratio("step", "products"),
            aim=0.75,
            note=f"products alone run at {median:.0f} GFLOP/s",
        )
    peak = Spread.of([square_rate() / 1e9 for _ in range(3)])
    yield Row("machine", "one product of 2000 × 2000 matrices", "", peak, unit="GFLOP/s")
