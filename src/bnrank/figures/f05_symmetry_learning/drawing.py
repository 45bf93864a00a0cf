"""The pictures of F5: trajectories, rings of equal distance, collapse of orbits, coordinates, costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import MaxNLocator

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f05_symmetry_learning.computation import FULL, PLANE, SMALL, TRUE, Learned

__all__ = ["draw_collapse", "draw_coordinates", "draw_costs", "draw_maps", "draw_trajectories"]

SHOWN = 40  # trajectories
CURVES = 7
ALONG, ACROSS = r"$u_0=(w^Tv)^2$", r"$u_1=\|(I-ww^T)v\|^2$"


def draw_trajectories(learned: Learned) -> Picture:
    """Draw the same trajectories in u, in the hidden coordinates and in two directions of the input."""
    first, second = _coordinates(learned)
    panels = (
        (TRUE, ALONG, ACROSS, "Summary statistics"),
        (FULL, first, second, f"Layer {learned.hidden} of the network"),
        (PLANE, "first random direction of v", "second random direction of v", "Two directions of the input"),
    )
    picture = Picture(figsize=(12.5, 4.3), layout="constrained")
    axes = picture.subplots(1, 3)
    lines: Any = None
    for ax, (name, x, y, title) in zip(axes, panels, strict=True):
        paths = learned.trajectories[name][:SHOWN]
        pieces = np.stack([paths[:, :-1], paths[:, 1:]], axis=2)
        times = np.tile(np.arange(pieces.shape[1]), len(paths))
        lines = LineCollection(list(pieces.reshape(-1, 2, 2)), cmap="viridis", linewidths=1.2)
        lines.set_array(times)
        ax.add_collection(lines)
        ax.plot(*paths[:, 0].T, "o", color=OKABE_ITO[1], markersize=3.5, linestyle="none", label="start v(0)")
        dress(ax, x, y, title)
        ax.autoscale()
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    picture.colorbar(lines, ax=axes, label="step t of gradient descent", pad=0.02, ticks=MaxNLocator(integer=True))
    return picture


def draw_maps(learned: Learned) -> Picture:
    """Draw distances to a fixed point in planes of inputs."""
    picture = Picture(figsize=(9.6, 8.6), layout="constrained")
    for ax, shown in zip(picture.subplots(2, 2).ravel(), learned.maps, strict=True):
        side = np.linspace(-shown.extent, shown.extent, len(shown.distances))
        image = ax.pcolormesh(side, side, shown.distances, cmap="viridis", shading="nearest", rasterized=True)
        ax.contour(side, side, shown.distances, levels=9, colors="white", linewidths=0.6, alpha=0.7)
        ax.plot(*shown.origin, marker="X", color="white", markeredgecolor="black", markersize=10, linestyle="none")
        dress(ax, shown.across, shown.up, shown.title.capitalize())
        ax.grid(visible=False)
        ax.set_aspect("equal")
        picture.colorbar(image, ax=ax, label="distance to the cross", shrink=0.9)
    return picture


def draw_collapse(learned: Learned) -> Picture:
    """Draw the variance within orbits over the total variance, and over that in planes, layer by layer."""
    picture = Picture(figsize=(7.6, 4.2), layout="constrained")
    ax = picture.subplots()
    layers = np.arange(len(learned.collapse))
    total, planes = "total variance", "variance in planes orthogonal to w"
    ax.plot(layers, learned.collapse, color=OKABE_ITO[0], marker="o", markersize=5, label=f"over the {total}")
    ax.plot(layers, learned.in_planes, color=OKABE_ITO[1], marker="s", markersize=5, label=f"over the {planes}")
    ax.axhline(SMALL, color="0.35", linestyle="--", linewidth=1.2, label="5 percent")
    ax.legend(frameon=False, fontsize=9)
    ax.set_yscale("log")
    ax.set_ylim(top=1.5)
    dress(ax, "layer (0: inputs)", "share", "Variance within rotation orbits")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture


def draw_coordinates(learned: Learned) -> Picture:
    """Draw test starts in the hidden coordinates, colored by the two summary statistics."""
    picture = Picture(figsize=(11.0, 4.4), layout="constrained")
    for i, (ax, label) in enumerate(zip(picture.subplots(1, 2, sharey=True), (ALONG, ACROSS), strict=True)):
        color = learned.statistics[:, i]
        dots = ax.scatter(*learned.coordinates.T, c=color, cmap="cividis", s=14, linewidths=0)
        dress(
            ax, *_coordinates(learned), f"From these two, {label.split('=')[0]}$ with R² = {learned.from_hidden[i]:.3f}"
        )
        picture.colorbar(dots, ax=ax, label=label)
        if i:
            ax.set_ylabel("")
    return picture


def draw_costs(learned: Learned) -> Picture:
    """Draw costs over the steps, true and predicted, and all of them against each other."""
    picture = Picture(figsize=(11.0, 4.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    times = np.arange(1, learned.costs.shape[1] + 1)
    order = np.argsort(learned.costs.sum(1))
    chosen = _spread(order)
    for i, sample in enumerate(chosen):
        color = OKABE_ITO[i % len(OKABE_ITO)]
        left.plot(times, learned.costs[sample], color=color, linewidth=1.6)
        left.plot(times, learned.predicted[sample], color=color, marker="o", markersize=4, linestyle="none")
    left.plot([], [], color="0.35", linewidth=1.6, label="gradient descent")
    left.plot([], [], color="0.35", marker="o", markersize=4, linestyle="none", label="network, from v(0)")
    left.legend(frameon=False, fontsize=9, loc="upper right")
    dress(left, "step t of gradient descent", "cost C(v(t))", "Seven test starts")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    _against(right, learned)
    return picture


def _against(ax: Axes, learned: Learned) -> None:
    ends = [float(learned.costs.min()), float(learned.costs.max())]
    ax.plot(ends, ends, color="0.35", linewidth=1.0)
    flat = learned.costs.ravel(), learned.predicted.ravel()
    ax.scatter(*flat, s=4, color=OKABE_ITO[0], alpha=0.25, linewidths=0, rasterized=True)
    title = f"All test starts and steps; error / variance = {learned.test_error:.2g}"
    dress(ax, "cost C(v(t))", "predicted cost", title)


def _spread(order: np.ndarray) -> np.ndarray:
    """Return samples spread over an order, both ends included."""
    return np.asarray(order[np.linspace(0, len(order) - 1, CURVES).round().astype(int)])


def _coordinates(learned: Learned) -> tuple[str, str]:
    what = f"principal direction of layer {learned.hidden}"
    return f"first {what}", f"second {what}"
