"""Sweeps: bookkeeping, opening of rows, memory, workers on cores, and what kills cost; `benchmarks.sweeps` has more."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path

import bnrank
from benchmarks.rows import Row, Spread
from benchmarks.sweeps import STEPS, killed, run
from benchmarks.timing import in_turn, seconds

__all__ = ["measure"]

MEMORY = """
import sys
from pathlib import Path
if __name__ == "__main__":
    import numpy, torch, xarray, pandas, bnrank
    from benchmarks.sweeps import largest, run
    before = largest()
    run(Path(sys.argv[1]), int(sys.argv[2]), 1, "processes")
    print(before, largest() - before)
"""


def measure(quick: bool) -> Iterator[Row]:
    """Measure sweeps of 10,000 small networks (quick: 300)."""
    members = 300 if quick else 10_000
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        took = seconds(lambda: run(scratch / "quick", members, 1, "processes", 1))
        note = "1 process, one step of training included"
        each = Spread.of([1e3 * took / members])
        yield Row("sweep", f"bookkeeping per network of {members:,}", "", each, at_most=20.0, unit="ms", note=note)
        took = seconds(lambda: bnrank.Sweep.open(scratch / "quick").to_frame())
        yield Row("sweep", f"{members:,} rows as a table", "", Spread.of([took]), at_most=5.0, unit="s")
        yield from _many(scratch)
        yield from _memory(scratch, members)
        yield from _cores(1 if quick else 3)
        began = time.perf_counter()
        expected = run(scratch / "whole", members, STEPS, "processes")
        kills, drivers = (4, 1) if quick else (50, 5)
        options = argparse.Namespace(engine="processes", members=members, kills=kills, drivers=drivers, seed=0)
        told = list(killed(scratch, options, expected, time.perf_counter() - began))
        lost = float(next(line for line in told if line.startswith("not finished")).split()[2])
        yield Row("sweep", "networks lost", told[0], Spread.of([lost]), at_most=0.0, unit="", note="; ".join(told[1:]))


def _many(scratch: Path) -> Iterator[Row]:
    """100 ensembles of one step."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
    grid = {"width": list(range(4, 14))}
    settings = {"depths": list(range(2, 12)), "grid": grid, "steps": 1, "record": 1, "progress": False, "processes": 1}
    took = seconds(lambda: bnrank.sweep(task, out=scratch / "many", **settings))
    yield Row("sweep", "100 ensembles of one step", "", Spread.of([took]), at_most=10.0, unit="s")


def _memory(scratch: Path, members: int) -> Iterator[Row]:
    """Memory of the driver, in a process of its own that has imported all it needs."""
    script = scratch / "memory.py"
    script.write_text(MEMORY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])}
    command = [sys.executable, str(script), str(scratch / "memory"), str(members)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    imports, more = map(float, done.stdout.split())
    note = f"imports alone take {imports:.0f} MB"
    yield Row("sweep", "memory of the driver", "imports", Spread.of([more]), at_most=200.0, unit="MB", note=note)


def _cores(rounds: int) -> Iterator[Row]:
    """Throughput of two processes with a thread each against one; all have started before."""
    task = bnrank.tasks.low_rank_map(n=300, rank=2, width=50, seed=0)
    settings = {"depths": [5], "ridges": [1e-3, 1e-2], "grid": {"width": [60]}, "steps": 600, "progress": False}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(2, context) as two:
        for pool, count in ((one, 1), (two, 2)):
            wait([pool.submit(_start) for _ in range(count)])
        pools = {"one": one, "two": two}
        timed = {
            name: lambda pool=pool: seconds(lambda: bnrank.sweep(task, seeds=range(32), executor=pool, **settings))  # type: ignore[misc]
            for name, pool in pools.items()
        }
        times = in_turn(timed, rounds)
    note = f"a thread each; load of the machine {os.getloadavg()[0]:.1f}, of which 2 are these"
    yield Row("sweep", "2 processes on 2 cores", "1", times.ratio("one", "two"), at_least=1.8, note=note)


def _start() -> None:
    """Take long enough, after the imports, that every process of a pool has one of these."""
    time.sleep(2)
