"""Drawings of weighted DAGs from left to right, with neurons as circles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import validation
from bnrank._core.axes import OKABE_ITO
from bnrank.networks.graph.drawing import Array, Bools, draw_edges, draw_legend, heights, lay_out, shortened
from bnrank.theory.neurons.wiring import Wiring

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE_LIMIT = 2000
POSITIVE, NEGATIVE = OKABE_ITO[:2]
SHADES = {1.0: ("white", "linear"), 0.0: ("0.75", "ReLU")}
OTHERS = ("#f0e6c8", "other slope")


def draw_neurons(
    wiring: Wiring, weights: Array, learnable: Bools, slopes: Array, names: Any, axes: Any, rows: Array | None = None
) -> Axes:
    """Draw a weighted DAG with these weights, slopes and names; see `NeuronGraph.draw`. ``rows``: heights."""
    from matplotlib.lines import Line2D

    ends = np.stack([wiring.sources, wiring.targets], 1)
    limit = f"at most {EDGE_LIMIT}; more cannot be seen"
    validation.expect(len(ends) <= EDGE_LIMIT, "draw", f"{len(ends)} edges", limit)
    columns, step = wiring.levels.copy(), (1.9, 0.65)
    columns[np.setdiff1d(wiring.outputs, wiring.sources)] = columns.max()
    ax, spots = lay_out(columns, heights(columns) if rows is None else rows, step, axes)
    colors = ["0.6" if w == 0 else POSITIVE if w > 0 else NEGATIVE for w in weights]
    widths = 0.3 + 2.5 * np.abs(weights) / (np.abs(weights).max(initial=0) or 1.0)
    middles = draw_edges(ax, spots, ends, step, colors, widths, learnable)
    centered: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
    for (x, y), weight, color in zip(middles, weights, colors, strict=True) if len(ends) <= 30 else ():
        ax.text(x, y, f"{weight:.2g}", fontsize=7, color=color, bbox=plain, **centered | {"zorder": 2})
    kinds = [SHADES.get(float(s), OTHERS) for s in slopes]
    named = len(names) <= 40
    size, shades = 420 if named else 60, [shade for shade, _ in kinds]
    ax.scatter(spots[:, 0], spots[:, 1], s=size, c=shades, edgecolors="black", zorder=3).set_clip_on(False)
    for (x, y), name in zip(spots, names, strict=True) if named else ():
        entry = isinstance(name, tuple) and len(name) >= 2
        text = f"{str(name[0])[:6]}\n{', '.join(map(str, name[1:]))}" if entry else shortened(str(name), 9)
        ax.text(x, y, text, fontsize=5.5 if len(text) > 5 else 7, **centered)
    lines = {"positive": POSITIVE, "negative": NEGATIVE}
    handles = [Line2D([], [], color=color, label=name) for name, color in lines.items() if color in colors]
    if not learnable.all():
        handles.append(Line2D([], [], color="0.4", linestyle="dashed", label="fixed"))
    dot: dict[str, Any] = {"marker": "o", "linestyle": "none", "markeredgecolor": "black"}
    handles += [Line2D([], [], markerfacecolor=shade, label=name, **dot) for shade, name in sorted({*kinds})]
    draw_legend(ax, handles)
    return ax
