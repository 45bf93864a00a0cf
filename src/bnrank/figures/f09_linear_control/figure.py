"""F9L: the control of F9, a deep linear network, in which every step of saddle-to-saddle can be written down.

The task is drawing digits: from a label, one-hot and whitened, to the image. Its matrix S = Y^T X / N is that of
classification from the images, transposed. For whitened inputs C = ||A - S||_F^2 + const, A = W_L ... W_1, and from
balanced weights that share the singular vectors of S every mode a_k of A goes alone,

    da_k/dt = 2 L a_k^{2 - 2/L} (s_k - a_k).

The images enter through ten class means only, so the gradient over all of them costs as much as over ten samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f09_linear_control.computation import (
    HALF,
    Reduced,
    Staircase,
    aligned_network,
    array_of,
    best_losses,
    crossing,
    drawing,
    end_to_end,
    law,
    rank_table,
    staircase,
    time_of_mode,
)
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.networks import LinearNetwork
from bnrank.reporting import Section
from bnrank.training.gradient_flow import Flow

__all__ = ["FIGURE", "claims", "make", "picture"]

ALIGNED = 0.05  # of s_k: from there on the law is compared in the run from Gaussian weights


def claims(stairs: Staircase, exact: Staircase, task: Reduced, modes: int, start: float) -> tuple[Claim, ...]:
    """Measure what theory says of a run from Gaussian weights and of one from aligned weights of size ``start``."""
    u, s, vt = np.linalg.svd(task.correlation, full_matrices=False)
    depth, found = len(stairs.flow.history.layer), stairs.found[1 : modes + 1]
    table = rank_table(stairs)
    seen = ", ".join("/".join(map(str, np.unique(row))) for row in table)
    wanted = np.arange(1, len(table) + 1)
    in_order = len(table) >= modes and bool((table == wanted[:, None]).all())
    nets = [stairs.network(p) for p in found]
    maps = [np.zeros_like(task.correlation), *(end_to_end(net) for net in nets)]
    overlaps, shared, losses = [], [], []
    for k, (net, p) in enumerate(zip(nets, found, strict=True)):
        left, _, right = np.linalg.svd(maps[k + 1] - maps[k])
        overlaps.append(float(min(abs(left[:, 0] @ u[:, k]), abs(right[0] @ vt[k]))))
        values = np.array([np.linalg.svd(array_of(w), compute_uv=False)[: k + 1] for w in net.weights])
        shared.append(float(np.abs(values / values.mean(0) - 1).max()))
        losses.append(float(abs(p.loss / best_losses(task)[k + 1] - 1)))
    drift, least = _drift(stairs.flow)
    late = np.array([_late(stairs, k, s[k], depth) for k in range(modes)])
    times = np.array([time_of_mode(start**depth, HALF * s[k], s[k], depth) for k in range(modes)])
    off = float(np.abs(exact.escapes[:modes] / times - 1).max())
    return (
        Claim("rank of all layers at the plateaus after the first", in_order, seen, "1, 2, 3, ... in every layer"),
        Claim(
            "k-th new mode against the k-th singular vectors of Y^T X, least overlap",
            len(overlaps) == modes and min(overlaps) > 0.99,
            min(overlaps, default=0.0),
            "> 0.99",
        ),
        Claim(
            "loss at plateau k against the best map of rank k, largest relative difference",
            len(losses) == modes and max(losses) < 0.01,
            max(losses, default=math.inf),
            "< 0.01",
        ),
        Claim(
            "drift of W_{l+1}^T W_{l+1} - W_l W_l^T, relative to the largest ||W_l||_F^2",
            drift < 1e-4,
            drift,
            f"< 1e-4 (it is {least:.2g} all the time)",
        ),
        Claim(
            "singular values that all layers share, largest relative difference from their mean",
            len(shared) == modes and max(shared) < 0.05,
            max(shared, default=math.inf),
            "< 0.05",
        ),
        Claim(
            "aligned weights: escape times of all modes against the closed law, largest relative difference",
            off < 0.01,
            off,
            "< 0.01",
        ),
        Claim(
            "Gaussian weights: time from s_k / 20 to s_k / 2 against the closed law, largest relative difference",
            bool(np.nanmax(late) < 0.05 and not np.isnan(late).any()),
            float(np.nanmax(late)) if not np.isnan(late).all() else math.inf,
            "< 0.05",
        ),
    )


def make(
    folder: Path,
    progress: bool,
    *,
    images: int | None,
    depth: int,
    width: int,
    init: float,
    start: float,
    modes: int,
    seed: int,
    others: Sequence[tuple[int, int]],
) -> Outcome:
    """Follow the flow from Gaussian and from aligned weights, and from Gaussian weights of other widths and seeds.

    Gaussian weights of other widths n are N(0, init^2 width / n), so that ||W_l||_op stays about the same.
    """
    task, name = drawing(images)
    ends = (task.x.shape[1], task.y.shape[1])
    runs = {
        (n, draw): staircase(_gaussian(ends, depth, n, init * math.sqrt(width / n), draw), task, modes, skip=True)
        for n, draw in ((width, seed), *others)
    }
    stairs = runs[width, seed]
    exact = staircase(aligned_network(task.correlation, depth, width, start), task, modes, skip=False)
    rows = [_row(n, draw, run, modes) for (n, draw), run in runs.items()]
    text = (
        f"{name}, drawn from their labels: {ends[0]} whitened inputs, {ends[1]} targets, depth {depth}. "
        f"{task.constant:.4g} of the loss is out of reach of any map of labels, and left out of the pictures. Gaussian "
        f"weights start at {init:g}, width {width}; the plateau at the origin is skipped. Aligned weights have the "
        f"singular values {start:g} in every layer, and their flow is followed from the start.\n\n"
        "The width enters through the random weights alone. From depth 3 on every pair of singular vectors of Y^T X is "
        "a local optimum of the escape speed: which of near singular values comes first depends on the draw too."
    )
    sections = (
        Section("Runs", text=text, rows=rows, history=stairs.flow.spectra),
        Section("Effective rank of every layer at every plateau", rows=_rank_rows(stairs)),
    )
    pictures = {"linear-staircase": picture(stairs, exact, task, modes, start)}
    captions = {"linear-staircase": "Loss, singular values and modes, from Gaussian and from aligned weights"}
    made = claims(stairs, exact, task, modes, start)
    return Outcome("F9L", made, sections, pictures, {"data": name}, captions=captions)


def picture(stairs: Staircase, exact: Staircase, task: Reduced, modes: int, start: float) -> Picture:
    """Draw the loss with its plateaus, layers' singular values, and modes with the law dashed."""
    drawn = Picture(figsize=(14.5, 7.6), layout="constrained")
    drawn.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr,call-arg]
    axes = drawn.subplots(2, 3)
    depth = len(stairs.flow.history.layer)
    s = np.linalg.svd(task.correlation, compute_uv=False)
    for ax, run, title in ((axes[0, 0], stairs, "Gaussian weights"), (axes[1, 0], exact, "Aligned weights")):
        _draw_loss(ax, run, best_losses(task), modes, title)
    for ax, run, title in ((axes[0, 2], stairs, "law from $s_k/20$"), (axes[1, 2], exact, "law from the start")):
        for k in range(modes):
            color = OKABE_ITO[k % len(OKABE_ITO)]
            ax.plot(run.times, run.modes[:, k], color=color, linewidth=1.8, label=f"k = {k + 1}")
            begin = run.times[0] if run is exact else _small(run, k, s[k])
            if math.isfinite(begin) and begin < run.times[-1]:
                times = np.linspace(begin, run.times[-1], 600)
                value = start**depth if run is exact else ALIGNED * s[k]
                ax.plot(times, law(value, s[k], depth, times - begin), color="black", linestyle="--", linewidth=1.0)
        dress(ax, _clock(run), "$u_k^T A v_k$", f"Modes of the map; dashed: {title}")
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    spectra = stairs.flow.spectra
    when = spectra["time_since_handover"].values[0]
    for ax, layer in ((axes[0, 1], 1), (axes[1, 1], depth)):
        values = spectra["weight_singular_values"].sel(layer=layer).values[0]
        for k in range(values.shape[1]):
            color = OKABE_ITO[k % len(OKABE_ITO)] if k < modes else "0.75"
            ax.plot(when, values[:, k], color=color, linewidth=1.4, zorder=3 if k < modes else 2)
        for k in range(modes):
            ax.axhline(s[k] ** (1 / depth), color="0.4", linestyle=":", linewidth=0.9, zorder=1)
        dress(ax, _clock(stairs), "singular value of W", f"Gaussian weights, layer {layer}; dotted: $s_k^{{1/L}}$")
        ax.set_ylim(bottom=0)
    for ax in axes[0]:
        ax.set_xlim(0, stairs.times[-1])
    axes[1, 1].set_xlim(0, stairs.times[-1])
    return drawn


