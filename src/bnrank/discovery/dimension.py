"""The local dimension of a cloud of points."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data

__all__ = ["LocalDimension", "local_dimension"]

Array = NDArray[np.float64]

SCALES = (10, 20, 40, 80, 160, 320)  # neighbors
SHARE = 6  # neighborhoods hold at most this fraction, 1/6, of the points
CENTERS = 500  # points at which neighborhoods are taken, at most
LIMIT = 0.1  # local variance, relative to the largest, above which a direction counts
PER_DIRECTION = 2.5  # neighbors needed to judge a direction
DOUBT = 1.5  # factor by which the limits are raised and lowered for the interval
FEW, FEW_GROUPS = 200, 100  # with fewer distinct points, or groups of them, dimensions are undetermined
DRAWS = 100  # of balls, for their typical ratios
FLAT = 1e-9  # standard deviation, relative to the largest, up to which a direction does not vary


@dataclass(frozen=True)
class LocalDimension(Printed):
    """The local dimension of a cloud of points; see :func:`local_dimension`.

    Attributes
    ----------
    dimension : int
        The number of directions in which neighborhoods of every size extend.
    interval : tuple of int
        The dimensions with limits 1.5 times higher and lower, up to that of the smallest neighborhoods; from 0 where
        undetermined.
    undetermined : bool
        Whether the points do not settle the dimension.
    reason : str
        The evidence, or why it is undetermined.
    neighbors : tuple of int
        The sizes of neighborhoods.
    spectrum : ndarray
        Median local variances in units of the largest, (sizes, m), descending in every row.
    """

    dimension: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str
    neighbors: tuple[int, ...]
    spectrum: Array

    def __str__(self) -> str:
        low, high = self.interval
        sure = "undetermined" if self.undetermined else f"interval {low} to {high}"
        return f"local dimension: {self.dimension} ({sure})\n  {self.reason}"


def local_dimension(
    points: Data,
    *,
    whiten: bool = True,
    groups: Sequence[int] | NDArray[np.int64] | None = None,
    seed: int = 0,
) -> LocalDimension:
    """Return the dimension of the set near which points lie, from the variances of small neighborhoods.

    Points are whitened unless ``whiten`` is False. At each of up to 500 points, the nearest neighbors have a covariance
    with eigenvalues lambda_1 >= lambda_2 >= ...; the medians of lambda_j / lambda_1 are compared with a limit: the
    smaller of 0.1 and half of what uniform points in a ball of dimension j give. This is done for neighborhoods of 10,
    20, 40, ... 320 points, up to a sixth of all points or groups, and a direction counts only if it exceeds the limit
    at every size. Curvature contributes to large neighborhoods (its share vanishes with their size), noise to small
    ones, the tangent space to all. A direction j is judged by neighborhoods of at least 2.5 j points. Large
    neighborhoods in clusters extend between the clusters, and hide directions inside them: the interval ends at the
    dimension of small neighborhoods, if this is larger.

    A closed curve has local dimension 1, although no single continuous coordinate describes it: the number of
    coordinates needed is larger.

    Parameters
    ----------
    points : Tensor or ndarray
        (N, m). Copies of a point are used once.
    whiten : bool
        Whether distances are measured after whitening; otherwise as given, for points whose units are comparable.
        Whitening makes directions of little extent visible, those of noise and of curvature, too.
    groups : sequence of int, optional
        A number for each point. The neighbors of a point are then the nearest points of other groups, one of each:
        points of one trajectory follow each other on a line, of dimension 1 whatever the dimension of the set.
    seed : int
        Random seed of the choice of the points at which neighborhoods are taken.

    Returns
    -------
    LocalDimension
        Undetermined, with an interval from 0, where fewer than 200 points, or 100 groups, differ or all neighborhoods
        are too small to judge the last direction that counts.

    Raises
    ------
    TypeError, ValueError
        If ``points`` are not a finite matrix, or a parameter is out of range.

    Examples
    --------
    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 500)
    >>> local_dimension(np.column_stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)])).dimension
    1
    """
    table = validation.samples(points, "points").detach().double().numpy()
    distinct, first = np.unique(table, axis=0, return_index=True)
    values = _principal(distinct, validation.flag(whiten, "whiten"))
    units, what, least = None, "points differ", FEW
    if groups is not None:
        units, what, least = np.asarray(validation.integers(groups, "groups", 0)), "groups of points", FEW_GROUPS
        validation.expect(len(units) == len(table), "groups", f"{len(units)} numbers", f"{len(table)}, one per point")
        units = units[first]
    count, columns = values.shape
    most = count if units is None else len(np.unique(units))
    sizes = tuple(size for size in SCALES if size <= max(most / SHARE, SCALES[0]) and size < most)
    if not columns:
        return LocalDimension(0, (0, 0), False, "all points are equal", sizes, np.zeros((len(sizes), 0)))
    few = f"undetermined: only {most} {what}, expected at least {least}"
    if not sizes:
        return LocalDimension(min(columns, count - 1), (0, columns), True, few, sizes, np.zeros((0, columns)))
    centers = np.random.default_rng(seed).permutation(count)[:CENTERS]
    near = _neighbors(values, centers, sizes[-1], units)
    spectrum = np.array([_relative_variances(values[near[:, : size + 1]]) for size in sizes])
    low, dimension, high, small = _extents(spectrum, sizes)
    reason = f"neighborhoods of {', '.join(map(str, sizes))} points extend in {dimension} direction(s)"
    reason += f", small ones in {small}" if small > dimension else ""
    undetermined = most < least or sizes[-1] < PER_DIRECTION * dimension
    if most < least:
        reason = f"{few}; {reason}"
    elif undetermined:
        reason = f"undetermined: {sizes[-1]} neighbors are too few for {dimension} directions"
    interval = 0 if undetermined else low, max(high, small)
    return LocalDimension(dimension, interval, undetermined, reason, sizes, spectrum)


def _principal(values: Array, whiten: bool) -> Array:
    """Return the points along their principal axes, (N, m), without axes along which they do not vary.

    Whitened, all axes have variance 1.
    """
    u, s, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    scale = max(float(s[0]) if len(s) else 0.0, np.finfo(np.float64).eps * float(np.abs(values).max(initial=0)))
    kept = s > FLAT * scale
    return np.array(u[:, kept] * (np.sqrt(len(values)) if whiten else s[kept]))


def _neighbors(values: Array, centers: NDArray[np.int64], count: int, units: Any) -> NDArray[np.int64]:
    """Return each center and its nearest points, (centers, 1 + count); with groups, the nearest of each other group."""
    from scipy.spatial import cKDTree

    if units is None:
        return np.array(cKDTree(values).query(values[centers], count + 1)[1])
    near = []
    for center in centers:
        order = np.argsort(np.square(values - values[center]).sum(axis=1), kind="stable")
        order = order[units[order] != units[center]]
        first = np.unique(units[order], return_index=True)[1]
        near.append(order[np.sort(first)[:count]])
    return np.column_stack([centers, np.array(near)])


def _relative_variances(clouds: Array) -> Array:
    """Return the median over clouds, (clouds, points, m), of their variances along principal axes, (m,)."""
    centered = clouds - clouds.mean(axis=1, keepdims=True)
    values = np.linalg.eigvalsh(np.swapaxes(centered, 1, 2) @ centered)[:, ::-1].clip(0)
    return np.array(np.median(values / np.maximum(values[:, :1], 1e-300), axis=0))


@cache
def _ratio_in_ball(dimension: int, neighbors: int) -> float:
    """Return the median ratio of the smallest to the largest variance of uniform points in a ball."""
    draws = np.random.default_rng(0).normal(size=(DRAWS, neighbors + 1, dimension))
    radii = np.random.default_rng(1).uniform(size=(DRAWS, neighbors + 1, 1)) ** (1 / dimension)
    return float(_relative_variances(draws / np.linalg.norm(draws, axis=2, keepdims=True) * radii)[-1])


def _extents(spectrum: Array, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of leading directions that extend at all sizes: at limits raised, as they are, and lowered.

    The last number is that of directions that extend at the smallest size that judges them.
    """
    counts, alive = np.zeros(4, int), np.ones(4, bool)
    for j, variances in enumerate(spectrum.T, 1):
        judged = [(v, size) for v, size in zip(variances, sizes, strict=True) if size >= PER_DIRECTION * j]
        ratios = np.array([_relative(v, j, size) for v, size in judged])
        extends = [(ratios >= limit).all() for limit in (DOUBT, 1, 1 / DOUBT)]
        alive &= [*extends, (ratios[:1] >= 1).all()]
        if not alive.any():
            break
        counts += alive
    return tuple(counts.tolist())


def _relative(variance: float, direction: int, size: int) -> float:
    """Return a relative variance in units of its limit: the smaller of ``LIMIT`` and half of that of a ball."""
    if variance >= DOUBT * LIMIT:  # far above the limit, whatever a ball gives
        return float(variance / LIMIT)
    return float(variance / min(LIMIT, _ratio_in_ball(direction, size) / 2))
