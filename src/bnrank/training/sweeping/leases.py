"""Leases: at most one live process works on a group; the lease of a dead one is taken over.

A lease is a file that names its process. It is created by a hard link, which fails if the file exists, on network file
systems, too; the holder touches it every few seconds. It has expired if its process is gone (on this machine) or if it
was not touched for long (on any). Whoever renames an expired lease away first takes over.
"""

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "leases"
EXPIRES = 120.0  # seconds without a touch
PROCESSES = Path("/proc")
TOUCHED = 10.0  # seconds between touches


@dataclass(frozen=True)
class Lease:
    """A lease that this process holds.

    Attributes
    ----------
    path : Path
        Its file.
    attempt : int
        1 for the first holder, 2 for the one who took over from it, and so on.
    """

    path: Path
    attempt: int

    def release(self) -> None:
        """Give the lease back."""
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
    path, attempt = place / name, 1
    if (held := _read(path)) is not None:
        if not _expired(path, held, expires):
            return None
        away = place / f".{name}.{uuid.uuid4().hex}"
        try:
            path.rename(away)
        except FileNotFoundError:
            return None  # another process was faster
        if _read(away) != held:  # it was taken over in the meantime: put that back
            with contextlib.suppress(OSError):
                away.rename(path)
            return None
        away.unlink(missing_ok=True)
        attempt = held.get("attempt", 1) + 1
    return Lease(path, attempt) if _create(path, attempt) else None


def holder(folder: Path, name: str) -> dict[str, Any] | None:
    """Return who holds a lease: process, host, start of the process, attempt; None if nobody does."""
    return _read(folder / FOLDER / name)


@contextlib.contextmanager
def touching(lease: Lease, every: float = TOUCHED) -> Iterator[None]:
    """Touch a lease every few seconds, so that it does not expire; release it in the end."""
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(every):
            with contextlib.suppress(OSError):
                os.utime(lease.path)

    thread = threading.Thread(target=touch, name="touch a lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()


def _create(path: Path, attempt: int) -> bool:
    own = {"process": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid()), "attempt": attempt}
    own["id"] = uuid.uuid4().hex
    scratch = path.with_name(f".{path.name}.{own['id']}")
    scratch.write_text(json.dumps(own))
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def _expired(path: Path, held: dict[str, Any], expires: float) -> bool:
    if held.get("host") == socket.gethostname():
        return _started(held.get("process", 0)) != held.get("started")
    clock = path.with_name(f".clock.{uuid.uuid4().hex}")  # the time of the file system, not of this machine
    try:
        clock.touch()
        return clock.stat().st_mtime - path.stat().st_mtime > expires
    except FileNotFoundError:
        return False
    finally:
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
