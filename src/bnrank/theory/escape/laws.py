"""The norm along an escape direction, in closed form (T37 with the normalization of E2), and the first escape.

Near the origin the loss is C(0) + L0(theta), L0 homogeneous of degree L, the depth (T34). Along an escape direction of
speed s, which is -L0 where ||theta||^2 = L, gradient flow stays on the ray and r = ||theta|| obeys

    dr/dt = L^{1 - L/2} s r^{L - 1}.

At depth 2 the norm grows exponentially; at larger depths it diverges at the finite time

    T = r0^{2 - L} / ((L - 2) L^{1 - L/2} s),    r(t) = r0 (1 - t/T)^{-1/(L - 2)}.

The law holds while the outputs are small; the higher-order terms of the loss matter long before T.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import from_layers
from bnrank.theory.escape.direction import speed as speed_of
from bnrank.theory.escape.reading import check_depth
from bnrank.training import Flow

Numbers: TypeAlias = "float | Sequence[float] | np.ndarray | Tensor"


def norm_at(t: Numbers, r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return ||theta(t)|| along an escape direction, from ||theta(0)|| = r0.

    The norm is r0 exp(s t) at depth 2, and r0 (1 - t/T)^{-1/(L-2)} at larger depths, with T as in
    :func:`blow_up_time`.

    Parameters
    ----------
    t : float or array
        Time of the flow d theta/dt = -grad L0; negative times lie before the start.
    r0 : float or array
        Norm of all parameters at time 0, positive.
    speed : float or array
        s = -L0 on the sphere ||theta||^2 = L, positive.
    depth : int
        L, at least 2.

    Returns
    -------
    float or ndarray
        Of the shape to which the arguments broadcast.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or a time is T or later; the message gives T.
    RangeError
        If the norm exceeds the largest float.

    Notes
    -----
    Source: T37 and E2; Bantzis2025, Proposition 2.2.

    Examples
    --------
    >>> round(norm_at(6.0, 0.1 * 3**0.5, 0.5, depth=3), 4)
    0.2474
    >>> round(norm_at(2.0, 1.0, 0.5, depth=2), 4)
    2.7183
    """
    depth, t, r0, speed = check_depth(depth), _finite(t, "t"), _positive(r0, "r0"), _positive(speed, "speed")
    _check_shapes(t=t, r0=r0, speed=speed)
    if depth == 2:
        with np.errstate(over="ignore"):
            return _plain(_in_range(r0 * np.exp(speed * t), "t", t))
    end = _blow_up(r0, speed, depth)
    t, end = np.broadcast_arrays(t, end)
    if (late := t >= end).any():
        raise ValueError(
            f"t: got {t[late][0]:g}, expected a time before {end[late][0]:.10g}, when the norm is infinite"
        )
    return _plain(r0 * np.exp(-np.log1p(-t / end) / (depth - 2)))


