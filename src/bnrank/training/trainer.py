"""Training of ensembles."""

import contextlib
import inspect
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import checksums, validation
from bnrank._core.progress import bar
from bnrank.tasks import Task
from bnrank.tasks.task import as_task
from bnrank.training.ensemble import BatchOrder, Workers, aligned, squared_norm
from bnrank.training.first_order import EnsembleAdam, EnsembleDescent
from bnrank.training.history import (
    FINISHED,
    NETWORKS,
    OWN,
    SERIES,
    EnsembleRecorder,
    Run,
    begin,
    finishing,
    show,
    summarize,
)
from bnrank.training.interruption import (
    check_settings,
    discard_checkpoints,
    interruptions,
    load_checkpoint,
    refused,
    save_checkpoint,
)
from bnrank.training.kronecker import KroneckerCurvature
from bnrank.training.objectives import MLPObjective, ModuleObjective
from bnrank.training.options import (
    Adam,
    Finish,
    GradientDescent,
    Record,
    Save,
    Stop,
    Watcher,
    check_finishable,
    folder_of,
    given,
)
from bnrank.training.quasi_newton import LBFGS, Optimizer, WarmStarted
from bnrank.training.settings import Start, TrainSettings, by_hand, starting_points, whole_numbers

CHECKPOINT = "checkpoint.safetensors"


def train(
    net: nn.Module | Sequence[nn.Module] | Callable[..., nn.Module],
    task: Task | tuple[Any, ...],
    *,
    ridge: float | Sequence[float] = 0.0,
    steps: int | Stop = 5000,
    members: int | None = None,
    seed: int | Sequence[int] | None = None,
    optimizer: str | Adam | GradientDescent = "auto",
    batch_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    record: int | Record = 100,
    finish: bool | Finish = False,
    out: str | os.PathLike[str] | Save | None = None,
    progress: bool = True,
) -> Run:
    r"""Return an ensemble of networks of one architecture, trained on C(f_theta) + lambda ||theta||^2.

    C is (1/N) sum_i ||f(x_i) - y_i||^2, the mean cross-entropy (docs/theory/notation.md), or the logistic loss
    (1/N) sum_i log(1 + exp(-y_i f(x_i))). The ridge penalty is part of the loss (coupled L2) and applies to both
    weights and biases. On one machine, a member of an ensemble of MLPs is bitwise identical to its solo run; a member
    of an ensemble of other modules agrees with it to rounding, about 1e-6 relative per step in float32.

    Parameters
    ----------
    net : nn.Module, list of nn.Module, or function seed -> nn.Module
        The networks, which are copied, never changed, and trained on their device. A function is called with each
        member's seed. A list holds one network per member. With ``seed``, an MLP, a residual or convolutional network
        of `bnrank.networks`, and a `Stack` are redrawn for each member with their own init. Without ``seed``, networks
        in a list start from their current parameters. For a single such network, member 0 then starts from its current
        parameters and the others from new draws with consecutive seeds; if ridge or lr differ between members, all
        start from its current parameters. Any other module always starts from its current parameters.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss). With ``Task.weights``, C is the weighted mean.
    ridge : float or sequence
        lambda >= 0, one for all members or one per member.
    steps : int or Stop
        Number of evaluations of cost and gradient. `Stop` adds criteria for stopping members earlier.
    members : int, optional
        Size of the ensemble. Default: the length of the longest sequence given, otherwise 1.
    seed : int or sequence, optional
        Seed of member 0, with consecutive seeds for the others, or one seed per member. Determines the initial draw and
        the order of mini-batches.
    optimizer : {"auto", "adam+kfac-lbfgs", "adam+lbfgs", "kfac-lbfgs", "lbfgs", "adam", "gd"}, Adam or GradientDescent
        "kfac-lbfgs" is L-BFGS preconditioned with Kronecker-factored curvature (MLPs only). "adam+" adds 200 initial
        steps of Adam, which a newly drawn network needs and a trained one does not. "auto" is "adam+kfac-lbfgs" for
        MLPs, "adam+lbfgs" for other modules, and "adam" with mini-batches. Use `Adam` or `GradientDescent` to set step
        size and schedule.
    batch_size : int, optional
        Mini-batch size (reshuffled every epoch). Default: full batch. With mini-batches, the last row holds the cost
        and the gradient norm over all samples, and the other rows the mean cost over the batches since the previous
        row, without a gradient norm.
    dtype : torch.float32 or torch.float64
        Precision of training.
    record : int or Record
        Steps between rows of ``history``. Use `Record` to configure singular values and a watcher.
    finish : bool or Finish
        Whether to go on from every member to a stationary point of the loss, with a certificate, as `bnrank.finish`
        does (an MLP with an activation of slope below 1, and ridge > 0). The networks of the run are then the finished
        ones, in float64; ``Run.finished`` and the summary have the certificates.
    out : path or Save, optional
        Folder for checkpoints and results. A killed run loses at most the steps since its last checkpoint. The next
        call with the same arguments resumes it, or returns a complete run immediately. Use `Save` to set the steps
        between checkpoints or to overwrite existing results.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Run
        History, summary and networks. After Ctrl-C, the results up to that point.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, the folder cannot be written to or another process trains in it, or it holds a
        checkpoint or a run that has other settings, or checksums (SHA256SUMS) of other files.

    Warns
    -----
    UserWarning
        If a checkpoint is damaged: training resumes from the previous one, or starts over. If the loss of a member
        is not finite.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=100, rank=2, seed=0)
    >>> net = bnrank.MLP([20, 30, 30, 20])
    >>> run = bnrank.train(net, task, ridge=1e-3, steps=20, members=3, seed=0, record=10, progress=False)
    >>> dict(run.history.loss.sizes)
    {'member': 3, 'step': 3}
    >>> bool(run.history.loss[0, -1] < run.history.loss[0, 0])
    True
    """
    save = None if out is None else given(Save, out, "out")
    run = _trained(net, task, ridge, steps, members, seed, optimizer, batch_size, dtype, record, finish, save, progress)
    _warn_of_divergence(run)
    return run