def _draw_loss(ax: Axes, run: Staircase, levels: np.ndarray, modes: int, title: str) -> None:
    for level in levels[: modes + 1]:
        ax.axhline(level, color="0.45", linestyle="--", linewidth=0.9)
    for p in run.found:
        last = min(p.end, float(run.times[-1]))
        ax.axvspan(max(p.start, 0.0), last, color="0.93", zorder=0)
        ax.annotate(f"{p.number - 1}", ((max(p.start, 0.0) + last) / 2, p.loss), (0, 3), textcoords="offset points")
    ax.plot(run.flow.times_since_handover, run.flow.loss, color=OKABE_ITO[0], linewidth=1.8)
    dress(ax, _clock(run), "C, less its constant", f"{title}; dashed: best of rank 0, 1, 2, …")
    ax.margins(y=0.12)


def _clock(run: Staircase) -> str:
    return "t" if run.flow.handover is None else "t since the hand-over"


def _rank_rows(stairs: Staircase) -> list[dict[str, object]]:
    """Return one table row per plateau after the first."""
    rows = []
    for p in stairs.found[1:]:
        row: dict[str, object] = {"plateau": p.number, "time": p.time, "loss": p.loss, "gradient norm": p.gradient_norm}
        rows.append(row | {f"layer {layer}": rank for layer, rank in enumerate(p.ranks, 1)})
    return rows


