"""Drawings of computation graphs from left to right: operations as boxes, skips as arcs, neurons as circles."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

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

# operations
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
_WHITE = ("linear", "outside", "add")  # boxes dark enough for white letters
_LETTER = 0.066  # width of a letter in inches
_LINE = 26  # columns of a line, about
_LONGEST = 22  # letters of a label
# neurons
EDGE_LIMIT = 2000
POSITIVE, NEGATIVE = canvas.OKABE_ITO[:2]
SHADES, OTHERS = {1.0: "white", 0.0: "0.75"}, "#f0e6c8"  # linear and ReLU; other slopes
_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}


def draw_operations(nodes: Sequence[Node], output: str, axes: Any = None) -> Axes:
    """Draw the nodes of a layer graph; see `LayerGraph.draw`."""
    from matplotlib.patches import FancyBboxPatch, Patch

    layout = _Layout(nodes, output)
    ax: Axes = canvas.axes_for(axes, (1, 1), layout.size)[0]
    wide, tall = layout.wide, layout.tall
    given: dict[str, Any] = {"ha": "center", "rotation": 90 if layout.upright else 0, "zorder": 4}
    outline: dict[str, Any] = {"edgecolor": "0.25", "linewidth": 0.8}
    for node in nodes:
        for name in dict.fromkeys(node.inputs):
            _connect(ax, layout, name, node.name)
        x, y = layout.place(node.name)
        style: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.06", "facecolor": _KINDS[node.op][0]}
        ax.add_patch(FancyBboxPatch((x - wide / 2, y - tall / 2), wide, tall, zorder=3, **style, **outline))
        letters = "white" if node.op in _WHITE else "black"
        ax.text(x, y, layout.labels[node.name], va="center", size=8, color=letters, linespacing=1.05, **given)
        if node.name == output or node.op not in ("activation", "add", "diagonal"):
            ax.text(x, y - tall / 2 - 0.05, layout.shapes[node.name], va="top", size=7, color="0.35", **given)
    left, bottom, right, top = layout.bounds
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.set_axis_off()
    if layout.kinds:
        handles = [Patch(facecolor=_KINDS[op][0], label=_KINDS[op][1], **outline) for op in layout.kinds]
        ax.legend(handles=handles, ncols=layout.abreast, frameon=False, fontsize=8, loc="lower left", borderaxespad=0.0)
    return ax


class _Layout:
    """Layout in inches: one column per step, the longest path in lane 0, branches in lanes below.

    Long graphs are split into lines at positions where a single value connects both parts.
    """

    def __init__(self, nodes: Sequence[Node], output: str) -> None:
        self.columns: dict[str, int] = {}
        for node in nodes:
            self.columns[node.name] = max((self.columns[name] + 1 for name in node.inputs), default=0)
        self.lanes = _lanes(nodes, output, self.columns)
        self.labels = {node.name: _label(node) for node in nodes}
        self.shapes = {node.name: "×".join(map(str, node.shape)) or "1" for node in nodes}
        count = max(self.columns.values()) + 1
        self.upright = count > 9
        longest = _LETTER * max(len(line) for text in self.labels.values() for line in text.split("\n"))
        self.wide = 0.32 if self.upright else longest + 0.12
        self.tall = longest + 0.12 if self.upright else 0.42
        below = _LETTER * max(map(len, self.shapes.values())) if self.upright else 0.2  # for the shape under a box
        self.step = self.wide + (0.14 if self.upright else 0.3)
        self.gap = self.tall + below + 0.25
        ends = [(name, node.name) for node in nodes for name in node.inputs]
        self.starts = _breaks([(self.columns[a], self.columns[b]) for a, b in ends], count)
        self.heights: list[float] = []  # of the middle of every line's lane 0
        depth = 0.0
        for line in range(len(self.starts)):
            rises = [self.rise(*end) for end in ends if self.line(end[0]) == self.line(end[1]) == line]
            deepest = max(self.lanes[name] for name in self.columns if self.line(name) == line)
            top = self.tall / 2 + max([0.0, *rises]) + 0.12
            self.heights.append(-depth - top)
            depth += top + deepest * self.gap + self.tall / 2 + below + 0.1
        self.kinds = [op for op in _KINDS if op != "input" and any(node.op == op for node in nodes)]
        left = -self.wide / 2 - 0.2
        right = max(np.diff([*self.starts, count]) - 1) * self.step + self.wide / 2 + 0.2
        self.abreast = max(1, min(len(self.kinds), int((right - left) / 1.6)))
        self.bounds = (left, -depth - 0.22 * -(-len(self.kinds) // self.abreast) - 0.1, right, 0.0)
        self.size = (right - left + 0.2, 0.2 - self.bounds[1])

    def line(self, name: str) -> int:
        """Return the line that a node is in."""
        return sum(self.columns[name] >= start for start in self.starts) - 1

    def place(self, name: str) -> tuple[float, float]:
        """Return the middle of a node's box."""
        line = self.line(name)
        column = self.columns[name] - self.starts[line]
        return column * self.step, self.heights[line] - self.lanes[name] * self.gap

    def rise(self, source: str, target: str) -> float:
        """Return the height of an edge above the boxes, or 0 if nothing lies between its ends."""
        span = self.columns[target] - self.columns[source]
        return 0.0 if span == 1 or self.lanes[source] or self.lanes[target] else min(0.14 + 0.1 * span, 1.6)


