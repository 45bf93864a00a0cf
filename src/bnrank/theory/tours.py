"""Bounds on the shortest path through the outputs, and on functions of one hidden dimension (T13)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank._core.results import Printed

Array = NDArray[np.float64]

EXACT = 12  # largest number of points for which the shortest path is computed exactly
MATRIX = 2048  # largest number of points for which all distances are kept in memory
ASCENT = 2**28  # largest number of distances computed to raise the lower bound


@dataclass(frozen=True)
class PathBounds(Printed):
    """Bounds on the length of the shortest path that visits every point, with free ends.

    Attributes
    ----------
    lower : float
        Certified: the length of the shortest path if it was found exactly, else the spanning tree bound of Held and
        Karp, minus the effect of ``atol``. With an exact path and ``atol`` 0 it equals ``upper``.
    upper : float
        The length of the path in ``order``.
    order : Tensor
        A path through all points, as row numbers, (N,).
    exact : bool
        Whether ``order`` is known to be shortest.
    """

    lower: float
    upper: float
    order: Tensor
    exact: bool

    def __str__(self) -> str:
        return f"shortest path through {len(self.order)} points: {self.lower:.6g} to {self.upper:.6g}"


@dataclass(frozen=True)
class TourBound(Printed):
    """Bounds on functions of BN-rank 1 through N points (x_i, y_i) (T13).

    Attributes
    ----------
    path : PathBounds
        Bounds on the path through the points y_i. The two bounds below use ``path.lower``, so they are certified.
    diameter : float
        The largest distance between two x_i.
    slope : float
        TSP / diam; ||Jf||_op is at least this at some point of the convex hull of the x_i.
    parameter_norm : float
        L (TSP / diam)^{2/L}: a lower bound on ||theta||^2.
    depth : int
        L.
    """

    path: PathBounds
    diameter: float
    slope: float
    parameter_norm: float
    depth: int

    def __str__(self) -> str:
        bounds = f"||Jf|| >= {self.slope:.6g}, ||theta||^2 >= {self.parameter_norm:.6g} at depth {self.depth}"
        return f"{self.path}, diameter {self.diameter:.6g}: {bounds}"


def shortest_path_bounds(y: Tensor | np.ndarray, *, atol: float = 0.0) -> PathBounds:
    """Return a lower and an upper bound on the length of the shortest path that visits every point, with free ends.

    For up to 12 distinct points, the shortest path is computed by dynamic programming. For more points, the upper bound
    is the length of the nearest neighbor path, improved by reversals (2-opt) for up to 2,048 points. The lower bound
    uses weights p of the points, which are added to the length of an edge at both ends: it is the length of a minimum
    spanning tree, minus 2 sum p, plus the two smallest p. Subgradient steps in p raise it.

    Parameters
    ----------
    y : Tensor or ndarray
        Points, (N, d).
    atol : float
        Absolute error of the points, such as rounding error. The shortest path through n distinct points may then be
        shorter by 2 (n - 1) ``atol``, which is subtracted from the lower bound.

    Returns
    -------
    PathBounds
        Both bounds and the path.

    Raises
    ------
    TypeError, ValueError
        If y is not a finite array of shape (N, d), or ``atol`` is negative.
    RangeError
        If the length exceeds the range of floats.

    Examples
    --------
    >>> import torch
    >>> bounds = shortest_path_bounds(torch.tensor([[0.0], [5.0], [1.0], [3.0]]))
    >>> bounds.lower, bounds.upper, bounds.exact
    (5.0, 5.0, True)
    """
    atol = validation.number(atol, "atol", 0.0)
    given, exponent = linalg.scaled(validation.samples(y, "y").detach().double().cpu().numpy())
    points, where = np.unique(given, axis=0, return_inverse=True)
    if len(points) <= EXACT:
        order = _shortest(cdist(points, points))
    else:
        order = _nearest_neighbors(points)
        if len(points) <= MATRIX:
            order = _reversals(order, cdist(points, points))
    upper = float(np.linalg.norm(np.diff(points[order], axis=0), axis=1).sum())
    lower = upper if len(points) <= EXACT else _raised_tree(points, upper)
    lower, upper = _unscaled(lower, exponent, "y"), _unscaled(upper, exponent, "y")
    lower = max(lower - 2 * (len(points) - 1) * atol, 0.0)
    place = np.empty(len(points), dtype=np.int64)
    place[order] = np.arange(len(points))
    rows = np.argsort(place[where.reshape(-1)], kind="stable")
    return PathBounds(lower, upper, torch.from_numpy(rows), len(points) <= EXACT)


def diameter(x: Tensor | np.ndarray) -> float:
    """Return the largest distance between two points.

    Points are visited in order of decreasing distance from the mean. Pairs whose distances from the mean add up to less
    than the largest distance so far are skipped.

    Parameters
    ----------
    x : Tensor or ndarray
        Points, (N, d).

    Returns
    -------
    float
        The diameter; 0 for one point.

    Raises
    ------
    TypeError, ValueError
        If x is not a finite array of shape (N, d).
    RangeError
        If the distance exceeds the range of floats.

    Examples
    --------
    >>> import torch
    >>> diameter(torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]))
    5.0
    """
    points, exponent = linalg.scaled(validation.samples(x, "x").detach().double().cpu().numpy())
    points = points - points.mean(0)
    radii = np.linalg.norm(points, axis=1)
    order = np.argsort(-radii)
    points, radii = points[order], radii[order]
    best = float(np.linalg.norm(points - points[0], axis=1).max())
    block = max(1, 2**22 // len(points))
    for start in range(0, len(points), block):
        if 2 * radii[start] < best:
            break
        rivals = points[: int(np.searchsorted(-radii, radii[start] - best, side="right"))]
        if len(rivals):
            best = max(best, float(cdist(points[start : start + block], rivals).max()))
    return _unscaled(best, exponent, "x")


def tsp_bound(x: Tensor | np.ndarray, y: Tensor | np.ndarray, depth: int, *, atol: float = 0.0) -> TourBound:
    """Return lower bounds on the Jacobian and the parameter norm of every function of BN-rank 1 through the data.

    ||Jf||_op >= TSP(y_1..y_N) / diam(x_1..x_N) at some point of the convex hull of the x_i, and
    ||theta||^2 >= L (TSP / diam)^{2/L} (T13; Jacot2023a Thm 2, Prop. 10). TSP is the length of the shortest path. Its
    certified lower bound is used, so both bounds hold for every such function. The domain of f must contain the convex
    hull.

    Parameters
    ----------
    x : Tensor or ndarray
        Inputs, (N, d_in).
    y : Tensor or ndarray
        Outputs, (N, d_out).
    depth : int
        L.
    atol : float
        Absolute error of the y_i, as in :func:`shortest_path_bounds`.

    Returns
    -------
    TourBound
        The bounds and their components.

    Raises
    ------
    TypeError, ValueError
        If the data are not finite, if x and y have different lengths, or if all inputs are equal and outputs differ.
    RangeError
        If distances exceed the range of floats.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(0, 1, 5)[:, None]
    >>> y = torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0]])
    >>> tsp_bound(x, y, 4).slope                                  # the path goes from 0 to 1
    1.0
    """
    depth = validation.integer(depth, "depth")
    inputs, outputs = validation.samples(x, "x"), validation.samples(y, "y")
    validation.expect(len(inputs) == len(outputs), "y", f"{len(outputs)} samples", f"as many as x has, {len(inputs)}")
    path, width = shortest_path_bounds(outputs, atol=atol), diameter(inputs)
    function = width > 0 or path.lower <= 0
    validation.expect(function, "y", "different outputs for one and the same input", "a function of x")
    slope = path.lower / width if width else 0.0
    power = 2 / depth * math.log(slope) if slope else -math.inf
    norm = depth * slope ** (2 / depth) if power < 700 else math.inf
    return TourBound(path, width, slope, norm, depth)


def samples_for_rank(k: int, depth: int, constant: float, rate: float) -> float:
    """Return the number of samples beyond which rank k is cheaper than rank 1.

    N = ((k + C/L) / c)^{kL/(2k-2)} solves c N^{(2/L)(1 - 1/k)} = k + C/L (T17b; Jacot2023a section 4). The left side is
    a lower bound on R/L for fits of BN-rank 1 (T13, with TSP / diam growing like N^{1-1/k}), and the right side is an
    upper bound on R/L for the true function.

    Parameters
    ----------
    k : int
        Rank of the true function, at least 2.
    depth : int
        L.
    constant : float
        C, with R(f*; L) <= k L + C.
    rate : float
        c > 0, with (TSP / diam)^{2/L} >= c N^{(2/L)(1 - 1/k)}.

    Returns
    -------
    float
        N; inf if it exceeds the range of floats.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> round(samples_for_rank(2, 3, 0.0, 1.0), 9)
    8.0
    """
    k, depth = validation.integer(k, "k", 2), validation.integer(depth, "depth")
    constant, rate = validation.number(constant, "constant"), validation.number(rate, "rate", 0.0, strict=True)
    validation.expect(k + constant / depth > 0, "constant", f"{constant}", f"more than -k L = {-k * depth}")
    power = math.log((k + constant / depth) / rate) * k * depth / (2 * k - 2)
    return linalg.exp(power)


def _unscaled(length: float, exponent: int, name: str) -> float:
    """Return 2^e times a length."""
    try:
        return math.ldexp(length, exponent)
    except OverflowError:
        raise validation.RangeError(f"{name}: got points farther apart than the largest float, about 1.8e308") from None


def _shortest(distances: Array) -> NDArray[np.int64]:
    """Return the shortest path by dynamic programming over subsets and last points (Held and Karp)."""
    n = len(distances)
    lengths = np.full((1 << n, n), np.inf)
    previous = np.zeros((1 << n, n), dtype=np.int64)
    lengths[1 << np.arange(n), np.arange(n)] = 0.0
    for visited in range(1, 1 << n):
        options = lengths[visited][:, None] + distances
        new = np.flatnonzero((~visited >> np.arange(n)) & 1)
        wider = visited | (1 << new)
        lengths[wider, new], previous[wider, new] = options.min(0)[new], options.argmin(0)[new]
    visited, point = (1 << n) - 1, int(lengths[-1].argmin())
    order = [point]
    while len(order) < n:
        visited, point = visited ^ 1 << point, int(previous[visited, point])
        order.append(point)
    return np.array(order)


def _nearest_neighbors(points: Array) -> NDArray[np.int64]:
    """Return the nearest neighbor path that starts at the minimum of the coordinate with the largest range."""
    left = np.ones(len(points), dtype=bool)
    order = [int(points[:, int(np.ptp(points, axis=0).argmax())].argmin())]
    for _ in range(len(points) - 1):
        left[order[-1]] = False
        away = ((points - points[order[-1]]) ** 2).sum(1)
        order.append(int(np.where(left, away, np.inf).argmin()))
    return np.array(order)


def _reversals(order: NDArray[np.int64], distances: Array) -> NDArray[np.int64]:
    """Return the path after reversing segments until no reversal shortens it (2-opt)."""
    n = len(order)
    distances = np.pad(distances, (0, 1))  # an extra point at distance 0, beyond both ends
    order = np.concatenate([[n], order, [n]])
    improved = True
    while improved:
        improved = False
        for i in range(1, n):
            before, first, last, after = order[i - 1], order[i], order[i + 1 : n + 1], order[i + 2 : n + 2]
            now = distances[before, first] + distances[last, after]
            gains = now - distances[before, last] - distances[first, after]
            best = int(gains.argmax())
            if gains[best] > 1e-9 * now[best]:
                order[i : i + best + 2] = order[i : i + best + 2][::-1].copy()
                improved = True
    return order[1:-1]


def _tree(points: Array, weights: Array, distances: Array | None) -> tuple[float, Array]:
    """Return the length of a minimum spanning tree, with weights added at both ends of edges, and degrees (Prim)."""
    n = len(points)
    best, parent, degrees = np.full(n, np.inf), np.zeros(n, dtype=np.int64), np.zeros(n)
    outside = np.ones(n, dtype=bool)
    current, total = 0, 0.0
    for _ in range(n - 1):
        outside[current] = False
        row = cdist(points[current : current + 1], points)[0] if distances is None else distances[current]
        row = row + weights + weights[current]
        closer = outside & (row < best)
        best[closer], parent[closer] = row[closer], current
        current = int(np.where(outside, best, np.inf).argmin())
        total += float(best[current])
        degrees[current] += 1
        degrees[parent[current]] += 1
    return total, degrees


def _raised_tree(points: Array, upper: float) -> float:
    """Return the largest spanning tree bound found by subgradient steps in the weights of the points."""
    n = len(points)
    distances = cdist(points, points) if n <= MATRIX else None
    weights, best, share = np.zeros(n), 0.0, 1.0
    for step in range(1 + min(100, ASCENT // n**2)):
        total, degrees = _tree(points, weights, distances)
        ends = np.argpartition(weights, 1)[:2]
        bound = total - 2 * float(weights.sum()) + float(weights[ends].sum())
        best = max(best, bound)
        gradient = degrees - 2
        gradient[ends] += 1
        size = float(gradient @ gradient)
        if size == 0 or upper - best <= 1e-9 * upper:
            break
        share *= 0.97 if step else 1.0
        weights = weights + share * (upper - bound) / size * gradient
    return min(best, upper)
