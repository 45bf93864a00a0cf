"""Charts of a watched training: a line per layer over the steps."""

from dataclasses import replace

import numpy as np

from bnrank._core.sampling import evenly_spaced
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.parts import Chart, Group, View
from bnrank.training.watching.records import SHOWN, Record

TITLES = {
    "dimension_95": "Dimension of the centered inputs at 95 percent of variance",
    "change": "Change of the weights since the first",
    "update_stable_rank": "Stable rank of the change",
    "cka": "CKA of the activations with those of the first",
    "stable_rank": "Stable rank of the weights",
    "effective_rank": "Effective rank of the weights",
    "tail": "Share of ‖W‖² outside the largest tenth of singular values",
    "dead_units": "Dead inputs",
    "constant_units": "Constant inputs",
    "subnormals": "Subnormal weights",
}
COUNTS = ("dead_units", "constant_units", "subnormals")


def watched_view(record: Record) -> View:
    """Return a chart per quantity that was measured twice or more and, for counts, is not 0 throughout."""
    history, charts = record.history, []
    steps = history["step"].values.tolist()
    for name, title in TITLES.items():
        values = history[name].values if name in history else np.zeros((0, 0))
        if name == "constant_units" and name in history and np.nansum(values) == np.nansum(history["dead_units"]):
            continue  # the dead ones alone
        known = np.flatnonzero(np.isfinite(values).any(0))
        if (np.isfinite(values).any(1)).sum() < 2 or (name in COUNTS and not np.nansum(values)):
            continue
        lines, key = [], []
        chosen = evenly_spaced(len(known), SHOWN).tolist()
        labels = parts.told_apart([str(layer) for layer in history["layer"].values[known[chosen]]])
        for place, k in enumerate(chosen):
            layer, color = str(history["layer"].values[known[k]]), parts.member_color(place)
            hover = f"{parts.escaped(layer)}<br>step %{{x}}<br>%{{y:.4g}}"
            dash = parts.DASHES[place // 7 % 4]
            row = parts.numbers(values[:, known[k]])
            size = 5 if len(steps) <= 60 else 0
            lines.append(parts.line(steps, row, color, hover, size=size, name=layer, line_dash=dash))
            key.append((color, labels[place] + (" (dashed)" if dash != "solid" else "")))
        axis = {"title": "", "range": [0, parts.numbers(1.06 * parts.largest(values))]}
        chart = Chart(title, parts.figure(lines, parts.step_axis(steps), axis), key=key)
        more = f"{len(lines)} of {len(known)} layers are shown." if len(lines) < len(known) else ""
        charts.append(replace(chart, note=more))
    return View("watched", [Group("", charts)])


def watched_headline(record: Record) -> str:
    """Return the result in a sentence or two."""
    history = record.history
    steps = history["step"].values
    if not len(steps):
        return "Nothing was measured yet."
    last, when = history.isel(step=-1), f"step {steps[-1]:,}"
    said = [f"{remark}." for remark in record.diverged]
    if "dimension_95" in history and np.isfinite(last["dimension_95"].values).any():
        low, high = int(np.nanmin(last["dimension_95"].values)), int(np.nanmax(last["dimension_95"].values))
        apart = "nonfinite_units" in last and bool((last["nonfinite_units"] > 0).any())
        which = "Other layers" if apart else "Layers"
        said.append(f"{which} use {low} to {high} dimensions at 95 percent of variance at {when}.")
    elif "stable_rank" in history and np.isfinite(last["stable_rank"].values).any():
        first = f"{_range(history['stable_rank'].values[0])} at step {steps[0]:,}, " if len(steps) > 1 else ""
        said.append(f"Stable ranks of the weights: {first}{_range(last['stable_rank'].values)} at {when}.")
    changes = last["change"].values if "change" in history else np.zeros(0)
    if np.isfinite(changes).any() and (len(steps) > 1 or changes.any()):
        said.append(f"Weights have changed by {_range(changes)} times their norm.")
    if grown := int(np.isinf(changes).sum()):
        said.append(f"Weights of {grown} layer{'s' * (grown > 1)} have changed from 0.")
    return " ".join(said) or f"{record.span}."


def _range(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    ends = [f"{value:.3g}" for value in (known.min(), known.max())] if len(known) else ["unknown"]
    return " to ".join(dict.fromkeys(ends))
