"""Parts of charts: rounded values, colors, axes and traces; charts, and the controls that change them."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.colors
import plotly.graph_objects as go
import plotly.io

INK = "#1c1e21"
MUTED = "#5b6168"
GRID = "#ecebe7"
LINE = "#dcdad5"
PANEL = "#ffffff"
SHADE = "rgba(0, 0, 0, .055)"
MEMBERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#3A9BD9", "#C98A00", "#444444")
DASHES = ("solid", "dash", "dot", "dashdot")
SHADES = [
    tuple(plotly.colors.sample_colorscale("Viridis", [0.86 * t, 1 - 0.72 * t])) for t in np.linspace(0, 1, 101).tolist()
]
DARK_MEMBERS = ("#5AB4F0", "#FF8A4C", "#2FCB9E", "#E59CC4", "#A5D8F7", "#F2B632", "#D0D0D0")
DARK = {
    INK: "#e8e6e1",
    MUTED: "#a3a9b1",
    GRID: "#2b2f34",
    LINE: "#373b41",
    PANEL: "#1d2024",
    SHADE: "rgba(255, 255, 255, .07)",
    **dict(zip(MEMBERS, DARK_MEMBERS, strict=True)),
    **dict(SHADES),
}
"""Maps every color used in charts to its color in the dark scheme."""
SCALES = ("linear", "log")


# values --------------------------------------------------------------------------------------------------------------


def numbers(array: Any, digits: int = 5) -> Any:
    """Return nested lists of floats rounded to ``digits`` significant digits, with None for NaN and infinity."""
    array = np.asarray(array)
    if array.ndim:
        return [numbers(entry, digits) for entry in array]
    value = float(array)
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def largest(array: Any) -> float:
    """Return the largest finite value, 1 where there is no positive one."""
    finite = np.asarray(array, dtype=float)
    finite = finite[np.isfinite(finite)]
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def short(value: float | None) -> str:
    """Return a number in four significant digits, a dash for none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def cut(name: str, most: int = 24) -> str:
    """Return a name, truncated to fit in a plot."""
    return name if len(name) <= most else name[: most - 1] + "…"


def told_apart(names: Sequence[str], most: int = 24) -> list[str]:
    """Return dotted names, truncated at their beginning to fit in a plot; those that would be equal are longer.

    Examples
    --------
    >>> told_apart(["model.encoder.layers.0.attention.query", "model.encoder.layers.1.attention.query", "head"])
    ['…0.attention.query', '…1.attention.query', 'head']
    >>> told_apart(["body.0", "body.2"])
    ['body.0', 'body.2']
    """
    found = list(names)
    for i, name in enumerate(names):
        parts = name.split(".")
        for k in range(len(parts) - 1, 0, -1):
            end = "." + ".".join(parts[k:])
            alone = sum(other.endswith(end) for other in names) == 1
            longer = len(parts[k - 1]) + len(end) + 1
            if len(name) > most and alone and longer > most:
                found[i] = f"…{end[1:]}"
                break
    return found


def escaped(text: object) -> str:
    """Return text with plotly's markup escaped."""
    return html.escape(str(text), quote=False)


# colors and axes -----------------------------------------------------------------------------------------------------


def member_color(i: int) -> str:
    """Return the color of a member or class."""
    return MEMBERS[i % len(MEMBERS)]


def index_color(i: int, count: int) -> str:
    """Return the color of a singular value: the largest has the strongest contrast with the page."""
    return str(SHADES[round(100 * i / max(count - 1, 1))][0])


