"""Time to a regularized loss against tuned Adam, on the data of F1 and F4, and evaluations to a minimum."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import bnrank
from benchmarks import to_minima
from benchmarks.rows import Row, Spread
from benchmarks.timing import in_turn
from bnrank.tasks import bottleneck_spectra_map, low_rank_map
from bnrank.training import Adam, Record, Save

__all__ = ["measure"]

RATES = (1e-3, 3e-3, 6e-3, 1e-2)  # step sizes that Adam is tuned over, each falling to 0 as a cosine
ADAM, QUICK = 10_000, 2_000  # its steps
TIMED = 100  # of which so many are timed
POLL = 10  # steps between looks at the default optimizer's loss
CHUNK = 200  # steps by which it goes on until it is there
MEMBERS = 8


@dataclass(frozen=True)
class Problem:
    """A task, a network and a ridge."""

    name: str
    task: bnrank.Task
    depth: int
    ridge: float

    def train(self, seed: int | list[int], steps: int, **options: Any) -> bnrank.Run:
        """Train from given seeds."""
        net = bnrank.MLP([self.task.d_in, *[100] * (self.depth - 1), self.task.d_out])
        options = {"record": max(1, steps), "progress": False} | options
        return bnrank.train(net, self.task, ridge=self.ridge, seed=seed, steps=steps, **options)

    def adam(self, seeds: list[int], rates: tuple[float, ...], steps: int) -> np.ndarray:
        """Return Adam's losses at the end, one per pair of seed and step size."""
        run = self.train(seeds, steps, optimizer=Adam(lr=list(rates), schedule="cosine"))
        return run.summary.loss.values

    def evaluations(self, seeds: list[int], loss: float, most: int) -> tuple[int | None, np.ndarray]:
        """Return the evaluations until the default optimizer's median loss is down to ``loss``, and all its losses.

        The first is None if ``most`` evaluations are not enough.
        """
        with tempfile.TemporaryDirectory() as folder:
            for steps in range(CHUNK, most + CHUNK, CHUNK):
                run = self.train(
                    seeds, steps, record=Record(every=POLL, top_k=1), out=Save(folder, checkpoint_every=steps)
                )
                losses = run.history.loss.to_pandas().ffill(axis=1)  # a member that has stalled keeps its loss
                there = losses.median() <= loss
                if there.any():
                    first = int(there.idxmax())
                    return first, losses[first].to_numpy()
        return None, losses.to_numpy()[:, -1]


def measure(quick: bool) -> Iterator[Row]:
    """Compare one network and an ensemble of 8 on either task; one network on F4 if quick."""
    f4 = Problem("F4", low_rank_map(n_test=0), 12, 1e-3)
    f1 = Problem("F1", bottleneck_spectra_map(n_test=0), 13, 0.05 / 13)
    steps, rounds = (QUICK, 1) if quick else (ADAM, 3)
    for problem in (f4,) if quick else (f4, f1):
        losses = problem.adam([0] * len(RATES), RATES, steps)
        best = int(losses.argmin())
        rate, loss = RATES[best], float(losses[best])
        yield from _rows(problem, [0], rate, np.array([loss]), steps, rounds)
        if not quick:
            others = list(range(1, MEMBERS))
            theirs = np.append(loss, problem.adam(others, (rate,) * len(others), steps))
            yield from _rows(problem, [0, *others], rate, theirs, steps, rounds)
    yield from to_minima.measure(quick)
    if quick:
        yield Row("optimizer", f"F1, and ensembles of {MEMBERS}", "Adam", None, note="skipped: left out by --quick")


def _rows(
    problem: Problem, seeds: list[int], rate: float, losses: np.ndarray, steps: int, rounds: int
) -> Iterator[Row]:
    """Compare at the median loss that Adam reaches from these seeds with its best step size."""
    members = len(seeds)
    name = f"{problem.name}, {members} network{'s' if members > 1 else ''}"
    against = f"Adam, {steps:,} steps"
    target = statistics.median(losses.tolist())
    found, ours = problem.evaluations(seeds, target, most=steps)
    if found is None:
        note = f"Adam at {rate:g} reaches {target:.4f}; not reached in {steps:,} evaluations: {np.median(ours):.4f}"
        yield Row("optimizer", f"time to its loss, {name}", against, Spread(np.inf, np.inf, np.inf), None, 0.2, 0.1)
        yield Row("optimizer", f"evaluations, {name}", against, None, note=note)
        return

    def default() -> float:
        began = time.perf_counter()
        problem.train(seeds, found)
        return time.perf_counter() - began

    def adam() -> float:
        began = time.perf_counter()
        problem.train(seeds, TIMED, optimizer=Adam(lr=rate, schedule="cosine"))
        return (time.perf_counter() - began) * steps / TIMED

    times = in_turn({"default": default, "adam": adam}, rounds)
    note = f"Adam at {rate:g} reaches {target:.4f}, the default in {found} evaluations"
    if members > 1:
        note += f" (medians; {int((ours <= losses).sum())} of {members} then at or below their own Adam run)"
    ratio = times.ratio("default", "adam")
    yield Row("optimizer", f"time to its loss, {name}", against, ratio, None, 0.2, 0.1, note=note)
    share = found / steps
    yield Row("optimizer", f"evaluations, {name}", against, Spread(share, share, share))
