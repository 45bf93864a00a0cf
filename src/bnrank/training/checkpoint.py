"""Checkpoints: one file each, whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bnrank._core.files import atomic_path
from bnrank.training.settings import Settings

__all__ = ["read", "write"]

NAME = "checkpoint.safetensors"
FORMAT = "bnrank checkpoint 1"


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


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]] | None:
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
            settings = json.loads(metadata["settings"])
            settings["network"], settings["data"]
            return tensors, json.loads(metadata["about"]), settings
    except (SafetensorError, OSError, AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"out: {str(path)!r} is damaged or is not a checkpoint ({error}); {remedy}") from error
