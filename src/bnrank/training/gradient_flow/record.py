"""Rows, hand-over and result of a gradient flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg
from bnrank._core.content import Curves, Part, Table
from bnrank._core.results import Printed
from bnrank.training.ensemble import Workers
from bnrank.training.history import SERIES, Recorder
from bnrank.training.settings import FlowSettings

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Row:
    """A row of the record; the argument of the ``stop`` function.

    Attributes
    ----------
    step, evaluations : int
        Number of steps and of gradient evaluations so far.
    time, since_handover : float
        t, and t minus the time of the hand-over. The latter is -inf before the hand-over, whose time is not yet known,
        and equal to t if no plateau is skipped.
    loss, gradient_norm : float
        C and ||grad C||. On the skipped plateau, C(0) + L0 and ||grad L0||. With mini-batches, ``gradient_norm`` is
        that of the current batch and ``loss`` the mean over the batches since the previous row.
    parameter_norm : float
        ||theta||^2.
    phase : str
        "plateau" on the skipped plateau, otherwise "flow".
    """

    step: int
    evaluations: int
    time: float
    since_handover: float
    loss: float
    gradient_norm: float
    parameter_norm: float
    phase: str


@dataclass(frozen=True)
class Handover:
    """The hand-over from the flow of L0 to the true flow.

    Attributes
    ----------
    time : float
        t at the hand-over.
    radius : float
        ||theta|| at the hand-over.
    criterion : float
        ||grad C(Y) - G||_F / ||G||_F at the hand-over, at most ``handover_rtol`` unless ``at_once``.
    bound : float
        (r / sqrt L)^L ||X||_F, an upper bound on the norm of the outputs (T35).
    outputs : float
        ||Y||_F.
    row, evaluations : int
        Row of the record, and number of evaluations before the hand-over.
    at_once : bool
        True if the outputs were not negligible at the start, so nothing was skipped.
    skipped_steps : float or None
        Number of steps in which Euler's method would have come as far, without ``max_relative_step``; None for other
        methods.
    """

    time: float
    radius: float
    criterion: float
    bound: float
    outputs: float
    row: int
    evaluations: int
    at_once: bool
    skipped_steps: float | None = None


@dataclass(frozen=True)
class Flow(Printed):
    """Result of a gradient flow.

    Attributes
    ----------
    times : ndarray
        t of every row of the record.
    times_since_handover : ndarray
        ``times`` minus the time of the hand-over, computed without the cancellation that t suffers after a long
        plateau. Equal to ``times`` if there was no hand-over.
    loss, gradient_norm, parameter_norm : ndarray
        C, ||grad C|| and ||theta||^2 per row. With mini-batches, C is the mean over the batches since the previous row,
        and the gradient is that of the last batch.
    networks : list of nn.Module
        Networks at selected rows, including the first and the last.
    network_rows : list of int
        The rows of ``networks``.
    plateaus : tuple of Plateau
        Segments in which the loss is nearly constant, with the rank of every layer (number of singular values above a
        tenth of the largest). Times are measured from the hand-over, as in ``times_since_handover``.
    history : xarray.Dataset
        The full record over (member, step), with one member and in the format of `bnrank.train`: ``loss``, ``cost``,
        ``parameter_norm``, ``gradient_norm``, ``time``, ``time_since_handover``, ``time_step`` (since the previous
        row), ``arc_length`` (the integral of ||d theta|| / ||theta||), ``evaluations``, and the coordinate ``phase``.
        ``weight_singular_values`` has dimensions (member, step, layer, index) and is NaN at rows where it was not
        computed.
    handover : Handover or None
        The end of the skipped plateau; None if no plateau was skipped or its end was not reached.
    evaluations, steps : int
        Number of evaluations of cost and gradient, and of steps.
    status : str
        "finished" (reached the end time), "stopped" (by ``stop``), "evaluations used up", "time is up", "interrupted",
        "diverged" (not finite; the last row is the last finite one), "stalled" (steps are below the rounding of theta
        or t), "stationary" (zero gradient) or "no escape" (the direction has converged to one along which L0 does not
        decrease).
    seconds : float
        Wall time.
    """

    times: np.ndarray[Any, Any] = field(repr=False)
    times_since_handover: np.ndarray[Any, Any] = field(repr=False)
    loss: np.ndarray[Any, Any] = field(repr=False)
    gradient_norm: np.ndarray[Any, Any] = field(repr=False)
    parameter_norm: np.ndarray[Any, Any] = field(repr=False)
    networks: list[nn.Module] = field(repr=False)
    network_rows: list[int] = field(repr=False)
    plateaus: tuple[Any, ...] = field(repr=False)
    history: xr.Dataset = field(repr=False)
    handover: Handover | None
    evaluations: int
    steps: int
    status: str
    seconds: float

    @property
    def network(self) -> nn.Module:
        """The last network."""
        return self.networks[-1]

    @property
    def spectra(self) -> xr.Dataset:
        """The history at the rows that have singular values, as `plots.plateaus` draws it."""
        known = np.isfinite(self.history["weight_singular_values"].values).any(axis=(0, 2, 3))
        return self.history.isel(step=known)

    def _content(self) -> list[Part]:
        skipped = "" if self.handover is None else f" (handed over at {self.handover.time:.4g})"
        rows = [
            {
                "plateau": plateau.number,
                "start": plateau.start,
                "end": plateau.end if plateau.left else "not left",
                "loss": plateau.loss,
                "gradient norm": plateau.gradient_norm,
                "ranks of the layers": ", ".join(map(str, plateau.ranks)),
            }
            for plateau in self.plateaus
        ]
        caption = "Plateaus" if self.handover is None else "Plateaus; times since the handover"
        return [
            f"gradient flow from t = {self.times[0]:.4g} to {self.times[-1]:.4g}{skipped}: {self.status}",
            f"loss {self.loss[0]:.4g} to {self.loss[-1]:.4g}, {len(self.plateaus)} plateaus; "
            f"{self.steps} steps, {self.evaluations} evaluations, {self.seconds:.3g} s",
            Curves(f"loss at {len(self.loss)} recorded rows", list(range(len(self.loss))), [self.loss.tolist()]),
            Table(caption, rows),
        ]

    def __repr__(self) -> str:
        """Return a summary."""
        skipped = "" if self.handover is None else f", handed over at t = {self.handover.time:.4g}"
        return (
            f"Flow(t = {self.times[0]:.4g} to {self.times[-1]:.4g}{skipped}, loss {self.loss[0]:.4g} to "
            f"{self.loss[-1]:.4g}, {len(self.plateaus)} plateaus, {self.steps} steps, {self.evaluations} evaluations, "
            f"{self.status})"
        )


COLUMNS = {
    "loss": SERIES["cost"],
    "cost": SERIES["cost"],
    "parameter_norm": SERIES["parameter_norm"],
    "gradient_norm": ("||grad C||", "norm of the gradient of the cost"),
    "time": ("t", "time of the gradient flow"),
    "time_since_handover": ("t", "time since the true flow took over"),
    "time_step": ("t", "time since the previous row"),
    "arc_length": ("1", "integral of ||d theta|| / ||theta||"),
    "evaluations": ("1", "evaluations of cost and gradient"),
}


class FlowRecorder(Recorder):
    """Recorder of the history of a flow and of the parameters at selected rows.

    When more than ``max_networks`` networks are stored, every other one is dropped and the interval between stored
    networks doubles. The network at the hand-over is always kept.
    """

    lanczos = True

    def __init__(self, net: nn.Module, example: Tensor, settings: FlowSettings, workers: Workers) -> None:
        super().__init__(net, example, settings, 1, workers, COLUMNS)
        self.most = settings.max_networks
        self.spectra_every = settings.spectra_every // settings.record_every
        self.phases: list[str] = []
        self.kept: dict[int, Tensor] = {}
        self.stride = 1
        self.pinned: int | None = None

    def record(self, row: Row, passed: float, arc_length: float, theta: Tensor) -> None:
        """Add a row, a time ``passed`` after the previous row, with parameters ``theta``, shape (size,)."""
        number = len(self.rows)
        values = [row.loss, row.loss, row.parameter_norm, row.gradient_norm, row.time, row.since_handover]
        self.add(row.step, torch.tensor([*values, passed, arc_length, row.evaluations], dtype=torch.float64)[:, None])
        self.phases.append(row.phase)
        if number % self.spectra_every == 0 or number == self.pinned:
            self.measure(number, theta[None])
        if number % self.stride == 0 or number == self.pinned:
            self._keep(number, theta)

    def pin(self, row: int, theta: Tensor) -> None:
        """Keep the network and singular values of this row, regardless of the stride.

        ``row`` is the last row or the next.
        """
        self.pinned = row
        if row < len(self.rows):
            self.measure(row, theta[None])
            self._keep(row, theta)

    def close(self, theta: Tensor) -> None:
        """Complete the last row."""
        number = len(self.rows) - 1
        if number not in self.spectra:
            self.measure(number, theta[None])
        self.kept[number] = theta.detach().to("cpu", copy=True)

    def _keep(self, number: int, theta: Tensor) -> None:
        self.kept[number] = theta.detach().to("cpu", copy=True)
        while len(self.kept) - (self.pinned in self.kept) >= max(self.most, 2):  # reserve one for the last row
            self.stride *= 2
            kept = self.kept.items()
            self.kept = {row: theta for row, theta in kept if row % self.stride == 0 or row == self.pinned}

    def ranks(self, row: int) -> tuple[int, ...]:
        """Return per layer the number of singular values above a tenth of the largest, at the nearest row with any."""
        nearest = min(self.spectra, key=lambda number: abs(number - row))
        return tuple(linalg.rank(self.spectra[nearest][0], 0.1).tolist())
