"""Leases: at most one live process works on a group; the lease of a dead one is taken over.

A lease is a file that names its process. It is created by a hard link, which fails if the file exists, on network file
systems, too. The holder touches it every few seconds, as long as its thread uses processor time, so that a training
that hangs loses it (one that computes for ever does not). A lease has expired if its process is gone, where this can be
known: in the same namespace of processes of the same boot of a machine. Otherwise it has if it was not touched for
long, by the clock of the file system, or, of a live process, as this one has seen it (a machine may have slept). It is
taken over under a lock, so that one process does; where the file system has no locks, two can, which costs time but
no result.
"""

import contextlib
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnrank._core import locks
from bnrank._core.files import write_atomically

FOLDER = "leases"
EXPIRES = 120.0  # seconds without a touch
PROCESSES = Path("/proc")
TOUCHED = 10.0  # seconds between touches
WORKING = 1e-3  # seconds of processor time between touches, below which a training hangs
LOCK = ".lock"
_held: dict[str, "Lease"] = {}  # the leases of this process by their ids
_seen: dict[Path, tuple[object, float]] = {}  # last touches of leases of live processes, when seen first


@dataclass(frozen=True)
class Lease:
    """A lease that this process holds.

    Attributes
    ----------
    path : Path
        Its file.
    attempt : int
        1 for the first holder, 2 for the one who took over from it, and so on; 1 again after one that made progress.
    id : str
        Of this lease.
    """

    path: Path
    attempt: int
    id: str

    def is_own(self) -> bool:
        """Return whether no other process has taken over: one on another machine does if this one slept for long."""
        return (_read(self.path) or {}).get("id") == self.id

    def release(self) -> None:
        """Give the lease back."""
        _held.pop(self.id, None)
        if self.is_own():
            self.path.unlink(missing_ok=True)


def take(
    folder: Path, name: str, expires: float = EXPIRES, progress: str | None = None, deaths: int | None = None
) -> Lease | None:
    """Return the lease of a group; None if a live process holds it.

    Parameters
    ----------
    folder : Path
        The folder of a sweep.
    name : str
        Of the group.
    expires : float
        Seconds after which a lease that is not touched has expired.
    progress : str, optional
        What tells the last checkpoint of the group from earlier ones. If it is another than when the dead holder began,
        that one made progress, and its death does not count.
    deaths : int, optional
        Take the group only if at most so many processes died that count. Default: however many.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = take(Path(folder), "group"), take(Path(folder), "group")
    ...     first.release()
    ...     first.attempt, second, take(Path(folder), "group").attempt
    (1, None, 1)
    """
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    path = place / name
    if (held := _read(path)) is None:
        return _create(path, 1, progress)
    if not _expired(path, held, expires):
        return None
    advanced = progress is not None and progress != held.get("progress")
    counted = 1 if advanced else held.get("attempt", 1) + 1
    if deaths is not None and counted - 1 > deaths:
        return None
    with locks.alone(place / LOCK, f"out: {str(place)!r}", wait=True):
        if _read(path) != held:  # another process was faster
            return None
        path.unlink(missing_ok=True)
        return _create(path, counted, progress)


def holder(folder: Path, name: str) -> dict[str, Any] | None:
    """Return who holds a lease: process, host, start of the process, attempt; None if no live process does."""
    path = folder / FOLDER / name
    held = _read(path)
    return None if held is None or _expired(path, held, EXPIRES) else held


def is_lost(folder: Path, name: str) -> bool:
    """Return whether the process of a lease is gone, or hangs; False if there is no lease."""
    path = folder / FOLDER / name
    held = _read(path)
    return held is not None and (_expired(path, held, EXPIRES) or hanging(folder, name) is not None)


def hanging(folder: Path, name: str, expires: float = EXPIRES) -> int | None:
    """Return the process of a lease that this process has not seen touched for long; None if there is none."""
    path = folder / FOLDER / name
    try:
        held = _read(path)
        return None if held is None or _untouched(path, held) <= expires else int(held.get("process", 0))
    except FileNotFoundError:
        return None


