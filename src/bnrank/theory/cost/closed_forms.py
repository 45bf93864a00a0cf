"""The representation cost of linear and diagonal linear networks, in closed form (T2, T3)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bnrank._core import linalg, validation


class Corrections(NamedTuple):
    """The first terms of R(A; L) = L R0 + R1 + R2 / L + O(1 / L^2) (T3).

    Attributes
    ----------
    R0 : int
        rank A.
    R1 : float
        2 log |A|_+, |A|_+ the product of the non-zero singular values.
    R2 : float
        (1/2) ||log_+ A^T A||_F^2 = 2 sum_i (log s_i)^2.
    """

    R0: int
    R1: float
    R2: float


def linear(a: Any, depth: int, *, rtol: float | None = None) -> float:
    """Return R(A; L) = L sum_i s_i(A)^{2/L}, the smallest ||theta||^2 of a linear network W_L ... W_1 = A (T2).

    Attained by W_l = U_l S^{1/L} U_{l-1}^T, A = U_L S U_0^T (Jacot2023b section 3). At L = 1 it is ||A||_F^2, at L = 2
    twice the nuclear norm, and for L to infinity R / L tends to the rank.

    Parameters
    ----------
    a : Tensor, ndarray, list or number
        A, (d_out, d_in); a vector is a matrix with one column, a number a matrix with one entry.
    depth : int
        L, at least 1.
    rtol : float, optional
        Singular values up to ``rtol`` times the largest count as 0; at L = 100, s^{2/L} would turn rounding errors
        of 1e-17 into 1/2. Default: max(d_out, d_in) times the machine epsilon of A's dtype.

    Returns
    -------
    float
        The cost; 0 for A = 0.

    Raises
    ------
    TypeError, ValueError
        If A is not a finite real matrix, or an argument is out of range.

    Examples
    --------
    >>> linear([[4.0, 0.0], [0.0, 9.0]], depth=4)            # 4 (4^{1/2} + 9^{1/2})
    20.0
    """
    depth = validation.integer(depth, "depth")
    return schatten(_singular_values(a, rtol), depth)


def diagonal(w: Any, depth: int) -> float:
    """Return L sum_i |w_i|^{2/L}, the smallest ||theta||^2 of L diagonal layers whose product is diag(w) (T2).

    Parameters
    ----------
    w : Tensor, ndarray or list
        The vector of the network x -> (w_1 x_1, ..., w_d x_d), (d,).
    depth : int
        L, at least 1.

    Returns
    -------
    float
        The cost; zeros of w contribute 0.

    Raises
    ------
    TypeError, ValueError
        If w is not a finite real vector, or an argument is out of range.

    Examples
    --------
    >>> diagonal([4.0, 0.0, -9.0], depth=2)                  # 2 (4 + 9)
    26.0
    """
    depth = validation.integer(depth, "depth")
    w = _array(w, "w")
    validation.expect(w.ndim == 1, "w", f"shape {tuple(w.shape)}", "a vector (d,)")
    return schatten(w.abs(), depth)


def linear_corrections(a: Any, rtol: float | None = None) -> Corrections:
    """Return (R0, R1, R2) of a linear map: R(A; L) = L R0 + R1 + R2 / L up to :func:`remainder_bound` (T3).

    R0 = rank A, R1 = 2 log |A|_+, R2 = (1/2) ||log_+ A^T A||_F^2 (Jacot2023b section 3). R(A; L) is the cost among
    linear networks; a ReLU network of the same map may cost more on a domain with inputs of both signs.

    Parameters
    ----------
    a, rtol
        As in :func:`linear`.

    Returns
    -------
    Corrections
        A named tuple; (0, 0, 0) for A = 0.

    Raises
    ------
    TypeError, ValueError
        See :func:`linear`.

    Examples
    --------
    >>> import math
    >>> linear_corrections([[math.e, 0.0], [0.0, 1.0]])
    Corrections(R0=2, R1=2.0, R2=2.0)
    """
    logs = _singular_values(a, rtol).log()
    return Corrections(len(logs), float(2 * logs.sum()), float(2 * (logs * logs).sum()))


def remainder_bound(a: Any, depth: int, *, rtol: float | None = None) -> float:
    """Return a bound on |R(A; L) - (L R0 + R1 + R2 / L)| (T3).

    With u_i = 2 log s_i it is sum_i |u_i|^3 e^{max(u_i, 0) / L} / (6 L^2): the remainder of L e^{u/L} after its
    quadratic term, by Lagrange.

    Parameters
    ----------
    a, depth, rtol
        As in :func:`linear`.

    Returns
    -------
    float
        The bound; 0 if all singular values are 0 or 1, infinite if it overflows.

    Raises
    ------
    TypeError, ValueError
        See :func:`linear`.

    Examples
    --------
    >>> a, depth = [[2.0, 1.0], [0.0, 0.5]], 10
    >>> r0, r1, r2 = linear_corrections(a)
    >>> abs(linear(a, depth) - (depth * r0 + r1 + r2 / depth)) <= remainder_bound(a, depth)
    True
    """
    depth = validation.integer(depth, "depth")
    u = 2 * _singular_values(a, rtol).log()
    return float((u.abs() ** 3 * torch.exp(u.clamp(min=0) / depth)).sum()) / (6 * depth**2)


def schatten(values: Tensor, depth: int) -> float:
    """Return L sum_i s_i^{2/L} of non-negative numbers."""
    return depth * float(linalg.schatten(values, depth, rtol=0.0))


def _array(value: Any, name: str) -> Tensor:
    array = validation.real(value, name).cpu()
    validation.expect(array.numel() != 0, name, f"an empty array of shape {tuple(array.shape)}", "at least one entry")
    return array


def _singular_values(a: Any, rtol: float | None) -> Tensor:
    """Return the singular values above the tolerance, in float64, descending."""
    a = _array(a, "a")
    validation.expect(a.ndim <= 2, "a", f"shape {tuple(a.shape)}", "a matrix (d_out, d_in)")
    a = a.reshape(-1, 1) if a.ndim < 2 else a
    tolerance = max(a.shape) * torch.finfo(a.dtype).eps if rtol is None else validation.rtol(rtol)
    values = torch.linalg.svdvals(a.to(torch.float64))
    return values[values > tolerance * values[0]]
