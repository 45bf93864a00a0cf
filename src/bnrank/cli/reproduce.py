"""`bnrank reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import bnrank
from bnrank._core import text
from bnrank.cli import terminal
from bnrank.cli.arguments import Executor, Quiet
from bnrank.cli.naming import Names
from bnrank.cli.terminal import escape, say
from bnrank.training.sweeping.engines import named_engine

if TYPE_CHECKING:
    from bnrank import figures


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIGURE", help="Ids or names of figures, or all. Default: all."),
        Names(names="FIGURE"),
    ] = None,
    scale: Annotated[str, typer.Option(help="quick: minutes on two cores; paper: the sources' sizes.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for runs, pictures and the page.")] = Path("reproduction"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard stored results and start over.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the figures, their requirements and stored results; run none.")
    ] = False,
    executor: Executor = None,
    quiet: Quiet = False,
) -> None:
    """Run figures of the theory, print which claims are reproduced, and write a page of all figures.

    A finished figure is not run again; an interrupted one resumes. The exit status is 1 if a figure fails or a claim
    is not reproduced.

    Example: [bold]bnrank reproduce F9[/]

    Example: [bold]bnrank reproduce all --scale paper --out paper[/]

    Example: [bold]bnrank reproduce --list[/]
    """
    if show:
        _list(out, scale, names or ["all"])
        return
    running: list[str] = []

    def start(figure: figures.Figure) -> None:
        running.append(figure.name)
        terminal.console.print(f"[bold]{figure.id}[/] {escape(figure.title)} ...", highlight=False, soft_wrap=True)

    def end(figure: figures.Figure, outcome: figures.Outcome) -> None:
        how = "" if figure.name in running else ", not run" if outcome.error else ", stored before"
        took = "" if outcome.error and not outcome.seconds else f", {bnrank.figures.duration(outcome.seconds)}"
        title = f"{figure.label}, {scale} scale{took}{how}"
        error = f": {escape(outcome.error)}" if outcome.error else ""
        terminal.console.print(f"[bold]{title}[/]{error}", highlight=False, soft_wrap=True)
        if not outcome.error:
            terminal.show(text.table(bnrank.reporting.tables.claim_rows(outcome.claims)))

    page, engine = out / scale / "index.html", None if executor is None else named_engine(executor)
    try:
        outcomes = bnrank.figures.reproduce(names or ["all"], out, scale, not quiet, not fresh, start, end, engine)
    except KeyboardInterrupt:
        again = "rerun without --fresh" if fresh else "rerun"
        say(f"Interrupted in {running[-1] if running else 'the start'}; {again} to resume. The page: {page}")
        raise
    terminal.show(text.table([_summary(outcome, running) for outcome in outcomes], title="Summary"))
    say(f"The page: {page}")
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(1)


def _summary(outcome: figures.Outcome, running: list[str]) -> dict[str, object]:
    id_, _, name = outcome.figure.partition(" ")
    result = "pass" if outcome.passed else "fail"
    if outcome.error and name not in running:
        result = "not run"
    elif not outcome.error and not outcome.claims:
        result = "no claims"
    passed = sum(bool(claim.passed) for claim in outcome.claims)
    decided = outcome.claims and not outcome.error
    return {
        "id": id_,
        "name": name,
        "result": result,
        "claims reproduced": f"{passed} of {len(outcome.claims)}" if decided else None,
        "time": bnrank.figures.duration(outcome.seconds) if outcome.seconds else None,
    }


def _list(out: Path, scale: str, names: list[str]) -> None:
    rows = [
        {
            "id": entry.figure.id,
            "figure": f"{entry.figure.name}\n{entry.figure.title}",
            "claims": entry.claims,
            "stored": entry.result,
            "time": entry.time,
            "needs": _needs(entry.figure, scale),
        }
        for entry in bnrank.figures.listing(out, scale, names)
    ]
    listed = text.table(rows, title=f"{scale} scale, stored in {out}")
    for name in (0, 2, 4, 5):
        listed.columns[name].no_wrap = True
    terminal.show(listed)


def _needs(figure: figures.Figure, scale: str) -> str:
    memory = [f"{figure.gigabytes[scale]:.3g} GB"] if scale in figure.gigabytes else []
    return "\n".join([*memory, *figure.data.get(scale, ())])
