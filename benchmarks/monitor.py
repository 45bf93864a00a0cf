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

WIDTH, BATCH, OUTPUTS = 500, 128, 10
STEPS = 40  # in one timing of single rows
FIRST = 200  # steps from the start, with the rows as a monitor chooses them
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD, momentum 0.9": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}),
    "Adam": (torch.optim.Adam, {"lr": 1e-4}),
}


def _relu() -> nn.Module:
    return bnrank.MLP([WIDTH] * 5 + [OUTPUTS], seed=0)


def _linear_end() -> nn.Module:
    """Return a network with matrices of 500 channels and a linear tail of three layers."""
    generator = torch.Generator().manual_seed(0)
    ends = [WIDTH, WIDTH, WIDTH, WIDTH, OUTPUTS]
    layers: list[nn.Module] = []
    for i, outputs in enumerate(ends):
        layers += [nn.Linear(WIDTH, outputs), nn.ReLU()] if i < 2 else [nn.Linear(WIDTH, outputs)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / WIDTH**0.5)
    return net


NETWORKS = {"ReLU MLP": _relu, "2 ReLU and 3 linear layers": _linear_end}


def measure(quick: bool) -> Iterator[Row]:
    """Measure at the start and later on, with either optimizer."""
    for network, make in NETWORKS.items():
        for name, (kind, options) in OPTIMIZERS.items():
            about = f"Monitor, {network}, {name}, width {WIDTH}, batch {BATCH}"
            yield _first(about, make, kind, options, rounds=3 if quick else 9)
            yield _later(about, make, kind, options, rounds=5 if quick else 25)


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(0))
    return x, torch.randint(OUTPUTS, (BATCH,), generator=torch.Generator().manual_seed(1))


def _first(
    about: str,
    make: Callable[[], nn.Module],
    kind: type[torch.optim.Optimizer],
    options: dict[str, Any],
    rounds: int,
) -> Row:
    """Time the first steps of a training as a whole, with a monitor as it is made without being told, and without."""
    x, y = _data()

    def timed(watch: bool) -> float:
        net = make()
        optimizer = kind(net.parameters(), **options)
        monitor = bnrank.invariants.Monitor(net, x[:2])
        began = time.perf_counter()
        if watch:
            monitor.attach(optimizer)
        for _ in range(FIRST):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return time.perf_counter() - began

    times = in_turn({"without": lambda: timed(False), "watched": lambda: timed(True)}, rounds)
    best = 100 * (min(t["watched"] for t in times) / min(t["without"] for t in times) - 1)
    spread = times.spread(lambda t: 100 * (t["watched"] / t["without"] - 1))
    return Row(
        "monitor",
        f"{about}: first {FIRST} steps",
        "the same loop without",
        type(spread)(spread.median, spread.low, spread.high, best),
        at_most=5.0,
        unit="%",
    )


def _later(
    about: str,
    make: Callable[[], nn.Module],
    kind: type[torch.optim.Optimizer],
    options: dict[str, Any],
    rounds: int,
) -> Row:
    """Record at every step, with and without what is expensive, and convert to rows as seldom as by default.

    Recording as seldom as in use would leave the cost below the noise of a shared machine. The same network is trained
    on with a monitor attached and without by turns, so that all see the same memory.
    """
    x, y = _data()
    net = make()
    optimizer = kind(net.parameters(), **options)
    default = bnrank.invariants.Monitor(net, x[:2])
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
                return run(STEPS if monitor.matrices_every == 0 else STEPS // 4)

        return timed

    times = in_turn({"without": run, "rows": watched(rows), "all": watched(all_rows)}, rounds)

    def cost(t: dict[str, float]) -> float:
        extra = (t["rows"] - t["without"]) / default.every + (t["all"] - t["rows"]) / default.matrices_every
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
        f"{about}: later on",
        "the same loop without",
        type(spread)(spread.median, spread.low, spread.high, best),
        at_most=5.0,
        unit="%",
        note=f"a step takes {step:.1f} ms, a row {row:.1f} ms, all there is {wide:.1f} ms more",
    )
