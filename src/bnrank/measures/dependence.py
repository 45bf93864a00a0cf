"""Whether one quantity is a function of another, estimated from samples."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation

__all__ = ["predict", "self_consistency", "unexplained"]

Array = NDArray[np.float64]
RIDGE = 1e-3  # on the slopes of the local fit, relative to the spread of the neighbors
FLAT = 1e-12  # directions that vary less, relative to the one that varies most, carry rounding only


def predict(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    groups: np.ndarray | None = None,
    *,
    neighbors: int = 20,
    folds: int = 10,
    seed: int = 0,
) -> Array:
    """Return predictions of y from x at every sample, by a local linear fit on the other folds.

    x is centered and whitened, so that nothing depends on the choice of linear coordinates of x; directions that vary
    by rounding only, in the precision x has, are left out. The fit at a sample uses its nearest neighbors outside its
    own fold, weighted by (1 - (distance / largest)^3)^3, with a small ridge on the slopes. For a few dimensions of x;
    the error of a smooth function goes to 0 with the number of samples.

    Parameters
    ----------
    x, y : Tensor or ndarray
        (N, p) and (N, q).
    groups : ndarray, optional
        (N,), of any values: samples of the same group, such as the times of a trajectory, come into the same fold, so
        that none is predicted from its own group. By default every sample is a group.
    neighbors : int
        Number of neighbors.
    folds : int
        Number of folds, at most the number of groups.
    seed : int
        Seed of the partition into folds.

    Returns
    -------
    ndarray
        (N, q), float64.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, entries are not finite, or there are fewer than two groups or too few samples for the
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
    least = len(inputs) - int(np.bincount(of).max())
    if least < neighbors:
        raise ValueError(f"neighbors: got {neighbors}, but one fold leaves {least} of {len(inputs)} samples only")
    white = _whitened(inputs, eps)
    result = np.empty_like(targets)
    for fold in np.unique(of):
        mine, others = of == fold, of != fold
        distance, index = cKDTree(white[others]).query(white[mine], k=neighbors)
        result[mine] = _local(white[mine], white[others][index], targets[others][index], distance)
    return result


def unexplained(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    groups: np.ndarray | None = None,
    *,
    neighbors: int = 20,
    folds: int = 10,
    seed: int = 0,
) -> float:
    """Return the share of the variance of y that x does not predict, sum ||y - y^(x)||^2 / sum ||y - mean y||^2.

    y^ is what :func:`predict` gives, on samples it was not fitted to: near 0 where y is a function of x (up to the
    error of the local fit), near 1 or slightly above where x carries no information on y. R^2 is 1 minus it. NaN for
    constant y.

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


def self_consistency(states: Tensor | np.ndarray, *, neighbors: int = 20, folds: int = 10, seed: int = 0) -> float:
    """Return the share of the variance of the steps h(t + 1) - h(t) that the present state h(t) does not predict.

    For the worst of all linear coordinates of h: 0 if the dynamics close on h, so that trajectories do not cross, and
    near 1 if a single coordinate does not close, however small its steps are compared with the others.
    Nothing depends on the choice of coordinates. Fitted by :func:`predict`, never on the trajectory itself. The
    reference is the variance of steps, not of states: where steps are small, the present state is a good
    prediction of the next one in any projection. Coordinates whose steps are constant up to rounding are left out; NaN
    where all are.

    Parameters
    ----------
    states : Tensor or ndarray
        (trajectories, times, p), two trajectories and two times at least.
    neighbors, folds, seed
        As in :func:`predict`.

    Raises
    ------
    TypeError, ValueError
        If it has another shape, or as :func:`predict`.

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
    if trajectories < 2 or times < 2:
        raise ValueError(f"states: got shape {tuple(h.shape)}, expected two trajectories and two times at least")
    groups = np.repeat(np.arange(trajectories), times - 1)
    present, steps = h[:, :-1].flatten(0, 1), h.double().diff(dim=1).flatten(0, 1).numpy(force=True)
    residual = steps - predict(present, steps, groups, neighbors=neighbors, folds=folds, seed=seed)
    size = h.double().norm(dim=(0, 1)).numpy(force=True)
    white = _whitening(steps, size, torch.finfo(h.dtype).eps)
    if not white.size:
        return float("nan")
    return float(np.linalg.norm(residual @ white, 2) ** 2 / len(steps))


def _pair(x: object, y: object) -> tuple[Array, Array, float]:
    """Return both in float64, and the precision of x."""
    inputs, targets = validation.samples(x, "x", minimum=2), validation.samples(y, "y", minimum=2)
    if len(inputs) != len(targets):
        raise ValueError(f"x, y: got {len(inputs)} and {len(targets)} samples, expected the same number in both")
    eps = float(torch.finfo(inputs.dtype).eps)
    return inputs.double().numpy(force=True), targets.double().numpy(force=True), eps


def _folds(groups: object, n: int, folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of every sample: groups in random order, dealt out in turn."""
    if groups is None:
        groups = np.arange(n)
    labels = np.asarray(groups)
    validation.expect(labels.shape == (n,), "groups", f"shape {labels.shape}", f"({n},), one per sample")
    known, group = np.unique(labels, return_inverse=True)
    validation.expect(len(known) >= 2, "groups", "one group", "two at least")
    order = np.random.default_rng(validation.integer(seed, "seed", 0)).permutation(len(known))
    return (order % min(folds, len(known)))[group]


def _whitened(x: Array, eps: float) -> Array:
    """Return x in coordinates of mean 0 and variance 1, without directions that do not vary."""
    white = _whitening(x, np.linalg.norm(x, axis=0), eps)
    validation.expect(white.size, "x", "the same point in all samples", "points that differ")
    return np.asarray((x - x.mean(0)) @ white)


def _whitening(x: Array, size: Array, eps: float) -> Array:
    """Return the matrix (p, kept) that takes x, centered, to variance 1.

    Columns of x are good to eps times ``size``, (p,), their norms or those of what they are differences of.
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
