"""Leases: at most one live process works on a group; the lease of a dead one is taken over.

A lease is a file that names its process. It is created by a hard link, which fails if the file exists, on network file
systems, too; the holder touches it every few seconds. It has expired if its process is gone (on this machine) or if it
was not touched for long (on any). It is taken over under a lock, so that one process does; where the file system has
no locks, two can, which costs time but no result.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnrank._core import locks

FOLDER = "leases"
EXPIRES = 120.0  # seconds without a touch
PROCESSES = Path("/proc")
TOUCHED = 10.0  # seconds between touches
LOCK = ".lock"
_held: set[str] = set()  # ids of the leases of this process


@dataclass(frozen=True)
class Lease:
    """A lease that this process holds.

    Attributes
    ----------
    path : Path
        Its file.
    attempt : int
        1 for the first holder, 2 for the one who took over from it, and so on.
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
        _held.discard(self.id)
        if self.is_own():
            self.path.unlink(missing_ok=True)


def take(folder: Path, name: str, expires: float = EXPIRES) -> Lease | None:
    """Return the lease of a group; None if a live process holds it.

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
        return _create(path, 1)
    if not _expired(path, held, expires):
        return None
    with locks.alone(place / LOCK, f"out: {str(place)!r}", wait=True):
        if _read(path) != held:  # another process was faster
            return None
        path.unlink(missing_ok=True)
        return _create(path, held.get("attempt", 1) + 1)


def holder(folder: Path, name: str) -> dict[str, Any] | None:
    """Return who holds a lease: process, host, start of the process, attempt; None if no live process does."""
    path = folder / FOLDER / name
    held = _read(path)
    return None if held is None or _expired(path, held, EXPIRES) else held


@contextlib.contextmanager
def touching(lease: Lease, every: float = TOUCHED) -> Iterator[None]:
    """Touch a lease every few seconds, so that it does not expire; release it in the end."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(every):
            with contextlib.suppress(OSError):
                if lease.is_own():
                    os.utime(lease.path)

    thread = threading.Thread(target=touch, name="touch a lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()


def _create(path: Path, attempt: int) -> Lease | None:
    own = {"process": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid()), "attempt": attempt}
    lease = Lease(path, attempt, uuid.uuid4().hex)
    scratch = path.with_name(f".{path.name}.{lease.id}")
    _held.add(lease.id)
    try:
        scratch.write_text(json.dumps(own | {"id": lease.id}))
        os.link(scratch, path)
    except BaseException as error:
        _held.discard(lease.id)
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
    if held.get("host") == socket.gethostname():
        if held.get("process") == os.getpid() and held.get("id") not in _held:
            return True  # of a call that was interrupted before it could give the lease back
        return _started(held.get("process", 0)) != held.get("started")
    clock = path.with_name(f".clock.{uuid.uuid4().hex}")  # the time of the file system, not of this machine
    try:
        with contextlib.suppress(OSError):
            clock.touch()
        now = clock.stat().st_mtime if clock.exists() else time.time()  # of a folder that is only read
        return now - path.stat().st_mtime > expires
    except FileNotFoundError:
        return False
    finally:
        with contextlib.suppress(OSError):
            clock.unlink(missing_ok=True)


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
