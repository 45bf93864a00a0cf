"""The table rows of profiles, histories and claims."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["claim_rows", "layer_rows", "member_rows", "noted_rows"]


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
