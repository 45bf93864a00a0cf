"""Computation graphs as pictures: operations from left to right, skips as arcs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bnrank._core import axes as canvas
from bnrank.networks.graph.nodes import Graph, Node

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_UPRIGHT = 9  # most columns whose labels lie
_LETTER = 0.066  # width of a letter in inches
_LINE = 26  # columns of a line, about
_LONGEST = 22  # letters of a label


def draw(graph: Graph, axes: Any = None) -> Axes:
    """Draw a graph; see `LayerGraph.draw`."""
    from matplotlib.patches import Patch

    layout = _Layout(graph)
    ax: Axes = canvas.axes_for(axes, (1, 1), layout.size)[0]
    for node in graph:
        for name in dict.fromkeys(node.inputs):
            _edge(ax, layout, name, node.name)
    for node in graph:
        _box(ax, layout, node, node.name == graph.output)
    left, bottom, right, top = layout.bounds
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.set_axis_off()
    handles = [
        Patch(facecolor=_KINDS[op][0], edgecolor="0.25", linewidth=0.8, label=_KINDS[op][1]) for op in layout.kinds
    ]
    if handles:
        ax.legend(handles=handles, ncols=layout.abreast, frameon=False, fontsize=8, loc="lower left", borderaxespad=0.0)
    return ax


class _Layout:
    """Where everything goes, in inches: a column per step, the longest path in lane 0, branches in lanes below.

    Long graphs are broken into lines where a single value connects them.
    """

    def __init__(self, graph: Graph) -> None:
        self.columns = _columns(graph)
        self.lanes = _lanes(graph, self.columns)
        self.labels = {node.name: _label(node) for node in graph}
        self.shapes = {node.name: "×".join(map(str, node.shape)) or "1" for node in graph}
        count = max(self.columns.values()) + 1
        self.upright = count > _UPRIGHT
        longest = _LETTER * max(len(line) for text in self.labels.values() for line in text.split("\n"))
        self.wide = 0.32 if self.upright else longest + 0.12
        self.tall = longest + 0.12 if self.upright else 0.42
        below = _LETTER * max(map(len, self.shapes.values())) if self.upright else 0.2  # for the shape under a box
        self.step = self.wide + (0.14 if self.upright else 0.3)
        self.gap = self.tall + below + 0.25
        self.starts = _breaks(graph, self.columns, count)
        ends = [(name, node.name) for node in graph for name in node.inputs]
        self.heights: list[float] = []  # of the middle of every line's lane 0
        depth = 0.0
        for line in range(len(self.starts)):
            rises = [self.rise(*end) for end in ends if self.line(end[0]) == self.line(end[1]) == line]
            deepest = max(self.lanes[name] for name in self.columns if self.line(name) == line)
            top = self.tall / 2 + max([0.0, *rises]) + 0.12
            self.heights.append(-depth - top)
            depth += top + deepest * self.gap + self.tall / 2 + below + 0.1
        self.kinds = [op for op in _KINDS if op != "input" and any(node.op == op for node in graph)]
        longest_line = max(end - start for start, end in zip(self.starts, [*self.starts[1:], count], strict=True))
        left, right = -self.wide / 2 - 0.2, (longest_line - 1) * self.step + self.wide / 2 + 0.2
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
        """Return how high above the boxes an edge goes: 0 where nothing lies between."""
        span = self.columns[target] - self.columns[source]
        if span == 1 or self.lanes[source] or self.lanes[target]:
            return 0.0
        return min(0.14 + 0.1 * span, 1.6)


def _breaks(graph: Graph, columns: Mapping[str, int], count: int) -> list[int]:
    """Return the columns that lines begin with, not all lines of the same length."""
    lines = -(-count // _LINE)
    crossing = [0] * (count + 1)
    for node in graph:
        for name in node.inputs:
            for column in range(columns[name] + 1, columns[node.name] + 1):
                crossing[column] += 1
    starts = [0]
    if lines > 1:
        good = [c for c in range(1, count) if crossing[c] == 1]
        for line in range(1, lines):
            wanted = round(line * count / lines)
            near = [c for c in good if abs(c - wanted) <= _LINE // 4 and c > starts[-1]]
            starts += [min(near, key=lambda c: abs(c - wanted))] if near else []
    return starts


def _columns(graph: Graph) -> dict[str, int]:
    columns: dict[str, int] = {}
    for node in graph:
        columns[node.name] = max((columns[name] + 1 for name in node.inputs), default=0)
    return columns


def _lanes(graph: Graph, columns: Mapping[str, int]) -> dict[str, int]:
    """Return 0 for a longest path to the output; elsewhere lanes in which nothing is in a branch's way."""
    lanes = {graph.output: 0}
    node = graph[graph.output]
    while node.inputs:  # of several longest ones that through the earliest input
        node = graph[max(node.inputs, key=lambda name: columns[name])]
        lanes[node.name] = 0
    last = {name: max((columns[other.name] for other in graph.consumers(name)), default=0) for name in columns}
    free: dict[int, int] = {}  # the first free column of every lane
    branches = [node for node in graph if node.name not in lanes]
    for column in sorted({columns[node.name] for node in branches}):
        here = [node for node in branches if columns[node.name] == column]
        taken: set[int] = set()
        for on in (True, False):  # first those that stay in a lane, from a value that all take in this column
            for node in here:
                before = {lanes[name] for name in node.inputs if name in lanes and last[name] == column} - {0, *taken}
                if node.name in lanes or (on and not before):
                    continue
                open_lanes = (k for k in range(1, len(graph) + 1) if free.get(k, 0) <= column and k not in taken)
                lane = lanes[node.name] = min(before) if on else next(open_lanes)
                taken.add(lane)
        free |= {lanes[node.name]: last[node.name] for node in here}
    return lanes


