"""Kernels of representations, K = F F^T given by factors F, (N, n), their distances, and a planar embedding."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.networks import MLP, capture

ZERO = 1e-8  # relative tolerance of ranks
SAME_RANGE = 1e-6  # two ranges are equal up to this sine of the largest principal angle

Metric = Callable[[Tensor, Tensor], float]


def factors(net: MLP, x: Tensor) -> tuple[Tensor, ...]:
    """Return N^(-1/2) X and N^(-1/2) a~_l(X), l = 1..L, (N, n_l), float64: factors of the kernels at the samples."""
    layers = zip(*(part.preactivations for part in capture(net, x)), strict=True)
    return tuple(values.double() / math.sqrt(len(x)) for values in (x, *map(torch.cat, layers)))


def bures(f: Tensor, g: Tensor) -> float:
    """Return min over orthogonal Q of ||F Q - G||_F, the narrower factor padded with zero columns.

    Its square is tr A + tr B - 2 tr (A^(1/2) B A^(1/2))^(1/2), a difference that would lose half of the digits.
    """
    width = max(f.shape[1], g.shape[1])
    f, g = (torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in _reduced(f, g))
    u, _, vh = torch.linalg.svd(f.T @ g)
    return float((f @ (u @ vh) - g).norm())


def angle(f: Tensor, g: Tensor) -> float:
    """Return arccos(<A, B>_F / (||A||_F ||B||_F)), in radians; NaN if a kernel is 0."""
    f, g = _reduced(f, g)
    a, b = f @ f.T, g @ g.T
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.atan2(float((a - b).norm()), float((a + b).norm()))  # accurate for small angles


def affine_invariant(f: Tensor, g: Tensor) -> float:
    """Return ||log(A^(-1/2) B A^(-1/2))||_F on the common range of A and B, infinite if the ranges differ (T8)."""
    (u, s), (v, t) = (_range(factor) for factor in _reduced(f, g))
    across = u.T @ v
    if len(s) != len(t) or float(torch.linalg.matrix_norm(v - u @ across, 2)) > SAME_RANGE:
        return math.inf
    return 2 * float(torch.linalg.svdvals((across * t) / s[:, None]).log().norm())


def _range(factor: Tensor) -> tuple[Tensor, Tensor]:
    u, s, _ = torch.linalg.svd(factor, full_matrices=False)
    k = int(linalg.rank(s, ZERO))
    return u[:, :k], s[:k]


def _reduced(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return both factors in an orthonormal basis of the sum of their ranges, if its dimension is smaller than N."""
    if len(f) <= f.shape[1] + g.shape[1]:
        return f, g
    both = torch.linalg.qr(torch.cat([f, g], 1), mode="r")[1]
    return both[:, : f.shape[1]], both[:, f.shape[1] :]


def distances(kernels: Sequence[Tensor], metric: Metric) -> np.ndarray:
    """Return the symmetric matrix of the distances between all kernels, (K, K)."""
    result = np.zeros((len(kernels), len(kernels)))
    for i, j in itertools.combinations(range(len(kernels)), 2):
        result[i, j] = result[j, i] = metric(kernels[i], kernels[j])
    return result


def layout(distances: np.ndarray) -> tuple[np.ndarray, float]:
    """Return points in the plane that approximate given distances D, (K, 2), by classical multidimensional scaling.

    With J = I - 11^T / K, they are the leading eigenvectors of -J D^2 J / 2 times the square roots of the eigenvalues.
    The second result is the sum of these two over that of all absolute values: 1 for an exact embedding.
    """
    centering = np.eye(len(distances)) - 1 / len(distances)
    values, vectors = np.linalg.eigh(-0.5 * centering @ distances**2 @ centering)
    kept = np.maximum(values[:-3:-1], 0)
    points = vectors[:, :-3:-1] * np.sqrt(kept)
    largest = points[np.abs(points).argmax(0), [0, 1]]
    return points * np.where(largest < 0, -1.0, 1.0), float(kept.sum() / np.abs(values).sum())
