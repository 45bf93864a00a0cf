"""Stationary points at kinks: Newton's method on the points where given preactivations are zero.

A ReLU network's loss has minima where the preactivation of a neuron is zero on a sample: the loss has a crease there,
and its gradient jumps. Along the crease it is smooth. At a minimum, derivatives of the activation between its slope
and 1 at the kinks make the gradient zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, Problem, Shapes, join, split
from bnrank.training.finishing import orbits
from bnrank.training.finishing.newton import CORRECTIONS, DEGENERATE, curving

DEPENDENT = 1e-10  # singular values of the kinks' gradients, relative to the largest, that count as 0
WITHOUT_EFFECT = 1e-12  # |dC/da| of a kink, relative to the largest of the layer, below which its slope has no effect
BENT = 1e-3  # at kinks of the smoothed network s (1 - s) of the derivative s is larger than this
BREAKS = 40  # points of a rejected step at which a neuron switches that are tried


@dataclass(frozen=True)
class Kinks:
    """Pairs of a hidden neuron and a sample with preactivation zero, and the derivatives of the activation there.

    Attributes
    ----------
    layers, neurons, samples : ndarray of int, (K,)
        Indices, from 0.
    slopes : ndarray, (K,)
        Derivatives of the activation.
    """

    layers: Array
    neurons: Array
    samples: Array
    slopes: Array

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def places(self) -> tuple[Array, Array, Array]:
        """Layers, neurons and samples."""
        return self.layers, self.neurons, self.samples

    def select(self, values: Sequence[Array]) -> Array:
        """Return the values at the kinks, (K,), of arrays (N, n_l), one per hidden layer."""
        places = zip(*self.places, strict=True)
        return np.array([values[layer][sample, neuron] for layer, neuron, sample in places])

    def kept(self, keep: Array) -> Kinks:
        """Return some of the kinks."""
        return Kinks(self.layers[keep], self.neurons[keep], self.samples[keep], self.slopes[keep])

    def with_slopes(self, slopes: Array) -> Kinks:
        """Return the kinks with other derivatives."""
        return Kinks(*self.places, slopes)

    def and_one(self, layer: int, neuron: int, sample: int, slope: float) -> Kinks:
        """Return the kinks and one more."""
        one = (layer, neuron, sample, slope)
        return Kinks(*(np.append(part, new) for part, new in zip((*self.places, self.slopes), one, strict=True)))

    @classmethod
    def where(cls, masks: Sequence[Array], slopes: Sequence[Array]) -> Kinks:
        """Return the kinks where masks, (N, n_l), one per hidden layer, are set, with the derivatives given there."""
        found = [np.nonzero(mask) for mask in masks]
        layers = np.repeat(np.arange(len(found)), [len(samples) for samples, _ in found])
        samples, neurons = (np.concatenate([pair[i] for pair in found]).astype(int) for i in (0, 1))
        values = np.concatenate([s[pair] for s, pair in zip(slopes, found, strict=True)])
        return cls(layers, neurons, samples, values)


def of_smoothed(problem: Problem, layers: Sequence[Array], smooth: Array) -> Kinks:
    """Return the kinks near a stationary point of the smoothed loss, with the slopes that it suggests."""
    first = Evaluation(problem, layers, smooth).first
    low, high = min(problem.slope, 1.0), 1.0
    shares = [(f - low) / (high - low) for f in first]
    return Kinks.where([share * (1 - share) > BENT for share in shares], first)


def at_zero(problem: Problem, layers: Sequence[Array], kink_rtol: float) -> Kinks:
    """Return the kinks of layers: preactivations that are 0 up to ``kink_rtol`` times ||w|| ||a||."""
    at, masks = Evaluation(problem, layers), []
    for layer, inputs, z in zip(layers[:-1], at.inputs, at.z, strict=False):
        masks.append(np.abs(z) <= kink_rtol * np.linalg.norm(inputs, axis=1)[:, None] * np.linalg.norm(layer, axis=1))
    return Kinks.where(masks, [np.full_like(z, (problem.slope + 1) / 2) for z in at.z[:-1]])


def onto(problem: Problem, layers: Sequence[Array], kinks: Kinks) -> list[Array]:
    """Return the layers moved onto kinks by steps of least norm."""
    shapes = [layer.shape for layer in layers]
    crease = Crease(problem, join(layers), shapes, kinks)
    return split(retracted(crease, crease.theta), shapes)


class Crease:
    """A point, kinks, and the derivatives of the loss with the kinks' slopes."""

    def __init__(self, problem: Problem, theta: Array, shapes: Shapes, kinks: Kinks) -> None:
        self.problem, self.theta, self.shapes, self.kinks = problem, theta, shapes, kinks
        self.at = Evaluation(problem, split(theta, shapes), (), kinks.places, kinks.slopes)
        self.rows = self.at.preactivation_gradients(*kinks.places)
        self.values = kinks.select(self.at.z)
        self.forces = kinks.select(self.at.below)  # dC/da at the kinks

    def effective(self) -> Array:
        """Return a mask of the kinks whose slopes have an effect on the gradient."""
        sizes = np.array([np.abs(below).max(initial=0) for below in self.at.below])
        return np.abs(self.forces) > WITHOUT_EFFECT * sizes[self.kinks.layers]


