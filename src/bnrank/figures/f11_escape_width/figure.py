"""F11 (Bantzis2025, Figures 2 and 6): how often projected descent finds the fast escape direction, against width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from matplotlib.figure import Figure as Canvas
from scipy.stats import binomtest

from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import circle
from bnrank.theory.escape.descent import Batch

__all__ = ["FIGURE", "claims", "draw", "make", "rows", "shares", "trials"]

DEPTH = 3
RANK_ONE = math.sqrt(2) - 1  # T40: the best speed of rank one
LOCAL = math.sqrt(2) / 3  # a frequent local optimum
OPTIMAL = 0.5
TOLERANCE = 1e-3  # above RANK_ONE, before a run counts as faster


def make(
    folder: Path, progress: bool, *, widths: Sequence[int], runs: int, steps: int, step: float, decaying: int, seed: int
) -> Outcome:
    """Descend from ``runs`` Gaussian starts per width, with the source's steps and then with decaying ones."""
    data = trials(widths, runs, steps, step, decaying, seed)
    sections = (Section("Runs by width", rows=rows(data)),)
    captions = {"width": "How often descent finds a direction faster than all of rank one, and the speed of every run"}
    return Outcome("F11", claims(data), sections, {"width": draw(data)}, captions=captions)


def trials(widths: Sequence[int], runs: int, steps: int, step: float, decaying: int, seed: int = 0) -> xr.Dataset:
    """Return the speeds of all runs, (width, run): ``speed`` after constant steps, ``settled`` after decaying ones.

    Projected gradient descent on L0 of T40's data from standard normal weights: ``steps`` steps of length ``step``
    times the gradient, as in the source, every layer scaled back to norm 1 after each. Steps of one length hover
    around the kinks that the optima lie on; ``decaying`` more, down to 1e-10 of the length, settle.
    """
    task = circle(dtype=torch.float64)
    x, g = task.x.numpy(), -task.y.numpy()
    speed, settled = np.empty((2, len(widths), runs))
    for row, width in enumerate(widths):
        rng = np.random.default_rng([seed, width])
        shapes = [(width, 2), *[(width, width)] * (DEPTH - 2), (1, width)]
        batch = Batch(x, g, [rng.normal(size=(runs, *shape)) for shape in shapes], 0.0)
        for _ in range(steps):
            batch.step_unscaled(step)
        speed[row] = batch.speeds()
        for k in range(decaying):
            batch.step_unscaled(step * 1e-10 ** ((k + 1) / decaying))
        settled[row] = batch.speeds()
    return xr.Dataset(
        {"speed": (("width", "run"), speed), "settled": (("width", "run"), settled)},
        coords={"width": list(widths), "run": np.arange(runs)},
    )


def shares(speeds: xr.DataArray) -> list[tuple[int, float, float, float]]:
    """Return, per width, how many runs are faster than rank one, the share and its 95 percent interval (Wilson)."""
    result = []
    for width in speeds.width.values:
        faster = speeds.sel(width=width).values > RANK_ONE + TOLERANCE
        interval = binomtest(int(faster.sum()), faster.size).proportion_ci(0.95, method="wilson")
        result.append((int(faster.sum()), float(faster.mean()), float(interval.low), float(interval.high)))
    return result


def rows(data: xr.Dataset) -> list[dict[str, object]]:
    """Return one table row per width."""
    return [
        {
            "width": int(width),
            "runs": data.sizes["run"],
            "faster than rank one": count,
            "share": share,
            "95 percent, from": low,
            "to": high,
            "share after decaying steps": after[1],
            "optimal after them": float((data.settled.sel(width=width) > OPTIMAL - TOLERANCE).mean()),
            "best speed": float(data.settled.sel(width=width).max()),
        }
        for width, (count, share, low, high), after in zip(
            data.width.values, shares(data.speed), shares(data.settled), strict=True
        )
    ]


