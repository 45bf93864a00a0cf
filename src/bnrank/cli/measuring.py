"""`bnrank profile` and `bnrank check`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, ModelFiles, ModelSpec, TableColumns
from bnrank.cli.terminal import escape, say_where

LAYER = {  # the same for the rows of a profile
    "layer": "layer",
    "name": "name",
    "rank of W": "rank",
    "s₁ of W": "s₁(W)",
    "s₁ of activations": "s₁(a)",
    "nonlinearity": "nonlin.",
    "‖θ‖² of the layer": "‖θ‖²",
}

VERDICT = {  # the same for verdicts
    "id": "id",
    "statement": "statement",
    "status": "status",
    "left": "left",
    "relation": "",
    "right": "right",
    "remarks": "remarks",
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
    task = bnrank.tasks.load_table(data, **columns.arguments)
    net, _ = files.read(model)
    measured = bnrank.profile(net, task.x, task.y)
    layers = bnrank.reporting.tables.layer_rows(measured)
    rows = [{short: row.get(name) for name, short in LAYER.items()} for row in layers]
    section = bnrank.Section(f"{Path(model).name} on {task.name}", profile=measured)
    page = bnrank.report(section, out, title="bnrank profile")
    terminal.console.print(text.table(rows))
    for line in bnrank.measures.describe(measured):
        terminal.console.print(escape(line), highlight=False)
    say_where("The page", page)


def check_command(
    model: ModelSpec,
    data: Data,
    files: ModelFiles,
    columns: TableColumns,
    ridge: Annotated[
        float | None, typer.Option(help="lambda of the training. Default: that of the training run, if known.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Ids of statements, such as T4,T14. Default: all.")] = None,
    rtol: Annotated[float, typer.Option(help="Ranks count singular values above rtol times the largest.")] = 1e-6,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("check.html"),
) -> None:
    """Check every statement of the theory on your network, and write a page.

    The exit status is 1 if a statement is violated.

    Example: [bold]bnrank check model.safetensors data.npz --ridge 0.001 --out check.html[/]
    """
    task = bnrank.tasks.load_table(data, **columns.arguments)
    net, known = files.read(model)
    chosen = only.replace(" ", "").split(",") if only else None
    verdicts = bnrank.check(net, task.x, task.y, known if ridge is None else ridge, only=chosen, rtol=rtol)
    section = bnrank.Section(f"{Path(model).name} on {task.name}", verdicts=verdicts)
    page = bnrank.report(section, out, title="bnrank check")
    tables = bnrank.reporting.tables
    rows = [{short: row[name] for name, short in VERDICT.items()} for row in tables.verdict_rows(verdicts)]
    terminal.console.print(text.table(rows, title=tables.summary(verdicts)))
    say_where("The page", page)
    if not verdicts.ok:
        raise typer.Exit(1)