def retracted(crease: Crease, theta: Array, rounds: int = 10) -> Array:
    """Return theta moved onto the crease by steps of least norm."""
    if not len(crease.kinks):
        return theta
    size = float(np.linalg.norm(theta))
    for _ in range(rounds):
        at = Crease(crease.problem, theta, crease.shapes, crease.kinks)
        move = np.linalg.lstsq(at.rows, -at.values, rcond=DEPENDENT)[0]
        theta = theta + move
        if np.linalg.norm(move) <= 1e-15 * size:
            break
    return theta


def with_slopes(crease: Crease, rounds: int = 5) -> Crease:
    """Return the crease with the slopes, not bounded, for which the gradient is least (Gauss-Newton steps)."""
    for _ in range(rounds if len(crease.kinks) else 0):
        used = crease.effective()
        force = np.where(used, crease.forces, 1.0)
        multipliers = np.linalg.lstsq(crease.rows.T * used, -crease.at.gradient, rcond=DEPENDENT)[0]
        slopes = crease.kinks.slopes + np.where(used, np.clip(multipliers / force, -3, 3), 0)
        new = Crease(crease.problem, crease.theta, crease.shapes, crease.kinks.with_slopes(slopes))
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
        self.rows = np.zeros((0, len(hessian)))
        if len(crease.kinks):
            _, singular, rows = np.linalg.svd(crease.rows, full_matrices=False)
            self.rows = rows[singular > DEPENDENT * singular[0]]
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


@dataclass(frozen=True)
class Corner:
    """Where the search along creases ended.

    Attributes
    ----------
    layers : list of ndarray
        The layers.
    kinks : Kinks
        The kinks with their slopes.
    residual : float
        Relative norm of the gradient with these slopes.
    excess : float
        How far slopes lie outside [slope, 1], times |dC/da|, relative to the sizes of the gradients; 0 if none does.
    reason : str
        Why the search ended.
    """

    layers: list[Array]
    kinks: Kinks
    residual: float
    excess: float
    reason: str


def excesses(crease: Crease) -> Array:
    """Return how much each kink's slope is out of range, times |dC/da|; a kink with dC/da < 0 is a ridge: inf."""
    slope, slopes = crease.problem.slope, crease.kinks.slopes
    out = np.maximum(slope - slopes, slopes - 1) * np.abs(crease.forces)
    out = np.where(crease.forces < 0, np.inf, out)
    return np.where(crease.effective(), out, -np.inf)


