"""Sets of points as domains: the dimensions of their spans, and complete positivity (T9)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank._core.results import Printed
from bnrank.theory import cones

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Planarity(Printed):
    """Dimensions of the spans of a set of points.

    Attributes
    ----------
    k : int
        Dimension of the linear span, as in T9.
    affine : int
        Dimension of the affine span, k or k - 1. It bounds Rank_BN(id) of the points' convex hull from above.
    singular_values : Tensor
        Singular values of N^{-1/2} X, (min(N, d),), descending.
    centered_singular_values : Tensor
        The same for X minus the mean of its rows.
    rtol : float
        Values above ``rtol`` times the largest of ``singular_values`` count toward the dimensions.
    """

    k: int
    affine: int
    singular_values: Tensor
    centered_singular_values: Tensor
    rtol: float

    def __str__(self) -> str:
        return f"linear span of dimension {self.k}, affine span of dimension {self.affine} (rtol {self.rtol:g})"

    def planar(self, k: int) -> bool:
        """Return whether the linear span has dimension at most k, as that of a k-planar domain."""
        return self.k <= validation.integer(k, "k", 0)


@dataclass(frozen=True)
class CompletePositivity(Printed):
    """Whether a linear isometry of span(X) puts every point into a non-negative orthant, with a certificate.

    Attributes
    ----------
    status : str
        "yes", "no" or "inconclusive".
    reason : str
        The criterion that decides.
    k : int
        Dimension of the linear span.
    isometry : Tensor or None
        If "yes": O, (m, d), with O^T O the projection on the span and O x_i >= 0 for every point; None if the "yes"
        follows only from a theorem.
    factor : Tensor or None
        If there is an isometry: B = max(X O^T, 0), (N, m), with X X^T = B B^T up to ``residual``.
    residual : float
        max_ij |(X X^T - B B^T)_ij| / (||x_i|| ||x_j||); NaN without a factor.
    form : Tensor or None
        If "no": S, (d, d), symmetric, of negative trace, with b^T S b >= 0 for every b with X b >= 0. It excludes an
        isometry, whose rows b would have X b >= 0 and sum b^T S b = Tr S.
    pair : tuple of int or None
        If "no": two points with a negative inner product, if one was found.
    rays : int
        Number of extreme rays of the cone of the points, or of nonzero points if the rays are not determined.
    atol : float
        Cosines and entries of absolute value up to ``atol`` count as 0.
    """

    status: str
    reason: str
    k: int
    isometry: Tensor | None = None
    factor: Tensor | None = None
    residual: float = math.nan
    form: Tensor | None = None
    pair: tuple[int, int] | None = None
    rays: int = 0
    atol: float = 0.0

    def __str__(self) -> str:
        return f"completely positive: {self.status} ({self.reason}; span of dimension {self.k}, {self.rays} rays)"


def planarity(x: Tensor | np.ndarray, rtol: float = 1e-6) -> Planarity:
    """Return the dimensions of the linear and affine spans of points, with the singular values.

    T9 (Jacot2023b Prop. 5) is about the linear span: R1(id; Omega) = 0 only if Omega lies in a k-dimensional linear
    subspace, k = Rank_J(id) = Rank_BN(id). The printed proof shows that all tangent spaces are equal, which also holds
    in an affine subspace that does not contain the origin. In that case the biases add to the cost (E15).

    Parameters
    ----------
    x : Tensor or ndarray
        Points of the domain, (N, d).
    rtol : float
        Singular values above ``rtol`` times the largest singular value of X count toward the dimensions.

    Returns
    -------
    Planarity
        Both dimensions.

    Raises
    ------
    TypeError, ValueError
        If x is not a finite array (N, d), or ``rtol`` is not in [0, 1).

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
    floor = max(rtol, torch.finfo(torch.float64).eps * max(points.shape)) * float(values[0])
    k, affine = (int(linalg.rank(v, 0.0, floor)) for v in (values, centered))
    return Planarity(k, affine, values, centered, rtol)


