"""Drawings of computation graphs from left to right: operations as boxes, neurons as circles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnrank._core import axes as canvas
from bnrank._core import validation
from bnrank.networks.graph.nodes import Node
from bnrank.networks.graph.wiring import Wiring

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
EDGE_LIMIT = 2000
POSITIVE, NEGATIVE = canvas.OKABE_ITO[:2]
SHADES = {1.0: ("white", "linear"), 0.0: ("0.75", "ReLU")}
OTHERS = ("#f0e6c8", "other slope")


def draw_operations(nodes: Sequence[Node], axes: Any = None) -> Axes:
    """Draw the nodes of a layer graph; see `LayerGraph.draw`."""
    from matplotlib.patches import FancyBboxPatch, Patch

    number = {node.name: i for i, node in enumerate(nodes)}
    pairs = [(number[name], i) for i, node in enumerate(nodes) for name in dict.fromkeys(node.inputs)]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    columns = np.zeros(len(nodes), dtype=np.int64)
    for source, target in pairs:
        columns[target] = max(columns[target], columns[source] + 1)
    labels = [_shortened(node.text or node.name, _LONGEST) for node in nodes]
    shapes = ["×".join(map(str, node.shape)) or "1" for node in nodes]
    tall = _LETTER * max(map(len, labels + shapes)) + 0.15
    step = (0.55, tall + 0.3)
    ax, spots = _canvas(columns, heights(columns), step, axes)
    _draw_edges(ax, spots, ends, step, ["0.35"] * len(ends), np.ones(len(ends)), np.ones(len(ends), bool))
    for node, label, shape, (x, y) in zip(nodes, labels, shapes, spots, strict=True):
        color, dark = _KINDS[node.op][0], node.op in ("linear", "outside", "add")
        box = FancyBboxPatch((x - 0.18, y - tall / 2), 0.36, tall, boxstyle="round,pad=0,rounding_size=0.06", zorder=3)
        box.set(facecolor=color, edgecolor="0.25")
        ax.add_patch(box)
        middle: dict[str, Any] = {"ha": "center", "va": "center", "rotation": 90, "zorder": 4}
        ax.text(x, y, f"{label}\n{shape}", size=8, color="white" if dark else "black", linespacing=1.0, **middle)
    kinds = [op for op in _KINDS if op != "input" and any(node.op == op for node in nodes)]
    _legend(ax, [Patch(facecolor=_KINDS[op][0], edgecolor="0.25", label=_KINDS[op][1]) for op in kinds])
    return ax


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
    ax, spots = _canvas(columns, heights(columns) if rows is None else rows, step, axes)
    colors = ["0.6" if w == 0 else POSITIVE if w > 0 else NEGATIVE for w in weights]
    widths = 0.3 + 2.5 * np.abs(weights) / (np.abs(weights).max(initial=0) or 1.0)
    middles = _draw_edges(ax, spots, ends, step, colors, widths, learnable)
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
        text = f"{str(name[0])[:6]}\n{', '.join(map(str, name[1:]))}" if entry else _shortened(str(name), 9)
        ax.text(x, y, text, fontsize=5.5 if len(text) > 5 else 7, **centered)
    lines = {"positive": POSITIVE, "negative": NEGATIVE}
    handles = [Line2D([], [], color=color, label=name) for name, color in lines.items() if color in colors]
    if not learnable.all():
        handles.append(Line2D([], [], color="0.4", linestyle="dashed", label="fixed"))
    dot: dict[str, Any] = {"marker": "o", "linestyle": "none", "markeredgecolor": "black"}
    handles += [Line2D([], [], markerfacecolor=shade, label=name, **dot) for shade, name in sorted({*kinds})]
    _legend(ax, handles)
    return ax


def heights(columns: Ints) -> Array:
    """Return heights of vertices in columns, in their order from top to bottom."""
    rows = np.zeros(len(columns))
    for column in np.unique(columns):
        members = np.flatnonzero(columns == column)
        rows[members] = (len(members) - 1) / 2 - np.arange(len(members))
    return rows


def _canvas(columns: Ints, rows: Array, step: Step, axes: Any) -> tuple[Axes, Array]:
    """Return axes and the places of vertices in them, in inches."""
    spots = np.stack([columns, rows], 1) * step
    low, high = spots.min(0) - np.array(step) / 2, spots.max(0) + np.array(step) * [0.5, 1.6]
    low[1] -= 0.6  # the legend
    ax: Axes = canvas.axes_for(axes, (1, 1), tuple(np.clip(high - low + 0.3, (6, 3), 60).tolist()))[0]
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set_axis_off()
    return ax, spots


def _draw_edges(
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


def _legend(ax: Axes, handles: list[Any]) -> None:
    ax.legend(handles=handles, loc="lower left", ncols=max(1, len(handles)), frameon=False, fontsize=8)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
