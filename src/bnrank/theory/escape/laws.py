"""How fast the norm grows along an escape direction, in closed form (T37 with the normalization of E2).

Near the origin the loss is C(0) + L0(theta), L0 homogeneous of degree L, the depth (T34). Along an escape direction of
speed s, which is -L0 where ||theta||^2 = L, gradient flow stays on the ray and r = ||theta|| obeys

    dr/dt = L^{1 - L/2} s r^{L - 1}.

At depth 2 that is exponential growth; deeper, the norm is infinite after the finite time

    T = r0^{2 - L} / ((L - 2) L^{1 - L/2} s),    r(t) = r0 (1 - t/T)^{-1/(L - 2)}.

Long before that the higher terms of the loss matter: the law holds while the outputs are small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from torch import Tensor

from bnrank._core import validation

__all__ = ["blow_up_time", "norm_at", "time_to"]

Numbers: TypeAlias = "float | Sequence[float] | np.ndarray | Tensor"


def norm_at(t: Numbers, r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return ||theta(t)|| along an escape direction, from ||theta(0)|| = r0.

    r0 exp(s t) at depth 2, r0 (1 - t/T)^{-1/(L-2)} deeper, T as in :func:`blow_up_time`.

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
        If an argument is out of range, or a time at or after T: the message gives T.
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
    depth = _depth(depth)
    r0, speed = _positive(r0, "r0"), _speed(speed)
    t = _finite(t, "t")
    if depth == 2:
        with np.errstate(over="ignore"):
            return _plain(_in_range(r0 * np.exp(speed * t), "t", t))
    end = _blow_up(r0, speed, depth)
    late = np.broadcast_to(t >= end, np.broadcast_shapes(t.shape, end.shape))
    if late.any():
        t, end = np.broadcast_arrays(t, end)
        raise ValueError(
            f"t: got {t[late][0]:g}, expected a time before {end[late][0]:.10g}, when the norm is infinite"
        )
    return _plain(r0 * np.exp(-np.log1p(-t / end) / (depth - 2)))


def time_to(r: Numbers, r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return the time in which the norm goes from ``r0`` to ``r`` along an escape direction.

    log(r/r0) / s at depth 2, (r0^{2-L} - r^{2-L}) / ((L-2) L^{1-L/2} s) deeper, computed without cancellation.

    Parameters
    ----------
    r, r0 : float or array
        Norms of all parameters, positive. Where ``r`` is below ``r0`` the time is negative: so long ago the norm was
        ``r`` on the same trajectory.
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
    depth = _depth(depth)
    r, r0, speed = _positive(r, "r"), _positive(r0, "r0"), _speed(speed)
    near = np.abs(r - r0) < r0 / 2
    log = np.where(near, np.log1p(np.where(near, (r - r0) / r0, 0.0)), np.log(r) - np.log(r0))
    if depth == 2:
        return _plain(log / speed)
    with np.errstate(over="ignore", invalid="ignore"):
        return _plain(_in_range(-_blow_up(r0, speed, depth) * np.expm1(-(depth - 2) * log), "r", r))


def blow_up_time(r0: Numbers, speed: Numbers, depth: int) -> float | np.ndarray:
    """Return the time T = r0^{2-L} / ((L-2) L^{1-L/2} s) at which the law has an infinite norm.

    It is the escape time up to a relative error (r0/r)^{L-2}, whatever norm r counts as escaped; inf at depth 2,
    where growth is exponential and the time depends on r like log r.

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
    depth = _depth(depth)
    r0, speed = _positive(r0, "r0"), _speed(speed)
    if depth == 2:
        return _plain(np.full(np.broadcast_shapes(r0.shape, speed.shape), math.inf))
    return _plain(_blow_up(r0, speed, depth))


def _blow_up(r0: np.ndarray, speed: np.ndarray, depth: int) -> np.ndarray:
    rate = depth ** (1 - depth / 2) * speed
    with np.errstate(over="ignore"):
        return _in_range(r0 ** float(2 - depth) / ((depth - 2) * rate), "r0", r0)


def _depth(depth: object) -> int:
    depth = validation.integer(depth, "depth")
    if depth == 1:
        raise ValueError(
            "depth: got 1, expected at least 2; one layer has no saddle at the origin, where its gradient is not zero"
        )
    return depth


def _finite(value: Numbers, name: str) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: got {validation.describe(value)}, expected a number or an array of numbers"
        ) from error
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got {array[~np.isfinite(array)][0]}, expected finite numbers")
    return array


def _positive(value: Numbers, name: str) -> np.ndarray:
    array = _finite(value, name)
    if (array <= 0).any():
        raise ValueError(f"{name}: got {array[array <= 0].flat[0]:g}, expected a norm > 0")
    return array


def _speed(value: Numbers) -> np.ndarray:
    array = _finite(value, "speed")
    if (array <= 0).any():
        raise ValueError(
            f"speed: got {array[array <= 0].flat[0]:g}, expected a number > 0; "
            "at speed 0 the loss has no direction along which it falls"
        )
    return array


def _in_range(values: np.ndarray, name: str, given: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise validation.RangeError(f"{name}: got {validation.describe(given)}, for which the result exceeds 1.8e308")
    return values


def _plain(values: np.ndarray) -> float | np.ndarray:
    return float(values) if np.ndim(values) == 0 else np.asarray(values)
