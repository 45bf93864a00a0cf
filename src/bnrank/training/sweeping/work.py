"""What a worker does: claim a group, train it, append its rows."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnrank._core import store
from bnrank._core.files import writing
from bnrank._core.locks import StorageError
from bnrank.measures import bottlenecks
from bnrank.networks import MLP
from bnrank.training.history import Run
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.folder import ARRAYS, FAILED, SweepFolder
from bnrank.training.sweeping.groups import Group, Member, first, load_task
from bnrank.training.sweeping.packed import pack
from bnrank.training.sweeping.rows import Writer
from bnrank.training.trainer import train, with_checkpoints

SCALARS = ("loss", "cost", "parameter_norm", "gradient_norm", "balance_residual")
KIND = "group of a sweep"
RETRIES = 2
POLL = 0.5  # seconds between looks at groups that others hold
_open: dict[tuple[int, int], tuple[object, SweepFolder, Writer]] = {}  # the last of each process (forks) and thread


def work(path: str, text: str, call: str | None, threads: int | None, retries: int, driver: int) -> str:
    """Train a group unless that is done, and return "trained", "stored", or "busy" if another process is at work.

    Parameters
    ----------
    path : str
        The folder of the sweep.
    text : str
        The group, as text.
    call : str, optional
        The call of `bnrank.sweep`, which is noted in the rows.
    threads : int, optional
        Threads of PyTorch, set in processes other than the driver's.
    retries : int
        How often a group is tried again after its process ended; then its members are trained one by one.
    driver : int
        Number of the driver's process.
    """
    if threads is not None and os.getpid() != driver:
        torch.set_num_threads(threads)
    folder, writer = _opened(Path(path))
    return train_group(folder, writer, Group.from_json(text), call, retries)


def drain(folder: SweepFolder, groups: Sequence[Group], call: str | None, retries: int = RETRIES) -> Iterator[str]:
    """Train groups in turn, those of others last, until all are done; yield what `work` returns for each.

    Those whose processes died without progress come after all others, the most deaths last: a group that kills its
    process then holds up only itself, and kills from outside do not meet the same group again and again.
    """
    with Writer(folder.path) as writer:
        deaths = 0
        while groups:
            busy = []
            for group in groups:
                result = train_group(folder, writer, group, call, retries, deaths)
                if result == "busy":
                    busy.append(group)
                else:
                    yield result
            if deaths > retries and len(busy) == len(groups):
                time.sleep(POLL)
            groups, deaths = busy, deaths + 1


def _opened(path: Path) -> tuple[SweepFolder, Writer]:
    """Return the folder, with its rows so far, and the writer of this thread."""
    folder = SweepFolder.open(path, worker=True)
    key, state = (os.getpid(), threading.get_ident()), folder.state()
    if key not in _open or _open[key][0] != state:
        folder.check_versions()
        if key in _open:
            _open.pop(key)[2].close()
        _open[key] = state, folder, Writer(path)
    return _open[key][1:]


def train_group(
    folder: SweepFolder, writer: Writer, group: Group, call: str | None, retries: int, deaths: int | None = None
) -> str:
    """Train a group, or its members one by one if it was split, unless that is done; return what `work` returns.

    With ``deaths``, those of which more processes died without progress count as busy.
    """
    with writing("out", folder.path):
        results = [_part(folder, writer, part, call, retries, deaths) for part in folder.parts(group)]
        if "split" in results:
            results = [_part(folder, writer, part, call, retries, deaths) for part in folder.parts(group)]
    return next(name for name in ("busy", "trained", "stored") if name in results)


def _part(folder: SweepFolder, writer: Writer, group: Group, call: str | None, retries: int, deaths: int | None) -> str:
    """Train a group under its lease; "split" if its members are to be trained one by one."""
    folder.refresh()
    if folder.is_done(*group.members):
        return "stored"
    _import_all()
    lease = leases.take(folder.path, group.id, progress=folder.progress(group), deaths=deaths)
    if lease is None:
        return "busy"
    with leases.touching(lease):
        folder.refresh()  # again: another process may have ended in between
        if folder.is_done(*group.members):
            return "stored"
        if len(folder.parts(group)) > 1:
            return "split"
        if lease.attempt > retries + 1:
            return _isolated(folder, writer, group, lease.attempt - 1, call)
        return _trained(folder, writer, group, call, lease)


@functools.cache
def _import_all() -> None:
    """Import what a training imports, which takes seconds, before a group is held: a kill then is no fault of it."""
    train(MLP([1, 1, 1]), (torch.ones(2, 1), torch.ones(2, 1)), steps=1, progress=False)


def _isolated(folder: SweepFolder, writer: Writer, group: Group, died: int, call: str | None) -> str:
    """Split a group whose process ended too often; a member alone has failed."""
    folder.discard_checkpoints(group)
    if len(group.members) > 1:
        folder.split(group)
        return "split"
    message = (
        f"WorkerDied: {died} processes ended while they trained this network: out of memory, killed, or a script "
        "without if __name__ == '__main__': around the sweep"
    )
    writer.append([_failure(group.members[0], message, call)])
    return "trained"


def _trained(folder: SweepFolder, writer: Writer, group: Group, call: str | None, lease: leases.Lease) -> str:
    place = folder.checkpoints(group)  # a full disk is no failure of a network
    try:
        run = _run(folder, group, place)
        rows = _rows(group, run, call)
    except StorageError:
        raise
    except Exception as error:
        folder.discard_checkpoints(group)
        if len(group.members) > 1:
            folder.split(group)
            return "split"
        message = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error, limit=3))}"
        writer.append([_failure(group.members[0], message, call)])
        return "trained"
    if "interrupted" in run.summary["status"].values:
        raise KeyboardInterrupt  # the next worker resumes from the checkpoint
    name = f"{group.id[:2]}/{group.id}{store.SUFFIX}"  # 256 folders, none of which is too large
    place_of_arrays = folder.path / ARRAYS / name
    place_of_arrays.parent.mkdir(parents=True, exist_ok=True)
    tensors, about = pack(run)
    store.save(place_of_arrays, tensors, about | {"group": group.id}, KIND)
    writer.append([row | {"arrays": name, "member": i} for i, row in enumerate(rows)])
    if lease.is_own():  # otherwise they are of the process that took over
        folder.discard_checkpoints(group)
    return "trained"


def _run(folder: SweepFolder, group: Group, place: Path) -> Run:
    task = first(load_task(folder.path, group.task), group.size)
    return with_checkpoints(group.net(task), task, place, group.checkpoint_every, **group.arguments())


def _rows(group: Group, run: Run, call: str | None) -> list[dict[str, Any]]:
    summary, spectra = run.summary, run.history["weight_singular_values"].values
    known = np.isfinite(spectra).any(axis=(2, 3))
    rows = []
    for i, member in enumerate(group.members):
        status = str(summary["status"].values[i])
        row: dict[str, Any] = {"key": member.key, "status": status, "error": "", "call": call}
        row |= {name: float(summary[name].values[i]) for name in SCALARS}
        row["steps"] = int(summary["steps"].values[i])
        last = spectra[i, int(np.flatnonzero(known[i])[-1])] if known[i].any() else spectra[i, 0]
        found = bottlenecks.detect(last) if known[i].any() else None
        row["bottleneck_rank"] = None if found is None else found.rank
        row["weight_singular_values"] = [[float(v) for v in line[np.isfinite(line)]] for line in last]
        rows.append(row | {"seconds": run.seconds, "company": len(group.members), "worker": _worker()})
    return rows


def _failure(member: Member, message: str, call: str | None) -> dict[str, Any]:
    return {"key": member.key, "status": FAILED, "error": message, "call": call, "worker": _worker()}


def _worker() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
