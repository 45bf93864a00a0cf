"""What comes in: missing and categorical entries named, constant columns and duplicated rows found."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

__all__ = ["constant_columns", "groups_of_rows", "read_table", "refuse_tables_by_name"]

SHOWN = 5  # columns named in an error, at most


def read_table(estimator: Any, x: Any, *, reset: bool) -> np.ndarray:
    """Return inputs as a float64 array of shape (N, d_in), checked as scikit-learn does.

    Parameters
    ----------
    estimator : BaseEstimator
        Whose names and number of columns they must have, or get where ``reset``.
    x : array-like or data frame
        The inputs.
    reset : bool
        Whether this is what the estimator is fitted to; then at least two rows are asked for.

    Raises
    ------
    TypeError, ValueError
        If entries are missing, infinite or categorical (the columns are named), or the shape is another.
    """
    refuse_tables_by_name(x, "X")
    minimum = 2 if reset else 1
    return validate_data(estimator, x, reset=reset, dtype=np.float64, ensure_min_samples=minimum)


def refuse_tables_by_name(table: Any, argument: str) -> None:
    """Refuse categorical and missing entries of a data frame or an array of numbers, naming the columns.

    Raises
    ------
    ValueError
        If a column holds text or categories, or has missing entries.

    Examples
    --------
    >>> import numpy as np
    >>> refuse_tables_by_name(np.array([[1.0, np.nan], [2.0, 3.0]]), "X")
    Traceback (most recent call last):
    ValueError: X: got missing values (NaN) in column 1 (1 of 2 rows), expected none; fill them in ...
    """
    names, text = [], []
    missing = np.zeros(0, dtype=int)
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        names = [str(name) for name in table.columns]
        text = [names[i] for i, kind in enumerate(table.dtypes) if _is_text(table.iloc[:, i], kind)]
        missing = np.asarray(table.isna().sum())
    elif isinstance(table, np.ndarray) and table.ndim == 2:
        names = [str(i) for i in range(table.shape[1])]
        if table.dtype.kind in "OSU":
            text = [names[i] for i in range(len(names)) if any(isinstance(v, str | bytes) for v in table[:, i])]
        elif table.dtype.kind == "f":
            missing = np.isnan(table).sum(axis=0)
    if text:
        raise ValueError(
            f"{argument}: got text or categories in column {_listed(text)}, expected numbers; encode them first, with "
            "sklearn.preprocessing.OneHotEncoder, say"
        )
    if missing.any():
        found = [f"{names[i]} ({missing[i]} of {len(table)} rows)" for i in np.flatnonzero(missing)]
        raise ValueError(
            f"{argument}: got missing values (NaN) in column {_listed(found)}, expected none; fill them in with "
            "sklearn.impute, or leave the rows out"
        )


def constant_columns(table: np.ndarray) -> np.ndarray:
    """Return which columns do not vary by more than rounding, shape (d,), bool.

    Examples
    --------
    >>> constant_columns(np.array([[1.0, 0.1], [2.0, 0.1]])).tolist()
    [False, True]
    """
    spread = table.max(axis=0) - table.min(axis=0)
    return spread <= 10 * np.finfo(np.float64).eps * np.abs(table).max(axis=0)


def groups_of_rows(x: np.ndarray) -> np.ndarray:
    """Return for every row the number of its group, shape (N,): rows with the same inputs are in one group.

    Copies of a row must not be on both sides of a cross-validation, where they would be predicted from themselves.

    Examples
    --------
    >>> groups_of_rows(np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])).tolist()
    [1, 0, 1]
    """
    return np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)


def _is_text(column: Any, kind: Any) -> bool:
    if str(kind) == "object":
        return any(isinstance(entry, str) for entry in column)
    return str(kind).startswith(("category", "str"))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
