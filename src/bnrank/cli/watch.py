"""`bnrank watch`."""

from pathlib import Path
from typing import Annotated

import typer

from bnrank.cli.arguments import page_path, write_page
from bnrank.cli.naming import Names
from bnrank.cli.terminal import console, escape
from bnrank.training.watching.checkpoints import read_checkpoints


def watch_command(
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Checkpoints: .safetensors, .pt, .pth, .bin or .ckpt, numbered by step."),
        Names(folder="FOLDER"),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write a page.")] = None,
) -> None:
    """Measure ranks and subnormal weights of the checkpoints of a training, over its steps.

    Example: [bold]bnrank watch checkpoints --out watch.html[/]

    The files are, for example, checkpoints/step-100.safetensors, or checkpoints/checkpoint-500/model.safetensors.
    """
    if out is not None:
        page_path(out)
    found = read_checkpoints(folder)
    console.print(escape(str(found)), highlight=False, soft_wrap=True)
    if out is not None:
        write_page(found, out, "bnrank watch")
