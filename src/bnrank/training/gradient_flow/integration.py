"""Gradient flow."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import plateaus
from bnrank.networks.functional import unwrap
from bnrank.networks.mlp import MLP
from bnrank.tasks import Task
from bnrank.training.ensemble import Workers
from bnrank.training.gradient_flow import plan as plans
from bnrank.training.gradient_flow.costs import AutogradCost, Cost, HandCost
from bnrank.training.gradient_flow.driver import Driver, Ends
from bnrank.training.gradient_flow.origin import Origin
from bnrank.training.gradient_flow.record import FlowRecorder
from bnrank.training.gradient_flow.result import Flow, Row
from bnrank.training.gradient_flow.store import Store
from bnrank.training.options import Limits, Record, Save, SkipPlateau, Solver, given
from bnrank.training.progress import bar, interruptions
from bnrank.training.settings import by_hand, device_of
from bnrank.training.watching import show

__all__ = ["flow"]

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
    keep their own dynamics, which decide on the next plateau. It ends when the gradient at the outputs differs from
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
    ends = _ends(t_end, plateau, limits)
    solver, rows = given(Solver, solver), given(Record, record)
    save = None if out is None else given(Save, out)
    own = plans.network(net, dtype, plateau is not None)
    inputs, targets, loss = plans.data(own, task, dtype, device_of(net))
    own = own.to(inputs.device)
    plan = plans.FlowSettings.create(
        own,
        (inputs, targets, loss),
        solver=solver,
        plateau=plateau,
        record=rows,
        max_networks=None if limits is None else limits.max_networks,
        dtype=dtype,
    )
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
            show(rows.watch, names, cost.shapes, theta, gradient, **about)

        with interruptions() as interrupted, bar(progress, "flow", 1.0, counted=False) as tell:

            def told(row: Row) -> None:
                done = max(row.time / ends.t_end, row.since_handover / ends.t_after, 0.0)
                tell(done, f"{row.phase}, t = {row.time:.4g}, loss {row.loss:.4g}, {row.evaluations} evaluations")

            driver = Driver(plan, cost, origin, recorder, ends, theta, watched if rows.watch else None)
            if not math.isfinite(driver.first.cost) or not math.isfinite(driver.first.gradient_norm):
                raise ValueError("net: the cost or its gradient at the start is not finite")
            store = None if folder is None or save is None else Store(folder, driver, save.checkpoint_every)
            if store is not None and save is not None:
                (store.read if save.resume else store.clear)()
            driver.run(interrupted, told, (lambda last: None) if store is None else store.offer)
        return _result(driver)


def _ends(t_end: float | None, plateau: SkipPlateau | None, limits: Limits | None) -> Ends:
    t_after = None if plateau is None else plateau.t_after
    if (t_end is None) == (t_after is None):
        raise ValueError(
            "t_end: give either t_end, or t_after of SkipPlateau, the time after the hand-over; got both or neither"
        )
    limits = limits or Limits()
    return Ends(
        t_end=math.inf if t_end is None else validation.number(t_end, "t_end", 0.0, strict=True),
        t_after=t_after or math.inf,
        evaluations=limits.max_evaluations or math.inf,
        seconds=60 * limits.max_minutes if limits.max_minutes else math.inf,
        stop=limits.stop,
    )


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
    columns = {name: history[name].values[0] for name in ("time", "time_since_handover", "loss", "gradient_norm")}
    return Flow(
        times=columns["time"],
        times_since_handover=columns["time_since_handover"],
        loss=columns["loss"],
        gradient_norm=columns["gradient_norm"],
        parameter_norm=history["parameter_norm"].values[0],
        networks=networks,
        network_rows=rows,
        plateaus=_plateaus(columns, record),
        history=history,
        handover=handover,
        evaluations=driver.cost.evaluations,
        steps=driver.step,
        status=driver.status,
        seconds=driver.seconds,
    )


def _plateaus(columns: dict[str, np.ndarray[Any, Any]], record: FlowRecorder) -> tuple[Any, ...]:
    """Return the plateaus of the loss with the ranks of the layers at each."""
    loss = columns["loss"]
    if len(loss) < 3:
        return ()
    fall, counts = float(np.ptp(loss)), FALL * abs(float(loss[0]))
    if fall <= counts:  # it has not left where it began
        loss, least = np.full_like(loss, loss[0]), 0.01
    else:
        least = min(max(0.01, counts / fall), 0.99)
    found = plateaus.find(columns["time_since_handover"], loss, columns["gradient_norm"], least=least)
    return tuple(replace(plateau, ranks=record.ranks(plateau.row)) for plateau in found)
