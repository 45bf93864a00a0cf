"""Charts of measurements: histories (curves, spectra and ranks over training) and profiles (spectra per layer)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from bnrank.measures.frequencies import label as frequency_label
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.parts import Change, Chart, Control, Group, View, scale_changes
from bnrank.reporting.sections import CURVES, SPECTRA, bottleneck, evenly, layer_labels, threshold_of
from bnrank.reporting.stills.frequencies import Line, apart, frequency_lines

TOP = 10
"""Singular values shown per layer."""
MAX_STEPS = 200
"""Largest number of slider positions."""
MAX_CURVE_STEPS = 500
"""Largest number of points per training curve."""
MAX_MEMBERS = 32
"""Largest number of members shown."""
MAX_NUMBERS = 300_000
"""Largest number of singular values in all histories on one page (about 2 MB)."""
MAX_LINES = 200
"""Largest number of lines of singular values by frequency."""
MAX_INDEX = 200
"""Largest number of singular values per layer in the map of all layers."""
DECADES = 6
"""Decades below the largest singular value that the map of all layers tells apart."""
MAX_FREQUENCIES = 40
"""Largest number of frequencies whose ranks are shown."""


# histories -----------------------------------------------------------------------------------------------------------


def spectra_budget(histories: list[xr.Dataset]) -> int:
    """Return the number of steps of each history on a page: MAX_STEPS, fewer with many members or layers."""
    per_step = 0
    for dataset in histories:
        if "weight_singular_values" in dataset:
            sizes = dataset["weight_singular_values"].sizes
            per_step += min(sizes["member"], MAX_MEMBERS) * sizes["layer"] * min(sizes["index"], TOP)
    return MAX_STEPS if per_step == 0 else int(np.clip(MAX_NUMBERS // per_step, 10, MAX_STEPS))


def history_view(histories: Mapping[str, xr.Dataset], max_steps: int = MAX_STEPS) -> View:
    """Return the charts of histories by label.

    Parameters
    ----------
    histories : mapping from label to Dataset
        Dimensions (member, step) and, for ``weight_singular_values``, (member, step, layer, index).
    max_steps : int
        Largest number of slider positions; the first and the last step are kept.
    """
    return View("history", [_history(label, dataset, max_steps) for label, dataset in histories.items()])


def _history(label: str, dataset: xr.Dataset, max_steps: int) -> Group:
    notes: list[str] = []
    chosen = evenly(dataset.sizes["member"], MAX_MEMBERS)
    if len(chosen) < dataset.sizes["member"]:
        notes.append(f"{len(chosen)} of {dataset.sizes['member']} members are shown, evenly spaced")
    kept = dataset.isel(member=chosen)
    members = [_member(kept, i) for i in range(len(chosen))]
    controls = [Control("member", "member", [", ".join(filter(None, member)) for member in members])]
    charts = _curves(kept, members, notes)
    values, steps = _recorded(kept, max_steps, notes)
    ends, threshold = [], None
    if steps:
        present = np.isfinite(values).any(axis=(2, 3))
        ends = [int(np.flatnonzero(row).max(initial=0)) for row in present.T]
        threshold = threshold_of(dataset)
        charts += _spectra(values, steps, kept)
        controls.append(Control("scale", "scale", parts.SCALES))
    stopped = [
        f"{name} stopped ({status or 'no later values'}); its last recorded state, step {steps[end]:,}, is shown."
        for (name, _, status), end in zip(members, ends, strict=False)
    ]
    left_out = f"Left out to keep the page small: {'; '.join(notes)}." if notes else ""
    return Group(label, charts, controls, steps, ends, stopped, threshold, left_out)


def _curves(dataset: xr.Dataset, members: list[tuple[str, str, str]], notes: list[str]) -> list[Chart]:
    """Return the chart of one line per member of the chosen quantity; none without a quantity."""
    rows = evenly(dataset.sizes["step"], MAX_CURVE_STEPS)
    if len(rows) < dataset.sizes["step"]:
        notes.append(f"the curves show {len(rows)} of {dataset.sizes['step']} recorded steps")
    curves = {}
    for name, title in CURVES.items():
        if name in dataset and set(dataset[name].dims) == {"member", "step"}:
            values = dataset[name].transpose("member", "step").values[:, rows].astype(float)
            curves[title] = np.where(values > 0, values, np.nan)
    if not curves:
        return []
    titles, drawn = list(curves), list(map(parts.numbers, curves.values()))
    x, count = parts.numbers(dataset["step"].values[rows], 15), len(members)
    lines, key = [], []
    for i, (name, _, status) in enumerate(members):
        color = parts.member_color(i)
        dash = parts.DASHES[i // 7 % 4]
        hover = f"{name}<br>step %{{x}}<br>%{{y:.4g}}"
        lines.append(parts.line(x, drawn[0][i], color, hover, size=0, line_dash=dash))
        key.append((color, name + (f" ({status})" if status in ("diverged", "interrupted") else "")))
    axes = [parts.log_axis(title, values) for title, values in curves.items()]
    changes = [
        Change("y", ("curve",), drawn),
        Change("layout.yaxis.range", ("curve",), [axis["range"] for axis in axes]),
        Change("layout.yaxis.title.text", ("curve",), titles),
        Change("line.width", ("member",), [[3 if i == j else 1.4 for i in range(count)] for j in range(count)]),
        Change("opacity", ("member",), [[1 if i == j else 0.6 for i in range(count)] for j in range(count)]),
    ]
    curve = Control("curve", "quantity", titles)
    plot = parts.figure(lines, parts.step_axis(), axes[0])
    chart = Chart("Training curves", plot, key=key, picks="member", controls=[curve], changes=changes, marks=("step",))
    return [chart]


def _spectra(values: np.ndarray, steps: list[int], dataset: xr.Dataset) -> list[Chart]:
    """Return the spectra at a step, the ranks over steps, and one layer over steps, of (step, member, layer, index)."""
    members, layers = range(values.shape[1]), dataset["layer"].values.tolist()
    drawn = parts.numbers(values.transpose(0, 1, 3, 2)[:, :, ::-1], 4)  # [step][member][index, the largest last][layer]
    x = parts.count_axis("layer", len(layers), layers[0])
    axis = parts.value_axis("singular value of W", values)
    key = parts.index_key(values.shape[3])
    spectra = Chart(
        "Weight spectra",
        parts.figure(parts.spectrum_lines(layers, values[-1, 0], "layer %{x}"), x, axis),
        key=key,
        changes=[
            Change("y", ("step", "member"), drawn),
            Change("heading", ("step",), [f"Weight spectra at step {step:,}" for step in steps]),
            *scale_changes([parts.value_ranges(values[:, m]) for m in members], ("member",)),
        ],
        marks=("threshold",),
    )
    bar = parts.color_bar("rank", tickformat="d")
    hover = "step %{x}<br>layer %{y}<br>rank %{z}"
    heat = parts.heat_map([[0] * len(steps) for _ in layers], hover, bar, x=steps, y=layers, colorscale="Cividis")
    heat.update(hoverongaps=False, xgap=0, ygap=0)
    plot = parts.figure(heat, {**parts.step_axis(), "showgrid": False}, {**x, "showgrid": False})
    ranks = Chart("Rank per layer over training", plot, size="tall", marks=("step",), derived="ranks")
    middle = (len(layers) - 1) // 2
    by_layer = [[parts.value_ranges(values[:, m, layer]) for layer in range(len(layers))] for m in members]
    single = Chart(
        "One layer over training",
        parts.figure(parts.spectrum_lines(steps, values[:, 0, middle], "step %{x}"), parts.step_axis(steps), axis),
        key=key,
        controls=[Control("layer", "layer", layer_labels(dataset), middle)],
        changes=scale_changes(by_layer, ("member", "layer")),
        marks=("step", "threshold"),
        derived="layer",
    )
    return [spectra, ranks, single]


def _recorded(dataset: xr.Dataset, max_steps: int, notes: list[str]) -> tuple[np.ndarray, list[int]]:
    """Return the top values (step, member, layer, index) at the recorded steps, thinned, and these steps."""
    spectra = dataset.get("weight_singular_values")
    if spectra is None:
        return np.zeros(0), []
    values = spectra.transpose("step", "member", "layer", "index").values[..., :TOP].astype(float)
    recorded = np.flatnonzero(np.isfinite(values).any(axis=(1, 2, 3)))
    chosen = recorded[evenly(len(recorded), max_steps)]
    if len(chosen) < len(recorded):
        notes.append(f"the spectra show {len(chosen)} of {len(recorded)} recorded steps")
    if len(chosen) and spectra.sizes["index"] > TOP:
        notes.append(f"the {TOP} largest of {spectra.sizes['index']} recorded singular values are shown")
    return values[chosen], parts.numbers(spectra["step"].values[chosen], 15)


def _member(dataset: xr.Dataset, i: int) -> tuple[str, str, str]:
    """Return a member's name, its seed, ridge and step size where members differ, and its status."""
    facts = []
    for name in ("seed", "ridge", "lr"):
        coordinate = dataset.coords.get(name)
        if coordinate is not None and coordinate.dims == ("member",) and len(set(coordinate.values.tolist())) > 1:
            facts.append(f"{name} {coordinate.values[i]:.4g}" if name != "seed" else f"seed {coordinate.values[i]}")
    status = dataset.coords.get("status")
    return f"member {dataset['member'].values[i]}", ", ".join(facts), "" if status is None else str(status.values[i])


