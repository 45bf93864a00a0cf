"""`bnrank demo`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank._core.files import checked_path
from bnrank.cli import terminal
from bnrank.cli.arguments import Quiet
from bnrank.cli.terminal import escape, say


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer networks and images: about 15 seconds.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train deep networks on a task of rank 2 and one on handwritten digits, and write a page.

    Example: [bold]bnrank demo --out demo[/]
    """
    checked_path(out / "report.html", "out", parents=True)
    done = bnrank.figures.run_demo(out, progress=not quiet, quick=quick)
    terminal.show(text.table(done.rows, title="Results"))
    source = "MNIST" if done.digits == "mnist" else "scikit-learn's bundled digits (no copy of MNIST was found)"
    terminal.console.print(f"Handwritten digits: {source}.\n{escape(done.escaped)}.", highlight=False)
    say(f"The page: {done.page}")
    say(f"The runs: {out / 'quick' if quick else out}")
