"""Drawings of computation graphs from left to right, with operations as boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnrank._core import axes as canvas
from bnrank.networks.graph.nodes import Node

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Step = tuple[float, float]  # distances of columns and rows in inches

_BLUE, _RED, _GREEN, _PINK, _SKY, _ORANGE, _ = canvas.OKABE_ITO
_KINDS = {
    "input": ("white", "input"),
    "linear": (_BLUE, "linear"),
    "conv": (_SKY, "convolution"),
    "activation": (_ORANGE, "activation"),
    "add": (_GREEN, "sum"),
    "diagonal": (_PINK, "learnable diagonal"),
    "average": ("#F0E442", "average"),
    "maximum": ("#A89C20", "maximum"),
    "index": ("0.88", "reordering"),
    "outside": (_RED, "outside the theory"),
}
_LETTER = 0.066  # width of a letter in inches
_LONGEST = 22  # letters of a label


def draw_operations(nodes: Sequence[Node], axes: Any = None) -> Axes:
    """Draw the nodes of a layer graph; see `LayerGraph.draw`."""
    from matplotlib.patches import FancyBboxPatch, Patch

    number = {node.name: i for i, node in enumerate(nodes)}
    pairs = [(number[name], i) for i, node in enumerate(nodes) for name in dict.fromkeys(node.inputs)]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    columns = np.zeros(len(nodes), dtype=np.int64)
    for source, target in pairs:
        columns[target] = max(columns[target], columns[source] + 1)
    labels = [shortened(node.text or node.name, _LONGEST) for node in nodes]
    shapes = ["×".join(map(str, node.shape)) or "1" for node in nodes]
    tall = _LETTER * max(map(len, labels + shapes)) + 0.15
    step = (0.55, tall + 0.3)
    ax, spots = lay_out(columns, heights(columns), step, axes)
    draw_edges(ax, spots, ends, step, ["0.35"] * len(ends), np.ones(len(ends)), np.ones(len(ends), bool))
    for node, label, shape, (x, y) in zip(nodes, labels, shapes, spots, strict=True):
        color, dark = _KINDS[node.op][0], node.op in ("linear", "outside", "add")
        box = FancyBboxPatch((x - 0.18, y - tall / 2), 0.36, tall, boxstyle="round,pad=0,rounding_size=0.06", zorder=3)
        box.set(facecolor=color, edgecolor="0.25")
        ax.add_patch(box)
        middle: dict[str, Any] = {"ha": "center", "va": "center", "rotation": 90, "zorder": 4}
        ax.text(x, y, f"{label}\n{shape}", size=8, color="white" if dark else "black", linespacing=1.0, **middle)
    kinds = [op for op in _KINDS if op != "input" and any(node.op == op for node in nodes)]
    draw_legend(ax, [Patch(facecolor=_KINDS[op][0], edgecolor="0.25", label=_KINDS[op][1]) for op in kinds])
    return ax


def heights(columns: Ints) -> Array:
    """Return heights of vertices in columns, in their order from top to bottom."""
    rows = np.zeros(len(columns))
    for column in np.unique(columns):
        members = np.flatnonzero(columns == column)
        rows[members] = (len(members) - 1) / 2 - np.arange(len(members))
    return rows


def lay_out(columns: Ints, rows: Array, step: Step, axes: Any) -> tuple[Axes, Array]:
    """Return axes and the places of vertices in them, in inches."""
    spots = np.stack([columns, rows], 1) * step
    low, high = spots.min(0) - np.array(step) / 2, spots.max(0) + np.array(step) * [0.5, 1.6]
    low[1] -= 0.6  # the legend
    ax: Axes = canvas.axes_for(axes, (1, 1), tuple(np.clip(high - low + 0.3, (6, 3), 60).tolist()))[0]
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set_axis_off()
    return ax, spots


def draw_edges(
    ax: Axes, spots: Array, ends: Ints, step: Step, colors: list[str], widths: Array, solid: Bools
) -> list[Array]:
    """Draw edges, as arcs where vertices can be in between, and return a place on each."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    middles = []
    for e, (u, v) in enumerate(ends.tolist()):
        span = (spots[v] - spots[u])[0] / step[0]
        bend = min(0.9 + 0.2 * span, 3.0) * step[1] if span > 1.5 else 0.0
        middle = (spots[u] + spots[v]) / 2 + [0, bend]
        curve = Path([spots[u], middle, spots[v]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        style = "solid" if solid[e] else (0, (4, 2))
        ax.add_patch(PathPatch(curve, facecolor="none", edgecolor=colors[e], linewidth=widths[e], linestyle=style))
        at = 0.28 + 0.14 * (e % 2)  # not all at one height, where lines cross
        middles.append((1 - at) ** 2 * spots[u] + 2 * at * (1 - at) * middle + at**2 * spots[v])
    return middles


def draw_legend(ax: Axes, handles: list[Any]) -> None:
    """Draw a legend of one line below the graph."""
    ax.legend(handles=handles, loc="lower left", ncols=max(1, len(handles)), frameon=False, fontsize=8)


def shortened(text: str, length: int) -> str:
    """Return a text of at most ``length`` letters; an ellipsis stands for the rest."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
