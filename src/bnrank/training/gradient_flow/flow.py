"""Gradient flow."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.files import discard_partial, prepare_folder
from bnrank.measures import plateaus
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.mlp import MLP
from bnrank.training.gradient_flow import plan as plans
from bnrank.training.gradient_flow.costs import AutogradCost, Cost, HandCost
from bnrank.training.gradient_flow.driver import Driver, Limits
from bnrank.training.gradient_flow.origin import Origin
from bnrank.training.gradient_flow.record import Record
from bnrank.training.gradient_flow.result import Flow, Row
from bnrank.training.gradient_flow.store import Store
from bnrank.training.progress import interruptions
from bnrank.training.watching import Watcher, check
from bnrank.training.workers import Workers

__all__ = ["flow"]

FALL = 1e-3  # of the first loss: a fall by less does not end a plateau


def flow(
    net: nn.Module,
    loss: str | Callable[..., Any],
    x: Tensor | np.ndarray[Any, Any],
    y: Tensor | np.ndarray[Any, Any],
    t_end: float | None = None,
    *,
    t_after: float | None = None,
    method: str = "rk45",
    rtol: float | None = None,
    kinks: float | None = None,
    step: float | None = None,
    relative: float | None = None,
    time: str = "t",
    skip_plateau: bool = False,
    negligible: float | None = None,
    growth: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    record_every: int = 1,
    spectra_every: int | None = None,
    top_k: int = 10,
    max_networks: int | None = None,
    stop: Callable[[Row], bool] | None = None,
    max_evaluations: int | None = None,
    max_minutes: float | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    checkpoint_every: int | None = None,
    progress: bool = False,
    watch: Watcher | None = None,
) -> Flow:
    """Follow the gradient flow d theta / dt = -grad C(theta) of one network, with error control.

    With ``skip_plateau=True`` the plateau around the saddle at the origin is not waited out (T34, T35). While the
    outputs are negligible, C = C(0) + L0 with L0 homogeneous of degree L, and direction and norm separate: steps are
    taken on the unit sphere in the relative arc length u, du = ||d theta|| / ||theta||, and log ||theta|| and t follow,
    the latter exactly along escape directions (T37). A step moves all of the weights, so that those off the direction
    keep their own dynamics, which decide on the next plateau. It ends when the gradient at the outputs differs from
    G = grad C(0) by more than ``negligible``: ||grad C(Y) - G||_F > negligible ||G||_F. A step that ends beyond is
    discarded, and the true flow takes over.

    Parameters
    ----------
    net : nn.Module
        Where to start; left as it is. MLPs, and Sequentials that are MLPs in effect when the plateau is skipped, are
        differentiated by hand, other modules by autograd in eval mode. Parameters without a gradient stay fixed.
    loss : "mse", "cross_entropy", "logistic" or callable
        C, a mean over samples (docs/theory.md); a function takes outputs (N, d_out) and y to one number, a tensor.
    x, y : Tensor or ndarray
        Data, (N, d_in) and (N, d_out), class numbers (N,), or for "logistic" labels -1 and +1, (N, 1) or (N,).
    t_end : float, optional
        When to stop, in units of t.
    t_after : float, optional
        When to stop, counted from the hand-over, which ``t_end`` cannot resolve after a plateau of 1e20. Give one of
        the two.
    method : {"rk45", "dop853", "heun", "lsoda", "bdf", "euler"}
        "rk45" and "dop853" are Dormand and Prince's pairs of order 5 and 8 with SciPy's coefficients, "heun" is Heun's
        method with Euler's for the error; "lsoda" and "bdf" are SciPy's solvers for stiff problems, which build a
        Jacobian and are for small networks. All measure errors against ||theta||. "euler" takes fixed steps.
    rtol : float, optional
        Error per step in units of ||theta||; 1e-6 in float64, 1e-4 in float32, 1e-3 for "heun". Heun's error is
        h/2 ||grad C(theta_1) - grad C(theta_0)||, so that stepping to and fro across a ReLU kink, along which the flow
        slides, is no error beyond its amplitude.
    kinks : float, optional
        "rk45" and "dop853" take Heun's steps with this tolerance, 1e-4, where the gradient jumps (T40's data, say), as
        error control alone would crawl there; 0 for never. In the middle of a skipped plateau up to 300 times as
        much is allowed, as far as t is not affected: such errors die away while ||theta|| grows.
    step : float, optional
        Length of Euler's steps in t.
    relative : float, optional
        No step of "euler" is longer than this, 0.05, times ||theta||. A skipped plateau is gone through in Heun's steps
        with a tolerance of 1 percent instead, both evaluations of a step on the same mini-batch.
    time : {"t", "arc"}
        Variable that the true flow is integrated in: t, or the relative arc length u, good for saddles from tiny
        weights on, not for the end at a minimum, where the direction of the gradient means nothing.
    skip_plateau : bool
        For bias-free MLPs of depth 2 or more, any slope.
    negligible : float, optional
        See above; 1e-4, at most 0.1.
    growth : float, optional
        Factor that ||theta|| may grow by in one step of a skipped plateau: 4 for "rk45", 10 for "dop853", 1.5 for
        "heun". It bounds the error in weights that are too small to be seen by ``rtol``: 1e-4, 2e-5 and 2e-2 per
        decade where these grow like a power of ||theta|| between -1/2 and 1.
    batch_size, seed : int, optional
        Stochastic flow, "euler" only: mini-batches in shuffled epochs, whose order is a function of the seed. The
        criterion is then checked on the batch.
    dtype : torch.float32 or torch.float64
        Precision to integrate in.
    device : str
        Where to compute.
    record_every, spectra_every : int
        Steps between rows of the record, and between rows with singular values (by default every row, or every tenth
        where a layer has both sides above 128).
    top_k : int
        Singular values per layer.
    max_networks : int, optional
        Networks kept, at least 2; by default 64, or less where they would take more than a gigabyte. When there are
        more, every other one is dropped.
    stop : callable, optional
        Called with each `Row`; ends the flow when it returns True.
    max_evaluations, max_minutes : optional
        Limits, checked between steps.
    out : path, optional
        Folder for checkpoints. A killed flow loses at most the steps since the last one.
    resume : bool
        Go on from the checkpoint in ``out``, to the same bits (the stiff solvers are started anew from the point
        reached); False overwrites it.
    checkpoint_every : int, optional
        Steps between checkpoints; about a minute without it.
    progress : bool
        Show a progress bar.
    watch : object with a method ``observe``, optional
        Called at every row of the record: see :class:`bnrank.training.Watcher`. It changes nothing of the flow.

    Returns
    -------
    Flow
        Times, losses, networks, plateaus, history. After Ctrl-C, what there is.

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
    >>> result = flow(net, "mse", one, one, t_end=math.log(99) / 4)
    >>> round(result.network(one.double()).item(), 5)
    0.5
    >>> result = flow(net, "mse", one, one, t_end=math.log(99) / 4, skip_plateau=True, negligible=0.02)
    >>> round(result.handover.radius, 2), result.status
    (0.2, 'finished')
    """
    limits = _limits(t_end, t_after, skip_plateau, stop, max_evaluations, max_minutes)
    check(watch)
    own = plans.network(net, dtype, skip_plateau)
    inputs, targets = plans.data(own, loss, x, y, dtype, str(device))
    own = own.to(device)
    plan = plans.Plan.create(
        own,
        loss,
        inputs,
        targets,
        method=method,
        rtol=rtol,
        kinks=kinks,
        step=step,
        relative=relative,
        growth=growth,
        time=time,
        skip_plateau=skip_plateau,
        negligible=negligible,
        batch_size=batch_size,
        seed=seed,
        dtype=dtype,
        device=str(device),
        record_every=record_every,
        spectra_every=spectra_every,
        top_k=top_k,
        max_networks=max_networks,
    )
    if checkpoint_every is not None:
        checkpoint_every = validation.integer(checkpoint_every, "checkpoint_every")
    folder = None if out is None else prepare_folder(out)
    if folder is not None:
        discard_partial(folder)
    with Workers(None if str(device) == "cpu" else 1) as workers:
        theta = torch.cat([p.detach().flatten() for p in own.parameters() if p.requires_grad])
        cost: Cost
        by_hand = is_plain_mlp(own) and all(p.requires_grad for p in own.parameters())
        if by_hand and isinstance(own, MLP) and isinstance(loss, str):
            cost = HandCost(own, inputs, targets, loss, workers)
        else:
            cost = AutogradCost(own, inputs, targets, loss, dtype, workers)
        origin = Origin(cost, own.depth, loss, theta) if plan.skip_plateau and isinstance(own, MLP) else None
        record = Record(
            own,
            inputs[:2],
            cost.shapes,
            plan.top_k,
            plan.spectra_every // plan.record_every,
            plan.max_networks,
            workers,
        )
        with interruptions() as interrupted, _bar(progress, limits) as show:
            names = [name for name, p in unwrap(net).named_parameters() if p.requires_grad]
            shown = None if watch is None else functools.partial(_show, watch, names, cost.shapes)
            driver = Driver(plan, cost, origin, record, limits, theta, shown)
            if not math.isfinite(driver.first.cost) or not math.isfinite(driver.first.gradient_norm):
                raise ValueError("net: the cost or its gradient at the start is not finite")
            store = None if folder is None else Store(folder, plan, checkpoint_every)
            if store is not None:
                if resume:
                    store.read(driver)
                else:
                    store.clear()

            def save(last: bool) -> None:
                if store is not None and driver.status != "diverged":
                    (store.write if last else store.offer)(driver)

            driver.run(interrupted, show, save)
        return _result(driver, plan)


def _show(
    watch: Watcher,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    row: Row,
    theta: Tensor,
    gradient: Tensor | None,
) -> None:
    """Show a row to a watcher, by the names that the parameters have in the user's network."""

    def named(flat: Tensor) -> dict[str, Tensor]:
        pieces = flat.detach().split([math.prod(shape) for shape in shapes])
        return {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}

    known = None if gradient is None else named(gradient)
    watch.observe(step=row.step, time=row.time, parameters=named(theta), gradient=known, lr=None, ridge=0.0, member=0)


