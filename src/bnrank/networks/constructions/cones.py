"""Convex cones of finitely many rays, and isometries that put them into an orthant (T9)."""

import itertools
import math
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_FACES = 3000  # faces of the dual cone that are searched one by one
MAX_HULL = 5  # dimensions up to which extreme rays are found by a convex hull
MAX_TRIED = 200  # points up to which they are found one by one in more dimensions
ROUNDS, CUTS = 40, 1500  # cutting planes: rounds, and vectors kept
SEARCHES = ((1, False), (1, True), (2, True), (4, True), (1, False))  # width of the isometry over k, with memory
STEPS, WORK = 1500, 1e9  # limits of each search: steps and multiplications


def search(rays: Array, atol: float, rng: np.random.Generator) -> tuple[Array | None, Array | None, str]:
    """Return an isometry O with rays O^T >= -atol, or a form that excludes one, and how it was found.

    Parameters
    ----------
    rays : ndarray
        The extreme rays of a cone without negative inner products, unit vectors that span the space, (n, k).
    atol : float
        Entries above ``-atol`` count as non-negative.
    rng : numpy.random.Generator
        Generator of the starts of alternating projections.

    Returns
    -------
    isometry : ndarray or None
        O, (m, k), O^T O = I.
    form : ndarray or None
        S as of :func:`cutting_planes`; neither where the search fails.
    reason : str
        The criterion that decides.

    Examples
    --------
    >>> search(np.array([[-1.0]]), 1e-8, np.random.default_rng(0))
    (array([[-1.]]), None, 'a span of dimension 1, and no negative inner product')
    """
    k = rays.shape[1]
    if k <= 2:
        return into_quadrant(rays), None, f"a span of dimension {k}, and no negative inner product"
    form, isometry = cutting_planes(rays, atol)
    if form is not None:
        return None, form, "a form separates the points"
    if isometry is not None:
        return isometry, None, "a sum of squares of the dual cone was found"
    return alternating_projections(rays, atol, rng), None, "an isometry was found by alternating projections"


def extreme_rays(points: Array) -> Array:
    """Return the extreme rays of the cone of unit vectors, or all vectors where there are too many.

    Parameters
    ----------
    points : ndarray
        Unit vectors that span the space, (N, k), without negative inner products.

    Returns
    -------
    ndarray
        A subset of the points, (n, k).

    Examples
    --------
    >>> extreme_rays(np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])).tolist()
    [[1.0, 0.0], [0.6, 0.8]]
    """
    from scipy.linalg import null_space
    from scipy.optimize import nnls
    from scipy.spatial import ConvexHull, QhullError

    k = points.shape[1]
    center = points.mean(0)
    heights = points @ center / np.linalg.norm(center)  # positive: no negative inner products
    if k == 1:
        return points[:1]
    section = (points / heights[:, None]) @ null_space(center[None])
    if k == 2:
        return points[[int(section.argmin()), int(section.argmax())]]
    if k <= MAX_HULL:
        with suppress(QhullError):
            return points[ConvexHull(section).vertices]
    points = points[np.unique(points.round(12), axis=0, return_index=True)[1]]
    if len(points) <= MAX_TRIED:
        for i in range(len(points) - 1, -1, -1):
            others = np.delete(points, i, axis=0)
            with suppress(RuntimeError):  # too many iterations
                points = others if nnls(others.T, points[i])[1] <= 1e-12 else points
    return points


def into_quadrant(rays: Array) -> Array:
    """Return the rotation of a line or plane that takes a cone of at most a right angle into the quadrant.

    Parameters
    ----------
    rays : ndarray
        The extreme rays, (1, 1) or (2, 2).

    Returns
    -------
    ndarray
        O, (k, k), with rays O^T >= 0.

    Examples
    --------
    >>> into_quadrant(np.array([[-1.0]])).tolist()
    [[-1.0]]
    """
    if rays.shape[1] == 1:
        return np.sign(rays[:1])
    middle = rays.sum(0) / np.linalg.norm(rays.sum(0))
    across = np.array([-middle[1], middle[0]])
    return np.stack([middle + across, middle - across]) / math.sqrt(2)


def _faces(rays: Array) -> list[Array]:
    """Return bases (k, r) of the spans of the faces of {b : rays b >= 0}, those of one dimension last."""
    k = rays.shape[1]
    bases = [np.eye(k)]
    for size in range(1, k):
        subsets = rays[np.array(list(itertools.combinations(range(len(rays)), size)))]  # (., size, k)
        _, values, rows = np.linalg.svd(subsets)
        bases += [v[size:].T for s, v in zip(values, rows, strict=True) if s[-1] > 1e-9]
    return bases


def _inside(vectors: Array, rays: Array, slack: float) -> Array:
    return (vectors @ rays.T).min(1) >= -slack


