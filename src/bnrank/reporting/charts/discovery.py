"""Charts of the results of discovery: a fit, a compression, films."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from sklearn.metrics import confusion_matrix, r2_score

from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.films.summary import FilmSummary
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.parts import Change, Chart, Control, Group, View
from bnrank.reporting.charts.symmetries import symmetry_view

MAX_OUTPUTS = 50
"""Largest number of selectable outputs: those that vary most."""
MAX_COORDINATES = 20
"""Largest number of coordinates shown: the most influential."""
MAX_INPUTS = 60
"""Largest number of columns of the sensitivity map: the most sensitive."""
MAX_LABELED = 14
"""Largest number of bars with their values written above them."""
MAX_VALUES = 20
"""Largest number of entries of a spectrum: the largest entries."""
ROUNDING = 1e-10
"""Scores below this are printed as 0."""
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up")


def view(found: Summary | FilmSummary | Compressed | Symmetries) -> View:
    """Return the charts of a summary, a compression or symmetries."""
    if isinstance(found, Summary):
        return _summary(found)
    if isinstance(found, FilmSummary):
        return _films(found)
    return _compressed(found) if isinstance(found, Compressed) else symmetry_view(found)


def classes(summary: Summary) -> list[str] | None:
    """Return the names of the classes; None where outputs are numbers."""
    return list(summary.output_names) if len(summary.output_names) > summary.outputs else None


def by_class(summary: Summary, labels: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of every class, and jittered heights around the index of the class."""
    names = np.array([str(label) for label in summary.observed])
    rows = [np.flatnonzero(names == label) for label in labels]
    return [(own, c + 0.5 * ((np.arange(len(own)) * 0.618034) % 1 - 0.5)) for c, own in enumerate(rows)]


def score(value: float) -> float:
    """Return a score, or 0 if it is round-off.

    Examples
    --------
    >>> score(4.441e-17), score(0.25)
    (0.0, 0.25)
    """
    return 0.0 if abs(value) < ROUNDING else value


# a fit ---------------------------------------------------------------------------------------------------------------


def _summary(summary: Summary) -> View:
    shown = min(summary.n_components, MAX_COORDINATES)
    notes: list[str] = []
    if shown < summary.n_components:
        notes.append(f"the {shown} most influential of {summary.n_components} components are shown")
    if summary.rows > len(summary.coordinates):
        notes.append(f"{len(summary.coordinates)} of {summary.rows} rows are shown")
    z = parts.numbers(summary.coordinates[:, :shown].T, 4)
    if labels := classes(summary):
        dots = _class_dots(summary, z, labels) if shown else None
        against = _confusion(summary, labels)
    else:
        outputs = _outputs(summary, notes)
        dots, against = _dots(z, outputs) if shown else None, _predicted(outputs)
    sensitivity = _sensitivity(summary, shown, notes) if shown else None
    charts = [chart for chart in (_held_out(summary), _spectrum(summary), dots, against, sensitivity) if chart]
    left_out = f"Left out of the plots: {'; '.join(notes)}." if notes else ""
    return View("found", [Group("", charts, notes=left_out)])


def _held_out(summary: Summary) -> Chart:
    """Return the held-out loss by number of components, or of combinations of the inputs where y is scalar."""
    k, ends, undetermined, what = summary.n_components, summary.interval, summary.undetermined, "components"
    given = summary.held_out, summary.held_out_error
    if summary.scalar:
        k, ends = summary.n_input_directions, summary.n_input_directions_interval
        undetermined, what = summary.input_directions_undetermined, "combinations of the inputs"
        shown = max(MAX_VALUES, k + 3)
        given = summary.input_held_out[:shown], summary.input_held_out_error[:shown]
    loss, error = (np.asarray(values, dtype=float) for values in given)
    log = bool((loss > 0).all()) and loss.max() > 15 * loss.min()
    x, y = list(range(len(loss))), parts.numbers(loss)
    said = [f"{parts.short(a)} ± {parts.short(b)}" for a, b in zip(loss, error, strict=True)]
    bars = {"type": "data", "array": parts.numbers(error), "color": parts.MUTED, "thickness": 1.2, "width": 4}
    curve = parts.line(x, y, parts.member_color(0), "k = %{x}<br>%{customdata}", customdata=said, error_y=bars)
    ring = {"color": parts.member_color(1), "width": 2.4}
    used = parts.dots([k], [y[k]], size=15, color="rgba(0,0,0,0)", line=ring)
    tops = np.concatenate([loss, loss + np.nan_to_num(error)])
    axis = (parts.log_axis if log else parts.value_axis)("held-out loss", tops)
    low, high = ends
    shapes = [] if undetermined else [parts.band(low - 0.5, high + 0.5)]
    figure = parts.figure([curve, used], parts.count_axis(f"number of {what}", len(x), first=0), axis, shapes=shapes)
    note = "Error on rows not used for training. Bars: one standard error. Ring: the number used." + (
        " Shaded: the interval." if shapes else ""
    )
    return Chart(f"Held-out loss by number of {what}", figure, note=note)


