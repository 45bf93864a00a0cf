"""``python -m benchmarks.against.physics_picture OUT.png``: frames of each system and the coordinates found."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from threadpoolctl import threadpool_limits

from benchmarks.against.physics import ROWS, columns
from benchmarks.against.physics_systems import SYSTEMS, film
from bnrank.discovery import BottleneckRegressor

__all__ = ["picture", "save"]

NOISE = 0.02
SHOWN = {
    "circular motion": ("angle", "angular velocity"),
    "pendulum": ("angle", "angular velocity"),
    "reaction-diffusion spiral": ("phase", "amplitude"),
    "double pendulum": ("first angle", "second angle"),
    "falling ball": ("position across", "position up"),
}


def picture(rows: int = ROWS, seed: int = 100, names: tuple[str, ...] = tuple(SHOWN)) -> Figure:
    """Return a figure with a row for each system: four frames, and the first two coordinates in two colorings."""
    figure = Figure(figsize=(11, 2.2 * len(names)), layout="constrained")
    for name, part in zip(names, np.atleast_1d(figure.subfigures(len(names), 1, hspace=0.04)), strict=True):
        frames = film(name, rows, seed, NOISE)
        x, y = columns(frames, seed)
        found = BottleneckRegressor(progress=False).fit(x, y)
        coordinates = found.transform(x)
        axes = part.subplots(1, 6, width_ratios=[1, 1, 1, 1, 1.45, 1.45])
        images = np.hstack([frames.x[0], frames.y[0]]).reshape(4, -1)
        side = round(images.shape[1] ** 0.5)
        for ax, image, title in zip(axes, images, ("seen", "seen", "next", "next"), strict=False):
            ax.imshow(image.reshape(side, side).T, origin="lower", cmap="gray", vmin=images.min(), vmax=images.max())
            ax.set(xticks=[], yticks=[])
            ax.set_title(title, fontsize=9)
        count, truth = found.n_components_, SYSTEMS[name].variables
        part.suptitle(f"{name}: {truth} state variables, {count} found", fontsize=11, x=0.01, ha="left")
        for i, label in enumerate(SHOWN[name]):
            turning = i == 0 and name in ("circular motion", "reaction-diffusion spiral")
            _scatter(axes[4 + i], coordinates, frames.states[:, i], label, "twilight" if turning else "viridis", part)
    return figure


def _scatter(ax: Axes, z: np.ndarray, values: np.ndarray, label: str, colors: str, part: Figure) -> None:
    second = z[:, 1] if z.shape[1] > 1 else np.zeros(len(z))
    points = ax.scatter(z[:, 0], second, c=values, s=6, cmap=colors, linewidths=0)
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("coordinate 1", fontsize=8)
    ax.set_ylabel("coordinate 2" if z.shape[1] > 1 else "", fontsize=8)
    bar = part.colorbar(points, ax=ax, fraction=0.06)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def save(figure: Figure, out: Path) -> None:
    """Write a figure as PNG with 256 colors, which takes a third of the bytes."""
    written = io.BytesIO()
    figure.savefig(written, dpi=85, format="png")
    Image.open(written).convert("RGB").quantize(256, kmeans=3).save(out, format="png", optimize=True)


def main() -> None:
    """Draw the picture on one thread and write it."""
    parser = argparse.ArgumentParser("python -m benchmarks.against.physics_picture", description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        save(picture(), arguments.out)


if __name__ == "__main__":
    main()
