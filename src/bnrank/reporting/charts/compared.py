"""Charts of a comparison of two networks: changes, ranks, spectra and similarities by layer."""

import numpy as np
import plotly.graph_objects as go

from bnrank.measures.comparing import Comparison
from bnrank.reporting.charts import parts
from bnrank.reporting.charts.measured import spectra_map
from bnrank.reporting.charts.parts import Change, Chart, Control, Group, View

MAX_NAMES = 30
"""Largest number of layers named on an axis."""
RANKS = {"stable rank": "stable_rank", "entropy rank": "entropy_rank", "relative rank": "relative_rank"}
SIMILARITIES = {"linear CKA": "cka", "debiased CKA": "cka_debiased", "mean CCA": "cca"}


def compared_view(found: Comparison) -> View:
    """Return the charts of a comparison; charts of one layer are left out."""
    data = found.data
    charts = []
    if data.sizes["layer"] > 1:
        hover = [parts.escaped(f"{i}: {name}") for i, name in enumerate(data["layer_name"].values.tolist(), 1)]
        x = parts.count_axis("matrix", len(hover))
        if np.isfinite(data["change"].values).any():
            charts.append(_changes(found, hover, x))
        charts.append(_ranks(found, hover, x))
        charts += [_map(found, hover)]
        if np.isfinite(data["left_angles"].values).any():
            charts.append(_overlaps(found, hover, x))
    if "cka" in data and data["cka"].size > 1 and np.isfinite(data["cka"].values).any():
        charts.append(_similarities(found))
    return View("compared", [Group("", charts)])


def _changes(found: Comparison, hover: list[str], x: dict[str, object]) -> Chart:
    """Return bars of the relative change of every matrix."""
    values = found.data["change"].values
    bars = go.Bar(
        x=list(range(1, len(values) + 1)),
        y=parts.numbers(values),
        text=hover,
        textposition="none",
        marker={"color": parts.member_color(0)},
        hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
    )
    plot = parts.figure(bars, x, {"title": "‖W_b − W_a‖ / ‖W_a‖", "rangemode": "tozero"})
    return Chart("Relative change of the weights", plot)


def _ranks(found: Comparison, hover: list[str], x: dict[str, object]) -> Chart:
    """Return the ranks of the weights of a and b, and of their difference."""
    data, drawn, tops = found.data, [], []
    for name in RANKS.values():
        own = data["weight_relative_rank" if name == "relative_rank" else name].values
        change = data[f"update_{name}"].values
        drawn.append([parts.numbers(row) for row in (*own, change)])
        tops.append([0, parts.numbers(1.06 * parts.largest(np.vstack([own, change])))])
    places = list(range(1, len(hover) + 1))
    labels = ("a", "b", "difference")
    lines = [
        parts.line(
            places, drawn[0][i], parts.member_color(i), f"%{{text}}<br>{label}: %{{y:.4g}}", text=hover, name=label
        )
        for i, label in enumerate(labels)
    ]
    plot = parts.figure(lines, x, {"title": "", "range": tops[0]})
    changes = [Change("y", ("rank",), drawn), Change("layout.yaxis.range", ("rank",), tops)]
    key = [(parts.member_color(i), label) for i, label in enumerate(labels)]
    control = Control("rank", "rank", list(RANKS))
    return Chart("Ranks of the weights and of their difference", plot, key=key, controls=[control], changes=changes)


def _map(found: Comparison, hover: list[str]) -> Chart:
    """Return a map of the spectra of the difference and of both weights."""
    data = found.data
    spectra = {
        "weights of a": data["weight_singular_values"].values[0],
        "weights of b": data["weight_singular_values"].values[1],
    }
    difference = data["update_singular_values"].values
    if np.isfinite(difference).any():
        spectra = {"difference": difference} | spectra
    return spectra_map(spectra, list(range(1, len(hover) + 1)), hover, "Singular values", "matrix")


def _overlaps(found: Comparison, hover: list[str], x: dict[str, object]) -> Chart:
    """Return the overlaps of the leading singular subspaces, and what independent ones have on average."""
    data, lines = found.data, []
    places = list(range(1, len(hover) + 1))
    shapes = [tuple(map(int, text.split(" x "))) for text in data["layer_shape"].values.tolist()]
    k = data["subspace"].values
    for i, (side, overlap) in enumerate(zip(("left", "right"), found.overlaps(), strict=True)):
        chance = np.where(k > 0, k, np.nan) / [shape[i] for shape in shapes]
        said = [f"{name}<br>{side}, {n:g} dimensions" for name, n in zip(hover, k.tolist(), strict=True)]
        color = parts.member_color(i)
        lines.append(parts.line(places, parts.numbers(overlap), color, "%{text}<br>%{y:.3g}", text=said))
        lines.append(parts.line(places, parts.numbers(chance), color, width=1, size=0, line_dash="dot"))
    plot = parts.figure(lines, x, {"title": "", "range": [0, 1.04]})
    key = [(parts.member_color(i), side) for i, side in enumerate(("left", "right"))]
    note = (
        f"Mean squared cosine of the principal angles, at most {found.top} dimensions. Dotted: independent subspaces."
    )
    return Chart("Overlap of leading singular subspaces", plot, key=key, note=note)


def _similarities(found: Comparison) -> Chart:
    """Return a map of the similarity of every layer of a with every layer of b."""
    data = found.data
    maps = {title: np.clip(data[name].values, 0, 1) for title, name in SIMILARITIES.items()}
    maps = {title: values for title, values in maps.items() if np.isfinite(values).any()}
    rows, columns = (data[f"layer_{letter}"].values.tolist() for letter in "ab")
    hover = [[parts.escaped(f"{a} of a, {b} of b") for b in columns] for a in rows]
    drawn = [parts.numbers(values, 4) for values in maps.values()]
    heat = parts.heat_map(drawn[0], "%{text}<br>%{z:.3g}", parts.color_bar("", nticks=5), zmax=1, text=hover)
    heat.update(hoverongaps=False, xgap=len(columns) < 40, ygap=len(rows) < 40)
    heat.update(x=list(range(1, len(columns) + 1)), y=list(range(1, len(rows) + 1)))
    down = parts.count_axis("layer of a", len(rows))
    plot = parts.figure(
        heat, parts.count_axis("layer of b", len(columns), most=9), {**down, "range": down["range"][::-1]}
    )
    changes = [Change("z", ("similarity",), [[values] for values in drawn])]
    control = Control("similarity", "", list(maps))
    return Chart("Similarity of layers", plot, size="tall", controls=[control], changes=changes)
