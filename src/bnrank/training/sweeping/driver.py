"""Running the groups of a sweep: in this process, in processes of its own, or on any executor.

The folder is the truth. What a process or a future says is never believed: the driver looks at the rows.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bnrank._core.locks import StorageError
from bnrank._core.processes import end_gently, end_with_parent
from bnrank._core.progress import bar
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.engines import Engine, error_of
from bnrank.training.sweeping.folder import FAILED, SweepFolder
from bnrank.training.sweeping.groups import Group
from bnrank.training.sweeping.rows import Writer
from bnrank.training.sweeping.work import RETRIES, drain, work

POLL = 0.2  # seconds between looks at the folder
AHEAD = 10_000  # groups that are submitted and have not ended
STARTS = 5  # processes in a row that may end before any of them has claimed or trained a group
PATIENCE = 10.0  # seconds for a process to write its checkpoint after Ctrl-C
Tell = Callable[[], int]


def run_all(
    folder: SweepFolder, groups: Sequence[Group], executor: Engine | None, processes: int | None, progress: bool
) -> int:
    """Train what is not done yet, or has failed before, and return how many networks were trained in this call."""
    call = uuid.uuid4().hex
    folder.refresh()
    waiting = [group for group in groups if not folder.is_done(*group.members)]
    waiting.sort(key=lambda group: -group.work)
    text = "training networks"
    keys = {member.key for group in groups for member in group.members}
    with bar(progress, text, len(keys)) as show:
        tell = _Looking(folder, groups, lambda done: show(done, text))
        tell()
        if waiting and executor is not None:
            _on_executor(folder, waiting, call, executor, tell)
        elif waiting:
            threads = torch.get_num_threads()
            count = min(threads, len(waiting)) if processes is None else processes
            if count > 1:
                _in_processes(folder, waiting, call, count, max(1, threads // count), tell)
            else:
                for _ in drain(folder, waiting, call):
                    tell()
        tell()
    _tidy(folder, groups)
    return sum(row.get("call") == call for row in map(folder.rows.get, keys) if row is not None)


class _Looking:
    """Reads new rows and shows how many networks are done; returns how many are left, as far as it has counted."""

    def __init__(self, folder: SweepFolder, groups: Sequence[Group], show: Callable[[int], object]) -> None:
        self.folder, self.show = folder, show
        self.left = list({member.key: member for group in groups for member in group.members}.values())
        self.total, self.next = len(self.left), 0.0

    def __call__(self) -> int:
        self.folder.refresh()
        began = time.monotonic()
        if began >= self.next:  # counting takes at most a tenth of the time
            self.left = [member for member in self.left if not self.folder.is_done(member)]
            self.show(self.total - len(self.left))
            self.next = began + 10 * (time.monotonic() - began)
        return len(self.left)


def _tidy(folder: SweepFolder, groups: Sequence[Group]) -> None:
    """Remove what workers left that were killed after their rows were written."""
    left = leases.names(folder.path)
    for part in (part for group in groups if left for part in (group, *folder.parts(group))):
        if part.id in left and folder.is_done(*part.members):
            lease = leases.take(folder.path, part.id)
            if lease is not None:
                folder.discard_checkpoints(part)
                lease.release()


# processes of its own ------------------------------------------------------------------------------------------------


def _in_processes(folder: SweepFolder, groups: list[Group], call: str, count: int, threads: int, tell: Tell) -> None:
    """Let processes drain the groups; one that is killed is replaced."""
    context = get_context("spawn")
    texts = [group.to_json() for group in groups]
    running: dict[BaseProcess, connection.Connection] = {}

    def start() -> None:
        ours, theirs = context.Pipe(duplex=False)
        arguments = str(folder.path), texts, call, threads, theirs
        process = context.Process(target=_process, args=arguments, daemon=True)
        process.start()
        theirs.close()
        running[process] = ours

    with _ending(running):
        for _ in range(count):
            start()
        early, looked, ended = 0, time.monotonic(), 0.0
        while running:
            connection.wait([process.sentinel for process in running], timeout=POLL)
            now = time.monotonic()
            if tell():
                ended = now
            elif now - ended > PATIENCE:  # a process hangs, and others have trained what it began
                break
            if now - looked > leases.TOUCHED:
                looked = now
                _end_hanging(folder, running)
            for process in [process for process in running if process.exitcode is not None]:
                ours = running.pop(process)
                messages = _received(ours)
                for error in (message for message in messages if isinstance(message, BaseException)):
                    raise error
                if process.exitcode == 0 or all(folder.is_done(*group.members) for group in groups):
                    continue
                early = 0 if "ready" in messages else early + 1
                if early >= STARTS:
                    raise RuntimeError(
                        f"processes: {STARTS} workers ended before they began (exit code {process.exitcode}); a script "
                        "needs if __name__ == '__main__': around the sweep, and processes=1 runs it without workers"
                    )
                start()


def _end_hanging(folder: SweepFolder, running: Iterable[BaseProcess]) -> None:
    """Kill processes whose training hangs; others take it over."""
    own = {process.pid: process for process in running}
    for name in leases.names(folder.path):
        process = own.get(leases.hanging(folder.path, name))
        if process is not None:
            process.kill()


def _process(path: str, texts: list[str], call: str, threads: int, driver: connection.Connection) -> None:
    """Drain groups in a process of its own."""
    end_with_parent(leases.excuse)
    end_gently()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in a terminal reaches the driver only: a second one would cut the checkpoint short
    torch.set_num_threads(threads)
    driver.send("ready")
    try:
        for _ in drain(SweepFolder.open(path, worker=True), [Group.from_json(text) for text in texts], call):
            pass
    except KeyboardInterrupt:
        os._exit(1)
    except Exception as error:
        _tell(driver, error)
        raise SystemExit(1) from None


def _tell(driver: connection.Connection, error: Exception) -> None:
    """Send an error to the driver, as text if it cannot be pickled and read again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    driver.send(error)


