"""Rows of text in a dataset: coordinates along a dimension of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def attach(dataset: xr.Dataset, dimension: str, found: Sequence[Mapping[str, str]]) -> xr.Dataset:
    """Return the dataset with one string coordinate per column, after the rows that it has along the dimension.

    Columns are named ``{dimension}_{key}``. Without rows the dataset has no such dimension.

    Examples
    --------
    >>> import xarray as xr
    >>> attach(xr.Dataset(), "skipped", [{"name": "2", "reason": "no weights"}])["skipped_reason"].values.tolist()
    ['no weights']
    """
    every = [*rows(dataset, dimension), *found]
    columns = {key: np.array([row[key] for row in every], dtype=str) for key in (every[0] if every else ())}
    held = dataset.drop_dims(dimension, errors="ignore")
    return held.assign_coords({f"{dimension}_{key}": (dimension, column) for key, column in columns.items()})


def rows(dataset: xr.Dataset, dimension: str) -> list[dict[str, str]]:
    """Return the rows of text along a dimension, as `attach` wrote them; none without it.

    Examples
    --------
    >>> import xarray as xr
    >>> rows(attach(xr.Dataset(), "skipped", [{"name": "2", "reason": "no weights"}]), "skipped")
    [{'name': '2', 'reason': 'no weights'}]
    """
    names = [str(name) for name in dataset.coords if dataset[name].dims == (dimension,)]
    lines = zip(*(map(str, dataset[name].values) for name in names), strict=True)
    return [dict(zip((name.removeprefix(f"{dimension}_") for name in names), line, strict=True)) for line in lines]


def grouped(dataset: xr.Dataset, dimension: str, key: str) -> dict[str, str]:
    """Return the texts in a column along a dimension, with the names of the rows that have it, see `some`.

    Examples
    --------
    >>> import xarray as xr
    >>> rows = [{"name": name, "reason": "bias"} for name in "abcd"]
    >>> grouped(attach(xr.Dataset(), "skipped", rows), "skipped", "reason")
    {'bias': 'a, b and 2 others'}
    """
    groups: dict[str, list[str]] = {}
    for row in rows(dataset, dimension):
        groups.setdefault(row[key], []).append(row["name"])
    return {text: some(names) for text, names in groups.items()}


def some(names: Sequence[str]) -> str:
    """Return the first two names, and how many others there are.

    Examples
    --------
    >>> some(["a", "b", "c", "d"])
    'a, b and 2 others'
    """
    return ", ".join(names[:2]) + (f" and {len(names) - 2} others" if len(names) > 2 else "")
