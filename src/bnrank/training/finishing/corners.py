"""Stationary points at kinks, one kink at a time: Newton's method on points where given preactivations are zero.

A ReLU network's loss has minima where the preactivation of a neuron is zero on a sample: the loss has a crease there,
and its gradient jumps. Along the crease it is smooth. At a minimum, derivatives of the activation between its slope
and 1 at the kinks make the gradient zero.

Samples with one preactivation in common, because a narrow layer before is zero on all of them, are held and released
together here. This is what the search with all kinks at once (pieces.py) does not do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bnrank.measures import subgradients
from bnrank.measures.second_order import Array, Evaluation, Problem, join, split
from bnrank.training.finishing import orbits
from bnrank.training.finishing.creases import SETTLED, Crease, retracted, with_slopes
from bnrank.training.finishing.kinks import Kinks, at_zero
from bnrank.training.finishing.pieces import Corner
from bnrank.training.finishing.steps import Steps
from bnrank.training.finishing.tangents import MANY

CORRECTIONS = 3  # steps with one factor of the Hessian
OFF = 1e-9  # preactivation that a released kink is given, relative to ||w|| ||a||
BREAKS = 60  # points of a step at which a neuron switches that are looked at
TRIED = 6  # of these, points of least loss that are moved onto the crease
LAGGED = 30  # kinks added with one factor of the Hessian, and with the tangents of one point
EASED = 64  # largest factor by which the damping is reduced after steps with one factor of the Hessian
AGAIN = 3  # kinks for which a step counts, after which the factor is kept because there are many
ROUNDING = 1e-14  # relative error of the loss: a kink may be so near that the loss does not decrease up to there
POOR = 0.1  # ratio of actual to predicted decrease below which neurons that switch are tried as kinks


def excesses(crease: Crease) -> Array:
    """Return how much each kink's multiplier is out of the range of slope times dC/da; inf on a ridge, dC/da < 0."""
    wanted, force = crease.multipliers(), crease.forces
    out = np.maximum(crease.problem.slope * force - wanted, wanted - force)
    return np.where(-force >= crease.sizes, np.inf, out)


