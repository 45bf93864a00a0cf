"""Creases: the points where given preactivations are zero, and Newton steps along them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, Problem, Shapes, join, split
from bnrank.training.finishing.kinks import Kinks, of_smoothed

DEPENDENT = 1e-10  # singular values of the kinks' gradients, relative to the largest, that count as 0
WITHOUT_EFFECT = 1e-12  # |dC/da| of a kink, relative to the largest of the layer, below which its slope has no effect
SETTLED = 1e-11  # |z| of kinks, relative to ||w|| ||a||
STEEP = 1e-3  # for their prediction, kinks of a smoothed network have s (1 - s) above this


def _solved(upper: Array, right: Array, trans: str = "N") -> Array:
    """Return the solution of a triangular system; one without unknowns is refused by SciPy before 1.13."""
    if not len(upper):
        return right
    return np.asarray(scipy.linalg.solve_triangular(upper, right, trans=trans, check_finite=False))


class Tangents:
    """The row space of the kinks' gradients A, (K, P), from a QR factorization, and least-squares problems with it.

    Attributes
    ----------
    chosen : ndarray of int, (r,)
        Rows that are linearly independent; the others depend on them.
    basis : ndarray, (P, r)
        Orthonormal basis of the row space.
    """

    def __init__(self, rows: Array) -> None:
        if not len(rows):
            self.chosen, self.basis, self.upper = np.zeros(0, dtype=int), np.zeros((rows.shape[1], 0)), np.zeros((0, 0))
            self.all = np.zeros((0, 0))
            return
        tall, square = scipy.linalg.qr(rows.T, mode="economic", check_finite=False)
        inner, upper, order = scipy.linalg.qr(square, mode="economic", pivoting=True, check_finite=False)
        diagonal = np.abs(np.diag(upper))
        rank = int((diagonal > DEPENDENT * diagonal[0]).sum())
        self.chosen, self.basis, self.upper = order[:rank], tall @ inner[:, :rank], upper[:rank, :rank]
        self.all = np.empty((rank, len(rows)))  # basis^T A^T
        self.all[:, order] = upper[:rank]

    def extended(self, row: Array) -> Tangents:
        """Return the tangents with one more row."""
        result, rank = copy.copy(self), len(self.chosen)
        inner = self.basis.T @ row
        rest = row - self.basis @ inner
        rest -= self.basis @ (self.basis.T @ rest)
        length = float(np.linalg.norm(rest))
        number = self.all.shape[1]
        result.all = np.concatenate([self.all, inner[:, None]], axis=1)
        if length > DEPENDENT * float(np.linalg.norm(row)):
            result.basis = np.concatenate([self.basis, rest[:, None] / length], axis=1)
            result.chosen = np.append(self.chosen, number)
            result.upper = np.zeros((rank + 1, rank + 1))
            result.upper[:rank, :rank], result.upper[:rank, rank], result.upper[rank, rank] = self.upper, inner, length
            result.all = np.concatenate([result.all, np.append(np.zeros(number), length)[None]])
        return result

    def onto(self, values: Array) -> Array:
        """Return x of least norm with A x = values, for the chosen rows."""
        inner = _solved(self.upper, values[self.chosen], trans="T")
        return self.basis @ inner

    def multipliers(self, gradient: Array, sizes: Array) -> Array:
        """Return m with least ||A^T m - gradient||; of these, if rows are dependent, that of least ||m / sizes||."""
        inner = self.basis.T @ gradient
        if len(self.chosen) == self.all.shape[1]:
            result = np.zeros(len(self.chosen))
            result[self.chosen] = _solved(self.upper, inner)
            return result
        return sizes * scipy.linalg.lstsq(self.all * sizes, inner, cond=DEPENDENT, lapack_driver="gelsy")[0]

    def rates(self, excess: Array) -> Array:
        """Return excess / ||x_k||, x_k of least norm with A x_k = e_k: slopes per distance; 0 for rows not chosen."""
        inverse = _solved(self.upper, np.eye(len(self.upper)), trans="T")
        result = np.zeros(len(excess))
        result[self.chosen] = excess[self.chosen] / np.linalg.norm(inverse, axis=0)
        return result


class Crease:
    """A point, kinks, and the derivatives of the loss with the kinks' slopes.

    The tangents may be given: those of a point nearby save the time of a factorization.
    """

    def __init__(
        self, problem: Problem, theta: Array, shapes: Shapes, kinks: Kinks, tangents: Tangents | None = None
    ) -> None:
        if tangents is not None:
            self.tangents = tangents
        self.problem, self.theta, self.shapes, self.kinks = problem, theta, shapes, kinks
        self.at = Evaluation(problem, split(theta, shapes), (), kinks.places, kinks.slopes)

    @cached_property
    def tangents(self) -> Tangents:
        """The row space of the gradients of the preactivations at the kinks."""
        return Tangents(self.at.preactivation_gradients(*self.kinks.places))

    @property
    def values(self) -> Array:
        """The preactivations at the kinks."""
        return self.kinks.select(self.at.z)

    def settled(self) -> Array:
        """Return a mask of the kinks at which the preactivation is 0 up to rounding.

        If gradients of kinks are dependent, there need not be a point near where all are.
        """
        return np.abs(self.values) <= SETTLED * self.lengths()

    def lengths(self) -> Array:
        """Return ||w|| ||a|| of the kinks."""
        terms = zip(self.at.inputs, self.at.layers[:-1], strict=False)
        return self.kinks.select([np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(w, axis=1) for a, w in terms])

    @cached_property
    def forces(self) -> Array:
        """dC/da at the kinks."""
        return self.kinks.select(self.at.below)

    @cached_property
    def sizes(self) -> Array:
        """|dC/da| at the kinks, at least a small share of the largest of their layer."""
        largest = np.array([max(float(np.abs(below).max(initial=0)), 1e-300) for below in self.at.below])
        return np.maximum(np.abs(self.forces), WITHOUT_EFFECT * largest[self.kinks.layers])

    def multipliers(self) -> Array:
        """Return dC/dz at the kinks for which the gradient is least: slope times dC/da, if there is such a slope."""
        if not len(self.kinks):
            return np.zeros(0)
        change = self.tangents.multipliers(-self.at.gradient, self.sizes)
        return self.kinks.slopes * self.forces + change

    def with_slopes(self, slopes: Array) -> Crease:
        """Return the crease with other derivatives at the kinks."""
        return Crease(
            self.problem, self.theta, self.shapes, self.kinks.with_slopes(slopes), self.__dict__.get("tangents")
        )

    @cached_property
    def along(self) -> float:
        """The norm of the gradient along the crease."""
        gradient, basis = self.at.gradient, self.tangents.basis
        return float(np.linalg.norm(gradient - basis @ (basis.T @ gradient)))

    @property
    def residual(self) -> float:
        """The norm of the gradient along the crease, relative to the gradients of C and of the penalty."""
        sizes = float(np.linalg.norm(self.at.cost_gradient) + np.linalg.norm(self.at.penalty_gradient))
        return self.along / sizes if sizes > 0 else 0.0


def retracted(crease: Crease, theta: Array, rounds: int = 8, renewals: int = 4) -> Array:
    """Return theta moved onto the crease by steps of least norm, with tangents that are renewed after some rounds."""
    if not len(crease.kinks):
        return theta
    size, tangents, begin = float(np.linalg.norm(theta)), crease.tangents, theta
    for renewal in range(renewals):
        last = np.inf
        for _ in range(rounds):
            at = Crease(crease.problem, theta, crease.shapes, crease.kinks)
            move = tangents.onto(-at.values)
            length = float(np.linalg.norm(move))
            if not length < 0.5 * last and length > 1e-14 * size:
                break
            theta, last = theta + move, length
            if length <= 1e-15 * size:
                return theta
        if last > 0.3 * size:  # far off: begin again with the tangents there
            theta = begin
        if renewal + 1 < renewals and last > 1e-14 * size:
            tangents = Crease(crease.problem, theta, crease.shapes, crease.kinks).tangents
        else:
            break
    return theta


def with_slopes(crease: Crease, rounds: int = 6) -> Crease:
    """Return the crease with the slopes for which the gradient is least (Gauss-Newton steps).

    They may lie outside their range by at most its length: beyond, it is the multipliers that say how far they are out.
    """
    low = min(crease.problem.slope, 1.0)
    for _ in range(rounds if len(crease.kinks) else 0):
        signs = np.where(crease.forces < 0, -1.0, 1.0)
        slopes = np.clip(crease.multipliers() / (signs * crease.sizes), 2 * low - 1, 2 - low)
        new = crease.with_slopes(slopes)
        before, after = (float(np.linalg.norm(c.at.gradient)) for c in (crease, new))
        if not after < before:
            break
        crease = new
        if after > 0.9 * before:
            break
    return crease


class Steps:
    """Newton steps along a crease, with one factor of H + sigma.

    sigma is the smallest of the damping and larger ones for which H + sigma is positive definite along the crease:
    then H + sigma + rho A^T A is, for large rho, with A the rows of the kinks.
    """

    def __init__(self, crease: Crease, damping: float) -> None:
        hessian = crease.at.hessian()
        scale = float(np.abs(np.diag(hessian)).max())
        self.rows = crease.tangents.basis.T
        if len(self.rows):
            hessian += 10 * scale * (self.rows.T @ self.rows)
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

    def extended(self, tangents: Tangents) -> Steps:
        """Return the steps along a crease with one more kink, with the same factor."""
        result = copy.copy(self)
        result.rows = tangents.basis.T
        new = result.rows[len(self.rows) :].T
        more = scipy.linalg.cho_solve(self.factor, new, check_finite=False)
        result.columns = np.concatenate([self.columns, more], axis=1)
        return result

    def __call__(self, gradient: Array) -> Array:
        """Return the step d along the crease that minimizes g^T d + d^T (H + sigma) d / 2."""
        step = -scipy.linalg.cho_solve(self.factor, gradient, check_finite=False)
        if len(self.rows):
            step = step - self.columns @ np.linalg.solve(self.rows @ self.columns, self.rows @ step)
            step -= self.rows.T @ (self.rows @ step)
        return step

    def predicted(self, gradient: Array, step: Array) -> float:
        """Return the change of the loss that the quadratic model predicts."""
        return float(gradient @ step) / 2 - self.damping * float(step @ step) / 2


def onto(problem: Problem, layers: Sequence[Array], kinks: Kinks) -> list[Array]:
    """Return the layers moved onto kinks by steps of least norm."""
    shapes = [layer.shape for layer in layers]
    crease = Crease(problem, join(layers), shapes, kinks)
    return split(retracted(crease, crease.theta), shapes)


def nearer(problem: Problem, layers: Sequence[Array], smooth: Array, share: float, rounds: int = 4) -> list[Array]:
    """Return layers moved so that the preactivations at kinks of the smoothed network are a share of what they were.

    At a stationary point, those of a sharper smoothing, with share times eps, are nearly these: the derivatives of the
    activation, and with them the gradient, remain as they are.
    """
    kinks = of_smoothed(problem, layers, smooth, STEEP)
    if not len(kinks):
        return list(layers)
    at = Evaluation(problem, layers, smooth)
    shapes, theta = [layer.shape for layer in layers], join(layers)
    tangents = Tangents(at.preactivation_gradients(*kinks.places))
    targets = share * kinks.select(at.z)
    last = np.inf
    for _ in range(rounds):
        there = Evaluation(problem, split(theta, shapes), share * smooth)
        move = tangents.onto(targets - kinks.select(there.z))
        if not np.linalg.norm(move) < 0.5 * last:
            break
        theta, last = theta + move, float(np.linalg.norm(move))
    moved = split(theta, shapes)
    better = Evaluation(problem, moved, share * smooth).loss < Evaluation(problem, layers, share * smooth).loss
    return moved if better else list(layers)
