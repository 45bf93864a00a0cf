"""What several verbs take: a model, data, and the options that go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError, safe_open
from torch import nn

from bnrank import tasks
from bnrank.discovery import load_compressed
from bnrank.networks import load, load_module
from bnrank.training import Run

__all__ = [
    "Data",
    "DropMissing",
    "Ignore",
    "Member",
    "ModelSpec",
    "Quiet",
    "Slope",
    "Targets",
    "Weights",
    "checked_output",
    "read_model",
    "words",
]

COMPRESSED = "bnrank-compressed"  # in the metadata of such a file

ModelSpec = Annotated[
    str, typer.Argument(help="A .safetensors file, a folder of train, or file.py:function returning an nn.Module.")
]
Data = Annotated[
    str, typer.Argument(help=f"A .csv, an .npz with x and y, or one of {', '.join(tasks.NAMED)}.", show_default=False)
]
Weights = Annotated[Path | None, typer.Option(help="A .safetensors state dict for file.py:function.")]
Slope = Annotated[float, typer.Option(help="Slope of the activation of a bare state dict; 0 is ReLU.")]
Member = Annotated[int, typer.Option(help="Which network of a folder of train.")]
Targets = Annotated[str | None, typer.Option(help="Columns of a .csv that are y, separated by commas.")]
Ignore = Annotated[str | None, typer.Option(help="Columns of a .csv to leave out, separated by commas.")]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def read_model(model: str, weights: Path | None, slope: float, member: int) -> tuple[nn.Module, float | None]:
    """Return a network, and the ridge it was trained with where that is known."""
    if ":" in model:
        if weights is not None and _is_compressed(weights):
            return load_compressed(weights, load_module(model)), None
        return load_module(model, weights), None
    if weights is not None:
        raise ValueError(f"weights: got {str(weights)!r} beside {model!r}, expected weights for file.py:function alone")
    if Path(model).suffix == ".py":
        raise ValueError(f"model: got {model!r} without :function, expected {model}:NAME, the function that builds it")
    if not Path(model).is_dir():
        return (load_compressed(model) if _is_compressed(Path(model)) else load(model, slope)), None
    run = Run.open(model)
    return run.network(member), run.settings.ridge[member]


def _is_compressed(path: Path) -> bool:
    """Say whether a file is one of ``bnrank compress``: as a bare state dict it would be read as another network."""
    try:
        with safe_open(path, framework="pt") as file:
            return COMPRESSED in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def words(text: str | None) -> list[str]:
    """Return what stands between commas.

    Examples
    --------
    >>> words("height, girth"), words(None)
    (['height', 'girth'], [])
    """
    return [word.strip() for word in text.split(",")] if text else []


def checked_output(path: Path, option: str, suffix: str | None = None) -> Path:
    """Return a path that can be written to, so that nothing is computed in vain.

    Raises
    ------
    ValueError
        If it has another ending, is a folder, or lies in none.
    """
    if suffix and path.suffix != suffix:
        raise ValueError(f"{option}: got {path.name!r}, expected a name ending in {suffix}")
    if path.is_dir():
        raise ValueError(f"{option}: got {str(path)!r}, which is a folder, expected a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: got {str(path)!r}, expected a path in a folder that exists")
    return path
