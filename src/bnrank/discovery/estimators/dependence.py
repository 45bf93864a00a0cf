"""Rows that depend on each other: whether consecutive rows do, blocks of them, and a test by misalignment."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

Array = np.ndarray

SURE = 3.5  # standard errors above which a correlation of consecutive rows counts
NEGLIGIBLE = 0.1  # product of the correlations of inputs and outputs that counts as none
BLOCKS = 12  # number of blocks of rows, at least; with fewer, a standard error over blocks is unreliable
STARTS, SHIFTS, FOLDS = 5, 60, 4  # aligned tables, places of outputs and parts held out in the test by misalignment
CHANCE = 0.02  # share of the misaligned tables that may be predicted as well
MAX_ROWS = 1000  # in this test
WIDTHS = (0.5, 2.0, 8.0)  # of Gaussian kernels, relative to the median distance of two rows
RIDGES = (1e-4, 1e-2, 1.0)  # per row


@dataclass(frozen=True)
class Dependence:
    """Consecutive rows that depend on each other.

    Attributes
    ----------
    blocks : ndarray
        The block of consecutive rows of every row, (N,), counted from 0.
    gap : int
        Number of rows next to a held-out block that are not used for training.
    """

    blocks: Array
    gap: int


def consecutive(x: Array, y: Array) -> Dependence | None:
    """Return how consecutive rows depend on each other; None if they need not be treated as dependent.

    Inputs and outputs both have to be correlated with those of the row before: if only one of them is, rows next to
    each other say nothing of the other's value. Blocks are twice as long as the number of rows after which the product
    of both correlations is small, but there are at least 12. A table that is sorted (by its outputs, by one input with
    nothing else in order, or by the levels of a design) is not treated so: its order is no time.

    Parameters
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out), numbers.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(400, 4))
    >>> consecutive(draws[:, :2], draws[:, 2:]) is None
    True
    >>> walks = draws.cumsum(axis=0)
    >>> consecutive(walks[:, :2], walks[:, 2:]).gap
    16
    >>> order = np.argsort(walks[:, 3])
    >>> consecutive(walks[order, :2], walks[order, 3:]) is None
    True
    """
    rows = len(x)
    x, y = (table[:, np.ptp(table, axis=0) > 0] for table in (x, y))
    if rows < 2 * BLOCKS or not x.shape[1] or not y.shape[1] or is_sorted(x, y):
        return None
    longest = rows // BLOCKS
    of_x, of_y = (correlations(table, longest) for table in (x, y))
    if min(of_x[1], of_y[1]) * np.sqrt(rows) < SURE:
        return None
    small = np.flatnonzero(of_x[1:] * of_y[1:] < NEGLIGIBLE)
    lag = int(small[0]) + 1 if len(small) else longest
    length = min(2 * lag, longest)
    return Dependence(np.minimum(np.arange(rows) // length, rows // length - 1), length // 2)


def correlations(table: Array, longest: int) -> Array:
    """Return the largest |correlation| of a column with itself, lag by lag: shape (longest + 1,).

    Examples
    --------
    >>> correlations(np.array([[1.0], [-1.0], [1.0], [-1.0]]), 1).tolist()
    [1.0, 0.75]
    """
    z = table - table.mean(axis=0)
    z = z / np.sqrt(np.square(z).sum(axis=0))
    lags = range(min(longest, len(z) - 1) + 1)
    return np.array([np.abs((z[lag:] * z[: len(z) - lag]).sum(axis=0)).max() for lag in lags])


def is_sorted(x: Array, y: Array) -> bool:
    """Return whether rows are in the order of an output, of one input, or of the levels of a design.

    Examples
    --------
    >>> levels = np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [1.0, 2.0]])
    >>> is_sorted(levels, np.array([[3.0], [1.0], [2.0], [5.0]]))
    True
    """
    if _monotone(y).any():
        return True
    ordered = _monotone(x)
    if not ordered.any():
        return False
    repeats = [len(np.unique(column)) < len(x) for column in x[:, ordered].T]
    rest = x[:, ~ordered]
    if any(repeats):  # levels of a design
        return True
    return not rest.shape[1] or correlations(rest, 1)[1] * np.sqrt(len(x)) < SURE


def _monotone(table: Array) -> Array:
    steps = np.diff(table, axis=0)
    return np.array((steps >= 0).all(axis=0) | (steps <= 0).all(axis=0))


def near(out: Array, gap: int) -> Array:
    """Return which rows are held out or at most ``gap`` rows from one that is, (N,), bool.

    Examples
    --------
    >>> near(np.array([False, False, True, False, False]), 1).tolist()
    [False, True, True, True, False]
    """
    reach = np.convolve(out, np.ones(2 * gap + 1))
    return reach[gap : gap + len(out)] > 0.5


def misaligned(x: Array, y: Array, blocks: Array, gap: int) -> float:
    """Return the share of misaligned tables whose outputs are predicted as well as those of the aligned ones.

    If only the order of the rows connects inputs and outputs, outputs of other rows are predicted about as well: the
    share is small only where outputs belong to the inputs of their own row. A table consists of half of the rows: the
    inputs of consecutive rows, and the outputs of the same rows (aligned) or of as many other consecutive rows, at
    least ``gap`` later or earlier. There is no wrap-around, which would break trends and phases of misaligned tables
    only. Outputs are predicted by regression with Gaussian kernels (the best of three widths and ridges) on blocks that
    are held out. The mean R^2 of the aligned tables is compared with that of every misaligned one:
    (1 + number that is as large) / (1 + number).

    Parameters
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out), numbers.
    blocks : ndarray
        The block of every row, (N,), counted from 0.
    gap : int
        Number of rows by which tables are misaligned at least.

    Examples
    --------
    >>> walks = np.random.default_rng(1).normal(size=(400, 4)).cumsum(axis=0)
    >>> blocks = np.arange(400) // 20
    >>> misaligned(walks[:, :2], walks[:, 2:], blocks, 20) > 0.1
    True
    >>> misaligned(walks[:, :2], walks[:, :2] ** 2, blocks, 20) < 0.01
    True
    """
    if (step := -(-len(x) // MAX_ROWS)) > 1:
        x, y, blocks, gap = x[::step], y[::step], blocks[::step], -(-gap // step)
    half = len(x) // 2
    starts = np.unique(np.linspace(0, len(x) - half, STARTS).astype(int))
    x = x / np.maximum(x.std(axis=0), 1e-300)
    aligned: list[float] = []
    others: list[float] = []
    for first in starts:
        rows = slice(first, first + half)
        lags = [
            other for other in np.unique(np.linspace(0, len(x) - half, SHIFTS).astype(int)) if abs(other - first) > gap
        ]
        outputs = np.stack([y[other : other + half] for other in (first, *lags)], axis=1)
        found = predicted(x[rows], outputs, np.unique(blocks[rows], return_inverse=True)[1] % FOLDS)
        aligned.append(found[0])
        others.extend(found[1:])
    return float((1 + (np.array(others) >= np.mean(aligned)).sum()) / (1 + len(others)))


def predicted(x: Array, tables: Array, folds: Array) -> Array:
    """Return the held-out R^2 of several tables of outputs, (N, T, d_out), with the same inputs, (N, d_in): shape (T,).

    Examples
    --------
    >>> x = np.linspace(0, 1, 40)[:, None]
    >>> found = predicted(x, np.stack([x, np.random.default_rng(0).normal(size=(40, 1))], 1), np.arange(40) % 4)
    >>> bool(found[0] > 0.99), bool(found[1] < 0.1)
    (True, True)
    """
    rows, number, outputs = tables.shape
    flat = tables.reshape(rows, -1)
    squares = np.square(cdist(x, x))
    median = float(np.median(squares[squares > 0])) if (squares > 0).any() else 1.0
    losses = np.zeros((len(WIDTHS), len(RIDGES), number))
    for i, width in enumerate(WIDTHS):
        kernel = np.exp(-squares / (2 * width**2 * median))
        for fold in np.unique(folds):
            out = folds == fold
            values, vectors = np.linalg.eigh(kernel[np.ix_(~out, ~out)])
            mean = flat[~out].mean(axis=0)
            inner, across = vectors.T @ (flat[~out] - mean), kernel[np.ix_(out, ~out)] @ vectors
            for j, ridge in enumerate(RIDGES):
                made = across @ (inner / (np.maximum(values, 0) + ridge * (~out).sum())[:, None]) + mean
                losses[i, j] += np.square(made - flat[out]).reshape(-1, number, outputs).sum(axis=(0, 2))
    spread = np.square(tables - tables.mean(axis=0)).sum(axis=(0, 2))
    return 1 - losses.min(axis=(0, 1)) / np.maximum(spread, 1e-300)
