"""Crossings of curves in the plane (F5)."""

import numpy as np
from numpy.typing import NDArray

from bnrank._core import validation
from bnrank._core.validation import Data

__all__ = ["count"]

Array = NDArray[np.float64]


def count(curves: Data, atol: float = 0.0) -> NDArray[np.int64]:
    """Return how often any two curves of the plane cross, in a way that moving one by ``atol`` does not undo.

    A curve is the polyline through its points. Where two of them intersect, each one changes sides of the other. A
    change of sides counts if the curve is farther than ``atol`` from the other curve at some of its points before and
    at some of its points after the change; if curves intersect several times, stays on a side within ``atol`` are
    skipped. Of the two counts, of one curve with respect to the other and the reverse, the smaller is taken. So
    curves that touch, that end on each other, or that run along each other within ``atol`` do not cross. With
    ``atol`` = 0 every proper intersection counts whose parts are not intersected again between two points of a curve.
    An intersection exactly at a point of a curve is not seen.

    Trajectories of a flow in the plane do not cross. Those of a map may: sample the trajectories so finely that
    the polyline is the curve.

    Parameters
    ----------
    curves : Tensor or ndarray
        (m, points, 2), at least two points.
    atol : float
        Distance, in the units of the curves.

    Returns
    -------
    ndarray
        (m, m), symmetric, with zeros on the diagonal.

    Raises
    ------
    TypeError, ValueError
        If the shape is different, an entry is not finite, or ``atol`` is negative.

    Examples
    --------
    >>> import numpy as np
    >>> along, up = [[-1, 0], [1, 0]], [[0, -1], [0, 1]]
    >>> count(np.array([along, up, [[0.5, 1], [0.5, -0.1]]], dtype=float)).tolist()
    [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    >>> count(np.array([along, up, [[0.5, 1], [0.5, -0.1]]], dtype=float), atol=0.2).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    points = validation.samples(curves, "curves", ndim=3).double().numpy(force=True)
    shaped = points.shape[1] >= 2 and points.shape[2] == 2
    validation.expect(shaped, "curves", f"shape {points.shape}", "(m, points, 2) with two points or more")
    atol = validation.number(atol, "atol", 0.0)
    scale = np.abs(points).max(initial=0.0) or 1.0  # prevents overflow and underflow of products
    points, atol = points / scale, atol / scale
    low, high = points.min(1), points.max(1)
    result = np.zeros((len(points), len(points)), dtype=np.int64)
    for i, j in zip(*np.triu_indices(len(points), 1), strict=True):
        if (low[i] <= high[j]).all() and (low[j] <= high[i]).all():
            result[i, j] = result[j, i] = _changes_of_sides(points[i], points[j], atol)
    return result


def _changes_of_sides(a: Array, b: Array, atol: float) -> int:
    """Return how often two curves change sides of each other."""
    of_a, of_b = _intersections(a, b)
    if not len(of_a):
        return 0
    return min(_changes(a, b, of_a, atol), _changes(b, a, of_b, atol))


def _intersections(a: Array, b: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the segments of a and of b that intersect properly, one entry per intersection."""
    sides_of_a, sides_of_b = np.sign(_sides(a, b)), np.sign(_sides(b, a))  # (segments of a, points of b), and reverse
    crossed_a = sides_of_a[:, :-1] * sides_of_a[:, 1:] < 0
    crossed_b = (sides_of_b[:, :-1] * sides_of_b[:, 1:] < 0).T
    of_a, of_b = np.nonzero(crossed_a & crossed_b)
    return of_a, of_b


def _sides(a: Array, b: Array) -> Array:
    """Return twice the signed areas (segments of a, points of b) of the triangles of a segment and a point."""
    along, to = np.diff(a, axis=0)[:, None], b - a[:-1, None]
    return np.asarray(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0])


def _changes(a: Array, b: Array, segments: NDArray[np.int64], atol: float) -> int:
    """Return how often a goes from farther than atol on one side of b to farther than atol on the other."""
    pieces = np.split(_distances(a, b), np.sort(segments) + 1)  # intersections with one segment leave empty pieces
    far = [i % 2 for i, piece in enumerate(pieces) if piece.max(initial=0.0) > atol]
    return int(np.count_nonzero(np.diff(far)))


def _distances(a: Array, b: Array) -> Array:
    """Return the distances (points of a,) from a curve b."""
    along, to = np.diff(b, axis=0), a[:, None] - b[:-1]
    length = np.square(along).sum(1)
    share = (to * along).sum(2) / np.where(length > 0, length, 1.0)
    return np.asarray(np.linalg.norm(to - np.clip(share, 0, 1)[..., None] * along, axis=2).min(1))