def heat_scale(light: bool = True) -> list[list[Any]]:
    """Return a color scale from pale (or from mid) to strong."""
    if light:
        return [[0, GRID], [0.5, index_color(50, 101)], [1, index_color(0, 101)]]
    return [[i / 10, index_color(10 - i, 11)] for i in range(11)]


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a plotly layout with these axes, in the colors of the page."""
    common = {"gridcolor": GRID, "zerolinecolor": LINE, "linecolor": LINE, "tickcolor": LINE, "automargin": True}
    axes = {}
    for name, axis in (("xaxis", x), ("yaxis", y)):
        axes[name] = {**common, **axis, "title": {"standoff": 8, "text": axis.get("title", "")}}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "hoverlabel": {"bgcolor": PANEL, "bordercolor": LINE, "font": {"color": INK}},
        "margin": {"l": 58, "r": 14, "t": 12, "b": 46},
        "template": "none",
        **axes,
        **more,
    }


def count_axis(title: str, count: int, first: int = 1, most: int = 14) -> dict[str, Any]:
    """Return an axis over ``first``, ``first + 1``, ...: layers, indices, components.

    It has at most so many ticks, half as many from 100 on: as fit side by side on a narrow page.
    """
    last = first + max(count, 1) - 1
    every = -(-max(count, 1) // (most if last < 100 else (most + 1) // 2))
    ticks = {"tickformat": "d", "dtick": every, "tick0": first, "tickangle": 0}
    return {"title": title, **ticks, "range": [first - 0.5, last + 0.5]}


def named_axis(title: str, names: Sequence[str], first: int = 0, most: int = 10_000, **more: Any) -> dict[str, Any]:
    """Return an axis over ``first``, ``first + 1``, ... whose ticks are names, every n-th where there are too many."""
    every = -(-len(names) // most)
    at = list(range(first, first + len(names), every))
    return {"title": title, "tickmode": "array", "tickvals": at, "ticktext": list(names[::every]), **more}


def step_axis(steps: Sequence[float] = ()) -> dict[str, Any]:
    """Return an axis over training steps."""
    ends = {"range": [steps[0], steps[-1]]} if len(steps) > 1 else {}
    return {"title": "step", "tickformat": ",", "nticks": 5, "tickangle": 0, **ends}


def value_ranges(values: Any) -> list[list[float]]:
    """Return the range of a linear axis from 0, and of a logarithmic axis of at most five decades."""
    array = np.asarray(values, dtype=float)
    top = largest(array)
    low = math.log10(max(float(np.min(array[array > 0], initial=top)), 1e-5 * top))
    room = max(0.04 * (math.log10(top) - low), 0.02)
    return [[0, numbers(1.06 * top)], [numbers(low - room), numbers(math.log10(top) + room)]]


def value_axis(title: str, values: Any, log: bool = False) -> dict[str, Any]:
    """Return an axis for non-negative values."""
    axis = {"title": title, "type": SCALES[log], "range": value_ranges(values)[log], "exponentformat": "power"}
    return {**axis, "nticks": 7} if log else axis


def log_axis(title: str, values: Any) -> dict[str, Any]:
    """Return a logarithmic axis that shows all positive values."""
    array = np.asarray(values, dtype=float)
    array = np.log10(array[(array > 0) & np.isfinite(array)])
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    room = max(0.04 * (high - low), 0.02)
    ticks = max(1, round((high - low) / 6)) if high - low > 2.4 else "D2"
    spread = [numbers(low - room), numbers(high + room)]
    return {"title": title, "type": "log", "range": spread, "tickformat": "~g", "dtick": ticks}


def dotted(axis: str, value: float) -> dict[str, Any]:
    """Return a dotted line across the plot at a value of an axis."""
    line = {"type": "line", "line": {"color": MUTED, "width": 1, "dash": "dot"}}
    other = "y" if axis == "x" else "x"
    return {**line, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1, f"{axis}0": value, f"{axis}1": value}


def band(low: float, high: float) -> dict[str, Any]:
    """Return a shaded range of x."""
    box = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "fillcolor": SHADE, "line": {"width": 0}}
    return {**box, "layer": "below", "x0": low, "x1": high}


def gap_after(ratio: float, place: int, of: int, y: float) -> dict[str, Any]:
    """Return a dotted line after a place and, next to it, the ratio of the values there, as parts of a layout."""
    left = place > of / 2
    text = f"gap {ratio:.1e}" if ratio >= 1e5 else f"gap {ratio:,.0f}" if ratio >= 100 else f"gap {short(ratio)}"
    side = {"xanchor": "right", "xshift": -6} if left else {"xanchor": "left", "xshift": 6}
    label = written(text, x=place + 0.5, y=y, yref="paper", **side)
    return {"shapes": [dotted("x", place + 0.5)], "annotations": [label]}


def written(text: str, **where: Any) -> dict[str, Any]:
    """Return a text annotation of the plot."""
    return {"text": text, "showarrow": False, "font": {"color": MUTED, "size": 12}, **where}


def color_bar(title: str, **more: Any) -> dict[str, Any]:
    """Return a color bar."""
    return {"title": {"text": title, "side": "top"}, "thickness": 12, "outlinewidth": 0, "nticks": 6, **more}


def figure(data: Any, x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> go.Figure:
    """Return a figure with these axes, in the colors of the page."""
    return go.Figure(data, layout(x, y, **more))


def line(x: Any, y: Any, color: str, hover: str = "", *, width: float = 2, size: float = 5, **more: Any) -> go.Scatter:
    """Return a line with markers, without them for size 0."""
    style = {"mode": "lines+markers" if size else "lines", "line": {"color": color, "width": width}}
    return go.Scatter(x=x, y=y, marker={"size": size}, **_hover(hover), **{**style, **more})


def dots(x: Any, y: Any, hover: str = "", *, size: float = 6, **marker: Any) -> go.Scatter:
    """Return markers without a line."""
    return go.Scatter(x=x, y=y, mode="markers", marker={"size": size, **marker}, **_hover(hover))


def heat_map(z: Any, hover: str, bar: Mapping[str, Any], **more: Any) -> go.Heatmap:
    """Return a heat map of small squares, pale for 0."""
    style = {"zmin": 0, "colorscale": heat_scale(), "xgap": 1, "ygap": 1, "colorbar": bar}
    return go.Heatmap(z=z, **_hover(hover), **{**style, **more})


def _hover(text: str) -> dict[str, str]:
    return {"hovertemplate": f"{text}<extra></extra>"} if text else {"hoverinfo": "skip"}


def spectrum_lines(x: Sequence[Any], rows: Any, what: str) -> list[go.Scatter]:
    """Return a line per singular value over x, the largest on top; ``rows`` has one row per position."""
    values = np.asarray(rows, dtype=float)
    count, size = values.shape[1], 0 if len(x) > 40 else 5
    lines = []
    for i in reversed(range(count)):
        hover, row = f"{what}<br>s<sub>{i + 1}</sub> = %{{y:.4g}}", numbers(values[:, i])
        lines.append(line(x, row, index_color(i, count), hover, size=size, name=f"s{i + 1}"))
    return lines


def index_key(count: int) -> list[tuple[str, str]]:
    """Return the legend of singular values."""
    return [(index_color(i, count), f"s{i + 1}") for i in range(count)]


# figures -------------------------------------------------------------------------------------------------------------


def is_plotly(value: Any) -> bool:
    """Return whether a value is a plotly figure or the mapping of one."""
    return hasattr(value, "to_plotly_json") or (isinstance(value, Mapping) and "data" in value)


def plain(value: Any) -> dict[str, Any]:
    """Return a plotly figure (or a mapping with ``data`` and ``layout``) as plain JSON, without its template."""
    found: dict[str, Any] = json.loads(plotly.io.to_json(value, validate=False))
    return {
        "data": found.get("data", []),
        "layout": {key: entry for key, entry in found.get("layout", {}).items() if key != "template"},
    }


def as_json(value: Any) -> dict[str, Any]:
    """Return a figure, or a part of a chart, as plain values for the page's script."""
    return plain(value) if is_plotly(value) else vars(value)