def _limits(
    t_end: float | None,
    t_after: float | None,
    skip_plateau: bool,
    stop: Callable[[Row], bool] | None,
    max_evaluations: int | None,
    max_minutes: float | None,
) -> Limits:
    if (t_end is None) == (t_after is None):
        raise ValueError("t_end: give either t_end, or t_after, the time after the hand-over; got both or neither")
    if t_after is not None and not skip_plateau:
        raise ValueError("t_after: there is a hand-over with skip_plateau=True only; give t_end")
    if stop is not None and not callable(stop):
        raise TypeError(f"stop: got {validation.describe(stop)}, expected a function of a row")
    return Limits(
        t_end=math.inf if t_end is None else validation.number(t_end, "t_end", 0.0, strict=True),
        t_after=math.inf if t_after is None else validation.number(t_after, "t_after", 0.0, strict=True),
        evaluations=math.inf if max_evaluations is None else validation.integer(max_evaluations, "max_evaluations"),
        seconds=math.inf
        if max_minutes is None
        else 60 * validation.number(max_minutes, "max_minutes", 0.0, strict=True),
        stop=stop,
    )


@contextlib.contextmanager
def _bar(progress: bool, limits: Limits) -> Iterator[Callable[[Row], None]]:
    """Show how far the flow is, or nothing."""
    if not progress:
        yield lambda row: None
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        number = bar.add_task("flow", total=1.0)

        def show(row: Row) -> None:
            done = max(row.time / limits.t_end, row.since_handover / limits.t_after, 0.0)
            text = f"{row.phase}, t = {row.time:.4g}, loss {row.loss:.4g}, {row.evaluations} evaluations"
            bar.update(number, completed=done, description=text)

        yield show


def _result(driver: Driver, plan: plans.Plan) -> Flow:
    record, handover = driver.record, driver.handover
    history = record.dataset({"settings": plan.to_json(), "status": driver.status})
    if handover is not None:
        before = np.arange(history.sizes["step"]) <= handover.row
        passed = history["time_step"].values[0, before]
        since = np.append(-np.cumsum(passed[:0:-1])[::-1], 0.0)  # back from the hand-over, without cancellation
        history["time_since_handover"].values[0, before] = since
    elif plan.skip_plateau:
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


def _plateaus(columns: dict[str, np.ndarray[Any, Any]], record: Record) -> tuple[Any, ...]:
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
