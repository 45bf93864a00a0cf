"""`bnrank compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

from bnrank._core import validation
from bnrank.cli.arguments import (
    TASKS,
    Member,
    ModelSpec,
    Slope,
    Targets,
    Weights,
    checked_output,
    read_model,
    table_path,
    words,
)
from bnrank.cli.frames import read_arrays, read_table
from bnrank.cli.terminal import say, say_where
from bnrank.discovery import Compressed, compress
from bnrank.reporting import report

__all__ = ["compress_command"]


def compress_command(
    model: ModelSpec,
    data: Annotated[
        str,
        typer.Argument(
            help="Samples like those the network is for: an .npz with x (and x_test, which decides nothing and is for "
            "the certificate), a .csv, or one of the tasks of train."
        ),
    ],
    tol: Annotated[
        float, typer.Option(help="Largest change of the output, relative to its spread over the samples.")
    ] = 0.01,
    tune: Annotated[int, typer.Option(help="Iterations that fit what is left to the outputs before.")] = 0,
    weights: Weights = None,
    slope: Slope = 0.0,
    member: Member = 0,
    targets: Targets = None,
    ignore: Annotated[str | None, typer.Option(help="Columns of a .csv that are no inputs either.")] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of held-out samples.")] = 0,
    save: Annotated[Path, typer.Option(help="The smaller network, a .safetensors file.")] = Path(
        "compressed.safetensors"
    ),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compress.html"),
) -> None:
    """Cut a trained network down to its bottleneck, certify what that changed, and write it without pickle, and a page.

    A network of which nothing can be saved is left as it is, with the reason; no network is written then.

    Example: [bold]bnrank compress run low-rank --tol 0.02 --save small.safetensors[/]

    Here run is what [bold]bnrank train low-rank --depth 12 --width 30 --ridge 0.002 --steps 500 --out run[/] left.
    """
    checked_output(out, "out")
    checked_output(save, "save", ".safetensors")
    if any(Path(given).resolve() == save.resolve() for given in (model, weights) if given is not None):
        raise ValueError(f"save: got {str(save)!r}, the network that is read, expected another name")
    name, x, x_test = _samples(data, targets, ignore)
    net, _ = read_model(model, weights, slope, member)
    if ":" in model and weights is None:
        say("no --weights: the module as the function returns it")
    found = compress(net, x, tol, held_out=0.2 if x_test is None else x_test, tune=tune, seed=seed)
    say(str(found))
    title = f"{Path(model).name} on {name}"
    say_where("The page", report({title: found}, out, title=f"bnrank compress: {title}"))
    if not found.changed:
        say("The network: nothing to cut, and none is written")
        return
    say_where("The network", found.save(save))
    say(f"  in Python: {_how_to_load(found, save)}")


def _how_to_load(found: Compressed, path: Path) -> str:
    if "" in found.plan:
        return f"bnrank.discovery.load_compressed({str(path)!r})"
    return f"bnrank.discovery.load_compressed({str(path)!r}, module) with a module as it was before"


def _samples(data: str, targets: str | None, ignore: str | None) -> tuple[str, Tensor, Tensor | None]:
    """Return what the samples are called, x, and held-out x where there are any."""
    if data not in TASKS and table_path(data).suffix.lower() == ".csv":
        table = read_table(data, words(targets), words(ignore), with_outputs=False)
        return table.name, torch.from_numpy(table.x.to_numpy(dtype=np.float32)), None
    if targets or ignore:
        raise ValueError(f"targets, ignore: got columns, expected none for {data}, whose array x is taken")
    name, arrays = read_arrays(data)
    parts = {key: torch.from_numpy(arrays[key]) for key in ("x", "x_test") if key in arrays}
    for key, part in parts.items():
        if part.is_floating_point():
            parts[key] = validation.samples(part, key, ndim=None)
    return name, parts["x"], parts.get("x_test")
