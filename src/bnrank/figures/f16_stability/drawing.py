"""The picture of F16."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f16_stability.computation import BUILT, PLANTED, SHORTENED
from bnrank.figures.harness.drawing import color, label, legend_below, panels, reference, ticks

STYLES = {BUILT: ("o-", 0), SHORTENED: ("^-", 2), PLANTED: ("s-", 1)}
TOP = 1e30  # larger rises, and infinite ones, are drawn here
LINES = ("-", "--", ":")  # of the depths, whose curves can coincide


def picture(data: pd.DataFrame, c: float, fitted: int, left: float) -> Picture:
    """Draw sharpness, traces and the rise of the loss at the smallest depth, and who leaves at all: a row per k."""
    dims, depth = sorted(data["k"].unique()), int(data["L"].min())
    image, axes = panels(len(dims), 4, (17, 3.9 * len(dims)))
    for row, k in zip(axes, dims, strict=True):
        here = data[data["k"] == k]
        first = here[here["L"] == depth]
        _curve(row[0], first, "sharpness")
        reference(row[0], 2 * depth / c)
        row[0].annotate(
            "2 L / c", (1, 2 * depth / c), xycoords=("axes fraction", "data"), fontsize=9, ha="right", va="bottom"
        )
        label(row[0], "N", r"$(2/N)\,\|J_\theta f\|^2_{op}$", f"k = {k}, L = {depth}: sharpness", log="xy")
        _curve(row[1], first, "largest trace")
        built = first[first["kind"] == BUILT].groupby("N")[["TSP", "largest trace"]].median()
        if fitted in built.index:
            power = built["TSP"] ** 4 * built["largest trace"][fitted] / built["TSP"][fitted] ** 4
            row[1].plot(power.index, power, ":", color="0.35", label=r"TSP$^4$, scaled")
        label(row[1], "N", r"max Tr $\Theta(x, x)$", f"Largest NTK trace; 4 - 4/k = {4 - 4 / k:.3g}", log="xy")
        _curve(row[2], first, "rise")
        reference(row[2], left)
        label(row[2], "N", "largest loss / first loss", "Gradient descent, step c / L (drawn up to 1e30)", log="xy")
        for i, (at, one) in enumerate(here[here["kind"] == BUILT].groupby("L")):
            share = one.assign(left=one["rise"] > left).groupby("N")["left"].mean()
            style = {"ls": LINES[i], "ms": 10 - 3 * i, "color": color(i + 3)}
            row[3].plot(share.index, share, marker="o", label=f"built, L = {at}", **style)
        label(row[3], "N", "share of seeds that leave", "Which N descent leaves", log="x", legend="lower right")
        row[3].set_ylim(-0.06, 1.06)
        for ax in row:
            ticks(ax, sorted(here["N"].unique()))
    legend_below(image, axes[0, 1])
    return image


def _curve(ax: Axes, data: pd.DataFrame, name: str) -> None:
    """Draw the median over seeds of each kind, and every seed."""
    for kind, (style, number) in STYLES.items():
        one = data[data["kind"] == kind]
        if one.empty:
            continue
        values = np.minimum(one[name], TOP)
        ax.plot(one["N"], values, ".", color=color(number), alpha=0.35, mew=0)
        middle = values.groupby(one["N"]).median()
        ax.plot(middle.index, middle, style, color=color(number), ms=4, lw=1.5, label=kind)
