"""What a page draws: charts, the controls that change them, and the colors and axes they share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from bnrank.reporting.charts import parts


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
    """Return the changes of the y axis by the control "scale", whose ranges may depend on others too."""
    return [Change("layout.yaxis.type", ("scale",), parts.SCALES), Change("layout.yaxis.range", (*by, "scale"), ranges)]


@dataclass(frozen=True)
class Chart:
    """A plotly figure in a card.

    Attributes
    ----------
    title : str
        Heading of the card.
    figure : go.Figure
        What is drawn at first.
    narrow : go.Figure, optional
        What is drawn in place of it in a window below 900 pixels.
    note : str
        Text below the plot.
    size : str
        "", "tall", or "wide".
    key : sequence of (color, text)
        Legend below the plot.
    picks : str
        Name of the control that a click on an entry of the legend sets.
    controls : sequence of Control
        In the head of the card.
    changes : sequence of Change
        What controls change.
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

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script needs, as plain values."""
        return {
            "figure": parts.plain(self.figure),
            "narrow": self.narrow and parts.plain(self.narrow),
            "changes": [{"target": c.target, "by": c.by, "values": c.values} for c in self.changes],
            "marks": self.marks,
            "derived": self.derived,
        }


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
    steps : list of int
        Positions of the slider.
    ends : list of int
        The last position of the slider with a value, per member.
    stopped : list of str
        What to say of a member at later positions.
    threshold : float, optional
        First value of the live threshold.
    notes : str
        Text below the charts.
    """

    label: str
    charts: Sequence[Chart]
    controls: Sequence[Control] = ()
    steps: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    threshold: float | None = None
    notes: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script needs, as plain values."""
        every = [*self.controls, *(control for chart in self.charts for control in chart.controls)]
        return {
            "charts": [chart.data for chart in self.charts],
            "state": {control.name: control.chosen for control in every},
            "steps": self.steps,
            "ends": self.ends,
            "stopped": self.stopped,
            "threshold": self.threshold,
        }


@dataclass(frozen=True)
class View:
    """Groups of charts, one shown at a time."""

    kind: str
    groups: Sequence[Group]

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script needs, as plain values."""
        return {"kind": self.kind, "groups": [group.data for group in self.groups]}


def ready_made(value: Any, caption: str) -> View:
    """Return the view of the user's own plotly figure, in the colors of the page where it has none."""
    own = parts.plain(value)
    axes = {name: axis for name, axis in own["layout"].items() if name[:5] in ("xaxis", "yaxis")}
    base = parts.layout({}, {})
    for name in {*axes, "xaxis", "yaxis"}:
        title = axes.get(name, {}).get("title", {})
        own["layout"][name] = {**base["xaxis"], **axes.get(name, {})}
        own["layout"][name]["title"] = {"standoff": 8, **({"text": title} if isinstance(title, str) else title)}
    fixed = {name: base[name] for name in ("paper_bgcolor", "plot_bgcolor")}
    font = {**own["layout"].get("font", {}), **base["font"]}
    shown = {**base, "showlegend": None, **own["layout"], **fixed, "font": font}
    figure = go.Figure(skip_invalid=True, data=own["data"], layout=shown)
    return View("figure", [Group(caption, [Chart(caption, figure)])])
