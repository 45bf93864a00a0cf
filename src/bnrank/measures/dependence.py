"""Functional dependence of one quantity on another, estimated from samples."""

import numpy as np
import torch
from numpy.typing import NDArray

from bnrank._core import validation
from bnrank._core.validation import Data

__all__ = ["predict", "self_consistency", "unexplained"]

Array = NDArray[np.float64]
RIDGE = 1e-3  # on the slopes of the local fit, relative to the variance of the neighbors
FLAT = 1e-12  # relative singular value up to which a direction contains rounding errors only


def predict(
    x: Data, y: Data, groups: np.ndarray | None = None, *, neighbors: int = 20, folds: int = 10, seed: int = 0
) -> Array:
    """Return cross-validated predictions of y from x at every sample, by local linear regression.

    x is centered and whitened, so that the result does not depend on its linear coordinates. Directions whose
    variation is within the rounding error of x's dtype are dropped. The fit at a sample uses its nearest neighbors in
    the other folds, weighted by (1 - (distance / largest)^3)^3, with a small ridge penalty on the slopes. Intended for
    x of few dimensions; for a smooth function the error vanishes as the number of samples grows.

    Parameters
    ----------
    x, y : Tensor or ndarray
        (N, p) and (N, q).
    groups : ndarray, optional
        (N,) labels. All samples of a group, such as the times of a trajectory, are in the same fold, so that no sample
        is predicted from its own group. Default: every sample is a group.
    neighbors : int
        Number of neighbors.
    folds : int
        Number of folds, at most the number of groups.
    seed : int
        Random seed of the partition into folds.

    Returns
    -------
    ndarray
        (N, q), float64.

    Raises
    ------
    TypeError, ValueError
        If the shapes do not match, an entry is not finite, or there are fewer than two groups or fewer samples than
        neighbors.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 200)[:, None]
    >>> bool(np.abs(predict(x, np.sin(3 * x)) - np.sin(3 * x)).max() < 0.01)
    True
    """
    from scipy.spatial import cKDTree

    inputs, targets, eps = _pair(x, y)
    of = _folds(groups, len(inputs), validation.integer(folds, "folds", 2), seed)
    neighbors = validation.integer(neighbors, "neighbors", 2)
    fewest = len(inputs) - int(np.bincount(of).max())
    if fewest < neighbors:
        raise ValueError(f"neighbors: got {neighbors}, but one fold leaves {fewest} of {len(inputs)} samples only")
    whitening = _whitening(inputs, np.linalg.norm(inputs, axis=0), eps)
    validation.expect(whitening.size, "x", "the same point in all samples", "points that differ")
    white = (inputs - inputs.mean(0)) @ whitening
    result = np.empty_like(targets)
    for fold in np.unique(of):
        mine, others = of == fold, of != fold
        distance, index = cKDTree(white[others]).query(white[mine], k=neighbors)
        result[mine] = _local(white[mine], white[others][index], targets[others][index], distance)
    return result


def unexplained(
    x: Data, y: Data, groups: np.ndarray | None = None, *, neighbors: int = 20, folds: int = 10, seed: int = 0
) -> float:
    """Return the fraction of the variance of y not explained by x, sum ||y - y^(x)||^2 / sum ||y - mean y||^2.

    y^ is the cross-validated prediction of :func:`predict`. The fraction, 1 - R^2, is near 0 if y is a function of x
    (up to the error of the local fit), and near 1 or slightly above if x has no information on y. NaN for constant y.

    Parameters
    ----------
    x, y, groups, neighbors, folds, seed
        As in :func:`predict`.

    Raises
    ------
    TypeError, ValueError
        As :func:`predict`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> unexplained(x, (x[:, :1] + x[:, 1:]) ** 2) < 0.02
    True
    >>> unexplained(x[:, :1], x[:, 1:]) > 0.9
    True
    """
    predicted = predict(x, y, groups, neighbors=neighbors, folds=folds, seed=seed)
    _, targets, _ = _pair(x, y)
    total = float(((targets - targets.mean(0)) ** 2).sum())
    floor = (10 * np.finfo(np.float64).eps) ** 2 * float((targets**2).sum())
    return float(((targets - predicted) ** 2).sum()) / total if total > floor else float("nan")


