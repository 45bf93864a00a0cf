"""The share of a quantity's variance that another leaves open, by local linear regression."""

import numpy as np

from bnrank.figures.f05_symmetry_learning.orbits import Array

NEIGHBORS = 20
FOLDS = 10
RIDGE = 1e-3  # on the slopes of the local fit, relative to the variance of the neighbors
FLAT = 1e-12  # variation, relative to the size of the data, that is rounding


def unexplained(x: Array, y: Array) -> float:
    """Return 1 - R^2 of y, (N, q), predicted from x, (N, p)."""
    residual = y - _predicted(x, y, np.arange(len(x)))
    return float((residual**2).sum() / ((y - y.mean(0)) ** 2).sum())


def self_consistency(states: Array) -> float:
    """Return the share of the variance of the steps h(t + 1) - h(t) that h(t) does not predict, in the worst direction.

    States are (trajectories, times, p). A step is predicted from other trajectories. The reference is the variance of
    the steps: for small steps, any projection predicts the next state well. NaN if no coordinate has steps that vary.
    """
    steps = np.diff(states, axis=1).reshape(-1, states.shape[2])
    present = states[:, :-1].reshape(steps.shape)
    residual = steps - _predicted(present, steps, np.repeat(np.arange(len(states)), states.shape[1] - 1))
    whitening = _whitening(steps, FLAT * float(np.linalg.norm(states)))
    return float(np.linalg.norm(residual @ whitening, 2) ** 2 / len(steps)) if whitening.size else float("nan")


def _predicted(x: Array, y: Array, groups: np.ndarray) -> Array:
    """Return cross-validated predictions of y, each by a weighted ridge fit to the nearest neighbors.

    x is whitened, so that linear coordinates do not matter. Groups are kept together in the folds.
    """
    from scipy.spatial import cKDTree

    white = (x - x.mean(0)) @ _whitening(x, FLAT * float(np.linalg.norm(x)))
    order = np.random.default_rng(0).permutation(groups[-1] + 1)
    fold = (order % FOLDS)[groups]
    result = np.full_like(y, np.nan)
    for number in range(FOLDS if white.shape[1] else 0):
        at, rest = white[fold == number], white[fold != number]
        distance, near = cKDTree(rest).query(at, k=NEIGHBORS)
        result[fold == number] = _fit(at, rest[near], y[fold != number][near], distance)
    return result


def _whitening(x: Array, noise: float) -> Array:
    """Return the matrix (p, kept) that maps centered x to unit variance in directions larger than ``noise``."""
    _, s, vh = np.linalg.svd(x - x.mean(0), full_matrices=False)
    kept = s > noise
    return np.asarray(len(x) ** 0.5 * vh[kept].T / s[kept])


def _fit(at: Array, x: Array, y: Array, distance: Array) -> Array:
    """Return weighted ridge fits at ``at`` (m, p) from neighbors x (m, k, p), y (m, k, q)."""
    largest = np.maximum(distance[:, -1:], np.finfo(np.float64).tiny) * (1 + 1e-9)
    weight = ((1 - (distance / largest) ** 3) ** 3)[..., None]
    weight = weight / weight.sum(1, keepdims=True)
    middle, mean = (weight * x).sum(1, keepdims=True), (weight * y).sum(1, keepdims=True)
    u, v = x - middle, y - mean
    gram = np.einsum("mki,mkj->mij", weight * u, u)
    spread = np.trace(gram, axis1=1, axis2=2)[:, None, None] + np.finfo(np.float64).tiny
    slopes = np.linalg.solve(gram + RIDGE * spread * np.eye(x.shape[2]), np.einsum("mki,mkj->mij", weight * u, v))
    return np.asarray((mean + (at[:, None] - middle) @ slopes)[:, 0])
