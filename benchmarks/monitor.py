"""What a monitor of conserved quantities costs in a loop of torch, against the same loop without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import bnrank
from benchmarks.rows import Row
from benchmarks.timing import in_turn

__all__ = ["measure"]

WIDTH, DEPTH, BATCH, OUTPUTS = 500, 5, 128, 10
STEPS = 40  # in one timing
EVERY, MATRICES_EVERY = 20, 100  # a monitor as it is made without being told
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD, momentum 0.9": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}),
    "Adam": (torch.optim.Adam, {"lr": 1e-4}),
}


def measure(quick: bool) -> Iterator[Row]:
    """Measure with either optimiser."""
    for name, (kind, options) in OPTIMIZERS.items():
        yield _row(name, kind, options, rounds=7 if quick else 25)


def _row(name: str, kind: type[torch.optim.Optimizer], options: dict[str, Any], rounds: int) -> Row:
    """Record at every step, with and without what is expensive, and convert to a row in 20 steps and one in 100.

    Recording as seldom as in use would leave the cost below the noise of a shared machine. The same network is trained
    on with a monitor attached and without by turns, so that all see the same memory.
    """
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
    y = torch.randint(OUTPUTS, (BATCH,), generator=torch.Generator().manual_seed(1))
    net = bnrank.MLP([WIDTH] * DEPTH + [OUTPUTS], seed=0)
    optimizer = kind(net.parameters(), **options)
    rows = bnrank.invariants.Monitor(net, x[:2], every=1, matrices_every=0)
    all_rows = bnrank.invariants.Monitor(net, x[:2], every=1, matrices_every=1)

    def run(steps: int = STEPS) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return (time.perf_counter() - began) / steps

    def watched(monitor: bnrank.invariants.Monitor) -> Callable[[], float]:
        def timed() -> float:
            with monitor.attach(optimizer):
                run(2)
                return run()

        return timed

    times = in_turn({"without": run, "rows": watched(rows), "all": watched(all_rows)}, rounds)

    def cost(t: dict[str, float]) -> float:
        extra = (t["rows"] - t["without"]) / EVERY + (t["all"] - t["rows"]) / MATRICES_EVERY
        return 100 * extra / t["without"]

    best = cost({name: min(t[name] for t in times) for name in ("without", "rows", "all")})
    spread = times.spread(cost)
    step, row, wide = (
        times.spread(of).median
        for of in (
            lambda t: 1e3 * t["without"],
            lambda t: 1e3 * (t["rows"] - t["without"]),
            lambda t: 1e3 * (t["all"] - t["rows"]),
        )
    )
    return Row(
        "monitor",
        f"Monitor, {name}, width {WIDTH}, depth {DEPTH}, batch {BATCH}",
        "the same loop without",
        type(spread)(spread.median, spread.low, spread.high, best),
        at_most=5.0,
        unit="%",
        note=f"a step takes {step:.1f} ms, a row {row:.1f} ms, signs and singular values {wide:.1f} ms",
    )