def _label(node: Node) -> str:
    words = node.text
    if node.op == "add":
        ahead = "".join("+" if factor > 0 else "−" for factor in node.factors)
        plain = all(abs(factor) == 1 for factor in node.factors)
        words = {"++": "+", "+-": "−", "-": "−"}.get(ahead.replace("−", "-"), "+") if plain else _factors(node)
    elif node.op == "diagonal":
        words = f"× {node.weight}"
    elif node.op == "activation" and node.slope == node.slope and node.slope not in (0.0, 1.0, -1.0):
        words = f"{words} {node.slope:g}"
    second = node.module if node.op in ("linear", "conv", "outside") else ""
    if node.op in ("linear", "conv") and not second:
        second = node.weight
    lines = [line for line in (words, second) if line]
    return "\n".join(line if len(line) <= _LONGEST else f"…{line[1 - _LONGEST :]}" for line in lines)


def _factors(node: Node) -> str:
    one = len(node.factors) == 1
    return f"× {node.factors[0]:.3g}" if one else " ".join(f"{factor:+.2g}" for factor in node.factors)


def _box(ax: Axes, layout: _Layout, node: Node, last: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = layout.place(node.name)
    wide, tall = layout.wide, layout.tall
    color = _KINDS[node.op][0]
    style = "round,pad=0,rounding_size=0.06"
    corner = (x - wide / 2, y - tall / 2)
    ax.add_patch(FancyBboxPatch(corner, wide, tall, style, facecolor=color, edgecolor="0.25", linewidth=0.8, zorder=3))
    given: dict[str, Any] = {"ha": "center", "rotation": 90 if layout.upright else 0, "zorder": 4}
    letters = "white" if node.op in _WHITE else "black"
    ax.text(x, y, layout.labels[node.name], va="center", size=8, color=letters, linespacing=1.05, **given)
    if last or node.op in ("input", "linear", "conv", "average", "maximum", "index", "outside"):
        ax.text(x, y - tall / 2 - 0.05, layout.shapes[node.name], va="top", size=7, color="0.35", **given)


def _edge(ax: Axes, layout: _Layout, source: str, target: str) -> None:
    (x, y), (u, v) = layout.place(source), layout.place(target)
    wide, tall = layout.wide / 2, layout.tall / 2
    rise = layout.rise(source, target)
    if layout.line(source) != layout.line(target):  # on at the right, in at the left
        _stroke(ax, [(x + wide, y), (x + wide + 0.17, y)], ["MOVETO", "LINETO"])
        _stroke(ax, [(u - wide - 0.17, v), (u - wide, v)], ["MOVETO", "LINETO"])
    elif rise:
        high = y + tall + rise * 4 / 3  # a Bezier curve reaches 3/4 of its control points
        points = [(x + wide / 3, y + tall), (x + wide / 3, high), (u - wide / 3, high), (u - wide / 3, v + tall)]
        _stroke(ax, points, ["MOVETO", "CURVE4", "CURVE4", "CURVE4"])
    else:
        along = max(x + wide, u - layout.step + wide)  # along the source's lane to the last gap
        if layout.lanes[source] == 0 and layout.lanes[target]:
            along = x + wide  # at once into the target's
        bend = (layout.step - 2 * wide) * 0.6
        end = along + layout.step - 2 * wide
        points = [(x + wide, y), (along, y), (along + bend, y), (end - bend, v), (end, v), (u - wide, v)]
        codes = ["MOVETO", "LINETO", "CURVE4", "CURVE4", "CURVE4", "LINETO"]
        _stroke(ax, points, codes)


def _stroke(ax: Axes, points: list[tuple[float, float]], codes: list[str]) -> None:
    """Draw a line with an arrow head at its end, which points down after an arc and to the right elsewhere."""
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path

    path = Path(points, [getattr(Path, code) for code in codes])
    ax.add_patch(PathPatch(path, facecolor="none", edgecolor="0.35", linewidth=1.1, zorder=2))
    x, y = points[-1]
    back = [(-0.035, 0.07), (0.035, 0.07)] if codes[-1] == "CURVE4" else [(-0.07, 0.035), (-0.07, -0.035)]
    head = [(x, y), *((x + dx, y + dy) for dx, dy in back)]
    ax.add_patch(Polygon(head, closed=True, facecolor="0.35", edgecolor="none", zorder=2.5))