def _breaks(ends: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return the first column of every line; lines can differ in length."""
    lines = -(-count // _LINE)
    good = [c for c in range(1, count) if sum(start < c <= end for start, end in ends) == 1] if lines > 1 else []
    starts = [0]
    for line in range(1, lines):
        wanted = round(line * count / lines)
        near = [c for c in good if abs(c - wanted) <= _LINE // 4 and c > starts[-1]]
        starts += [min(near, key=lambda c: abs(c - wanted))] if near else []
    return starts


def _lanes(nodes: Sequence[Node], output: str, columns: Mapping[str, int]) -> dict[str, int]:
    """Return the lane of every node: 0 on a longest path to the output, otherwise a lane free of other nodes."""
    inputs, last = {node.name: node.inputs for node in nodes}, dict.fromkeys(columns, 0)
    for node in nodes:
        last |= {name: max(last[name], columns[node.name]) for name in node.inputs}
    lanes, name = {output: 0}, output
    while inputs[name]:  # of several longest ones that through the earliest input
        name = max(inputs[name], key=lambda before: columns[before])
        lanes[name] = 0
    free: dict[int, int] = {}  # the first free column of every lane
    branches = [name for name in inputs if name not in lanes]
    for column in sorted({columns[name] for name in branches}):
        here = [name for name in branches if columns[name] == column]
        taken: set[int] = set()
        for on in (True, False):  # first those that stay in a lane, from a value that all take in this column
            for name in here:
                before = {lanes[n] for n in inputs[name] if n in lanes and last[n] == column} - {0, *taken}
                if name in lanes or (on and not before):
                    continue
                open_lanes = (k for k in range(1, len(nodes) + 1) if free.get(k, 0) <= column and k not in taken)
                lanes[name] = min(before) if on else next(open_lanes)
                taken.add(lanes[name])
        free |= {lanes[name]: last[name] for name in here}
    return lanes


def _label(node: Node) -> str:
    words, factors = node.text, node.factors
    if node.op == "add" and all(abs(factor) == 1 for factor in factors):
        words = "−" if factors in ((1, -1), (-1,)) else "+"
    elif node.op == "add":
        words = f"× {factors[0]:.3g}" if len(factors) == 1 else " ".join(f"{factor:+.2g}" for factor in factors)
    elif node.op == "diagonal":
        words = f"× {node.weight}"
    elif node.op == "activation" and not np.isnan(node.slope) and node.slope not in (0.0, 1.0, -1.0):
        words = f"{words} {node.slope:g}"
    second = node.module if node.op in ("linear", "conv", "outside") else ""
    if node.op in ("linear", "conv"):
        second = second or node.weight
    lines = [line for line in (words, second) if line]
    return "\n".join(line if len(line) <= _LONGEST else f"…{line[1 - _LONGEST :]}" for line in lines)


def _connect(ax: Axes, layout: _Layout, source: str, target: str) -> None:
    """Draw the arrow from a node to a node that uses its value."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    (x, y), (u, v) = layout.place(source), layout.place(target)
    wide, tall = layout.wide / 2, layout.tall / 2
    straight, curve = [Path.MOVETO, Path.LINETO], [Path.CURVE4] * 3
    if layout.line(source) != layout.line(target):  # on at the right, in at the left
        out, into = (x + wide, y), (u - wide, v)
        paths = [Path([out, (out[0] + 0.17, y)], straight), Path([(into[0] - 0.17, v), into], straight)]
    elif layout.rise(source, target):
        high = y + tall + layout.rise(source, target) * 4 / 3  # a Bezier curve reaches 3/4 of its control points
        points = [(x + wide / 3, y + tall), (x + wide / 3, high), (u - wide / 3, high), (u - wide / 3, v + tall)]
        paths = [Path(points, [Path.MOVETO, *curve])]
    else:
        along = max(x + wide, u - layout.step + wide)  # along the source's lane to the last gap
        if layout.lanes[source] == 0 and layout.lanes[target]:
            along = x + wide  # at once into the target's
        end = along + layout.step - 2 * wide - 0.05
        bend = (end - along) * 0.6
        points = [(x + wide, y), (along, y), (along + bend, y), (end - bend, v), (end, v), (u - wide, v)]
        paths = [Path(points, [*straight, *curve, Path.LINETO])]
    for path in paths:
        ax.add_patch(
            FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=12, color="0.35", linewidth=1.1, zorder=2)
        )