def claims(data: xr.Dataset) -> tuple[Claim, ...]:
    """Measure what Figure 2 shows on speeds over (width, run)."""
    found = shares(data.speed)
    order = np.argsort(data.width.values)
    share = np.array([s for _, s, _, _ in found])[order]
    low, high = (np.array([f[i] for f in found])[order] for i in (2, 3))
    text = ", ".join(f"{s:.2f}" for s in share)
    at = ", ".join(str(w) for w in data.width.values[order])
    fastest = float(max(data.speed.max(), data.settled.max()))
    rises = bool((high[1:] >= low[:-1]).all() and low[-1] > high[0])
    return (
        Claim(
            "the share of runs faster than rank one rises with width",
            rises,
            f"{text} at widths {at}",
            "no fall beyond the 95 percent intervals, and those of the ends apart",
        ),
        Claim("nearly all runs are faster at the largest width", bool(share[-1] >= 0.9), float(share[-1]), "0.9 to 1"),
        Claim("narrow networks rarely find it", bool(share[0] <= 0.2), float(share[0]), "0 to 0.2 at the least width"),
        Claim(
            "no run is faster than the optimum of T40, and the best run attains it",
            abs(fastest - OPTIMAL) <= 1e-3,
            fastest,
            "1/2 within 1e-3",
        ),
    )


def draw(data: xr.Dataset) -> Any:
    """Draw the shares with intervals, and the speed of every run before and after decaying steps."""
    canvas = Canvas(figsize=(11, 4.2), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=[1, 1.5])
    widths = data.width.values
    found = shares(data.speed)
    share = np.array([s for _, s, _, _ in found])
    bars = np.array([(s - low, high - s) for _, s, low, high in found]).T
    left.errorbar(widths, share, yerr=np.maximum(bars, 0), fmt="o-", color="#1f5fa8", capsize=4, lw=1.5)
    left.set_xscale("log", base=2)
    left.set_xticks(widths, [str(w) for w in widths])
    left.minorticks_off()
    left.set(xlabel="width", ylabel=r"share of runs faster than $\sqrt{2}-1$", ylim=(-0.04, 1.04))
    left.set_title(f"{data.sizes['run']} runs per width, 95 percent intervals", fontsize=10)
    rng = np.random.default_rng(0)
    for position, width in enumerate(widths):
        for name, shift, color in (("speed", -0.19, "#d07a2d"), ("settled", 0.19, "#1f5fa8")):
            values = data[name].sel(width=width).values
            spread = position + shift + rng.uniform(-0.13, 0.13, values.size)
            label = {"speed": "constant steps", "settled": "then decaying steps"}[name] if not position else None
            right.plot(spread, values, ".", ms=4, alpha=0.6, color=color, label=label, mew=0)
    for value, text in ((OPTIMAL, "1/2"), (LOCAL, r"$\sqrt{2}/3$"), (RANK_ONE, r"$\sqrt{2}-1$")):
        right.axhline(value, color="0.55", lw=0.8, ls="--", zorder=0)
        right.annotate(text, (1.01, value), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    right.set_xticks(range(len(widths)), [str(w) for w in widths])
    lowest = float(min(data.speed.min(), data.settled.min()))
    right.set(xlabel="width", ylabel="escape speed", ylim=(min(lowest, RANK_ONE) - 0.02, 0.52))
    right.set_title("every run", fontsize=10)
    right.legend(loc="lower right", fontsize=9, markerscale=2.5)
    return canvas


FIGURE = Figure(
    "F11",
    "escape-width",
    "Wider networks find the faster escape direction, which is of rank two",
    "Bantzis2025, Figures 2 and 6",
    "the share of runs faster than the best direction of rank one rises with the width to 1",
    {
        "quick": {
            "widths": [4, 8, 16, 32, 64],
            "runs": 50,
            "steps": 4000,
            "step": 0.05,
            "decaying": 2000,
            "seed": 0,
        },
        "paper": {
            "widths": [4, 6, 8, 12, 16, 24, 32, 48, 64, 96],
            "runs": 200,
            "steps": 4000,
            "step": 0.05,
            "decaying": 2000,
            "seed": 0,
        },
    },
    make,
    gigabytes={"quick": 0.6, "paper": 0.6},
)
