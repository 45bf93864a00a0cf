"""Networks and sign trees as pictures, from left to right."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from bnrank._core import axes as canvas

if TYPE_CHECKING:
    from bnrank.networks.graph.decomposition import SignTree
    from bnrank.networks.graph.neurons import NeuronGraph

__all__ = ["draw_graph", "draw_tree"]

EDGE_LIMIT = 2000
NAMED = 40  # vertices with names, at most
WEIGHED = 30  # edges with numbers, at most
STRETCH = 2.5  # vertices of short columns are apart, at most, in place of 1
POSITIVE, NEGATIVE = canvas.OKABE_ITO[0], canvas.OKABE_ITO[1]
SHADES, OTHERS = {1.0: "white", 0.0: "0.75"}, "#f0e6c8"  # linear and ReLU; other slopes

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def draw_graph(graph: NeuronGraph, axes: Any = None) -> Axes:
    """Draw a network; see `NeuronGraph.draw`."""
    wiring = graph.wiring
    _check_size(len(graph.edges), "edges")
    columns = wiring.levels.copy()
    sinks = np.setdiff1d(wiring.outputs, wiring.sources)
    columns[sinks] = columns.max()
    heights = _heights(columns, wiring.sources, wiring.targets, wiring.coordinates)
    names, headings = _names(graph.vertices, columns)
    texts = [f"{weight:.2g}" for weight in graph.weights] if len(graph.edges) <= WEIGHED else None
    ends = np.stack([wiring.sources, wiring.targets], 1)
    ax = canvas.axes_for(axes, (1, 1), _size(columns, heights))[0]
    _draw(ax, columns, heights, ends, graph.weights, graph.learnable, graph.slopes, names, texts)
    for column, heading in headings.items():
        ax.text(column, 1.0, heading, fontsize=8, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    return ax


def draw_tree(tree: SignTree, axes: Any = None) -> Axes:
    """Draw sign trees; see `SignTree.draw`."""
    _check_size(len(tree) - int(tree.starts[1]), "edges")
    depths = np.searchsorted(tree.starts, np.arange(len(tree)), side="right") - 1
    columns = depths.max() - depths
    columns[tree.leaves] = 0  # entries of h in one column
    heights = np.full(len(tree), np.nan)
    heights[tree.leaves] = -np.arange(len(tree.leaves))
    for depth in reversed(range(len(tree.starts) - 2)):
        below = slice(tree.starts[depth + 1], tree.starts[depth + 2])
        for node in range(tree.starts[depth], tree.starts[depth + 1]):
            children = heights[below][tree.parents[below] == node]
            if len(children):
                heights[node] = children.mean()
    path = {node: p for p, node in enumerate(tree.leaves.tolist())}
    names = [f"$h_{{{path[v]}}}$" if v in path else _shortened(tree.labels[v]) for v in range(len(tree))]
    inner = np.flatnonzero(tree.parents >= 0)
    ends = np.stack([inner, tree.parents[inner]], 1)
    weights = tree.signs[inner].astype(np.float64)
    texts = [f"{sign:+d}" for sign in tree.signs[inner]] if len(inner) <= WEIGHED else None
    ax = canvas.axes_for(axes, (1, 1), _size(columns, heights))[0]
    _draw(ax, columns, heights, ends, weights, np.ones(len(inner), bool), tree.slopes, names, texts)
    return ax


def _check_size(size: int, what: str) -> None:
    if size > EDGE_LIMIT:
        raise ValueError(f"draw: got {size} {what}, expected at most {EDGE_LIMIT}; more cannot be seen")


def _size(columns: Ints, heights: Array) -> tuple[float, float]:
    return float(np.clip(1.9 * (columns.max() + 1), 4, 16)), float(np.clip(0.65 * (np.ptp(heights) + 2), 2.5, 12))


def _heights(columns: Ints, sources: Ints, targets: Ints, coordinates: Ints) -> Array:
    """Return places in the columns such that edges cross little: each vertex near the mean of its neighbors.

    Inputs are in the order of their coordinates, the constant is below everything.
    """
    heights = np.zeros(len(columns))
    below = np.flatnonzero(coordinates == -1)
    rows = np.setdiff1d(np.arange(len(columns)), below)
    members = [rows[columns[rows] == c] for c in range(columns.max() + 1)]
    members[0] = members[0][np.argsort(coordinates[members[0]], kind="stable")]
    for column in members:
        heights[column] = (len(column) - 1) / 2 - np.arange(len(column))
    pulls = ~np.isin(sources, below)
    sources, targets = sources[pulls], targets[pulls]
    for sweep in range(6):
        near, far = (targets, sources) if sweep % 2 == 0 else (sources, targets)
        total = np.bincount(near, heights[far], len(columns))
        count = np.bincount(near, minlength=len(columns))
        wanted = np.where(count > 0, total / np.maximum(count, 1), heights)
        for column in members[1:]:
            order = column[np.argsort(-wanted[column], kind="stable")]
            heights[order] = (len(column) - 1) / 2 - np.arange(len(column))
    tallest = max(map(len, members))
    for column in members:
        heights[column] *= np.clip((tallest - 1) / max(1, len(column) - 1), 1, STRETCH)
    heights[below] = heights[rows].min(initial=0) - 1 - np.arange(len(below))
    return heights


def _draw(
    ax: Axes,
    columns: Ints,
    heights: Array,
    ends: Ints,
    weights: Array,
    learnable: NDArray[np.bool_],
    slopes: Array,
    names: list[str],
    texts: list[str] | None,
) -> None:
    places = np.stack([columns.astype(np.float64), heights], 1)
    named = len(columns) <= NAMED
    largest = np.abs(weights).max(initial=0) or 1.0
    reach = [heights.min(), heights.max()]
    thick, thin = (3.0, 0.5) if len(ends) <= 200 else (1.6, 0.2)
    for e, (u, v) in enumerate(ends.tolist()):
        bend = _bend(places, u, v)
        middle = (places[u] + places[v]) / 2 + [0, bend]
        reach.append((middle[1] + (places[u] + places[v])[1] / 2) / 2)
        curve = Path([places[u], middle, places[v]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        color = "0.6" if weights[e] == 0 else POSITIVE if weights[e] > 0 else NEGATIVE
        width = thin + (thick - thin) * abs(weights[e]) / largest
        style = "solid" if learnable[e] else (0, (4, 2))
        ax.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=color, linewidth=width, linestyle=style, zorder=1, alpha=0.8)
        )
        if texts is not None:
            at = 0.28 + 0.14 * (e % 2)  # not all at one height, where lines cross
            spot = (1 - at) ** 2 * places[u] + 2 * at * (1 - at) * middle + at**2 * places[v]
            ax.text(
                spot[0], spot[1], texts[e], fontsize=7, color=color, ha="center", va="center", zorder=2, bbox=_PLAIN
            )
    shades = [SHADES.get(float(s), OTHERS) for s in slopes]
    size = 420 if named else 60
    marks: PathCollection = ax.scatter(
        places[:, 0], places[:, 1], s=size, c=shades, edgecolors="black", linewidths=0.8, zorder=3
    )
    marks.set_clip_on(False)
    if named:
        for (x, y), name in zip(places, names, strict=True):
            ax.text(x, y, name, fontsize=5.5 if len(name) > 5 else 7, ha="center", va="center", zorder=4)
    ax.set_xlim(-0.4, columns.max() + 0.4)
    ax.set_ylim(min(reach) - 0.6, max(reach) + 0.6)
    ax.set_axis_off()
    _explain(ax, weights, learnable, slopes)


_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}


def _bend(places: Array, u: int, v: int) -> float:
    """Return how far an edge's middle is moved aside, so that it does not run through vertices in between."""
    (x0, y0), (x1, y1) = places[u], places[v]
    if x1 - x0 < 1.5:
        return 0.0
    between = places[(places[:, 0] > x0) & (places[:, 0] < x1)]
    if not len(between):
        return 0.0

    def nearest(bend: float) -> float:
        t = (between[:, 0] - x0) / (x1 - x0)
        y = (1 - t) * y0 + t * y1 + 2 * t * (1 - t) * bend
        return float(np.abs(y - between[:, 1]).min())

    options = [0.0, 0.6, -0.6, 1.1, -1.1, 1.7, -1.7, 2.4, -2.4, 3.2, -3.2]
    clear = [bend for bend in options if nearest(bend) > 0.28]
    return clear[0] if clear else max(options, key=nearest)


