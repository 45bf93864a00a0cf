"""Creases: the points where given preactivations are zero."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from bnrank.measures.second_order import Array, Evaluation, Problem, Shapes, join, split
from bnrank.training.finishing.kinks import Kinks, of_smoothed
from bnrank.training.finishing.tangents import MANY, Tangents, tangents

WITHOUT_EFFECT = 1e-12  # |dC/da| of a kink, relative to the largest of the layer, below which its slope has no effect
SETTLED = 1e-11  # |z| of kinks, relative to ||w|| ||a||
STEEP = 1e-3  # for their prediction, kinks of a smoothed network have s (1 - s) above this


class Crease:
    """A point, kinks, and the derivatives of the loss with the kinks' slopes.

    The tangents may be given: those of a point nearby save the time of a factorization.
    """

    def __init__(
        self, problem: Problem, theta: Array, shapes: Shapes, kinks: Kinks, known: Tangents | None = None
    ) -> None:
        if known is not None:
            self.tangents = known
        self.problem, self.theta, self.shapes, self.kinks = problem, theta, shapes, kinks
        self.at = Evaluation(problem, split(theta, shapes), (), kinks.places, kinks.slopes)

    @cached_property
    def tangents(self) -> Tangents:
        """The row space of the gradients of the preactivations at the kinks."""
        return tangents(self.at, self.kinks)

    @property
    def values(self) -> Array:
        """The preactivations at the kinks."""
        return self.kinks.select(self.at.z)

    def settled(self) -> Array:
        """Return a mask of the kinks at which the preactivation is 0 up to rounding.

        If gradients of kinks are dependent, there need not be a point near where all are.
        """
        return np.abs(self.values) <= SETTLED * self.kinks.lengths(self.at)

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


def retracted(crease: Crease, theta: Array, rounds: int = 8, renewals: int = 4, bound: float = np.inf) -> Array:
    """Return theta moved onto the crease by steps of least norm, with tangents that are renewed after some rounds.

    With many kinks, tangents are renewed only for points with a loss below a bound.
    """
    if not len(crease.kinks):
        return theta
    size, rows, begin = float(np.linalg.norm(theta)), crease.tangents, theta
    for renewal in range(renewals):
        last = np.inf
        for _ in range(rounds):
            at = Crease(crease.problem, theta, crease.shapes, crease.kinks)
            move = rows.onto(-at.values)
            length = float(np.linalg.norm(move))
            if not length < 0.5 * last and length > 1e-14 * size:
                break
            theta, last = theta + move, length
            if length <= 1e-15 * size:
                return theta
        if last > 0.3 * size:  # far off: begin again with the tangents there
            theta = begin
        if len(crease.kinks) >= MANY and not Evaluation(crease.problem, split(theta, crease.shapes)).loss < bound:
            break
        if renewal + 1 < renewals and last > 1e-14 * size:
            rows = Crease(crease.problem, theta, crease.shapes, crease.kinks).tangents
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
    rows = tangents(at, kinks)
    targets = share * kinks.select(at.z)
    last = np.inf
    for _ in range(rounds):
        there = Evaluation(problem, split(theta, shapes), share * smooth)
        move = rows.onto(targets - kinks.select(there.z))
        if not np.linalg.norm(move) < 0.5 * last:
            break
        theta, last = theta + move, float(np.linalg.norm(move))
    moved = split(theta, shapes)
    better = Evaluation(problem, moved, share * smooth).loss < Evaluation(problem, layers, share * smooth).loss
    return moved if better else list(layers)
