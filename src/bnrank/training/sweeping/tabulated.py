"""The results of a sweep as a dataset over the axes of its grid, or as a table with one row per setting."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank.training.sweeping.axes import Grid, coordinate
from bnrank.training.sweeping.folder import WAITING, SweepFolder

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SCALARS = ("loss", "cost", "parameter_norm", "gradient_norm", "balance_residual", "steps", "bottleneck_rank", "seconds")
TEXTS = {"status": WAITING, "error": "", "worker": ""}  # of networks without a row


def dataset(folder: SweepFolder, grid: Grid, keys: Sequence[str], attributes: Mapping[str, Any]) -> xr.Dataset:
    """Return the rows of a dense grid as one dataset."""
    import xarray as xr

    shape, names = tuple(len(values) for values in grid.axes.values()), tuple(grid.axes)
    layers = max(setting["depth"] for setting in grid.settings)
    rows = {place: folder.rows[key] for place, key in zip(grid.places, keys, strict=True) if key in folder.rows}
    lines = [line for row in rows.values() for line in row.get("weight_singular_values", ())]
    indices = max(map(len, lines), default=1)
    data: dict[str, np.ndarray[Any, Any]] = {name: np.full(shape, np.nan) for name in SCALARS}
    data |= {name: np.full(shape, missing, dtype=object) for name, missing in TEXTS.items()}
    spectra = np.full((*shape, layers, indices), np.nan)
    for place, row in rows.items():
        for name in data.keys() & row.keys():
            data[name][place] = np.nan if row[name] is None else row[name]
        for layer, line in enumerate(row.get("weight_singular_values", ())):
            spectra[place][layer, : len(line)] = line
    variables: dict[str, Any] = {
        named(name, grid.axes): (names, np.array(values.tolist())) for name, values in data.items()
    }
    variables["weight_singular_values"] = ((*names, "layer", "index"), spectra)
    coords: dict[str, Any] = {name: coordinate(values) for name, values in grid.axes.items()}
    coords |= {"layer": np.arange(1, layers + 1), "index": np.arange(1, indices + 1)}
    return xr.Dataset(variables, coords, attrs=dict(attributes))


def frame(
    folder: SweepFolder, points: Sequence[Mapping[str, Any]], keys: Sequence[str], attributes: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the rows of a list of settings as one table, in their order."""
    import pandas as pd

    rows = []
    for point, key in zip(points, keys, strict=True):
        row = folder.rows.get(key, {})
        texts = {name: row.get(name, missing) for name, missing in TEXTS.items()}
        numbers = {name: np.nan if row.get(name) is None else row[name] for name in SCALARS}
        rows.append(placed(point, {"status": texts.pop("status"), **numbers, **texts}))
    found = pd.DataFrame(rows)
    found.attrs = dict(attributes)
    return found


def placed(point: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of results after the place in the grid."""
    return {**point, **{named(name, point): value for name, value in row.items()}}


def named(name: str, axes: Collection[str]) -> str:
    """Return the name of a result, "final_" before it where an axis has the same.

    Examples
    --------
    >>> named("loss", ["steps"]), named("steps", ["steps"])
    ('loss', 'final_steps')
    """
    return f"final_{name}" if name in axes else name