def _explain(ax: Axes, weights: Array, learnable: NDArray[np.bool_], slopes: Array) -> None:
    shown = []
    for color, there, text in ((POSITIVE, weights > 0, "positive"), (NEGATIVE, weights < 0, "negative")):
        if there.any():
            shown.append(Line2D([], [], color=color, linewidth=2, label=text))
    if not learnable.all():
        shown.append(Line2D([], [], color="0.4", linestyle=(0, (4, 2)), label="fixed"))
    others = ", ".join(f"{s:g}" for s in sorted(set(slopes.tolist()) - set(SHADES)))
    for shade, has, text in (
        (SHADES[1.0], 1.0 in slopes, "linear"),
        (SHADES[0.0], 0.0 in slopes, "ReLU"),
        (OTHERS, bool(others), f"slope {others if len(others) < 30 else others[:28] + '...'}"),
    ):
        if has:
            dot = Line2D([], [], marker="o", linestyle="none", markersize=7, label=text)
            dot.set_markerfacecolor(shade)
            dot.set_markeredgecolor("black")
            shown.append(dot)
    ax.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(shown), frameon=False, fontsize=8)


def _names(vertices: tuple[Hashable, ...], columns: Ints) -> tuple[list[str], dict[int, str]]:
    """Return names to stand in the vertices, and headings of the columns that are of one node of a layer graph."""
    nodes: dict[int, set[str | None]] = {}
    for vertex, column in zip(vertices, columns.tolist(), strict=True):
        node = str(vertex[0]) if isinstance(vertex, tuple) and len(vertex) >= 2 else None
        if vertex != "constant":
            nodes.setdefault(column, set()).add(node)
    headings = {column: next(iter(own)) for column, own in nodes.items() if len(own) == 1}
    names = []
    for vertex, column in zip(vertices, columns.tolist(), strict=True):
        under = isinstance(vertex, tuple) and headings.get(column) is not None
        names.append(", ".join(map(str, vertex[1:])) if under else _shortened(vertex))  # type: ignore[index]
    return names, {column: name for column, name in headings.items() if name is not None}


def _shortened(vertex: Hashable) -> str:
    if vertex == "constant":
        return "const"
    if isinstance(vertex, tuple) and len(vertex) >= 2:
        return f"{str(vertex[0])[:6]}\n{', '.join(map(str, vertex[1:]))}"
    text = str(vertex)
    return text if len(text) <= 9 else text[:8] + "…"