# profiles ------------------------------------------------------------------------------------------------------------


def profile_view(profiles: Mapping[str, xr.Dataset]) -> View:
    """Return the charts of profiles by label: Datasets as `bnrank.profile` returns them."""
    return View("profile", [_profile(label, dataset) for label, dataset in profiles.items()])


def _profile(label: str, dataset: xr.Dataset) -> Group:
    layers = parts.numbers(dataset["layer"].values, 15)
    hover = [parts.escaped(f"layer {name}") for name in layer_labels(dataset)]
    found = bottleneck(dataset)
    start, end = found["start"], found["end"]
    shapes = [parts.band(start - 0.5, end + 0.5)] if start is not None and end is not None and start <= end else []
    level = threshold_of(dataset) if "atol" in dataset.attrs else None
    with_level = shapes if level is None else [*shapes, parts.dotted("y", level)]
    x = parts.count_axis("layer", len(layers), layers[0])
    charts = []
    for name, title in SPECTRA.items():
        if name in dataset and len(layers) > 1:
            kind, quantity = title.split(", ")
            values = dataset[name].transpose("layer", ...).values[:, :TOP]
            lines = parts.spectrum_lines(layers, values, "%{text}")
            own = with_level if name.startswith("weight") else shapes
            chart = _over_layers(f"Spectra of the {kind}", lines, x, hover, quantity, values, shapes=own)
            charts.append(replace(chart, key=parts.index_key(values.shape[1])))
    if any(name in dataset for name in SPECTRA):
        charts.append(_all_layers(dataset, layers, hover))
    if "nonlinearity" in dataset and len(layers) > 1:
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
        if (measured := np.isfinite(values).any(axis=0)).sum() > 1:
            charts.append(_jacobian(values[:, measured]))
        notes.append(f"Jacobian: median, and range over {len(values)} samples.")
    return Group(label, charts, [Control("scale", "scale", parts.SCALES)], notes=" ".join(notes))


