"""F11 (Bantzis2025, Figures 2 and 6): how often projected descent finds the fast escape direction, against width."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr
from matplotlib.figure import Figure as Picture
from scipy.stats import binomtest

from bnrank.figures.harness.claims import Claim, at_least, at_most, is_true, near
from bnrank.figures.harness.drawing import color, label, panels, ticks
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import circle
from bnrank.theory.escape.search import Batch

DEPTH = 3
RANK_ONE = math.sqrt(2) - 1  # T40: the best speed of rank one
LOCAL = math.sqrt(2) / 3  # a frequent local optimum
OPTIMAL = 0.5
TOLERANCE = 1e-3  # above RANK_ONE, before a run counts as faster


@dataclass(frozen=True)
class Settings:
    """Settings of F11: widths, runs per width, steps of length ``step``, decaying steps after them, seed."""

    widths: tuple[int, ...] = (4, 8, 16, 32, 64)
    runs: int = 50
    steps: int = 4000
    step: float = 0.05
    decaying: int = 2000
    seed: int = 0


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Descend from Gaussian starts for every width, with the source's steps and then with decaying ones."""
    del folder, progress
    data = trials(settings)
    sections = (Section("Runs by width", rows=rows(data)),)
    captions = {"width": "How often descent finds a direction faster than all of rank one, and the speed of every run"}
    return Outcome(claims=claims(data), sections=sections, pictures={"width": draw(data)}, captions=captions)


def trials(settings: Settings) -> xr.Dataset:
    """Return the speeds of all runs, (width, run): ``speed`` after constant steps, ``settled`` after decaying ones.

    Projected gradient descent on L0 of T40's data from standard normal weights: steps of constant length times the
    gradient, as in the source, every layer rescaled to norm 1 after each. Steps of constant length oscillate around the
    kinks where the optima lie; the decaying ones, down to 1e-10 of the length, converge.
    """
    s, task = settings, circle(dtype=torch.float64)
    x, g = task.x.numpy(), -task.y.numpy()
    speed, settled = np.empty((2, len(s.widths), s.runs))
    for row, width in enumerate(s.widths):
        rng = np.random.default_rng([s.seed, width])
        shapes = [(width, 2), *[(width, width)] * (DEPTH - 2), (1, width)]
        batch = Batch([rng.normal(size=(s.runs, *shape)) for shape in shapes], x, g, 0.0)
        for _ in range(s.steps):
            batch.step(s.step, scaled=False)
        speed[row] = batch.speeds()
        for k in range(s.decaying):
            batch.step(s.step * 1e-10 ** ((k + 1) / s.decaying), scaled=False)
        settled[row] = batch.speeds()
    return xr.Dataset(
        {"speed": (("width", "run"), speed), "settled": (("width", "run"), settled)},
        coords={"width": list(s.widths), "run": np.arange(s.runs)},
    )


def shares(speeds: xr.DataArray) -> pd.DataFrame:
    """Return the runs faster than rank one by width: count, share, and its 95 percent interval (Wilson)."""
    table = {}
    for width, values in zip(speeds.width.values, speeds.transpose("width", "run").values, strict=True):
        faster = int((values > RANK_ONE + TOLERANCE).sum())
        interval = binomtest(faster, values.size).proportion_ci(0.95, method="wilson")
        table[width] = {"count": faster, "share": faster / values.size, "low": interval.low, "high": interval.high}
    return pd.DataFrame.from_dict(table, orient="index")


def rows(data: xr.Dataset) -> list[dict[str, object]]:
    """Return one table row per width."""
    names = {"count": "faster than rank one", "low": "95 percent, from", "high": "to"}
    table = shares(data.speed).rename(columns=names).rename_axis("width").reset_index()
    table.insert(1, "runs", data.sizes["run"])
    table["share after decaying steps"] = shares(data.settled)["share"].values
    table["optimal after them"] = (data.settled > OPTIMAL - TOLERANCE).mean("run").values
    table["best speed"] = data.settled.max("run").values
    return list(table.to_dict("records"))


def claims(data: xr.Dataset) -> tuple[Claim, ...]:
    """Return the claims of Figure 2 on speeds over (width, run)."""
    found = shares(data.speed).sort_index()
    share, low, high = (found[name].to_numpy() for name in ("share", "low", "high"))
    text = f"{', '.join(f'{s:.2f}' for s in share)} at widths {', '.join(map(str, found.index))}"
    fastest = max(data.speed.max(), data.settled.max())
    rises = (high[1:] >= low[:-1]).all() and low[-1] > high[0]
    expected = "no fall beyond the 95 percent intervals, and those of the ends apart"
    return (
        is_true("the share of runs faster than rank one rises with width", rises, text, expected),
        at_least("nearly all runs are faster at the largest width", share[-1], 0.9),
        at_most("narrow networks rarely find it", share[0], 0.2, note=" at the smallest width"),
        near("no run is faster than the optimum of T40, and the best run attains it", fastest, OPTIMAL, TOLERANCE),
    )


def draw(data: xr.Dataset) -> Picture:
    """Draw the shares with intervals, and the speed of every run before and after decaying steps."""
    picture, ((left, right),) = panels(1, 2, (11, 4.2), width_ratios=[1, 1.5])
    widths, found = data.width.values, shares(data.speed)
    bars = np.array([found["share"] - found["low"], found["high"] - found["share"]])
    left.errorbar(widths, found["share"], yerr=np.maximum(bars, 0), fmt="o-", color=color(0), capsize=4, lw=1.5)
    title = "Share by width, with 95 percent intervals"
    label(left, "width", r"share of runs faster than $\sqrt{2}-1$", title, log="x", ylim=(-0.04, 1.04))
    ticks(left, widths)
    rng = np.random.default_rng(0)
    for position, width in enumerate(widths):
        for i, (name, what) in enumerate((("speed", "constant steps"), ("settled", "then decaying steps"))):
            values = data[name].sel(width=width).values
            spread = position - 0.19 + 0.38 * i + rng.uniform(-0.13, 0.13, values.size)
            style = {"ms": 4, "alpha": 0.6, "color": color(1 - i), "mew": 0, "label": None if position else what}
            right.plot(spread, values, ".", **style)
    for value, text in ((OPTIMAL, "1/2"), (LOCAL, r"$\sqrt{2}/3$"), (RANK_ONE, r"$\sqrt{2}-1$")):
        right.axhline(value, color="0.55", lw=0.8, ls="--", zorder=0)
        right.annotate(text, (1.01, value), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    right.set_xticks(range(len(widths)), [str(w) for w in widths])
    lowest = float(min(data.speed.min(), data.settled.min(), RANK_ONE))
    label(right, "width", "escape speed", "Every run", legend="lower right", ylim=(lowest - 0.02, 0.52))
    return picture


FIGURE = Figure(
    "F11",
    "escape-width",
    "Wider networks find the faster escape direction, which is of rank two",
    "Bantzis2025, Figures 2 and 6",
    "the share of runs faster than the best direction of rank one rises with the width to 1",
    {"quick": Settings(), "paper": Settings((4, 6, 8, 12, 16, 24, 32, 48, 64, 96), runs=200)},
    make,
    gigabytes={"quick": 0.6, "paper": 0.6},
)
