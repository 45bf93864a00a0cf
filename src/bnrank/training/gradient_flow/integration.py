"""Gradient flow."""

import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import store, validation
from bnrank.measures import plateaus
from bnrank.networks.functional import unwrap
from bnrank.networks.mlp import MLP
from bnrank.tasks import Task
from bnrank.training import checkpoints
from bnrank.training.ensemble import Workers
from bnrank.training.gradient_flow import plan as plans
from bnrank.training.gradient_flow.driver import Driver
from bnrank.training.gradient_flow.fields import AutogradCost, Cost, HandCost, Origin
from bnrank.training.gradient_flow.record import Flow, FlowRecorder, Row
from bnrank.training.options import Limits, Record, Save, SkipPlateau, Solver, given
from bnrank.training.progress import bar, interruptions
from bnrank.training.recorder import show
from bnrank.training.settings import by_hand

Array = np.ndarray[Any, Any]
NAME = "flow.safetensors"
INTERVAL = 60.0  # seconds between checkpoints
FALL = 1e-3  # of the first loss: a fall by less does not end a plateau


def flow(
    net: nn.Module,
    task: Task | tuple[Any, ...],
    t_end: float | None = None,
    *,
    solver: str | Solver = "rk45",
    plateau: SkipPlateau | None = None,
    record: int | Record = 1,
    limits: Limits | None = None,
    out: str | os.PathLike[str] | Save | None = None,
    dtype: torch.dtype = torch.float64,
    progress: bool = False,
) -> Flow:
    """Return the gradient flow d theta / dt = -grad C(theta) of one network, integrated with error control.

    With ``plateau=SkipPlateau()`` the plateau around the saddle at the origin is skipped (T34, T35). While the
    outputs are negligible, C = C(0) + L0 with L0 homogeneous of degree L, and direction and norm separate: steps are
    taken on the unit sphere in the relative arc length u, du = ||d theta|| / ||theta||, and log ||theta|| and t follow,
    the latter exactly along escape directions (T37). A step moves all of the weights, so that those off the direction
    keep their own dynamics, which determine the next plateau. It ends when the gradient at the outputs differs from
    G = grad C(0) by more than ``handover_rtol``: ||grad C(Y) - G||_F > handover_rtol ||G||_F. A step that ends beyond
    is discarded, and the true flow takes over.

    Parameters
    ----------
    net : nn.Module
        The initial network; it is copied, never changed. The flow is computed on its device. MLPs, and Sequentials that
        are MLPs in effect when the plateau is skipped, are differentiated by hand, other modules by autograd in eval
        mode. Parameters without a gradient stay fixed.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss). The loss is a mean over samples
        (docs/theory.md), "mse", "cross_entropy", "logistic", or a function of outputs (N, d_out) and y whose value is a
        tensor of one number. x (N, d_in) and y (N, d_out), class numbers (N,), or for "logistic" labels -1 and +1,
        (N, 1) or (N,).
    t_end : float, optional
        End of the flow, in units of t; give this or ``t_after`` of ``plateau``.
    solver : str or Solver
        The method and its tolerances; a string is the method.
    plateau : SkipPlateau, optional
        Skip the plateau around the origin. Default: follow it.
    record : int or Record
        Steps between rows; `Record` also sets singular values and a watcher.
    limits : Limits, optional
        A function that ends the flow, limits of evaluations and minutes, and of networks kept.
    out : path or Save, optional
        Folder for checkpoints. A killed flow loses at most the steps since the last one, and resumes to the same bits
        (the stiff solvers restart at the point reached).
    dtype : torch.float32 or torch.float64
        Precision of the integration.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Flow
        Times, losses, networks, plateaus, history. After Ctrl-C, the results so far.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the plateau cannot be skipped: biases, a module that is no chain, G or x zero.

    Notes
    -----
    Source: Bantzis2025; T34 to T37, E2, E3.

    Examples
    --------
    W_2 W_1 x with one weight each, y = x = 1 and equal weights w: d(w^2)/dt = 4 w^2 (1 - w^2), so that from w^2 = 0.01
    w^2 = 1/2 is reached at t = log(99) / 4.

    >>> import math, torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[0.1]]), torch.tensor([[0.1]])], slope=1.0)
    >>> one = torch.ones(1, 1)
    >>> result = flow(net, (one, one), math.log(99) / 4)
    >>> round(result.network(one.double()).item(), 5)
    0.5
    >>> result = flow(net, (one, one), math.log(99) / 4, plateau=SkipPlateau(handover_rtol=0.02))
    >>> round(result.handover.radius, 2), result.status
    (0.2, 'finished')
    """
    t_after, limits = None if plateau is None else plateau.t_after, limits or Limits()
    if (t_end is None) == (t_after is None):
        raise ValueError("t_end: give either t_end, or t_after of SkipPlateau; got both or neither")
    ends = math.inf if t_end is None else validation.number(t_end, "t_end", 0.0, strict=True), t_after or math.inf
    solver, rows = given(Solver, solver), given(Record, record)
    save = None if out is None else given(Save, out)
    own = plans.network(net, dtype, plateau is not None)
    inputs, targets, loss = plans.data(own, task, dtype, next(net.parameters()).device)
    own = own.to(inputs.device)
    plan = plans.FlowSettings.create(own, (inputs, targets, loss), solver, plateau, rows, limits)
    folder = None if save is None else save.folder()
    with Workers(None if plan.device == "cpu" else 1) as workers:
        theta = torch.cat([p.detach().flatten() for p in own.parameters() if p.requires_grad])
        cost: Cost
        if by_hand(own) and isinstance(own, MLP) and isinstance(loss, str):
            cost = HandCost(own, inputs, targets, loss, workers)
        else:
            cost = AutogradCost(own, inputs, targets, loss, dtype, workers)
        origin = Origin(cost, own.depth, loss, theta) if plan.skip_plateau and isinstance(own, MLP) else None
        recorder = FlowRecorder(own, inputs[:2], plan, workers)
        names = [name for name, p in unwrap(net).named_parameters() if p.requires_grad]

        def watched(row: Row, theta: Tensor, gradient: Tensor | None) -> None:
            about: dict[str, Any] = {"step": row.step, "time": row.time, "lr": None, "ridge": 0.0, "member": 0}
            assert rows.watch is not None
            show(rows.watch, names, cost.shapes, theta, gradient, **about)

        with interruptions() as interrupted, bar(progress, "flow", 1.0, counted=False) as tell:

            def told(row: Row) -> None:
                done = max(row.time / ends[0], row.since_handover / ends[1], 0.0)
                tell(done, f"{row.phase}, t = {row.time:.4g}, loss {row.loss:.4g}, {row.evaluations} evaluations")

            driver = Driver(plan, cost, origin, recorder, (*ends, limits), theta)
            driver.watch = watched if rows.watch else None
            if not math.isfinite(driver.first.cost) or not math.isfinite(driver.first.gradient_norm):
                raise ValueError("net: the cost or its gradient at the start is not finite")
            files = None if folder is None or save is None else _Store(folder, driver, save.checkpoint_every)
            if files is not None and save is not None:
                (files.read if save.resume else files.clear)()
            driver.run(interrupted, told, (lambda last: None) if files is None else files.offer)
        return _result(driver)