def self_consistency(states: Data, *, neighbors: int = 20, folds: int = 10, seed: int = 0) -> float:
    """Return the fraction of the variance of the steps h(t + 1) - h(t) not explained by the present state h(t).

    The fraction is the largest over linear coordinates of h: 0 if h(t) determines h(t + 1), so that trajectories do not
    cross, and near 1 if a single coordinate is undetermined, even one with small steps. It does not depend on the
    choice of coordinates. Predictions are those of :func:`predict`, fitted to the other trajectories. The reference is
    the variance of the steps, not of the states: for small steps the present state predicts the next one well in any
    projection. Coordinates whose steps are constant up to rounding are dropped; NaN if none remains.

    Parameters
    ----------
    states : Tensor or ndarray
        (trajectories, times, p), at least two trajectories and two times.
    neighbors, folds, seed
        As in :func:`predict`.

    Raises
    ------
    TypeError, ValueError
        If the shape is different, or as :func:`predict`.

    Examples
    --------
    >>> import numpy as np
    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, (100, 1)) + 0.3 * np.arange(10)
    >>> circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    >>> self_consistency(circle) < 0.01 < 0.5 < self_consistency(circle[..., :1])
    True
    """
    h = validation.samples(states, "states", ndim=3).cpu()
    trajectories, times = h.shape[:2]
    enough = trajectories >= 2 and times >= 2
    validation.expect(enough, "states", f"shape {tuple(h.shape)}", "two trajectories and two times at least")
    groups = np.repeat(np.arange(trajectories), times - 1)
    present, steps = h[:, :-1].flatten(0, 1), h.double().diff(dim=1).flatten(0, 1).numpy(force=True)
    residual = steps - predict(present, steps, groups, neighbors=neighbors, folds=folds, seed=seed)
    size = h.double().norm(dim=(0, 1)).numpy(force=True)
    white = _whitening(steps, size, torch.finfo(h.dtype).eps)
    if not white.size:
        return float("nan")
    return float(np.linalg.norm(residual @ white, 2) ** 2 / len(steps))


def _pair(x: object, y: object) -> tuple[Array, Array, float]:
    """Return x and y in float64, and the machine precision of x's dtype."""
    inputs, targets = validation.samples(x, "x", minimum=2), validation.samples(y, "y", minimum=2)
    counts = f"{len(inputs)} and {len(targets)} samples"
    validation.expect(len(inputs) == len(targets), "x, y", counts, "the same number in both")
    eps = float(torch.finfo(inputs.dtype).eps)
    return inputs.double().numpy(force=True), targets.double().numpy(force=True), eps


def _folds(groups: object, n: int, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of every sample: groups are assigned in random order, round-robin."""
    labels = np.arange(n) if groups is None else np.asarray(groups)
    validation.expect(labels.shape == (n,), "groups", f"shape {labels.shape}", f"({n},), one per sample")
    known, group = np.unique(labels, return_inverse=True)
    validation.expect(len(known) >= 2, "groups", "one group", "two at least")
    order = np.random.default_rng(validation.seed(seed, bits=128)).permutation(len(known))
    return (order % min(folds, len(known)))[group]


def _whitening(x: Array, size: Array, eps: float) -> Array:
    """Return the matrix (p, kept) that maps centered x to unit variance.

    Column j of x has an absolute error of eps * size[j]: ``size``, (p,), contains the norms of the columns, or of the
    data if the columns are differences of data.
    """
    centered = x - x.mean(0)
    scale = np.linalg.norm(centered, axis=0)
    scale = np.where(scale > 10 * eps * size, scale, np.inf)
    _, s, vh = np.linalg.svd(centered / scale, full_matrices=False)
    rounding = np.linalg.norm(vh * (eps * size / scale), axis=1)
    kept = s > np.maximum(10 * rounding, max(FLAT, 10 * eps) * s[:1])
    return np.asarray(len(x) ** 0.5 * vh[kept].T / s[kept] / scale[:, None])


def _local(at: Array, x: Array, y: Array, distance: Array) -> Array:
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
