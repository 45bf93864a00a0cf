"""Datasets as compact JSON for the page: rounded, thinned out, and safe to stand inside a script element."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.io
import xarray as xr

from bnrank._core import validation
from bnrank.measures.frequencies import label as frequency_label
from bnrank.reporting.frequency_plots import frequency_lines
from bnrank.reporting.sections import bottleneck

__all__ = ["dump", "figure", "history", "profile", "spectra_budget"]

TOP = 10
"""Singular values shown per layer."""
MAX_STEPS = 200
"""Positions of the slider, at most."""
MAX_CURVE_STEPS = 500
"""Points per training curve, at most."""
MAX_MEMBERS = 32
"""Members shown, at most."""
MAX_NUMBERS = 300_000
"""Singular values of all histories on one page, at most (about 2 MB)."""
MAX_LINES = 200
"""Lines of singular values by frequency, at most."""
MAX_FREQUENCIES = 40
"""Frequencies of which ranks are shown, at most."""
RANK_TOLERANCE = 0.1
"""A singular value above it counts, where the Dataset does not say otherwise (F4)."""
CURVES = {
    "loss": "loss C + λ‖θ‖²",
    "cost": "cost C",
    "parameter_norm": "‖θ‖²",
    "gradient_norm": "gradient norm",
    "balance_residual": "balance residual",
}
SPECTRA = {
    "activation_singular_values": "activations, singular values / √N",
    "preactivation_singular_values": "preactivations, singular values / √N",
    "weight_singular_values": "weights, singular values",
}


def dump(value: object) -> str:
    r"""Return JSON that can stand inside a script element: no ``<``, ``>``, ``&``, no line separators, no NaN.

    Examples
    --------
    >>> dump({"title": "</script>"})
    '{"title":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def numbers(array: Any, digits: int = 5) -> Any:
    """Return nested lists of floats rounded to ``digits`` significant digits, with None for NaN and infinity."""
    array = np.asarray(array)
    if array.ndim:
        return [numbers(entry, digits) for entry in array]
    value = float(array)
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def spectra_budget(histories: list[xr.Dataset]) -> int:
    """Return how many steps of each history the page can hold: MAX_STEPS, fewer if there are many members or layers."""
    per_step = 0
    for dataset in histories:
        if "weight_singular_values" in dataset:
            sizes = dataset["weight_singular_values"].sizes
            per_step += min(sizes["member"], MAX_MEMBERS) * sizes["layer"] * min(sizes["index"], TOP)
    return MAX_STEPS if per_step == 0 else int(np.clip(MAX_NUMBERS // per_step, 10, MAX_STEPS))


def history(dataset: xr.Dataset, label: str, max_steps: int = MAX_STEPS) -> dict[str, Any]:
    """Return what the page shows of a history.

    Parameters
    ----------
    dataset : Dataset
        Dimensions (member, step) and, for ``weight_singular_values``, (member, step, layer, index).
    label : str
        Its name in the selector.
    max_steps : int
        Positions of the slider, at most; the first and the last step are kept.

    Returns
    -------
    dict
        Plain lists; ``notes`` says in words what was left out.
    """
    notes: list[str] = []
    members = _evenly(dataset.sizes["member"], MAX_MEMBERS)
    if len(members) < dataset.sizes["member"]:
        notes.append(f"{len(members)} of {dataset.sizes['member']} members are shown, evenly spaced")
    kept = dataset.isel(member=members)
    curve_steps = _evenly(dataset.sizes["step"], MAX_CURVE_STEPS)
    if len(curve_steps) < dataset.sizes["step"]:
        notes.append(f"the curves show {len(curve_steps)} of {dataset.sizes['step']} recorded steps")
    curves = {
        name: numbers(kept[name].transpose("member", "step").values[:, curve_steps])
        for name in CURVES
        if name in kept and set(kept[name].dims) == {"member", "step"}
    }
    result: dict[str, Any] = {
        "label": label,
        "members": [_member(kept, i) for i in range(len(members))],
        "curveSteps": numbers(kept["step"].values[curve_steps], 15),
        "curves": curves,
        "titles": {name: CURVES[name] for name in curves},
        "tolerance": tolerance(dataset),
        "steps": [],
        "layers": [],
        "names": _names(dataset),
        "spectra": [],
        "notes": notes,
    }
    if "weight_singular_values" in kept:
        _add_spectra(result, kept["weight_singular_values"], max_steps)
    return result


def profile(dataset: xr.Dataset, label: str) -> dict[str, Any]:
    """Return what the page shows of a profile: top singular values per layer, ratios, and the Jacobian's spectra.

    Parameters
    ----------
    dataset : Dataset
        Dimensions (layer, index), (layer) and (sample, index), see `bnrank.profile`.
    label : str
        Its name in the selector.
    """
    layers = numbers(dataset["layer"].values, 15)
    result: dict[str, Any] = {
        "label": label,
        "layers": layers,
        "names": _names(dataset),
        "spectra": {
            name: [_trim(row) for row in numbers(dataset[name].transpose("layer", ...).values[:, :TOP])]
            for name in SPECTRA
            if name in dataset
        },
        "tolerance": tolerance(dataset) if "threshold" in dataset.attrs else None,
        "bottleneck": [bottleneck(dataset)[end] for end in ("start", "end")],
    }
    if "nonlinearity" in dataset:
        result["nonlinearity"] = numbers(dataset["nonlinearity"].values)
    if "frequency_singular_values" in dataset:
        result["frequencies"] = _frequencies(dataset)
    if "jacobian_singular_values" in dataset:
        values = dataset["jacobian_singular_values"].transpose("sample", ...).values[:, : 3 * TOP]
        values = values[:, np.isfinite(values).any(0)]
        result["jacobian"] = {
            "samples": len(values),
            "median": numbers(np.nanmedian(values, 0)),
            "low": numbers(np.nanmin(values, 0)),
            "high": numbers(np.nanmax(values, 0)),
        }
    return result


def _frequencies(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the singular values by frequency, one line per frequency and channel, and the rank at each frequency."""
    every = frequency_lines(dataset, int(dataset["frequency_singular_values"].size))
    result: dict[str, Any] = {
        "lines": [
            {
                "name": line.name,
                "label": line.label,
                "channel": line.channel,
                "modulus": numbers(line.modulus),
                "kept": line.kept,
                "values": numbers(line.values),
            }
            for line in every[:MAX_LINES]
        ],
        "moduli": numbers(np.unique(dataset["modulus"].values)),
        "of": len(every),
    }
    if "frequency_rank" in dataset:
        shown = dataset.isel(frequency=slice(MAX_FREQUENCIES))
        names = zip(shown["frequency"].values, shown["multiplicity"].values, strict=True)
        result["ranked"] = [frequency_label(str(name), int(times)) for name, times in names]
        result["rank"] = numbers(shown["frequency_rank"].transpose("frequency", "layer").values)
        result["hidden"] = dataset.sizes["frequency"] - len(result["ranked"])
    return result


def figure(value: Any) -> dict[str, Any]:
    """Return a plotly figure (or a mapping with ``data`` and ``layout``) as plain JSON, without its template."""
    plain: dict[str, Any] = json.loads(plotly.io.to_json(value, validate=False))
    layout = {key: entry for key, entry in plain.get("layout", {}).items() if key != "template"}
    return {"data": plain.get("data", []), "layout": layout}


def tolerance(dataset: xr.Dataset) -> float:
    """Return the absolute threshold above which a singular value counts: attribute ``threshold``, else 0.1."""
    value = dataset.attrs.get("threshold", RANK_TOLERANCE)
    return validation.number(value.item() if isinstance(value, np.ndarray) else value, "threshold", 0.0)


def _add_spectra(result: dict[str, Any], spectra: xr.DataArray, max_steps: int) -> None:
    """Add the steps at which spectra were recorded, thinned out, and the top values as [step][member][layer]."""
    values = spectra.transpose("step", "member", "layer", "index").values[..., :TOP]
    recorded = np.flatnonzero(np.isfinite(values).any((1, 2, 3)))
    if not len(recorded):
        return
    chosen = recorded[_evenly(len(recorded), max_steps)]
    if len(chosen) < len(recorded):
        result["notes"].append(f"the spectra show {len(chosen)} of {len(recorded)} recorded steps")
    if spectra.sizes["index"] > TOP:
        result["notes"].append(f"the {TOP} largest of {spectra.sizes['index']} recorded singular values are shown")
    result["steps"] = numbers(spectra["step"].values[chosen], 15)
    result["layers"] = numbers(spectra["layer"].values, 15)
    result["spectra"] = [[[_trim(row) for row in member] for member in step] for step in numbers(values[chosen], 4)]


def _trim(row: list[float | None]) -> list[float | None]:
    """Drop the padding at the end of a row of singular values."""
    while row and row[-1] is None:
        row.pop()
    return row


def _member(dataset: xr.Dataset, i: int) -> dict[str, str]:
    """Return a member's label and status; the label names its seed, ridge and step size where members differ."""
    facts = []
    for name in ("seed", "ridge", "lr"):
        coordinate = dataset.coords.get(name)
        if coordinate is not None and coordinate.dims == ("member",) and len(set(coordinate.values.tolist())) > 1:
            facts.append(f"{name} {coordinate.values[i]:.4g}" if name != "seed" else f"seed {coordinate.values[i]}")
    status = dataset.coords.get("status")
    return {
        "name": f"member {dataset['member'].values[i]}",
        "facts": ", ".join(facts),
        "status": "" if status is None else str(status.values[i]),
    }


def _evenly(size: int, most: int) -> np.ndarray[Any, Any]:
    """Return at most ``most`` evenly spaced positions of ``range(size)``, the first and the last among them."""
    if size <= most:
        return np.arange(size)
    return np.unique(np.linspace(0, size - 1, most).round().astype(int))


def _names(dataset: xr.Dataset) -> list[str]:
    """Return the names of the layers, empty where there are none."""
    names = dataset.coords.get("layer_name")
    return [""] * dataset.sizes.get("layer", 0) if names is None else [str(name) for name in names.values]


def is_plotly(value: Any) -> bool:
    """Say whether a value is a plotly figure or the mapping of one."""
    return hasattr(value, "to_plotly_json") or (isinstance(value, Mapping) and "data" in value)
