"""The row space of the gradients of the preactivations at kinks, and least-squares problems with it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation
from bnrank.training.finishing.kinks import Kinks

DEPENDENT = 1e-10  # singular values of the kinks' gradients, relative to the largest, that count as 0
MANY = 600  # kinks from which those of the first layer are factored neuron by neuron

Blocks = Sequence[tuple[Array, slice]]  # numbers of rows, and the columns outside of which these are 0


def _solved(upper: Array, right: Array, trans: str = "N") -> Array:
    """Return the solution of a triangular system; one without unknowns is refused by SciPy before 1.13."""
    if not len(upper):
        return right
    return np.asarray(scipy.linalg.solve_triangular(upper, right, trans=trans, check_finite=False))


class Tangents:
    """The row space of the kinks' gradients A, (K, P), from a QR factorization, and least-squares problems with it.

    Parameters
    ----------
    rows : ndarray, (K, P)
        The gradients.
    blocks : sequence of (ndarray of int, slice)
        Rows that are 0 outside of some columns, and these columns, which are disjoint. They are factored on their own.

    Attributes
    ----------
    chosen : ndarray of int, (r,)
        Rows that are linearly independent; the others depend on them.
    basis : ndarray, (P, r)
        Orthonormal basis of the row space; first that of the blocks.
    free : list of (slice, ndarray)
        The columns of the blocks, and an orthonormal basis of what is orthogonal to their rows.
    """

    def __init__(self, rows: Array, blocks: Blocks = ()) -> None:
        count, parameters = rows.shape
        scale = DEPENDENT * float(np.linalg.norm(rows, axis=1).max(initial=0))
        self.free: list[tuple[slice, Array]] = []
        chosen, parts, uppers = [np.zeros(0, dtype=int)], [np.zeros((parameters, 0))], []
        for numbers, columns in blocks:
            q, upper, order = scipy.linalg.qr(rows[numbers, columns].T, pivoting=True, check_finite=False)
            rank = int((np.abs(np.diag(upper)) > scale).sum())
            part = np.zeros((parameters, rank))
            part[columns] = q[:, :rank]
            chosen.append(numbers[order[:rank]])
            parts.append(part)
            uppers.append(upper[:rank, :rank])
            self.free.append((columns, q[:, rank:]))
        first, held = np.concatenate(parts, axis=1), np.concatenate(chosen)
        others = np.setdiff1d(np.arange(count), np.concatenate([held[:0], *(numbers for numbers, _ in blocks)]))
        rest = rows[others].T
        for _ in range(2 if first.shape[1] else 0):  # twice: orthogonal up to rounding
            rest = rest - first @ (first.T @ rest)
        if len(others):
            tall, square = scipy.linalg.qr(rest, mode="economic", check_finite=False)
            inner, upper, order = scipy.linalg.qr(square, mode="economic", pivoting=True, check_finite=False)
            rank = int((np.abs(np.diag(upper)) > scale).sum())
            self.chosen = np.concatenate([held, others[order[:rank]]])
            self.basis = np.concatenate([first, tall @ inner[:, :rank]], axis=1)
        else:
            self.chosen, self.basis = held, first
        self.all = self.basis.T @ rows.T  # (r, K)
        self.upper = np.triu(self.all[:, self.chosen])

    @property
    def blocked(self) -> int:
        """The number of columns of the basis that belong to the blocks."""
        return sum(columns.stop - columns.start - free.shape[1] for columns, free in self.free)

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


def tangents(at: Evaluation, kinks: Kinks) -> Tangents:
    """Return the tangents of kinks: in the first layer they depend on the incoming weights of one neuron only."""
    rows = at.preactivation_gradients(*kinks.places)
    if len(kinks) < MANY:
        return Tangents(rows)
    first, size = kinks.layers == 0, at.layers[0].shape[1]
    neurons = np.unique(kinks.neurons[first])
    numbers = [np.flatnonzero(first & (kinks.neurons == j)) for j in neurons]
    return Tangents(rows, [(n, slice(j * size, (j + 1) * size)) for n, j in zip(numbers, neurons, strict=True)])
