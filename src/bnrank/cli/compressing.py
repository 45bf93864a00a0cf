"""`bnrank compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from bnrank import tasks
from bnrank._core.files import checked_path
from bnrank.cli.arguments import (
    DropMissing,
    Ignore,
    Member,
    ModelSpec,
    Slope,
    Targets,
    Weights,
    read_model,
    words,
)
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
    ignore: Ignore = None,
    drop_missing: DropMissing = False,
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
    checked_path(out, "out")
    checked_path(save, "save", ".safetensors")
    if any(Path(given).resolve() == save.resolve() for given in (model, weights) if given is not None):
        raise ValueError(f"save: got {str(save)!r}, the network that is read, expected another name")
    table = tasks.read_table(data, words(targets), words(ignore), outputs=False, drop_missing=drop_missing)
    x, x_test = (None if part is None else torch.from_numpy(part) for part in (table.x, table.x_test))
    assert x is not None
    net, _ = read_model(model, weights, slope, member)
    if ":" in model and weights is None:
        say("no --weights: the module as the function returns it")
    found = compress(net, x, tol=tol, held_out=0.2 if x_test is None else x_test, tune=tune, seed=seed)
    say(str(found))
    title = f"{Path(model).name} on {table.name}"
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
