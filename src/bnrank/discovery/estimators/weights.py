"""The weights of rows: their validation, and weighted means and spreads."""

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from bnrank._core import validation

Array = np.ndarray
NEGLIGIBLE = 1e-9  # fraction of the largest weight below which a row counts as absent


def weights_of(given: Any, rows: int) -> Array | None:
    """Return ``sample_weight`` as float64, (N,), of mean 1 over the rows above 0; None where all rows count alike.

    Weights below 1e-9 of the largest become 0. Such rows have no influence on a fit, but a column that varies only in
    them would be divided by next to nothing.

    Examples
    --------
    >>> weights_of([1.0, 3.0, 0.0], 3).tolist()
    [0.5, 1.5, 0.0]
    >>> weights_of([1.0, 1.0, 1e-40], 3).tolist()
    [1.0, 1.0, 0.0]
    >>> weights_of(np.full(4, 0.2), 4) is None
    True
    """
    if given is None:
        return None
    name, shape = "sample_weight", np.asarray(given).shape
    validation.expect(shape == (rows,), name, f"shape {shape}", f"({rows},), one weight for each row")
    values = check_array(given, ensure_2d=False, dtype=np.float64, input_name=name)
    negative = int((values < 0).sum())
    validation.expect(not negative, name, f"negative weights ({negative} of {rows} rows)", "at least 0")
    largest = values.max()
    validation.expect(largest > 0, name, "zeros only", "weights above 0 in at least 2 rows")
    values = np.where(values < NEGLIGIBLE * largest, 0.0, values / largest)
    positive = int((values > 0).sum())
    validation.expect(positive > 1, name, f"a weight above 0 in {positive} row", "in at least 2 rows")
    return uneven(values / values[values > 0].mean())


def uneven(weights: Array | None) -> Array | None:
    """Return the weights, or None where they are equal, so that nothing differs from a table without them.

    Examples
    --------
    >>> uneven(np.array([2.0, 2.0])) is None
    True
    """
    return None if weights is None or len(weights) == 0 or (weights == weights[0]).all() else weights


def effective(weights: Array | None, groups: Array) -> float:
    """Return the effective number of groups of rows (Kish 1965): (sum_g w_g)^2 / sum_g w_g^2, w_g the sum of a group.

    A mean over groups with these weights is as precise as one over so many with equal weights, where their values have
    the same variance.

    Examples
    --------
    >>> effective(np.array([1.0, 1.0, 2.0, 4.0]), np.array([0, 0, 1, 2]))
    2.6666666666666665
    """
    if weights is None:
        return float(groups.max()) + 1
    sums = np.bincount(groups, weights)
    return float(np.square(sums.sum()) / np.square(sums).sum())


def spread(table: Array, weights: Array | None) -> Array:
    """Return the standard deviation of every column, (d,).

    Examples
    --------
    >>> spread(np.array([[0.0], [1.0]]), np.array([1.0, 3.0]))
    array([0.4330127])
    """
    if weights is None:
        return np.asarray(table.std(axis=0))
    mean = np.average(table, axis=0, weights=weights)
    return np.asarray(np.sqrt(np.average(np.square(table - mean), axis=0, weights=weights)))


def as_factors(weights: Array | None) -> Tensor | None:
    """Return the weights as a column of factors of mean 1, (N, 1), float64.

    Examples
    --------
    >>> as_factors(np.array([1.0, 3.0]))
    tensor([[0.5000],
            [1.5000]], dtype=torch.float64)
    """
    return None if weights is None else torch.from_numpy(weights / weights.mean())[:, None]


def mean_of(table: Tensor, factors: Tensor | None) -> Tensor:
    """Return the mean of every column, (d,), or of one column (N,), with factors of mean 1 as weights.

    Examples
    --------
    >>> mean_of(torch.tensor([[0.0], [1.0]], dtype=torch.float64), as_factors(np.array([1.0, 3.0])))
    tensor([0.7500], dtype=torch.float64)
    """
    if factors is None:
        return table.mean(0)
    return (table * (factors if table.ndim > 1 else factors[:, 0])).mean(0)


def drawn(weights: Array, number: int) -> Array:
    """Return how often every row occurs in a systematic sample of ``number`` rows in proportion to weights, (N,).

    Every row occurs as often as its share of the sum of the weights, rounded up or down, and rows of similar weight are
    represented evenly, since they are next to each other in the order of the sample (Madow 1949).

    Examples
    --------
    >>> drawn(np.array([4.0, 1.0, 1.0, 2.0]), 4).tolist()
    [2, 1, 0, 1]
    """
    order = np.argsort(weights, kind="stable")
    ends = np.cumsum(weights[order])
    places = np.searchsorted(ends, (np.arange(number) + 0.5) * (ends[-1] / number))
    return np.bincount(order[np.minimum(places, len(weights) - 1)], minlength=len(weights))
