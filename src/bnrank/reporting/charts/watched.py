"""Charts of a watched training: a line per layer over the steps."""

import numpy as np
import plotly.graph_objects as go

from bnrank._core.sampling import evenly_spaced
from bnrank.reporting.charts import parts
from bnrank.training.watching.records import SHOWN, Record

TITLES = {
    "dimension_95": "Dimension of the centered inputs at 95 percent of variance",
    "stable_rank": "Stable rank of the weights",
    "effective_rank": "Effective rank of the weights",
    "tail": "Share of ‖W‖² outside the largest tenth of singular values",
    "dead_units": "Dead inputs",
    "subnormals": "Subnormal weights",
}


def watched_figures(record: Record) -> dict[str, go.Figure]:
    """Return a figure per quantity that was measured and, for counts, is not 0 throughout, by caption."""
    history, found = record.history, {}
    steps = history["step"].values.tolist()
    for name, title in TITLES.items():
        if name not in history:
            continue
        values = history[name].values
        if not np.isfinite(values).any() or (name in ("dead_units", "subnormals") and not np.nansum(values)):
            continue
        known = np.flatnonzero(np.isfinite(values).any(0))
        lines = []
        for place, k in enumerate(evenly_spaced(len(known), SHOWN).tolist()):
            layer = parts.cut(parts.escaped(history["layer"].values[known[k]]))
            dash = parts.DASHES[place // 7 % 4]
            hover = f"{layer}<br>step %{{x}}<br>%{{y:.4g}}"
            row = parts.numbers(values[:, known[k]])
            lines.append(parts.line(steps, row, parts.member_color(place), hover, name=layer, line_dash=dash))
        key = {"orientation": "h", "y": -0.25, "font": {"size": 11}}
        axes = parts.step_axis(steps), {"title": "", "rangemode": "tozero"}
        found[title] = parts.figure(lines, *axes, showlegend=True, legend=key)
    return found


def watched_text(record: Record) -> str:
    """Return the result in a sentence, and the remarks, a paragraph each."""
    history, said = record.history, "Nothing was measured yet."
    if history.sizes["step"]:
        steps = history["step"].values
        said = f"{len(steps)} measurements, steps {steps[0]:,} to {steps[-1]:,}."
        if "dimension_95" in history and np.isfinite(history["dimension_95"].values[-1]).any():
            last = history["dimension_95"].values[-1]
            low, high = int(np.nanmin(last)), int(np.nanmax(last))
            said = f"Layers use {low} to {high} dimensions at 95 percent of variance at the last of {said}"
    return "\n\n".join([said, *record.notes])
