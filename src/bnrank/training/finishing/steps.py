"""Newton steps along a crease."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array
from bnrank.training.finishing.tangents import Tangents

if TYPE_CHECKING:
    from bnrank.training.finishing.creases import Crease


class Steps:
    """Newton steps along a crease, with one factor of H + sigma.

    sigma is the smallest of the damping and larger ones for which H + sigma is positive definite along the crease:
    then H + sigma + rho A^T A is, for large rho, with A the rows of the kinks. Kinks that depend on the weights of one
    neuron of the first layer only need no rho: those weights are replaced by fewer coordinates along the crease.
    """

    def __init__(self, crease: Crease, damping: float) -> None:
        hessian = crease.at.hessian()
        scale = float(np.abs(np.diag(hessian)).max())
        self.parts = _parts(len(hessian), crease.tangents.free)
        self.rows = self.reduced(crease.tangents.basis[:, crease.tangents.blocked :]).T
        if crease.tangents.free:
            hessian = _narrowed(hessian, self.parts)
        if len(self.rows):  # the upper triangle of the transposed, the lower one of the Hessian
            hessian = scipy.linalg.blas.dsyrk(10 * scale, self.rows.T, 1.0, hessian.T, overwrite_c=True)
        plain, diagonal = np.diag(hessian).copy(), np.diag_indices(len(hessian))
        while True:
            hessian[diagonal] = plain + damping
            try:
                self.factor = scipy.linalg.cho_factor(hessian, check_finite=False)
                break
            except scipy.linalg.LinAlgError:
                damping = max(4 * damping, 1e-9 * scale)
        self.damping = damping
        self.columns = scipy.linalg.cho_solve(self.factor, self.rows.T, check_finite=False)

    def reduced(self, vectors: Array) -> Array:
        """Return the coordinates of vectors, (P,) or (P, k), along the kinks of the first layer."""
        if all(free is None for _, free in self.parts):
            return vectors
        return np.concatenate([vectors[at] if free is None else free.T @ vectors[at] for at, free in self.parts])

    def full(self, vector: Array) -> Array:
        """Return the vector, (P,), of coordinates."""
        found, start = [], 0
        for at, free in self.parts:
            width = at.stop - at.start if free is None else free.shape[1]
            part = vector[start : start + width]
            found.append(part if free is None else free @ part)
            start += width
        return np.concatenate(found)

    def extended(self, tangents: Tangents) -> Steps:
        """Return the steps along a crease with one more kink, with the same factor."""
        result = copy.copy(self)
        new = self.reduced(tangents.basis[:, tangents.blocked + len(self.rows) :])
        result.rows = np.concatenate([self.rows, new.T])
        more = scipy.linalg.cho_solve(self.factor, new, check_finite=False)
        result.columns = np.concatenate([self.columns, more], axis=1)
        return result

    def __call__(self, gradient: Array) -> Array:
        """Return the step d along the crease that minimizes g^T d + d^T (H + sigma) d / 2."""
        step = -scipy.linalg.cho_solve(self.factor, self.reduced(gradient), check_finite=False)
        if len(self.rows):
            step = step - self.columns @ np.linalg.solve(self.rows @ self.columns, self.rows @ step)
            step -= self.rows.T @ (self.rows @ step)
        return self.full(step)

    def predicted(self, gradient: Array, step: Array) -> float:
        """Return the change of the loss that the quadratic model predicts."""
        return float(gradient @ step) / 2 - self.damping * float(step @ step) / 2


def _parts(parameters: int, free: Sequence[tuple[slice, Array]]) -> list[tuple[slice, Array | None]]:
    """Return consecutive slices of the parameters, and the bases of the coordinates that replace some of them."""
    found: list[tuple[slice, Array | None]] = []
    end = 0
    for columns, basis in free:
        if columns.start > end:
            found.append((slice(end, columns.start), None))
        found.append((columns, basis))
        end = columns.stop
    if parameters > end:
        found.append((slice(end, parameters), None))
    return found


def _narrowed(matrix: Array, parts: Sequence[tuple[slice, Array | None]]) -> Array:
    """Return basis^T matrix basis for the block diagonal basis of the parts; the matrix is overwritten."""
    start = 0
    for at, free in parts:
        width = at.stop - at.start if free is None else free.shape[1]
        matrix[:, start : start + width] = matrix[:, at] if free is None else matrix[:, at] @ free
        start += width
    start = 0
    for at, free in parts:
        width = at.stop - at.start if free is None else free.shape[1]
        matrix[start : start + width] = matrix[at] if free is None else free.T @ matrix[at]
        start += width
    return np.ascontiguousarray(matrix[:start, :start])
