"""`bnrank train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import bnrank
from bnrank._core import text, validation
from bnrank.cli import terminal
from bnrank.cli.arguments import Data, Quiet, TableColumns, page_path, write_page
from bnrank.cli.naming import Names
from bnrank.cli.terminal import say

# Headings that fit a terminal of 80 columns.
CURVES = {
    "loss": "loss",
    "cost": "cost",
    "‖θ‖²": "parameter_norm",
    "gradient": "gradient_norm",
    "balance": "balance_residual",
}
FINISHED = {"loss": "finished_loss", "relative gradient": "stationarity", "kind": "kind", "reason": "reason"}


@dataclass(frozen=True)
class Ensemble:
    """Options of the networks and their optimizer."""

    depth: Annotated[int, typer.Option(help="Number of weight layers.")] = 8
    width: Annotated[int, typer.Option(help="Width of the hidden layers."), Names(widths="--width")] = 50
    ridge: Annotated[float, typer.Option(help="lambda in C + lambda ||theta||^2.")] = 1e-3
    steps: Annotated[int, typer.Option(help="Evaluations of cost and gradient.")] = 1000
    members: Annotated[int, typer.Option(help="Number of networks trained in parallel.")] = 2
    seed: Annotated[int, typer.Option(help="Seed of the first network.")] = 0
    optimizer: Annotated[str, typer.Option(help="auto, adam, gd, lbfgs, kfac-lbfgs, adam+lbfgs, ...")] = "auto"
    lr: Annotated[float | None, typer.Option(help="Step size of adam and gd.")] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Mini-batch size (reshuffled every epoch). Default: full batch.")
    ] = None
    record_every: Annotated[
        int, typer.Option(help="Steps between recorded rows."), Names(record="--record-every", every="--record-every")
    ] = 10

    def depth_for(self, task: bnrank.Task) -> int:
        """Return the depth, if networks of these sizes are possible."""
        sizes = {name: validation.integer(getattr(self, name), name) for name in ("depth", "width", "members")}
        validation.networks_fit(task.d_in, task.d_out, sizes)
        return sizes["depth"]

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


def train_command(
    data: Data,
    ensemble: Ensemble,
    columns: TableColumns,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints, results and the page.")] = Path("run"),
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Folder for the weights of member 0 at every recorded step, as step-N.safetensors."),
        Names(folder="--checkpoints"),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Go on to a stationary point of C + lambda ||theta||^2 (bnrank.finish).")
    ] = False,
    max_minutes: Annotated[
        float | None, typer.Option(help="With --finish, time per network. Default: no limit.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite existing results.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train an ensemble of MLPs on your data or on a built-in task, and write a page.

    Resumes from the checkpoint in the folder; a larger --steps continues a finished run.

    Example: [bold]bnrank train low-rank --depth 8 --width 30 --steps 300 --out run[/]
    """
    page_path(out / "report.html", data)
    task = columns.task(data)
    depth = ensemble.depth_for(task)
    net = bnrank.MLP([task.d_in, *[ensemble.width] * (depth - 1), task.d_out], seed=ensemble.seed)
    save = bnrank.training.Save(out, resume=not fresh)
    kept = None if checkpoints is None else bnrank.training.Checkpoints(checkpoints, fresh=fresh)
    record = bnrank.training.Record(ensemble.record_every, watch=kept)
    limits = bnrank.training.Finish(max_minutes=max_minutes)
    if max_minutes is not None and not finish:
        raise ValueError(f"max_minutes: got {max_minutes:g} for networks that are not finished, expected --finish, too")
    arguments = ensemble.arguments | {"record": record, "finish": limits if finish else False}
    run = bnrank.train(net, task, out=save, progress=not quiet, **arguments)
    profiles = {f"member {i}": bnrank.profile(run.network(i), task.x, task.y) for i in range(run.members)}
    rows = []
    for i, profile in enumerate(profiles.values()):
        rank = int(profile.weight_rank.sel(layer=max(1, depth // 2)))
        row = {"member": i, "status": str(run.summary.status[i].item()), "middle rank": rank}
        rows.append(row | {short: float(run.summary[name][i]) for short, name in CURVES.items()})
    section = bnrank.Section(f"Training on {task.name}", rows=rows, history=run.history, profile=profiles)
    terminal.show(text.table(rows))
    if finish:
        ends = [{short: run.summary[name][i].item() for short, name in FINISHED.items()} for i in range(run.members)]
        terminal.show(text.table([{"member": i} | end for i, end in enumerate(ends)], title="Finished"))
    write_page(section, out / "report.html", f"bnrank train: {task.name}")
    say(f"The networks: {out}")
    if kept is not None:
        done = f"none written, since the run in {out} had already taken its steps; --fresh repeats it"
        say(f"Checkpoints: {f'{kept.written} in {checkpoints}' if kept.written else done}")
    if "interrupted" in run.summary.status.values:
        raise typer.Exit(130)