@dataclass(frozen=True)
class Control:
    """A list to choose from; equal names in one group are one choice."""

    name: str
    label: str
    options: Sequence[str]
    chosen: int = 0


@dataclass(frozen=True)
class Change:
    """What a choice changes in a chart.

    Attributes
    ----------
    target : str
        "figure", "heading", "note", a path in the layout ("layout.yaxis.range"), or an attribute of every trace ("y").
    by : tuple of str
        Names of the controls, outermost index of ``values`` first.
    values : nested list
        For every choice, the new value (one per trace for an attribute of traces).
    """

    target: str
    by: tuple[str, ...]
    values: Sequence[Any]


def scale_changes(ranges: Sequence[Any], by: tuple[str, ...] = ()) -> list[Change]:
    """Return the changes of the y axis by the control "scale"; its ranges may also depend on other controls."""
    return [Change("layout.yaxis.type", ("scale",), SCALES), Change("layout.yaxis.range", (*by, "scale"), ranges)]


@dataclass(frozen=True)
class Chart:
    """A plotly figure in a card.

    Attributes
    ----------
    title : str
        Heading of the card.
    figure : go.Figure
        The initial figure.
    narrow : go.Figure, optional
        The figure shown instead in a window below 900 pixels.
    note : str
        Text below the plot.
    size : str
        "", "tall", or "wide".
    key : sequence of (color, text)
        Legend below the plot.
    picks : str
        Name of the control that is set by a click on a legend entry.
    controls : sequence of Control
        Shown in the head of the card.
    changes : sequence of Change
        The changes that the controls make.
    marks : tuple of str
        "step" for a vertical line at the chosen step, "threshold" for a horizontal one.
    derived : str
        "ranks" or "layer": computed on the page from the spectra of the group and the threshold.
    """

    title: str
    figure: go.Figure
    narrow: go.Figure | None = None
    note: str = ""
    size: str = ""
    key: Sequence[tuple[str, str]] = ()
    picks: str = ""
    controls: Sequence[Control] = ()
    changes: Sequence[Change] = ()
    marks: tuple[str, ...] = ()
    derived: str = ""


