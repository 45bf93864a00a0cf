"""Checkpoints of runs and flows, refused where they are damaged or of other settings."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from bnrank._core import store
from bnrank._core.store import Stored
from bnrank.training.settings import Settings


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, settings: Settings) -> None:
    """Write a checkpoint with the settings that it belongs to.

    Raises
    ------
    ValueError
        If the folder is full or cannot be written to; the previous checkpoint is kept.
    """
    try:
        store.save(path, tensors, {"settings": asdict(settings), **about}, kind)
    except ValueError as error:
        raise ValueError(
            f"out: cannot write a checkpoint to {str(path.parent)!r}: {error}; the one before, if any, is untouched"
        ) from error


def read(path: Path, kind: str, settings: Settings) -> Stored | None:
    """Return a checkpoint from which a computation with these settings can continue, None without one.

    Raises
    ------
    ValueError
        If it is damaged, of another kind or of other settings.
    """
    if not path.exists():
        return None
    try:
        stored = store.load(path, kind, name="out")
        before = stored.about["settings"]
        if not isinstance(before, dict) or before.keys() != asdict(settings).keys():
            raise ValueError("its settings are not those of this version")
        differences = settings.differences(before)
    except (ValueError, KeyError) as error:
        raise refused(path, error) from error
    if differences:
        raise ValueError(
            f"out: {str(path.parent)!r} holds a {kind} with other settings ({'; '.join(differences)}); "
            "give another folder, or resume=False (on the command line --fresh) to overwrite it"
        )
    return stored


def refused(path: Path, error: Exception) -> ValueError:
    """Return the error for a checkpoint that cannot be used."""
    return ValueError(
        f"out: {str(path)!r} is damaged or no checkpoint ({error}); move it away, or use resume=False to start over"
    )
