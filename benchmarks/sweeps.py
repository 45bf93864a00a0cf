"""Sweeps whose workers and drivers are killed, on any engine: ``python -m benchmarks.sweeps [--engine NAME] ...``.

Prints the bookkeeping per network, the time to open the rows, and, after kills, what was lost and what was repeated.
``--simulate N`` measures what the store does with N networks of zero cost. `benchmarks.sweep` has the short table.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import bnrank
from bnrank.training.sweeping.groups import LARGEST
from bnrank.training.sweeping.rows import Reader

STEPS, WIDTH, EVERY = 60, 8, 5
ENGINES = ("processes", "pool", "dask", "dask-commands", "loky", "executorlib", "folder")
WORKERS = 2


def main() -> None:
    """Run the sweep undisturbed, and with kills, and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="processes", help="what trains where workers are killed")
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs of workers")
    parser.add_argument("--drivers", type=int, default=5, help="SIGKILLs of the driver")
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    parser.add_argument("--simulate", type=int, help="measure the store with this many networks of zero cost, no more")
    options = parser.parse_args()
    if options.simulate:
        from benchmarks.sweep_model import simulate

        for line in simulate(options.simulate):
            print(line, flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        expected, seconds = undisturbed(Path(scratch), options.members)
        for line in killed(Path(scratch), options, expected, seconds):
            print(line, flush=True)


def undisturbed(scratch: Path, members: int) -> tuple[Any, float]:
    """Print the overhead of sweeps, and return the results of a whole one and its seconds."""
    began = time.perf_counter()
    run(scratch / "quick", members, 1, "processes")
    each = 1e3 * (time.perf_counter() - began) / members
    print(f"one step: {each:.2f} ms per network with 2 processes, training included")
    began = time.perf_counter()
    rows = len(bnrank.Sweep.open(scratch / "quick").to_frame())
    print(f"opened {rows:,} rows in {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    expected = run(scratch / "whole", members, STEPS, "processes")
    seconds = time.perf_counter() - began
    print(f"undisturbed: {seconds:.0f} s", flush=True)
    return expected, seconds


def killed(scratch: Path, options: argparse.Namespace, expected: Any, seconds: float) -> Iterator[str]:
    """Sweep on an engine with kills, and yield what was lost and what was repeated, a line each."""
    folder, began = scratch / "killed", time.perf_counter()
    with commands(scratch) if options.engine == "dask-commands" else contextlib.nullcontext():
        count = _disturb(folder, options, seconds, random.Random(options.seed))
        found = run(folder, options.members, STEPS, options.engine)
    yield f"{options.engine}, {count[0]} kills of workers, {count[1]} of drivers: {time.perf_counter() - began:.0f} s"
    rows = list(Reader(folder).read())
    keys = [row["key"] for row in rows if row["status"] != "failed"]
    yield f"not finished: {int((found.status != 'finished').sum())} of {options.members}"
    yield f"rows of failures on the way: {len(rows) - len(keys)}"
    yield f"trained to the end twice: {len(keys) - len(set(keys))}"
    taken_along = 0 if options.engine == "folder" else WORKERS  # by a driver that is killed
    deaths = count[0] + taken_along * count[1]  # each loses what a group has trained since its last checkpoint
    repeated = deaths * LARGEST * EVERY + (len(keys) - len(set(keys))) * STEPS
    yield f"steps repeated: at most {100 * repeated / (options.members * STEPS):.2f} percent"
    same = all(np.array_equal(found[name], expected[name], equal_nan=True) for name in ("loss", "cost", "steps"))
    spectra = "weight_singular_values"
    yield f"equal bit by bit: {same and np.array_equal(found[spectra], expected[spectra], equal_nan=True)}"


# engines -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def engine(name: str, scratch: Path) -> Iterator[Any]:
    """Provide what goes to ``executor``: two workers with a thread each."""
    if name == "processes":
        yield None
    elif name == "pool":
        yield lambda: ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))
    elif name == "loky":
        import loky

        yield lambda: loky.get_reusable_executor(WORKERS, reuse=False)
    elif name == "executorlib":
        import executorlib

        yield lambda: executorlib.SingleNodeExecutor(max_workers=WORKERS)
    else:
        from distributed import Client, LocalCluster

        with contextlib.ExitStack() as stack:
            if name == "dask":
                options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None}
                client = Client(stack.enter_context(LocalCluster(**options)))
            else:
                client = Client(scheduler_file=str(scratch / "scheduler.json"))
            yield stack.enter_context(client)


