"""`bnrank demo`, `train`, `profile`, `check` and `compress`: commands for networks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import bnrank
from bnrank._core import text, validation
from bnrank._core.files import checked_path
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, ModelFiles, ModelSpec, Quiet, TableColumns
from bnrank.cli.terminal import escape, say

# Headings that fit a terminal of 80 columns.
CURVES = {"loss": "loss", "cost": "cost", "‖θ‖²": "parameter_norm", "gradient": "gradient_norm"}
CURVES["balance"] = "balance_residual"
SHORT = {"rank of W": "rank", "s₁ of W": "s₁(W)", "s₁ of activations": "s₁(a)", "nonlinearity": "nonlin."}
SHORT |= {"‖θ‖² of the layer": "‖θ‖²", "relation": ""}
VERDICT = ("id", "statement", "status", "left", "relation", "right")


@dataclass(frozen=True)
class Ensemble:
    """Options of the networks and their optimizer."""

    depth: Annotated[int, typer.Option(help="Number of weight layers.")] = 8
    width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 50
    ridge: Annotated[float, typer.Option(help="lambda in C + lambda ||theta||^2.")] = 1e-3
    steps: Annotated[int, typer.Option(help="Evaluations of cost and gradient.")] = 1000
    members: Annotated[int, typer.Option(help="Number of networks trained in parallel.")] = 2
    seed: Annotated[int, typer.Option(help="Seed of the first network.")] = 0
    optimizer: Annotated[str, typer.Option(help="auto, adam, gd, lbfgs, kfac-lbfgs, adam+lbfgs, ...")] = "auto"
    lr: Annotated[float | None, typer.Option(help="Step size of adam and gd.")] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Mini-batch size (reshuffled every epoch). Default: full batch.")
    ] = None
    record_every: Annotated[int, typer.Option(help="Steps between recorded rows.")] = 10

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `bnrank.train`."""
        chosen: Any = self.optimizer
        if self.lr is not None:
            adam = chosen == "adam" or (chosen == "auto" and self.batch_size)
            if not adam and chosen != "gd":
                raise ValueError(f"lr: got {self.lr:g}, but {chosen!r} chooses its own steps; omit lr or use 'adam'")
            kind = bnrank.training.Adam if adam else bnrank.training.GradientDescent
            chosen = kind(self.lr)
        names = ("ridge", "steps", "members", "seed", "batch_size")
        return {name: getattr(self, name) for name in names} | {"optimizer": chosen, "record": self.record_every}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path("demo"), quiet: Quiet = False
) -> None:
    """Train deep networks on a task of rank 2 and one on handwritten digits, and write a page.

    Example: [bold]bnrank demo --out demo[/]
    """
    done = bnrank.figures.run_demo(out, progress=not quiet)
    terminal.console.print(text.table(done.rows, title="Results"))
    source = "MNIST" if done.digits == "mnist" else "scikit-learn's bundled digits (no copy of MNIST was found)"
    terminal.console.print(f"Handwritten digits: {source}.\n{escape(done.escaped)}.", highlight=False)
    say(f"The page: {done.page}")
    say(f"The runs: {out}")


def train_command(
    data: Data,
    ensemble: Ensemble,
    columns: TableColumns,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, results and the page.")] = Path("run"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite existing results.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble of MLPs on your data or on a built-in task, and write a page.

    Resumes from the checkpoint in the folder; a larger --steps continues a finished run.

    Example: [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/]
    """
    task = bnrank.tasks.load_table(data, **columns.arguments)
    depth = validation.integer(ensemble.depth, "depth")
    net = bnrank.MLP([task.d_in, *[ensemble.width] * (depth - 1), task.d_out], seed=ensemble.seed)
    save = bnrank.training.Save(out, resume=not fresh)
    run = bnrank.train(net, task, out=save, progress=not quiet, **ensemble.arguments)
    profiles = {f"member {i}": bnrank.profile(run.network(i), task.x, task.y) for i in range(run.members)}
    rows = []
    for i, profile in enumerate(profiles.values()):
        rank = int(profile.weight_rank.sel(layer=max(1, depth // 2)))
        row = {"member": i, "status": str(run.summary.status[i].item()), "middle rank": rank}
        rows.append(row | {short: float(run.summary[name][i]) for short, name in CURVES.items()})
    section = bnrank.Section(f"Training on {task.name}", rows=rows, history=run.history, profile=profiles)
    page = bnrank.report(section, out / "report.html", title=f"bnrank train: {task.name}")
    terminal.console.print(text.table(rows))
    say(f"The page: {page}")
    say(f"The networks: {out}")
    if "interrupted" in run.summary.status.values:
        raise typer.Exit(130)


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
    say(f"The page: {page}")


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
    found = tables.verdict_rows(verdicts)
    rows = [{SHORT.get(name, name): row[name] for name in VERDICT} for row in found]
    terminal.console.print(text.table(rows, title=tables.summary(verdicts)))
    remarks: dict[str, list[str]] = {}
    for row in found:
        remarks.setdefault(str(row["remarks"]), []).append(str(row["id"]))
    for remark, ids in remarks.items():
        if remark:
            say(f"{', '.join(dict.fromkeys(ids))}: {remark}")
    say(f"The page: {page}")
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
    page = bnrank.report({title: found}, out, title=f"bnrank compress: {title}")
    say(f"The page: {page}")
    if not found.changed:
        say("The network: cannot be reduced; none is written")
        return
    say(f"The network: {found.save(save)}")
    net_too = "" if "" in found.plan else ", net) with the original network net"
    say(f"  in Python: bnrank.load({str(save)!r}{net_too or ')'}")
