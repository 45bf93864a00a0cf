"""Rows as a table for the terminal, and the rows of profiles, histories and claims."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import rich.box
import rich.table
import rich.text
import xarray as xr

__all__ = [
    "cell",
    "claim_rows",
    "grid",
    "layer_rows",
    "member_rows",
    "noted_rows",
    "numeric_columns",
    "table",
]

Row = Mapping[str, object]


def cell(value: object) -> str:
    """Write one value: four significant digits, a dash for None and NaN, words for truth values.

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
        If a column is asked for that no row has.
    """
    present = list(dict.fromkeys(key for row in rows for key in row))
    headings = {key: key for key in present} if columns is None else dict(_pairs(columns))
    for key in headings:
        if rows and key not in present:
            raise ValueError(f"columns: got {key!r}, expected some of {present}")
    return list(headings.values()), [[cell(row.get(key)) for key in headings] for row in rows]


def table(
    rows: Sequence[Row], columns: Sequence[str] | Mapping[str, str] | None = None, *, title: str | None = None
) -> rich.table.Table:
    """Return a rich table of the rows; numbers are right-aligned. See `grid` for the arguments.

    Examples
    --------
    >>> table([{"layer": 1, "rank": 5}], title="ranks").row_count
    1
    """
    headings, cells = grid(rows, columns)
    result = rich.table.Table(title=rich.text.Text(title) if title else None, box=rich.box.SIMPLE_HEAD)
    for heading, numeric in zip(headings, numeric_columns(headings, cells), strict=True):
        result.add_column(rich.text.Text(heading), justify="right" if numeric else "left")
    for line in cells:
        result.add_row(*(rich.text.Text(entry) for entry in line))
    return result


def layer_rows(profile: xr.Dataset) -> list[dict[str, object]]:
    """Return one row per layer of a profile: number, name, ranks, largest singular value, nonlinearity, norm."""
    names = profile.coords.get("layer_name")
    rows: list[dict[str, object]] = []
    for i, layer in enumerate(profile["layer"].values.tolist()):
        row: dict[str, object] = {"layer": layer}
        if names is not None:
            row["name"] = str(names.values[i])
        for variable, heading in _LAYER_COLUMNS.items():
            if variable in profile:
                entry = profile[variable].isel(layer=i).values
                number = float(np.nanmax(entry)) if np.isfinite(entry).any() else math.nan
                row[heading] = int(number) if "rank" in variable and math.isfinite(number) else number
        rows.append(row)
    return rows


def member_rows(history: xr.Dataset) -> list[dict[str, object]]:
    """Return one row per member of a history: seed, ridge, step size, status, and its last recorded values."""
    rows: list[dict[str, object]] = []
    for i, member in enumerate(history["member"].values.tolist()):
        row: dict[str, object] = {"member": member}
        for name in ("seed", "ridge", "lr", "status"):
            if name in history.coords and history.coords[name].dims == ("member",):
                row[name] = history.coords[name].values[i]
        for name, heading in _CURVE_COLUMNS.items():
            if name in history and history[name].dims == ("member", "step"):
                values = np.asarray(history[name].values[i], dtype=float)
                finite = np.flatnonzero(np.isfinite(values))
                if len(finite) and "last step" not in row:
                    row["last step"] = history["step"].values[finite[-1]]
                row[heading] = float(values[finite[-1]]) if len(finite) else math.nan
        rows.append(row)
    return rows


def noted_rows(profile: xr.Dataset, name: str) -> list[dict[str, object]]:
    """Return the rows of an attribute that is a JSON list of objects: ``skipped`` layers with reasons, or ``notes``."""
    entries: Any = profile.attrs.get(name) or []
    if isinstance(entries, str):
        entries = json.loads(entries)
    return [dict(entry) for entry in entries]


def claim_rows(claims: Iterable[Any]) -> list[dict[str, object]]:
    """Return one row per claim (anything with ``name``, ``passed``, ``measured`` and ``expected``)."""
    words = {True: "pass", False: "fail"}
    return [
        {
            "result": "not decided" if claim.passed is None else words[bool(claim.passed)],
            "claim": claim.name,
            "measured": "NaN" if _is_nan(claim.measured) else claim.measured,
            "expected": claim.expected,
        }
        for claim in claims
    ]


_LAYER_COLUMNS = {
    "weight_rank": "rank of W",
    "weight_singular_values": "s₁ of W",
    "activation_singular_values": "s₁ of activations",
    "nonlinearity": "nonlinearity",
    "parameter_norm": "‖θ‖² of the layer",
}
_CURVE_COLUMNS = {"loss": "loss", "cost": "cost", "parameter_norm": "‖θ‖²", "gradient_norm": "gradient norm"}


def _is_nan(value: object) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _pairs(columns: Sequence[str] | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return columns.items() if isinstance(columns, Mapping) else ((key, key) for key in columns)


def numeric_columns(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[bool]:
    """Say which columns hold numbers only (dashes aside), with or without commas between thousands."""
    columns = [[line[i] for line in cells if line[i] != "–"] for i in range(len(headings))]
    return [bool(column) and all(_is_number(entry) for entry in column) for column in columns]


def _is_number(entry: str) -> bool:
    try:
        float(entry.replace(",", ""))
    except ValueError:
        return False
    return True
