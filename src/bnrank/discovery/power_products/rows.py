"""The rows that power products are fitted to: gross outliers are looked for once, as given and in logarithms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import check_cv

from bnrank._core import validation
from bnrank.discovery.estimators import BottleneckRegressor
from bnrank.discovery.estimators.outliers import cleaned, named_rows
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import checked_by_scikit, in_memory


@dataclass(frozen=True)
class Rows:
    """A table as it is fitted, in all fits alike.

    Attributes
    ----------
    x, y : ndarray
        (n, d) and (n,), without rows that are left out, and with other values in place of single outliers.
    groups : array-like or None
        What is held out together, (n,).
    model : BottleneckRegressor
        The estimator, which keeps all of these rows, with the splits that are left of given ones.
    outliers : tuple of int
        The rows of the table with a value that was changed or left out.
    notes : tuple of str
        What was done, and the rows.
    """

    x: np.ndarray
    y: np.ndarray
    groups: Any
    model: BottleneckRegressor
    outliers: tuple[int, ...]
    notes: tuple[str, ...]


def fitted_rows(model: BottleneckRegressor, x: np.ndarray, y: np.ndarray, groups: Any) -> Rows:
    """Return the table without gross outliers, if the estimator is robust.

    Typing errors of positive columns that span decades are far in the values as given, or in the logarithms, and a
    single -999 hides that a column has logarithms. So outliers are first looked for in the values as given, and then,
    among the other rows, in the logarithms of what is positive.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.exp(rng.normal(size=(100, 2)))
    >>> y = x[:, 0] / x[:, 1]
    >>> y[3], y[7] = -999, 1e-9 * y[7]
    >>> fitted_rows(BottleneckRegressor(), x, y, None).outliers
    (3, 7)
    """
    plain = clone(model).set_params(robust=False)
    if not validation.flag(model.robust, "robust"):
        return Rows(x, y, groups, plain, (), ())
    first = cleaned(x, y[:, None])
    rows = np.flatnonzero(first.kept)
    values, output = first.x[rows], y[rows]  # with one output, its outliers are left out; tails have logarithms
    positive, above = (values > 0).all(axis=0), bool((output > 0).all())
    logs = np.where(positive, np.log(np.where(positive, values, 1.0)), values)
    target = np.log(output) if above else output
    second = cleaned(logs, target[:, None])
    with np.errstate(over="ignore"):
        values = np.where(second.x == logs, values, np.where(positive, np.exp(second.x), second.x))
    output = np.where(second.y[:, 0] == target, output, np.exp(second.y[:, 0]) if above else second.y[:, 0])
    kept = first.kept.copy()
    kept[rows] = second.kept
    changed = (first.x != x).any(axis=1)
    changed[rows[second.rows]] = True
    texts = {"left out as gross outliers": ~kept, "outliers replaced, or heavy tails of y shortened": changed & kept}
    notes = tuple(f"{text}: {named_rows(found)}" for text, found in texts.items() if found.any())
    outliers = tuple(int(row) for row in np.flatnonzero(~kept | changed))
    if kept.all():
        return Rows(values, output, groups, plain, outliers, notes)
    plain.set_params(cv=_splits(model.cv, x, y, groups, kept))
    if groups is not None:
        given = np.asarray(in_memory(groups, "groups"))
        validation.expect(given.shape == y.shape, "groups", f"shape {given.shape}", f"({len(y)},)")
        groups = given[kept]
    return Rows(values[second.kept], output[second.kept], groups, plain, outliers, notes)


def _splits(cv: Any, x: np.ndarray, y: np.ndarray, groups: Any, kept: np.ndarray) -> Any:
    """Return a number of folds as it is, and the splits of a splitter as pairs of indices of the rows that are kept."""
    if isinstance(cv, str | int | np.integer):
        return cv
    with checked_by_scikit("cv"):
        pairs = list(check_cv(cv, y).split(x, y, groups))
    left = Splits.from_pairs(pairs, len(x)).rows(np.flatnonzero(kept))
    validation.expect(len(left), "cv", "splits that hold out outliers only", "one that holds out another row")
    return [(np.flatnonzero(known), np.flatnonzero(out)) for known, out in zip(left.known, left.out, strict=True)]
