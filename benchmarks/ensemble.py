"""Ensemble training with Adam against a plain PyTorch loop, one network after the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.configurations import LR, RIDGE, THREE, Configuration
from benchmarks.products import best_rate
from benchmarks.rows import Row
from benchmarks.timing import in_turn

__all__ = ["measure", "plain_loop"]


def plain_loop(configuration: Configuration, member: int, steps: int, explicit: bool = False) -> tuple[float, float]:
    """Train one member as anyone would; return the time of a step and the loss at the end.

    The ridge is ``weight_decay = 2 lambda``: torch.optim.Adam adds it to the gradient, which is coupled L2, and this is
    the faster way to write it. ``explicit`` puts lambda ||theta||^2 into the loss instead.
    """
    task, widths = configuration.task, configuration.widths
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, start in zip(net.parameters(), configuration.net(member).parameters(), strict=True):
            parameter.copy_(start)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, weight_decay=0.0 if explicit else 2 * RIDGE)

    def loss() -> torch.Tensor:
        return (net(task.x) - task.y).square().sum(1).mean()

    def norm() -> torch.Tensor:
        return torch.stack([p.square().sum() for p in net.parameters()]).sum()

    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss() + RIDGE * norm() if explicit else loss()
        value.backward()
        optimizer.step()
    per_step = (time.perf_counter() - began) / steps
    with torch.no_grad():
        return per_step, float(loss() + RIDGE * norm())


def measure(quick: bool) -> Iterator[Row]:
    """Time the three configurations."""
    for configuration, target in THREE:
        yield from _rows(configuration, target, rounds=2 if quick else 7)


def _rows(configuration: Configuration, target: float, rounds: int) -> Iterator[Row]:
    name, members = str(configuration), configuration.members
    steps = max(10, configuration.steps // 4)

    def loop(explicit: bool) -> float:
        return members * plain_loop(configuration, member=0, steps=steps, explicit=explicit)[0]

    times = in_turn(
        {
            "bnrank": configuration.train_step,
            "loop": lambda: loop(False),
            "explicit": lambda: loop(True),
            "products": lambda: configuration.flops / best_rate(members, configuration.width, configuration.n),
        },
        rounds,
    )
    after = 3
    theirs = plain_loop(configuration, member=1, steps=after)[1]
    ours = float(configuration.train(after).summary.loss[1])
    note = f"loss after {after} steps differs by {abs(ours / theirs - 1):.1g}"
    yield Row("ensemble", name, "loop, weight_decay", times.ratio("loop", "bnrank"), target, note=note)
    yield Row("ensemble", name, "loop, penalty in the loss", times.ratio("explicit", "bnrank"))
    bound = times.ratio("loop", "products")
    note = "the most that dense float32 could gain"
    yield Row("ensemble", f"its products alone, {name}", "loop, weight_decay", bound, note=note)
    for who in ("loop", "bnrank"):
        rate = times.spread(lambda t, who=who: configuration.flops / t[who] / 1e9)  # type: ignore[misc]
        label = {"loop": "loop", "bnrank": "bnrank"}[who]
        yield Row("ensemble", f"{label}, {name}", "", rate, unit="GFLOP/s")