def graph_places(wiring: Wiring) -> tuple[Ints, Array]:
    """Return the columns and heights of the vertices of a graph, with few crossings and the constant at the bottom.

    Each vertex is near the mean of its neighbors; inputs are ordered by their coordinates.
    """
    columns, coordinates = wiring.levels.copy(), wiring.coordinates
    columns[np.setdiff1d(wiring.outputs, wiring.sources)] = columns.max()
    heights = np.zeros(len(columns))
    below = np.flatnonzero(coordinates == -1)
    rows = np.setdiff1d(np.arange(len(columns)), below)
    members = [rows[columns[rows] == c] for c in range(columns.max() + 1)]
    members[0] = members[0][np.argsort(coordinates[members[0]], kind="stable")]
    for column in members:
        heights[column] = (len(column) - 1) / 2 - np.arange(len(column))
    pulls = ~np.isin(wiring.sources, below)
    sources, targets = wiring.sources[pulls], wiring.targets[pulls]
    for sweep in range(6):
        near, far = (targets, sources) if sweep % 2 == 0 else (sources, targets)
        total = np.bincount(near, heights[far], len(columns))
        count = np.bincount(near, minlength=len(columns))
        wanted = np.where(count > 0, total / np.maximum(count, 1), heights)
        for column in members[1:]:
            order = column[np.argsort(-wanted[column], kind="stable")]
            heights[order] = (len(column) - 1) / 2 - np.arange(len(column))
    tallest = max(map(len, members))
    for column in members:  # the distances of vertices are 1 in the tallest column, at most 2.5 in short ones
        heights[column] *= np.clip((tallest - 1) / max(1, len(column) - 1), 1, 2.5)
    heights[below] = heights[rows].min(initial=0) - 1 - np.arange(len(below))
    return columns, heights


def tree_places(parents: Ints, depths: Ints, leaves: Ints) -> tuple[Ints, Array]:
    """Return columns and heights of the nodes of trees: leaves in one column, a node at its children's mean height."""
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


def draw_neurons(
    places: tuple[Ints, Array],
    ends: Ints,
    weights: Array,
    learnable: NDArray[np.bool_],
    slopes: Array,
    names: Sequence[str],
    axes: Any,
    *,
    number: str = ".2g",
    headings: Mapping[int, str] | None = None,
) -> Axes:
    """Draw a weighted DAG; see `NeuronGraph.draw`.

    Parameters
    ----------
    places : tuple of ndarray
        Columns and heights of the vertices.
    ends : ndarray
        Numbers of the vertices that edges join, (edges, 2).
    weights, learnable : ndarray
        (edges,).
    slopes : ndarray
        (vertices,).
    names : sequence of str
        Of the vertices.
    axes : matplotlib Axes, optional
        Default: new axes.
    number : str
        Format of the weights.
    headings : mapping, optional
        From columns to texts.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    validation.expect(
        len(ends) <= EDGE_LIMIT, "draw", f"{len(ends)} edges", f"at most {EDGE_LIMIT}; more cannot be seen"
    )
    columns, heights = places
    wide, tall = np.clip(1.9 * (columns.max() + 1), 4, 16), np.clip(0.65 * (np.ptp(heights) + 2), 2.5, 12)
    ax: Axes = canvas.axes_for(axes, (1, 1), (float(wide), float(tall)))[0]
    spots = np.stack([columns.astype(np.float64), heights], 1)
    named = len(columns) <= 40
    largest = np.abs(weights).max(initial=0) or 1.0
    reach = [heights.min(), heights.max()]
    thick, thin = (3.0, 0.5) if len(ends) <= 200 else (1.6, 0.2)
    centered: dict[str, Any] = {"ha": "center", "va": "center"}
    for e, (u, v) in enumerate(ends.tolist()):
        middle = (spots[u] + spots[v]) / 2 + [0, _bend(spots, u, v)]
        reach.append((middle[1] + (spots[u] + spots[v])[1] / 2) / 2)
        color = "0.6" if weights[e] == 0 else POSITIVE if weights[e] > 0 else NEGATIVE
        style: dict[str, Any] = {
            "linestyle": "solid" if learnable[e] else (0, (4, 2)),
            "facecolor": "none",
            "linewidth": thin + (thick - thin) * abs(weights[e]) / largest,
            "edgecolor": color,
            "alpha": 0.8,
        }
        curve = Path([spots[u], middle, spots[v]], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        ax.add_patch(PathPatch(curve, zorder=1, **style))
        if len(weights) <= 30:  # more numbers could not be read
            at = 0.28 + 0.14 * (e % 2)  # not all at one height, where lines cross
            x, y = (1 - at) ** 2 * spots[u] + 2 * at * (1 - at) * middle + at**2 * spots[v]
            ax.text(x, y, format(weights[e], number), fontsize=7, color=color, zorder=2, bbox=_PLAIN, **centered)
    shades = [SHADES.get(float(s), OTHERS) for s in slopes]
    size = 420 if named else 60
    marks = ax.scatter(spots[:, 0], spots[:, 1], s=size, c=shades, edgecolors="black", linewidths=0.8, zorder=3)
    marks.set_clip_on(False)
    for (x, y), name in zip(spots, names, strict=True) if named else ():
        ax.text(x, y, name, fontsize=5.5 if len(name) > 5 else 7, zorder=4, **centered)
    ax.set(xlim=(-0.4, columns.max() + 0.4), ylim=(min(reach) - 0.6, max(reach) + 0.6))
    ax.set_axis_off()
    _explain(ax, weights, learnable, slopes)
    for column, heading in (headings or {}).items():
        ax.text(column, 1.0, heading, fontsize=8, ha="center", va="bottom", transform=ax.get_xaxis_transform())
    return ax


def _bend(places: Array, u: int, v: int) -> float:
    """Return the vertical shift of an edge's middle that avoids the vertices in between."""
    (x0, y0), (x1, y1) = places[u], places[v]
    between = places[(places[:, 0] > x0) & (places[:, 0] < x1)]
    if not len(between):
        return 0.0

    def nearest(bend: float) -> float:
        t = (between[:, 0] - x0) / (x1 - x0)
        y = (1 - t) * y0 + t * y1 + 2 * t * (1 - t) * bend
        return float(np.abs(y - between[:, 1]).min())

    options = [0.0, 0.6, -0.6, 1.1, -1.1, 1.7, -1.7, 2.4, -2.4, 3.2, -3.2]
    return next((bend for bend in options if nearest(bend) > 0.28), max(options, key=nearest))


