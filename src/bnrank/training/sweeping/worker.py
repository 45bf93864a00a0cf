"""A process that drains the folder of a sweep, one of any number, on any machine that reaches the folder."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bnrank._core import validation
from bnrank._core.files import writing
from bnrank._core.results import Printed
from bnrank.training.sweeping.folder import FAILED, SweepFolder
from bnrank.training.sweeping.groups import Group
from bnrank.training.sweeping.rows import Writer
from bnrank.training.sweeping.work import POLL, RETRIES, train_group

MAX_THREADS = 1024
DONE, IDLE, STOPPED = "done", "idle", "stopped"


@dataclass(frozen=True)
class Drained(Printed):
    """What a worker did.

    Attributes
    ----------
    ended : {"done", "idle", "stopped"}
        Why it ended: all networks are done; there was nothing to claim; its time was over, or the system ended it.
    trained : int
        Number of groups that it trained.
    left, failed : int
        Numbers of networks in the folder that are not done, and that failed.
    total : int
        Number of all networks in the folder.
    """

    ended: str
    trained: int
    left: int
    failed: int
    total: int

    def __str__(self) -> str:
        text = f"trained {self.trained} group(s); {self.total - self.left} of {self.total} networks are done"
        return f"{text}, of which {self.failed} failed" if self.failed else text


def drain_folder(
    path: str | os.PathLike[str],
    *,
    idle: float | None = None,
    max_minutes: float | None = None,
    threads: int = 1,
) -> Drained:
    """Train what is not done in the folder of a sweep until nothing is left.

    What other live workers hold is waited for, and taken over if they die. When the time is over, or on SIGTERM, a
    checkpoint is written, from which the next worker goes on.

    Parameters
    ----------
    path : path
        The folder, which `bnrank.sweep` made.
    idle : float, optional
        Minutes to wait while other workers hold all that is left. Default: until that is done.
    max_minutes : float, optional
        Wall time in minutes.
    threads : int
        Threads of PyTorch.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, the folder is none of a sweep or of other versions of bnrank or torch, or cannot be
        written to.
    """
    idle = validation.optional(validation.number, idle, "idle", 0.0)
    max_minutes = validation.optional(validation.number, max_minutes, "max_minutes", 0.0, strict=True)
    threads = validation.integer(threads, "threads", 1, MAX_THREADS)
    folder = SweepFolder.open(path, worker=True)
    folder.check_versions()
    before, worker = torch.get_num_threads(), _Worker(folder, idle)
    torch.set_num_threads(threads)
    try:
        with _limited(max_minutes) as stopped:
            try:
                ended = worker.drain(stopped)
            except KeyboardInterrupt:
                if not stopped.is_set():
                    raise
                ended = STOPPED
    finally:
        torch.set_num_threads(before)
    folder.refresh()
    members = {member.key: member for group in folder.groups().values() for member in group.members}
    done = [member.key for member in members.values() if folder.is_done(member)]
    failed = sum(folder.rows[key]["status"] == FAILED for key in done)
    return Drained(ended, worker.trained, len(members) - len(done), failed, len(members))


class _Worker:
    """Trains one group after the other, those with the most work first."""

    def __init__(self, folder: SweepFolder, idle: float | None) -> None:
        self.folder, self.idle, self.trained = folder, idle, 0

    def drain(self, stopped: threading.Event) -> str:
        """Train what is not done; return why it ended."""
        with writing("path", self.folder.path):
            writer = Writer(self.folder.path)
        waited = time.monotonic()
        deaths = 0  # groups whose processes died without progress come last
        with writer:
            while groups := self._left():
                busy = True
                for group in groups:
                    result = train_group(self.folder, writer, group, None, RETRIES, deaths)
                    self.trained += result == "trained"
                    busy = busy and result == "busy"
                    if stopped.is_set():
                        return STOPPED
                deaths = deaths + 1 if busy else 0
                if deaths <= RETRIES + 1:
                    waited = time.monotonic()
                elif self.idle is not None and time.monotonic() - waited >= 60 * self.idle:
                    return IDLE
                else:
                    time.sleep(POLL)
        return DONE

    def _left(self) -> list[Group]:
        self.folder.refresh()
        left = [group for group in self.folder.groups().values() if not self.folder.is_done(*group.members)]
        return sorted(left, key=lambda group: -group.work)


@contextlib.contextmanager
def _limited(minutes: float | None) -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt when the time is over, or on SIGTERM; the event tells these from Ctrl-C."""
    stopped = threading.Event()

    def stop(*signal_: object) -> None:
        stopped.set()
        _thread.interrupt_main()

    timer = None if minutes is None else threading.Timer(min(60 * minutes, threading.TIMEOUT_MAX), stop)
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield stopped
    finally:
        if timer is not None:
            timer.cancel()
        if main:
            signal.signal(signal.SIGTERM, before)