def _spectrum(summary: Summary) -> Chart | None:
    """Return the spreads of the directions inside the model and of the inputs, the most informative first, or None."""
    spectra = [
        ("inside the model", "spread (standard deviation)", summary.spectrum, summary.n_components),
        ("of combinations of inputs", "how much y depends on it", summary.input_spectrum, summary.n_input_directions),
    ]
    spectra = [entry for entry in spectra if len(entry[2]) and entry[3]]
    if summary.bound == 1:
        spectra.reverse()
    figures, notes = [], []
    for _, title, every, count in spectra:
        gap = float(every[count - 1] / every[count]) if count < len(every) and every[count] > 0 else None
        values = np.asarray(every[:MAX_VALUES], dtype=float)
        top, last = float(values.max()), float(values[-1])
        wide = top > 10 * last
        y = np.maximum(values, 1e-6 * top) if wide else values
        x = list(range(1, len(values) + 1))
        said = [parts.short(value) for value in values]
        dots = parts.line(
            x, parts.numbers(y), parts.LINE, "direction %{x}<br>%{customdata}", width=1.2, customdata=said
        )
        dots.marker = {"size": 9, "color": [parts.member_color(0) if i < count else parts.MUTED for i in range(len(x))]}
        axis = (parts.log_axis if wide else parts.value_axis)(title, y)
        more = {} if gap is None else parts.gap_after(gap, count, len(x), 0.98)
        figures.append(parts.figure(dots, parts.count_axis("direction", len(x)), axis, **more))
        said = ["Blue: directions kept, which are all."]
        if gap is not None:
            said = ["Blue: directions kept. Gap: the last value kept divided by the next."]
        if len(every) > len(values):
            said.append(f"The {len(values)} largest of {len(every)} values.")
        if wide and last < 1e-6 * top:
            said.append("Values below 1e-6 of the largest are drawn there.")
        notes.append(" ".join(said))
    control = Control("spectrum", "", [label for label, *_ in spectra])
    return _chosen("Directions, by size", figures, notes, [control]) if spectra else None


def _chosen(
    title: str, figures: Sequence[go.Figure], notes: Sequence[str], controls: Sequence[Control], size: str = ""
) -> Chart:
    """Return a chart of one of several figures, selected by a control; a single figure has no control."""
    changes = [
        Change(target, (control.name,), values)
        for control in controls
        for target, values in (("figure", figures), ("note", notes))
    ]
    return Chart(title, figures[0], note=notes[0], size=size, controls=controls, changes=changes)


def _outputs(summary: Summary, notes: list[str]) -> list[dict[str, Any]]:
    """Return name, observed and predicted values and R² of the outputs that vary most."""
    observed, predicted = (table.reshape(len(table), -1) for table in (summary.observed, summary.predicted))
    kept = np.sort(np.argsort(-observed.std(axis=0), kind="stable")[:MAX_OUTPUTS])
    if len(kept) < observed.shape[1]:
        notes.append(f"the {len(kept)} of {observed.shape[1]} outputs that vary most can be chosen")
    outputs = []
    for i in kept:
        name = summary.output_names[i]
        r2 = score(r2_score(observed[:, i], predicted[:, i])) if np.ptp(observed[:, i]) else None
        both = {"observed": parts.numbers(observed[:, i], 4), "predicted": parts.numbers(predicted[:, i], 4)}
        outputs.append({"name": name, "label": _label(name), **both, "r2": r2})
    return outputs


def _output_control(outputs: Sequence[dict[str, Any]], label: str) -> list[Control]:
    names = [parts.cut(output["name"]) for output in outputs]
    return [Control("output", label, names)] if len(outputs) > 1 else []


