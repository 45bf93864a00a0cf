"""When a flow leaves the saddle at the origin, against what T37 says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import from_layers
from bnrank.theory.escape.direction import speed
from bnrank.theory.escape.laws import time_to
from bnrank.training import Flow

__all__ = ["FirstEscape", "first_escape"]


@dataclass(frozen=True)
class FirstEscape:
    """The first escape of a flow, predicted and seen.

    Attributes
    ----------
    predicted, seen : float
        Time from ``row`` to the escape, by T37 and in the flow.
    speed : float
        s of the direction in that row.
    start, end : float
        ||theta|| in that row and at the escape; of the leading singular components where a rank was given.
    row : int
        Row of the flow's record whose network the speed is of.
    """

    predicted: float
    seen: float
    speed: float
    start: float
    end: float
    row: int


def first_escape(
    flow: Flow,
    x: Tensor | np.ndarray,
    g: Tensor | np.ndarray,
    *,
    rank: int | None = None,
    end: float | None = None,
) -> FirstEscape:
    """Compare the time at which a flow leaves the first plateau with the time that T37 predicts.

    The direction is that of a network on the plateau, taken for an escape direction of its own speed; its norm grows
    by dr/dt = L^{1 - L/2} s r^{L-1} to what it is when the plateau is left. That end is where the loss has fallen by
    the share that :func:`bnrank.measures.plateaus.find` asks for.

    Parameters
    ----------
    flow : Flow
        Of a bias-free network; with at least one plateau that is left.
    x, g : Tensor or ndarray
        X and G (:func:`bnrank.escape.output_gradient`), all samples or a part of them with its own G.
    rank : int, optional
        Take the network to be its leading singular components, so many per layer: in a wide network the small weights
        may hold most of the norm, and they do not move. The flow must have recorded as many singular values.
    end : float, optional
        Time since the hand-over at which the plateau is left; the end of ``flow.plateaus[0]`` without it.

    Returns
    -------
    FirstEscape

    Raises
    ------
    TypeError, ValueError
        If the flow has not left a plateau, or the direction on it does not lower the loss.

    Notes
    -----
    Source: T37 with E2's normalization.

    Examples
    --------
    >>> import bnrank
    >>> x, y = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([[2.0], [1.0]]).double()
    >>> net = bnrank.networks.from_layers([torch.tensor([[1e-3]]), torch.tensor([[1e-3]]), torch.tensor([[1e-3]])])
    >>> flow = bnrank.flow(net, (x, y), plateau=bnrank.training.SkipPlateau(t_after=20.0))
    >>> found = first_escape(flow, x, bnrank.escape.output_gradient("mse", y))
    >>> abs(found.predicted / found.seen - 1) < 0.02
    True
    """
    if not isinstance(flow, Flow):
        raise TypeError(f"flow: got {validation.describe(flow)}, expected the result of bnrank.flow")
    if end is None:
        if not flow.plateaus or not flow.plateaus[0].left:
            raise ValueError("flow: it has not left a plateau; follow it for longer")
        end = flow.plateaus[0].end
    times = flow.times_since_handover
    limit = np.searchsorted(times, end) - 1 if flow.handover is None else flow.handover.row
    row = max((kept for kept in flow.network_rows if kept <= limit), default=0)
    net = as_mlp(flow.networks[flow.network_rows.index(row)])
    radius = np.sqrt(flow.parameter_norm)
    if rank is not None:
        rank = validation.integer(rank, "rank")
        net = from_layers([_leading(w.detach(), rank) for w in net.weights], slope=net.slope)
        values = flow.history["weight_singular_values"].values[0]
        if rank > values.shape[2]:
            raise ValueError(f"rank: got {rank}, expected at most the {values.shape[2]} singular values recorded")
        known = np.isfinite(values).any(axis=(1, 2))
        radius = np.interp(times, times[known], np.sqrt(np.nansum(values[known, :, :rank] ** 2, axis=(1, 2))))
    found = speed(net, x, g)
    start = math.sqrt(sum(float(w.detach().square().sum()) for w in net.weights))
    last = float(np.interp(end, times, radius))
    return FirstEscape(
        float(time_to(last, start, found, net.depth)), float(end - times[row]), found, start, last, int(row)
    )


def _leading(weight: Tensor, rank: int) -> Tensor:
    """Return the matrix of rank ``rank`` nearest to ``weight``."""
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]
