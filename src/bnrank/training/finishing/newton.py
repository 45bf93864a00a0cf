"""Newton's method with exact Hessians on the loss with a smoothed activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg

from bnrank.measures.second_order import Array, Evaluation, Problem, join, split
from bnrank.training.finishing import orbits

GROWTH = 4.0  # factor of the damping after a failed step
CORRECTIONS = 3  # steps with the same factor
DEGENERATE = 1.0


def curving(at: Evaluation) -> float:
    """Return ||gradient|| / ||theta||, the size of the curvature of a symmetry of the loss off a stationary point.

    Neurons active on the same samples can be rotated among each other without changing the loss. Along such a direction
    the Hessian is of the order of the gradient, and an undamped step would be long and leave the curved orbit.
    """
    return float(np.linalg.norm(at.gradient)) / max(float(np.linalg.norm(join(at.layers))), 1e-300)


def descend(
    problem: Problem,
    layers: Sequence[Array],
    smooth: Array,
    rtol: float,
    iterations: int,
    damping: float = 0.0,
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[list[Array], float, float, int]:
    """Return layers of lower smoothed loss, their relative gradient, the last damping and the number of iterations.

    Levenberg's method: steps -(H + sigma)^{-1} g, sigma >= 0 large enough for a Cholesky factor and for a decrease of
    the loss, adapted by the ratio of the actual to the predicted decrease.
    """
    shapes = [layer.shape for layer in layers]
    theta = join(layers)
    at = Evaluation(problem, layers, smooth)
    number = 0
    while True:
        gradient, relative = at.gradient, at.relative_gradient
        if relative <= rtol or number >= iterations or out_of_time():
            return split(theta, shapes), relative, damping, number
        hessian = at.hessian()
        largest = float(np.abs(np.diag(hessian)).max())
        diagonal = np.diag_indices(len(hessian))
        plain = hessian[diagonal].copy()
        alike, moved = orbits.groups(at.first), False
        damping = max(damping, DEGENERATE * curving(at))
        for _ in range(40):
            hessian[diagonal] = plain + damping
            try:
                factor = scipy.linalg.cho_factor(hessian, check_finite=False)
            except scipy.linalg.LinAlgError:
                damping = max(GROWTH * damping, 1e-8 * largest)
                continue
            step = -scipy.linalg.cho_solve(factor, gradient, check_finite=False)
            predicted = float(gradient @ step) / 2 - damping * float(step @ step) / 2
            new = Evaluation(problem, orbits.moved(at.layers, split(step, shapes), alike), smooth)
            for _ in range(CORRECTIONS):
                more = -scipy.linalg.cho_solve(factor, new.gradient, check_finite=False)
                further = Evaluation(problem, orbits.moved(new.layers, split(more, shapes), alike), smooth)
                if not further.loss < new.loss:
                    break
                new = further
            del factor
            change = new.loss - at.loss
            if change < 0 or (abs(predicted) < 1e-14 * abs(at.loss) and change <= 1e-15 * abs(at.loss)):
                moved = True
                ratio = change / predicted if predicted < 0 else 1.0
                theta, at = join(new.layers), new
                if ratio > 0.75:
                    damping = damping / GROWTH if damping > 1e-12 * largest else 0.0
                elif ratio < 0.25:
                    damping = max(2 * damping, 1e-8 * largest)
                break
            damping = max(GROWTH * damping, 1e-8 * largest)
        number += 1
        if not moved:
            return split(theta, shapes), relative, damping, number
