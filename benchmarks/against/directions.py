"""How many linear combinations of ten inputs one output depends on, beside SIR, SAVE and active subspaces."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles

from benchmarks.against.counting_cases import Case
from benchmarks.against.counting_peers import Found, sliced_peer, whitened
from benchmarks.against.trials import Kept, attempt, failures, markdown, seeds, wilson

__all__ = ["KEPT", "active_subspace", "cells", "draw", "measure", "shown", "tables"]

OURS = "bnrank"
SEEDS = range(10)
INPUTS, NOISE, NEW_ROWS = 10, 0.1, 50
NEIGHBORS = 2 * (INPUTS + 1)  # of a local linear model
Function = Callable[[np.ndarray], np.ndarray]
FUNCTIONS: dict[int, dict[str, Function]] = {
    1: {
        "tanh 2u": lambda u: np.tanh(2 * u[:, 0]),
        "u^2": lambda u: u[:, 0] ** 2,
        "exp u": lambda u: np.exp(u[:, 0]),
        "|u - 0.3|": lambda u: np.abs(u[:, 0] - 0.3),
    },
    2: {
        "u v": lambda u: u[:, 0] * u[:, 1],
        "|u| + 0.7 |v|": lambda u: np.abs(u[:, 0]) + 0.7 * np.abs(u[:, 1]),
        "sin 2u + v^2 / 2": lambda u: np.sin(2 * u[:, 0]) + 0.5 * u[:, 1] ** 2,
        "u / (1.5 + tanh v)": lambda u: u[:, 0] / (1.5 + np.tanh(u[:, 1])),
    },
    3: {
        "u v + tanh 2w": lambda u: u[:, 0] * u[:, 1] + np.tanh(2 * u[:, 2]),
        "|u| + |v| + |w|": lambda u: np.abs(u).sum(1),
        "u + v^2 + v w": lambda u: u[:, 0] + u[:, 1] ** 2 + u[:, 1] * u[:, 2],
    },
    4: {
        "u v + w t": lambda u: u[:, 0] * u[:, 1] + u[:, 2] * u[:, 3],
        "|u| + |v| + |w| + |t|": lambda u: np.abs(u).sum(1),
        "tanh 2u + v^2 / 2 + w t": lambda u: np.tanh(2 * u[:, 0]) + 0.5 * u[:, 1] ** 2 + u[:, 2] * u[:, 3],
    },
}


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return the cases; seeds are outside, so that a run that is cut short has all kinds."""
    seeds, sizes = (SEEDS[:1], (300,)) if quick else (SEEDS, (300, 1000))
    return [{"k": k, "n": n, "seed": seed} for seed in seeds for n in sizes for k in FUNCTIONS]


