"""Charts of symmetries: the change of f along every change of x."""

import math

import numpy as np

from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.discovery.symmetry_search.spectrum import EXACT, IGNORED, LARGEST, Found
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.parts import Chart, Group, View

MAX_FIELDS = 200
"""Largest number of singular values of fields: the smallest values."""


def symmetry_view(found: Symmetries) -> View:
    """Return a chart for each kind of infinitesimal symmetry."""
    limit = IGNORED if found.rtol is None else LARGEST
    kinds = [
        ("Shifts along directions that f ignores", found.translations, limit),
        ("Rotations, scalings and other changes", found.fields, LARGEST),
    ]
    if found.scalings:
        kinds.append(("Scalings of positive columns", found.scalings, limit))
    charts = [_fields(title, part, most, found.rtol) for title, part, most in kinds if len(part.values)]
    return View("symmetries", [Group("", charts)])


def _fields(title: str, part: Found, most: float, error: float | None) -> Chart:
    """Return the chart of the change of f along every field, ascending; fields below the gap are symmetries."""
    gap, count = part.gap, part.count if part.status in ("exact", "approximate") else 0
    level, meaning = (EXACT, "rounding below") if gap.exact or error == 0 else (most, "above: no symmetry")
    values = part.values[:MAX_FIELDS].numpy()
    y, x = np.maximum(values, 1e-16), list(range(1, len(values) + 1))
    colors = [parts.member_color(2) if i < count else parts.MUTED for i in range(len(x))]
    dots = parts.dots(x, parts.numbers(y), "change %{x}<br>%{customdata}", size=8, color=colors)
    dots.customdata = [parts.short(value) for value in values]
    place = {"xref": "paper", "x": 1, "xanchor": "right", "y": math.log10(level), "yanchor": "bottom"}
    more = {"shapes": [parts.dotted("y", level)]}
    more["annotations"] = [parts.written(f"{parts.short(level)}, {meaning}", **place)]
    if math.isfinite(gap.ratio) and 0 < gap.candidate < len(values):
        more = {
            name: [*more[name], *own]
            for name, own in parts.gap_after(gap.ratio, gap.candidate, len(values), 0.5).items()
        }
    axis = parts.log_axis("residual: change of f, relative", [*y, level, 1])
    note = "How much f changes along every independent change of x: 0 for a symmetry, about 1 for others."
    if len(part.values) > len(values):
        note += f" The {len(values)} smallest of {len(part.values)}."
    return Chart(title, parts.figure(dots, parts.count_axis("change of x", len(x)), axis, **more), note=note)