@dataclass(frozen=True)
class Group:
    """Charts that share controls: one history, one profile, or one result.

    Attributes
    ----------
    label : str
        Its name among the groups of a view.
    charts : sequence of Chart
        In order.
    controls : sequence of Control
        Above the charts.
    steps : sequence of int
        Positions of the slider.
    ends : sequence of int
        The last position of the slider with a value, per member.
    stopped : sequence of str
        The remark on a member at later positions.
    threshold : float, optional
        First value of the live threshold.
    notes : str
        Text below the charts.
    """

    label: str
    charts: Sequence[Chart]
    controls: Sequence[Control] = ()
    steps: Sequence[int] = ()
    ends: Sequence[int] = ()
    stopped: Sequence[str] = ()
    threshold: float | None = None
    notes: str = ""


@dataclass(frozen=True)
class View:
    """Groups of charts, one shown at a time."""

    kind: str
    groups: Sequence[Group]


def ready_made(value: Any, caption: str) -> View:
    """Return the view of the user's own plotly figure, in the colors of the page where it has none."""
    own = plain(value)
    axes = {name: axis for name, axis in own["layout"].items() if name[:5] in ("xaxis", "yaxis")}
    base = layout({}, {})
    for name in {*axes, "xaxis", "yaxis"}:
        title = axes.get(name, {}).get("title", {})
        title = {"standoff": 8, **({"text": title} if isinstance(title, str) else title)}
        own["layout"][name] = {**base["xaxis"], **axes.get(name, {}), "title": title}
    fixed = {name: base[name] for name in ("paper_bgcolor", "plot_bgcolor")}
    font = {**own["layout"].get("font", {}), **base["font"]}
    shown = {**base, "showlegend": None, **own["layout"], **fixed, "font": font}
    made = go.Figure(skip_invalid=True, data=own["data"], layout=shown)
    return View("figure", [Group(caption, [Chart(caption, made)])])
