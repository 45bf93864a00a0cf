"""Linear maps of every rank: the baselines for networks."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp

from bnrank.discovery.estimators.counts import NEGLIGIBLE, sample_losses, smallest_within_error
from bnrank.discovery.estimators.splits import Splits
from bnrank.networks.mlp import MLP, from_layers

RIDGES = np.geomspace(1e-9, 10.0, 11)  # per sample, in the scale of training
INVERSE_RIDGES = (0.01, 1.0, 100.0)  # scikit-learn's C


@dataclass(frozen=True)
class LinearMap:
    """The map x -> B (x - center) + level, with the principal directions V of its values.

    At rank 0, logits are ``constant`` (the logarithms of the class frequencies) instead of ``level``. A missing class
    counts as one row, in both: the loss of a class with a single row stays finite when that row is held out.
    """

    b: np.ndarray
    center: np.ndarray
    level: np.ndarray
    v: np.ndarray
    constant: np.ndarray

    def losses(self, x: np.ndarray, y: np.ndarray, top: int, classes: int = 0) -> np.ndarray:
        """Return the loss of every row of the map truncated to ranks 0, 1, ..., top: shape (top + 1, N)."""
        made = ((x - self.center) @ self.b.T @ self.v[:, :top]).T
        if not classes:  # V is orthonormal: each rank changes one coordinate of y
            seen = ((y - self.level) @ self.v[:, :top]).T
            gains = np.cumsum(np.square(seen) - np.square(seen - made), axis=0)
            whole = np.square(y - self.level).sum(axis=1)
            return np.maximum(whole - np.vstack([np.zeros((1, len(x))), gains]), 0.0)
        values = np.tile(self.level, (len(x), 1))
        losses = [sample_losses(np.tile(self.constant, (len(x), 1)), y, classes)]
        for j in range(top):
            values = values + made[j][:, None] * self.v[:, j]
            losses.append(sample_losses(values, y, classes))
        return np.array(losses)

    def network(self, rank: int) -> MLP:
        """Return the map truncated to a rank, as V (V^T B x) + c of inner dimension max(rank, 1), float64."""
        v = self.v[:, : max(rank, 1)] * (rank > 0)
        bias = self.level - v @ (v.T @ (self.b @ self.center)) if rank else self.constant
        down = torch.from_numpy(v.T @ self.b)
        return from_layers([down, torch.from_numpy(v)], [torch.zeros(len(down)), torch.from_numpy(bias)], 1.0)


@dataclass(frozen=True)
class LinearFit:
    """f(x) = B x + c and the rank that held-out rows support.

    Attributes
    ----------
    rank : int
        The smallest rank whose held-out loss is within one standard error of the best.
    ridge : float
        Per sample, of the ridge regression; 1 / (C N) of a logistic regression.
    errors : ndarray
        Held-out loss of every row (or group of copies) at ranks 0, 1, ..., (K + 1, N).
    map : LinearMap
        The linear map of full rank, on all rows.
    """

    rank: int
    ridge: float
    errors: np.ndarray
    map: LinearMap

    def is_exact(self, rank: int) -> bool:
        """Return whether a rank explains the held-out rows up to round-off."""
        return bool(self.errors[rank].mean() <= NEGLIGIBLE * self.errors[0].mean())


def best_linear(
    x: np.ndarray,
    y: np.ndarray,
    splits: Splits,
    max_rank: int,
    classes: int = 0,
    groups: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> LinearFit:
    """Return the linear map of lowest held-out loss over ridges and ranks, and the supported rank.

    Parameters
    ----------
    x, y : ndarray
        (N, d_in); (N, d_out), or class indices (N,).
    splits : Splits
        Training rows and held-out rows.
    max_rank : int
        Largest rank.
    classes : int
        Number of classes, 0 for the squared error.
    groups : ndarray, optional
        The group of each row, (N,), where some are copies of others or depend on them.
    weights : ndarray, optional
        The weight of each row, (N,).

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(60, 4))
    >>> best_linear(x, x[:, :2] @ np.ones((2, 3)), Splits.of(np.arange(60) % 3), 3).rank
    1
    """
    x = x.astype(np.float64)
    y = y if classes else y.astype(np.float64)
    ridges = 1 / (np.array(INVERSE_RIDGES) * len(x)) if classes else RIDGES
    sums = np.zeros((len(ridges), max_rank + 1, len(x)))
    for known, out in zip(splits.known, splits.out, strict=True):
        own = None if weights is None else weights[known]
        for i, map_ in enumerate(_maps(x[known], y[known], ridges, classes, own)):
            sums[i][:, out] += map_.losses(x[out], y[out], max_rank, classes)
    errors = splits.mean(sums)
    tested = None if weights is None else weights[splits.tested]
    best = int(np.average(errors, axis=2, weights=tested).min(axis=1).argmin())
    kept = splits.by_group(sums[best], np.arange(len(x)) if groups is None else groups, weights)
    rank, ridge = smallest_within_error(kept, paired=True), float(ridges[best])
    return LinearFit(rank, ridge, kept, linear_map(x, y, ridge, classes, weights))


def linear_map(
    x: np.ndarray, y: np.ndarray, ridge: float, classes: int = 0, weights: np.ndarray | None = None
) -> LinearMap:
    """Return the linear map of a table at one ridge."""
    return next(_maps(x, y, np.array([ridge]), classes, weights))


def _maps(
    x: np.ndarray, y: np.ndarray, ridges: np.ndarray, classes: int, weights: np.ndarray | None
) -> Iterator[LinearMap]:
    if weights is not None:
        weights = weights / weights.mean()
    center = np.average(x, axis=0, weights=weights)
    x = x - center
    for b, level in _logistic(x, y, ridges, classes, weights) if classes else _least_squares(x, y, ridges, weights):
        v = np.linalg.svd(_scaled(x @ b.T, weights), full_matrices=False)[2].T
        if v.shape[1] < v.shape[0]:  # fewer rows than outputs
            v = np.hstack([v, np.zeros((v.shape[0], v.shape[0] - v.shape[1]))])
        counts = _frequencies(y, classes, weights) if classes else None
        constant = level if counts is None else np.log(counts / counts.sum())
        yield LinearMap(b, center, level, v, constant)


def _scaled(table: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return rows times the roots of their weights."""
    return table if weights is None else table * np.sqrt(weights)[:, None]


