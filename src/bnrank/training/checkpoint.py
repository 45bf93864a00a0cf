"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bnrank.training.settings import Settings

__all__ = ["atomic_path", "discard_partial", "prepare_folder", "read", "write", "write_text"]

NAME = "checkpoint.safetensors"
FORMAT = "bnrank checkpoint 1"
PARTIAL = ".partial"  # how the names of files end that are being written


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, and put what was written there in its place on success."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def discard_partial(folder: Path) -> None:
    """Remove what a killed process was writing into a folder."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def prepare_folder(out: str | os.PathLike[str]) -> Path:
    """Create a folder if need be, and make sure that it can be written to.

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


def write(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any], settings: Settings) -> None:
    """Write a checkpoint: one file with all tensors, and settings and status as JSON in its header.

    Raises
    ------
    ValueError
        If the folder is full or cannot be written to; the checkpoint before stays as it was.
    """
    metadata = {"format": FORMAT, "settings": settings.to_json(), "about": json.dumps(about)}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_path(folder / NAME) as temporary:
            save_file(plain, temporary, metadata)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"out: cannot write a checkpoint to {str(folder)!r}: {error}; the one before, if any, is untouched"
        ) from error


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], Settings] | None:
    """Return tensors, status and settings of the folder's checkpoint, None without one.

    Raises
    ------
    ValueError
        If the file is truncated or is not a checkpoint.
    """
    path = folder / NAME
    if not path.exists():
        return None
    remedy = "move it away, or train with resume=False to start anew"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"out: {str(path)!r} is not a checkpoint of this version of bnrank; {remedy}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(metadata["about"]), Settings.from_json(metadata["settings"])
    except (SafetensorError, OSError, AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"out: {str(path)!r} is damaged or is not a checkpoint ({error}); {remedy}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
