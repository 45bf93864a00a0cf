"""The pictures of F6: singular values by frequency, what can be read from frequency 1, predicted frames."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank.figures.f06_falling_ball.computation import Ball
from bnrank.figures.f06_falling_ball.readouts import Read
from bnrank.figures.harness.drawing import GRAY, color, label, panels
from bnrank.figures.harness.training import held_out
from bnrank.reporting.stills.frequencies import frequency_spectra

POINTS = 400  # of a scatter plot
AXES = ("vertical", "horizontal")


def draw_spectra(balls: Sequence[Ball]) -> Picture:
    """Draw the singular values of all layers, colored by frequency, one axes per network."""
    picture, axes = panels(len(balls), 1, (8.6, 4.6 * len(balls)))
    for (ax,), ball in zip(axes, balls, strict=True):
        held = ball.held
        channels = {found.frequency: found.channels for found in held.frequencies}
        kept = [channels.get(str(name), 0) for name in ball.profile["frequency"].values]
        profile = ball.profile.assign(kept_channels=("frequency", kept))
        frequency_spectra(profile.assign_attrs(bottleneck_start=held.start, bottleneck_end=held.end), ax)
        ax.set_title(f"Weights by frequency; {ball.title}", fontsize=11)
    return picture


def draw_readout(balls: Sequence[Ball]) -> Picture:
    """Draw R^2 of positions linear in frequency 1 along depth, and position and velocity read from its phases."""
    picture, axes = panels(len(balls), 3, (13.6, 4.1 * len(balls)), width_ratios=(1.35, 1, 1))
    for (left, center, right), ball in zip(axes, balls, strict=True):
        _draw_linear(picture, left, ball)
        layer = ball.clearest or max(1, len(ball.readouts) // 2)
        readout, unit = ball.readouts[layer - 1], ball.task.x.shape[-1] / (2 * math.pi)
        t = readout.time
        _scatter(center, readout.position, unit)
        label(center, rf"true $q_{{{t}}}$ (pixels)", "read (pixels)", f"Position: phase of $\\pm 1$, layer {layer}")
        _scatter(right, readout.velocity, unit)
        t, title = readout.start, "two phases" if ball.pairs == 2 else r"amplitude of $\pm 1$"
        step = rf"true $q_{{{t + 1}}}-q_{{{t}}}$ (pixels per frame)"
        label(right, step, "read (pixels per frame)", f"Velocity: {title}, layer {layer}")
    return picture


def _draw_linear(picture: Picture, ax: Axes, ball: Ball) -> None:
    values = np.stack([readout.linear for readout in ball.readouts], 1)
    times, layers = values.shape
    style: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1, "aspect": "auto", "origin": "lower"}
    shown = ax.imshow(values, extent=(0.5, layers + 0.5, -1.5, times - 1.5), **style)
    for (i, j), value in np.ndenumerate(values):
        ax.text(j + 1, i - 1, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if value < 0.6 else "k")
    title = f"Position $q_t$ as a linear map of $\\pm 1$\n{ball.title}"
    label(ax, "layer", "time t of the frame", title, xticks=range(1, layers + 1))
    ax.grid(False)
    ax.set_yticks(range(-1, times - 1), [f"{t}{' (input)' if t < 1 else ''}" for t in range(-1, times - 1)])
    for edge in (ball.layers[0] - 0.5, ball.layers[-1] + 0.5) if ball.layers else ():
        ax.axvline(edge, color=color(1), linewidth=2.0)
    picture.colorbar(shown, ax=ax, label=r"held-out $R^2$; lines: bottleneck", shrink=0.95)


def _scatter(ax: Axes, parts: Sequence[Read], unit: float) -> None:
    for axis, part in enumerate(parts):
        true, read = part.true[:POINTS] * unit, part.read[:POINTS] * unit
        name = f"{AXES[axis]}, " if len(parts) > 1 else ""
        ax.plot(true, read, ".", color=color(axis), ms=4, alpha=0.7, label=f"{name}$R^2$ = {part.r2:.4f}")
    seen = np.concatenate([part.true[:POINTS] for part in parts]) * unit
    ends = [seen.min(), seen.max()]
    ax.plot(ends, ends, color=GRAY, linewidth=1.0, zorder=1)
    ax.legend(frameon=False, fontsize=9, loc="upper left", markerscale=2.5, handletextpad=0.2)


def draw_prediction(balls: Sequence[Ball], examples: int = 3) -> Picture:
    """Draw input frames and the next ones, true and predicted, of a few test balls."""
    heights = [4.2 if ball.task.x.ndim == 3 else 0.6 + 2.1 * examples for ball in balls]
    picture = Picture(figsize=(13.2, sum(heights)), layout="constrained")
    parts = picture.subfigures(len(balls), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, ball in zip(parts, balls, strict=True):
        part.suptitle(f"Input and prediction; {ball.title}", fontsize=12)
        x, y = (part.double() for part in held_out(ball.task))
        with torch.no_grad():
            found = ball.network(x[:examples])
        shape = (-1, *x.shape[2:])
        frames = [torch.cat([x[i], *(z[i].reshape(shape) for z in (y, found))]).numpy() for i in range(examples)]
        (_draw_rings if x.ndim == 3 else _draw_tori)(part, frames, len(frames[0]) // 2 - 1)
    return picture


def _draw_rings(part: Any, frames: Sequence[np.ndarray], following: int) -> None:
    for i, (ax, rows) in enumerate(zip(part.subplots(1, len(frames), sharey=True), frames, strict=True)):
        pixels = np.arange(rows.shape[1])
        for t in range(-1, following + 1):
            hue = color(t + 1) if t > 0 else ("0.7", "0.4")[t + 1]
            kind = "input" if t < 1 else "true"
            ax.plot(pixels, rows[t + 1], color=hue, linewidth=2.0, label=f"t = {t}, {kind}")
            if t > 0:
                ax.plot(pixels, rows[t + 1 + following], "o", color=hue, markersize=5, label=f"t = {t}, predicted")
        label(ax, "pixel", "brightness" if i == 0 else "", f"Test ball {i + 1}")
    part.legend(*ax.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=6, fontsize=9)


def _draw_tori(part: Any, frames: Sequence[np.ndarray], following: int) -> None:
    axes = part.subplots(len(frames), 2 + 2 * following, squeeze=False)
    for i, (row, images) in enumerate(zip(axes, frames, strict=True)):
        for k, ax in enumerate(row):
            t, predicted = (k - 1, False) if k < 2 else (1 + (k - 2) // 2, bool(k % 2))
            image = images[t + 1 + following] if predicted else images[t + 1]
            shown = ax.imshow(image, cmap="viridis", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            if i == 0:
                ax.set_title(f"t = {t}, {'input' if t < 1 else 'predicted' if predicted else 'true'}", fontsize=10)
            if k == 0:
                ax.set_ylabel(f"ball {i + 1}\ndown: gravity", fontsize=9)
    part.colorbar(shown, ax=axes, label="brightness", shrink=0.9)