def time_to(r: Numbers, r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return the time in which the norm grows from ``r0`` to ``r`` along an escape direction.

    It is log(r/r0) / s at depth 2, and (r0^{2-L} - r^{2-L}) / ((L-2) L^{1-L/2} s) at larger depths, computed without
    cancellation.

    Parameters
    ----------
    r, r0 : float or array
        Norms of all parameters, positive. If ``r`` is below ``r0``, the time is negative: the trajectory had norm ``r``
        earlier.
    speed, depth
        As in :func:`norm_at`.

    Returns
    -------
    float or ndarray
        Of the shape to which the arguments broadcast.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.
    RangeError
        If the time exceeds the largest float.

    Notes
    -----
    Source: T37 and E2 (the printed time has a plus sign); Bantzis2025, Proposition 2.2.

    Examples
    --------
    >>> t = time_to(1.0, 1e-8, 0.5, depth=6)
    >>> f"{t:.3e}, {norm_at(0.99 * t, 1e-8, 0.5, depth=6):.3e}"
    '1.800e+33, 3.162e-08'
    """
    depth, speed = check_depth(depth), _positive(speed, "speed")
    r, r0 = _positive(r, "r"), _positive(r0, "r0")
    _check_shapes(r=r, r0=r0, speed=speed)
    near = np.abs(r - r0) < r0 / 2
    log = np.where(near, np.log1p(np.where(near, (r - r0) / r0, 0.0)), np.log(r) - np.log(r0))
    if depth == 2:
        return _plain(log / speed)
    with np.errstate(over="ignore", invalid="ignore"):
        return _plain(_in_range(-_blow_up(r0, speed, depth) * np.expm1(-(depth - 2) * log), "r", r))


def blow_up_time(r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return the time T = r0^{2-L} / ((L-2) L^{1-L/2} s) at which the law has an infinite norm.

    It is the escape time up to a relative error (r0/r)^{L-2}, where r is the norm at which the network counts as
    escaped. It is inf at depth 2, where growth is exponential and the time depends on r like log r.

    Parameters
    ----------
    r0, speed, depth
        As in :func:`norm_at`.

    Returns
    -------
    float or ndarray
        Of the shape to which the arguments broadcast.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.
    RangeError
        If the time exceeds the largest float.

    Notes
    -----
    Source: T37 and E2; Bantzis2025, Proposition 2.2.

    Examples
    --------
    >>> round(blow_up_time(0.1 * 3**0.5, 0.5, depth=3), 6)
    20.0
    >>> blow_up_time(0.1, 0.5, depth=2)
    inf
    """
    depth, r0, speed = check_depth(depth), _positive(r0, "r0"), _positive(speed, "speed")
    _check_shapes(r0=r0, speed=speed)
    if depth == 2:
        return _plain(np.full(np.broadcast_shapes(r0.shape, speed.shape), math.inf))
    return _plain(_blow_up(r0, speed, depth))


def _blow_up(r0: np.ndarray, speed: np.ndarray, depth: int) -> np.ndarray:
    rate = depth ** (1 - depth / 2) * speed
    with np.errstate(over="ignore"):
        return _in_range(r0 ** float(2 - depth) / ((depth - 2) * rate), "r0", r0)


def _check_shapes(**arrays: np.ndarray) -> None:
    """Raise ValueError unless the shapes broadcast."""
    shapes = [array.shape for array in arrays.values()]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ValueError(f"{', '.join(arrays)}: got shapes {shapes}, expected ones that broadcast together") from error


def _finite(value: Numbers, name: str) -> np.ndarray:
    return validation.real(value, name, "a number or numbers").double().cpu().numpy()


def _positive(value: Numbers, name: str) -> np.ndarray:
    array = _finite(value, name)
    if (array <= 0).any():
        why = "; at speed 0 the loss has no direction along which it falls" if name == "speed" else ""
        raise ValueError(f"{name}: got {array[array <= 0].flat[0]:g}, expected a number > 0{why}")
    return array


def _in_range(values: np.ndarray, name: str, given: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise validation.RangeError(f"{name}: got {validation.describe(given)}, for which the result exceeds 1.8e308")
    return values


def _plain(values: np.ndarray) -> float | np.ndarray:
    return float(values) if np.ndim(values) == 0 else np.asarray(values)


@dataclass(frozen=True)
class FirstEscape(Printed):
    """The first escape of a flow, predicted and observed.

    Attributes
    ----------
    predicted, observed : float
        Time from ``row`` to the escape, according to T37 and in the flow.
    speed : float
        Speed s of the direction in that row.
    start, end : float
        ||theta|| in that row and at the escape; with ``rank``, only of the leading singular components.
    row : int
        Row of the flow's record whose network gives the speed.
    """

    predicted: float
    observed: float
    speed: float
    start: float
    end: float
    row: int

    def __str__(self) -> str:
        """Return both times and the speed in one line."""
        return (
            f"first escape: predicted at t = {self.predicted:.4g}, observed at {self.observed:.4g}; "
            f"speed {self.speed:.4g}, norm {self.start:.4g} to {self.end:.4g}"
        )


def first_escape(
    flow: Flow, x: Tensor | np.ndarray, g: Tensor | np.ndarray, *, rank: int | None = None, end: float | None = None
) -> FirstEscape:
    """Return the observed time at which a flow leaves the first plateau, and the time that T37 predicts.

    The prediction treats a network on the plateau as an escape direction, with the speed s of that network. Its norm
    grows by dr/dt = L^{1 - L/2} s r^{L-1} until it reaches the norm observed at the end of the plateau. The plateau
    ends when the loss has fallen by the share that :func:`bnrank.training.plateaus.find` requires.

    Parameters
    ----------
    flow : Flow
        Flow of a bias-free network that has left a plateau.
    x, g : Tensor or ndarray
        X and G (:func:`bnrank.escape.output_gradient`), of all samples or of a subset; G is that of the same samples.
    rank : int, optional
        Replace each layer by its ``rank`` leading singular components. In a wide network the small weights, which do
        not move, may carry most of the norm. The flow must have recorded at least ``rank`` singular values.
    end : float, optional
        Time since the hand-over at which the plateau ends. Default: the end of ``flow.plateaus[0]``.

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
    >>> abs(found.predicted / found.observed - 1) < 0.02
    True
    """
    if not isinstance(flow, Flow):
        raise TypeError(f"flow: got {validation.describe(flow)}, expected the result of bnrank.flow")
    if end is None:
        if not flow.plateaus or not flow.plateaus[0].left:
            raise ValueError("flow: it has not left a plateau; increase t_end")
        end = flow.plateaus[0].end
    end = validation.number(end, "end", 0.0)
    times = flow.times_since_handover
    limit = np.searchsorted(times, end) - 1 if flow.handover is None else flow.handover.row
    row = max((kept for kept in flow.network_rows if kept <= limit), default=0)
    net = as_mlp(flow.networks[flow.network_rows.index(row)])
    radius = np.sqrt(flow.parameter_norm)
    if rank is not None:
        rank = validation.integer(rank, "rank")
        net = from_layers([_leading(w.detach(), rank) for w in net.weights], slope=net.slope)
        values = flow.history["weight_singular_values"].values[0]
        count = values.shape[2]
        validation.expect(rank <= count, "rank", f"{rank}", f"at most the {count} singular values recorded")
        known = np.isfinite(values).any(axis=(1, 2))
        radius = np.interp(times, times[known], np.sqrt(np.nansum(values[known, :, :rank] ** 2, axis=(1, 2))))
    speed = speed_of(net, x, g)
    validation.expect(speed > 0, "x, g", f"data of which the speed is {speed:g}", "a loss that falls along the network")
    start = math.sqrt(sum(float(w.detach().square().sum()) for w in net.weights))
    last = float(np.interp(end, times, radius))
    predicted = float(time_to(last, start, speed, net.depth))
    return FirstEscape(predicted, float(end - times[row]), speed, start, last, int(row))


def _leading(weight: Tensor, rank: int) -> Tensor:
    """Return the matrix of rank ``rank`` nearest to ``weight``."""
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]