def with_checkpoints(net: nn.Module, task: Task, folder: Path, checkpoint_every: int | None, **options: Any) -> Run:
    """Return a run as `train` does, with checkpoints in a folder, but without files of the run itself.

    The caller is alone at work in the folder, and discards the checkpoints.
    """
    defaults = {name: p.default for name, p in inspect.signature(train).parameters.items() if p.default is not p.empty}
    given_options = defaults | options | {"out": Save(folder, checkpoint_every=checkpoint_every), "progress": False}
    return _trained(net, task, **given_options, keep=False)


def _trained(
    net: Any,
    task: Any,
    ridge: Any,
    steps: Any,
    members: int | None,
    seed: Any,
    optimizer: Any,
    batch_size: int | None,
    dtype: Any,
    record: Any,
    finish: Any,
    out: Save | None,
    progress: bool,
    keep: bool = True,
) -> Run:
    """Return a trained ensemble; its files are written only if they are to be kept."""
    task, stop, rows = as_task(task, weighted=True), given(Stop, steps, "steps"), given(Record, record, "record")
    validation.expect(task.n >= 2, "task", "1 sample", "at least 2")
    ending = Finish.given(finish)
    start = starting_points(net, task, members, seed, [ridge, getattr(optimizer, "lr", None)], batch_size, dtype)
    settings = TrainSettings.create(start, task, ridge, stop, optimizer, batch_size, rows, out)
    if ending is not None:
        known = by_hand(start.net)
        expected = "a bnrank.MLP with all its parameters trained, to finish"
        validation.expect(known, "net", validation.describe(start.net), expected)
        check_finishable(settings.ridge, task.loss, start.net.widths, start.net.slope)  # type: ignore[arg-type]
    every = out.checkpoint_every if out is not None and out.checkpoint_every else max(1, stop.steps // 20)
    with (
        folder_of(out) if keep else contextlib.nullcontext(None if out is None else Path(out.out)) as folder,
        Workers(None if settings.device == "cpu" else 1) as workers,
    ):
        trainer = _Trainer(start, task, settings, workers, rows.watch)
        if folder is not None and out is not None:
            checksums.refuse_foreign(folder, OWN)
            if out.resume:
                trainer.resume(folder)
            else:
                checksums.discard(folder, FINISHED)
                discard_checkpoints(folder / CHECKPOINT)
        if rows.watch is not None:
            begin(rows.watch, settings.members, trainer.step)
        run = trainer.run(folder, every, progress)
        if ending is not None:
            run = _finished(run, task, ending, folder, progress)
        if folder is not None and keep:
            run._write(folder, settings.identity)
    return run


def _finished(run: Run, task: Task, ending: Finish, folder: Path | None, progress: bool) -> Run:
    """Return the run with its members finished."""
    path = None if folder is None else folder / FINISHED
    found: Run = finishing("ensembles").finished_run(run, task, ending, path, progress)
    return found


def _warn_of_divergence(run: Run) -> None:
    """Warn of members whose loss is not finite, and whose history therefore holds NaN."""
    start = ~np.isfinite(run.history["loss"].values[:, :1]).all(1)
    later = (run.summary["status"].values == "diverged") & ~start
    for text, which in (("net: the loss at the start", start), ("lr, net: the loss during training", later)):
        bad = np.flatnonzero(which).tolist()
        if bad:
            text = f"{text} is not finite for {len(bad)} of {run.members} members: {bad[:5]}"
            warnings.warn(f"{text}; their status is 'diverged'", stacklevel=3)


class _Trainer:
    """The training loop."""

    def __init__(
        self, start: Start, task: Task, settings: TrainSettings, workers: Workers, watch: Watcher | None = None
    ) -> None:
        self.start, self.task, self.settings, self.workers, self.watch = start, task, settings, workers, watch
        self.failure: Exception | None = None  # raised by the watcher
        self.names = [name for name, p in start.net.named_parameters() if p.requires_grad]
        self.step = 0
        self.digested = False  # the optimizer has processed the current evaluation
        self.seconds = 0.0
        self.status = ["running"] * settings.members
        self.final = start.theta
        self.ridge = torch.tensor(settings.ridge, dtype=torch.float64)
        self.batches = BatchOrder(list(settings.seeds), task.n, settings.batch_size) if settings.batch_size else None
        self._select(list(range(settings.members)))
        self.objective.theta.copy_(self.final)
        self.optimizer = self._make_optimizer()
        self.recorder = EnsembleRecorder(start.net, task.x[:2], settings, settings.members, workers, SERIES)
        # sum and number of batch costs
        self.recent = torch.zeros(settings.members, 2, dtype=torch.float64, device=settings.device)

    def _select(self, active: list[int]) -> None:
        """Build the objective for the active members."""
        settings, net = self.settings, self.start.net
        dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
        x = aligned(self.task.x.detach().to(device, dtype))
        y = self.task.y.detach().to(device, torch.int64 if settings.loss == "cross_entropy" else dtype)
        weights = self.task.weights
        if weights is not None:
            weights = (weights / weights.max() / (weights / weights.max()).mean()).to(device, dtype)
        kind = MLPObjective if by_hand(net) else ModuleObjective
        self.active = active
        self.objective: Any = kind(net, x, y, settings.loss, len(active), self.workers, weights)  # type: ignore[arg-type]
        self.broken = torch.zeros(len(active), dtype=torch.bool, device=device)  # members whose cost was not finite

    def _make_optimizer(self) -> Optimizer:
        settings, objective = self.settings, self.objective
        if settings.lr:
            rates = torch.tensor(settings.lr, dtype=torch.float64)[self.active]
            options = objective, self.ridge[self.active], rates, settings.steps, settings.schedule
            adam = settings.optimizer == "adam"
            return EnsembleAdam(*options) if adam else EnsembleDescent(*options, settings.norm_power)
        metrics: Any = None
        if settings.optimizer.endswith("kfac-lbfgs"):
            data, each = (objective.net, objective.x, settings.loss), zip(settings.ridge, settings.seeds, strict=True)
            members = list(each)
            metrics = [KroneckerCurvature(*data, *members[i], objective.weights) for i in self.active]
        lbfgs = LBFGS(objective, self.ridge[self.active], metrics=metrics)
        return WarmStarted(objective, self.ridge[self.active], lbfgs) if "adam+" in settings.optimizer else lbfgs

    def run(self, folder: Path | None, checkpoint_every: int, progress: bool) -> Run:
        """Return the run after all members have stopped, all steps are done or the user interrupts."""
        began = time.perf_counter() - self.seconds
        text = f"training {self.settings.members} x {self.settings.network.split('(')[0]}"
        with interruptions() as interrupted, bar(progress, text, self.settings.steps) as tell:
            while self.active:
                last = self.step == self.settings.steps
                if not self.digested:
                    self._evaluate()
                    self.optimizer.digest()
                    if last or self.step % self.settings.record_every == 0:
                        self._drop_diverged()
                        if self.active:
                            tell(self.step, f"{text}, lowest loss {self._record(last):.4g}")
                    else:
                        self._watch_costs()
                elif not last:  # a complete run is extended
                    self._evaluate()
                if last or not self.active:
                    self.digested = True
                    break
                self.optimizer.move(self.step)
                self.step += 1
                self.digested = False
                self.seconds = time.perf_counter() - began
                stop = interrupted.is_set() or self.failure is not None
                if folder is not None and (self.step % checkpoint_every == 0 or stop):
                    self.save(folder)
                if stop:
                    break
        self._drop_diverged()
        ended = "finished" if self.step == self.settings.steps else "interrupted"
        self.final[self.active] = self.optimizer.point.cpu() if self.active else self.final[self.active]
        self.seconds = time.perf_counter() - began
        if folder is not None and (ended == "finished" or not self.active):
            self.save(folder)
        if self.failure is not None:
            raise self.failure
        return self._result([ended if status == "running" else status for status in self.status])

    def _evaluate(self) -> None:
        last = self.step == self.settings.steps
        batch = None if self.batches is None or last else self.batches.at(self.step)
        cost = self.objective.evaluate(batch)
        if batch is not None:
            self.recent[self.active] += torch.stack([cost.double(), torch.ones_like(cost, dtype=torch.float64)], dim=1)

    def _watch_costs(self) -> None:
        """Note members whose cost is not finite, at steps without a recorded row; a GPU is not made to wait for it."""
        if self.settings.lr:  # a line search recovers from non-finite costs
            self.broken |= ~torch.isfinite(self.objective.cost)
            if self.broken.device.type == "cpu":
                self._drop_diverged()

    def _drop_diverged(self) -> None:
        """Stop members whose cost was not finite at a step without a recorded row."""
        self._drop({i: "diverged" for i, broken in enumerate(self.broken.tolist()) if broken})

    def _record(self, last: bool) -> float:
        """Return the lowest loss, after recording a row and stopping members that are done."""
        loss, gradient_norm = self.optimizer.statistics()
        point = self.optimizer.point
        if self.batches is not None and not last:
            recent = self.recent[self.active].cpu()
            norms = torch.stack([squared_norm(row) for row in point]).cpu()
            loss = recent[:, 0] / recent[:, 1] + self.ridge[self.active] * norms
            gradient_norm = torch.full_like(loss, torch.nan)
        self.recent.zero_()
        row = self.recorder.record(self.step, self.active, point, loss, self.ridge[self.active], gradient_norm)
        if last or self.step % self.settings.spectra_every == 0:
            self.recorder.measure(len(self.recorder.rows) - 1, point, self.active)
        done: dict[int, str] = {}
        criteria = [("gradient_norm", self.settings.stop_gradient), ("balance_residual", self.settings.stop_balance)]
        for i, member in enumerate(self.active):
            if bool(self.optimizer.stalled[i]):
                done[i] = "stalled"
            if not torch.isfinite(row["loss"][member]):
                done[i] = "diverged"
            elif any(limit for _, limit in criteria) and all(row[name][member] < at for name, at in criteria if at):
                done[i] = "converged"
            if done.get(i) != "diverged":
                self.final[member] = point[i].cpu()
        if self.watch is not None:
            try:
                for i in range(len(self.active)):
                    if done.get(i) != "diverged":
                        self._show(self.watch, i, point[i], self.batches is None or last)
            except Exception as error:  # raised at the end of the step
                self.failure = error
        lowest = float(loss.min())
        self._drop(done)
        return lowest

    def _show(self, watch: Watcher, i: int, point: Tensor, whole: bool) -> None:
        """Show an active member to the watcher."""
        member, (lr, time_) = self.active[i], self.optimizer.pace(i, self.step)
        gradient = self.optimizer.data_gradient(i) if whole else None
        row = {"step": self.step, "time": time_, "lr": lr, "ridge": self.settings.ridge[member], "member": member}
        show(watch, self.names, self.objective.shapes, point, gradient, **row)

    def _drop(self, done: dict[int, str]) -> None:
        """Freeze members, given by their index among the active members, and continue with the others."""
        if not done:
            return
        point, old = self.optimizer.point, self.objective
        for i, status in done.items():
            self.status[self.active[i]] = status
            if status != "diverged":  # a diverged member keeps the parameters of its last recorded row
                self.final[self.active[i]] = point[i].cpu()
        rest = [i for i in range(len(self.active)) if i not in done]
        if not rest:
            self.active, self.broken = [], self.broken[:0]
            return
        self._select([self.active[i] for i in rest])
        for name in ("theta", "gradient", "cost"):
            getattr(self.objective, name).copy_(getattr(old, name)[rest])
        self.optimizer.keep(rest, self.objective)
        if self.batches is not None:
            self.batches = self.batches.keep(rest)

    def save(self, folder: Path) -> None:
        """Write a checkpoint from which the run resumes on the same trajectory."""
        self._drop_diverged()
        tensors = {"final": self.final, "recent": self.recent} | self.recorder.state()
        if self.active:
            tensors |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        about = {name: getattr(self, name) for name in ("step", "digested", "status", "active", "seconds")}
        save_checkpoint(folder / CHECKPOINT, tensors, about, "checkpoint", self.settings)

    def resume(self, folder: Path) -> None:
        """Resume from the folder's checkpoint, if it exists; a run that is overwritten must have the same settings."""
        stored = load_checkpoint(folder / CHECKPOINT, "checkpoint", self.settings)
        if stored is None:
            if (folder / checksums.NAME).exists():  # of a run that was not discarded
                check_settings(folder / NETWORKS, "run", self.settings)
            return
        step = stored.about.get("step", 0)
        if step > self.settings.steps:
            raise ValueError(f"steps: got {self.settings.steps}, but the run in {str(folder)!r} is at {step}")
        tensors, about = stored.tensors, stored.about
        try:
            self.step, self.status, self.seconds = about["step"], about["status"], about["seconds"]
            self.digested = about["digested"]
            self.final.copy_(tensors["final"])
            self.recent.copy_(tensors["recent"])
            self.recorder.load(tensors)
            if self.digested and self.step < self.settings.steps and self.step % self.settings.record_every:
                self.recorder.forget_last()  # the last row of a run that is now extended
            if about["active"] != self.active:
                self._select(about["active"])
                if self.batches is not None:
                    self.batches = self.batches.keep(self.active)
                if self.active:
                    self.optimizer = self._make_optimizer()
            if self.active:
                own = {k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")}
                self.optimizer.load(own)
        except (KeyError, RuntimeError, ValueError) as error:
            raise refused(stored.path, error) from error

    def _result(self, status: list[str]) -> Run:
        settings = self.settings
        values = {"seed": whole_numbers(settings.seeds), "ridge": list(settings.ridge), "status": status}
        if settings.lr:
            values["lr"] = list(settings.lr)
        coords = {name: ("member", value) for name, value in values.items()}
        history = self.recorder.dataset(coords, {"name": self.task.name})
        return Run(history, summarize(history), settings, self.seconds, self.start.net, self.final)