def _label(name: str) -> str:
    return parts.escaped(parts.cut(name))


def _dots(z: Sequence[Any], outputs: Sequence[dict[str, Any]]) -> Chart:
    """Return the chart of the coordinates, colored by an output; a single coordinate is drawn against the output."""
    observed = [[output["observed"]] for output in outputs]
    labels = [output["label"] for output in outputs]
    if len(z) == 1:
        hover, color = "%{x:.3g}, %{y:.4g}", parts.member_color(0)
        dots = parts.dots(z[0], observed[0][0], hover, color=color, opacity=0.75)
        changes = [Change("y", ("output",), observed), Change("layout.yaxis.title.text", ("output",), labels)]
        figure = parts.figure(dots, {"title": "z<sub>1</sub>"}, {"title": labels[0]})
        controls = _output_control(outputs, "output")
        changes = changes if controls else []
        return Chart("Component against output", figure, size="tall", controls=controls, changes=changes)
    scale = {"colorscale": parts.heat_scale(light=False), "colorbar": parts.color_bar(labels[0])}
    hover = "%{x:.3g}, %{y:.3g}<br>%{marker.color:.4g}"
    dots = parts.dots(z[0], z[1], hover, size=6.5, color=observed[0][0], **scale)
    changes = [
        Change("marker.color", ("output",), observed),
        Change("marker.colorbar.title.text", ("output",), [[label] for label in labels]),
    ]
    controls = _output_control(outputs, "color")
    return _coordinates([dots], [[row] for row in z], controls, changes if controls else [])


