"""What a set of points is like as a domain: planar or not, completely positive or not (T9)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from torch import Tensor

from bnrank._core import validation
from bnrank.theory.cones import alternating_projections, cutting_planes, extreme_rays, into_quadrant

__all__ = ["CompletePositivity", "Planarity", "completely_positive", "planarity", "tangent_bound"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Planarity:
    """Dimensions of the spans of a set of points.

    Attributes
    ----------
    k : int
        Dimension of the linear span, the one that T9 is about.
    affine : int
        Dimension of the affine span, k or k - 1. It bounds Rank_BN(id) of the points' convex hull from above.
    singular_values : Tensor
        Of N^{-1/2} X, (min(N, d),), descending.
    centered_singular_values : Tensor
        The same of X less its mean.
    rtol : float
        Values above ``rtol`` times the largest of ``singular_values`` count.
    """

    k: int
    affine: int
    singular_values: Tensor
    centered_singular_values: Tensor
    rtol: float

    def planar(self, k: int) -> bool:
        """Say whether the linear span has dimension at most k, as a k-planar domain has."""
        return self.k <= validation.integer(k, "k", 0)


@dataclass(frozen=True)
class CompletePositivity:
    """Whether a linear isometry of span(X) puts every point into a non-negative orthant, with a certificate.

    Attributes
    ----------
    status : str
        "yes", "no" or "inconclusive".
    reason : str
        What decided.
    k : int
        Dimension of the linear span.
    isometry : Tensor or None
        Of a "yes": O, (m, d), with O^T O the projection on the span and O x_i >= 0 for every point. None where only a
        theorem says yes.
    factor : Tensor or None
        Of a "yes" with an isometry: B = max(X O^T, 0), (N, m), with X X^T = B B^T up to ``residual``.
    residual : float
        max_ij |(X X^T - B B^T)_ij| / (||x_i|| ||x_j||); NaN without a factor.
    form : Tensor or None
        Of a "no": S, (d, d), symmetric, of negative trace, with b^T S b >= 0 wherever X b >= 0. The rows b of an
        isometry would have X b >= 0 and sum b^T S b = Tr S.
    pair : tuple of int or None
        Of a "no" by a negative inner product: which two points.
    rays : int
        Extreme rays of the cone that the points span (points, where they were not told apart).
    tol : float
        Cosines and entries within ``tol`` of 0 are taken for 0.
    """

    status: str
    reason: str
    k: int
    isometry: Tensor | None
    factor: Tensor | None
    residual: float
    form: Tensor | None
    pair: tuple[int, int] | None
    rays: int
    tol: float


def planarity(x: Tensor | np.ndarray, rtol: float = 1e-6) -> Planarity:
    """Return the dimensions of the linear and of the affine span of points, with the singular values.

    T9 (Jacot2023b Prop. 5) needs the linear span: R1(id; Omega) = 0 only if Omega lies in a k-dimensional linear
    subspace, k = Rank_J(id) = Rank_BN(id). Its printed proof shows that all tangent spaces agree, which an affine
    subspace beside the origin has too; there the biases cost (E15).

    Parameters
    ----------
    x : Tensor or ndarray
        Points of the domain, (N, d).
    rtol : float
        Singular values above ``rtol`` times the largest count.

    Returns
    -------
    Planarity
        Both dimensions.

    Raises
    ------
    TypeError, ValueError
        If x is not finite, (N, d), or ``rtol`` is not in [0, 1).

    Examples
    --------
    >>> import torch
    >>> found = planarity(torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]))
    >>> found.k, found.affine
    (2, 1)
    """
    points = validation.samples(x, "x").detach().to(torch.float64)
    rtol = validation.rtol(rtol)
    values = torch.linalg.svdvals(points) / math.sqrt(len(points))
    centered = torch.linalg.svdvals(points - points.mean(0)) / math.sqrt(len(points))
    least = max(rtol, torch.finfo(torch.float64).eps * max(points.shape)) * values[0]
    return Planarity(int((values > least).sum()), int((centered > least).sum()), values, centered, rtol)


def tangent_bound(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Return a lower bound on R1(id; Omega) from two tangent spaces of a domain.

    sum_i log(1 + sin t_i), t_i the principal angles between the spaces: log(1 + sin phi) for two tangents of a curve at
    angle phi <= pi/2 (T17b), the minimum over W_L in the proof of Jacot2023b Prop. 5. It holds for every depth, as
    ||theta||^2 >= k L + the bound for networks that are the identity on Omega, if both spaces have dimension
    k = Rank_J(id; Omega).

    Parameters
    ----------
    a, b : Tensor or ndarray
        Bases of the two spaces as columns, (d, k).

    Returns
    -------
    float
        The bound, in [0, k log 2].

    Raises
    ------
    TypeError, ValueError
        If they are not of the same shape, or their columns are dependent.

    Examples
    --------
    >>> import torch
    >>> e = torch.eye(2)
    >>> round(tangent_bound(e[:, :1], e[:, 1:]), 6)               # a right angle: log 2
    0.693147
    """
    first, second = (validation.samples(v, n).detach().double().cpu().numpy() for v, n in ((a, "a"), (b, "b")))
    if first.shape != second.shape:
        raise ValueError(f"b: got shape {second.shape}, expected that of a, {first.shape}")
    for name, basis in (("a", first), ("b", second)):
        if np.linalg.matrix_rank(basis) < basis.shape[1]:
            raise ValueError(f"{name}: got dependent columns, expected a basis")
    return float(np.log1p(np.sin(subspace_angles(first, second))).sum())