def _row(width: int, seed: int, run: Staircase, modes: int) -> dict[str, object]:
    """Return the table row of a run."""
    skipped = run.flow.handover.time if run.flow.handover is not None else 0.0
    order = np.argsort(run.escapes[:modes]) + 1
    return {
        "width": width,
        "seed": seed,
        "time skipped": skipped,
        "escape times after it": ", ".join(f"{t:.4g}" for t in run.escapes[:modes]),
        "order of the modes": ", ".join(map(str, order)),
        "plateaus": len(run.found),
        "evaluations": run.flow.evaluations,
        "seconds": run.flow.seconds,
    }


def _gaussian(ends: tuple[int, int], depth: int, width: int, init: float, seed: int) -> LinearNetwork:
    widths = [ends[0], *[width] * (depth - 1), ends[1]]
    return LinearNetwork(widths, init=init, seed=seed, dtype=torch.float64)


def _late(stairs: Staircase, k: int, s: float, depth: int) -> float:
    """Return the relative difference between the time from s / 20 to s / 2 and the law's."""
    took = stairs.escapes[k] - _small(stairs, k, s)
    return abs(took / time_of_mode(ALIGNED * s, HALF * s, s, depth) - 1) if math.isfinite(took) else math.nan


def _small(stairs: Staircase, k: int, s: float) -> float:
    """Return when mode k is last at s / 20 before it escapes, inf if it does not escape."""
    if not math.isfinite(stairs.escapes[k]):
        return math.inf
    before = stairs.times < stairs.escapes[k]
    times, values = stairs.times[before], stairs.modes[before, k]
    below = np.flatnonzero(values < ALIGNED * s)
    first = int(below[-1]) if len(below) else 0
    return crossing(times[first:], values[first:], ALIGNED * s, len(stairs.flow.history.layer))


def _drift(path: Flow) -> tuple[float, float]:
    """Return the largest change of W_{l+1}^T W_{l+1} - W_l W_l^T, and its largest size, both relative."""
    weights = [[array_of(w) for w in net.weights] for net in path.networks]  # type: ignore[union-attr]
    apart = [[b.T @ b - a @ a.T for a, b in itertools.pairwise(own)] for own in weights]
    scale = max(float((w**2).sum()) for w in weights[-1])
    norm = np.linalg.norm
    drift = max(norm(now - then) for own in apart for now, then in zip(own, apart[0], strict=True))
    return float(drift) / scale, float(max(norm(d) for d in apart[0])) / scale


FIGURE = Figure(
    "F9L",
    "first-escape-linear",
    "The control: a deep linear network learns one singular vector at a time",
    "T37 and T41 with no activation; Bantzis2025, Figure 1, for ReLU",
    "ranks 1, 2, 3, ... of all layers at the plateaus, singular vectors in order, layers balanced, times as computed",
    {
        "quick": {
            "images": None,
            "depth": 6,
            "width": 100,
            "init": 0.018,
            "start": 0.25,
            "modes": 3,
            "seed": 0,
            "others": [(50, 0), (50, 1)],
        },
        "paper": {
            "images": None,
            "depth": 6,
            "width": 100,
            "init": 0.012,
            "start": 0.2,
            "modes": 4,
            "seed": 0,
            "others": [(n, draw) for n in (25, 50, 200) for draw in range(4)],
        },
    },
    make,
    gigabytes={"quick": 1.5, "paper": 1.6},
    data={"paper": ("mnist",)},
    printed=False,
)
