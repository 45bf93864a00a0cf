"""Charts of a training history: curves, spectra at a step, ranks over training, one layer over training."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xarray as xr

from bnrank.reporting.charts import parts
from bnrank.reporting.charts.parts import Change, Chart, Control, Group, View, scale_changes
from bnrank.reporting.sections import CURVES, evenly, layer_labels, threshold_of

TOP = 10
"""Singular values shown per layer."""
MAX_STEPS = 200
"""Positions of the slider, at most."""
MAX_CURVE_STEPS = 500
"""Points per training curve, at most."""
MAX_MEMBERS = 32
"""Members shown, at most."""
MAX_NUMBERS = 300_000
"""Singular values of all histories on one page, at most (about 2 MB)."""


def spectra_budget(histories: list[xr.Dataset]) -> int:
    """Return how many steps of each history a page can hold: MAX_STEPS, fewer with many members or layers."""
    per_step = 0
    for dataset in histories:
        if "weight_singular_values" in dataset:
            sizes = dataset["weight_singular_values"].sizes
            per_step += min(sizes["member"], MAX_MEMBERS) * sizes["layer"] * min(sizes["index"], TOP)
    return MAX_STEPS if per_step == 0 else int(np.clip(MAX_NUMBERS // per_step, 10, MAX_STEPS))


def view(histories: Mapping[str, xr.Dataset], max_steps: int = MAX_STEPS) -> View:
    """Return the charts of histories by label.

    Parameters
    ----------
    histories : mapping from label to Dataset
        Dimensions (member, step) and, for ``weight_singular_values``, (member, step, layer, index).
    max_steps : int
        Positions of the slider, at most; the first and the last step are kept.
    """
    return View("history", [_group(label, dataset, max_steps) for label, dataset in histories.items()])


def _group(label: str, dataset: xr.Dataset, max_steps: int) -> Group:
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
        color, dash, hover = parts.member_color(i), parts.DASHES[i // 7 % 4], f"{name}<br>step %{{x}}<br>%{{y:.4g}}"
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
    controls, figure = [Control("curve", "quantity", titles)], parts.figure(lines, parts.step_axis(), axes[0])
    chart = Chart("Training curves", figure, controls=controls, changes=changes, marks=("step",))
    return [replace(chart, key=key, picks="member")]


def _spectra(values: np.ndarray, steps: list[int], dataset: xr.Dataset) -> list[Chart]:
    """Return the spectra at a step, the ranks over steps, and one layer over steps, of (step, member, layer, index)."""
    members, layers = range(values.shape[1]), dataset["layer"].values.tolist()
    drawn = parts.numbers(values.transpose(0, 1, 3, 2)[:, :, ::-1], 4)  # [step][member][index, the largest last][layer]
    x, axis = parts.count_axis("layer", len(layers), layers[0]), parts.value_axis("singular value of W", values)
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
    bar, hover = parts.color_bar("rank", tickformat="d"), "step %{x}<br>layer %{y}<br>rank %{z}"
    heat = parts.heat_map([[0] * len(steps) for _ in layers], hover, bar, x=steps, y=layers, colorscale="Cividis")
    heat.update(hoverongaps=False, xgap=0, ygap=0)
    ranks = Chart(
        "Rank per layer over training",
        parts.figure(heat, {**parts.step_axis(), "showgrid": False}, {**x, "showgrid": False}),
        size="tall",
        marks=("step",),
        derived="ranks",
    )
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
    """Return the top values (step, member, layer, index) at the recorded steps, thinned out, and these steps."""
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