def _class_dots(summary: Summary, z: Sequence[Any], labels: list[str]) -> Chart:
    """Return dots by class: over two coordinates, or, of one coordinate, in a row for every class."""
    rows = by_class(summary, labels)
    points = [[[z_j[i] for i in own] for own, _ in rows] for z_j in z]
    traces, key = [], []
    for c, name in enumerate(labels):
        color = parts.member_color(c)
        up = points[1][c] if len(z) > 1 else parts.numbers(rows[c][1])
        hover = f"{_label(name)}<br>%{{x:.3g}}{', %{y:.3g}' if len(z) > 1 else ''}"
        marker = {"color": color, "symbol": SYMBOLS[c // 7 % 6], "opacity": 0.8}
        traces.append(parts.dots(points[0][c], up, hover, size=7, **marker))
        key.append((color, name))
    if len(z) > 1:
        return _coordinates(traces, points, key=key)
    axis = parts.named_axis("class", list(map(_label, labels)), zeroline=False)
    return Chart("Component by class", parts.figure(traces, {"title": "z<sub>1</sub>"}, axis), size="tall")


def _coordinates(
    traces: Sequence[Any],
    points: Sequence[Any],
    controls: Sequence[Control] = (),
    changes: Sequence[Change] = (),
    key: Sequence[tuple[str, str]] = (),
) -> Chart:
    """Return traces over two coordinates, chosen by controls where there are more; ``points``: of each, per trace."""
    titles = [f"z<sub>{i + 1}</sub>" for i in range(len(points))]
    if len(points) > 2:
        names = [f"z{i + 1}" for i in range(len(points))]
        controls = [Control("across", "across", names), Control("up", "up", names, 1), *controls]
        ends = (("x", "across"), ("y", "up"))
        moves = [Change(f"layout.{end}axis.title.text", (name,), titles) for end, name in ends]
        changes = [*moves, *(Change(end, (name,), points) for end, name in ends), *changes]
    figure = parts.figure(traces, {"title": titles[0]}, {"title": titles[1]})
    return Chart("Components of the rows", figure, size="tall", key=key, controls=controls, changes=changes)


def _predicted(outputs: Sequence[dict[str, Any]]) -> Chart:
    figures, notes = [], []
    for output in outputs:
        observed, predicted = output["observed"], output["predicted"]
        low, high = min([*observed, *predicted]), max([*observed, *predicted])
        room = 0.04 * (high - low) or 1
        limits = [low - room, high + room]
        hover = "observed %{x:.4g}<br>predicted %{y:.4g}"
        dots = parts.dots(observed, predicted, hover, color=parts.member_color(0), opacity=0.7)
        diagonal = parts.line(limits, limits, parts.MUTED, width=1.2, size=0, line_dash="dot")
        axes = ({"title": f"{output['label']}, {word}", "range": limits} for word in ("observed", "predicted"))
        figures.append(parts.figure([diagonal, dots], *axes))
        r2 = "" if output["r2"] is None else f" R² of {output['name']}: {output['r2']:.3g}."
        notes.append(f"Fitted rows; dotted: equality.{r2}")
    return _chosen("Predicted vs. observed", figures, notes, _output_control(outputs, "output"), "tall")


def _confusion(summary: Summary, labels: list[str]) -> Chart:
    names = [_label(name) for name in labels]
    table = confusion_matrix(list(map(str, summary.observed)), list(map(str, summary.predicted)), labels=labels)
    shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    hover = [
        [f"observed {a}<br>predicted {b}<br>{n} rows" for b, n in zip(names, row, strict=True)]
        for a, row in zip(names, table.tolist(), strict=True)
    ]
    bar = parts.color_bar("percent")
    heat = parts.heat_map(parts.numbers(shares, 4), "%{hovertext}", bar, zmax=100, hovertext=hover)
    heat.update(text=table.tolist(), texttemplate="%{text}" if len(names) <= 12 else "")
    x = parts.named_axis("predicted class", names, most=20, showgrid=False)
    y = parts.named_axis("observed class", names, most=20, showgrid=False, autorange="reversed")
    note = "Fitted rows; color: share of the rows of the class."
    return Chart("Predicted vs. observed", parts.figure(heat, x, y), note=note, size="tall")


def _sensitivity(summary: Summary, shown: int, notes: list[str]) -> Chart:
    """Return coordinates by inputs: inputs across in a wide window, else down."""
    rows = summary.sensitivity[:shown]
    kept = np.sort(np.argsort(-rows.max(axis=0), kind="stable")[:MAX_INPUTS])
    if len(kept) < rows.shape[1]:
        notes.append(f"the {len(kept)} of {rows.shape[1]} inputs that components move most with are shown")
    inputs = [_label(summary.inputs[i]) for i in kept]
    coordinates = [f"z<sub>{j + 1}</sub>" for j in range(shown)]
    return Chart(
        "What each component depends on",
        _map(rows[:, kept], coordinates, inputs, across=True),
        narrow=_map(rows[:, kept].T, inputs, coordinates, across=False),
        size="wide",
        note="Sensitivity: how much the component changes if the input changes by its standard deviation.",
    )


def _map(values: np.ndarray, down: list[str], along: list[str], *, across: bool) -> go.Figure:
    letters = max(len(name) for name in (along if across else down))
    slanted = across and letters * 8 > 1000 / len(along)
    height = 90 + 30 * len(down) + (7 * letters if slanted else 14) if across else 90 + 17 * len(down)
    bar = parts.color_bar("sensitivity", nticks=4)
    heat = parts.heat_map(parts.numbers(values, 3), "%{hovertext}<br>%{z:.3g}", bar, zmax=float(values.max()) or 1)
    heat.hovertext = [[f"{a}, {b}" for b in along] for a in down]
    heat.texttemplate = "%{z:.2f}" if len(along) <= (24 if across else 6) else ""
    titles = ("input", "component") if across else ("component", "input")
    x = parts.named_axis(titles[0], along, tickangle=-60 if slanted else 0, showgrid=False, zeroline=False)
    y = parts.named_axis(titles[1], down, autorange="reversed", showgrid=False, zeroline=False)
    if not across:
        y["tickfont"] = {"size": 11}
    return parts.figure(heat, x, y, height=max(150, min(height, 1200)))


# a compression -------------------------------------------------------------------------------------------------------


def _compressed(found: Compressed) -> View:
    certificate = found.certificate
    kept = {
        "parameters": (certificate.parameters, certificate.parameters_before),
        "multiply-adds": (certificate.multiply_adds, certificate.multiply_adds_before),
        "latency": (certificate.latency.minimum, certificate.latency_before.minimum),
    }
    left = {name: parts.numbers(100 * after / before) for name, (after, before) in kept.items() if before}
    bars = go.Bar(x=list(left.values()), y=list(left), orientation="h", marker={"color": parts.member_color(0)})
    places = ["inside" if value >= 50 else "outside" for value in left.values()]  # off the dotted line
    bars.update(text=[f"{parts.short(value)} %" for value in left.values()], textposition=places, textangle=0)
    bars.update(constraintext="none", cliponaxis=False, hovertemplate="%{y}: %{x:.4g} %<extra></extra>")
    limits = {"title": "percent", "range": [0, 1.2 * max(100, *left.values())]}
    figure = parts.figure(bars, limits, {"autorange": "reversed"}, shapes=[parts.dotted("x", 100)])
    charts = [Chart("Remaining cost (%)", figure)]
    if found.changed and found.widths_before:
        charts.append(_widths(found.widths_before, found.widths))
    if len(found.steps) > 1:
        changes = [parts.numbers(100 * step.change) for step in found.steps]
        tol = parts.numbers(100 * certificate.tol)
        kinds = [step.kind for step in found.steps]
        x = list(range(1, len(changes) + 1))
        hover = "step %{x}: %{text}<br>%{y:.4g} %"
        line = parts.line(x, changes, parts.member_color(0), hover, size=8, text=kinds)
        names = [f"{i}: {kind}" for i, kind in zip(x, kinds, strict=True)]
        ticks = parts.named_axis("step", names, first=1, range=[0.5, len(x) + 0.5])
        axis = parts.value_axis("change, percent", [*changes, tol])
        note = "Of the outputs' spread, on the samples used to decide. Dotted: the tolerance."
        figure = parts.figure(line, ticks, axis, shapes=[parts.dotted("y", tol)])
        charts.append(Chart("Change after every step", figure, note=note))
    return View("compressed", [Group("", charts)])


def _widths(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]) -> Chart:
    """Return the widths of the layers before and after, side by side, each in order."""
    start, bars, marks = 1, [], []
    for i, (what, layers) in enumerate((("before", before), ("after", after))):
        at = list(range(start, start + len(layers)))
        widths = [units for _, units in layers]
        bar = go.Bar(x=at, y=widths, name=what, marker={"color": parts.member_color(1 - i)})
        bar.update(
            hovertext=[name or "the layer" for name, _ in layers], hovertemplate="%{hovertext}: %{y}<extra></extra>"
        )
        if len(before) + len(after) <= MAX_LABELED:
            bar.update(text=[str(units) for units in widths], textposition="outside", textangle=0, cliponaxis=False)
        bars.append(bar)
        marks.append((start + (len(layers) - 1) / 2, f"{what} ({len(layers)})"))
        start += len(layers) + 1
    ticks = {"tickmode": "array", "tickvals": [at for at, _ in marks], "ticktext": [text for _, text in marks]}
    x = {**ticks, "title": "layers", "showgrid": False, "range": [0.4, start - 1.4]}
    units = [units for _, units in (*before, *after)]
    figure = parts.figure(bars, x, parts.value_axis("units", units), showlegend=False)
    note = "One bar for each linear or convolutional layer, in order. A layer of low rank became two, the first narrow."
    return Chart("Layer widths before and after", figure, note=note)


# films ---------------------------------------------------------------------------------------------------------------


def _films(summary: FilmSummary) -> View:
    charts = []
    if len(summary.spectrum):
        values = np.maximum(summary.spectrum[:, :MAX_VALUES], 1e-6)
        x = list(range(1, values.shape[1] + 1))
        lines = [
            parts.line(x, parts.numbers(row), parts.index_color(i, len(values)), f"{size} neighbors: %{{y:.3g}}")
            for i, (size, row) in enumerate(zip(summary.neighbors, values, strict=True))
        ]
        edge = [parts.dotted("x", summary.state_dimension + 0.5)]
        axis = parts.log_axis("median local variance, relative", values)
        figure = parts.figure(lines, parts.count_axis("direction", len(x)), axis, shapes=edge, showlegend=False)
        note = "One line for each size of neighborhood, the smallest darkest. Dotted: the state dimension."
        charts.append(Chart("Local variances in the bottleneck", figure, note=note))
    if summary.coordinates.shape[1] > 1:
        z = parts.numbers(summary.coordinates[:, :2].T, 4)
        dots = parts.dots(z[0], z[1], "%{x}, %{y}", size=4, color=parts.member_color(0))
        figure = parts.figure(dots, {"title": "coordinate 1"}, {"title": "coordinate 2"})
        charts.append(Chart("Coordinates of the state", figure, note="Every dot is one pair of frames."))
    return View("films", [Group("", charts)])