def names(folder: Path) -> set[str]:
    """Return the names of all leases, expired ones included."""
    place = folder / FOLDER
    return {path.name for path in place.iterdir() if path.name[0] != "."} if place.is_dir() else set()


def excuse() -> None:
    """Let the death of this process, which is about to end, not count against the groups that it holds."""
    for lease in list(_held.values()):
        with contextlib.suppress(OSError):
            held = _read(lease.path) or {}
            if held.get("id") == lease.id and held.get("process") == os.getpid():  # not of the parent of a fork
                write_atomically(lease.path, json.dumps(held | {"attempt": lease.attempt - 1}))


@contextlib.contextmanager
def touching(lease: Lease, every: float = TOUCHED) -> Iterator[None]:
    """Touch a lease every few seconds while this thread is at work, so that it does not expire, and release it."""
    ended, used = threading.Event(), _clock()

    def touch() -> None:
        before = used()
        while not ended.wait(every):
            now = used()
            if now is None or before is None or now - before > WORKING:
                with contextlib.suppress(OSError):
                    if lease.is_own():
                        os.utime(lease.path)
            before = now

    thread = threading.Thread(target=touch, name="touch a lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()


def _clock() -> Callable[[], float | None]:
    """Return a function that returns the processor time of this thread in seconds, None where it cannot be known."""
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
    except (AttributeError, OSError):
        return lambda: None
    return lambda: time.clock_gettime(clock)


def _create(path: Path, attempt: int, progress: str | None) -> Lease | None:
    own = {"process": os.getpid(), "host": socket.gethostname(), "place": _place(), "started": _started(os.getpid())}
    lease = Lease(path, attempt, uuid.uuid4().hex)
    scratch = path.with_name(f".{path.name}.{lease.id}")
    _held[lease.id] = lease
    try:
        scratch.write_text(json.dumps(own | {"attempt": attempt, "progress": progress, "id": lease.id}))
        os.link(scratch, path)
    except BaseException as error:
        _held.pop(lease.id, None)
        if isinstance(error, FileExistsError):
            return None
        raise
    finally:
        scratch.unlink(missing_ok=True)
    return lease


def _read(path: Path) -> dict[str, Any] | None:
    """Return who a lease names; None if it does not exist, nobody if it is damaged, which expires with its touches."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return {}


def _expired(path: Path, held: dict[str, Any], expires: float) -> bool:
    try:
        if held.get("place") == _place():
            gone = _started(held.get("process", 0)) != held.get("started")
            # a call of this process may have been interrupted before it could give the lease back
            forgotten = held.get("process") == os.getpid() and held.get("id") not in _held
            return gone or forgotten or _untouched(path, held) > expires
        return _now(path) - path.stat().st_mtime > expires
    except FileNotFoundError:
        return False


def _untouched(path: Path, held: dict[str, Any]) -> float:
    """Return for how many seconds, of those that this machine was awake, this process has seen no touch of a lease."""
    touch, now = (held.get("id"), path.stat().st_mtime_ns), time.monotonic()
    if path not in _seen or _seen[path][0] != touch:
        _seen[path] = touch, now
    return now - _seen[path][1]


def _now(path: Path) -> float:
    """Return the time of the file system of a path, not of this machine."""
    clock = path.with_name(f".clock.{uuid.uuid4().hex}")
    try:
        with contextlib.suppress(OSError):
            clock.touch()
        return clock.stat().st_mtime if clock.exists() else time.time()  # of a folder that is only read
    finally:
        with contextlib.suppress(OSError):
            clock.unlink(missing_ok=True)


@functools.cache
def _place() -> str:
    """Return what processes share that can see whether one of them is alive: a boot of a machine, and a namespace."""
    try:
        boot = (PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(PROCESSES / 'self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(process: int) -> str:
    """Return when a process of this machine started, which tells it from later ones of the same number; "" if gone."""
    try:
        fields = (PROCESSES / str(process) / "stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except FileNotFoundError:
        if (PROCESSES / "self").is_dir():
            return ""
    except OSError:
        return ""
    try:  # a system without /proc
        os.kill(process, 0)
    except OSError:
        return ""
    return "alive"
