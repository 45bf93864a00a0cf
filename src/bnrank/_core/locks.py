"""Locks that the system releases when their process ends, whatever ended it."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

_open: set[int] = set()  # descriptors of the locks of this process


class StorageError(ValueError):
    """A file or folder that cannot be written to."""


class InUseError(StorageError):
    """A folder to which another process or thread writes."""


def take(descriptor: int, *, wait: bool = False) -> bool | None:
    """Return whether an open file or folder is locked now, and None where the system cannot lock it.

    False if it is locked through another descriptor, by another process or this one, unless the call waits.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # network file systems do not lock everything
        return None
    return True


def folder(path: Path) -> int | None:
    """Return the descriptor of a folder that is locked now; None if it is gone, or folders cannot be locked."""
    if fcntl is None:
        return None
    try:
        descriptor = _opened(path, os.O_RDONLY)
    except OSError:
        return None
    if take(descriptor, wait=True) and _is_at(descriptor, path):
        return descriptor
    release(descriptor)
    return None


def release(descriptor: int) -> None:
    """Close a descriptor, and so release its lock, unless a fork has closed it."""
    if descriptor in _open:
        _open.discard(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def free(path: Path) -> Iterator[bool]:
    """Provide whether nobody else holds the lock of a folder, and hold it meanwhile; False where that is unknown."""
    try:
        descriptor = None if fcntl is None else _opened(path, os.O_RDONLY)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None and take(descriptor) is True
    finally:
        if descriptor is not None:
            release(descriptor)


@contextlib.contextmanager
def alone(path: Path, held: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is created and in the end removed.

    The file of a process that was killed stays and does not matter: its lock is gone. Where the system has no locks,
    this does nothing.

    Parameters
    ----------
    path : Path
        The file.
    held : str
        Start of the message of the error, before "is in use by process ...".
    wait : bool
        Wait for a lock that is held, instead of raising.

    Raises
    ------
    InUseError
        If another process, or another thread of this one, holds the lock.
    OSError
        If the file cannot be created.
    """
    while True:
        descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
        try:
            taken = take(descriptor, wait=wait)
            if taken is False:
                raise InUseError(f"{held} is in use by {_owner(descriptor)}") from BlockingIOError(str(path))
            if _is_at(descriptor, path):  # not removed by the one that held it before
                break
        except BaseException:
            release(descriptor)
            raise
        release(descriptor)
    try:
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())
        yield
    finally:
        if descriptor in _open and _is_at(descriptor, path):
            with contextlib.suppress(OSError):
                path.unlink()
        release(descriptor)


def _opened(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags, 0o666)
    _open.add(descriptor)
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _owner(descriptor: int) -> str:
    """Return the process that a lock file names, "another process" if it names none."""
    number, _, host = os.pread(descriptor, 300, 0).decode(errors="replace").partition(" ")
    if not number.isdecimal():
        return "another process"
    if host != socket.gethostname():
        return f"process {number} on {host}"
    return f"this process, {number}" if int(number) == os.getpid() else f"process {number}"


def _forget() -> None:
    """Close the locks in a forked child: they belong to its parent, which alone must be able to end them."""
    while _open:
        with contextlib.suppress(OSError):
            os.close(_open.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
