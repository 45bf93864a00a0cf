"""What several verbs take: a model, data, and the options that go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from bnrank import tasks
from bnrank._core import store
from bnrank.discovery import load_compressed
from bnrank.discovery.compression.result import KIND as COMPRESSED
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
    "read_model",
    "words",
]

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
        if weights is not None and store.read(weights, name="weights").kind == COMPRESSED:
            return load_compressed(weights, load_module(model)), None
        return load_module(model, weights), None
    if weights is not None:
        raise ValueError(f"weights: got {str(weights)!r} beside {model!r}, expected weights for file.py:function alone")
    if Path(model).suffix == ".py":
        raise ValueError(f"model: got {model!r} without :function, expected {model}:NAME, the function that builds it")
    if not Path(model).is_dir():
        return (load_compressed(model) if store.read(model).kind == COMPRESSED else load(model, slope)), None
    run = Run.open(model)
    return run.network(member), run.settings.ridge[member]


def words(text: str | None) -> list[str]:
    """Return what stands between commas.

    Examples
    --------
    >>> words("height, girth"), words(None)
    (['height', 'girth'], [])
    """
    return [word.strip() for word in text.split(",")] if text else []