@contextlib.contextmanager
def commands(scratch: Path) -> Iterator[None]:
    """Start a scheduler of Dask and two workers by their command lines."""
    file = str(scratch / "scheduler.json")
    scheduler = ["scheduler", "--scheduler-file", file, "--port", "0", "--no-dashboard"]
    worker = ["worker", "--scheduler-file", file, "--nthreads", "1", "--no-dashboard"]
    running = []
    try:
        for kind, *rest in [scheduler, *[worker] * WORKERS]:
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *rest]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=scratch))
        yield
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait()


# sweeps --------------------------------------------------------------------------------------------------------------


def run(folder: Path, members: int, steps: int, name: str, processes: int = WORKERS) -> Any:
    """Sweep on an engine."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
    settings = {"steps": steps, "record": max(steps // 2, 1), "checkpoint_every": EVERY, "grid": {"width": [WIDTH]}}
    settings |= {"depths": [2], "seeds": range(members), "processes": processes, "progress": False}
    if name == "folder":
        bnrank.sweep(task, out=folder, **settings | {"processes": 0})
        _drained(folder)
        name = "processes"
    with engine(name, folder.parent) as executor:
        return bnrank.sweep(task, executor=executor, out=folder, **settings)


def largest() -> float:
    """Return the largest memory of this process so far in MB, without its parent's, which getrusage includes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _drained(folder: Path) -> None:
    """Start workers by their command lines, and another for each that is killed, until all is done."""
    command = [sys.executable, "-m", "bnrank", "sweep", "--worker", str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(WORKERS)]
    while running:
        time.sleep(0.05)
        for worker in list(running):
            if worker.poll() is not None:
                running.remove(worker)
                if worker.returncode < 0:
                    running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))


def _disturb(folder: Path, options: argparse.Namespace, seconds: float, rng: random.Random) -> tuple[int, int]:
    """Kill workers and drivers at random times within what the undisturbed sweep takes."""
    events = ["worker"] * options.kills + ["driver"] * options.drivers
    rng.shuffle(events)
    context = multiprocessing.get_context("spawn")
    count = {"worker": 0, "driver": 0}
    driver = _start(context, folder, options)
    for event in events:
        time.sleep(rng.uniform(0.3, 1.7) * seconds / len(events))
        if event == "driver" and driver.is_alive():
            driver.kill()
            driver.join()
            count["driver"] += 1
            driver = _start(context, folder, options)
        until = time.monotonic() + 30
        while event == "worker" and driver.is_alive() and time.monotonic() < until:
            if kill_one(folder, {driver.pid, os.getpid()}, rng):
                count["worker"] += 1
                break
            time.sleep(0.01)
    driver.join()
    return count["worker"], count["driver"]


def _start(context: Any, folder: Path, options: argparse.Namespace) -> Any:
    driver = context.Process(target=run, args=(folder, options.members, STEPS, options.engine))
    driver.start()
    return driver


def kill_one(folder: Path, others: set[int | None], rng: random.Random) -> bool:
    """Kill one of the processes that hold leases; return whether one was there."""
    found = []
    for path in (folder / "leases").glob("[!.]*"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(json.loads(path.read_text())["process"]))
    found = [process for process in found if process not in others]
    if not found:
        return False
    try:
        os.kill(rng.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
