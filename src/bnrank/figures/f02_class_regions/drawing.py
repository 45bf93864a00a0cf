"""The pictures of F2: class regions with their boundaries, data and tripoints."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from bnrank.figures.f02_class_regions.computation import Classifier, box
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, ticks
from bnrank.tasks import Task

CLASSES = tuple(color(i) for i in (0, 5, 2, 3, 4, 1))
KINDS = ((color(1), "--"), (color(1), "-"), (color(0), "--"), (color(0), "-"))
SHOWN = 1.5  # multiple of the data's bounding box in the pictures of regions
RING: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": "black", "ls": ""}


def draw_regions(found: Sequence[Classifier]) -> Picture:
    """Draw the class regions of one network of each kind, with the data and the data's bounding box."""
    rows = max(1, len(found) // 2)
    picture, axes = panels(rows, 2, (10.5, 4.1 * rows + 0.5), sharex=True, sharey=True)
    for letter, ax, c in zip("ABCDEFGH", axes.ravel(), found, strict=False):
        _regions(ax, c, ms=9, mew=1.6)
        x, y = c.task.x.numpy().T
        colors = [CLASSES[k % len(CLASSES)] for k in c.task.y.tolist()]
        ax.scatter(x, y, s=14, c=colors, edgecolors="black", linewidths=0.4, zorder=3)
        number = c.within(1)
        count = f"{number or 'no'} tripoint{'' if number == 1 else 's'} in the data's box"
        across, up = "$x_1$" if ax in axes[-1] else "", "$x_2$" if ax in axes[:, 0] else ""
        label(ax, across, up, f"{letter}: {c.kind}; {count}")
        ax.grid(False)
    _legend(picture, found[0].task, data=True)
    return picture


def draw_every_seed(found: Sequence[Classifier], max_seeds: int = 5) -> Picture:
    """Draw regions and tripoints of every network, a row per kind."""
    kinds = list(dict.fromkeys(c.kind for c in found))
    seeds = list(dict.fromkeys(c.seed for c in found))[:max_seeds]
    size = (2.35 * len(seeds) + 0.5, 2.0 * len(kinds) + 0.5)
    picture, axes = panels(len(kinds), len(seeds), size)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            (c,) = (c for c in found if c.kind == kind and c.seed == seed)
            _regions(ax, c, ms=6, mew=1.2)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(kind.replace(", ", "\n"), fontsize=10)
    for ax, seed in zip(axes[0], seeds, strict=True):
        ax.set_title(f"seed {seed}", fontsize=10)
    _legend(picture, found[0].task, data=False)
    return picture


def draw_further_out(found: Sequence[Classifier], times: float, far: float) -> Picture:
    """Draw tripoints within multiples of the bounding box, and how close to a line activations of each layer are."""
    picture, ((left, right),) = panels(1, 2, (11.5, 4.6))
    kinds = list(dict.fromkeys(c.kind for c in found))
    reaches = np.geomspace(0.5, far, 400)
    for (hue, dash), kind in zip(KINDS, kinds, strict=False):
        of_kind = [c for c in found if c.kind == kind]
        counts = np.array([[c.within(r) for r in reaches] for c in of_kind])
        left.plot(reaches, counts.mean(0), color=hue, linestyle=dash, linewidth=2, label=kind)
        spread = np.array([c.spread for c in of_kind])
        layers = np.arange(1, spread.shape[1] + 1)
        marker, face = "o" if len(layers) == 1 else "", {} if dash == "-" else {"mfc": "white"}
        for i, values in enumerate(spread):
            name = kind if i == 0 else None
            right.plot(layers, values, color=hue, linestyle=dash, linewidth=1.4, marker=marker, label=name, **face)
    for reach, kind in ((1.0, "shallow"), (times, "deep")):
        left.axvline(reach, color=GRAY, linestyle=":", linewidth=1.3)
        style: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
        left.annotate(f"claims, {kind}", (reach, 1), (4, -4), **style)
    up = "tripoints within reach, per network"
    label(left, "reach (multiple of the data's box)", up, "Mean over the seeds", log="x", bottom=-0.1)
    ticks(left, [t for t in (0.5, 1, 2, 3, 5, 10, 20) if t <= far])
    title = "Activations of each network: 0 on a line"
    label(right, "hidden layer", "$s_2/s_1$ of centered activations", title, bottom=0)
    right.xaxis.get_major_locator().set_params(integer=True)
    legend_below(picture, left, 4)
    return picture


def _regions(ax: Axes, c: Classifier, **ring: Any) -> None:
    """Fill the cells, draw boundaries between classes and the data's bounding box, and ring the tripoints."""
    center, half = (part.numpy() for part in box(c.task))
    low, high = center - SHOWN * half, center + SHOWN * half
    cells, colors = [], []
    for cell, k in zip(c.regions.cells, c.regions.cell_classes.tolist(), strict=True):
        if (cell.amin(0).numpy() <= high).all() and (cell.amax(0).numpy() >= low).all():
            cells.append(cell.numpy())
            colors.append(_pale(k))
    ax.add_collection(PolyCollection(cells, facecolors=colors, edgecolors=colors, linewidths=0.3))
    ax.add_collection(LineCollection(list(c.regions.boundaries.numpy()), colors="black", linewidths=1.1))
    ax.plot(*c.regions.points.numpy().T, **RING, **ring, zorder=4)
    ax.add_patch(Rectangle(tuple(center - half), *(2 * half), fill=False, linestyle="--", linewidth=1, edgecolor=GRAY))
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")


def _pale(k: int) -> tuple[float, float, float]:
    """Return the color of the region of a class, gray for -1."""
    red, green, blue = (0.55 + 0.45 * value for value in to_rgb(CLASSES[k % len(CLASSES)]))
    return (red, green, blue) if k >= 0 else (0.92, 0.92, 0.92)


def _legend(picture: Picture, task: Task, data: bool) -> None:
    classes = len(set(task.y.tolist()))
    fills = [Patch(facecolor=_pale(k), label=f"class {k + 1}") for k in range(classes)]
    lines = [Line2D([], [], color="black", linewidth=1.1, label="boundary")]
    lines.append(Line2D([], [], **RING, ms=8, mew=1.5, label="tripoint"))
    if data:
        lines.append(Line2D([], [], marker="o", ls="", ms=3.5, mfc="0.6", mec="black", mew=0.4, label="sample"))
    picture.legend(handles=[*fills, *lines], loc="outside lower center", ncols=7, frameon=False)