def _all_layers(dataset: xr.Dataset, layers: list[int], hover: list[str]) -> Chart:
    spectra = {title.split(", ")[0]: dataset[name] for name, title in SPECTRA.items() if name in dataset}
    return spectra_map(
        {name: values.transpose("layer", "index").values for name, values in spectra.items()}, layers, hover
    )


def spectra_map(
    spectra: Mapping[str, np.ndarray],
    layers: list[int],
    hover: list[str],
    title: str = "Singular values of every layer",
    of_what: str = "layer",
) -> Chart:
    """Return a map of the singular values (layer, index) of every layer, relative to its largest, as powers of ten."""
    maps, widest = {}, 1
    for name, found in spectra.items():
        values = found[:, :MAX_INDEX].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            powers = np.log10(values / np.nanmax(values, axis=1, initial=0.0, keepdims=True))
        maps[name] = np.where(np.isnan(powers), np.nan, np.clip(powers, -DECADES, 0))
        widest = max(widest, int(np.isfinite(values).sum(axis=1).max()))
    drawn = [parts.numbers(powers[:, :widest].round(2)) for powers in maps.values()]
    ticks = list(range(-DECADES, 1, 2))
    bar = parts.color_bar(
        "s<sub>i</sub> / s<sub>1</sub>", tickvals=ticks, ticktext=[f"10<sup>{t}</sup>" if t else "1" for t in ticks]
    )
    heat = parts.heat_map(drawn[0], "%{text}<br>index %{x}: 10<sup>%{z:.2f}</sup> of the largest", bar)
    heat.update(x=list(range(1, widest + 1)), y=layers, text=[[name] * widest for name in hover])
    heat.update(zmin=-DECADES, zmax=0, hoverongaps=False, xgap=widest < 60, ygap=len(layers) < 60)
    names = parts.count_axis(of_what, len(layers), layers[0])
    plot = parts.figure(heat, parts.count_axis("index", widest, most=9), {**names, "range": names["range"][::-1]})
    several = len(drawn) > 1
    of = [Control("of", "of the", list(maps))] if several else []
    changes = [Change("z", ("of",), [[values] for values in drawn])] if several else []
    note = f"Of each layer, relative to its largest; at most {MAX_INDEX} are shown." if widest == MAX_INDEX else ""
    return Chart(title, plot, size="tall", controls=of, changes=changes, note=note)


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
        drawn = parts.numbers(line.values)
        style = {"width": 2.6, "size": 6} if line.kept else {"width": 1, "size": 3}
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
    """Return the names of lines at the right of the plot, without overlap."""
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
