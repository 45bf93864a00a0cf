"""Atomic file writes."""

import contextlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bnrank._core import validation

PARTIAL = ".partial"  # suffix of folders with unfinished files


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Provide a temporary path next to ``path``, and move the file written there to ``path`` on success.

    The path is in a separate folder, for libraries that write temporary files themselves. A device, pipe or folder is
    never replaced.
    """
    got = f"{str(path)!r}, which is a folder, device or pipe"
    validation.expect(_replaceable(path), "path", got, "the name of a file")
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL))
    temporary = scratch / path.name
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def discard_partial(folder: Path, older: float = -math.inf) -> None:
    """Remove unfinished files of killed processes from a folder, those older than some seconds."""
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older:
                shutil.rmtree(path, ignore_errors=True)


def prepare_folder(out: str | os.PathLike[str]) -> Path:
    """Return a writable folder, created if necessary.

    Raises
    ------
    ValueError
        If it is a file, or cannot be created or written to; the message says why.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"bnrank")
            file.flush()
    except OSError as error:
        raise ValueError(f"out: cannot write to {str(folder)!r}: {error.strerror or error}") from error
    return folder


def checked_path(path: str | os.PathLike[str], name: str, suffix: str | None = None) -> Path:
    """Return a path that a file can be written to.

    Raises
    ------
    TypeError
        If it is not a path.
    ValueError
        If it has another ending, is a folder, device or pipe, or lies in a folder that does not exist.
    """
    validation.expect(isinstance(path, str | os.PathLike), name, path, "the name of a file", TypeError)
    path = Path(path)
    validation.expect(not (suffix and path.suffix != suffix), name, f"{path.name!r}", f"a name ending in {suffix}")
    try:
        validation.expect(not path.is_dir(), name, f"{str(path)!r}, which is a folder", "a file name")
        validation.expect(_replaceable(path), name, f"{str(path)!r}, which is a device or pipe", "a file name")
        validation.expect(path.parent.is_dir(), name, f"{str(path)!r}", "a path in a folder that exists")
    except OSError as error:  # a name that is too long
        raise ValueError(f"{name}: got {str(path)!r}, expected a file name ({error.strerror or error})") from error
    return path


def _replaceable(path: Path) -> bool:
    return path.is_file() or not path.exists()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