def draw(cell: dict[str, Any]) -> tuple[Case, np.ndarray, str]:
    """Return a table, the true directions (10, k), oblique for even seeds, and the function."""
    k, seed = cell["k"], cell["seed"]
    generator = np.random.default_rng([k, cell["n"], seed])
    x = generator.normal(size=(cell["n"] + NEW_ROWS, INPUTS))
    oblique = np.linalg.qr(generator.normal(size=(INPUTS, INPUTS)))[0]
    axes = oblique[:, :k] if seed % 2 == 0 else np.eye(INPUTS)[:, generator.permutation(INPUTS)[:k]]
    name = list(FUNCTIONS[k])[seed % len(FUNCTIONS[k])]
    clean = FUNCTIONS[k][name](x @ axes)
    y = clean + NOISE * clean.std() * generator.normal(size=len(x))
    n, z = cell["n"], x @ axes
    return Case(x[:n], y[:n, None], z[:n], x[n:], clean[n:, None], z[n:], seed), axes, name


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Count the directions with every method, and compare them with the true ones."""
    case, axes, name = draw(cell)
    return [{"function": name} | attempt(method, partial(_judged, case, axes, fit)) for method, fit in METHODS.items()]


def _judged(case: Case, axes: np.ndarray, fit: Callable[[Case], Found]) -> dict[str, Any]:
    began = time.process_time()
    found = fit(case)
    result: dict[str, Any] = {"seconds": time.process_time() - began, "count": found.count, **found.extra}
    if found.count == axes.shape[1] and found.transform is not None:
        made = found.transform(np.eye(INPUTS)) - found.transform(np.zeros((1, INPUTS)))
        result["angle"] = float(np.rad2deg(subspace_angles(axes, made).max()))
    return result


def combinations(case: Case) -> Found:
    """Fit `bnrank.discovery.BottleneckRegressor` as it comes."""
    from bnrank.discovery import BottleneckRegressor

    fitted = BottleneckRegressor(progress=False, random_state=case.seed).fit(case.x, case.y[:, 0])
    low, high = fitted.n_input_directions_interval_
    extra = {"low": low, "high": high, "undetermined": bool(fitted.input_directions_undetermined_)}
    return Found(fitted.n_input_directions_, lambda x: x @ fitted.input_directions_.T, None, extra)


def active_subspace(case: Case) -> Found:
    """Find the active subspace from local linear models; its dimension by the largest gap of the eigenvalues.

    Gradients at every row are those of a linear model of its nearest neighbors (Constantine 2015, algorithm 1.2), in
    inputs of covariance 1; the gap is that of log eigenvalues.
    """
    from sklearn.neighbors import NearestNeighbors

    z, center, whitening = whitened(case.x)
    near = NearestNeighbors(n_neighbors=NEIGHBORS).fit(z).kneighbors(z, return_distance=False)
    gradients = []
    for rows in near:
        local = np.column_stack([np.ones(len(rows)), z[rows]])
        gradients.append(np.linalg.lstsq(local, case.y[rows, 0], rcond=None)[0][1:])
    slopes = np.array(gradients)
    return _by_the_gap(slopes.T @ slopes / len(slopes), center, whitening)


def recursive_feature_machine(case: Case) -> Found:
    """Find the directions of xRFM's average gradient outer product, by the same gap.

    With its defaults xRFM has one machine for tables of this size, with a full (not diagonal) matrix. A fifth of the
    rows chooses among its iterations.
    """
    from xrfm import xRFM

    z, center, whitening = whitened(case.x)
    y = ((case.y - case.y.mean(0)) / case.y.std(0)).astype(np.float32)
    rows = np.random.default_rng(0).permutation(len(z))
    out, known = rows[: len(z) // 5], rows[len(z) // 5 :]
    model = xRFM(device="cpu", random_state=0, verbose=False)
    model.fit(z[known].astype(np.float32), y[known], z[out].astype(np.float32), y[out])
    (product,) = model.collect_best_agops()
    return _by_the_gap(np.asarray(product, dtype=float), center, whitening)


def _by_the_gap(product: np.ndarray, center: np.ndarray, whitening: np.ndarray) -> Found:
    """Return the directions above the largest gap of the logarithms of the eigenvalues."""
    values, vectors = np.linalg.eigh(product)
    values, vectors = np.maximum(values[::-1], 1e-300), vectors[:, ::-1]
    count = int(np.argmax(np.log(values[:-1]) - np.log(values[1:]))) + 1
    directions = whitening @ vectors[:, :count]
    return Found(count, lambda x: (x - center) @ directions)


METHODS: dict[str, Callable[[Case], Found]] = {
    OURS: combinations,
    "SIR (sliced), own rule": sliced_peer("SlicedInverseRegression", "gap"),
    "SIR (sliced), permutations": sliced_peer("SlicedInverseRegression", "permutations"),
    "SAVE (sliced), own rule": sliced_peer("SlicedAverageVarianceEstimation", "gap"),
    "SAVE (sliced), permutations": sliced_peer("SlicedAverageVarianceEstimation", "permutations"),
    "active subspace, gap": active_subspace,
    "xRFM, gap": recursive_feature_machine,
}

KEPT = Kept(("count", "low", "high", "undetermined", "angle"), tuple(METHODS))


def shown(results: Sequence[dict[str, Any]]) -> str:
    """Return the table of the page: a row per method, the most often right first, and what bnrank says of its own."""
    sizes, numbers = sorted({r["n"] for r in results}), sorted({r["k"] for r in results})
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_method[result["method"]].append(result)
    hits = {method: [r for r in own if r.get("count") == r["k"]] for method, own in by_method.items()}
    totals = {n: max(sum(r["n"] == n for r in own) for own in by_method.values()) for n in sizes}
    rows = []
    for method in sorted(hits, key=lambda m: (m != OURS, -len(hits[m]) / len(by_method[m]))):
        right = hits[method]
        angles = [", ".join(_angle([r for r in right if (r["n"], r["k"]) == (n, k)]) for k in numbers) for n in sizes]
        counts = [sum(r["n"] == n for r in right) for n in sizes]
        share = f"{wilson(len(right), len(by_method[method])):.2f}"
        rows.append([method.replace(" (sliced)", ""), share, *counts, *angles])
    which = f"k = {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"k = {numbers[0]}"
    heads = [*(f"of {totals[n]} with N = {n:,}" for n in sizes), *(f"angle, {which}, N = {n:,}" for n in sizes)]
    own, right = by_method[OURS], hits[OURS]
    said = (
        f"{len(own)} tables: {which}, {' and '.join(f'{n:,}' for n in sizes)} rows, "
        f"{seeds([[r for r in own if (r['n'], r['k']) == (n, k)] for n in sizes for k in numbers])}. "
        f"{sum('low' in r and r['low'] <= r['k'] <= r['high'] for r in own)} of {len(own)} intervals of bnrank contain "
        f"the number. {sum(r['undetermined'] for r in right)} of its {len(right)} right counts are `undetermined`, and "
        f"{sum(r.get('undetermined', False) for r in own if r not in right)} of the {len(own) - len(right)} wrong ones."
    )
    parts = markdown(["method", "right", *heads], rows), said, failures(results)
    return "\n\n".join(part for part in parts if part)


def _angle(right: Sequence[dict[str, Any]]) -> str:
    found = [r["angle"] for r in right if "angle" in r]
    return f"{np.median(found):.1f}" if found else "–"


def tables(results: list[dict[str, Any]]) -> str:
    """Return counts that are right, by method, number and rows, and angles where they are."""
    columns = sorted({(r["n"], r["k"]) for r in results})
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_method[result["method"]].append(result)
    right, angles, failed = [], [], []
    for method, own in by_method.items():
        parts = {at: [r for r in own if (r["n"], r["k"]) == at] for at in columns}
        hits = {at: [r for r in rows if r.get("count") == r["k"]] for at, rows in parts.items()}
        total = wilson(sum(map(len, hits.values())), len(own))
        right.append([method, *(f"{len(hits[at])} of {len(parts[at])}" for at in columns), f"{total:.2f}"])
        angles.append([method, *(_angle(hits[at]) for at in columns)])
        failed += [f"{method}: {r['failed']}" for r in own if "failed" in r]
    heads = [f"k = {k}, N = {n:,}" for n, k in columns]
    own = by_method[OURS]
    inside = sum(r["low"] <= r["k"] <= r["high"] for r in own if "low" in r)
    unsure = sum(r.get("undetermined", False) for r in own)
    wrong = sum(r.get("count") != r["k"] and not r.get("undetermined", False) for r in own)
    said = (
        f"bnrank: {inside} of {len(own)} intervals contain the number; {unsure} counts are undetermined, and {wrong} "
    )
    said += "others are wrong."
    parts_of_page = [
        "## Correct numbers of directions\n\n" + markdown(["method", *heads, "fraction [95 percent]"], right),
        said,
        "## Median largest angle in degrees, where the number is right\n\n" + markdown(["method", *heads], angles),
        *([f"Failed: {'; '.join(sorted(set(failed)))}."] if failed else []),
    ]
    return "\n\n".join(parts_of_page) + "\n"
