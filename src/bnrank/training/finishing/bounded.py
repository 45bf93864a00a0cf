"""Convex quadratic functions within bounds."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array

PROXIMAL = 1e-9  # weight of the distance to the last point, relative to a unit diagonal: unknowns may be dependent
ROUNDS, STEPS, HALVINGS = 3, 60, 30
EDGE = 1e-8  # this near to a bound, relative to the range, an unknown that the gradient pushes out is on it
EXACT = 1e-11  # relative size of a gradient that counts as 0


def minimum(matrix: Array, right: Array, low: Array, high: Array, start: Array) -> Array:
    """Return argmin of x^T M x / 2 - r^T x subject to bounds, by projected Newton steps.

    Parameters
    ----------
    matrix : ndarray, (k, k)
        M, symmetric and positive semidefinite.
    right, low, high, start : ndarray, (k,)
        r, the bounds, and where the search begins.
    """
    units = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    units = np.maximum(units, 1e-12 * units.max(initial=0))
    scaled, right, least, most = matrix / units[:, None] / units, right / units, low * units, high * units
    scaled[np.diag_indices(len(scaled))] += PROXIMAL
    x = np.clip(start * units, least, most)
    for _ in range(ROUNDS):
        new = _newton(scaled, right + PROXIMAL * x, least, most, x)
        change, x = float(np.abs(new - x).max(initial=0)), new
        if change <= 1e-9 * float(np.abs(most).max(initial=0)):
            break
    return np.asarray(np.clip(x / units, low, high))


def _newton(matrix: Array, right: Array, low: Array, high: Array, x: Array) -> Array:
    gradient, edge = matrix @ x - right, EDGE * (high - low)
    for _ in range(STEPS):
        below, above = (x <= low + edge) & (gradient > 0), (x >= high - edge) & (gradient < 0)
        x = np.where(below, low, np.where(above, high, x))
        gradient = matrix @ x - right
        free = np.flatnonzero(~(below | above))
        if np.abs(gradient[free]).max(initial=0) <= EXACT * np.abs(right).max(initial=0):
            break
        try:
            factor = scipy.linalg.cho_factor(matrix[np.ix_(free, free)], check_finite=False)
        except scipy.linalg.LinAlgError:
            break
        step = -scipy.linalg.cho_solve(factor, gradient[free], check_finite=False)
        for share in 0.5 ** np.arange(HALVINGS):
            tried = x.copy()
            tried[free] = np.clip(x[free] + share * step, low[free], high[free])
            there = matrix @ tried - right
            if (tried - x) @ (gradient + there) < 0:  # twice the change of a quadratic function, without cancellation
                break
        else:
            break
        x, gradient = tried, there
    return x
