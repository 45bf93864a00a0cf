"""L-BFGS on the smoothed loss, in frames that turn with the neurons.

Neurons that are active on nearly the same samples can be rotated among each other almost without a change of the loss:
it has long and flat valleys there, which are curved. With W_l = Q_l B_l Q_{l-1}^T and Q_l orthogonal, what a step
rotates goes into Q_l. As a function of B the loss then remains nearly the same along a valley, so that one factor of
its Hessian and the differences of gradients serve for many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, Problem, join, split
from bnrank.training.finishing import orbits

MEMORY = 40
LARGE = 3000  # parameters above which a factor takes as long as many steps
FACTORS, STEPS = 40, 20  # factors of the Hessian, and steps with one of them
FEW, MANY = 4, 80  # the same for large networks
LEAST = 1e-3  # least damping, in units of 2 lambda
GROWTH = 10.0  # of the damping until there is a factor, and its decrease from one factor to the next
MOST = 1e10  # largest damping, in units of the largest curvature
HALVINGS, SHARE = 15, 0.4  # shorter steps that are tried, each this share of the one before
GAIN = 1e-13  # relative decrease of the loss with one factor below which the search ends


class Framed:
    """Layers Q_l B_l Q_{l-1}^T, with the B_l in ``bodies`` and the Q_l in ``turns``, and their smoothed loss."""

    def __init__(self, problem: Problem, bodies: Sequence[Array], turns: Sequence[Array], smooth: Array) -> None:
        self.problem, self.bodies, self.turns, self.smooth = problem, bodies, turns, smooth
        layers = [body.copy() for body in bodies]
        for number, turn in enumerate(turns):
            layers[number] = turn @ layers[number]
            high = layers[number + 1]
            high[:, : len(turn)] = high[:, : len(turn)] @ turn.T
        self.at = Evaluation(problem, layers, smooth)

    @classmethod
    def of(cls, problem: Problem, layers: Sequence[Array], smooth: Array) -> Framed:
        """Return layers in frames that are not turned."""
        return cls(problem, layers, [np.eye(len(layer)) for layer in layers[:-1]], smooth)

    @cached_property
    def gradient(self) -> Array:
        """The gradient of the loss with respect to the B_l, (P,)."""
        parts = [part.copy() for part in split(self.at.gradient, [body.shape for body in self.bodies])]
        for number, turn in enumerate(self.turns):
            parts[number] = turn.T @ parts[number]
            high = parts[number + 1]
            high[:, : len(turn)] = high[:, : len(turn)] @ turn
        return join(parts)

    def moved(self, step: Array, alike: Sequence[Sequence[Array]]) -> tuple[Framed, Array]:
        """Return the point after a step, and the step, which is shorter if it would turn neurons too far."""
        steps = split(step, [body.shape for body in self.bodies])
        rest, generators = orbits.parted(self.bodies, steps, alike)
        largest = max((float(np.linalg.norm(phi)) for _, _, phi in generators), default=0.0)
        share = min(1.0, orbits.LARGEST / largest) if largest else 1.0
        turns = [turn.copy() for turn in self.turns]
        for number, group, phi in generators:
            turns[number][:, group] = turns[number][:, group] @ scipy.linalg.expm(share * phi)
        bodies = [body + share * part for body, part in zip(self.bodies, rest, strict=True)]
        return Framed(self.problem, bodies, turns, self.smooth), share * step


class Inverse:
    """Products with (H + damping)^-1, in single precision, with the second derivatives that make C convex."""

    def __init__(self, at: Evaluation, damping: float) -> None:
        hessian = at.hessian("convex")
        diagonal = np.diag(hessian).copy()
        self.scale, self.factor = float(np.abs(diagonal).max()), None
        while np.isfinite(self.scale) and damping <= MOST * self.scale:
            hessian[np.diag_indices(len(hessian))] = diagonal + damping
            try:
                scaled = (hessian / self.scale).astype(np.float32)
                self.factor = scipy.linalg.cho_factor(scaled, overwrite_a=True, check_finite=False)
                break
            except scipy.linalg.LinAlgError:
                damping *= GROWTH
        self.damping = damping

    def __call__(self, vector: Array) -> Array:
        """Return the product with a vector."""
        size = float(np.abs(vector).max(initial=0))
        if not size > 0:
            return vector
        solved = scipy.linalg.cho_solve(self.factor, (vector / size).astype(np.float32), check_finite=False)
        return np.asarray(solved, dtype=float) * (size / self.scale)


def descend(
    problem: Problem,
    layers: Sequence[Array],
    smooth: Array,
    rtol: float,
    damping: float = 0.0,
    out_of_time: Callable[[], bool] = lambda: False,
    note: Callable[[list[Array], float], None] = lambda layers, damping: None,
) -> tuple[list[Array], float]:
    """Return layers of a lower smoothed loss, of relative gradient rtol if that is reached, and the next damping.

    ``note`` is called with both before every factor of the Hessian.
    """
    layers = list(layers)
    large = sum(layer.size for layer in layers) > LARGE
    for _ in range(FEW if large else FACTORS):
        point = Framed.of(problem, layers, smooth)
        if point.at.relative_gradient <= rtol or out_of_time():
            break
        note(layers, damping)
        alike, begin = orbits.groups(point.at.first), point.at.loss
        inverse = Inverse(point.at, max(damping, 2 * LEAST * problem.ridge))
        if inverse.factor is None:
            break
        damping = inverse.damping / GROWTH
        pairs: list[tuple[Array, Array]] = []
        found: tuple[Framed, Array] | None = None
        for _ in range(MANY if large else STEPS):
            if point.at.relative_gradient <= rtol or out_of_time():
                return point.at.layers, damping
            found = _stepped(point, _direction(point.gradient, pairs, inverse), alike)
            if found is None:
                break
            new, step = found
            change = new.gradient - point.gradient
            if step @ change > 1e-12 * np.linalg.norm(step) * np.linalg.norm(change):
                pairs = [*pairs, (step, change)][-MEMORY:]
            point = new
        layers = point.at.layers
        if found is None and not pairs and inverse.damping < MOST * inverse.scale:
            damping = inverse.damping * GROWTH
            continue
        if begin - point.at.loss < GAIN * abs(begin):
            break
    return layers, damping


def _direction(gradient: Array, pairs: Sequence[tuple[Array, Array]], inverse: Inverse) -> Array:
    """Return the direction of L-BFGS with the inverse as first approximation."""
    result, shares = -gradient, []
    for step, change in reversed(pairs):
        shares.append(float(step @ result) / float(step @ change))
        result = result - shares[-1] * change
    result = inverse(result)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        result = result + (share - float(change @ result) / float(step @ change)) * step
    return result


def _stepped(point: Framed, direction: Array, alike: Sequence[Sequence[Array]]) -> tuple[Framed, Array] | None:
    """Return a point of lower loss along a direction and the step there, or None."""
    for number in range(HALVINGS):
        new, step = point.moved(SHARE**number * direction, alike)
        slope = float(point.gradient @ step)
        if slope < 0 and new.at.loss <= point.at.loss + 1e-4 * slope:
            return new, step
    return None