def _received(ours: connection.Connection) -> list[Any]:
    found = []
    with contextlib.suppress(EOFError, OSError):
        while ours.poll():
            found.append(ours.recv())
    ours.close()
    return found


@contextlib.contextmanager
def _ending(running: dict[BaseProcess, connection.Connection]) -> Iterator[None]:
    """End the processes that are left, with time to write their checkpoints."""
    try:
        yield
    finally:
        for process in running:
            if process.is_alive() and process.pid is not None:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGINT)
        until = time.monotonic() + PATIENCE
        for process in running:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


# executors -----------------------------------------------------------------------------------------------------------


def _on_executor(folder: SweepFolder, groups: list[Group], call: str, engine: Engine, tell: Tell) -> None:
    """Submit every group, and again those that are not done when their future ends, for whatever reason."""
    waiting, again, errors = deque(groups), list[Group](), Counter[str]()
    futures, ended = dict[Future[str], Group](), queue.SimpleQueue[Future[str]]()
    fixed = str(folder.path), call, 1, RETRIES, os.getpid()
    make = engine if callable(engine) and not hasattr(engine, "submit") else None
    executor: Any = engine if make is None else make()
    looked, early, left = time.monotonic(), 0, tell()
    try:
        while waiting or again or futures:
            while waiting and len(futures) < AHEAD:
                try:
                    future = executor.submit(work, fixed[0], waiting[0].to_json(), *fixed[1:])
                except Exception as error:  # a broken executor stays broken
                    early = early + 1 if tell() == left else 0
                    left = tell()
                    if make is None or early >= STARTS:
                        _fail(folder, groups, error)
                        return
                    executor.shutdown(wait=False)
                    executor = make()
                    continue
                futures[future] = waiting.popleft()
                future.add_done_callback(ended.put)
            these = list(_some(ended))
            tell()
            for future in these:
                group = futures.pop(future, None)
                if group is not None and not folder.is_done(*group.members):
                    again += _judged(folder, group, future, errors)
            if time.monotonic() - looked > leases.TOUCHED:
                looked = time.monotonic()
                again += _lost(folder, futures)
            if again:
                time.sleep(POLL)  # others are at work on these, or they broke their process
                waiting.extend(again)
                again = []
    finally:
        for future in futures:
            future.cancel()
        if make is not None:
            executor.shutdown(wait=False)


def _some(ended: queue.SimpleQueue[Future[str]]) -> Iterator[Future[str]]:
    """Yield futures that have ended, after waiting for the first."""
    with contextlib.suppress(queue.Empty):
        yield ended.get(timeout=POLL)
        while True:
            yield ended.get_nowait()


def _judged(folder: SweepFolder, group: Group, future: Future[str], errors: Counter[str]) -> list[Group]:
    """Return the group of a future that has ended without its rows, unless it has failed too often."""
    failed = error_of(future)
    if isinstance(failed, StorageError):
        raise failed
    errors[group.id] += failed is not None
    if failed is not None and errors[group.id] > (RETRIES + 1) * (len(group.members) + 1):  # together, then alone
        _fail(folder, [group], failed)
        return []
    return [group]


def _lost(folder: SweepFolder, futures: dict[Future[str], Group]) -> list[Group]:
    """Forget the futures of groups that are done, or whose process is gone or hangs; return these groups."""
    lost = {name for name in leases.names(folder.path) if leases.is_lost(folder.path, name)}
    found = []
    for future, group in list(futures.items()):
        done = folder.is_done(*group.members)
        if done or (lost and any(part.id in lost for part in folder.parts(group))):
            future.cancel()
            group = futures.pop(future)
            found += [] if done else [group]
    return found


def _fail(folder: SweepFolder, groups: Iterable[Group], error: BaseException) -> None:
    """Store an error of the executor as the result of the networks that it did not train."""
    folder.refresh()
    left = [member for group in groups for member in group.members if not folder.is_done(member)]
    message = f"{type(error).__name__}: {error} (of the executor; the next call tries again)"
    with Writer(folder.path) as writer:
        writer.append([{"key": m.key, "status": FAILED, "error": message} for m in left])