def _explain(ax: Axes, weights: Array, learnable: NDArray[np.bool_], slopes: Array) -> None:
    """Add a legend of the kinds of edges and vertices in the drawing."""
    from matplotlib.lines import Line2D

    others = ", ".join(f"{s:g}" for s in sorted(set(slopes.tolist()) - set(SHADES)))
    lines: list[tuple[Any, str, Any, str]] = [
        ((weights > 0).any(), POSITIVE, "-", "positive"),
        ((weights < 0).any(), NEGATIVE, "-", "negative"),
        (not learnable.all(), "0.4", (0, (4, 2)), "fixed"),
    ]
    dots = [
        (1.0 in slopes, SHADES[1.0], "linear"),
        (0.0 in slopes, SHADES[0.0], "ReLU"),
        (bool(others), OTHERS, f"slope {others if len(others) < 30 else others[:28] + '...'}"),
    ]
    black: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 7, "markeredgecolor": "black"}
    shown = [
        Line2D([], [], color=color, linestyle=dash, linewidth=2, label=text) for on, color, dash, text in lines if on
    ]
    shown += [Line2D([], [], markerfacecolor=shade, label=text, **black) for on, shade, text in dots if on]
    ax.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(shown), frameon=False, fontsize=8)


def graph_names(vertices: tuple[Hashable, ...], columns: Ints) -> tuple[list[str], dict[int, str]]:
    """Return vertex labels, and headings for columns that belong to a single node of a layer graph."""
    split = [(str(v[0]), ", ".join(map(str, v[1:]))) if _is_entry(v) else ("", "") for v in vertices]
    headings = {}
    for column in np.unique(columns).tolist():
        nodes = {split[v][0] for v in np.flatnonzero(columns == column) if vertices[v] != "constant"}
        if len(nodes) == 1 and "" not in nodes:
            headings[column] = nodes.pop()
    named = zip(vertices, split, columns.tolist(), strict=True)
    return [entry if node and column in headings else shortened(v) for v, (node, entry), column in named], headings


def shortened(vertex: Hashable) -> str:
    """Return the name of a vertex, shortened to fit into it."""
    if vertex == "constant":
        return "const"
    if _is_entry(vertex):
        return f"{str(vertex[0])[:6]}\n{', '.join(map(str, vertex[1:]))}"
    text = str(vertex)
    return text if len(text) <= 9 else text[:8] + "…"


def _is_entry(vertex: Hashable) -> TypeGuard[tuple[Hashable, ...]]:
    """Return whether the name of a vertex is that of an entry of a node."""
    return isinstance(vertex, tuple) and len(vertex) >= 2
