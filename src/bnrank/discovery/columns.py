"""Names of the columns of tables, as pandas has them: text, integers, or tuples of several levels."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrank._core import validation


def columns_of(table: Any, prefix: str, number: int) -> pd.Index:
    """Return the names of the columns of a DataFrame or Series; otherwise prefix0, prefix1, ...

    Text, numbers and tuples of these (the levels of a MultiIndex) are kept as they are; other labels, such as dates,
    become text. The numbers 0, 1, ..., which pandas gives to columns without names, are kept too.

    Parameters
    ----------
    table : array-like, DataFrame or Series
        The table.
    prefix : str
        Start of the names where the table has none.
    number : int
        Number of columns.

    Examples
    --------
    >>> columns_of([[1.0, 2.0]], "y", 2).tolist()
    ['y0', 'y1']
    >>> columns_of(pd.DataFrame([[1.0, 2.0]], columns=[400, 410]), "x", 2).tolist()
    [400, 410]
    """
    given = _given(table)
    if given is None and number == 1 and getattr(table, "name", None) is not None:
        given = pd.Index([table.name], tupleize_cols=False)
    if given is None or len(given) != number:
        return pd.Index([f"{prefix}{i}" for i in range(number)])
    return index_of([_plain(label) for label in given], [_plain(name) for name in given.names])


def index_of(labels: Sequence[Any], names: Sequence[Any]) -> pd.Index:
    """Return labels as an Index with the names of its levels; a MultiIndex where there are several levels.

    Examples
    --------
    >>> index_of([("sepal", "length"), ("sepal", "width")], ["part", "size"]).nlevels
    2
    """
    if len(names) > 1:
        return pd.MultiIndex.from_tuples(labels, names=names)
    return pd.Index(labels, name=names[0], tupleize_cols=False)


def texts(columns: pd.Index, prefix: str = "") -> list[str]:
    """Return the names of columns as text; levels are joined by a slash.

    Where a prefix is given, it precedes the numbers 0, 1, ..., which pandas gives to columns without names.

    Examples
    --------
    >>> texts(pd.MultiIndex.from_tuples([("sepal", 1), ("petal", 1)])), texts(pd.RangeIndex(2), "x")
    (['sepal/1', 'petal/1'], ['x0', 'x1'])
    """
    if _is_default(columns):
        return [f"{prefix}{label}" for label in columns]
    return [text_of(label) for label in columns]


def text_of(label: Any) -> str:
    """Return the name of a column as text; levels are joined by a slash.

    Examples
    --------
    >>> text_of(410), text_of(("sepal", "length"))
    ('410', 'sepal/length')
    """
    return "/".join(map(str, label)) if isinstance(label, tuple) else str(label)


def expect_columns(table: Any, argument: str, fitted: pd.Index) -> None:
    """Raise ValueError unless a DataFrame has the columns of the fit, in the same order.

    Scikit-learn compares names only where all are text; this compares the others. Tables without names pass.
    """
    given = _given(table)
    if given is None or _is_default(given) or any(all(isinstance(n, str) for n in names) for names in (given, fitted)):
        return
    given = columns_of(table, "x", len(given))
    differ = next((i for i, pair in enumerate(zip(given, fitted, strict=False)) if pair[0] != pair[1]), None)
    if differ is not None:
        found = f"column {text_of(given[differ])} in place {differ}"
        validation.expect(False, argument, found, f"{text_of(fitted[differ])}, as in the fit (same names, same order)")


def framed(values: np.ndarray, columns: pd.Index, rows: Any, kind: str) -> Any:
    """Return values, (N, d) or (N,), as a DataFrame with the rows of another; unchanged where ``kind`` is "default".

    Parameters
    ----------
    values : ndarray
        The values.
    columns : Index
        The names of the columns.
    rows : array-like or DataFrame
        The table with the same rows, whose index is taken where it is of pandas.
    kind : {"default", "pandas", "polars"}
        As in ``set_output(transform=...)`` of scikit-learn.

    Examples
    --------
    >>> framed(np.ones(1), pd.Index(["price"]), pd.DataFrame({"size": [70.0]}, index=["house"]), "pandas")
           price
    house    1.0
    """
    if kind == "default":
        return values
    table = values.reshape(len(values), -1)
    if kind == "polars":
        return importlib.import_module("polars").DataFrame(table, schema=texts(columns), orient="row")
    index = rows.index if isinstance(rows, pd.DataFrame | pd.Series) else None
    return pd.DataFrame(table, index=index, columns=columns)


def _given(table: Any) -> pd.Index | None:
    """Return the columns of a DataFrame; None for other tables."""
    if not (hasattr(table, "dtypes") and hasattr(table, "columns")):
        return None
    return table.columns if isinstance(table.columns, pd.Index) else pd.Index(list(table.columns))


def _is_default(columns: pd.Index) -> bool:
    return columns.nlevels == 1 and list(columns) == list(range(len(columns)))


def _plain(label: Any) -> Any:
    if isinstance(label, tuple):
        return tuple(_plain(part) for part in label)
    label = label.item() if isinstance(label, np.generic) else label
    return label if label is None or isinstance(label, bool | int | float | str) else str(label)
