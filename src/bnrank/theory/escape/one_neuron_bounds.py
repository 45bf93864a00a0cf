"""Upper bounds on the speed of one neuron: from norms, and by branch and bound over cones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from bnrank.theory.escape.one_neuron_search import Neuron

BATCH = 64  # cones split at a time


def norm_bound(neuron: Neuron) -> float:
    """Return an upper bound on ||G^T sigma(X v)|| over unit v, from norms of X, G and G^T X.

    With sigma(z) = p z + q |z|, p = (1 + s)/2 and q = (1 - s)/2, and || |X v| || = ||X v||,

        ||G^T sigma(X v)|| <= p ||G^T X v|| + q ||G||_op ||X v||.

    For every tau > 0 the square of the right-hand side is at most

        v^T ((1 + tau) p^2 X^T G G^T X + (1 + 1/tau) q^2 ||G||_op^2 X^T X) v,

    whose largest eigenvalue is minimized over tau. It is at most (p ||G^T X||_op + q ||G||_op ||X||_op)^2, the largest
    two norms apart. With one output, ||G||_op is replaced by the larger of the norms of the positive and the negative
    part of G, as |X v| >= 0. The bound max(1, |s|) ||G||_op ||X||_op is never better.
    """
    x, g, slope = neuron.x, neuron.g, neuron.slope
    p, q = (1 + slope) / 2, (1 - slope) / 2
    if g.shape[1] == 1:
        size = max(np.linalg.norm(np.maximum(g, 0)), np.linalg.norm(np.maximum(-g, 0)))
    else:
        size = np.sqrt(max(np.linalg.eigvalsh(g.T @ g)[-1], 0.0))
    product = g.T @ x
    linear, rest = p**2 * product.T @ product, (q * size) ** 2 * (x.T @ x)

    def squared(log_tau: float) -> float:
        tau = np.exp(log_tau)
        return float(np.linalg.eigvalsh((1 + tau) * linear + (1 + 1 / tau) * rest)[-1])

    a, b = (np.sqrt(max(float(np.linalg.eigvalsh(m)[-1]), 0.0)) for m in (linear, rest))
    bound = float(a + b)  # tau = b/a where both are reached together
    if a > 0 and b > 0:
        from scipy.optimize import minimize_scalar

        middle = float(np.log(b / a))
        best = minimize_scalar(squared, bounds=(middle - 5, middle + 5), method="bounded", options={"maxiter": 30})
        bound = min(bound, float(np.sqrt(max(best.fun, 0.0))))
    return bound * (1 + 1e-12)


@dataclass(frozen=True)
class Search:
    """The result of branch and bound: bounds, and the unit vector of the lower one."""

    lower: float
    upper: float
    direction: np.ndarray


@dataclass
class _Cones:
    """Simplicial cones, each by r unit vectors p_j, and an upper bound of the size in each."""

    corners: np.ndarray  # (C, r, r): cone, corner, coordinate
    bounds: np.ndarray  # (C,)

    def take(self, which: np.ndarray) -> _Cones:
        return _Cones(self.corners[which], self.bounds[which])

    def join(self, other: _Cones) -> _Cones:
        return _Cones(np.concatenate([self.corners, other.corners]), np.concatenate([self.bounds, other.bounds]))


def branch_and_bound(neuron: Neuron, start: np.ndarray, *, rtol: float = 1e-6, max_cones: int = 20_000) -> Search:
    """Return a bracket of the maximum size of G^T sigma(X v) over unit v, by splitting the space into simplicial cones.

    In a cone with corners p_j (unit vectors) v = sum_j lambda_j p_j, lambda_j >= 0, and with z_ij = x_i . p_j

        G^T sigma(X v) = sum_j lambda_j F_j - (1 - s) sum_i g_i e_i,    F_j = G^T sigma(X p_j),
        0 <= e_i = sum_j lambda_j relu(z_ij) - relu(sum_j lambda_j z_ij) <= Lambda a b / (a + b),

    a and b the largest of relu(z_ij) and of relu(-z_ij), Lambda the largest of sum_j lambda_j over unit v. The linear
    function that is ||F_j|| at p_j is at most the norm of its gradient, and at most Lambda max_j ||F_j||; what the e_i
    add is at most sum_i |g_i| e_i, with one output the sum over the g_i of one sign. Both parts converge like the
    square of the cone's width. The cones with the largest bounds are split across their widest edge.

    Parameters
    ----------
    neuron : Neuron
        With X, (N, r), of rank r >= 2.
    start : ndarray
        A good unit vector, (r,).
    rtol : float
        The search stops where upper - lower is less than ``rtol`` times lower.
    max_cones : int
        Number of cones after which it stops in any case.
    """
    x, g, slope, signed = neuron.x, neuron.g, neuron.slope, neuron.signed
    rank = x.shape[1]
    parts = np.linalg.norm(g, axis=1, keepdims=True)
    if g.shape[1] == 1:
        parts = np.maximum(-g, 0) if signed else np.concatenate([np.maximum(g, 0), np.maximum(-g, 0)], 1)
    best, lower = start, max(neuron.size(start), 0.0)

    def bounded(corners: np.ndarray) -> _Cones:
        nonlocal best, lower
        z = corners @ x.T  # (C, r, N)
        above, below = np.maximum(z, 0), np.maximum(-z, 0)
        outputs = (above - slope * below) @ g
        values = outputs[..., 0] if signed else np.linalg.norm(outputs, axis=2)  # (C, r)
        cone, corner = np.unravel_index(values.argmax(), values.shape)
        if values[cone, corner] > lower:
            best, lower = corners[cone, corner], float(values[cone, corner])
        a, b = above.max(1), below.max(1)
        gap = (np.divide(a * b, a + b, out=np.zeros_like(a), where=a + b > 0) @ parts).max(1)
        targets = np.stack([np.ones_like(values), values], 2)
        gradients = np.linalg.norm(np.linalg.solve(corners, targets), axis=1)  # (C, 2)
        spread = gradients[:, 0]
        linear = np.minimum(gradients[:, 1], spread * np.maximum(values.max(1), 0))
        return _Cones(corners, (linear + (1 - slope) * spread * gap) * (1 + 1e-12))

    signs = np.array(list(itertools.product([1.0, -1.0], repeat=rank)))
    open_cones = bounded(signs[:, :, None] * np.eye(rank))
    seen = len(signs)
    batch = max(1, min(BATCH, 2**22 // (rank * len(x))))
    while seen < max_cones:
        open_cones = open_cones.take(np.flatnonzero(open_cones.bounds > lower * (1 + rtol)))
        if not len(open_cones.bounds):
            break
        order = np.argsort(-open_cones.bounds, kind="stable")
        split = open_cones.take(order[:batch])
        try:
            halves = bounded(_split(split.corners))
        except np.linalg.LinAlgError:  # slivers, where the maximum is 0 or nearly so; the bounds so far stand
            break
        halves.bounds = np.minimum(halves.bounds, np.tile(split.bounds, 2))  # a half has no more than the whole
        open_cones = open_cones.take(order[batch:]).join(halves)
        seen += len(halves.bounds)
    left = open_cones.bounds[open_cones.bounds > lower * (1 + rtol)]
    upper = float(left.max()) if len(left) else lower * (1 + rtol)
    return Search(lower, upper, best)


def _split(corners: np.ndarray) -> np.ndarray:
    """Cut every cone in two, through the middle of its widest edge."""
    cosines = corners @ corners.transpose(0, 2, 1)
    rank = corners.shape[1]
    cosines[:, np.arange(rank), np.arange(rank)] = 2.0
    i, j = np.unravel_index(cosines.reshape(len(corners), -1).argmin(1), (rank, rank))
    cone = np.arange(len(corners))
    middle = corners[cone, i] + corners[cone, j]
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    halves = np.repeat(corners[None], 2, axis=0)
    halves[0, cone, i] = middle
    halves[1, cone, j] = middle
    return halves.reshape(-1, rank, rank)
