"""The command line: one verb each for what the library does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from bnrank import _validate, figures, tasks
from bnrank._version import __version__
from bnrank.measures import describe, profile
from bnrank.networks import MLP, load, load_module
from bnrank.reporting import Section, report, tables
from bnrank.reporting.verdicts import summary, verdict_rows
from bnrank.tasks import Task
from bnrank.theory.check import check
from bnrank.training import Run, train

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Measure, train, check and use the bottleneck structure of deep networks.",
)
console = Console()

TASKS: dict[str, Callable[..., Task]] = {
    "low-rank": tasks.low_rank_map,
    "bottleneck-spectra": tasks.bottleneck_spectra_map,
    "s-shapes": tasks.s_shapes,
    "digits": tasks.digits,
    "mnist": tasks.mnist,
}

SHORT = {  # headings that fit a terminal of 80 columns
    "loss": "loss",
    "cost": "cost",
    "‖θ‖²": "parameter_norm",
    "gradient": "gradient_norm",
    "balance": "balance_residual",
}

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

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def main() -> None:
    """Run the command line; an error of the user's is one line and exit status 2, Ctrl-C exit status 130."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error[/] {_escape(str(error))}", highlight=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        raise SystemExit(130) from None


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Measure, train, check and use the bottleneck structure of deep networks."""
    if version:
        console.print(f"bnrank {__version__}", highlight=False)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path("demo"), quiet: Quiet = False
) -> None:
    """Train deep networks on a task of rank 2 and one on handwritten digits, and write a page.

    Example: [bold]bnrank demo --out demo[/]
    """
    done = figures.run_demo(out, progress=not quiet)
    console.print(tables.table(done.rows, title="What was found"))
    source = "MNIST" if done.digits == "mnist" else "scikit-learn's bundled digits (no copy of MNIST was found)"
    console.print(f"Handwritten digits: {source}.\n{_escape(done.escaped)}.", highlight=False)
    _say_where("The page", done.page)
    _say_where("The runs", out)


@app.command(name="train")
def train_command(
    data: Annotated[str, typer.Argument(help=f"A file (.npz with x and y, or .csv) or one of {', '.join(TASKS)}.")],
    depth: Annotated[int, typer.Option(help="Number of weight layers.")] = 8,
    width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 50,
    ridge: Annotated[float, typer.Option(help="lambda in C + lambda ||theta||^2.")] = 1e-3,
    steps: Annotated[int, typer.Option(help="Evaluations of cost and gradient.")] = 1000,
    members: Annotated[int, typer.Option(help="Networks to train side by side.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the first one.")] = 0,
    optimizer: Annotated[str, typer.Option(help="auto, adam, gd, lbfgs, kfac-lbfgs, adam+lbfgs, ...")] = "auto",
    lr: Annotated[float | None, typer.Option(help="Step size, for adam and gd.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Mini-batches of so many samples.")] = None,
    targets: Annotated[str | None, typer.Option(help="Columns of a .csv that are y, separated by commas.")] = None,
    record_every: Annotated[int, typer.Option(help="Steps between recorded rows.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, results and the page.")] = Path("run"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, over what is in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble of MLPs on data of your own or on a task, and write a page.

    Goes on from the checkpoint in the folder if there is one; more --steps make a finished run longer.

    Example: [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/]
    """
    task = _task(data, targets)
    net = MLP([task.d_in, *[width] * (_validate.integer(depth, "depth") - 1), task.d_out], seed=seed)
    options: dict[str, Any] = {"optimizer": optimizer, "lr": lr, "batch_size": batch_size, "members": members}
    options |= {"ridge": ridge, "steps": steps, "seed": seed, "record_every": record_every}
    run = train(net, task, out=out, resume=not fresh, progress=not quiet, **options)
    profiles = {f"member {i}": profile(run.network(i), task.x, task.y) for i in range(run.members)}
    rows = [
        {
            "member": i,
            "status": str(run.summary.status[i].item()),
            "middle rank": int(profiles[f"member {i}"].weight_rank.sel(layer=max(1, depth // 2))),
            **{short: float(run.summary[name][i]) for short, name in SHORT.items()},
        }
        for i in range(run.members)
    ]
    section = Section(f"Training on {task.name}", rows=rows, history=run.history, profile=profiles)
    page = report(section, out / "report.html", title=f"bnrank train: {task.name}")
    console.print(tables.table(rows))
    _say_where("The page", page)
    _say_where("The networks", out)
    if "interrupted" in run.summary.status.values:
        raise typer.Exit(130)


@app.command(name="profile")
def profile_command(
    model: Annotated[
        str, typer.Argument(help="A .safetensors file, a folder of train, or file.py:function returning an nn.Module.")
    ],
    data: Annotated[str, typer.Argument(help="A file (.npz with x and y, or .csv) or one of the tasks of train.")],
    weights: Annotated[Path | None, typer.Option(help="A .safetensors state dict for file.py:function.")] = None,
    slope: Annotated[float, typer.Option(help="Slope of the activation of a bare state dict; 0 is ReLU.")] = 0.0,
    member: Annotated[int, typer.Option(help="Which network of a folder of train.")] = 0,
    targets: Annotated[str | None, typer.Option(help="Columns of a .csv that are y, separated by commas.")] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("profile.html"),
) -> None:
    """Measure a network of your own, layer by layer, on data of your own, and write a page.

    Example: [bold]bnrank profile model.safetensors data.npz --out profile.html[/]
    """
    task = _task(data, targets)
    net, _ = _model(model, weights, slope, member)
    measured = profile(net, task.x, task.y)
    rows = [{short: row.get(name) for name, short in LAYER.items()} for row in tables.layer_rows(measured)]
    page = report(Section(f"{Path(model).name} on {task.name}", profile=measured), out, title="bnrank profile")
    console.print(tables.table(rows))
    for line in describe(measured):
        console.print(_escape(line), highlight=False)
    _say_where("The page", page)


@app.command(name="check")
def check_command(
    model: Annotated[
        str, typer.Argument(help="A .safetensors file, a folder of train, or file.py:function returning an nn.Module.")
    ],
    data: Annotated[str, typer.Argument(help="A file (.npz with x and y, or .csv) or one of the tasks of train.")],
    ridge: Annotated[
        float | None, typer.Option(help="lambda it was trained with; a folder of train knows its own.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Ids of the statements wanted, such as T4,T14.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A .safetensors state dict for file.py:function.")] = None,
    slope: Annotated[float, typer.Option(help="Slope of the activation of a bare state dict; 0 is ReLU.")] = 0.0,
    member: Annotated[int, typer.Option(help="Which network of a folder of train.")] = 0,
    targets: Annotated[str | None, typer.Option(help="Columns of a .csv that are y, separated by commas.")] = None,
    rtol: Annotated[float, typer.Option(help="Singular values above it times the largest count for a rank.")] = 1e-6,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("check.html"),
) -> None:
    """Check every statement of the theory on a network of your own, and write a page.

    Exit status 1 if a statement is violated.

    Example: [bold]bnrank check model.safetensors data.npz --ridge 0.001 --out check.html[/]
    """
    task = _task(data, targets)
    net, known = _model(model, weights, slope, member)
    chosen = only.replace(" ", "").split(",") if only else None
    verdicts = check(net, task.x, task.y, known if ridge is None else ridge, only=chosen, rtol=rtol)
    page = report(Section(f"{Path(model).name} on {task.name}", verdicts=verdicts), out, title="bnrank check")
    rows = [{short: row[name] for name, short in VERDICT.items()} for row in verdict_rows(verdicts)]
    console.print(tables.table(rows, title=summary(verdicts)))
    _say_where("The page", page)
    if not verdicts.ok:
        raise typer.Exit(1)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FIGURE]...", help="Ids or names, or all; all of them without any.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="quick: minutes on two cores; paper: the sources' networks and data.")
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for runs, pictures and the page.")] = Path(figures.OUT),
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what is stored of these figures.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="Show the figures, what they need and what is stored of them; run none.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run figures of the theory, say which of their claims were seen, and write a page of all of them.

    A figure that is finished is not run again; one that was interrupted goes on. Exit status 1 if a figure
    failed or a claim was not seen.

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
        console.print(f"[bold]{figure.id}[/] {_escape(figure.title)} ...", highlight=False, soft_wrap=True)

    def end(figure: figures.Figure, outcome: figures.Outcome) -> None:
        how = "" if figure.name in running else ", not run" if outcome.error else ", stored before"
        took = "" if outcome.error and not outcome.seconds else f", {figures.duration(outcome.seconds)}"
        title = f"{figure.label}, {scale} scale{took}{how}"
        text = f": {_escape(outcome.error)}" if outcome.error else ""
        console.print(f"[bold]{title}[/]{text}", highlight=False, soft_wrap=True)
        if not outcome.error:
            console.print(tables.table(tables.claim_rows(outcome.claims)))

    page = out / scale / "index.html"
    try:
        outcomes = figures.reproduce(names or ["all"], out, scale, not quiet, fresh, start, end)
    except KeyboardInterrupt:
        again = "the same command without --fresh" if fresh else "the same command"
        _say_where(f"Stopped in {running[-1] if running else 'the start'}; {again} goes on. The page", page)
        raise
    console.print(tables.table([_summary(outcome, running) for outcome in outcomes], title="Summary"))
    _say_where("The page", page)
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
    row: dict[str, object] = {"id": id_, "name": name, "result": result}
    row["claims that pass"] = f"{passed} of {len(outcome.claims)}" if outcome.claims and not outcome.error else None
    return row | {"time": figures.duration(outcome.seconds) if outcome.seconds else None}


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
        for entry in figures.listing(out, scale, names)
    ]
    listed = tables.table(rows, title=f"{scale} scale, stored in {out}")
    for name in (0, 2, 4, 5):
        listed.columns[name].no_wrap = True
    console.print(listed)


def _needs(figure: figures.Figure, scale: str) -> str:
    memory = [f"{figure.gigabytes[scale]:.3g} GB"] if scale in figure.gigabytes else []
    return "\n".join([*memory, *figure.data.get(scale, ())])


def _model(model: str, weights: Path | None, slope: float, member: int) -> tuple[nn.Module, float | None]:
    """Return a network, and the ridge it was trained with where that is known."""
    if ":" in model:
        return load_module(model, weights), None
    if not Path(model).is_dir():
        return load(model, slope), None
    run = Run.open(model)
    return run.network(member), run.settings.ridge[member]


def _task(data: str, targets: str | None) -> Task:
    """Return a task by name, or one's own data from a file."""
    if data in TASKS:
        return TASKS[data]()
    path = Path(data)
    if not path.suffix:
        hint = _validate.suggest(data, TASKS)
        raise ValueError(f"data: got {data!r}, expected a .npz or .csv file or one of {', '.join(TASKS)}{hint}")
    return tasks.load_table(path, targets.split(",") if targets else None)


def _say_where(what: str, path: Path) -> None:
    console.print(f"{what}: {_escape(str(path))}", highlight=False, soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
