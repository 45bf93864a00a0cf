"""Rows as a text table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bnrank._core.terminal import Table

Row = Mapping[str, object]


def cell(value: object) -> str:
    """Return a value as text: four significant digits, a dash for None and NaN, words for truth values.

    Examples
    --------
    >>> cell(0.123456), cell(-0.0), cell(float("nan")), cell(True), cell(12)
    ('0.1235', '0', '–', 'yes', '12')
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
        return "–" if math.isnan(value) else f"{float(value) + 0.0:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(entry) for entry in value)
    return str(value)


def grid(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the headings, in order of appearance, and the cells, as text, of rows from column to value.

    A column that a row lacks is shown as a dash.
    """
    headings = list(dict.fromkeys(key for row in rows for key in row))
    return headings, [[cell(row.get(key)) for key in headings] for row in rows]


def table(rows: Sequence[Row], *, title: str | None = None, narrow: bool = True) -> Table:
    """Return a rich table of the rows; numbers are right-aligned.

    In a narrow table, headings longer than the numbers below them are broken at their spaces.

    Examples
    --------
    >>> table([{"layer": 1, "rank": 5}], title="ranks").row_count
    1
    """
    from bnrank._core.terminal import SIMPLE_HEAD, Table, Text

    headings, cells = grid(rows)
    result = Table(title=Text(title) if title else None, box=SIMPLE_HEAD)
    for i, (heading, numeric) in enumerate(zip(headings, numeric_columns(headings, cells), strict=True)):
        whole = max((len(word) for line in cells for word in line[i].split()), default=0)  # no word is cut
        broken = heading.replace(" ", "\n") if narrow and numeric and len(heading) > whole else heading
        result.add_column(Text(broken), justify="right" if numeric else "left", min_width=whole, no_wrap=numeric)
    for line in cells:
        result.add_row(*(Text(entry) for entry in line))
    return result


def render(rows: Sequence[Row], *, title: str | None = None) -> str:
    """Return the rows as plain text, one line per row, numbers right-aligned.

    Examples
    --------
    >>> print(render([{"layer": 1, "rank": 5}, {"layer": 2, "rank": 12}]))
    layer  rank
        1     5
        2    12
    """
    from bnrank._core.terminal import Console

    result = table(rows, title=title, narrow=False)
    result.box, result.pad_edge, result.padding = None, False, (0, 2, 0, 0)
    result.title_justify, result.title_style = "left", ""
    console = Console(width=10_000, color_system=None)
    with console.capture() as capture:
        console.print(result)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


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