def _frequencies(y: np.ndarray, classes: int, weights: np.ndarray | None) -> np.ndarray:
    """Return the sum of the weights of every class, 1 for a missing one."""
    counts = np.maximum(np.bincount(y, minlength=classes), 1)
    if weights is None:
        return counts
    sums = np.bincount(y, weights, minlength=classes)
    return np.where(sums > 0, sums, 1.0)


def _least_squares(
    x: np.ndarray, y: np.ndarray, ridges: np.ndarray, weights: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    level = np.average(y, axis=0, weights=weights)
    u, s, vt = np.linalg.svd(_scaled(x, weights), full_matrices=False)
    uy = u.T @ _scaled(y - level, weights)
    known = s > 1e-7 * max(s[0], 1e-300)
    for ridge in ridges:
        filter_ = np.where(known, s / (np.square(s) + ridge * len(x)), 0.0)
        yield ((vt.T * filter_) @ uy).T, level


def _logistic(
    x: np.ndarray, y: np.ndarray, ridges: np.ndarray, classes: int, weights: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield slopes and offsets of logistic regression, with the penalty ridge / 2 ||slopes||^2 per sample."""
    seen, place = np.unique(y, return_inverse=True)
    rows, one_hot = np.arange(len(x)), np.eye(len(seen))[place]
    share = (np.ones(len(x)) if weights is None else weights)[:, None] / len(x)
    start = np.zeros((len(seen), x.shape[1] + 1))
    options = {"maxiter": 300, "gtol": 1e-5}

    def objective(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
        slopes, offsets = flat.reshape(start.shape)[:, :-1], flat.reshape(start.shape)[:, -1]
        values = x @ slopes.T + offsets
        values -= values.max(axis=1, keepdims=True)
        chances = np.exp(values)
        total = chances.sum(axis=1, keepdims=True)
        errors = share * (chances / total - one_hot)
        loss = penalty / 2 * np.square(slopes).sum() + (share[:, 0] * (np.log(total[:, 0]) - values[rows, place])).sum()
        return loss, np.hstack([errors.T @ x + penalty * slopes, errors.sum(axis=0)[:, None]]).ravel()

    for ridge in ridges:
        b, level = np.zeros((classes, x.shape[1])), np.zeros(classes)
        penalty = 2 * ridge if len(seen) == 2 else ridge  # of two classes the difference of the slopes is penalized
        fit = minimize(objective, start.ravel(), (penalty,), "L-BFGS-B", jac=True, options=options)
        b[seen], level[seen] = fit.x.reshape(start.shape)[:, :-1], fit.x.reshape(start.shape)[:, -1]
        level[np.setdiff1d(np.arange(classes), seen)] = logsumexp(level[seen]) - np.log(len(y))
        yield b, level
