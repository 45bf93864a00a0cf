"""What the store of a sweep does with many networks of zero cost: ``python -m benchmarks.sweeps --simulate N``."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bnrank
from benchmarks.sweeps import largest
from bnrank.training.sweeping import work
from bnrank.training.sweeping.folder import SweepFolder

MILLION = 1_000_000


def simulate(members: int) -> Iterator[str]:
    """Sweep with trained networks that are given, in one process and in two; yield a line per measurement."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
    settings = {"depths": [2], "grid": {"width": [8]}, "steps": 1, "record": 1, "progress": False}
    trained, given = work._run, {}

    def ready(folder: SweepFolder, group: Any, place: Path) -> Any:
        if len(group.members) not in given:
            given[len(group.members)] = trained(folder, group, place)
        return given[len(group.members)]

    work._run = ready
    try:
        with tempfile.TemporaryDirectory() as scratch:
            imports = largest()
            one, folder = members // 10, Path(scratch)
            began = time.perf_counter()
            bnrank.sweep(task, seeds=range(one), processes=1, out=folder / "one", **settings)
            each = (time.perf_counter() - began) / one
            yield f"one process: {1 / each:,.0f} networks per second ({1e3 * each:.2f} ms each), {one:,} networks"
            forks = multiprocessing.get_context("fork")
            began = time.perf_counter()
            with ProcessPoolExecutor(2, mp_context=forks) as executor:
                bnrank.sweep(task, seeds=range(members), executor=executor, out=folder / "two", **settings)
            each = (time.perf_counter() - began) / members
            yield f"two processes: {1 / each:,.0f} networks per second ({1e3 * each:.2f} ms each), {members:,} networks"
            yield f"memory of the driver: {largest() - imports:.0f} MB beyond imports ({imports:.0f} MB)"
            yield from _sizes(folder / "two", members)
    finally:
        work._run = trained


def _sizes(folder: Path, members: int) -> Iterator[str]:
    for name in ("plan", "rows", "arrays"):
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        whole = f"{size * MILLION / members / 1e6:,.0f} MB"
        yield f"{name}: {len(files):,} files, {size / members:,.0f} bytes per network, of a million {whole}"
    most = max(sum(1 for _ in path.iterdir()) for path in folder.rglob("*") if path.is_dir())
    yield f"largest folder: {most:,} files"
    began = time.perf_counter()
    SweepFolder.open(folder).refresh()
    took = time.perf_counter() - began
    yield f"a worker reads all rows: {took:.2f} s, of a million {took * MILLION / members:.0f} s"
    began = time.perf_counter()
    stored = bnrank.Sweep.open(folder)
    yield f"opened {len(stored.rows):,} rows in {time.perf_counter() - began:.2f} s"
    began = time.perf_counter()
    stored.to_frame()
    yield f"as a table: {time.perf_counter() - began:.2f} s"
