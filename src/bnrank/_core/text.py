"""Rows as a text table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bnrank._core import validation

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, object]


def cell(value: object) -> str:
    """Return a value as text: four significant digits, a dash for None and NaN, words for truth values.

    Examples
    --------
    >>> cell(0.123456), cell(float("nan")), cell(True), cell(12)
    ('0.1235', '–', 'yes', '12')
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return "–" if math.isnan(value) else f"{float(value):.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(entry) for entry in value)
    return str(value)


def grid(
    rows: Sequence[Row], columns: Sequence[str] | Mapping[str, str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the cells, as text, of rows given as mappings.

    Parameters
    ----------
    rows : sequence of mappings
        One mapping per row, from column to value; a column that a row lacks is shown as a dash.
    columns : sequence of str or mapping, optional
        Which columns, in which order; a mapping also gives their headings. Default: all, in order of appearance.

    Raises
    ------
    ValueError
        If no row has one of the columns.
    """
    present = list(dict.fromkeys(key for row in rows for key in row))
    headings = {key: key for key in present} if columns is None else dict(_pairs(columns))
    for key in headings:
        validation.expect(not (rows and key not in present), "columns", f"{key!r}", f"some of {present}")
    return list(headings.values()), [[cell(row.get(key)) for key in headings] for row in rows]


def table(
    rows: Sequence[Row], columns: Sequence[str] | Mapping[str, str] | None = None, *, title: str | None = None
) -> Table:
    """Return a rich table of the rows; numbers are right-aligned. See `grid` for the arguments.

    Examples
    --------
    >>> table([{"layer": 1, "rank": 5}], title="ranks").row_count
    1
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    headings, cells = grid(rows, columns)
    result = Table(title=Text(title) if title else None, box=SIMPLE_HEAD)
    for heading, numeric in zip(headings, numeric_columns(headings, cells), strict=True):
        result.add_column(Text(heading), justify="right" if numeric else "left")
    for line in cells:
        result.add_row(*(Text(entry) for entry in line))
    return result


def render(
    rows: Sequence[Row], columns: Sequence[str] | Mapping[str, str] | None = None, *, title: str | None = None
) -> str:
    """Return the rows as plain text, one line per row, numbers right-aligned. See `grid` for the arguments.

    Examples
    --------
    >>> print(render([{"layer": 1, "rank": 5}, {"layer": 2, "rank": 12}]))
    layer  rank
        1     5
        2    12
    """
    from rich.console import Console

    result = table(rows, columns, title=title)
    result.box, result.pad_edge, result.padding = None, False, (0, 2, 0, 0)
    result.title_justify, result.title_style = "left", ""
    console = Console(width=10_000, color_system=None)
    with console.capture() as capture:
        console.print(result)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _pairs(columns: Sequence[str] | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return columns.items() if isinstance(columns, Mapping) else ((key, key) for key in columns)


def numeric_columns(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns contain only numbers and dashes, with or without thousands separators."""
    columns = [[line[i] for line in cells if line[i] != "–"] for i in range(len(headings))]
    return [bool(column) and all(_is_number(entry) for entry in column) for column in columns]


def _is_number(entry: str) -> bool:
    try:
        float(entry.replace(",", ""))
    except ValueError:
        return False
    return True