def search(
    problem: Problem,
    layers: Sequence[Array],
    kinks: Kinks,
    rtol: float,
    iterations: int = 200,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Corner:
    """Return a stationary point reached along creases.

    Steps of Newton's method along the crease, moved back onto it, are accepted if the loss decreases. If a step is not,
    the neurons that switch along it are tried as further kinks. At a point that is stationary along its crease, a kink
    whose slope is out of range is released.
    """
    shapes = [layer.shape for layer in layers]
    crease = Crease(problem, join(layers), shapes, kinks)
    crease = with_slopes(Crease(problem, retracted(crease, crease.theta), shapes, kinks))
    loss, damping, reason = _loss_at(crease, crease.theta), 0.0, "out of iterations"
    for _ in range(iterations):
        residual, out = crease.at.relative_gradient, excesses(crease)
        if residual <= rtol:
            worst = int(np.argmax(out)) if len(out) else 0
            if not len(out) or out[worst] <= 1e-9 * np.abs(crease.forces).max():
                reason = "stationary"
                break
            crease = _on(crease, crease.theta, crease.kinks.kept(np.arange(len(out)) != worst))
            continue
        if out_of_time():
            reason = "out of time"
            break
        steps = Steps(crease, max(damping, DEGENERATE * curving(crease.at)))
        step, damping = steps(crease.at.gradient), steps.damping
        predicted = steps.predicted(crease.at.gradient, step)
        alike = orbits.groups(crease.at.first)
        theta = retracted(crease, _moved(crease, step, alike))
        new = _loss_at(crease, theta)
        for _ in range(CORRECTIONS):
            there = _on(crease, theta, crease.kinks)
            further = retracted(crease, _moved(there, steps(there.at.gradient), alike))
            value = _loss_at(crease, further)
            if not value < new:
                break
            theta, new = further, value
        if new < loss or (new - loss <= 1e-14 * abs(loss) and -predicted <= 1e-12 * abs(loss)):
            tried = _on(crease, theta, crease.kinks)
            if new >= loss and tried.at.relative_gradient >= residual:
                reason = "no further decrease"
                break
            ratio = (new - loss) / predicted if predicted < 0 else 1.0
            damping = damping / 4 if ratio > 0.5 and damping > 1e-10 else 0.0 if ratio > 0.5 else damping
            crease, loss = tried, new
            continue
        added = _with_break(crease, step, theta, loss)
        if added is not None:
            crease, loss = added, _loss_at(added, added.theta)
        else:
            damping = max(8 * damping, 1e-6)
            if damping > 1e12:
                reason = "no further decrease"
                break
    excess = float(np.clip(excesses(crease), 0, None).max(initial=0))
    sizes = float(np.linalg.norm(crease.at.cost_gradient) + np.linalg.norm(crease.at.penalty_gradient))
    relative = excess / sizes if sizes > 0 else 0.0
    return Corner(split(crease.theta, shapes), crease.kinks, crease.at.relative_gradient, relative, reason)


def _moved(crease: Crease, step: Array, alike: list[list[Array]]) -> Array:
    return join(orbits.moved(crease.at.layers, split(step, crease.shapes), alike))


def _loss_at(crease: Crease, theta: Array) -> float:
    return Evaluation(crease.problem, split(theta, crease.shapes)).loss


def _on(crease: Crease, theta: Array, kinks: Kinks) -> Crease:
    return with_slopes(Crease(crease.problem, theta, crease.shapes, kinks))


def _with_break(crease: Crease, step: Array, theta: Array, loss: float) -> Crease | None:
    """Return the best point of a step at which a neuron switches, with that kink, if its loss is below ``loss``."""
    problem, shapes, known = crease.problem, crease.shapes, set(zip(*crease.kinks.places, strict=True))
    after = Evaluation(problem, split(theta, shapes)).z
    found = []
    for layer, (old, new) in enumerate(zip(crease.at.z[:-1], after[:-1], strict=True)):
        for sample, neuron in zip(*np.nonzero((old > 0) != (new > 0)), strict=True):
            if (layer, neuron, sample) not in known:
                share = abs(old[sample, neuron]) / (abs(old[sample, neuron]) + abs(new[sample, neuron]))
                found.append((share, layer, neuron, sample))
    best: tuple[float, Array, Kinks] | None = None
    for share, layer, neuron, sample in sorted(found)[:BREAKS]:
        kinks = crease.kinks.and_one(layer, neuron, sample, (problem.slope + 1) / 2)
        wider = Crease(problem, crease.theta + share * step, shapes, kinks)
        point = retracted(wider, wider.theta)
        value = Evaluation(problem, split(point, shapes)).loss
        if value < (loss if best is None else best[0]):
            best = value, point, kinks
    return None if best is None else _on(crease, best[1], best[2])
