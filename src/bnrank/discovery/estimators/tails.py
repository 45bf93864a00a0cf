"""Values far from all others of their column: scores in spreads, gaps in the tail, fences, and heavy tails."""

import numpy as np
from scipy.stats import norm

Array = np.ndarray

COMMON = 0.25  # share of the rows with the same value, from which a column is never changed
LEVELS = 20  # different values, below which a column is never changed
TENTH = 0.1  # share of the rows that can be outliers of one column; where its tail begins
GROSS = 5.0  # spreads from the median, at least
LEVEL = 0.1  # false alarms in a table whose tails are power laws, by either rule; a tenth of it below 50 rows
SPACINGS = (10, 50)  # smallest and largest number of values that tell the spacings below a gap
TOP = 3  # largest values, which may be outliers
HEAVY = 1.25  # tail index below which a few values are nearly the whole variance of a sample
SIDES = np.array([0.25, 0.5, 0.75])
TINY = 1e-300


def scores(table: Array) -> Array:
    """Return how many spreads every value is from the median of its column, with sign, (N, d).

    The spread is that of the value's side, the distance from the median to the quartile, divided by that of a normal
    variable (0.674): for normal columns it is the standard deviation, and skewness does not make values of the longer
    side extreme. Columns with fewer than 20 different values (levels of a design, doses, small counts) or in which one
    value holds a quarter of the rows (indicators of rare classes, sparse columns) have scores of 0: they have no scale
    in which a value is far.

    Examples
    --------
    >>> column = np.append(np.linspace(-1, 1, 99), 30.0)[:, None]
    >>> print(scores(column)[-1].round(1))
    [40.]
    >>> scores((column > 0.9).astype(float)).any()
    np.False_
    """
    low, middle, high = np.quantile(table, SIDES, axis=0)
    away = table - middle
    spread = np.where(away > 0, high - middle, middle - low) / norm.ppf(0.75)
    numbers = [np.unique(column, return_counts=True)[1] for column in table.T]
    varied = np.array([len(n) >= LEVELS and n.max() < COMMON * len(table) for n in numbers], dtype=bool)
    usable = (spread > 0) & varied
    return np.where(usable, away / np.where(usable, spread, 1.0), 0.0)


def far(table: Array) -> Array:
    """Return which values are far from all others of their column, (N, d), bool.

    Two rules, both for values at least 5 spreads from the median, with the tail of a column, above its largest tenth,
    taken for a power law of index alpha (columns with lighter tails, such as normal and lognormal ones, are judged
    mildly). *Gap*: the logarithm of the ratio of the m-th and the next largest of N values is exponential with mean
    1 / (m alpha) (Renyi 1953). Values beyond a gap are far if it is too large for the spacings of the values below.
    *Fence*: one or two values make no significant gap. They are far beyond the value that is exceeded with a
    probability of 10 percent in the table (Weissman 1978), extrapolated by the spacings below the three largest values
    (of the column or, if larger, the median over the columns). At most a tenth of a column is far. Equal
    rounded numbers count as spread over the width of rounding.

    Examples
    --------
    >>> column = np.random.default_rng(0).normal(size=(200, 1))
    >>> far(np.exp(column)).any()
    np.False_
    >>> column[7] = 40
    >>> np.flatnonzero(far(column))
    array([7])
    """
    folded = np.abs(scores(table))
    used = np.flatnonzero(folded.any(axis=0))
    found = np.zeros(table.shape, dtype=bool)
    if not len(used):
        return found
    level = LEVEL if len(table) >= 5 * SPACINGS[0] else LEVEL / 10
    steps = [_step(folded[:, j], table[:, j]) for j in used]
    for j, step in zip(used, steps, strict=True):
        found[:, j] = beyond_gap(folded[:, j], step, level / len(used))
    tails = np.array([tail(folded[~found[:, j], j]) for j in used])
    spacings = np.maximum(tails[:, 1], np.median(tails[:, 1]))
    for j, step, start, spacing in zip(used, steps, tails[:, 0], spacings, strict=True):
        fence = start * np.exp(min(spacing * np.log(TENTH * table.size / level), 500.0))
        beyond = folded[:, j] - step > max(fence, GROSS)
        if beyond.sum() <= TENTH * len(table):
            found[:, j] |= beyond
    return found


def beyond_gap(folded: Array, step: float, level: float) -> Array:
    """Return which of the absolute scores of a column, (N,), are beyond a significant gap; see :func:`far`.

    Parameters
    ----------
    folded : ndarray
        Absolute scores, (N,).
    step : float
        The distance of rounded values, in the same units; about 0 for values that are not rounded.
    level : float
        Probability of a false alarm.
    """
    order = np.argsort(-folded, kind="stable")
    u = np.maximum(_unrounded(folded[order], step), TINY)
    below = int(np.clip(len(u) // 5, *SPACINGS))
    most = min(int(TENTH * len(u)), len(u) - below - 1)
    if most < 1:
        return np.zeros(len(u), dtype=bool)
    m = np.arange(1, most + 1)
    sums = np.append(0.0, np.cumsum(np.arange(1, len(u)) * np.log(u[:-1] / u[1:])))
    spacing = (sums[m + below] - sums[m]) / below
    gap = np.log(u[m - 1] / u[m])
    limit = below * ((level / most) ** (-1 / below) - 1)  # F with 2 and 2 `below` degrees of freedom
    significant = m[(m * gap > limit * spacing) & (u[m - 1] >= GROSS)]
    found = np.zeros(len(u), dtype=bool)
    found[order[: significant.max(initial=0)]] = True
    return found


def _unrounded(u: Array, step: float) -> Array:
    """Return descending scores with equal ones spread evenly over the width of rounding."""
    _, place, number = np.unique(-u, return_inverse=True, return_counts=True)
    first = np.append(0, np.cumsum(number)[:-1])
    within = (np.arange(len(u)) - first[place] + 0.5) / number[place]
    return np.asarray(u + step * (0.5 - within))


def tail(folded: Array) -> tuple[float, float]:
    """Return where the largest tenth of absolute scores, (N,), begins, and 1 / alpha (Hill 1975) without the top three.

    Examples
    --------
    >>> pareto = 1 / (1 - (np.arange(1000) + 0.5) / 1000) ** 0.5
    >>> [round(value, 2) for value in tail(pareto)]
    [3.15, 0.5]
    """
    u = np.sort(np.maximum(folded, TINY))[::-1]
    below = min(max(int(TENTH * len(u)), SPACINGS[0]), len(u) - 1)
    ranks = np.arange(1, below + 1)
    normalized = ranks * np.log(u[:below] / u[1 : below + 1])  # each has mean 1 / alpha in a power law
    start = u[int(TENTH * len(u))]
    return float(start), float(normalized[TOP:].mean())


def is_heavy(folded: Array) -> bool:
    """Return whether the tails of absolute scores, (N,), are heavier than those of t with 1.25 degrees of freedom.

    The tail index is 1 for Cauchy variables. With fewer than 50 values it cannot be told.
    """
    return len(folded) >= 5 * SPACINGS[0] and tail(folded)[1] > 1 / HEAVY


def _step(folded: Array, column: Array) -> float:
    """Return the smallest distance of two values of the central half of a column, as a score."""
    low, middle, high = np.quantile(column, SIDES)
    apart = np.diff(np.unique(column[(column >= low) & (column <= high)]))
    apart = apart[apart > 1e-12 * (high - low)]
    reference = int(np.argmax(folded))
    away = abs(column[reference] - middle)
    return float(apart.min() / away * folded[reference]) if len(apart) and away > 0 else 0.0
