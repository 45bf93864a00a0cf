"""L-BFGS on the smoothed loss, in coordinates in which a Kronecker-factored curvature is the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from bnrank.measures.second_order import Array, Evaluation, Problem, join, split

MEMORY = 50


class Coordinates:
    """Coordinates u = H^{1/2} theta with H_l = A_l (x) B_l + 2 lambda (K-FAC), A_l and B_l the means of a a^T and of H.

    Parameters
    ----------
    at : Evaluation
        Where the factors are computed.
    """

    def __init__(self, at: Evaluation) -> None:
        self.shapes, self.factors = [layer.shape for layer in at.layers], []
        shares = np.bincount(at.problem.rows, weights=at.problem.weights, minlength=len(at.problem.x))
        for a, curvature in zip(at.inputs, at.curvatures("none"), strict=True):
            p, right = np.linalg.eigh((a * shares[:, None]).T @ a)
            q, left = np.linalg.eigh(curvature.sum(0))
            scale = np.sqrt(np.maximum(q, 0)[:, None] * np.maximum(p, 0) + 2 * at.problem.ridge)
            self.factors.append((left, right, scale))

    def to(self, theta: Array) -> Array:
        """Return u of theta."""
        parts = zip(split(theta, self.shapes), self.factors, strict=True)
        return join([(left.T @ w @ right) * scale for w, (left, right, scale) in parts])

    def back(self, u: Array) -> Array:
        """Return theta of u."""
        parts = zip(split(u, self.shapes), self.factors, strict=True)
        return join([left @ (w / scale) @ right.T for w, (left, right, scale) in parts])

    def gradient(self, gradient: Array) -> Array:
        """Return the gradient with respect to u from that with respect to theta."""
        parts = zip(split(gradient, self.shapes), self.factors, strict=True)
        return join([(left.T @ w @ right) / scale for w, (left, right, scale) in parts])


def descend(
    problem: Problem, layers: Sequence[Array], smooth: Array, iterations: int, out_of_time: Callable[[], bool]
) -> list[Array]:
    """Return layers of a lower smoothed loss after L-BFGS iterations."""
    shapes = [layer.shape for layer in layers]
    coordinates = Coordinates(Evaluation(problem, layers, smooth))
    least, best = np.inf, coordinates.to(join(layers))

    def value(u: Array) -> tuple[float, Array]:
        nonlocal least, best
        at = Evaluation(problem, split(coordinates.back(u), shapes), smooth)
        if at.loss < least:
            least, best = at.loss, u.copy()
        return at.loss, coordinates.gradient(at.gradient)

    def stop(_: Array) -> None:
        if out_of_time():
            raise StopIteration

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
    minimize(value, best, jac=True, method="L-BFGS-B", callback=stop, options=options)
    return split(coordinates.back(best), shapes)
