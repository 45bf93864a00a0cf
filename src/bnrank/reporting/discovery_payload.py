"""What discovery found as compact JSON for the page: rounded, thinned out, names as they are (escaped on the page)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.metrics import r2_score

from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.symmetries.finding import EXACT, IGNORED, LARGEST, Found
from bnrank.discovery.symmetries.result import Symmetries
from bnrank.reporting.payload import numbers

__all__ = ["classes", "describes_itself", "score", "view"]

MAX_OUTPUTS = 50
"""Outputs that can be chosen, at most: those that vary most."""
MAX_COORDINATES = 20
"""Coordinates shown, at most: the most influential."""
MAX_INPUTS = 60
"""Columns of the sensitivity map, at most: the most sensitive."""
MAX_VALUES = 20
"""Entries of a spectrum, at most: the largest."""
MAX_FIELDS = 200
"""Singular values of fields, at most: the smallest."""
ROUNDING = 1e-10
"""Scores below are printed as 0."""


def view(found: Summary | Compressed | Symmetries) -> dict[str, Any]:
    """Return what the plots of a page show of a summary, a compression or symmetries, with its ``kind``."""
    if isinstance(found, Summary):
        return _summary(found)
    return _compressed(found) if isinstance(found, Compressed) else _symmetries(found)


def classes(summary: Summary) -> list[str] | None:
    """Return the names of the classes; None where outputs are numbers."""
    return list(summary.output_names) if len(summary.output_names) > summary.outputs else None


def describes_itself(summary: Summary) -> bool:
    """Say whether the outputs are the inputs, as those of an autoencoder are."""
    return summary.estimator.endswith("Autoencoder")


def score(value: float) -> float:
    """Return a score, 0 where it is that but for rounding.

    Examples
    --------
    >>> score(4.441e-17), score(0.25)
    (0.0, 0.25)
    """
    return 0.0 if abs(value) < ROUNDING else value


def _summary(summary: Summary) -> dict[str, Any]:
    k, low_high = summary.n_components, summary.interval
    shown = min(k, MAX_COORDINATES)
    notes: list[str] = []
    if shown < k:
        notes.append(f"the {shown} most influential of {k} coordinates are shown")
    if summary.rows > len(summary.coordinates):
        notes.append(f"{len(summary.coordinates)} of {summary.rows} rows are shown")
    result: dict[str, Any] = {
        "kind": "found",
        "count": k,
        "interval": None if summary.undetermined else list(low_high),
        "heldOut": {"loss": numbers(summary.held_out), "error": numbers(summary.held_out_error)},
        "spectra": _spectra(summary),
        "coordinates": numbers(summary.coordinates[:, :shown].T, 4),
        "sensitivity": _sensitivity(summary, shown, notes) if k else None,
    }
    labels = classes(summary)
    if labels is not None:
        place = {name: i for i, name in enumerate(labels)}
        result["classes"] = labels
        result["seen"] = [place[str(label)] for label in summary.seen]
        result["predicted"] = [place[str(label)] for label in summary.predicted]
        table = np.zeros((len(labels), len(labels)), dtype=int)
        np.add.at(table, (result["seen"], result["predicted"]), 1)
        result["confusion"] = table.tolist()
    else:
        result["outputs"] = _outputs(summary, notes)
    return result | {"notes": notes}


def _spectra(summary: Summary) -> list[dict[str, Any]]:
    """Return the spectrum at the bottleneck and that of combinations of inputs, the one that says more first."""
    entries = []
    pairs = (
        ("at the bottleneck", "standard deviation", summary.spectrum, summary.n_components),
        ("of input combinations", "how much y depends on it", summary.input_spectrum, summary.n_input_directions),
    )
    for label, title, values, count in pairs:
        if len(values) and count:
            left = count < len(values) and values[count] > 0
            entries.append(
                {
                    "label": label,
                    "title": title,
                    "values": numbers(values[:MAX_VALUES]),
                    "of": len(values),
                    "count": count,
                    "gap": numbers(values[count - 1] / values[count], 3) if left else None,
                }
            )
    return entries[::-1] if summary.bound == 1 else entries


def _sensitivity(summary: Summary, shown: int, notes: list[str]) -> dict[str, Any]:
    rows = summary.sensitivity[:shown]
    kept = np.sort(np.argsort(-rows.max(axis=0), kind="stable")[:MAX_INPUTS])
    if len(kept) < rows.shape[1]:
        notes.append(f"the {len(kept)} of {rows.shape[1]} inputs that coordinates move most with are shown")
    return {"rows": numbers(rows[:, kept], 3), "inputs": [summary.inputs[i] for i in kept]}


def _outputs(summary: Summary, notes: list[str]) -> list[dict[str, Any]]:
    seen, predicted = (table.reshape(len(table), -1) for table in (summary.seen, summary.predicted))
    kept = np.sort(np.argsort(-seen.std(axis=0), kind="stable")[:MAX_OUTPUTS])
    if len(kept) < seen.shape[1]:
        notes.append(f"the {len(kept)} of {seen.shape[1]} outputs that vary most can be chosen")
    return [
        {
            "name": summary.output_names[i],
            "seen": numbers(seen[:, i], 4),
            "predicted": numbers(predicted[:, i], 4),
            "r2": numbers(score(r2_score(seen[:, i], predicted[:, i])), 3) if np.ptp(seen[:, i]) else None,
        }
        for i in kept
    ]


def _compressed(found: Compressed) -> dict[str, Any]:
    certificate = found.certificate
    kept = {
        "parameters": (certificate.parameters, certificate.parameters_before),
        "multiply-adds": (certificate.multiply_adds, certificate.multiply_adds_before),
        "latency": (certificate.latency.least, certificate.latency_before.least),
    }
    return {
        "kind": "compressed",
        "left": [[name, numbers(100 * after / before)] for name, (after, before) in kept.items() if before],
        "steps": [[step.kind, numbers(100 * step.change)] for step in found.steps],
        "tolerance": numbers(100 * certificate.tol),
    }


def _symmetries(found: Symmetries) -> dict[str, Any]:
    entries = []
    for title, part, most in (
        ("Translations: directions that f ignores", found.translations, IGNORED if found.error is None else LARGEST),
        ("Affine and other fields", found.fields, LARGEST),
    ):
        if len(part.values):
            entries.append({"title": title} | _fields(part, most, found.error))
    return {"kind": "symmetries", "spectra": entries}


def _fields(part: Found, most: float, error: float | None) -> dict[str, Any]:
    """Return singular values, ascending, with the place of the gap and the thresholds that were used."""
    gap = part.gap
    rounding = gap.exact or error == 0
    return {
        "values": numbers(part.values[:MAX_FIELDS].numpy()),
        "of": len(part.values),
        "count": part.count if part.status in ("exact", "approximate") else 0,
        "candidate": gap.candidate,
        "ratio": numbers(gap.ratio, 3) if math.isfinite(gap.ratio) else None,
        "threshold": EXACT if rounding else most,
        "thresholdIs": "rounding below" if rounding else "above: no symmetry",
    }
