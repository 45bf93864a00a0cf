"""`bnrank demo` and `bnrank train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bnrank import figures, tasks
from bnrank._core import text, validation
from bnrank.cli import terminal
from bnrank.cli.arguments import DropMissing, Ignore, Quiet, Targets, words
from bnrank.cli.terminal import escape, say_where
from bnrank.measures import profile
from bnrank.networks import MLP
from bnrank.reporting import Section, report
from bnrank.training import Adam, GradientDescent, Save, train

__all__ = ["demo", "train_command"]

SHORT = {  # headings that fit a terminal of 80 columns
    "loss": "loss",
    "cost": "cost",
    "‖θ‖²": "parameter_norm",
    "gradient": "gradient_norm",
    "balance": "balance_residual",
}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path("demo"), quiet: Quiet = False
) -> None:
    """Train deep networks on a task of rank 2 and one on handwritten digits, and write a page.

    Example: [bold]bnrank demo --out demo[/]
    """
    done = figures.run_demo(out, progress=not quiet)
    terminal.console.print(text.table(done.rows, title="What was found"))
    source = "MNIST" if done.digits == "mnist" else "scikit-learn's bundled digits (no copy of MNIST was found)"
    terminal.console.print(f"Handwritten digits: {source}.\n{escape(done.escaped)}.", highlight=False)
    say_where("The page", done.page)
    say_where("The runs", out)


def train_command(
    data: Annotated[
        str, typer.Argument(help=f"A file (.npz with x and y, or .csv) or one of {', '.join(tasks.NAMED)}.")
    ],
    depth: Annotated[int, typer.Option(help="Number of weight layers.")] = 8,
    width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 50,
    ridge: Annotated[float, typer.Option(help="lambda in C + lambda ||theta||^2.")] = 1e-3,
    steps: Annotated[int, typer.Option(help="Evaluations of cost and gradient.")] = 1000,
    members: Annotated[int, typer.Option(help="Networks to train side by side.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the first one.")] = 0,
    optimizer: Annotated[str, typer.Option(help="auto, adam, gd, lbfgs, kfac-lbfgs, adam+lbfgs, ...")] = "auto",
    lr: Annotated[float | None, typer.Option(help="Step size, for adam and gd.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Mini-batches of so many samples.")] = None,
    targets: Targets = None,
    ignore: Ignore = None,
    drop_missing: DropMissing = False,
    record_every: Annotated[int, typer.Option(help="Steps between recorded rows.")] = 10,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, results and the page.")] = Path("run"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, over what is in the folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble of MLPs on data of your own or on a task, and write a page.

    Goes on from the checkpoint in the folder if there is one; more --steps make a finished run longer.

    Example: [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/]
    """
    task = tasks.load_table(data, words(targets), words(ignore), drop_missing)
    net = MLP([task.d_in, *[width] * (validation.integer(depth, "depth") - 1), task.d_out], seed=seed)
    options: dict[str, Any] = {"batch_size": batch_size, "members": members, "record": record_every}
    options |= {"ridge": ridge, "steps": steps, "seed": seed, "optimizer": optimizer}
    if lr is not None:
        adam = optimizer == "adam" or (optimizer == "auto" and batch_size)
        if not adam and optimizer != "gd":
            raise ValueError(f"lr: got {lr:g}, but {optimizer!r} chooses its own steps; leave lr out or use 'adam'")
        options["optimizer"] = Adam(lr) if adam else GradientDescent(lr)
    run = train(net, task, out=Save(out, resume=not fresh), progress=not quiet, **options)
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
    terminal.console.print(text.table(rows))
    say_where("The page", page)
    say_where("The networks", out)
    if "interrupted" in run.summary.status.values:
        raise typer.Exit(130)
