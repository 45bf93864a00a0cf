"""The record of a flow: rows, singular values at some of them, networks at others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank._core import linalg
from bnrank.training.ensemble import Workers, filled
from bnrank.training.gradient_flow.plan import FlowSettings
from bnrank.training.gradient_flow.result import Row
from bnrank.training.recorder import SERIES, Recorder

__all__ = ["FlowRecorder"]

COLUMNS = {
    "loss": SERIES["cost"],
    "cost": SERIES["cost"],
    "parameter_norm": SERIES["parameter_norm"],
    "gradient_norm": ("||grad C||", "norm of the gradient of the cost"),
    "time": ("t", "time of the gradient flow"),
    "time_since_handover": ("t", "time since the true flow took over"),
    "time_step": ("t", "time since the row before"),
    "arc_length": ("1", "integral of ||d theta|| / ||theta||"),
    "evaluations": ("1", "evaluations of cost and gradient"),
}


class FlowRecorder(Recorder):
    """The history of a flow, and the parameters at some rows.

    When there are more than ``max_networks``, every other one is dropped, and half as many are kept from then on; that
    of the hand-over stays.
    """

    def __init__(self, net: nn.Module, example: Tensor, settings: FlowSettings, workers: Workers) -> None:
        super().__init__(net, example, settings, 1, workers, COLUMNS, lanczos=True)
        self.most, self.spectra_every = settings.max_networks, settings.spectra_every // settings.record_every
        self.phases: list[str] = []
        self.kept: dict[int, Tensor] = {}
        self.stride = 1
        self.pinned: int | None = None

    def record(self, row: Row, passed: float, arc_length: float, theta: Tensor) -> None:
        """Add a row, ``passed`` after the one before; ``theta`` are the parameters there, shape (size,)."""
        number = len(self.rows)
        values = [row.loss, row.loss, row.parameter_norm, row.gradient_norm, row.time, row.since_handover]
        self.add(row.step, torch.tensor([*values, passed, arc_length, row.evaluations], dtype=torch.float64)[:, None])
        self.phases.append(row.phase)
        if number % self.spectra_every == 0 or number == self.pinned:
            self.measure(number, theta[None])
        if number % self.stride == 0 or number == self.pinned:
            self._keep(number, theta)

    def pin(self, row: int, theta: Tensor) -> None:
        """Keep network and singular values of this row, the last one or the next, whatever the stride."""
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
        while len(self.kept) - (self.pinned in self.kept) >= max(self.most, 2):  # one more will be the last row
            self.stride *= 2
            kept = self.kept.items()
            self.kept = {row: theta for row, theta in kept if row % self.stride == 0 or row == self.pinned}

    def networks(self) -> tuple[list[int], list[nn.Module]]:
        """Return the rows whose networks were kept, and these."""
        rows = sorted(self.kept)
        return rows, [filled(self.net, self.kept[row]) for row in rows]

    def history(self, status: str) -> xr.Dataset:
        """Return all rows over (member, step), with one member."""
        phases: Any = {"phase": ("step", np.array(self.phases, dtype=str))}
        return self.dataset(phases, {"status": status})

    def ranks(self, row: int, rtol: float = 0.1) -> tuple[int, ...]:
        """Return how many singular values of every layer are above ``rtol`` of the largest, at the nearest row."""
        nearest = min(self.spectra, key=lambda number: abs(number - row))
        return tuple(linalg.rank(self.spectra[nearest][0], rtol).tolist())
