"""`bnrank watch`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import validation
from bnrank.cli.arguments import page_path, write_page
from bnrank.cli.naming import Names, naming
from bnrank.cli.terminal import console, escape, say
from bnrank.training import Sweep
from bnrank.training.checkpoints import read_checkpoints
from bnrank.training.sweeping.folder import ABOUT


def watch_command(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Checkpoints: .safetensors, .pt, .pth, .bin, .ckpt or .pth.tar, numbered by step; or a sweep.",
        ),
        Names(folder="FOLDER"),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write a page.")] = None,
    every: Annotated[
        float | None, typer.Option(help="Of a sweep: write the page again after so many seconds, until it ends.")
    ] = None,
) -> None:
    """Measure ranks and subnormal weights of the checkpoints of a training, over its steps; or show a sweep.

    Example: [bold]bnrank watch checkpoints --out watch.html[/]

    The folder is written by [bold]bnrank train low-rank --steps 300 --out watched --checkpoints checkpoints[/]. Other
    names of files are, for example, checkpoints/step-100.pt, or checkpoints/checkpoint-500/model.safetensors.
    """
    if out is not None:
        page_path(out)
    if (Path(folder) / ABOUT).is_file():
        _sweep(folder, out, every)
        return
    validation.expect(every is None, "every", f"{every}, and {folder!r} is no sweep", "the folder of a sweep")
    found = read_checkpoints(folder)
    console.print(escape(str(found)), highlight=False, soft_wrap=True)
    if out is not None:
        write_page(found, out, "bnrank watch")


def _sweep(folder: str, out: Path | None, every: float | None) -> None:
    """Show a sweep, and write its page, once or until the sweep ends."""
    validation.expect(every is None or out is not None, "every", f"{every} without out", "a page to write (out)")
    console.print(escape(str(Sweep.open(folder))), highlight=False, soft_wrap=True)
    if out is not None:
        with naming({"path": "--out"}):
            options = {"max_minutes": 0.0} if every is None else {"every": every}
            say(f"The page: {bnrank.reporting.follow(folder, out, title='bnrank watch', **options)}")
