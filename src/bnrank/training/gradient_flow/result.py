"""What a gradient flow gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

__all__ = ["Flow", "Handover", "Row"]


@dataclass(frozen=True)
class Row:
    """A row of the record, as the ``stop`` function sees it.

    Attributes
    ----------
    step, evaluations : int
        Steps so far, and evaluations of the cost's gradient.
    time, since_handover : float
        t, and t less the time of the hand-over (negative before it is known: the time within the plateau, less all of
        it, is then not known either and this is -inf).
    loss, gradient_norm : float
        C and ||grad C||; on the skipped plateau C(0) + L0 and ||grad L0||; of the mini-batch with mini-batches.
    parameter_norm : float
        ||theta||^2.
    phase : str
        "plateau" while it is skipped, else "flow".
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
    """Where the flow of L0 gave way to the true one.

    Attributes
    ----------
    time : float
        t at the hand-over.
    radius : float
        ||theta|| there.
    criterion : float
        ||grad C(Y) - G||_F / ||G||_F there, at most ``negligible``, unless ``at_once``.
    bound : float
        (r / sqrt L)^L ||X||_F, which the norm of the outputs cannot exceed (T35).
    outputs : float
        ||Y||_F itself.
    row, evaluations : int
        The row of the record, and how many evaluations were made before.
    at_once : bool
        The outputs were not negligible to begin with, so that there was nothing to skip.
    """

    time: float
    radius: float
    criterion: float
    bound: float
    outputs: float
    row: int
    evaluations: int
    at_once: bool


@dataclass(frozen=True)
class Flow:
    """A gradient flow.

    Attributes
    ----------
    times : ndarray
        t of every row of the record.
    times_since_handover : ndarray
        The same less the time of the hand-over, without the cancellation that t suffers after a long plateau; equal to
        ``times`` where there was no hand-over.
    loss, gradient_norm, parameter_norm : ndarray
        C, ||grad C|| and ||theta||^2 per row. With mini-batches C is the mean over the batches since the row before,
        and the gradient that of the last batch.
    networks : list of nn.Module
        Networks at some of the rows, the first and the last among them.
    network_rows : list of int
        The rows they belong to.
    plateaus : tuple of Plateau
        Where the loss stands nearly still, with the rank of every layer (singular values above a tenth of the largest).
        Their times count from the hand-over, like ``times_since_handover``.
    history : xarray.Dataset
        All of the record over (member, step), as `bnrank.train` gives it, with one member: ``loss``, ``cost``,
        ``parameter_norm``, ``gradient_norm``, ``time``, ``time_since_handover``, ``arc_length`` (the integral of
        ||d theta|| / ||theta||), ``evaluations``; ``weight_singular_values`` (member, step, layer, index), NaN at rows
        without; coordinate ``phase``.
    handover : Handover or None
        Where the skipped plateau ended; None if none was skipped or its end was not reached.
    evaluations, steps : int
        How many times cost and gradient were computed, and steps taken.
    status : str
        "finished" (the end of the time asked for), "stopped" (by ``stop``), "evaluations used up", "time is up",
        "interrupted", "diverged" (not finite; the last row is the last finite one), "stalled" (the steps have come
        below the rounding of theta or of t), "stationary" (no gradient at all) or "no escape" (the direction has
        converged to one along which L0 does not fall).
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

    def __repr__(self) -> str:
        """Say in a few words how it went."""
        skipped = "" if self.handover is None else f", handed over at t = {self.handover.time:.4g}"
        return (
            f"Flow(t = {self.times[0]:.4g} to {self.times[-1]:.4g}{skipped}, loss {self.loss[0]:.4g} to "
            f"{self.loss[-1]:.4g}, {len(self.plateaus)} plateaus, {self.steps} steps, {self.evaluations} evaluations, "
            f"{self.status})"
        )
