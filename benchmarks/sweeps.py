"""Sweeps whose workers and drivers are killed: ``python -m benchmarks.sweeps [--members N] [--kills K] [--drivers D]``.

Prints the bookkeeping per network, the time to open the rows, and, after kills, what was lost and what was repeated.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bnrank
from bnrank.training.sweeping.rows import Reader

STEPS, WIDTH = 60, 8


def main() -> None:
    """Run the sweep undisturbed, and with kills, and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs of workers")
    parser.add_argument("--drivers", type=int, default=5, help="SIGKILLs of the driver")
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        _sweep(Path(scratch) / "quick", options.members, 1)
        each = 1e3 * (time.perf_counter() - began) / options.members
        print(f"one step: {each:.2f} ms per network with 2 processes, training included")
        began = time.perf_counter()
        rows = len(bnrank.Sweep.open(Path(scratch) / "quick").to_frame())
        print(f"opened {rows:,} rows in {time.perf_counter() - began:.2f} s")
        began = time.perf_counter()
        expected = _sweep(Path(scratch) / "whole", options.members, STEPS)
        seconds = time.perf_counter() - began
        print(f"undisturbed: {seconds:.0f} s")
        began = time.perf_counter()
        killed = _disturb(Path(scratch) / "killed", options, seconds, random.Random(options.seed))
        found = _sweep(Path(scratch) / "killed", options.members, STEPS)
        print(f"with {killed[0]} kills of workers and {killed[1]} of drivers: {time.perf_counter() - began:.0f} s")
        keys = [row["key"] for row in Reader(Path(scratch) / "killed").read()]
        print(f"not finished: {int((found.status != 'finished').sum())}")
        print(f"trained to the end twice: {len(keys) - len(set(keys))} of {options.members}")
        same = all(np.array_equal(found[name], expected[name], equal_nan=True) for name in ("loss", "cost", "steps"))
        spectra = "weight_singular_values"
        print(f"equal bit by bit: {same and np.array_equal(found[spectra], expected[spectra], equal_nan=True)}")


def _sweep(folder: Path, members: int, steps: int) -> Any:
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
    settings = {"steps": steps, "record": max(steps // 2, 1), "checkpoint_every": 10, "grid": {"width": [WIDTH]}}
    return bnrank.sweep(task, depths=[2], seeds=range(members), processes=2, progress=False, out=folder, **settings)


def _disturb(folder: Path, options: argparse.Namespace, seconds: float, rng: random.Random) -> tuple[int, int]:
    """Kill workers and drivers at random times within what the undisturbed sweep takes."""
    events = ["worker"] * options.kills + ["driver"] * options.drivers
    rng.shuffle(events)
    context = multiprocessing.get_context("spawn")
    killed = {"worker": 0, "driver": 0}
    driver = _start(context, folder, options.members)
    for event in events:
        time.sleep(rng.uniform(0.3, 1.7) * seconds / len(events))
        if event == "driver" and driver.is_alive():
            driver.kill()
            driver.join()
            killed["driver"] += 1
            driver = _start(context, folder, options.members)
        until = time.monotonic() + 10
        while event == "worker" and driver.is_alive() and time.monotonic() < until:
            holders = _holders(folder, {driver.pid})
            if holders:
                try:
                    os.kill(rng.choice(holders), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed["worker"] += 1
                break
            time.sleep(0.01)
    driver.join()
    return killed["worker"], killed["driver"]


def _start(context: Any, folder: Path, members: int) -> Any:
    driver = context.Process(target=_sweep, args=(folder, members, STEPS))
    driver.start()
    return driver


def _holders(folder: Path, others: set[int | None]) -> list[int]:
    """Return the processes that hold leases."""
    found = []
    for path in (folder / "leases").glob("[!.]*"):
        try:
            process = json.loads(path.read_text())["process"]
        except (OSError, ValueError):
            continue
        if process not in others:
            found.append(process)
    return found


if __name__ == "__main__":
    main()
