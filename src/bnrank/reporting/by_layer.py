"""A profile in a few lines: its headline and a table of its layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bnrank._core import validation
from bnrank._core.content import Fold, Part, Table
from bnrank._core.results import Printed
from bnrank.measures import describe
from bnrank.measures.profiles import UNMEASURED
from bnrank.measures.usage import FEW, LEAST

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["LayerTable", "headline", "layer_rows", "layer_table"]

_LAYER_COLUMNS = {
    "full_rank": "size of W",
    "weight_rank": "rank of W",
    "weight_relative_rank": "relative rank of W",
    "stable_rank": "stable rank of W",
    "entropy_rank": "entropy rank of W",
    "weight_singular_values": "s₁ of W",
    "activation_singular_values": "s₁ of activations",
    "units": "units",
    "dimension_95": "dimension at 95 %",
    "dimension_99": "dimension at 99 %",
    "dead_units": "dead units",
    "nonlinearity": "nonlinearity",
    "parameter_norm": "‖θ‖² of the layer",
    "subnormals": "subnormal weights",
}
_COUNTS = {"weight_rank", "weight_relative_rank", "full_rank", "subnormals", "units", "dead_units"}
_COUNTS |= {"dimension_95", "dimension_99"}
MAX_REMARKS = 5  # on a terminal


class LayerTable(Printed):
    """A profile in a few lines; made by :func:`bnrank.layer_table`.

    Attributes
    ----------
    profile : xarray.Dataset
        The profile.
    rows : list of dict
        One row per layer: name, ranks, largest singular values, dimensions, nonlinearity, norm.
    remarks : list of str
        What :func:`describe` returns.

    Raises
    ------
    TypeError, ValueError
        If it is no profile.
    """

    def __init__(self, profile: xr.Dataset) -> None:
        self.rows, self.remarks, self.profile = layer_rows(profile), describe(profile), profile

    @property
    def headline(self) -> str:
        """The bottleneck and how many dimensions the layers use, or what is covered of weights alone; "" if unknown."""
        return self.remarks[0] if "tensors" in self.profile.attrs else headline(self.profile)

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per layer."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _content(self) -> list[Part]:
        lines: list[Part] = [self.headline] if self.headline else []
        lines.append(Table("Layers", self.rows))
        others = [line for line in self.remarks if line != self.headline]
        if not others:
            return lines
        more = [f"and {len(others) - MAX_REMARKS} more remarks"] if len(others) > MAX_REMARKS else []
        return [*lines, Fold(f"skipped parts and notes ({len(others)})", others[:MAX_REMARKS] + more, others)]

    def __repr__(self) -> str:
        return f"LayerTable({self.profile.sizes['layer']} layers)"


def layer_table(profile: xr.Dataset) -> LayerTable:
    """Return the headline of a profile and its table of layers, which print and which a notebook shows.

    Parameters
    ----------
    profile : xarray.Dataset
        What :func:`bnrank.profile` returns.

    Returns
    -------
    LayerTable
        With ``headline``, ``rows`` and ``to_frame()``.

    Raises
    ------
    TypeError, ValueError
        If it is no profile.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
    >>> with torch.no_grad():
    ...     _ = [p.copy_(torch.diag(torch.tensor([1.0, 0.0]))) for p in net.parameters()]
    >>> table = bnrank.layer_table(bnrank.profile(net, torch.eye(2).repeat(50, 1)))
    >>> print(table.headline)
    Bottleneck of rank 1 from layer 1 to layer 2: layers use 1 of 2 dimensions at 95 percent of variance.
    >>> [(row["name"], row["rank of W"]) for row in table.rows]
    [('0', 1), ('2', 1)]
    """
    return LayerTable(profile)


def layer_rows(profile: xr.Dataset) -> list[dict[str, object]]:
    """Return one row per layer of a profile: number, name, ranks, largest singular value, nonlinearity, norm.

    Examples
    --------
    >>> import torch, bnrank
    >>> rows = bnrank.reporting.tables.layer_rows(bnrank.profile(bnrank.MLP([3, 8, 2]), torch.randn(20, 3)))
    >>> [int(row["rank of W"]) for row in rows]
    [3, 2]
    """
    import xarray as xr

    validation.kind(profile, "profile", xr.Dataset, "an")
    got = f"dimensions {sorted(map(str, profile.dims))}"
    validation.expect("layer" in profile.dims and "layer" in profile.coords, "profile", got, "layer among them")
    columns: dict[str, list[object]] = {"layer": profile["layer"].values.tolist()}
    if "layer_name" in profile.coords:
        columns["name"] = list(map(str, profile["layer_name"].values))
    if "layer_shape" in profile.coords:
        columns |= {key: list(map(str, profile[f"layer_{key}"].values)) for key in ("kind", "shape")}
    for variable, heading in _LAYER_COLUMNS.items():
        rare = variable in ("subnormals", "dead_units")  # shown where there are some
        if variable in profile and not (rare and not bool((profile[variable] > 0).any())):
            found = profile[variable]
            values = found.max([dim for dim in found.dims if dim != "layer"]).values.tolist()
            numbers = [int(value) if variable in _COUNTS and math.isfinite(value) else float(value) for value in values]
            columns[heading] = [None if math.isnan(value) else value for value in numbers]
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def headline(profile: xr.Dataset) -> str:
    """Return the bottleneck of a profile and how many dimensions its layers use, in a sentence; "" if neither is known.

    The dimensions are those of the centered activations at 95 percent of their variance.

    Raises
    ------
    TypeError
        If it is no dataset.

    Examples
    --------
    >>> import xarray as xr
    >>> found = {"dimension_95": ("layer", [12.0, 41.0]), "units": ("layer", [50.0, 50.0])}
    >>> headline(xr.Dataset(found, attrs={"bottleneck_reason": "no layer has a clear gap"}))
    'No bottleneck found (no layer has a clear gap): layers use 12 to 41 of 50 dimensions at 95 percent of variance.'
    """
    import xarray as xr

    validation.kind(profile, "profile", xr.Dataset, "an")
    rank, reason = profile.attrs.get("bottleneck_rank"), profile.attrs.get("bottleneck_reason")
    parts = []
    if rank is not None:
        start, end = (int(profile.attrs[f"bottleneck_{name}"]) for name in ("start", "end"))
        where = f"in layer {start}" if start == end else f"from layer {start} to layer {end}"
        parts.append(f"Bottleneck of rank {int(rank)} {where}")
    elif reason and reason != UNMEASURED:
        parts.append(f"No bottleneck found ({reason})")
    if {"dimension_95", "units"} <= set(profile):
        used, units = profile["dimension_95"].values, profile["units"].values
        known, samples = np.isfinite(used) & np.isfinite(units), profile.attrs.get("samples", FEW)
        wide = np.isfinite(units)
        if 1 < samples < LEAST and (known != wide).any():
            some = f" of {(wide & ~known).sum()} of {wide.sum()} layers" if known.any() else ""
            parts.append(f"dimensions{some} unknown with {samples} samples")
        elif known.any():
            few = f", uncertain with {samples} samples" if samples < FEW else ""
            parts.append(_used(used[known], units[known]) + few)
    text = ": ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _used(used: np.ndarray, units: np.ndarray) -> str:
    """Return how many dimensions layers use: of their width, or of their widths in percent where these differ."""
    low, high = int(used.min()), int(used.max())
    text = f"{'layers use' if len(used) > 1 else 'one layer uses'} {low}{f' to {high}' if high > low else ''}"
    if units.min() == units.max():
        return f"{text} of {int(units[0])} dimensions at 95 percent of variance"
    shares = [f"{100 * share:.0f}" for share in ((used / units).min(), (used / units).max())]
    percent = " to ".join(dict.fromkeys(shares))
    dimensions = "dimension" if low == high == 1 else "dimensions"
    return f"{text} {dimensions} at 95 percent of variance, {percent} percent of their units"
