"""`bnrank sweep`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import bnrank
from bnrank._core import files, validation
from bnrank.cli.arguments import Executor, Quiet, output_path
from bnrank.cli.grids import EXAMPLE, GridFile
from bnrank.cli.naming import naming
from bnrank.cli.terminal import say
from bnrank.training.sweeping.engines import named_engine

LEFT = 75  # exit status of a worker that ended before all was done: try again


@dataclass(frozen=True)
class Worker:
    """Options of a worker."""

    worker: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Train what is left in the folder of a sweep, as one of any number."),
    ] = None
    max_minutes: Annotated[
        float | None, typer.Option(help="Worker: wall time, after which a checkpoint is written.")
    ] = None
    idle: Annotated[
        float | None,
        typer.Option(help="Worker: minutes to wait while others hold all that is left. Default: no limit."),
    ] = None
    threads: Annotated[int, typer.Option(help="Worker: threads of PyTorch.")] = 1


def sweep_command(
    worker: Worker,
    grid: Annotated[str | None, typer.Argument(metavar="GRID", help="A .toml file; --example prints one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. Default: sweep.")] = None,
    processes: Annotated[int | None, typer.Option(help="Number of processes. Default: one per processor core.")] = None,
    executor: Executor = None,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only prepare the folder, for workers.")] = False,
    table: Annotated[Path | None, typer.Option(help="Also write the results as a .csv file.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print an example of GRID.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train networks for every setting of a grid; resume; or work in the folder of such a sweep.

    Example: [bold]bnrank sweep --example > grid.toml && bnrank sweep grid.toml --out sweep[/]

    A worker exits with status 0 when all networks are done, and 75 when a limit or SIGTERM ended it before.
    """
    chosen = [name for name, given in (("GRID", grid), ("--worker", worker.worker)) if given is not None]
    chosen += ["--example"] if example else []
    validation.expect(len(chosen) == 1, "GRID", " and ".join(chosen) or "nothing", "GRID, --worker or --example")
    if example:
        print(EXAMPLE, end="")
    elif grid is not None:
        ours = [name for name in ("max_minutes", "idle") if getattr(worker, name) is not None]
        validation.expect(not ours, ", ".join(ours), "it without --worker", "it with --worker")
        _sweep(grid, Path("sweep") if out is None else out, processes, executor, prepare, table, quiet)
    else:
        own = {"out": out, "processes": processes, "executor": executor, "prepare": prepare or None, "table": table}
        given = [name for name, value in own.items() if value is not None]
        validation.expect(not given, ", ".join(given), "it with --worker", "it with GRID")
        _work(worker)


def _sweep(
    grid: str,
    out: Path,
    processes: int | None,
    executor: str | None,
    prepare: bool,
    table: Path | None,
    quiet: bool,
) -> None:
    if table is not None:
        output_path(table, "table", grid, suffix=".csv")
    validation.optional(validation.integer, processes, "processes")
    validation.expect(not (prepare and processes), "prepare", "it with --processes", "one of the two")
    others = ", ".join(name for name, value in {"--processes": processes, "--prepare": prepare}.items() if value)
    validation.expect(executor is None or not others, "executor", f"it with {others}", "it without")
    file = GridFile.read(grid)
    options: dict[str, Any] = file.options | {"processes": 0 if prepare else processes, "progress": not quiet}
    options["executor"] = None if executor is None else named_engine(executor)
    with file.naming():
        results: Any = bnrank.sweep(file.task, grid=file.grid, out=out, **options)
    say(str(bnrank.Sweep.open(out)))
    if prepare:
        say(f"Start workers, any number: bnrank sweep --worker {out}")
    if table is not None:
        dense = not hasattr(results, "to_csv")
        rows = results.drop_dims(["layer", "index"]).to_dataframe().reset_index() if dense else results
        with files.writing("table", table), files.atomic_path(table) as temporary:
            rows.to_csv(temporary, index=False)
        say(f"The table: {table}")


def _work(worker: Worker) -> None:
    from bnrank.training.sweeping.worker import DONE, drain_folder

    assert worker.worker is not None
    limits = {"idle": worker.idle, "max_minutes": worker.max_minutes}
    with naming({"path": "--worker", "out": "--worker"}):  # here "out" is not the option --out
        found = drain_folder(worker.worker, threads=worker.threads, **limits)
    say(f"{worker.worker}: {found}")
    if found.ended != DONE:
        raise typer.Exit(LEFT)