def search(
    problem: Problem,
    layers: Sequence[Array],
    kinks: Kinks,
    rtol: float,
    iterations: int = 200,
    out_of_time: Callable[[], bool] = lambda: False,
    note: Callable[[list[Array], Kinks], None] = lambda layers, kinks: None,
) -> Corner:
    """Return a stationary point reached along creases.

    Steps of Newton's method along the crease, moved back onto it, are accepted if the loss decreases as predicted. If
    not, the neurons that switch along the step are tried as further kinks. A kink whose multiplier is out of range is
    released as soon as the loss falls faster there than along the crease.
    """
    shapes = [layer.shape for layer in layers]
    crease = Crease(problem, join(layers), shapes, kinks)
    crease = _on(crease, retracted(crease, crease.theta), kinks)
    crease = _completed(_on(crease, crease.theta, kinks.kept(crease.settled())))
    loss, damping, reason, moved = _loss_at(crease, crease.theta), 0.0, "out of iterations", False
    steps: Steps | None = None
    added_since = 0
    for _ in range(iterations):
        if added_since and crease.residual <= rtol:  # the tangents are those of a point nearby
            crease, steps, added_since = _on(crease, crease.theta, crease.kinks), None, 0
        residual, out = crease.residual, excesses(crease)
        worst = _released(crease, out, stationary=residual <= rtol, moved=moved)
        if worst is not None and residual <= rtol and (slopes := _in_range(crease, worst, rtol)) is not None:
            crease, worst = crease.with_slopes(slopes), None
        note(split(crease.theta, shapes), crease.kinks)
        if worst is not None:
            crease, moved, steps = _without(crease, worst), False, None
            loss = min(loss, _loss_at(crease, crease.theta))
            continue
        if residual <= rtol:
            reason = "stationary"
            break
        if out_of_time():
            reason = "out of time"
            break
        if steps is None:
            steps, added_since = Steps(crease, max(damping, orbits.curving(crease.at))), 0
            damping = steps.damping
        step = steps(crease.at.gradient)
        predicted = steps.predicted(crease.at.gradient, step)
        theta, new = _stepped(crease, steps, step, loss)
        ratio = (new - loss) / predicted if predicted < 0 else 1.0
        many = len(crease.kinks) >= MANY
        small = new - loss <= 1e-14 * abs(loss) and -predicted <= 1e-12 * abs(loss)
        if (new < loss and ratio >= POOR) or small:
            lagging = many and added_since < LAGGED
            known = crease.tangents if lagging else None
            tried = with_slopes(Crease(problem, theta, shapes, crease.kinks, known))
            if not (settled := tried.settled()).all():
                tried, lagging = _on(crease, theta, crease.kinks.kept(settled)), False
            if new >= loss and tried.residual >= residual:
                if many and added_since:
                    crease, steps, added_since = _on(crease, crease.theta, crease.kinks), None, 0
                    continue
                reason = "no further decrease"
                break
            if ratio > 0.5:
                damping = max(damping / 4, steps.damping / EASED) if damping > 1e-10 else 0.0
            crease, loss, moved = tried, new, True
            steps, added_since = (steps, added_since + AGAIN) if lagging else (None, 0)
            continue
        # A neuron switches along a step that decreases the loss little or not at all.
        if (added := _with_break(crease, step, theta, loss)) is not None:
            crease, loss, added_since = added, _loss_at(added, added.theta), added_since + 1
            steps = steps.extended(crease.tangents)
            if added_since >= LAGGED:
                crease, steps = _on(crease, crease.theta, crease.kinks), None
            continue
        if new < loss:
            crease, loss, moved = _on(crease, theta, crease.kinks), new, True
        elif many and added_since:
            crease, steps, added_since = _on(crease, crease.theta, crease.kinks), None, 0
            continue
        steps = None
        damping = max(8 * damping, 1e-6)
        if damping > 1e12:
            reason = "no further decrease"
            break
    return Corner(split(crease.theta, shapes), crease.kinks, crease.at.relative_gradient, reason)


def _released(crease: Crease, out: Array, *, stationary: bool, moved: bool) -> int | None:
    """Return the kink to release: that along which the loss falls most steeply, if it is steeper than the gradient.

    At a point that is stationary along the crease, any kink whose slope is out of range is released. Elsewhere, one is
    released only after a step, so that the search does not return to where it was.
    """
    if not len(out) or not (out > 1e-9 * np.abs(crease.forces).max()).any():
        return None
    if stationary:
        return int(np.argmax(out))
    if not moved or len(crease.tangents.chosen) < len(crease.kinks):  # dependent: multipliers are not unique
        return None
    low, slopes = crease.problem.slope, crease.kinks.slopes
    either = np.abs(crease.forces) * np.maximum(slopes - low, 1 - slopes)  # at ridges it falls on both sides
    rates = crease.tangents.rates(np.where(np.isposinf(out), either, out))
    worst = int(np.argmax(rates))
    return worst if rates[worst] > crease.along else None


def _without(crease: Crease, worst: int) -> Crease:
    """Return the crease without a kink and those that depend on it alone, moved off to the side where the loss falls.

    A neuron whose inputs are all 0 on several samples has its bias as preactivation on all of them.
    """
    directions = crease.tangents.all / np.maximum(np.linalg.norm(crease.tangents.all, axis=0), 1e-300)
    group = np.abs(directions.T @ directions[:, worst]) > 1 - 1e-10
    group[worst] = True
    low, slope, force = crease.problem.slope, crease.kinks.slopes[worst], crease.forces[worst]
    wanted = crease.multipliers()[worst]
    up = 1 - slope > slope - low if force < 0 else wanted - force > low * force - wanted
    side = np.where(directions.T @ directions[:, worst] < 0, -1.0, 1.0) * (1.0 if up else -1.0)
    target = np.where(group, side * OFF * crease.kinks.lengths(crease.at), 0.0)
    theta = crease.theta + crease.tangents.onto(target)
    if not _loss_at(crease, theta) <= _loss_at(crease, crease.theta):
        theta = crease.theta
    return _on(crease, theta, crease.kinks.kept(~group))


