"""`bnrank profile` and `bnrank check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnrank import tasks
from bnrank._core import text
from bnrank.cli import terminal
from bnrank.cli.arguments import (
    Data,
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
from bnrank.cli.terminal import escape, say_where
from bnrank.measures import describe, profile
from bnrank.reporting import Section, report, tables
from bnrank.reporting.tables import summary, verdict_rows
from bnrank.theory.registry import check

__all__ = ["check_command", "profile_command"]

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
    weights: Weights = None,
    slope: Slope = 0.0,
    member: Member = 0,
    targets: Targets = None,
    ignore: Ignore = None,
    drop_missing: DropMissing = False,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("profile.html"),
) -> None:
    """Measure a network of your own, layer by layer, on data of your own, and write a page.

    Example: [bold]bnrank profile model.safetensors data.npz --out profile.html[/]
    """
    task = tasks.load_table(data, words(targets), words(ignore), drop_missing)
    net, _ = read_model(model, weights, slope, member)
    measured = profile(net, task.x, task.y)
    rows = [{short: row.get(name) for name, short in LAYER.items()} for row in tables.layer_rows(measured)]
    page = report(Section(f"{Path(model).name} on {task.name}", profile=measured), out, title="bnrank profile")
    terminal.console.print(text.table(rows))
    for line in describe(measured):
        terminal.console.print(escape(line), highlight=False)
    say_where("The page", page)


def check_command(
    model: ModelSpec,
    data: Data,
    ridge: Annotated[
        float | None, typer.Option(help="lambda it was trained with; a folder of train knows its own.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Ids of the statements wanted, such as T4,T14.")] = None,
    weights: Weights = None,
    slope: Slope = 0.0,
    member: Member = 0,
    targets: Targets = None,
    ignore: Ignore = None,
    drop_missing: DropMissing = False,
    rtol: Annotated[float, typer.Option(help="Singular values above it times the largest count for a rank.")] = 1e-6,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("check.html"),
) -> None:
    """Check every statement of the theory on a network of your own, and write a page.

    Exit status 1 if a statement is violated.

    Example: [bold]bnrank check model.safetensors data.npz --ridge 0.001 --out check.html[/]
    """
    task = tasks.load_table(data, words(targets), words(ignore), drop_missing)
    net, known = read_model(model, weights, slope, member)
    chosen = only.replace(" ", "").split(",") if only else None
    verdicts = check(net, task.x, task.y, known if ridge is None else ridge, only=chosen, rtol=rtol)
    page = report(Section(f"{Path(model).name} on {task.name}", verdicts=verdicts), out, title="bnrank check")
    rows = [{short: row[name] for name, short in VERDICT.items()} for row in verdict_rows(verdicts)]
    terminal.console.print(text.table(rows, title=summary(verdicts)))
    say_where("The page", page)
    if not verdicts.ok:
        raise typer.Exit(1)