def completely_positive(
    x: Tensor | np.ndarray, *, tol: float = 1e-8, rtol: float = 1e-10, seed: int = 0
) -> CompletePositivity:
    r"""Decide whether points are completely positive: some isometry of their span makes all of them non-negative (T9).

    Equivalently: the Gram matrix X X^T is B B^T with B >= 0; or the identity of the span is a sum of b b^T with b in
    the dual cone {b : X b >= 0}. A "yes" holds for the whole cone that the points span, a "no" for every domain that
    holds the points. In order: a negative inner product says no; points that are non-negative already say yes; in a
    span of dimension 2 the cone is rotated into the quadrant. In a span of few dimensions a linear programme over
    vectors b, and an exact search of the faces of the dual cone for the b that is missing, end in a sum of b b^T or in
    a form S; at most four extreme rays always have a factor (Maxfield and Minc). Elsewhere alternating projections look
    for an isometry, and finding none says nothing.

    Parameters
    ----------
    x : Tensor or ndarray
        Points, (N, d). Zeros are left aside.
    tol : float
        Cosines and entries within ``tol`` of 0 are taken for 0.
    rtol : float
        Singular values of the normalized points above ``rtol`` times the largest make the span.
    seed : int
        Of the alternating projections.

    Returns
    -------
    CompletePositivity
        Status and certificate.

    Raises
    ------
    TypeError, ValueError
        If x is not finite, (N, d), or a tolerance is out of range.

    Examples
    --------
    >>> import torch
    >>> right_angle = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    >>> completely_positive(right_angle).status
    'yes'
    >>> completely_positive(torch.tensor([[1.0], [-1.0]])).pair
    (0, 1)
    """
    given = validation.samples(x, "x")
    tol, rtol = validation.number(tol, "tol", 0.0, strict=True), validation.rtol(rtol)
    rng = np.random.default_rng(validation.integer(seed, "seed", 0))
    points = given.detach().double().cpu().numpy()
    sizes = np.abs(points).max(1, keepdims=True)
    kept = np.flatnonzero(sizes[:, 0] > 0)
    if not len(kept):
        return _yes(points, np.zeros((1, points.shape[1])), "every point is 0", 0, 0, tol)
    unit = points[kept] / sizes[kept]
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    _, values, rows = np.linalg.svd(unit, full_matrices=False)
    basis = rows[values > max(rtol, 1e-15) * values[0]].T  # (d, k)
    k = basis.shape[1]

    i, j, cosine = _widest(unit)
    if cosine < -tol:
        product = (np.outer(unit[i], unit[j]) + np.outer(unit[j], unit[i])) / 2
        pair = (int(kept[i]), int(kept[j]))
        reason = f"points {pair[0]} and {pair[1]} have a negative inner product, cosine {cosine:.3g}"
        return CompletePositivity(
            "no", reason, k, None, None, math.nan, torch.from_numpy(product), pair, len(unit), tol
        )
    if unit.min() >= 0:
        return _yes(points, basis @ basis.T, "the points are non-negative", k, len(unit), tol)

    rays = extreme_rays(unit @ basis)
    count = len(rays)
    form: Array | None = None
    isometry: Array | None = None
    if k <= 2:
        isometry, reason = into_quadrant(rays), f"a span of dimension {k}, and no negative inner product"
    else:
        form, isometry = cutting_planes(rays, tol)
        reason = "a sum of squares of the dual cone was found" if form is None else "a form separates the points"
    if form is not None:
        whole = torch.from_numpy(basis @ form @ basis.T)
        return CompletePositivity("no", reason, k, None, None, math.nan, whole, None, count, tol)
    if isometry is None:
        isometry, reason = alternating_projections(rays, tol, rng), "an isometry was found by alternating projections"
    if isometry is not None and (unit @ basis @ isometry.T).min() >= -10 * tol:
        return _yes(points, isometry @ basis.T, reason, k, count, tol)
    if count <= 4:
        reason = f"{count} extreme rays without negative inner products"
        return CompletePositivity("yes", reason, k, None, None, math.nan, None, None, count, tol)
    reason = f"no isometry was found and none ruled out, {count} rays in a span of dimension {k}"
    return CompletePositivity("inconclusive", reason, k, None, None, math.nan, None, None, count, tol)


def _yes(points: Array, isometry: Array, reason: str, k: int, rays: int, tol: float) -> CompletePositivity:
    factor = np.maximum(points @ isometry.T, 0.0)
    size = np.linalg.norm(points, axis=1)
    size[size == 0] = 1.0
    scaled, parts = points / size[:, None], factor / size[:, None]
    residual = max(
        float(np.abs(a @ scaled.T - b @ parts.T).max()) for a, b in zip(_blocks(scaled), _blocks(parts), strict=True)
    )
    maps = torch.from_numpy(np.ascontiguousarray(isometry))
    return CompletePositivity("yes", reason, k, maps, torch.from_numpy(factor), residual, None, None, rays, tol)


def _blocks(rows: Array) -> list[Array]:
    return [rows[start : start + 1024] for start in range(0, len(rows), 1024)]


def _widest(unit: Array) -> tuple[int, int, float]:
    """Return the two unit vectors with the smallest inner product, and it."""
    best = (0, 0, 1.0)
    for number, block in enumerate(_blocks(unit)):
        cosines = block @ unit.T
        i, j = divmod(int(cosines.argmin()), len(unit))
        if cosines[i, j] < best[2]:
            best = (number * 1024 + i, j, float(cosines[i, j]))
    return best
