"""`bnrank profile`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, ModelFiles, ModelSpec, TableColumns, page_path, write_page
from bnrank.cli.terminal import escape

# Headings that fit a terminal of 80 columns.
SHORT = {
    "rank of W": "rank",
    "s₁ of W": "s₁(W)",
    "s₁ of activations": "s₁(a)",
    "nonlinearity": "nonlin.",
    "‖θ‖² of the layer": "‖θ‖²",
}


def profile_command(
    model: ModelSpec,
    data: Data,
    files: ModelFiles,
    columns: TableColumns,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("profile.html"),
) -> None:
    """Measure your network layer by layer on your data, and write a page.

    Example: [bold]bnrank profile run low-rank --out profile.html[/]

    The folder run is written by [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/].
    """
    page_path(out, model, data, files.weights)
    net, _ = files.read(model)
    task = columns.task(data)
    measured = bnrank.profile(net, task.x, task.y)
    layers = bnrank.reporting.tables.layer_rows(measured)
    rows = [{SHORT.get(name, name): value for name, value in row.items()} for row in layers]
    section = bnrank.Section(f"{Path(model).name} on {task.name}", profile=measured)
    terminal.show(text.table(rows))
    for line in bnrank.measures.describe(measured):
        terminal.console.print(escape(line), highlight=False)
    write_page(section, out, "bnrank profile")