def _lowest(form: Array, bases: list[Array], rays: Array) -> tuple[Array, float]:
    """Return vectors of the dual cone where the form is negative, and its lower bound over unit vectors of the cone.

    A minimizer over the cone is an eigenvector of the form restricted to the span of some face.
    """
    found: list[Array] = [np.zeros((0, len(form)))]
    lowest = 0.0
    for _, group in itertools.groupby(bases, key=lambda basis: basis.shape[1]):
        stack = np.stack(list(group))  # (faces, k, r)
        values, vectors = np.linalg.eigh(np.swapaxes(stack, 1, 2) @ form @ stack)
        ambient = np.swapaxes(stack @ vectors, 1, 2).reshape(-1, len(form))
        negative = values.reshape(-1) < 0
        for sign in (1.0, -1.0):
            candidates, lows = sign * ambient[negative], values.reshape(-1)[negative]
            near = _inside(candidates, rays, 1e-6)
            if near.any():
                lowest = min(lowest, float(lows[near].min()))
            found.append(candidates[_inside(candidates, rays, 1e-12)])
    return np.concatenate(found), lowest - 1e-9 * (len(form) + 2)


def cutting_planes(rays: Array, atol: float) -> tuple[Array | None, Array | None]:
    """Return a separating form, or an isometry, or neither.

    Minimize Tr S over |S_ab| <= 1 with b^T S b >= 0 for given vectors b: a minimum of 0 means that the identity is a
    sum of their squares, which non-negative least squares finds. Else add the b where S is most negative; if S, lifted
    by its minimum there, still has a negative trace, it separates.

    Parameters
    ----------
    rays : ndarray
        Extreme rays, unit vectors that span the space, (n, k).
    atol : float
        Entries above ``-atol`` count as non-negative.

    Returns
    -------
    form : ndarray or None
        S, (k, k), of negative trace, with b^T S b >= 0 wherever rays b >= 0.
    isometry : ndarray or None
        O, (m, k), O^T O = I, with rays O^T >= -atol. Neither where the dual cone has more than 3,000 faces.

    Examples
    --------
    >>> form, isometry = cutting_planes(np.eye(3), 1e-8)
    >>> form is None, float(isometry.round(9).sum())
    (True, 3.0)
    """
    from scipy.optimize import linprog, nnls

    k = rays.shape[1]
    if sum(math.comb(len(rays), size) for size in range(k)) > MAX_FACES:
        return None, None
    upper = np.triu_indices(k)
    diagonal = upper[0] == upper[1]
    bases = _faces(rays)
    lines = np.concatenate([b[:, 0] * np.array([[1.0], [-1.0]]) for b in bases if b.shape[1] == 1])
    cuts = lines[_inside(lines, rays, 1e-12)]
    for _ in range(ROUNDS):
        products = cuts[:, upper[0]] * cuts[:, upper[1]] * np.where(diagonal, 1.0, 2.0)
        solved = linprog(diagonal.astype(float), A_ub=-products, b_ub=np.zeros(len(cuts)), bounds=(-1, 1))
        if not solved.success:
            break
        if solved.fun > -1e-6:
            with suppress(RuntimeError):  # too many iterations
                shares, rest = nnls((cuts[:, :, None] * cuts[:, None, :]).reshape(len(cuts), -1).T, np.eye(k).ravel())
                u, _, v = np.linalg.svd(np.sqrt(shares[shares > 0])[:, None] * cuts[shares > 0], full_matrices=False)
                if rest <= 1e-8 and (rays @ (u @ v).T).min() >= -atol:
                    return None, u @ v
        form = np.zeros((k, k))
        form[upper] = solved.x
        form = form + np.triu(form, 1).T
        vectors, lowest = _lowest(form, bases, rays)
        lifted = form - lowest * np.eye(k)
        if np.trace(lifted) < -k * atol:
            return lifted, None
        if not len(vectors):
            break
        cuts = np.concatenate([cuts[np.argsort(solved.ineqlin.marginals)[:CUTS]], vectors])
    return None, None


def alternating_projections(rays: Array, atol: float, rng: np.random.Generator) -> Array | None:
    """Return an isometry O with rays O^T >= 0, found by alternating projections from several starts, or None.

    O is fitted alternately to the images reflected into the orthant, or, with a memory of the parts cut off
    (Douglas-Rachford), to their projections.

    Parameters
    ----------
    rays : ndarray
        Unit vectors that span the space, (n, k).
    atol : float
        Entries above ``-atol`` count as non-negative.
    rng : numpy.random.Generator
        Generator of the starts.

    Returns
    -------
    ndarray or None
        O, (m, k), O^T O = I; None if none was found.

    Examples
    --------
    >>> found = alternating_projections(np.array([[-1.0, 0.0], [0.0, 1.0]]), 1e-8, np.random.default_rng(0))
    >>> bool((found @ [-1.0, 0.0]).min() > -1e-8)
    True
    """
    k = rays.shape[1]
    for factor, remembers in SEARCHES:
        isometry = np.linalg.qr(rng.standard_normal((factor * k, k)))[0]
        memory = np.zeros((len(rays), factor * k))
        for _ in range(int(min(STEPS, max(50, WORK / (len(rays) * factor * k * k))))):
            images = rays @ isometry.T
            if images.min() >= -atol:
                return isometry
            target = np.maximum(images + memory, 0.0) if remembers else np.abs(images)
            if remembers:
                memory += images - target
            u, _, v = np.linalg.svd((target - memory).T @ rays, full_matrices=False)
            isometry = u @ v
    return None
