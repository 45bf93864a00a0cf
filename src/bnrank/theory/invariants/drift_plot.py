"""Drifts of conserved quantities over time, what explains them, and the linear tail."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from bnrank._core.axes import OKABE_ITO, axes_for, dress
from bnrank.theory.invariants.squares import Array

MOST = 7  # quantities with a color and a label; the others are gray
PARTS = {  # name -> label, color, line
    "drift": ("drift", "#000000", "-"),
    "by_step": ("by step size", OKABE_ITO[0], "--"),
    "by_decay": ("by weight decay", OKABE_ITO[1], "-."),
    "rest": ("rest", OKABE_ITO[2], ":"),
}
SPANS = 30.0  # largest over smallest value from which an axis is logarithmic
DEEP = 1e-6  # of the largest value: what is below is not shown


def plot(history: xr.Dataset, axes: Any = None) -> Any:
    """Draw one member of a monitor's history, (row, quantity); return the axes, two or with a linear tail three."""
    has_tail = history.sizes["layer"] > 1 and bool(np.isfinite(history["ratio"]).any())
    panels = 3 if has_tail else 2
    axes = axes_for(axes, (1, panels), (5.2 * panels, 4.0))
    x, label = _clock(history)
    _drifts(axes[0], history, x)
    _parts(axes[1], history, x)
    if has_tail:
        _tail(axes[2], history, x)
    titles = ("Drift of conserved quantities", "What explains it, all together", "Linear tail")
    for ax, y, title in zip(axes, ("drift / (in + out)", "drift / (in + out)", ""), titles, strict=False):
        dress(ax, label, y, title)
        _scale(ax, x)
    return axes


def _clock(history: xr.Dataset) -> tuple[Array, str]:
    time = history["time"].values
    steps = history["step"].values
    if np.isfinite(time[steps >= 0]).all():
        return np.where(steps >= 0, time, np.nan), str(history.attrs["clock"])
    return np.where(steps >= 0, steps, np.nan).astype(float), "step"


def _drifts(ax: Axes, history: xr.Dataset, x: Array) -> None:
    """Draw one line per quantity, the largest drifts in color."""
    relative = history["relative"].values
    largest = np.nanmax(np.where(np.isnan(relative), 0.0, relative), axis=0, initial=0.0)
    order = np.argsort(-largest, kind="stable")
    few = len(order) <= MOST + 1  # a single gray line would not be worth it
    shown = order if few else order[:MOST]
    for i in order[len(shown) :][::-1]:
        _line(ax, x, relative[:, i], color="0.75", linewidth=0.9, zorder=1.5)
    for place, i in enumerate(shown):
        color = OKABE_ITO[place % len(OKABE_ITO)]
        name = str(history["quantity"].values[i])
        _line(ax, x, relative[:, i], color=color, linewidth=1.6, label=name, linestyle="-" if place < 7 else "--")
    if not few:
        ax.plot([], [], color="0.75", linewidth=0.9, label=f"{len(order) - MOST} others")
    _log(ax, relative[:, shown])
    ax.legend(fontsize=8, frameon=False, ncols=1)


def _parts(ax: Axes, history: xr.Dataset, x: Array) -> None:
    """Draw the norms of the drift and of its parts over all quantities but the whole matrices and the layers."""
    own = history["kind"].values == "vertex"
    chosen = history.isel(quantity=np.flatnonzero(own if own.any() else np.ones_like(own)))
    drift, relative = chosen["drift"].values, chosen["relative"].values
    with np.errstate(all="ignore"):  # of a training that diverged
        each = np.divide(drift, relative, out=np.zeros_like(drift), where=relative > 0)
        scale = np.sqrt(np.nansum(each**2, axis=1))
    drawn: list[Array] = []
    for name, (text, color, line) in PARTS.items():
        if name == "rest" and len(drawn) < 2:  # nothing is split: the rest is the drift
            break
        values = chosen["drift" if name == "drift" else f"norm_{name}"].values
        with np.errstate(all="ignore"):
            total = np.sqrt(np.sum(values**2, axis=1))
            part = np.divide(total, scale, out=np.full_like(total, np.nan), where=scale > 0)
        if np.nanmax(np.where(np.isnan(part), 0, part), initial=0.0) > 0:
            _line(ax, x, part, color=color, linestyle=line, linewidth=2.2 if name == "drift" else 1.6, label=text)
            drawn.append(part)
    if drawn:
        _log(ax, np.stack(drawn, axis=1))
        ax.legend(fontsize=8, frameon=False)


def _tail(ax: Axes, history: xr.Dataset, x: Array) -> None:
    names = [str(name) for name in history["layer"].values]
    for i, name in enumerate(names):
        color = OKABE_ITO[i % len(OKABE_ITO)]
        _line(ax, x, history["ratio"].values[:, i], color=color, label=f"ratio, {name}")
        if i < len(names) - 1:
            text = f"alignment, {name} to {names[i + 1]}"
            _line(ax, x, history["alignment"].values[:, i], color=color, linestyle="--", label=text)
    ax.set_ylim(0, 1.03)
    ax.legend(fontsize=8, frameon=False)


def _line(ax: Axes, x: Array, y: Array, **style: Any) -> None:
    known = np.isfinite(x) & np.isfinite(y)
    ax.plot(x[known], y[known], **style)


def _log(ax: Axes, values: Array) -> None:
    """Make y logarithmic where the positive values span more than a factor."""
    positive = values[np.isfinite(values) & (values > 0)]
    if positive.size and positive.max() > SPANS * positive.min():
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(0.5 * float(positive.min()), DEEP * float(positive.max())))


def _scale(ax: Axes, x: Array) -> None:
    """Make x logarithmic where most rows would be crowded at its beginning."""
    positive = x[np.isfinite(x) & (x > 0)]
    if positive.size > 4 and positive.max() > SPANS * np.median(positive):
        ax.set_xscale("log")
