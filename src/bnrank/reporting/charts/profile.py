"""Charts of a profile: spectra per layer, nonlinearity, frequencies, the Jacobian."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from bnrank.measures.frequencies import label as frequency_label
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.chart import Change, Chart, Control, Group, View, scale_changes
from bnrank.reporting.charts.history import TOP, layer_ticks
from bnrank.reporting.sections import SPECTRA, bottleneck, threshold_of
from bnrank.reporting.stills.frequencies import Line, frequency_lines

MAX_LINES = 200
"""Lines of singular values by frequency, at most."""
MAX_FREQUENCIES = 40
"""Frequencies of which ranks are shown, at most."""


def view(profiles: Mapping[str, xr.Dataset]) -> View:
    """Return the charts of profiles by label: Datasets as `bnrank.profile` returns them."""
    return View("profile", [_group(label, dataset) for label, dataset in profiles.items()])


def _group(label: str, dataset: xr.Dataset) -> Group:
    layers = parts.numbers(dataset["layer"].values, 15)
    names = dataset.coords.get("layer_name")
    hover = [
        f"layer {layer}" + (f" ({parts.escaped(names.values[i])})" if names is not None else "")
        for i, layer in enumerate(layers)
    ]
    found = bottleneck(dataset)
    start, end = found["start"], found["end"]
    shapes = [parts.band(start - 0.5, end + 0.5)] if start is not None and end is not None and start <= end else []
    level = threshold_of(dataset) if "atol" in dataset.attrs else None
    x = layer_ticks(layers)
    charts = []
    for name, title in SPECTRA.items():
        if name in dataset:
            kind, quantity = title.split(", ")
            values = dataset[name].transpose("layer", ...).values[:, :TOP]
            own = [*shapes, parts.dotted("y", level)] if name.startswith("weight") and level is not None else shapes
            lines = parts.spectrum_lines(layers, values, "%{text}")
            figure = parts.figure(lines, x, parts.value_axis(quantity, values), shapes=own)
            figure.update_traces(text=hover)
            key, changes = parts.index_key(values.shape[1]), scale_changes(parts.value_ranges(values))
            charts.append(Chart(f"Spectra of the {kind}", figure, key=key, changes=changes))
    if "nonlinearity" in dataset:
        charts.append(_nonlinearity(dataset["nonlinearity"].values, x, layers, hover, shapes))
    if "frequency_singular_values" in dataset:
        charts += _frequencies(
            dataset, x, layers, hover, shapes if level is None else [*shapes, parts.dotted("y", level)]
        )
    notes = ["Shaded: the bottleneck."] if shapes else []
    if level is not None:
        notes.append(f"Dotted: {level:g}, above which a singular value of a weight counts.")
    if "jacobian_singular_values" in dataset:
        values = dataset["jacobian_singular_values"].transpose("sample", ...).values[:, : 3 * TOP]
        charts.append(_jacobian(values[:, np.isfinite(values).any(axis=0)]))
        notes.append(f"Jacobian: median, and range over {len(values)} samples.")
    return Group(label, charts, [Control("scale", "scale", ("linear", "log"))], notes=" ".join(notes))


def _nonlinearity(values: Any, x: Mapping[str, Any], layers: list[int], hover: list[str], shapes: list[Any]) -> Chart:
    line = parts.line(layers, parts.numbers(values), parts.member_color(0), "%{text}<br>%{y:.4g}", text=hover)
    figure = parts.figure(line, x, parts.value_axis("‖Z − σ(Z)‖ / ‖Z‖", values), shapes=shapes)
    return Chart("Nonlinearity ratio", figure, changes=scale_changes(parts.value_ranges(values)))


def _frequencies(
    dataset: xr.Dataset, x: Mapping[str, Any], layers: list[int], hover: list[str], shapes: list[Any]
) -> list[Chart]:
    """Return a line per frequency and channel, colored by |w|, and the rank at every frequency of every layer."""
    every = frequency_lines(dataset, int(dataset["frequency_singular_values"].size))
    shown = every[:MAX_LINES]
    moduli = np.unique(np.asarray(dataset["modulus"].values, dtype=float))
    values = np.array([line.values for line in shown], dtype=float)

    def color(modulus: float) -> str:
        return parts.index_color(round(100 * (modulus / (moduli[-1] or 1)) ** 0.5), 101)

    lines = [
        parts.line(
            layers,
            parts.numbers(line.values),
            color(line.modulus),
            f"%{{text}}<br>frequency {parts.escaped(line.name)}<br>s<sub>{line.channel}</sub> = %{{y:.4g}}",
            width=2.6 if line.kept else 1,
            size=6 if line.kept else 3,
            text=hover,
        )
        for line in reversed(shown)
    ]
    ranges = parts.value_ranges(values)
    kept = [line for line in shown if line.kept]
    labels = [_labels(kept, layers, limits, log, color) for log, limits in enumerate(ranges)]
    margin = {"l": 58, "r": 24 + 7 * max((len(line.label) for line in kept), default=-1), "t": 12, "b": 46}
    axis = parts.value_axis("singular value of W", values)
    figure = parts.figure(lines, x, axis, shapes=shapes, annotations=labels[0], margin=margin)
    left = len(every) - len(shown)
    every_nth = -(-int(moduli[-1] + 1) // 9)
    keyed = moduli.tolist() if len(moduli) <= 9 else [float(i) for i in range(0, int(moduli[-1]) + 1, every_nth)]
    charts = [
        Chart(
            "Singular values by frequency",
            figure,
            key=[(color(modulus), f"|w| = {parts.short(modulus)}") for modulus in keyed],
            changes=[*scale_changes(ranges), Change("layout.annotations", ("scale",), labels)],
            note="Cycles per image; ± stands for w and −w. Named: kept in every layer of the bottleneck."
            + (f" The {len(shown)} of {len(every)} lines with the largest values are shown." if left else ""),
        )
    ]
    if "frequency_rank" in dataset:
        charts.append(_frequency_ranks(dataset, x, layers, hover))
    return charts


def _labels(kept: list[Line], layers: list[int], limits: list[float], log: int, color: Any) -> list[dict[str, Any]]:
    """Return the names of lines at the right of the plot, apart from each other."""
    ends = []
    for line in kept:
        at = int(np.flatnonzero(np.isfinite(line.values))[-1])
        height = float(np.log10(max(line.values[at], 1e-300))) if log else float(line.values[at])
        ends.append((height, layers[at], line))
    ends.sort(key=lambda end: end[0])
    heights = _spread([height for height, _, _ in ends], 0.07 * (limits[1] - limits[0]), limits[1])
    beyond = layers[-1] + 0.5 + 0.03 * len(layers)
    return [
        {
            "x": at,
            "y": parts.numbers(height),
            "ax": beyond,
            "ay": parts.numbers(place),
            "axref": "x",
            "ayref": "y",
            "text": parts.escaped(line.label),
            "xanchor": "left",
            "arrowhead": 0,
            "arrowwidth": 1,
            "arrowcolor": color(line.modulus),
            "font": {"color": color(line.modulus), "size": 12},
        }
        for (height, at, line), place in zip(ends, heights, strict=True)
    ]


def _spread(heights: list[float], step: float, top: float) -> list[float]:
    """Return heights at least a step apart and at most ``top``, for heights in ascending order."""
    result: list[float] = []
    for height in heights:
        result.append(max(height, result[-1] + step) if result else height)
    for i in reversed(range(len(result))):
        result[i] = min(result[i], result[i + 1] - step if i + 1 < len(result) else top)
    return result


def _frequency_ranks(dataset: xr.Dataset, x: Mapping[str, Any], layers: list[int], hover: list[str]) -> Chart:
    shown = dataset.isel(frequency=slice(MAX_FREQUENCIES))
    pairs = zip(shown["frequency"].values, shown["multiplicity"].values, strict=True)
    names = [parts.escaped(frequency_label(str(name), int(times))) for name, times in pairs]
    rank = parts.numbers(shown["frequency_rank"].transpose("frequency", "layer").values)
    said = "%{text}<br>frequency %{customdata}<br>%{z} values above the threshold"
    heat = parts.heat_map(rank, said, parts.color_bar("rank", tickformat="d"), x=layers, y=list(range(len(names))))
    heat.update(zmax=max(1, int(shown["frequency_rank"].max())), colorscale=parts.heat_scale(light=False))
    heat.update(text=[hover] * len(names), customdata=[[name] * len(layers) for name in names])
    at = list(range(0, len(names), -(-len(names) // 14)))
    y = {"title": "frequency", "tickmode": "array", "tickvals": at, "ticktext": [names[i] for i in at]}
    hidden = dataset.sizes["frequency"] - len(names)
    note = f"The {len(names)} lowest of {len(names) + hidden} frequencies." if hidden else ""
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
