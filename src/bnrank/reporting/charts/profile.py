"""Charts of a profile: spectra per layer, nonlinearity, frequencies, the Jacobian."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from bnrank.measures.frequencies import label as frequency_label
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.history import TOP
from bnrank.reporting.charts.parts import Change, Chart, Control, Group, View, scale_changes
from bnrank.reporting.sections import SPECTRA, bottleneck, layer_labels, threshold_of
from bnrank.reporting.stills.frequencies import Line, apart, frequency_lines

MAX_LINES = 200
"""Lines of singular values by frequency, at most."""
MAX_FREQUENCIES = 40
"""Frequencies of which ranks are shown, at most."""


def view(profiles: Mapping[str, xr.Dataset]) -> View:
    """Return the charts of profiles by label: Datasets as `bnrank.profile` returns them."""
    return View("profile", [_group(label, dataset) for label, dataset in profiles.items()])


def _group(label: str, dataset: xr.Dataset) -> Group:
    layers = parts.numbers(dataset["layer"].values, 15)
    hover = [parts.escaped(f"layer {label}") for label in layer_labels(dataset)]
    found = bottleneck(dataset)
    start, end = found["start"], found["end"]
    shapes = [parts.band(start - 0.5, end + 0.5)] if start is not None and end is not None and start <= end else []
    level = threshold_of(dataset) if "atol" in dataset.attrs else None
    with_level = shapes if level is None else [*shapes, parts.dotted("y", level)]
    x = parts.count_axis("layer", len(layers), layers[0])
    charts = []
    for name, title in SPECTRA.items():
        if name in dataset:
            kind, quantity = title.split(", ")
            values = dataset[name].transpose("layer", ...).values[:, :TOP]
            lines = parts.spectrum_lines(layers, values, "%{text}")
            own = with_level if name.startswith("weight") else shapes
            chart = _over_layers(f"Spectra of the {kind}", lines, x, hover, quantity, values, shapes=own)
            charts.append(replace(chart, key=parts.index_key(values.shape[1])))
    if "nonlinearity" in dataset:
        values = dataset["nonlinearity"].values
        line = parts.line(layers, parts.numbers(values), parts.member_color(0), "%{text}<br>%{y:.4g}")
        charts.append(_over_layers("Nonlinearity ratio", line, x, hover, "‖Z − σ(Z)‖ / ‖Z‖", values, shapes=shapes))
    if "frequency_singular_values" in dataset:
        charts.append(_frequencies(dataset, x, layers, hover, with_level))
        charts += [_frequency_ranks(dataset, x, layers, hover)] if "frequency_rank" in dataset else []
    notes = ["Shaded: the bottleneck."] if shapes else []
    if level is not None:
        notes.append(f"Dotted: {level:g}, above which a singular value of a weight counts.")
    if "jacobian_singular_values" in dataset:
        values = dataset["jacobian_singular_values"].transpose("sample", ...).values[:, : 3 * TOP]
        charts.append(_jacobian(values[:, np.isfinite(values).any(axis=0)]))
        notes.append(f"Jacobian: median, and range over {len(values)} samples.")
    return Group(label, charts, [Control("scale", "scale", parts.SCALES)], notes=" ".join(notes))


def _over_layers(
    title: str, lines: Any, x: Mapping[str, Any], hover: list[str], quantity: str, values: Any, **layout: Any
) -> Chart:
    """Return a chart of lines over the layers, on a linear or a logarithmic axis."""
    figure = parts.figure(lines, x, parts.value_axis(quantity, values), **layout)
    figure.update_traces(text=hover)
    return Chart(title, figure, changes=scale_changes(parts.value_ranges(values)))


def _frequencies(
    dataset: xr.Dataset, x: Mapping[str, Any], layers: list[int], hover: list[str], shapes: list[Any]
) -> Chart:
    """Return a line per frequency and channel, colored by |w|."""
    every = frequency_lines(dataset, int(dataset["frequency_singular_values"].size))
    shown = every[:MAX_LINES]
    moduli = np.unique(np.asarray(dataset["modulus"].values, dtype=float))
    values = np.array([line.values for line in shown], dtype=float)

    def color(modulus: float) -> str:
        return parts.index_color(round(100 * (modulus / (moduli[-1] or 1)) ** 0.5), 101)

    lines = []
    for line in reversed(shown):
        said = f"%{{text}}<br>frequency {parts.escaped(line.name)}<br>s<sub>{line.channel}</sub> = %{{y:.4g}}"
        drawn, style = parts.numbers(line.values), {"width": 2.6, "size": 6} if line.kept else {"width": 1, "size": 3}
        lines.append(parts.line(layers, drawn, color(line.modulus), said, **style))
    kept = [line for line in shown if line.kept]
    labels = [_labels(kept, layers, limits, log, color) for log, limits in enumerate(parts.value_ranges(values))]
    margin = {"l": 58, "r": 24 + 7 * max((len(line.label) for line in kept), default=-1), "t": 12, "b": 46}
    more = {"shapes": shapes, "annotations": labels[0], "margin": margin}
    chart = _over_layers("Singular values by frequency", lines, x, hover, "singular value of W", values, **more)
    note = "Cycles per image; ± stands for w and −w. Named: kept in every layer of the bottleneck."
    if len(shown) < len(every):
        note += f" The {len(shown)} of {len(every)} lines with the largest values are shown."
    every_nth = -(-int(moduli[-1] + 1) // 9)
    keyed = moduli.tolist() if len(moduli) <= 9 else [float(i) for i in range(0, int(moduli[-1]) + 1, every_nth)]
    key = [(color(modulus), f"|w| = {parts.short(modulus)}") for modulus in keyed]
    changes = [*chart.changes, Change("layout.annotations", ("scale",), labels)]
    return replace(chart, key=key, note=note, changes=changes)


def _labels(kept: list[Line], layers: list[int], limits: list[float], log: int, color: Any) -> list[dict[str, Any]]:
    """Return the names of lines at the right of the plot, apart from each other."""
    ends = []
    for line in kept:
        at = int(np.flatnonzero(np.isfinite(line.values))[-1])
        height = float(np.log10(max(line.values[at], 1e-300))) if log else float(line.values[at])
        ends.append((height, layers[at], line))
    ends.sort(key=lambda end: end[0])
    heights = apart([height for height, _, _ in ends], 0.07 * (limits[1] - limits[0]), limits[1])
    beyond = layers[-1] + 0.5 + 0.03 * len(layers)
    style = {"ax": beyond, "axref": "x", "ayref": "y", "xanchor": "left", "arrowhead": 0, "arrowwidth": 1}
    labels = []
    for (height, at, line), place in zip(ends, heights, strict=True):
        own = {"x": at, "y": parts.numbers(height), "ay": parts.numbers(place), "text": parts.escaped(line.label)}
        shade = color(line.modulus)
        labels.append({**style, **own, "arrowcolor": shade, "font": {"color": shade, "size": 12}})
    return labels


def _frequency_ranks(dataset: xr.Dataset, x: Mapping[str, Any], layers: list[int], hover: list[str]) -> Chart:
    shown = dataset.isel(frequency=slice(MAX_FREQUENCIES))
    pairs = zip(shown["frequency"].values, shown["multiplicity"].values, strict=True)
    names = [parts.escaped(frequency_label(str(name), int(times))) for name, times in pairs]
    rank = parts.numbers(shown["frequency_rank"].transpose("frequency", "layer").values)
    said = "%{text}<br>frequency %{customdata}<br>%{z} values above the threshold"
    heat = parts.heat_map(rank, said, parts.color_bar("rank", tickformat="d"), x=layers, y=list(range(len(names))))
    heat.update(zmax=max(1, int(shown["frequency_rank"].max())), colorscale=parts.heat_scale(light=False))
    heat.update(text=[hover] * len(names), customdata=[[name] * len(layers) for name in names])
    y, of = parts.named_axis("frequency", names, most=14), dataset.sizes["frequency"]
    note = f"The {len(names)} lowest of {of} frequencies." if of > len(names) else ""
    return Chart("Rank by frequency", parts.figure(heat, x, y), size="tall", note=note)


def _jacobian(values: np.ndarray) -> Chart:
    """Return the median over the samples, and the range between the smallest and the largest value as a band."""
    low, middle, high = (parts.numbers(f(values, axis=0)) for f in (np.nanmin, np.nanmedian, np.nanmax))
    floor = 1e-12 * parts.largest(values)
    x = list(range(1, len(middle) + 1))
    color = parts.member_color(0)
    clipped = [[max(value, floor) for value in row] for row in (low, middle, high)]
    said = [[parts.short(value) for value in values] for values in zip(middle, low, high, strict=True)]
    hover = "index %{x}<br>median %{customdata[0]}<br>from %{customdata[1]} to %{customdata[2]}"
    lines = [
        parts.line(x, clipped[0], color, width=0, size=0),
        parts.line(x, clipped[2], color, width=0, size=0, fill="tonexty", fillcolor=parts.SHADE),
        parts.line(x, clipped[1], color, hover, customdata=said),
    ]
    axis = parts.log_axis("singular value of Jf(x)", clipped)
    return Chart("Singular values of the Jacobian", parts.figure(lines, parts.count_axis("index", len(x)), axis))
