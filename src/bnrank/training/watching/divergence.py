"""Where the weights and activations of a watched training are NaN or infinite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

KINDS = {"nonfinite": "weights of", "nonfinite_units": "activations at"}
"""What the counts of values that are not finite are of, by quantity."""
NAMED = 6  # layers in a remark


def remarks(history: xr.Dataset) -> list[str]:
    """Return since which step which layers are NaN or infinite, and where they were so and are finite again.

    Examples
    --------
    >>> import xarray as xr
    >>> counts = ("step", "layer"), [[0.0, 0.0], [3.0, 1.0], [3.0, 0.0]]
    >>> remarks(xr.Dataset({"nonfinite_units": counts}, {"step": [10, 20, 30], "layer": ["0", "2"]}))
    ['NaN or infinite since step 20: activations at 0', 'NaN or infinite at step 20, finite later: activations at 2']
    """
    found: dict[tuple[bool, str], dict[str, list[str]]] = {}
    for quantity, kind in KINDS.items():
        for j, layer in enumerate(history["layer"].values.tolist() if quantity in history else ()):
            if when := _when(history[quantity].values[:, j], history["step"].values):
                found.setdefault(when, {}).setdefault(kind, []).append(layer)
    return [
        f"NaN or infinite {when}: {', '.join(f'{kind} {shortened(layers)}' for kind, layers in kinds.items())}"
        for (_, when), kinds in sorted(found.items(), key=lambda item: item[0][0])
    ]


def ends(one: xr.Dataset, quantity: str) -> tuple[bool, bool]:
    """Return whether a layer is NaN or infinite at the first measurement, and whether at the last one."""
    bad = one[quantity].values > 0 if quantity in one else np.zeros(1, bool)  # without: a record of an earlier version
    return bool(bad[0]), bool(bad[-1])


def _when(counts: np.ndarray, steps: np.ndarray) -> tuple[bool, str] | None:
    """Return whether a layer has recovered, and in words when it was not finite; None if it never was."""
    known = ~np.isnan(counts)
    bad, steps = counts[known] > 0, steps[known]
    if not bad.any():
        return None
    if bad[-1]:
        good = np.flatnonzero(~bad)
        return False, f"since step {steps[good[-1] + 1 if len(good) else 0]:,}"
    last = f"step {steps[bad][-1]:,}, finite later"
    return True, f"at {last}" if bad.sum() == 1 else f"in {bad.sum()} measurements, last at {last}"


def shortened(layers: list[str]) -> str:
    """Return the first names of layers, or steps, and how many others there are."""
    more = len(layers) - NAMED
    return ", ".join(layers[:NAMED]) + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")
