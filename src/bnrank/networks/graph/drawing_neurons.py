"""Networks and sign trees as pictures, from left to right."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnrank._core import axes as canvas
from bnrank._core import validation
from bnrank.networks.graph.wiring import Wiring

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGE_LIMIT = 2000
MAX_NAMED = 40  # vertices with names
MAX_WEIGHED = 30  # edges with numbers
SPREAD = 2.5  # largest distance between the vertices of a short column, 1 in the tallest
POSITIVE, NEGATIVE = canvas.OKABE_ITO[0], canvas.OKABE_ITO[1]
SHADES, OTHERS = {1.0: "white", 0.0: "0.75"}, "#f0e6c8"  # linear and ReLU; other slopes
_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Picture:
    """A weighted DAG to draw: vertices in columns at heights, edges by the numbers of their ends.

    Attributes
    ----------
    columns, heights : ndarray
        (vertices,).
    ends : ndarray
        (edges, 2).
    weights, learnable : ndarray
        (edges,).
    slopes : ndarray
        (vertices,).
    names : list of str
        Of the vertices.
    format : str
        Of the weights.
    headings : dict
        From columns to texts.
    """

    columns: Ints
    heights: Array
    ends: Ints
    weights: Array
    learnable: NDArray[np.bool_]
    slopes: Array
    names: list[str]
    format: str = ".2g"
    headings: dict[int, str] = field(default_factory=dict)


def graph_places(wiring: Wiring) -> tuple[Ints, Array]:
    """Return the columns and heights of the vertices of a graph."""
    _check_size(len(wiring.edges))
    columns = wiring.levels.copy()
    columns[np.setdiff1d(wiring.outputs, wiring.sources)] = columns.max()
    return columns, _heights(columns, wiring.sources, wiring.targets, wiring.coordinates)


def tree_places(parents: Ints, depths: Ints, leaves: Ints) -> tuple[Ints, Array]:
    """Return the columns and heights of the nodes of trees: leaves below each other, a node amid its children."""
    _check_size(int((parents >= 0).sum()))
    columns = depths.max() - depths
    columns[leaves] = 0  # entries of h in one column
    total, count = np.zeros(len(parents)), np.zeros(len(parents))
    total[leaves], count[leaves] = -np.arange(len(leaves)), 1
    for node in range(len(parents) - 1, -1, -1):  # children come after their parents
        total[node], count[node] = total[node] / max(count[node], 1), 1
        if parents[node] >= 0:
            total[parents[node]] += total[node]
            count[parents[node]] += 1
    return columns, total


def _check_size(size: int) -> None:
    validation.expect(size <= EDGE_LIMIT, "draw", f"{size} edges", f"at most {EDGE_LIMIT}; more cannot be seen")


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
        heights[column] *= np.clip((tallest - 1) / max(1, len(column) - 1), 1, SPREAD)
    heights[below] = heights[rows].min(initial=0) - 1 - np.arange(len(below))
    return heights


def draw(picture: Picture, axes: Any = None) -> Axes:
    """Draw a picture; see `NeuronGraph.draw`."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    columns, heights, weights = picture.columns, picture.heights, picture.weights
    wide, tall = np.clip(1.9 * (columns.max() + 1), 4, 16), np.clip(0.65 * (np.ptp(heights) + 2), 2.5, 12)
    ax: Axes = canvas.axes_for(axes, (1, 1), (float(wide), float(tall)))[0]
    places = np.stack([columns.astype(np.float64), heights], 1)
    named = len(columns) <= MAX_NAMED
    largest = np.abs(weights).max(initial=0) or 1.0
    reach = [heights.min(), heights.max()]
    thick, thin = (3.0, 0.5) if len(picture.ends) <= 200 else (1.6, 0.2)
    for e, (u, v) in enumerate(picture.ends.tolist()):
        bend = _bend(places, u, v)
        middle = (places[u] + places[v]) / 2 + [0, bend]
        reach.append((middle[1] + (places[u] + places[v])[1] / 2) / 2)
        curve = Path([places[u], middle, places[v]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        color = "0.6" if weights[e] == 0 else POSITIVE if weights[e] > 0 else NEGATIVE
        width = thin + (thick - thin) * abs(weights[e]) / largest
        style = "solid" if picture.learnable[e] else (0, (4, 2))
        ax.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=color, linewidth=width, linestyle=style, zorder=1, alpha=0.8)
        )
        if len(weights) <= MAX_WEIGHED:
            at = 0.28 + 0.14 * (e % 2)  # not all at one height, where lines cross
            spot = (1 - at) ** 2 * places[u] + 2 * at * (1 - at) * middle + at**2 * places[v]
            text = format(weights[e], picture.format)
            ax.text(spot[0], spot[1], text, fontsize=7, color=color, ha="center", va="center", zorder=2, bbox=_PLAIN)
    shades = [SHADES.get(float(s), OTHERS) for s in picture.slopes]
    size = 420 if named else 60
    marks = ax.scatter(places[:, 0], places[:, 1], s=size, c=shades, edgecolors="black", linewidths=0.8, zorder=3)
    marks.set_clip_on(False)
    if named:
        for (x, y), name in zip(places, picture.names, strict=True):
            ax.text(x, y, name, fontsize=5.5 if len(name) > 5 else 7, ha="center", va="center", zorder=4)
    ax.set_xlim(-0.4, columns.max() + 0.4)
    ax.set_ylim(min(reach) - 0.6, max(reach) + 0.6)
    ax.set_axis_off()
    _explain(ax, weights, picture.learnable, picture.slopes)
    for column, heading in picture.headings.items():
        ax.text(column, 1.0, heading, fontsize=8, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    return ax


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
    from matplotlib.lines import Line2D

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


def graph_names(vertices: tuple[Hashable, ...], columns: Ints) -> tuple[list[str], dict[int, str]]:
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
        names.append(", ".join(map(str, vertex[1:])) if under else shortened(vertex))  # type: ignore[index]
    return names, {column: name for column, name in headings.items() if name is not None}


def shortened(vertex: Hashable) -> str:
    """Return a vertex's name, cut to the size of a vertex."""
    if vertex == "constant":
        return "const"
    if isinstance(vertex, tuple) and len(vertex) >= 2:
        return f"{str(vertex[0])[:6]}\n{', '.join(map(str, vertex[1:]))}"
    text = str(vertex)
    return text if len(text) <= 9 else text[:8] + "…"