def tangent_bound(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Return a lower bound on R1(id; Omega) from two tangent spaces of a domain.

    The bound is sum_i log(1 + sin t_i), with t_i the principal angles between the spaces. For two tangents of a curve
    at an angle phi <= pi/2 it is log(1 + sin phi) (T17b). In the proof of Jacot2023b Prop. 5 this is the minimum over
    W_L. If both spaces have dimension k = Rank_J(id; Omega), networks of any depth L that are the identity on Omega
    have ||theta||^2 >= k L + bound.

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
        If the shapes differ, or the columns of a basis are linearly dependent.

    Examples
    --------
    >>> import torch
    >>> e = torch.eye(2)
    >>> round(tangent_bound(e[:, :1], e[:, 1:]), 6)               # a right angle: log 2
    0.693147
    """
    first, second = (validation.samples(v, n).detach().double().cpu().numpy() for v, n in ((a, "a"), (b, "b")))
    validation.expect(first.shape == second.shape, "b", f"shape {second.shape}", f"that of a, {first.shape}")
    for name, basis in (("a", first), ("b", second)):
        validation.expect(np.linalg.matrix_rank(basis) >= basis.shape[1], name, "dependent columns", "a basis")
    return float(np.log1p(np.sin(subspace_angles(first, second))).sum())


def completely_positive(
    x: Tensor | np.ndarray, *, atol: float = 1e-8, rtol: float = 1e-10, seed: int = 0
) -> CompletePositivity:
    r"""Return whether points are completely positive: an isometry of their span makes all of them non-negative (T9).

    Equivalent conditions: the Gram matrix X X^T equals B B^T with B >= 0; the identity of the span is a sum of b b^T
    with b in the dual cone {b : X b >= 0}. A "yes" holds for the whole cone that the points generate, a "no" for every
    domain that contains the points. The criteria, in this order:

    1. If an inner product is negative, the result is "no".
    2. If all points are non-negative, it is "yes".
    3. In a span of dimension 1 or 2, the cone is rotated into the orthant: "yes".
    4. In a span of few dimensions, a linear program over vectors b, with an exact search of the faces of the dual cone
       for missing b, may give a sum of b b^T ("yes") or a form S ("no").
    5. Otherwise, alternating projections search for an isometry ("yes").
    6. If none is found, the result is "yes" for at most four extreme rays, which always have a factor (Maxfield and
       Minc), and "inconclusive" for more.

    Parameters
    ----------
    x : Tensor or ndarray
        Points, (N, d). Zeros are ignored.
    atol : float
        Cosines and entries of absolute value up to ``atol`` count as 0.
    rtol : float
        The dimension of the span is the number of singular values of the normalized points above ``rtol`` times the
        largest.
    seed : int
        Random seed of the alternating projections.

    Returns
    -------
    CompletePositivity
        Status and certificate.

    Raises
    ------
    TypeError, ValueError
        If x is not a finite array (N, d), or a tolerance is out of range.

    Examples
    --------
    >>> import torch
    >>> right_angle = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    >>> completely_positive(right_angle).status
    'yes'
    >>> completely_positive(torch.tensor([[1.0], [-1.0]])).pair
    (0, 1)
    """
    from sklearn.metrics import pairwise_distances_argmin_min  # here, as it takes a second to import

    given = validation.samples(x, "x")
    atol, rtol = validation.number(atol, "atol", 0.0, strict=True), validation.rtol(rtol)
    rng = np.random.default_rng(validation.seed(seed, bits=128))
    points = given.detach().double().cpu().numpy()
    sizes = np.abs(points).max(1, keepdims=True)
    kept = np.flatnonzero(sizes[:, 0] > 0)
    if not len(kept):
        return _yes(points, np.zeros((1, points.shape[1])), reason="every point is 0", k=0, atol=atol)
    unit = points[kept] / sizes[kept]
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    _, values, rows = np.linalg.svd(unit, full_matrices=False)
    basis = rows[: int(linalg.rank(values, max(rtol, 1e-15)))].T  # (d, k)
    about: dict[str, Any] = {"k": basis.shape[1], "rays": len(unit), "atol": atol}

    nearest, distances = pairwise_distances_argmin_min(unit, -unit)  # minimize the inner product
    i = int(distances.argmin())
    j, cosine = int(nearest[i]), float(unit[i] @ unit[nearest[i]])
    if cosine < -atol:
        product = torch.from_numpy(np.outer(unit[i], unit[j]) + np.outer(unit[j], unit[i])) / 2
        pair = (int(kept[i]), int(kept[j]))
        reason = f"points {pair[0]} and {pair[1]} have a negative inner product, cosine {cosine:.3g}"
        return CompletePositivity("no", reason, form=product, pair=pair, **about)
    if unit.min() >= 0:
        return _yes(points, basis @ basis.T, reason="the points are non-negative", **about)

    rays = cones.extreme_rays(unit @ basis)
    about["rays"] = len(rays)
    isometry, form, reason = cones.search(rays, atol, rng)
    if form is not None:
        return CompletePositivity("no", reason, form=torch.from_numpy(basis @ form @ basis.T), **about)
    if isometry is not None and (unit @ basis @ isometry.T).min() >= -10 * atol:
        return _yes(points, isometry @ basis.T, reason=reason, **about)
    if len(rays) <= 4:
        return CompletePositivity("yes", f"{len(rays)} extreme rays without negative inner products", **about)
    reason = f"no isometry was found and none ruled out, {len(rays)} rays in a span of dimension {basis.shape[1]}"
    return CompletePositivity("inconclusive", reason, **about)


def _yes(points: Array, isometry: Array, **about: Any) -> CompletePositivity:
    factor = np.maximum(points @ isometry.T, 0.0)
    size = np.linalg.norm(points, axis=1, keepdims=True)
    size[size == 0] = 1.0
    scaled, parts = points / size, factor / size
    residual = max(
        float(np.abs(scaled[rows] @ scaled.T - parts[rows] @ parts.T).max())
        for rows in np.array_split(np.arange(len(points)), len(points) // 1024 + 1)
    )
    maps = torch.from_numpy(np.ascontiguousarray(isometry))
    return CompletePositivity("yes", isometry=maps, factor=torch.from_numpy(factor), residual=residual, **about)
