"""Gradient flow."""

import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import store, validation
from bnrank._core.progress import bar
from bnrank._core.sources import DamagedError
from bnrank._core.store import Stored
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, check_unshared, example, is_plain_mlp, unwrap
from bnrank.networks.inputs import columns
from bnrank.networks.mlp import MLP
from bnrank.networks.replicas import copied
from bnrank.tasks.losses import LOSSES
from bnrank.tasks.task import Task, as_task, signs
from bnrank.training import plateaus
from bnrank.training.ensemble import Workers, filled
from bnrank.training.gradient_flow.driver import Driver
from bnrank.training.gradient_flow.fields import AutogradCost, Cost, HandCost, Origin
from bnrank.training.gradient_flow.record import Flow, FlowRecorder, Row
from bnrank.training.history import begin
from bnrank.training.interruption import (
    discard_checkpoints,
    interruptions,
    load_checkpoint,
    previous,
    refused,
    save_checkpoint,
)
from bnrank.training.options import Limits, Record, Save, SkipPlateau, Solver, folder_of, given
from bnrank.training.settings import FlowSettings, by_hand, check_dtype

Array = np.ndarray[Any, Any]
NAME = "flow.safetensors"
INTERVAL = 60.0  # seconds between checkpoints
FALL = 1e-3  # smallest decrease that ends a plateau, relative to the initial loss


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
    outputs are negligible, C = C(0) + L0 with L0 homogeneous of degree L, and the dynamics of direction and norm
    separate. Steps are taken on the unit sphere in the relative arc length u, du = ||d theta|| / ||theta||. They
    determine log ||theta|| and t; along escape directions t is exact (T37). Each step updates all weights: weights
    orthogonal to the escape direction keep their own dynamics, which determine the next plateau. The skipped plateau
    ends when the gradient at the outputs differs from G = grad C(0) by more than ``handover_rtol``:
    ||grad C(Y) - G||_F > handover_rtol ||G||_F. A step that violates this criterion is discarded, and the true flow
    takes over.

    Parameters
    ----------
    net : nn.Module
        The initial network, which is copied and never changed. The flow is computed on its device. MLPs use an explicit
        backward pass, as do Sequentials equivalent to MLPs if the plateau is skipped. Other modules and loss
        functions are differentiated by autograd, in eval mode. Parameters without a gradient stay fixed.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss). The loss is a mean over samples
        (docs/theory/notation.md): "mse", "cross_entropy", "logistic", or a function of outputs (N, d_out) and y that
        returns a tensor with one element. x has shape (N, d_in). y has shape (N, d_out), or holds class indices
        (N,), or for "logistic" labels -1 and +1 of shape (N, 1) or (N,).
    t_end : float, optional
        End of the flow, in units of t; give this or ``t_after`` of ``plateau``.
    solver : str or Solver
        The method and its tolerances, or the name of the method.
    plateau : SkipPlateau, optional
        Skip the plateau around the origin. Default: integrate through it.
    record : int or Record
        Steps between recorded rows. Use `Record` to configure singular values and a watcher.
    limits : Limits, optional
        A stopping function, and limits on evaluations, minutes and stored networks.
    out : path or Save, optional
        Folder for checkpoints. A killed flow loses at most the steps since the last checkpoint. The resumed flow is
        bitwise identical to an uninterrupted one, except with the stiff solvers, which restart at the current point.
        A complete flow can continue to a later end. One of its steps ended at the old end, so its later steps, and
        their errors, are not those of a flow in one go.
    dtype : torch.float32 or torch.float64
        Precision of the integration.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Flow
        Times, losses, networks, plateaus and history. After Ctrl-C, the results up to that point.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; if the folder cannot be written to, another process integrates in it, or the flow in
        it has other settings or is beyond the end; or if the plateau cannot be skipped: the network has biases, the
        module is not a chain, or G or x is zero.

    Notes
    -----
    Source: Bantzis2025; T34 to T37, E2, E3.

    Examples
    --------
    Consider W_2 W_1 x with one weight per layer, y = x = 1 and equal weights w. Then d(w^2)/dt = 4 w^2 (1 - w^2), and a
    flow that starts at w^2 = 0.01 reaches w^2 = 1/2 at t = log(99) / 4.

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
    plateau = validation.optional(validation.kind, plateau, "plateau", SkipPlateau)
    limits = Limits() if limits is None else validation.kind(limits, "limits", Limits)
    t_after = None if plateau is None else plateau.t_after
    if (t_end is None) == (t_after is None):
        raise ValueError("t_end: give either t_end, or t_after of SkipPlateau; got both or neither")
    ends = math.inf if t_end is None else validation.number(t_end, "t_end", 0.0, strict=True), t_after or math.inf
    solver, rows = given(Solver, solver, "solver"), given(Record, record, "record")
    save = None if out is None else given(Save, out, "out")
    own = _network(net, dtype, plateau is not None)
    x, y, loss = _data(own, task, dtype, next(net.parameters()).device)
    own = own.to(x.device)
    theta = torch.cat([p.detach().flatten() for p in own.parameters() if p.requires_grad])
    plan = FlowSettings.create(unwrap(net), (x, y, loss), theta, solver, plateau, rows, limits, save)
    with folder_of(save) as folder, Workers(None if plan.device == "cpu" else 1) as workers:
        cost: Cost
        if by_hand(own) and isinstance(own, MLP) and isinstance(loss, str):
            cost = HandCost(own, x, y, loss, workers)
        else:
            cost = AutogradCost(own, x, y, loss, dtype, workers)
        origin = Origin(cost, own.depth, loss, theta) if plan.skip_plateau and isinstance(own, MLP) else None
        recorder = FlowRecorder(own, x[:2], plan, workers)
        with interruptions() as interrupted, bar(progress, "flow", 1.0, counted=False) as tell:

            def told(row: Row) -> None:
                done = max(row.time / ends[0], row.since_handover / ends[1], 0.0)
                tell(done, f"{row.phase}, t = {row.time:.4g}, loss {row.loss:.4g}, {row.evaluations} evaluations")

            driver = Driver(plan, cost, origin, recorder, (*ends, limits), theta)
            if rows.watch is not None:
                driver.watch = rows.watch, [name for name, p in unwrap(net).named_parameters() if p.requires_grad]
            if not math.isfinite(driver.first.cost) or not math.isfinite(driver.first.gradient_norm):
                raise ValueError("net: the cost or its gradient at the start is not finite")
            offer = (lambda last: None) if folder is None or save is None else _Store(folder, driver, save).offer
            if rows.watch is not None:
                begin(rows.watch, 1, driver.step)
            driver.run(interrupted, told, offer)
        return _result(driver)