def _result(driver: Driver) -> Flow:
    record, handover = driver.record, driver.handover
    history = record.history(driver.status)
    if handover is not None:
        before = np.arange(history.sizes["step"]) <= handover.row
        passed = history["time_step"].values[0, before]
        since = np.append(-np.cumsum(passed[:0:-1])[::-1], 0.0)  # back from the hand-over, without cancellation
        history["time_since_handover"].values[0, before] = since
    elif driver.plan.skip_plateau:
        history["time_since_handover"].values[:] = history["time"].values
    rows, networks = record.networks()
    same = {name: history[name].values[0] for name in ("loss", "gradient_norm", "parameter_norm")}
    since = history["time_since_handover"].values[0]
    return Flow(
        times=history["time"].values[0],
        times_since_handover=since,
        **same,
        networks=networks,
        network_rows=rows,
        plateaus=_plateaus(since, same["loss"], same["gradient_norm"], record),
        history=history,
        handover=handover,
        evaluations=driver.cost.evaluations,
        steps=driver.step,
        status=driver.status,
        seconds=driver.seconds,
    )


def _plateaus(times: Array, loss: Array, gradient_norm: Array, record: FlowRecorder) -> tuple[Any, ...]:
    """Return the plateaus of the loss with the ranks of the layers at each."""
    if len(loss) < 3:
        return ()
    fall, counts = float(np.ptp(loss)), FALL * abs(float(loss[0]))
    if fall <= counts:  # it has not left where it began
        loss, least = np.full_like(loss, loss[0]), 0.01
    else:
        least = min(max(0.01, counts / fall), 0.99)
    found = plateaus.find(times, loss, gradient_norm, min_drop=least)
    return tuple(replace(plateau, ranks=record.ranks(plateau.row)) for plateau in found)


