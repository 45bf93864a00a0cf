"""The pictures of F5: trajectories, rings of equal distance, collapse of orbits, coordinates, costs."""

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import MaxNLocator

from bnrank.figures.f05_symmetry_learning.computation import BEFORE, FULL, PLANE, RADIUS, SMALL, TRUE, Learned
from bnrank.figures.f05_symmetry_learning.trajectories import ATOLS, FINE, HIDDEN, VISIBLE, Crossed
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, reference

SHOWN = 40  # trajectories
CURVES = 7
ALONG, ACROSS = r"$u_0=(w^Tv)^2$", r"$u_1=\|(I-ww^T)v\|^2$"


def draw_trajectories(learned: Learned) -> Picture:
    """Draw the same trajectories in u, in hidden coordinates after and before training, and in two of the input."""
    first, second = _coordinates(learned)
    shown = (
        (TRUE, ALONG, ACROSS, "Summary statistics"),
        (FULL, first, second, f"Layer {learned.settings.hidden} of the network"),
        (BEFORE, first, second, f"Layer {learned.settings.hidden} before training"),
        (PLANE, "first random direction of v", "second random direction of v", "Two directions of the input"),
    )
    picture, axes = panels(2, 2, (11.0, 8.4))
    lines: Any = None
    for ax, (name, x, y, title) in zip(axes.ravel(), shown, strict=True):
        paths = learned.trajectories[name][:SHOWN]
        pieces = np.stack([paths[:, :-1], paths[:, 1:]], axis=2)
        times = np.tile(np.arange(pieces.shape[1]), len(paths))
        lines = LineCollection(list(pieces.reshape(-1, 2, 2)), cmap="viridis", linewidths=1.2)
        lines.set_array(times)
        ax.add_collection(lines)
        ax.plot(*paths[:, 0].T, "o", color=color(1), markersize=3.5, linestyle="none", label="start v(0)")
        label(ax, x, y, title)
        ax.autoscale()
    axes[0, 0].legend(frameon=False, fontsize=9, loc="upper right")
    picture.colorbar(lines, ax=axes, label="step t of gradient descent", pad=0.02, ticks=MaxNLocator(integer=True))
    return picture


def draw_crossings(crossed: tuple[Crossed, ...], hidden: int) -> Picture:
    """Draw the share of the pairs of trajectories that cross, against the distance that undoes crossings."""
    names = {
        BEFORE: f"layer {hidden} before training",
        PLANE: "two random directions of the input",
        HIDDEN: f"layer {hidden} after training",
        TRUE: "u itself",
    }
    picture, ((ax,),) = panels(1, 1, (7.6, 4.8))
    at = 100 * np.array(ATOLS)
    for i, (state, name) in enumerate(names.items()):
        shares = 100 * np.array([one.shares[state] for one in crossed])
        ax.fill_between(at, shares.min(0), shares.max(0), color=color(i), alpha=0.2, linewidth=0)
        ax.plot(at, np.median(shares, axis=0), color=color(i), marker="o", markersize=5, label=name)
    for i in (FINE, VISIBLE):
        ax.axvline(at[i], color=GRAY, linestyle="--", linewidth=1.2)
    ax.set_yscale("symlog", linthresh=0.1)
    shown = (0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
    ax.set_yticks(shown, [f"{value:g}" for value in shown])
    x, y = "distance that undoes crossings, percent of the picture", "pairs that cross, percent"
    label(ax, x, y, "Pairs of trajectories that cross by more than a distance", ylim=(0, 12))
    legend_below(picture, ax, 2)
    return picture


def draw_maps(learned: Learned) -> Picture:
    """Draw distances to a fixed point in planes of inputs."""
    picture, axes = panels(2, 2, (9.6, 8.6))
    for ax, shown in zip(axes.ravel(), learned.maps, strict=True):
        side = np.linspace(-RADIUS, RADIUS, len(shown.distances))
        image = ax.pcolormesh(side, side, shown.distances, cmap="viridis", shading="nearest", rasterized=True)
        ax.contour(side, side, shown.distances, levels=9, colors="white", linewidths=0.6, alpha=0.7)
        ax.plot(*shown.origin, marker="X", color="white", markeredgecolor="black", markersize=10, linestyle="none")
        label(ax, "first direction orthogonal to w", shown.up, shown.title.capitalize(), aspect="equal")
        ax.grid(visible=False)
        picture.colorbar(image, ax=ax, label="distance to the cross", shrink=0.9)
    return picture


def draw_collapse(learned: Learned) -> Picture:
    """Draw the variance within orbits over the total variance, and over that in planes, layer by layer."""
    picture, ((ax,),) = panels(1, 1, (7.6, 4.2))
    layers = np.arange(len(learned.collapse))
    planes = "over the variance in planes orthogonal to w"
    ax.plot(layers, learned.collapse, color=color(0), marker="o", markersize=5, label="over the total variance")
    ax.plot(layers, learned.in_planes, color=color(1), marker="s", markersize=5, label=planes)
    reference(ax, SMALL, "5 percent")
    label(ax, "layer (0: inputs)", "share", "Variance within rotation orbits", log="y", legend="best", ylim=(None, 1.5))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture


def draw_coordinates(learned: Learned) -> Picture:
    """Draw test starts in the hidden coordinates, colored by the two summary statistics."""
    picture, (axes,) = panels(1, 2, (11.0, 4.4), sharey=True)
    for i, (ax, name) in enumerate(zip(axes, (ALONG, ACROSS), strict=True)):
        dots = ax.scatter(*learned.coordinates.T, c=learned.statistics[:, i], cmap="cividis", s=14, linewidths=0)
        title = f"From these two, {name.split('=')[0]}$ with R² = {learned.from_hidden[i]:.3f}"
        label(ax, *_coordinates(learned), title)
        picture.colorbar(dots, ax=ax, label=name)
        if i:
            ax.set_ylabel("")
    return picture


def draw_costs(learned: Learned) -> Picture:
    """Draw costs over the steps, true and predicted, and all of them against each other."""
    picture, ((left, right),) = panels(1, 2, (11.0, 4.2))
    times = np.arange(1, learned.costs.shape[1] + 1)
    order = np.argsort(learned.costs.sum(1))
    chosen = order[np.linspace(0, len(order) - 1, CURVES).round().astype(int)]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": "none"}
    for i, sample in enumerate(chosen):
        left.plot(times, learned.costs[sample], color=color(i), linewidth=1.6)
        left.plot(times, learned.predicted[sample], color=color(i), **dots)
    left.plot([], [], color=GRAY, linewidth=1.6, label="gradient descent")
    left.plot([], [], color=GRAY, label="network, from v(0)", **dots)
    label(left, "step t of gradient descent", "cost C(v(t))", "Seven test starts", legend="upper right")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = [float(learned.costs.min()), float(learned.costs.max())]
    right.plot(ends, ends, color=GRAY, linewidth=1.0)
    flat = learned.costs.ravel(), learned.predicted.ravel()
    right.scatter(*flat, s=4, color=color(0), alpha=0.25, linewidths=0, rasterized=True)
    title = f"All test starts and steps; error / variance = {learned.test_error:.2g}"
    label(right, "cost C(v(t))", "predicted cost", title)
    return picture


def _coordinates(learned: Learned) -> tuple[str, str]:
    what = f"principal direction of layer {learned.settings.hidden}"
    return f"first {what}", f"second {what}"
