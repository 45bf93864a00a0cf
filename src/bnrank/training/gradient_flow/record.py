"""What is kept of a flow while it goes on: rows, singular values, networks."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.sparse.linalg import svds
from torch import Tensor, nn

from bnrank._version import __version__
from bnrank.training.gradient_flow.plan import FlowSettings
from bnrank.training.gradient_flow.result import Row
from bnrank.training.recorder import SERIES, Recorder
from bnrank.training.workers import Workers

__all__ = ["Kept"]

LARGE = 300  # of the smaller side of a matrix; above, a few singular values come from Lanczos iterations

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


class Kept:
    """Rows of a flow, with singular values at some and the parameters at others.

    Parameters
    ----------
    net : nn.Module
        Architecture.
    example : Tensor
        Two samples.
    shapes : list of tuple
        Shapes of the trained parameters.
    top_k : int
        Singular values per layer.
    spectra_every : int
        Rows between rows with singular values.
    most : int
        Networks kept at most; when there are more, every other one is dropped, and twice as few are kept from then on;
        that of the hand-over stays.
    """

    def __init__(
        self,
        net: nn.Module,
        example: Tensor,
        shapes: list[tuple[int, ...]],
        plan: FlowSettings,
        workers: Workers,
    ) -> None:
        self.net, self.shapes, self.workers, top_k = net, shapes, workers, plan.top_k
        self.most, self.spectra_every = plan.max_networks, plan.spectra_every // plan.record_every
        layers = Recorder(net, example, None, 1, top_k, workers)
        self.layers, self.top_k, self.skipped, self.notes = layers.layers, layers.top_k, layers.skipped, layers.notes
        self.spectra: list[tuple[str, int, Callable[[Tensor], Tensor]]] = [
            (name, index, functools.partial(_leading, k=top_k) if _is_large(shapes[index], top_k) else spectrum)
            for name, index, spectrum in self.layers
        ]
        self.rows: list[tuple[float, ...]] = []
        self.steps: list[int] = []
        self.phases: list[str] = []
        self.values: dict[int, np.ndarray[Any, Any]] = {}
        self.kept: dict[int, Tensor] = {}
        self.stride = 1
        self.pinned: int | None = None

    def add(self, row: Row, passed: float, arc_length: float, theta: Tensor) -> None:
        """Add a row, ``passed`` after the one before; ``theta`` are the parameters there, shape (size,)."""
        number = len(self.rows)
        columns = [row.loss, row.loss, row.parameter_norm, row.gradient_norm, row.time, row.since_handover]
        self.rows.append((*columns, passed, arc_length, row.evaluations))
        self.steps.append(row.step)
        self.phases.append(row.phase)
        if number % self.spectra_every == 0 or number == self.pinned:
            self._measure(number, theta)
        if number % self.stride == 0 or number == self.pinned:
            self._keep(number, theta)

    def pin(self, row: int, theta: Tensor) -> None:
        """Keep network and singular values of this row, the last one or the next, whatever the stride."""
        self.pinned = row
        if row < len(self.rows):
            self._measure(row, theta)
            self._keep(row, theta)

    def close(self, theta: Tensor) -> None:
        """Complete the last row."""
        number = len(self.rows) - 1
        if number not in self.values:
            self._measure(number, theta)
        self.kept[number] = theta.detach().to("cpu", copy=True)

    def _measure(self, number: int, theta: Tensor) -> None:
        pieces = self._split(theta)
        values = np.full((len(self.layers), self.top_k), np.nan)

        def measure(layer: int, index: int, spectrum: Callable[[Tensor], Tensor]) -> None:
            found = spectrum(pieces[index]).cpu().numpy()
            values[layer, : len(found)] = found

        tasks = [functools.partial(measure, i, index, f) for i, (_, index, f) in enumerate(self.spectra)]
        self.workers.share(tasks)
        self.values[number] = values

    def _keep(self, number: int, theta: Tensor) -> None:
        self.kept[number] = theta.detach().to("cpu", copy=True)
        while len(self.kept) - (self.pinned in self.kept) >= max(self.most, 2):  # one more will be the last row
            self.stride *= 2
            kept = self.kept.items()
            self.kept = {row: theta for row, theta in kept if row % self.stride == 0 or row == self.pinned}

    def _split(self, theta: Tensor) -> list[Tensor]:
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        return [piece.view(shape) for piece, shape in zip(theta.split(sizes), self.shapes, strict=True)]

    def networks(self) -> tuple[list[int], list[nn.Module]]:
        """Return the rows and the networks that were kept, as modules of their own."""
        rows = sorted(self.kept)
        return rows, [self._module(self.kept[row]) for row in rows]

    def _module(self, theta: Tensor) -> nn.Module:
        net = copy.deepcopy(self.net)
        own = [p for p in net.parameters() if p.requires_grad]
        for parameter, piece in zip(own, self._split(theta), strict=True):
            parameter.data = piece.clone()
        return net

    def dataset(self, attrs: dict[str, Any]) -> xr.Dataset:
        """Return all rows over (member, step), with one member."""
        table = np.array(self.rows, dtype=float).reshape(len(self.rows), len(COLUMNS))
        variables: dict[str, Any] = {
            name: (("member", "step"), table[None, :, i], {"units": units, "long_name": text})
            for i, (name, (units, text)) in enumerate(COLUMNS.items())
        }
        spectra = np.full((1, len(self.rows), len(self.layers), self.top_k), np.nan)
        for number, values in self.values.items():
            spectra[0, number] = values
        text = "singular values of the weights, largest first"
        variables["weight_singular_values"] = (
            ("member", "step", "layer", "index"),
            spectra,
            {"units": "1", "long_name": text},
        )
        return xr.Dataset(
            variables,
            coords={
                "member": [0],
                "step": np.array(self.steps, dtype=np.int64),
                "layer": np.arange(1, len(self.layers) + 1),
                "index": np.arange(1, self.top_k + 1),
                "layer_name": ("layer", np.array([name for name, *_ in self.layers], dtype=str)),
                "phase": ("step", np.array(self.phases, dtype=str)),
            },
            attrs={
                "bnrank_version": __version__,
                "depth": len(self.layers),
                "skipped": json.dumps(self.skipped),
                "notes": json.dumps(self.notes),
                **attrs,
            },
        )

    def ranks(self, row: int, rtol: float = 0.1) -> tuple[int, ...]:
        """Return how many singular values of every layer are above ``rtol`` of the largest, at the nearest row."""
        nearest = min(self.values, key=lambda number: abs(number - row))
        values = self.values[nearest]
        return tuple(int((layer > rtol * layer[0]).sum()) for layer in values)


def _is_large(shape: tuple[int, ...], k: int) -> bool:
    return len(shape) == 2 and min(shape) > max(LARGE, 4 * k)


def _leading(matrix: Tensor, k: int) -> Tensor:
    """Return the k largest singular values of a large matrix, as float64, to about 1e-5 of the largest."""
    array = matrix.detach().cpu().numpy()
    if not np.isfinite(array).all():
        return torch.full((k,), torch.nan, dtype=torch.float64)
    scale = float(np.abs(array).max())
    if scale == 0:
        return torch.zeros(k, dtype=torch.float64)
    start = np.random.default_rng(0).standard_normal(min(array.shape)).astype(array.dtype)
    values = svds(array / array.dtype.type(scale), k=k, v0=start, tol=1e-3, return_singular_vectors=False)
    return torch.from_numpy(np.sort(values)[::-1].astype(float) * scale)
