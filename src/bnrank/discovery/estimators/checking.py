"""What comes in: missing and categorical entries named, constant columns and duplicated rows found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

__all__ = ["constant_columns", "groups_of_rows", "names_of", "read_table", "refuse_tables_by_name"]

SHOWN = 5  # columns named in an error, at most
HUGE, TINY = 1e150, 1e-150  # whose squares are no floats
FEW_VALUES = 0.5  # share of the rows whose outputs are seen at other inputs, from which outputs agree by chance
DISAGREE = 0.1  # share of the repeated inputs with several outputs, from which a table has replicates
CHANCE = 0.01  # of numbers of rows with a common divisor, below which a table is taken to be there several times
REFUSED = {
    "text": "text or categories{}, expected numbers; encode them first, with sklearn.preprocessing.OneHotEncoder, say",
    "dates": "dates or times{}, expected numbers; take differences in days, say",
    "missing": "missing values (NaN){}, expected none; fill them in with sklearn.impute, or leave the rows out",
    "infinite": "values that are infinite (infinity or beyond 1e150){}, expected finite ones",
}


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
    """Refuse text, dates, missing, infinite and huge entries of a data frame or an array, naming the columns.

    Raises
    ------
    ValueError
        If a column holds text, categories or dates, or has entries that are missing, infinite or beyond 1e150 (whose
        squares are beyond what a float can hold).

    Examples
    --------
    >>> import numpy as np
    >>> refuse_tables_by_name(np.array([[1.0, np.nan], [2.0, 3.0]]), "X")
    Traceback (most recent call last):
    ValueError: X: got missing values (NaN) in column 1 (1 of 2 rows), expected none; fill them in ...
    """
    found: dict[str, list[str]] = {"text": [], "dates": [], "missing": [], "infinite": []}
    for name, column in _columns(table):
        kind, entries = _kind(column)
        if kind in ("text", "dates"):
            found[kind].append(name)
        elif kind == "numbers":
            count = f"{name} ({{}} of {len(entries)} rows)".strip()
            if missing := int(np.isnan(entries).sum()):
                found["missing"].append(count.format(missing))
            if infinite := int((np.abs(entries) > HUGE).sum()):
                found["infinite"].append(count.format(infinite))
    for kind, message in REFUSED.items():
        if found[kind]:
            where = f" in column {_listed(found[kind])}" if np.ndim(table) != 1 else f" {_listed(found[kind])}".rstrip()
            raise ValueError(f"{argument}: got {message.format(where)}")


def _columns(table: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        yield from ((str(name), table.iloc[:, i]) for i, name in enumerate(table.columns))
        return
    if isinstance(table, list | tuple):
        try:
            table = np.asarray(table)
        except ValueError:  # rows of unlike lengths, which scikit-learn refuses
            return
    if getattr(table, "ndim", 0) == 1 and hasattr(table, "dtype"):
        yield "", table
    elif isinstance(table, np.ndarray) and table.ndim == 2:
        yield from ((str(i), column) for i, column in enumerate(table.T))


def _kind(column: Any) -> tuple[str, np.ndarray]:
    """Return "text", "dates", "numbers" or "other", and the numbers as floats."""
    name = str(column.dtype)
    if name.startswith(("category", "str", "<U", "|S")) or (
        name == "object" and any(isinstance(entry, str | bytes) for entry in column)
    ):
        return "text", np.zeros(0)
    if name.startswith(("datetime", "timedelta", "period")):
        return "dates", np.zeros(0)
    if name.startswith("complex"):  # which scikit-learn refuses
        return "other", np.zeros(0)
    try:
        if hasattr(column, "to_numpy"):
            return "numbers", column.to_numpy(dtype=np.float64, na_value=np.nan)
        return "numbers", np.asarray(column).astype(np.float64)
    except (TypeError, ValueError):  # other objects: scikit-learn has its say
        return "other", np.zeros(0)


def names_of(table: Any, prefix: str, number: int) -> list[str]:
    """Return the names of the columns of a data frame or series; else prefix0, prefix1, ...

    Examples
    --------
    >>> names_of([[1.0, 2.0]], "y", 2)
    ['y0', 'y1']
    """
    if hasattr(table, "dtypes") and hasattr(table, "columns"):
        return [str(name) for name in table.columns]
    if number == 1 and getattr(table, "name", None) is not None:
        return [str(table.name)]
    return [f"{prefix}{i}" for i in range(number)]


def constant_columns(table: np.ndarray) -> np.ndarray:
    """Return which columns do not vary by more than rounding, shape (d,), bool.

    Examples
    --------
    >>> constant_columns(np.array([[1.0, 0.1], [2.0, 0.1]])).tolist()
    [False, True]
    """
    spread = table.max(axis=0) - table.min(axis=0)
    return spread <= np.maximum(10 * np.finfo(np.float64).eps * np.abs(table).max(axis=0), TINY)


def groups_of_rows(x: np.ndarray, y: np.ndarray, *, labels: bool = False) -> np.ndarray:
    """Return for every row the number of its group, (N,), counted from 0: copies of a row are in one group.

    Copies must not be on both sides of a cross-validation, where they would be predicted from themselves, and do not
    pass for more evidence. They are rows with the same inputs and outputs. Rows with the same inputs and other outputs
    are replicates, as in a factorial design, and each is evidence of its own: its noise is fresh, so that it may be
    held out while others at the same inputs are learned from. What is shown by that is how well y is predicted at the
    inputs of the design, not between them.

    Where outputs take few values (classes, grades), replicates agree by chance and look like copies. If most rows have
    an output that is seen at other inputs too, or with ``labels``, every row is a group, provided that of the inputs
    seen more than once one in ten or more has several outputs; copies of single rows of such a table cannot be told
    from replicates. Copies of all of it can: if every row is there m, 2 m, 3 m, ... times, m of them are a group. (Such
    numbers come about by chance with probability m^-(pairs - inputs), where the number of rows of each input is given,
    as in a balanced design; that must be less than 1 percent.)

    Parameters
    ----------
    x, y : ndarray
        (N, d_in); (N, d_out), or class numbers (N,).
    labels : bool
        Whether the outputs are classes.

    Examples
    --------
    >>> x = np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> groups_of_rows(x, np.array([[2.0], [5.0], [2.0], [3.0]])).tolist()
    [1, 0, 1, 2]
    >>> groups_of_rows(x, np.array([1, 0, 1, 0]), labels=True).tolist()
    [0, 1, 2, 3]
    """
    inputs, rows = _numbered(x)
    if len(rows) == len(x):
        return inputs
    outputs, _ = _numbered(y.reshape(len(y), -1))
    groups, size = _numbered(np.stack([inputs, outputs], axis=1))
    first = np.unique(groups, return_index=True)[1]
    several = np.bincount(inputs[first], minlength=len(rows)) > 1
    elsewhere = np.bincount(outputs[first])[outputs[first]] > 1
    few_values = labels or size[elsewhere].sum() > FEW_VALUES * len(x)
    copies = int(np.gcd.reduce(size))
    if copies ** float(len(rows) - len(size)) > CHANCE:
        copies = 1
    if few_values and several.sum() >= DISAGREE * (rows > copies).sum():
        return _in_sets(groups, copies) if copies > 1 else np.arange(len(x))
    return groups


def _in_sets(groups: np.ndarray, size: int) -> np.ndarray:
    """Return groups cut into sets of so many rows each, counted from 0."""
    sets = np.empty(len(groups), dtype=int)
    sets[np.argsort(groups, kind="stable")] = np.arange(len(groups)) // size
    return sets


def _numbered(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of every row among those that differ, in ascending order, and how often each is there."""
    _, numbers, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    return numbers.reshape(-1), counts


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
