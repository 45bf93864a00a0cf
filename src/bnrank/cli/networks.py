"""`bnrank profile`, `bnrank check` and `bnrank compress`: commands for a trained network."""

from pathlib import Path
from typing import Annotated

import typer

import bnrank
from bnrank._core import text, validation
from bnrank._core.files import checked_path
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, ModelFiles, ModelSpec, TableColumns
from bnrank.cli.terminal import escape, say, say_where

SHORT = {"rank of W": "rank", "s₁ of W": "s₁(W)", "s₁ of activations": "s₁(a)", "nonlinearity": "nonlin."}
SHORT |= {"‖θ‖² of the layer": "‖θ‖²", "relation": ""}  # headings that fit a terminal
VERDICT = ("id", "statement", "status", "left", "relation", "right", "remarks")


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
    rows = [{SHORT.get(name, name): value for name, value in row.items()} for row in layers]
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
    rows = [{SHORT.get(name, name): row[name] for name in VERDICT} for row in tables.verdict_rows(verdicts)]
    terminal.console.print(text.table(rows, title=tables.summary(verdicts)))
    say_where("The page", page)
    if not verdicts.ok:
        raise typer.Exit(1)


def compress_command(
    model: ModelSpec,
    data: Annotated[
        str,
        typer.Argument(
            help="Samples from the network's input distribution: an .npz file with x (and x_test, used only for the "
            "certificate), a .csv file, or a built-in task."
        ),
    ],
    files: ModelFiles,
    columns: TableColumns,
    tol: Annotated[
        float, typer.Option(help="Largest change of the output, relative to its spread over the samples.")
    ] = 0.01,
    tune: Annotated[int, typer.Option(help="Fine-tuning steps (distillation).")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of the held-out split.")] = 0,
    save: Annotated[Path, typer.Option(help="The .safetensors file of the smaller network.")] = Path(
        "compressed.safetensors"
    ),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compress.html"),
) -> None:
    """Reduce a trained network to its bottleneck, certify the change, and write the network and a page.

    A network that cannot be reduced is left unchanged, with the reason, and no network is written.

    Example: [bold]bnrank compress run low-rank --tol 0.02 --save small.safetensors[/]

    The folder run is written by [bold]bnrank train low-rank --depth 12 --width 30 --ridge 0.002 --steps 500[/].
    """
    checked_path(out, "out")
    checked_path(save, "save", ".safetensors")
    given = [Path(path).resolve() for path in (model, files.weights) if path is not None]
    validation.expect(save.resolve() not in given, "save", f"{str(save)!r}, the network that is read", "another name")
    table = bnrank.tasks.read_table(data, **columns.arguments, outputs=False)
    net, _ = files.read(model)
    if ":" in model and files.weights is None:
        say("no --weights: using the module as returned by the function")
    held_out = 0.2 if table.x_test is None else table.x_test
    found = bnrank.discovery.compress(net, table.x, tol=tol, held_out=held_out, tune=tune, seed=seed)
    say(str(found))
    title = f"{Path(model).name} on {table.name}"
    say_where("The page", bnrank.report({title: found}, out, title=f"bnrank compress: {title}"))
    if not found.changed:
        say("The network: cannot be reduced; none is written")
        return
    say_where("The network", found.save(save))
    net_too = "" if "" in found.plan else ", net) with the original network net"
    say(f"  in Python: bnrank.load({str(save)!r}{net_too or ')'}")
