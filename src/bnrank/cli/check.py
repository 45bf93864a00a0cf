"""`bnrank check`."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank.cli import terminal
from bnrank.cli.arguments import DATA, ModelFiles, ModelSpec, TableColumns, page_path, write_page
from bnrank.cli.terminal import say

HEADINGS = {"id": "id", "statement": "statement", "status": "status", "left": "left", "relation": "", "right": "right"}


def check_command(
    model: ModelSpec,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A .csv file, an .npz file with x (and y, for statements on the loss), or a built-in task: low-rank, "
            "bottleneck-spectra, s-shapes, digits, mnist.",
        ),
        DATA,
    ],
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

    Example: [bold]bnrank check run low-rank --out check.html[/]

    The folder run is written by [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/].
    """
    page_path(out, model, data, files.weights)
    net, known = files.read(model)
    samples = columns.samples(data, net)
    samples.say_missing("statements on the loss do not apply")
    chosen = only.replace(" ", "").split(",") if only else None
    verdicts = bnrank.check(net, samples.x, samples.y, known if ridge is None else ridge, only=chosen, rtol=rtol)
    section = bnrank.Section(f"{Path(model).name} on {samples.name}", verdicts=verdicts)
    tables = bnrank.reporting.tables
    say(tables.applicability(verdicts))
    found = tables.verdict_rows(verdicts.applied)
    rows = [{heading: row[name] for name, heading in HEADINGS.items()} for row in found]
    if rows:
        terminal.show(text.table(rows, title=tables.summary(verdicts)))
    remarks: dict[str, list[str]] = {}
    for row in found:
        remarks.setdefault(str(row["remarks"]), []).append(_name(row, found))
    for remark, names in remarks.items():
        if remark:
            say(f"{', '.join(dict.fromkeys(names))}: {remark}")
    for row in tables.unmet_rows(verdicts):
        say(f"not applicable: {row['not applicable']}: {row['reason']}")
    write_page(section, out, "bnrank check")
    if not verdicts.ok:
        raise typer.Exit(1)


def _name(row: dict[str, object], rows: list[dict[str, object]]) -> str:
    """Return the id of a statement, with its name where statements of this id have different remarks."""
    same = all(other["remarks"] == row["remarks"] for other in rows if other["id"] == row["id"])
    return str(row["id"]) if same else f"{row['id']} ({row['statement']})"
