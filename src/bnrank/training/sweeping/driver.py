"""Running the groups of a sweep: in this process, in processes of its own, or on any executor.

The folder is the truth. What a process or a future says is never believed: the driver looks at the rows.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bnrank._core.locks import StorageError
from bnrank._core.processes import end_with_parent
from bnrank._core.progress import bar
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.folder import FAILED, SweepFolder
from bnrank.training.sweeping.groups import Group
from bnrank.training.sweeping.rows import Writer
from bnrank.training.sweeping.work import RETRIES, drain, work

POLL = 0.2  # seconds between looks at the folder
STARTS = 5  # processes in a row that may end before any of them has claimed or trained a group
PATIENCE = 10.0  # seconds for a process to write its checkpoint after Ctrl-C
Tell = Callable[[], None]


def run_all(folder: SweepFolder, groups: Sequence[Group], executor: Any, processes: int | None, progress: bool) -> int:
    """Train what is not done yet, or has failed before, and return how many networks were trained in this call."""
    call = uuid.uuid4().hex
    folder.refresh()
    keys = {member.key for group in groups for member in group.members}
    waiting = [group for group in groups if not _is_done(folder, group, call)]
    waiting.sort(key=lambda group: -group.work)
    text = "training networks"
    with bar(progress, text, len(keys)) as show:

        def tell() -> None:
            folder.refresh()
            show(sum(folder.is_done(key, call) for key in keys), text)

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


def _is_done(folder: SweepFolder, group: Group, call: str) -> bool:
    return all(folder.is_done(member.key, call) for member in group.members)


def _tidy(folder: SweepFolder, groups: Sequence[Group]) -> None:
    """Remove what workers left that were killed after their rows were written."""
    place = folder.path / leases.FOLDER
    left = {path.name for path in place.iterdir()} if place.is_dir() else set()
    for part in (part for group in groups for part in (group, *folder.parts(group))):
        if part.id in left and all(folder.is_done(member.key, None) for member in part.members):
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
        early = 0
        while running:
            connection.wait([process.sentinel for process in running], timeout=POLL)
            tell()
            for process in [process for process in running if process.exitcode is not None]:
                ours = running.pop(process)
                messages = _received(ours)
                for error in (message for message in messages if isinstance(message, BaseException)):
                    raise error
                if process.exitcode == 0 or all(_is_done(folder, group, call) for group in groups):
                    continue
                early = 0 if "ready" in messages else early + 1
                if early >= STARTS:
                    raise RuntimeError(
                        f"processes: {STARTS} workers ended before they began (exit code {process.exitcode}); a script "
                        "needs if __name__ == '__main__': around the sweep, and processes=1 runs it without workers"
                    )
                start()


def _process(path: str, texts: list[str], call: str, threads: int, driver: connection.Connection) -> None:
    """Drain groups in a process of its own."""
    end_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C in a terminal reaches the driver only: a second one would cut the checkpoint short
    torch.set_num_threads(threads)
    driver.send("ready")
    try:
        for _ in drain(SweepFolder.open(path), [Group.from_json(text) for text in texts], call):
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


def _on_executor(folder: SweepFolder, groups: list[Group], call: str, executor: Executor, tell: Tell) -> None:
    """Submit every group, and again those that are not done when their future ends, for whatever reason."""
    waiting, futures, errors = list(groups), dict[Future[str], Group](), Counter[str]()
    fixed = str(folder.path), call, 1, RETRIES, os.getpid()
    try:
        while waiting or futures:
            for group in waiting:
                try:
                    future = executor.submit(work, fixed[0], group.to_json(), *fixed[1:])
                except Exception as error:  # a broken executor stays broken
                    _fail(folder, groups, call, error)
                    return
                futures[future] = group
            waiting = []
            ended, _ = wait(futures, timeout=POLL, return_when=FIRST_COMPLETED)
            tell()
            for future in ended:
                group = futures.pop(future)
                failed = _error_of(future)
                if _is_done(folder, group, call):
                    continue
                if isinstance(failed, StorageError):
                    raise failed
                errors[group.id] += failed is not None
                if failed is not None and errors[group.id] > (RETRIES + 1) * (
                    len(group.members) + 1
                ):  # of the group, then each alone
                    _fail(folder, [group], call, failed)
                    continue
                waiting.append(group)
            if waiting:
                time.sleep(POLL)  # others are at work on these, or they broke their process
    finally:
        for future in futures:
            future.cancel()


def _error_of(future: Future[str]) -> BaseException | None:
    try:
        return future.exception()
    except BaseException as error:  # a cancelled future raises
        return error


def _fail(folder: SweepFolder, groups: Sequence[Group], call: str, error: BaseException) -> None:
    """Store an error of the executor as the result of the networks that it did not train."""
    folder.refresh()
    left = [member for group in groups for member in group.members if not folder.is_done(member.key, call)]
    message = f"{type(error).__name__}: {error} (of the executor; the next call tries again)"
    with Writer(folder.path) as writer:
        writer.append([{"key": m.key, "status": FAILED, "error": message, "call": call} for m in left])