class _Store:
    """The checkpoints of a flow in a folder.

    Parameters
    ----------
    folder : Path
        Where they are.
    driver : Driver
        The flow.
    every : int or None
        Steps between checkpoints. Default: about a minute.
    """

    def __init__(self, folder: Path, driver: Driver, every: int | None) -> None:
        self.folder, self.driver, self.every = folder, driver, every
        self._last = time.monotonic()

    def offer(self, last: bool) -> None:
        """Write a checkpoint at the end of the flow and when one is due, unless the flow has diverged."""
        step = self.driver.step
        due = step % self.every == 0 if self.every else time.monotonic() - self._last > INTERVAL
        if (last or due) and self.driver.status != "diverged":
            self.write()

    def write(self) -> None:
        """Write a checkpoint; networks that are no longer kept are removed after it.

        Raises
        ------
        ValueError
            If the folder is full or cannot be written to; the previous checkpoint is kept.
        """
        driver, record = self.driver, self.driver.record
        for row, theta in record.kept.items():
            if not self._network(row).exists():
                checkpoints.write(self._network(row), {"theta": theta}, {}, "flow network", driver.plan)
        tensors = {"theta": driver.theta, "velocity": driver.first.velocity} | record.state()
        about = driver.state() | {"phases": record.phases, "stride": record.stride, "kept": sorted(record.kept)}
        checkpoints.write(self.folder / NAME, tensors, about, "flow", driver.plan)
        self.forget(set(record.kept))
        self._last = time.monotonic()

    def read(self) -> None:
        """Resume the flow from the folder's checkpoint, if it exists.

        Raises
        ------
        ValueError
            If it is damaged, or of a flow with other settings.
        """
        driver, record = self.driver, self.driver.record
        stored = checkpoints.read(self.folder / NAME, "flow", driver.plan)
        if stored is None:
            self.forget(set())
            return
        about = stored.about
        try:
            kept = {
                row: store.load(self._network(row), "flow network", name="out").tensors["theta"]
                for row in about["kept"]
            }
        except (ValueError, KeyError) as error:
            raise checkpoints.refused(stored.path, error) from error
        record.load(stored.tensors)
        record.phases, record.stride, record.kept = about["phases"], about["stride"], kept
        self.forget(set(kept))
        driver.restore(stored.tensors["theta"], stored.tensors["velocity"], about)

    def forget(self, kept: set[int]) -> None:
        """Remove the files of networks other than these."""
        for path in self.folder.glob("network-*.safetensors"):
            found = re.fullmatch(r"network-(\d+)", path.stem)
            if found and int(found[1]) not in kept:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a flow that is to be overwritten."""
        (self.folder / NAME).unlink(missing_ok=True)
        self.forget(set())

    def _network(self, row: int) -> Path:
        return self.folder / f"network-{row}.safetensors"
