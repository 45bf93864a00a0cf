"""Intervals of means and slopes over seeds."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def interval(values: Array) -> tuple[float, float, float]:
    """Return the mean and its 95 percent interval (Student's t), infinite for a single value.

    The bootstrap of three to six values is too narrow.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, -np.inf, np.inf
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half


def slopes(x: Array, y: Array) -> Array:
    """Return the slope of the least-squares line for every row of y, (rows, len(x))."""
    apart = np.asarray(x, dtype=np.float64) - np.mean(x)
    return np.asarray(y, dtype=np.float64) @ apart / (apart @ apart)
