"""Folders and files of results: atomic writes, checks before the work, one writer per folder."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bnrank._core import locks, validation
from bnrank._core.locks import StorageError as StorageError
from bnrank._core.sources import as_path

PARTIAL = ".partial"  # suffix of folders with unfinished files
LOCK = ".lock"  # in a folder of results while a process writes to it


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Provide a temporary path next to ``path``, and move the file written there to ``path`` on success.

    The path is in a separate folder, for libraries that write temporary files themselves. The folder is locked for as
    long as it is in use. A device, pipe or folder is never replaced.
    """
    got = f"{str(path)!r}, which is a folder, device or pipe"
    validation.expect(_is_replaceable(path), "path", got, "the name of a file")
    scratch, lock = _scratch(path)
    temporary = scratch / path.name
    try:
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # the system applies the umask
        mode = stat.S_IMODE(os.fstat(new).st_mode)
        os.close(new)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            locks.release(lock)


def _scratch(path: Path) -> tuple[Path, int | None]:
    """Return a new folder next to a path, and its lock, None where folders cannot be locked."""
    while True:
        scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=PARTIAL))
        lock = locks.folder(scratch)
        if lock is not None or scratch.is_dir():  # otherwise another process removed it before it was locked
            return scratch, lock


def discard_partial(folder: Path) -> None:
    """Remove unfinished files of killed processes from a folder, those that no live process has locked.

    Where the system has no locks, nothing is removed.
    """
    for path in folder.glob(f".*{PARTIAL}"):
        with locks.free(path) as free:  # locked until it is gone: its creator then makes a new one
            if free:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def writing(name: str, path: Path, more: str = "") -> Iterator[None]:
    """Turn an `OSError` into an error that names the argument, the path and the reason."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{name}: cannot write to {str(path)!r}: {error.strerror or error}{more}") from error


@contextlib.contextmanager
def one_writer(folder: Path, name: str = "out", *, lock: str = LOCK, wait: bool = False) -> Iterator[None]:
    """Keep other processes and threads that do the same from a folder; unfinished files of killed ones are removed.

    With ``wait``, wait for those that are at work in it. Different locks are independent.

    Raises
    ------
    ValueError
        If another process or thread is at work in the folder, or it cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        with writing(name, folder):
            stack.enter_context(locks.alone(folder / lock, f"{name}: {str(folder)!r}", wait=wait))
        discard_partial(folder)
        yield


def prepare_folder(out: str | os.PathLike[str], name: str = "out") -> Path:
    """Return a writable folder, created if necessary.

    Raises
    ------
    TypeError, ValueError
        If it is not a path, is a file, or cannot be created or written to; the message says why.
    """
    folder = as_path(out, name)
    with writing(name, folder):
        folder.mkdir(parents=True, exist_ok=True)
        _try(folder)
    return folder


def checked_path(path: str | os.PathLike[str], name: str, suffix: str | None = None, *, parents: bool = False) -> Path:
    """Return a path that a file can be written to; with ``parents``, in folders that are created when it is written.

    Raises
    ------
    TypeError, ValueError
        If it is not a path, has another ending, is a folder, device or pipe, or lies in a folder that does not exist or
        cannot be written to.
    """
    path = as_path(path, name)
    validation.expect(not (suffix and path.suffix != suffix), name, f"{path.name!r}", f"a name ending in {suffix}")
    folder = path.parent
    while parents and not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    with writing(name, path):
        validation.expect(not path.is_dir(), name, f"{str(path)!r}, which is a folder", "a file name")
        validation.expect(_is_replaceable(path), name, f"{str(path)!r}, which is a device or pipe", "a file name")
        validation.expect(folder.is_dir(), name, f"{str(path)!r}", "a path in a folder that exists")
        _try(folder)
    return path


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def _is_replaceable(path: Path) -> bool:
    """Return whether a path is a file or nothing; an OSError where that cannot be known."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _try(folder: Path) -> None:
    """Raise an OSError if nothing can be written to a folder."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"bnrank")
        file.flush()