def _completed(crease: Crease) -> Crease:
    """Return the crease with all kinks: also those that are 0 because others are."""
    every = at_zero(crease.problem, crease.at.layers, SETTLED)
    known = set(zip(*crease.kinks.places, strict=True))
    places = zip(*every.places, strict=True)
    new = every.kept(np.array([place not in known for place in places], dtype=bool))
    if not len(new):
        return crease
    tangents = crease.tangents
    for row in crease.at.preactivation_gradients(*new.places):
        tangents = tangents.extended(row)
    return with_slopes(Crease(crease.problem, crease.theta, crease.shapes, crease.kinks.joined(new), tangents))


def _in_range(crease: Crease, worst: int, rtol: float) -> Array | None:
    """Return slopes in their range with a relative gradient of at most rtol, or None if none were found.

    If the kinks' gradients are dependent, multipliers are not unique, and those of least norm may be out of range.
    """
    matrix = crease.tangents.all
    if matrix.shape[0] == matrix.shape[1]:
        return None
    _, _, vt = np.linalg.svd(matrix)
    free = np.abs(vt[len(matrix) :]).max(axis=0) > 1e-6  # kinks that take part in a linear dependence
    if not free[worst]:
        return None
    low, slopes = min(crease.problem.slope, 1.0), crease.kinks.slopes
    outside = ~free & ((slopes < low - 1e-6) | (slopes > 1 + 1e-6))
    if outside.any():
        return None
    places = (crease.kinks.layers[free], crease.kinks.neurons[free], crease.kinks.samples[free])

    def full(values: Array) -> Crease:
        every = slopes.copy()
        every[free] = values
        return crease.with_slopes(every)

    def columns(values: Array) -> subgradients.Outer:
        there = full(values)
        factors = there.at.preactivation_factors(*places)
        return [(u * there.forces[free][:, None], inputs) for u, inputs in factors]

    unknowns = subgradients.Unknowns(low, slopes[free], several=False)
    values, _ = subgradients.minimize(lambda v: split(full(v).at.gradient, crease.shapes), columns, unknowns)
    there = full(values)
    return there.kinks.slopes if there.at.relative_gradient <= rtol else None


def _stepped(crease: Crease, steps: Steps, step: Array, loss: float) -> tuple[Array, float]:
    """Return the end of a step, moved back onto the crease, with further ones of the same factor, and its loss."""
    alike = orbits.groups(crease.at.first)
    theta = retracted(crease, _moved(crease, step, alike), bound=loss)
    new = _loss_at(crease, theta)
    if not new < loss:
        return theta, new
    for _ in range(CORRECTIONS):
        there = with_slopes(Crease(crease.problem, theta, crease.shapes, crease.kinks, crease.tangents), 2)
        further = retracted(crease, _moved(there, steps(there.at.gradient), alike), bound=new)
        value = _loss_at(crease, further)
        if not value < new:
            break
        theta, new = further, value
    return theta, new


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
    found = sorted(found)[:BREAKS]
    values = [_loss_at(crease, crease.theta + share * step) for share, *_ in found]
    first = np.argsort(values, kind="stable")[: TRIED - 1].tolist()
    first += [0] if len(found) and 0 not in first else []
    best: tuple[float, Crease] | None = None
    for number in first:
        share, layer, neuron, sample = found[number]
        one = (np.array([layer]), np.array([neuron]), np.array([sample]))
        tangents = crease.tangents.extended(crease.at.preactivation_gradients(*one)[0])
        kinks = crease.kinks.and_one(layer, neuron, sample, (problem.slope + 1) / 2)
        wider = Crease(problem, crease.theta + share * step, shapes, kinks, tangents)
        point = retracted(wider, wider.theta, renewals=1)
        value = _loss_at(crease, point)
        if value < (loss + ROUNDING * abs(loss) if best is None else best[0]):
            best = value, Crease(problem, point, shapes, kinks, tangents)
    return None if best is None else _completed(with_slopes(best[1]))