def _network(net: nn.Module, dtype: torch.dtype, skip_plateau: bool) -> nn.Module:
    """Return a copy to integrate, as an MLP if the module is equivalent to one.

    Raises an error if the plateau is to be skipped and the theory does not apply.
    """
    check_dtype(dtype)
    net = copied(unwrap(net)).cpu()
    check_finite(net)
    check_unshared(net)
    trains = [p.requires_grad for p in net.parameters()]
    validation.expect(any(trains), "net", "a module without trainable parameters", "at least one")
    trained = all(trains)
    if skip_plateau:
        validation.expect(trained, "plateau", "parameters that are not trained", "all of them to be (T35)")
        try:
            chain = as_mlp(net)
        except TypeError as error:
            raise TypeError(f"plateau: expected linear layers with one activation between (T34): {error}") from None
        if chain.bias:
            raise ValueError("plateau: got a network with biases, which is not homogeneous (T34, T35)")
        if chain.depth < 2:
            raise ValueError("plateau: got a network of depth 1, whose cost has no saddle at the origin")
        net = chain
    elif trained and is_plain_mlp(net):
        net = as_mlp(net)
    return net.to(dtype)


def _data(
    net: nn.Module, task: Task | tuple[Any, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, str | Callable[..., Any]]:
    """Return x, y and the loss on the device, checked for consistency with each other and with the outputs."""
    if not isinstance(task, tuple) or len(task) not in (2, 3):
        task = as_task(task)
        task = (task.x, task.y, task.loss)
    x, y, loss = task if len(task) == 3 else (*task, "mse")
    if not callable(loss):
        validation.choice(loss, "loss", list(LOSSES))
    x = example(net, x).detach()
    x = x.to(dtype) if x.is_floating_point() else x
    if not isinstance(y, Tensor | np.ndarray):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray")
    y = validation.dense(y, "y").detach() if isinstance(y, Tensor) else validation.from_array(y, "y")
    validation.expect(not y.is_complex(), "y", y, "real numbers", TypeError)
    found, one_each = f"shape {tuple(y.shape)}", y.ndim > 0 and len(y) == len(x)
    validation.expect(one_each, "y", found, f"one entry per sample of x, {len(x)}")
    validation.finite(y, "y")
    with torch.no_grad():
        out = Functional(net, dtype).main(x[:2])
    if out.ndim < 2 and callable(loss):  # whose targets may have any shape
        raise ValueError(f"net: gives outputs of shape ({len(x)},), expected (N, d_out)")
    shape = (len(x), *columns(out).shape[1:])
    y = y if callable(loss) else validation.targets(y, shape[-1])
    validation.expect(loss != "mse" or y.shape == shape, "y", found, f"the shape of the outputs, {shape}, for 'mse'")
    if loss == "cross_entropy":
        numbers = not y.is_floating_point() and y.dtype != torch.bool and y.ndim == 1
        validation.expect(numbers, "y", y, "class indices (N,) for 'cross_entropy'")
        y = y.to(torch.int64)
        low, high = int(y.min()), int(y.max())
        inside = low >= 0 and high < shape[-1]
        validation.expect(inside, "y", f"classes {low} to {high}", f"0 to {shape[-1] - 1}")
    elif loss == "logistic":
        if shape[1:] != (1,):
            raise ValueError(f"net: gives outputs of shape {shape[1:]}, expected (1,) for 'logistic'")
        y = signs(y, "y")
    y = y.to(dtype) if loss == "mse" or y.is_floating_point() else y
    return x.to(device).contiguous(), y.detach().to(device).contiguous(), loss


def _result(driver: Driver) -> Flow:
    record, handover = driver.record, driver.handover
    phases: Any = {"phase": ("step", np.array(record.phases, dtype=str))}
    history = record.dataset(phases, {"status": driver.status})
    if handover is not None:
        before = np.arange(history.sizes["step"]) <= handover.row
        passed = history["time_step"].values[0, before]
        since = np.append(-np.cumsum(passed[:0:-1])[::-1], 0.0)  # backward from the hand-over: no cancellation
        history["time_since_handover"].values[0, before] = since
    elif driver.plan.skip_plateau:
        history["time_since_handover"].values[:] = history["time"].values
    rows = sorted(record.kept)
    same = {name: history[name].values[0] for name in ("loss", "gradient_norm", "parameter_norm")}
    since = history["time_since_handover"].values[0]
    return Flow(
        times=history["time"].values[0],
        times_since_handover=since,
        **same,
        networks=[filled(record.net, record.kept[row]) for row in rows],
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
    """Return the plateaus of the loss, each with the ranks of the layers."""
    if len(loss) < 3:
        return ()
    fall, counts = float(np.ptp(loss)), FALL * abs(float(loss[0]))
    if fall <= counts:  # the loss has not left its initial plateau
        loss, min_drop = np.full_like(loss, loss[0]), 0.01
    else:
        min_drop = min(max(0.01, counts / fall), 0.99)
    found = plateaus.find(times, loss, gradient_norm, min_drop=min_drop)
    return tuple(replace(plateau, ranks=record.ranks(plateau.row)) for plateau in found)


class _Store:
    """Checkpoints of a flow in a folder. The flow resumes from an existing checkpoint unless ``resume`` is False."""

    def __init__(self, folder: Path, driver: Driver, save: Save) -> None:
        self.folder, self.driver, self.every = folder, driver, save.checkpoint_every
        self._last = time.monotonic()
        self.path = folder / NAME
        self.checksums: dict[int, str] = {}  # of the files of networks, by row
        self.rows, self.rows_before = set[int](), set[int]()  # of the last checkpoint and the one before
        if not save.resume:
            discard_checkpoints(self.path)
        kept: dict[int, Tensor] = {}

        def complete(stored: Stored) -> None:
            kept.update({int(row): self._read(int(row), checksum) for row, checksum in _files(stored).items()})

        stored = load_checkpoint(self.path, "flow", driver.plan, complete)
        if stored is not None:
            about, record = stored.about, driver.record
            self.checksums = {int(row): checksum for row, checksum in _files(stored).items()}
            record.kept = {row: kept[row] for row in self.checksums}
            try:
                record.load(stored.tensors)
                record.phases = [phase for phase, count in about["phases"] for _ in range(count)]
                record.stride = about["stride"]
                driver.restore(stored.tensors["theta"], stored.tensors["velocity"], about)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise refused(stored.path, error) from error
            driver.check_end(folder)
            if stored.path == self.path:
                self.rows, self.rows_before = set(self.checksums), self._rows_of(previous(self.path))
            else:
                self.rows_before = set(self.checksums)
        self._forget()

    def offer(self, last: bool) -> None:
        """Write a checkpoint at the end of the flow and when one is due, unless the flow has diverged.

        Afterwards, the files of networks that are no longer kept are deleted.

        Raises
        ------
        ValueError
            If the folder is full or cannot be written to; the previous checkpoint is kept.
        """
        driver, record = self.driver, self.driver.record
        due = driver.step % self.every == 0 if self.every else time.monotonic() - self._last > INTERVAL
        if driver.status == "diverged" or not (last or due):
            return
        for row, theta in record.kept.items():
            if row not in self.checksums:
                save_checkpoint(self._network(row), {"theta": theta}, {"row": row}, "flow network", driver.plan)
                self.checksums[row] = store.checksum(self._network(row))
        tensors = {"theta": driver.theta, "velocity": driver.first.velocity} | record.state()
        phases = [(phase, sum(1 for _ in rows)) for phase, rows in itertools.groupby(record.phases)]
        kept = {row: self.checksums[row] for row in sorted(record.kept)}
        about = driver.state() | {"phases": phases, "stride": record.stride, "kept": kept}
        if save_checkpoint(self.path, tensors, about, "flow", driver.plan):
            self.rows_before = self.rows
        self.rows = set(record.kept)
        self._forget()
        self._last = time.monotonic()

    def _forget(self) -> None:
        """Delete the files of networks that neither checkpoint needs."""
        needed = self.rows | self.rows_before
        self.checksums = {row: checksum for row, checksum in self.checksums.items() if row in needed}
        kept = {self._network(row) for row in needed}
        for path in self.folder.glob("network-*.safetensors"):
            if path not in kept and path.stem.removeprefix("network-").isdecimal():
                path.unlink(missing_ok=True)

    def _read(self, row: int, checksum: str) -> Tensor:
        """Return the network of a row; its file must have this checksum."""
        try:
            stored = store.read(self._network(row), name="out")
        except ValueError as error:
            raise DamagedError(str(error)) from error
        if stored.checksum != checksum or "theta" not in stored.tensors:
            raise DamagedError(f"out: {str(stored.path)!r} is damaged: it is not the network of row {row} of this flow")
        return stored.tensors["theta"]

    def _rows_of(self, path: Path) -> set[int]:
        """Return the rows of the networks that a checkpoint needs; none if it is missing or damaged."""
        try:
            return {int(row) for row in _files(store.load(path, "flow", name="out"))}
        except ValueError:
            return set()

    def _network(self, row: int) -> Path:
        return self.folder / f"network-{row}.safetensors"


def _files(stored: Stored) -> dict[str, str]:
    """Return the checksums of the files of networks that a checkpoint needs, by row."""
    kept = stored.about.get("kept")
    if not isinstance(kept, dict) or not all(row.isdecimal() for row in kept):
        raise refused(stored.path, "it does not list its networks")
    return kept
