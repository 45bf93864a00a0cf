"""`bnrank profile`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank._core.files import checked_path
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, ModelFiles, ModelSpec, TableColumns
from bnrank.cli.terminal import escape, say

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

    Example: [bold]bnrank profile model.safetensors data.npz --out profile.html[/]
    """
    checked_path(out, "out", parents=True)
    task = bnrank.tasks.load_table(data, **columns.arguments)
    net, _ = files.read(model)
    measured = bnrank.profile(net, task.x, task.y)
    layers = bnrank.reporting.tables.layer_rows(measured)
    rows = [{SHORT.get(name, name): value for name, value in row.items()} for row in layers]
    section = bnrank.Section(f"{Path(model).name} on {task.name}", profile=measured)
    page = bnrank.report(section, out, title="bnrank profile")
    terminal.show(text.table(rows))
    for line in bnrank.measures.describe(measured):
        terminal.console.print(escape(line), highlight=False)
    say(f"The page: {page}")
