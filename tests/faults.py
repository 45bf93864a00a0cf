"""Faults of disks in the middle of everything that writes, as ``python -m tests.faults``.

Prints a table of faults and writers with the outcome. The faults are real (a small file system in memory, immutable
folders, another user, limits of the size of files), and need root on Linux; only the quota is a patched ``os.fsync``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.figures.reproduce_common import Settings

import bnrank
from bnrank import discovery
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.training import Record, Save
from bnrank.training.sweeping import work

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
NET = bnrank.MLP([5, 6, 4], seed=0)
QUICK: dict[str, Any] = {"steps": 20, "record": 5, "progress": False}


# faults: each provides what makes a folder unusable, and what makes it usable again -----------------------------------

Fault = Iterator[tuple[Callable[[], object], Callable[[], object]]]


@contextlib.contextmanager
def full(folder: Path) -> Fault:
    """A file system of one megabyte, of which nothing is left."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    filler = folder / "filler"

    def strike() -> None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    try:
        yield strike, filler.unlink
    finally:
        subprocess.run(["umount", folder], check=True)


@contextlib.contextmanager
def nearly_full(folder: Path) -> Fault:
    """A limit of 100 bytes for the size of a file: only its first bytes can be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield (
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
    )


@contextlib.contextmanager
def read_only(folder: Path) -> Fault:
    """Folders in which nothing can be created, replaced or removed, even by root."""
    chattr = lambda flag: subprocess.run(["chattr", "-R", flag, folder], check=True)  # noqa: E731
    yield lambda: chattr("+i"), lambda: chattr("-i")


@contextlib.contextmanager
def denied(folder: Path) -> Fault:
    """A folder whose owner, another user than root, has lost the permission to write."""

    def allow(mode: int) -> None:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(mode)

    os.chown(folder, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield lambda: allow(0o555), lambda: allow(0o755)
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def gone(folder: Path) -> Fault:
    """A folder that another process removes."""
    yield lambda: shutil.rmtree(folder), lambda: folder.mkdir(exist_ok=True)


@contextlib.contextmanager
def a_file(folder: Path) -> Fault:
    """A folder in whose place a file is put."""
    yield (
        lambda: (shutil.rmtree(folder), folder.write_text("mine")),
        lambda: (folder.unlink(), folder.mkdir()),
    )


@contextlib.contextmanager
def quota(folder: Path) -> Fault:
    """A quota that is exceeded, as a network file system tells it."""
    patch = mock.patch("os.fsync", side_effect=OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    yield patch.start, patch.stop


FAULTS = {f.__name__: f for f in (full, nearly_full, read_only, denied, gone, a_file, quota)}
ERASES = ("gone", "a_file")
AS_ROOT = ("full", "read_only", "denied")
CREATED = (("gone", "saved_run"), ("gone", "reported"))  # a folder that is not there is created
NOBODY = 65534


# writers: each returns a number that is read back, and the fault strikes in its midst, before the last file -----------


class Strike:
    """A watcher during which the fault strikes."""

    def __init__(self, strike: Callable[[], object]) -> None:
        self.strike: Callable[[], object] | None = strike

    def observe(self, *, step: int, **row: Any) -> None:
        if step >= 10 and self.strike is not None:
            self.strike()
            self.strike = None


def trained(folder: Path, strike: Callable[[], object] | None = None) -> float:
    record = Record(5, watch=None if strike is None else Strike(strike))
    run = bnrank.train(NET, TASK, steps=40, record=record, out=Save(folder / "run", checkpoint_every=5), progress=False)
    return float(run.summary.loss[0])


def flowed(folder: Path, strike: Callable[[], object] | None = None) -> float:
    record = Record(1, watch=None if strike is None else Strike(strike))
    out = Save(folder / "flow", checkpoint_every=5)
    return float(bnrank.flow(NET, (TASK.x, TASK.y), 1.0, record=record, out=out).loss[-1])


def swept(folder: Path, strike: Callable[[], object] | None = None) -> float:
    def train(net: Any, *args: Any, trained: Any = work.with_checkpoints, **options: Any) -> Any:
        run = trained(net, *args, **options)
        if strike is not None and net.depth == 2:  # the second group, with its result still to be written
            strike()
        return run

    with mock.patch.object(work, "with_checkpoints", train):
        found = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, out=folder / "sweep", processes=1, **QUICK)
    return float(found.loss.sum())


def ran(folder: Path, strike: Callable[[], object] | None = None) -> float:
    def make(settings: Any, runs: Path, progress: bool) -> Outcome:
        runs.mkdir(exist_ok=True)
        run = bnrank.train(NET, TASK, out=runs / "one", **QUICK)
        if strike is not None:
            strike()
        return Outcome(claims=(Claim("loss", True, float(run.summary.loss[0]), "any"),))

    scales = {"quick": Settings(), "paper": Settings()}
    figure = Figure("F0", "one", "One", "A paper", "one", scales, make)
    return float(figure.run("quick", folder, progress=False).claims[0].measured)


def saved_run(folder: Path, strike: Callable[[], object] | None = None) -> float:
    run = bnrank.train(NET, TASK, **QUICK)
    _struck(strike)
    return float(bnrank.Run.open(bnrank.save(run, folder / "saved")).summary.loss[0])


def saved_network(folder: Path, strike: Callable[[], object] | None = None) -> float:
    _struck(strike)
    return float(bnrank.load(bnrank.save(NET, folder / "net.safetensors")).weights[0].detach().sum())


def saved_compressed(folder: Path, strike: Callable[[], object] | None = None) -> float:
    _struck(strike)
    return float(
        bnrank.load(bnrank.save(_compressed(), folder / "small.safetensors"))(TASK.x[:1].float()).detach().sum()
    )


def saved_estimator(folder: Path, strike: Callable[[], object] | None = None) -> float:
    _struck(strike)
    found = bnrank.load(bnrank.save(_estimator(), folder / "estimator.safetensors"))
    return float(found.predict(TASK.x[:1].numpy()).sum())


def reported(folder: Path, strike: Callable[[], object] | None = None) -> float:
    section = bnrank.Section("Ranks", "x" * 10000, rows=[{"layer": 1, "rank": 5}])
    _struck(strike)
    return float(len(bnrank.report(section, folder / "page.html").read_text()))


def _struck(strike: Callable[[], object] | None) -> None:
    if strike is not None:
        strike()


_made: dict[str, Any] = {}


def _compressed() -> Any:
    if "compressed" not in _made:
        with torch.no_grad():
            net = bnrank.MLP([5, 30, 4], seed=0)
            net.weights[0][2:] = 0
        _made["compressed"] = bnrank.compress(net, TASK.x, tol=0.05, timing=discovery.Timing(repeats=1))
    return _made["compressed"]


def _estimator() -> Any:
    if "estimator" not in _made:
        found = discovery.BottleneckRegressor(n_components=1, depth=2, width=4, steps=5, ridges=[1e-2], progress=False)
        _made["estimator"] = found.fit(TASK.x.numpy(), TASK.y.numpy())
    return _made["estimator"]


WRITERS = {
    f.__name__: f
    for f in (
        trained, flowed, swept, ran, saved_run, saved_network, saved_compressed, saved_estimator, reported,
    )
}  # fmt: skip


def judged(fault: str, writer: str, folder: Path) -> str:
    """Return the error of a writer that meets a fault.

    Before that: the error names the argument and the folder; what was finished before is as it was; nothing half
    written is left; and the same call after the fault ends as one without a fault.
    """
    write = WRITERS[writer]
    expected = write(Path(tempfile.mkdtemp(dir=folder)))
    place = folder / f"{fault}-{writer}"
    place.mkdir()
    with FAULTS[fault](place) as (strike, mend):
        bnrank.save(NET, place / "kept.safetensors")
        if writer.startswith("saved") or write is reported:  # an earlier one, to be replaced
            write(place)
        before = _contents(place)
        try:
            write(place, strike)
            told = ""
        except ValueError as error:
            told = str(error)
        finally:
            mend()
        if told or (fault, writer) not in CREATED:
            assert re.match(r"(out|path): ", told), f"names no argument: {told or 'no error'}"
            assert str(place) in told, f"names no folder: {told}"
        if fault not in ERASES:
            after = _contents(place)
            assert {name: after.get(name) for name in before} == before, "changed what was finished"
            if fault not in ("read_only", "denied"):
                assert not [name for name in after if ".partial" in name], "left a part"
        again = write(place)
        assert again == expected, f"then {again}, not {expected}"
        assert not list(place.rglob("*.partial")), "left a part"
    return told.replace(str(place), "FOLDER") or "written to a new folder"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> None:
    """Print what becomes of every writer under every fault; the exit status is 1 if anything is wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        _compressed(), _estimator()
        for fault in FAULTS:
            for writer in WRITERS:
                try:
                    outcome = judged(fault, writer, Path(root))
                except Exception as error:
                    wrong += 1
                    outcome = f"WRONG: {type(error).__name__}: {error}"
                print(f"{fault:12} {writer:17} {outcome}")
    print(f"{len(FAULTS) * len(WRITERS)} faults, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
