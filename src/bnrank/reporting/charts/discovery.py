"""Charts of what discovery found: a fit, a compression, symmetries."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from sklearn.metrics import confusion_matrix, r2_score

from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.discovery.symmetry_search.spectrum import EXACT, IGNORED, LARGEST, Found
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.chart import Change, Chart, Control, Group, View

MAX_OUTPUTS = 50
"""Outputs that can be chosen, at most: those that vary most."""
MAX_COORDINATES = 20
"""Coordinates shown, at most: the most influential."""
MAX_INPUTS = 60
"""Columns of the sensitivity map, at most: the most sensitive."""
MAX_VALUES = 20
"""Entries of a spectrum, at most: the largest."""
MAX_FIELDS = 200
"""Singular values of fields, at most: the smallest."""
ROUNDING = 1e-10
"""Scores below are printed as 0."""
LETTERS = 24
"""Letters of a name in a plot, at most."""
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up")


def view(found: Summary | Compressed | Symmetries) -> View:
    """Return the charts of a summary, a compression or symmetries."""
    if isinstance(found, Summary):
        return _summary(found)
    return _compressed(found) if isinstance(found, Compressed) else _symmetries(found)


def classes(summary: Summary) -> list[str] | None:
    """Return the names of the classes; None where outputs are numbers."""
    return list(summary.output_names) if len(summary.output_names) > summary.outputs else None


def describes_itself(summary: Summary) -> bool:
    """Return whether the outputs are the inputs, as those of an autoencoder are."""
    return summary.estimator.endswith("Autoencoder")


def score(value: float) -> float:
    """Return a score, 0 where it is rounding error.

    Examples
    --------
    >>> score(4.441e-17), score(0.25)
    (0.0, 0.25)
    """
    return 0.0 if abs(value) < ROUNDING else value


# a fit ---------------------------------------------------------------------------------------------------------------


def _summary(summary: Summary) -> View:
    k = summary.n_components
    shown = min(k, MAX_COORDINATES)
    notes: list[str] = []
    if shown < k:
        notes.append(f"the {shown} most influential of {k} coordinates are shown")
    if summary.rows > len(summary.coordinates):
        notes.append(f"{len(summary.coordinates)} of {summary.rows} rows are shown")
    labels = classes(summary)
    outputs = [] if labels else _outputs(summary, notes)
    charts = [_held_out(summary)]
    if spectra := _spectra(summary):
        charts.append(_spectrum(spectra))
    z = parts.numbers(summary.coordinates[:, :shown].T, 4)
    if shown:
        charts.append(_class_dots(summary, z, labels) if labels else _dots(z, outputs))
    charts.append(_confusion(summary, labels) if labels else _predicted(outputs))
    if k:
        charts.append(_sensitivity(summary, shown, notes))
    left_out = f"Left out of the plots: {'; '.join(notes)}." if notes else ""
    return View("found", [Group("", charts, notes=left_out)])


def _held_out(summary: Summary) -> Chart:
    loss, error = np.asarray(summary.held_out, dtype=float), np.asarray(summary.held_out_error, dtype=float)
    log = bool((loss > 0).all()) and loss.max() > 15 * loss.min()
    x, y, k = list(range(len(loss))), parts.numbers(loss), summary.n_components
    said = [f"{parts.short(a)} ± {parts.short(b)}" for a, b in zip(loss, error, strict=True)]
    bars = {"type": "data", "array": parts.numbers(error), "color": parts.MUTED, "thickness": 1.2, "width": 4}
    curve = parts.line(x, y, parts.member_color(0), "k = %{x}<br>%{customdata}", customdata=said, error_y=bars)
    ring = {"color": parts.member_color(1), "width": 2.4}
    used = parts.dots([k], [y[k]], size=15, color="rgba(0,0,0,0)", line=ring)
    tops = np.concatenate([loss, loss + np.nan_to_num(error)])
    axis = parts.log_axis("held-out loss", tops) if log else parts.value_axis("held-out loss", tops)
    interval = None if summary.undetermined else summary.interval
    shapes = [] if interval is None else [parts.band(interval[0] - 0.5, interval[1] + 0.5)]
    figure = parts.figure([curve, used], parts.count_axis("components k", len(x), first=0), axis, shapes=shapes)
    note = "Bars: one standard error. Ring: the number used." + (" Shaded: the interval." if shapes else "")
    return Chart("Held-out loss by number of components", figure, note=note)


def _spectra(summary: Summary) -> list[tuple[str, str, np.ndarray, int]]:
    """Return label, axis title, values and count of each spectrum, the most informative first."""
    entries = [
        ("at the bottleneck", "standard deviation", summary.spectrum, summary.n_components),
        ("of input combinations", "how much y depends on it", summary.input_spectrum, summary.n_input_directions),
    ]
    found = [entry for entry in entries if len(entry[2]) and entry[3]]
    return found[::-1] if summary.bound == 1 else found


def _spectrum(spectra: Sequence[tuple[str, str, np.ndarray, int]]) -> Chart:
    figures, notes = [], []
    for _, title, every, count in spectra:
        gap = float(every[count - 1] / every[count]) if count < len(every) and every[count] > 0 else None
        values = np.asarray(every[:MAX_VALUES], dtype=float)
        top, last = float(values.max()), float(values[-1])
        wide = top > 10 * last
        y = np.maximum(values, 1e-6 * top) if wide else values
        x = list(range(1, len(values) + 1))
        said = [parts.short(value) for value in values]
        dots = parts.line(x, parts.numbers(y), parts.LINE, "index %{x}<br>%{customdata}", width=1.2, customdata=said)
        dots.marker = {"size": 9, "color": [parts.member_color(0) if i < count else parts.MUTED for i in range(len(x))]}
        axis = parts.log_axis(title, y) if wide else parts.value_axis(title, values)
        marked = [] if gap is None else [_gap(gap, count, len(x), 0.98)]
        shapes = [] if gap is None else [parts.dotted("x", count + 0.5)]
        x_axis = parts.count_axis("index", len(x))
        figures.append(parts.figure(dots, x_axis, axis, shapes=shapes, annotations=marked))
        said = ["Nothing is left beyond the values kept."]
        if gap is not None:
            said = ["Dotted: the gap, the last value kept over the first left out."]
        if len(every) > len(values):
            said.append(f"The {len(values)} largest of {len(every)} values.")
        if wide and last < 1e-6 * top:
            said.append("Values below 1e-6 of the largest are drawn there.")
        notes.append(" ".join(said))
    return _chosen("Spectrum", figures, notes, Control("spectrum", "", [label for label, *_ in spectra]))


def _chosen(title: str, figures: Sequence[go.Figure], notes: Sequence[str], control: Control) -> Chart:
    """Return a chart of one of several figures."""
    changes = [
        Change("figure", (control.name,), [parts.plain(figure) for figure in figures]),
        Change("note", (control.name,), list(notes)),
    ]
    return Chart(title, figures[0], note=notes[0], controls=[control], changes=changes)


def _gap(ratio: float, place: int, of: int, y: float) -> dict[str, Any]:
    left = place > of / 2
    text = f"gap {ratio:.1e}" if ratio >= 1e5 else f"gap {parts.short(ratio)}"
    anchor = "right" if left else "left"
    return parts.written(text, x=place + 0.5, y=y, yref="paper", xanchor=anchor, xshift=-6 if left else 6)


def _outputs(summary: Summary, notes: list[str]) -> list[dict[str, Any]]:
    """Return name, observed and predicted values and R² of the outputs that vary most."""
    seen, predicted = (table.reshape(len(table), -1) for table in (summary.seen, summary.predicted))
    kept = np.sort(np.argsort(-seen.std(axis=0), kind="stable")[:MAX_OUTPUTS])
    if len(kept) < seen.shape[1]:
        notes.append(f"the {len(kept)} of {seen.shape[1]} outputs that vary most can be chosen")
    return [
        {
            "name": summary.output_names[i],
            "seen": parts.numbers(seen[:, i], 4),
            "predicted": parts.numbers(predicted[:, i], 4),
            "r2": score(r2_score(seen[:, i], predicted[:, i])) if np.ptp(seen[:, i]) else None,
        }
        for i in kept
    ]


def _output_control(outputs: Sequence[dict[str, Any]], label: str) -> list[Control]:
    names = [_cut(output["name"]) for output in outputs]
    return [Control("output", label, names)] if len(outputs) > 1 else []


def _cut(name: str) -> str:
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def _plain(name: str) -> str:
    return parts.escaped(name, LETTERS)


def _axes_of(z: Sequence[Any]) -> tuple[list[Control], list[Change]]:
    """Return the controls that choose two of more than two coordinates, and what they change in the titles."""
    titles = [f"z<sub>{i + 1}</sub>" for i in range(len(z))]
    changes = [
        Change("layout.xaxis.title.text", ("across",), titles),
        Change("layout.yaxis.title.text", ("up",), titles),
    ]
    names = [f"z{i + 1}" for i in range(len(z))]
    if len(z) < 3:
        return [], []
    return [Control("across", "across", names), Control("up", "up", names, 1)], changes


def _dots(z: Sequence[Any], outputs: Sequence[dict[str, Any]]) -> Chart:
    """Return the coordinates against each other, colored by an output; the only one, against the output."""
    first, many = outputs[0], len(outputs) > 1
    if len(z) == 1:
        color = parts.member_color(0)
        dots = parts.dots(z[0], first["seen"], "%{x:.3g}, %{y:.4g}", color=color, opacity=0.75)
        changes = [
            Change("y", ("output",), [[output["seen"]] for output in outputs]),
            Change("layout.yaxis.title.text", ("output",), [_plain(output["name"]) for output in outputs]),
        ]
        figure = parts.figure(dots, {"title": "z<sub>1</sub>"}, {"title": _plain(first["name"])})
        controls = _output_control(outputs, "output")
        return Chart("Coordinate against output", figure, size="tall", controls=controls, changes=changes * many)
    scale = {"colorscale": parts.heat_scale(light=False), "colorbar": parts.color_bar(_plain(first["name"]))}
    hover = "%{x:.3g}, %{y:.3g}<br>%{marker.color:.4g}"
    dots = parts.dots(z[0], z[1], hover, size=6.5, color=first["seen"], **scale)
    controls, changes = _axes_of(z)
    if controls:
        changes += [Change("x", ("across",), [[row] for row in z]), Change("y", ("up",), [[row] for row in z])]
    if many:
        changes += [
            Change("marker.color", ("output",), [[output["seen"]] for output in outputs]),
            Change("marker.colorbar.title.text", ("output",), [[_plain(output["name"])] for output in outputs]),
        ]
    figure = parts.figure(dots, {"title": "z<sub>1</sub>"}, {"title": "z<sub>2</sub>"})
    controls += _output_control(outputs, "color")
    return Chart("Coordinates", figure, size="tall", controls=controls, changes=changes)


def _class_dots(summary: Summary, z: Sequence[Any], labels: list[str]) -> Chart:
    """Return dots by class: over two coordinates, or, of one coordinate, in a row for every class."""
    place = {name: i for i, name in enumerate(labels)}
    seen = np.array([place[str(label)] for label in summary.seen])
    rows = [np.flatnonzero(seen == c) for c in range(len(labels))]
    points = [[[z_j[i] for i in own] for own in rows] for z_j in z]
    jitter = [[c + 0.5 * ((i * 0.618034) % 1 - 0.5) for i in range(len(own))] for c, own in enumerate(rows)]
    traces = [
        parts.dots(
            points[0][c],
            points[1][c] if len(z) > 1 else parts.numbers(jitter[c]),
            f"{_plain(name)}<br>%{{x:.3g}}{', %{y:.3g}' if len(z) > 1 else ''}",
            size=7,
            color=parts.member_color(c),
            symbol=SYMBOLS[c // 7 % 6],
            opacity=0.8,
        )
        for c, name in enumerate(labels)
    ]
    if len(z) == 1:
        ticks = {"tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": list(map(_plain, labels))}
        figure = parts.figure(traces, {"title": "z<sub>1</sub>"}, {"title": "class", "zeroline": False, **ticks})
        return Chart("Coordinate by class", figure, size="tall")
    controls, changes = _axes_of(z)
    if controls:
        changes += [Change("x", ("across",), points), Change("y", ("up",), points)]
    figure = parts.figure(traces, {"title": "z<sub>1</sub>"}, {"title": "z<sub>2</sub>"})
    key = [(parts.member_color(c), name) for c, name in enumerate(labels)]
    return Chart("Coordinates", figure, size="tall", key=key, controls=controls, changes=changes)


def _predicted(outputs: Sequence[dict[str, Any]]) -> Chart:
    figures, notes = [], []
    for output in outputs:
        seen, predicted, label = output["seen"], output["predicted"], _plain(output["name"])
        low, high = min([*seen, *predicted]), max([*seen, *predicted])
        room = 0.04 * (high - low) or 1
        limits = [low - room, high + room]
        hover = "observed %{x:.4g}<br>predicted %{y:.4g}"
        dots = parts.dots(seen, predicted, hover, color=parts.member_color(0), opacity=0.7)
        diagonal = parts.line(limits, limits, parts.MUTED, width=1.2, size=0, line_dash="dot")
        axes = ({"title": f"{label}, {word}", "range": limits} for word in ("observed", "predicted"))
        figures.append(parts.figure([diagonal, dots], *axes))
        r2 = "" if output["r2"] is None else f" R² of {output['name']}: {output['r2']:.3g}."
        notes.append(f"Fitted rows; dotted: equality.{r2}")
    control = Control("output", "output", [_cut(output["name"]) for output in outputs])
    return _sized(_chosen("Predicted vs. observed", figures, notes, control))


def _sized(chart: Chart) -> Chart:
    """Return a tall chart, without a control that has one option."""
    controls = [control for control in chart.controls if len(control.options) > 1]
    return replace(chart, size="tall", controls=controls, changes=chart.changes if controls else ())


def _confusion(summary: Summary, labels: list[str]) -> Chart:
    names = [_plain(name) for name in labels]
    table = confusion_matrix(list(map(str, summary.seen)), list(map(str, summary.predicted)), labels=labels)
    shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    at = list(range(0, len(names), -(-len(names) // 20)))
    ticks = {"tickmode": "array", "tickvals": at, "ticktext": [names[i] for i in at], "showgrid": False}
    hover = [
        [f"observed {a}<br>predicted {b}<br>{n} rows" for b, n in zip(names, row, strict=True)]
        for a, row in zip(names, table.tolist(), strict=True)
    ]
    heat = parts.heat_map(
        parts.numbers(shares, 4), "%{hovertext}", parts.color_bar("percent"), zmax=100, hovertext=hover
    )
    heat.update(text=table.tolist(), texttemplate="%{text}" if len(names) <= 12 else "")
    axes = ({"title": "predicted class", **ticks}, {"title": "observed class", "autorange": "reversed", **ticks})
    note = "Fitted rows; color: share of the rows of the class."
    return Chart("Predicted vs. observed", parts.figure(heat, *axes), note=note, size="tall")


def _sensitivity(summary: Summary, shown: int, notes: list[str]) -> Chart:
    """Return coordinates by inputs: inputs across in a wide window, else down."""
    rows = summary.sensitivity[:shown]
    kept = np.sort(np.argsort(-rows.max(axis=0), kind="stable")[:MAX_INPUTS])
    if len(kept) < rows.shape[1]:
        notes.append(f"the {len(kept)} of {rows.shape[1]} inputs that coordinates move most with are shown")
    inputs = [_plain(summary.inputs[i]) for i in kept]
    coordinates = [f"z<sub>{j + 1}</sub>" for j in range(shown)]
    return Chart(
        "What each coordinate depends on",
        _map(rows[:, kept], coordinates, inputs, across=True),
        narrow=_map(rows[:, kept].T, inputs, coordinates, across=False),
        size="wide",
        note="Root mean square derivative of the coordinate in the input, times the standard deviation of the input.",
    )


def _map(values: np.ndarray, down: list[str], along: list[str], *, across: bool) -> go.Figure:
    letters = max(len(name) for name in (along if across else down))
    slanted = across and letters * 8 > 1000 / len(along)
    height = 90 + 30 * len(down) + (7 * letters if slanted else 14) if across else 90 + 17 * len(down)
    bar = parts.color_bar("sensitivity", nticks=4)
    heat = parts.heat_map(parts.numbers(values, 3), "%{hovertext}<br>%{z:.3g}", bar, zmax=float(values.max()) or 1)
    heat.hovertext = [[f"{a}, {b}" for b in along] for a in down]
    heat.texttemplate = "%{z:.2f}" if len(along) <= (24 if across else 6) else ""

    def axis(title: str, names: list[str], **more: Any) -> dict[str, Any]:
        ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
        return {"title": title, **ticks, "showgrid": False, "zeroline": False, **more}

    titles = ("input", "coordinate") if across else ("coordinate", "input")
    x = axis(titles[0], along, tickangle=-60 if slanted else 0)
    y = axis(titles[1], down, autorange="reversed", **({} if across else {"tickfont": {"size": 11}}))
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
    bars = go.Bar(
        orientation="h",
        x=list(left.values()),
        y=list(left),
        marker={"color": parts.member_color(0)},
        text=[f"{parts.short(value)} %" for value in left.values()],
        textposition="outside",
        textangle=0,
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.4g} %<extra></extra>",
    )
    limits = {"title": "percent", "range": [0, 1.2 * max(100, *left.values())]}
    figure = parts.figure(bars, limits, {"autorange": "reversed"}, shapes=[parts.dotted("x", 100)])
    charts = [Chart("Remaining cost (%)", figure)]
    if found.steps:
        changes = [parts.numbers(100 * step.change) for step in found.steps]
        tol = parts.numbers(100 * certificate.tol)
        x = list(range(1, len(changes) + 1))
        line = parts.line(x, changes, parts.member_color(0), "step %{x}: %{text}<br>%{y:.4g} %", size=8)
        line.text = [step.kind for step in found.steps]
        names = [f"{i}: {step.kind}" for i, step in zip(x, found.steps, strict=True)]
        ticks = {"title": "step", "tickmode": "array", "tickvals": x, "ticktext": names, "range": [0.5, len(x) + 0.5]}
        axis = parts.value_axis("change, percent", [*changes, tol])
        note = "Of the outputs' spread, on the samples used to decide. Dotted: the tolerance."
        figure = parts.figure(line, ticks, axis, shapes=[parts.dotted("y", tol)])
        charts.append(Chart("Change after every step", figure, note=note))
    return View("compressed", [Group("", charts)])


# symmetries ----------------------------------------------------------------------------------------------------------


def _symmetries(found: Symmetries) -> View:
    parts = (
        ("Translations: directions that f ignores", found.translations, IGNORED if found.rtol is None else LARGEST),
        ("Affine and other fields", found.fields, LARGEST),
    )
    charts = [_fields(title, part, most, found.rtol) for title, part, most in parts if len(part.values)]
    return View("symmetries", [Group("", charts)])


def _fields(title: str, part: Found, most: float, error: float | None) -> Chart:
    """Return how much f changes along every field, ascending; those below the gap are symmetries."""
    gap, count = part.gap, part.count if part.status in ("exact", "approximate") else 0
    rounding = gap.exact or error == 0
    level, meaning = (EXACT, "rounding below") if rounding else (most, "above: no symmetry")
    values = part.values[:MAX_FIELDS].numpy()
    y, x = np.maximum(values, 1e-16), list(range(1, len(values) + 1))
    colors = [parts.member_color(2) if i < count else parts.MUTED for i in range(len(x))]
    dots = parts.dots(x, parts.numbers(y), "field %{x}<br>%{customdata}", size=8, color=colors)
    dots.customdata = [parts.short(value) for value in values]
    place = {"xref": "paper", "x": 1, "xanchor": "right", "y": math.log10(level), "yanchor": "bottom"}
    marked, shapes = [parts.written(f"{parts.short(level)}, {meaning}", **place)], [parts.dotted("y", level)]
    if math.isfinite(gap.ratio) and 0 < gap.candidate < len(values):
        marked.append(_gap(gap.ratio, gap.candidate, len(values), 0.5))
        shapes.append(parts.dotted("x", gap.candidate + 0.5))
    axis = parts.log_axis("relative singular value", [*y, level, 1])
    more = f" The {len(values)} smallest of {len(part.values)}." if len(part.values) > len(values) else ""
    return Chart(
        title,
        parts.figure(dots, parts.count_axis("field", len(x)), axis, shapes=shapes, annotations=marked),
        note=f"How much f changes along every field: about 1 for a field unrelated to f.{more}",
    )
