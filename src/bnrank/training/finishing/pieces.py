"""Stationary points at kinks: Newton steps on a piecewise quadratic model with all kinks.

With slopes s at the kinks, g and H are the gradient and the Hessian, f_k = dC/da_k, and A the gradients of the
preactivations z_k that are 0 or change their sign along the step d. The loss changes by about

    g.d + d.H d / 2 + sum_k f_k (relu(z_k + A_k d) - relu(z_k) - s_k A_k d),

and sigma ||d||^2 / 2 damps the step. For f_k > 0, f_k relu(z) is the largest of f_k m z with m between the slope of the
activation and 1. The dual is a convex quadratic function of the m_k within these bounds. Kinks with m_k strictly inside
stay at 0; the others are released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, Problem, Shapes, join, split
from bnrank.training.finishing import bounded, orbits
from bnrank.training.finishing.creases import SETTLED, Crease, retracted, with_slopes
from bnrank.training.finishing.kinks import Kinks

STIFF = 1e-6  # kinks whose slopes are this far inside their range are expected to remain: H is stiffened there
INSIDE = 1e-9  # slopes this far inside their range hold a kink
NEAR = 1e-7  # preactivations, relative to ||w|| ||a||, that may be taken for 0 while the slopes are found
AGREED = 1e-3  # change of slopes below which the model has the slopes that it leads to
SLOPES, CROSSINGS = 4, 15  # rounds in which slopes, and neurons that change their sign, are found
DEPENDENT = 1e-8  # relative pivot below which a kink depends linearly on others
MOVES, RENEWALS = 24, 2  # moves onto the kinks, and how often their gradients are renewed for them
LOST = 0.02  # share of the kinks that may be given up because no point near has all of them
SHARES = (1.0, 0.5, 0.25)  # of a step that are tried with one factor
TRIES, FACTORS = 12, 60  # dampings that are tried, and the number of larger ones to make a factor exist
GROWTH = 8.0  # of the damping after a step that failed
POOR, GOOD = 0.1, 0.9  # ratios of the actual to the predicted decrease: a step fails, and the damping is much reduced


@dataclass(frozen=True)
class Corner:
    """Where the search ended.

    Attributes
    ----------
    layers : list of ndarray
        The layers.
    kinks : Kinks
        The kinks with their slopes.
    residual : float
        Relative norm of the gradient with these slopes.
    reason : str
        Why the search ended.
    """

    layers: list[Array]
    kinks: Kinks
    residual: float
    reason: str


def search(
    problem: Problem,
    layers: Sequence[Array],
    kinks: Kinks,
    rtol: float,
    iterations: int,
    out_of_time: Callable[[], bool] = lambda: False,
    note: Callable[[list[Array], Kinks], None] = lambda layers, kinks: None,
) -> Corner:
    """Return a stationary point with slopes in their range, or the point where the search ended."""
    shapes, low = [layer.shape for layer in layers], min(problem.slope, 1.0)
    crease = Crease(problem, join(layers), shapes, kinks)
    theta = retracted(crease, crease.theta)
    crease = with_slopes(Crease(problem, theta, shapes, kinks))
    kinks = crease.kinks.with_slopes(np.clip(crease.kinks.slopes, low, 1)).kept(crease.settled())
    damping, reason = 0.0, "out of iterations"
    for _ in range(iterations):
        note(split(theta, shapes), kinks)
        crease = Crease(problem, theta, shapes, kinks)
        ridges = -crease.forces >= crease.sizes  # the loss falls on both sides
        if crease.at.relative_gradient <= rtol and not ridges.any():
            reason = "stationary"
            break
        model, found = Model(crease.at, kinks), None
        damping, reason = max(damping, orbits.curving(crease.at)), "no further decrease"
        for _ in range(TRIES):
            if out_of_time():
                reason = "out of time"
                break
            damping = model.factored(damping)
            if not np.isfinite(damping) or (found := model.moved()) is not None:
                break
            damping *= GROWTH
        del model  # before the next: each has two matrices of the size of the Hessian
        if found is None:
            if crease.at.relative_gradient <= rtol and reason != "out of time":
                reason = "stationary"  # no lower point was found on either side of the ridges
            break
        theta, kinks, share, ratio = found
        reason = "out of iterations"
        if share < 1:
            damping *= 3
        elif ratio > 0.5:
            damping /= 20 if ratio > GOOD else 6
        elif ratio < 0.2:
            damping *= 4
    at = Evaluation(problem, split(theta, shapes), (), kinks.places, kinks.slopes)
    return Corner(split(theta, shapes), kinks, at.relative_gradient, reason)


class Model:
    """The model of the loss near a point, with a factor of H + sigma.

    H is stiffened along the gradients of kinks that are expected to remain, which the step hardly changes.
    """

    def __init__(self, at: Evaluation, kinks: Kinks) -> None:
        self.at, self.kinks, self.problem = at, kinks, at.problem
        self.shapes: Shapes = [layer.shape for layer in at.layers]
        self.low = min(self.problem.slope, 1.0)
        self.loss, self.alike = Evaluation(self.problem, at.layers).loss, orbits.groups(at.first)
        self.hessian = at.hessian()
        self.scale = float(np.abs(np.diag(self.hessian)).max())
        inside = (kinks.slopes > self.low + STIFF) & (kinks.slopes < 1 - STIFF) & (kinks.select(at.below) > 0)
        self.stiff = at.preactivation_gradients(*kinks.kept(inside).places)
        self.stiff /= np.maximum(np.linalg.norm(self.stiff, axis=1, keepdims=True), 1e-300)
        if len(self.stiff):  # the upper triangle of the transposed, the lower one of the Hessian
            scipy.linalg.blas.dsyrk(self.scale, self.stiff.T, 1.0, self.hessian.T, overwrite_c=True)
        self.plain = np.diag(self.hessian).copy()

    def factored(self, damping: float) -> float:
        """Factor the Hessian with the damping or a larger one, and return that; inf if none of those tried will do."""
        for _ in range(FACTORS if np.isfinite(self.scale) else 0):
            self.hessian[np.diag_indices(len(self.hessian))] = self.plain + damping
            try:
                self.factor = scipy.linalg.cholesky(self.hessian, lower=True, check_finite=False)
            except scipy.linalg.LinAlgError:
                damping = max(4 * damping, 1e-9 * self.scale)
                continue
            self.damping = damping
            return damping
        return np.inf

    def solved(self, right: Array, trans: str = "N") -> Array:
        """Return the solution of a triangular system with the factor or its transpose."""
        return np.asarray(
            scipy.linalg.solve_triangular(self.factor, right, lower=True, trans=trans, check_finite=False)
        )

    def evaluated(self, theta: Array) -> Evaluation:
        """Return the evaluation of other parameters."""
        return Evaluation(self.problem, split(theta, self.shapes))

    def shifted(self, step: Array) -> Array:
        """Return the parameters after a step, with the rotations of neurons in it carried out exactly."""
        return join(orbits.moved(self.at.layers, split(step, self.shapes), self.alike))

    def minimized(self) -> tuple[Array, float, Kinks, Array]:
        """Return the step, the change of the loss that it predicts, the kinks that it holds, and L^-1 A^T of these.

        The slopes of kinks in one layer change the f and A of those in others. The model is therefore rebuilt with the
        slopes found, until they agree. Where f_k <= 0, a kink is no minimum along A_k: it goes to one side.
        """
        at, pool = self.at, self.kinks
        base, forces = at, pool.select(at.below)
        if (forces <= 0).any():
            rounded = np.where(pool.slopes > (1 + self.low) / 2, 1.0, self.low)
            pool = pool.with_slopes(np.where(forces <= 0, rounded, pool.slopes))
            base = Evaluation(self.problem, at.layers, (), pool.places, pool.slopes)
            forces = pool.select(base.below)
        rows = base.preactivation_gradients(*pool.places)
        reach, slopes = self.solved(rows.T), pool.slopes.copy()
        for last in range(SLOPES, -1, -1):
            start = self.solved(base.gradient)
            for left in range(CROSSINGS, 0, -1):
                held, z = forces > 0, pool.select(at.z)
                scaled, before = reach[:, held] * forces[held], pool.slopes[held]
                plain = start - scaled @ before
                slopes[held] = bounded.minimum(
                    scaled.T @ scaled,
                    forces[held] * z[held] - scaled.T @ plain,
                    np.full(len(before), self.low),
                    np.ones(len(before)),
                    slopes[held],
                )
                inner = -(plain + scaled @ slopes[held])
                slopes[~held] = np.where(z[~held] + reach[:, ~held].T @ inner > 0, 1.0, self.low)
                step = self.solved(inner, trans="T")
                new = _crossed(base, self.evaluated(self.shifted(step)), pool)
                if not len(new) or left == 1:
                    break
                more = base.preactivation_gradients(*new.places)
                rows = np.concatenate([rows, more])
                reach = np.concatenate([reach, self.solved(more.T)], axis=1)
                forces, slopes = np.append(forces, new.select(base.below)), np.append(slopes, new.slopes)
                pool = pool.joined(new)
            near = np.abs(pool.select(at.z)) <= NEAR * pool.lengths(at)
            if not last or np.abs(slopes - pool.slopes)[near].max(initial=0) <= AGREED:
                break
            pool = pool.with_slopes(np.where(near, slopes, pool.slopes))
            base = Evaluation(self.problem, at.layers, (), pool.kept(near).places, pool.slopes[near])
            forces, slopes = pool.select(base.below), slopes.copy()
            fresh = base.preactivation_gradients(*pool.places)
            other = (fresh != rows).any(axis=1)
            reach[:, other], rows = self.solved(fresh[other].T), fresh
        z, moves = pool.select(at.z)[held], reach[:, held].T @ inner
        kinked = _relu(z + moves, self.low) - _relu(z, self.low) - before * moves
        curved = float(inner @ inner) - self.damping * float(step @ step)
        curved -= self.scale * float(((self.stiff @ step) ** 2).sum())
        predicted = float(base.gradient @ step) + curved / 2 + float((forces[held] * kinked).sum())
        inside = (slopes > self.low + INSIDE) & (slopes < 1 - INSIDE) & held
        return step, predicted, pool.with_slopes(slopes).kept(inside), reach[:, inside]

    def moved(self) -> tuple[Array, Kinks, float, float] | None:
        """Return a point of lower loss, its kinks, and the share and success of the step there, or None.

        The success is the ratio of the actual to the predicted decrease.
        """
        step, predicted, kinks, reach = self.minimized()
        known = set(zip(*self.kinks.places, strict=True))
        both = np.array([place in known for place in zip(*kinks.places, strict=True)], dtype=bool)
        rounding = abs(predicted) < 1e-13 * abs(self.loss)
        for share in SHARES:
            some = kinks if share == 1 else kinks.kept(both)
            theta = self.onto(self.shifted(share * step), some, reach if share == 1 else reach[:, both])
            if not np.isfinite(theta).all():
                continue
            there = self.evaluated(theta)
            settled = np.abs(some.select(there.z)) <= SETTLED * some.lengths(there)
            if (~settled).sum() > max(2, LOST * len(some)):
                continue
            change, some = there.loss - self.loss, some.kept(settled)
            ratio = change / predicted if predicted < 0 else 0.0
            if change < 0 and ratio > POOR:
                return theta, some, share, ratio
            if rounding and change <= 1e-14 * abs(self.loss):  # the loss cannot tell; the gradient must
                at = Evaluation(self.problem, there.layers, (), some.places, some.slopes)
                if at.relative_gradient < self.at.relative_gradient:
                    return theta, some, share, 1.0
        return None

    def onto(self, theta: Array, kinks: Kinks, reach: Array) -> Array:
        """Return theta moved onto kinks by steps that are short in the metric of the factor.

        Of dependent kinks, as many as are independent are reached.
        """
        if not len(kinks):
            return theta
        metric, last, renewals = _Metric(reach), np.inf, RENEWALS
        for _ in range(MOVES):
            at = self.evaluated(theta)
            z = kinks.select(at.z)
            far = float(np.abs(z / np.maximum(kinks.lengths(at), 1e-300)).max())
            if far <= 1e-14:
                break
            move = self.solved(metric(-z), trans="T")
            length, size = float(np.linalg.norm(move)), float(np.linalg.norm(theta))
            if length <= 1e-15 * size:
                break
            if length < 0.5 * last and length <= 0.3 * size:
                theta, last = theta + move, length
            elif renewals and far > SETTLED:
                metric, last = _Metric(self.solved(at.preactivation_gradients(*kinks.places).T)), np.inf
                renewals -= 1
            else:
                break
        return theta


class _Metric:
    """Solutions x of least norm of B x = b for independent rows of B, (K, P), given B^T."""

    def __init__(self, columns: Array) -> None:
        sizes = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        gram = columns.T @ columns / sizes[:, None] / sizes
        upper, order, rank, _ = scipy.linalg.lapack.dpstrf(gram, lower=0, tol=DEPENDENT)
        self.chosen = order[:rank] - 1
        self.upper, self.columns, self.sizes = upper[:rank, :rank], columns[:, self.chosen], sizes[self.chosen]

    def __call__(self, values: Array) -> Array:
        if not len(self.chosen):
            return np.zeros(len(self.columns))
        inner = values[self.chosen] / self.sizes
        for trans in ("T", "N"):
            inner = scipy.linalg.solve_triangular(self.upper, inner, trans=trans, check_finite=False)
        return np.asarray(self.columns @ (inner / self.sizes))


def _crossed(base: Evaluation, new: Evaluation, known: Kinks) -> Kinks:
    """Return the places, not among the known ones, at which a preactivation changes its sign."""
    masks = [(old > 0) != (z > 0) for old, z in zip(base.z[:-1], new.z[:-1], strict=True)]
    for layer, mask in enumerate(masks):
        at = known.layers == layer
        mask[known.samples[at], known.neurons[at]] = False
    return Kinks.where(masks, base.first)


def _relu(z: Array, slope: float) -> Array:
    return np.where(z > 0, z, slope * z)
