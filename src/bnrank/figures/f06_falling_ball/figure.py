"""F6 (Jacot2023c): a circular network that predicts a falling ball keeps it in pairs of frequency 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from bnrank._core.axes import OKABE_ITO
from bnrank.figures.f06_falling_ball.computation import NOISE, PAIRS, Ball, Read, Setup, bottleneck, follow, inside
from bnrank.figures.harness.claims import Claim, above, at_least, below, is_true, prefixed
from bnrank.figures.harness.drawing import GRAY, label, panels
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import held_out
from bnrank.measures.frequencies import kept
from bnrank.reporting import Section
from bnrank.reporting.stills.frequencies import frequency_spectra

KNOWN = 0.95  # share of a variance


@dataclass(frozen=True)
class Settings:
    """Settings of F6: the ball on a ring and the ball on a torus."""

    ring: Setup
    torus: Setup


def claims(ball: Ball) -> tuple[Claim, ...]:
    """Return the claims of the slide on one trained network; without a bottleneck, those about it fail.

    Its layers are represented by the middle one: at its ends a bottleneck goes over into the rest.
    """
    spectra = ball.profile.frequency_singular_values
    segment, layers = kept(spectra), inside(bottleneck(spectra))
    bent, position, velocity, control, gap = _middle(ball, layers)
    every = f" (of every seed: {'; '.join(_from_to(run) for run in ball.every)})" if len(ball.every) > 1 else ""
    modulus = dict(zip(spectra["frequency"].values, spectra["modulus"].values, strict=True))
    phases = "from the difference of two phases of frequency 1"
    measured = (
        above("next frames, explained share of the variance, balls all over", ball.explained, KNOWN),
        is_true(
            "longest segment of layers of the same rank (bnrank.profile): frequencies kept, and their channels",
            segment.frequencies and max(modulus[each.frequency] for each in segment.frequencies) <= 1,
            str(segment),
            "some, none with |w| > 1",
        ),
        at_least(
            f"layers with {PAIRS} singular values in [0.5, 2] at each |w| = 1 and none above 0.1 beyond",
            len(layers),
            spectra.sizes["layer"] / 3,
            shown=_from_to(layers) + every,
            note=" of them (L / 3)",
        ),
        at_least("middle layer of these: smallest singular value kept over the next at |w| > 0", gap, 20),
        below("middle layer: nonlinearity ratio (T27)", bent, 0.05),
        above("middle layer: position, from a phase of frequency 1, R^2", position, KNOWN),
        above(f"middle layer: velocity, {phases}, R^2", velocity, KNOWN),
        below(
            f"middle layer: position or velocity, from frequency 2 and {100 * NOISE:g} % of noise, larger R^2",
            control,
            0.5,
        ),
        above("explained where these layers pass on only the kept frequencies", ball.only, KNOWN),
        below("explained where one of them loses |w| = 1, largest", ball.without, 0.5),
    )
    return prefixed(ball.title, measured)


def _from_to(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if layers else "none"


def _middle(ball: Ball, layers: Sequence[int]) -> tuple[float, float, float, float, float]:
    """Return the measurements of the middle one of some layers, NaN where there are none.

    Nonlinearity ratio, R^2 of position and of velocity, the larger R^2 from frequency 2, and the smallest of the pairs'
    singular values over the largest other one at |w| > 0.
    """
    if not layers:
        return (math.nan,) * 5
    layer = layers[len(layers) // 2]
    values = np.nan_to_num(ball.profile.frequency_singular_values.sel(layer=layer).transpose("frequency", ...).values)
    modulus = ball.profile.frequency_singular_values["modulus"].values
    others = max(values[modulus == 1][:, PAIRS:].max(initial=0), values[modulus > 1].max(initial=0))
    gap = values[modulus == 1][:, :PAIRS].min() / max(others, 1e-12)
    position, velocity = ball.readouts[layer - 1].known
    bent = float(ball.profile.nonlinearity.sel(layer=layer))
    return bent, position, velocity, max(ball.controls[layer - 1].known), float(gap)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train networks on a ball in one dimension and on one in two."""
    balls = [follow(1, settings.ring, folder / "ring", progress), follow(2, settings.torus, folder / "torus", progress)]
    pictures = {"spectra": draw_spectra(balls), "readout": draw_readout(balls), "prediction": draw_prediction(balls)}
    captions = {
        "spectra": "Singular values of the weights of every layer, frequency by frequency; shaded: those that "
        f"keep {PAIRS} values near 1 at each |w| = 1 and nothing beyond.",
        "readout": "Position and velocity read from the layers as phases of frequency 1.",
        "prediction": "Test balls: two input frames, two predicted ones.",
    }
    sections = [
        Section(ball.title, text=_words(ball), profile=ball.profile, history=ball.history, rows=_rows(ball))
        for ball in balls
    ]
    made = tuple(claim for ball in balls for claim in claims(ball))
    return Outcome(claims=made, sections=sections, pictures=pictures, captions=captions)


def _words(ball: Ball) -> str:
    spectra = ball.profile.frequency_singular_values
    return (
        "The input is two frames, at t = -1 and 0; the network predicts the next ones. Layers that keep two pairs of "
        f"frequency 1 along each axis and nothing beyond, the source's picture: {bottleneck(spectra)}. Longest "
        f"segment of layers of the same rank, the bottleneck of the profile below: {kept(spectra)}. Fourier "
        "coefficients of the preactivations at frequency 1 are mapped linearly to exp(-2 pi i q_t / n), one map per "
        "axis, fitted on half of the test samples; R^2 in the table is on the other half, for every t, and for "
        "position and velocity, read from phases, for the best two consecutive times. White noise of "
        f"{100 * NOISE:g} percent of the power of the layer is added to every coefficient, so that far weaker "
        "components do not count; without it, traces of frequency 2 can be read."
    )


def _rows(ball: Ball) -> list[dict[str, object]]:
    rows = []
    for layer, (readout, control) in enumerate(zip(ball.readouts, ball.controls, strict=True), 1):
        row: dict[str, object] = {"layer": layer}
        row |= {f"q_{t}": float(value) for t, value in enumerate(readout.linear, -1)}
        row |= {"best t": readout.time, "position": readout.known[0], "velocity": readout.known[1]}
        rows.append(row | {"position, frequency 2": control.known[0], "velocity, frequency 2": control.known[1]})
    return rows


RING = Setup(
    size=12, speed=6.0, gravity=1.0, width=1.2, samples=160, channels=12, depth=11, ridge=(0.02,), steps=(2000,)
)
TORUS = Setup(
    size=6,
    speed=3.0,
    gravity=0.5,
    width=1.0,
    samples=200,
    channels=12,
    depth=9,
    ridge=(0.001, 0.01, 0.04, 0.1),
    steps=(400, 400, 800, 2000),
)
LARGE: dict[str, Any] = {"samples": 400, "tests": 4000, "members": 5}
PAPER = Settings(
    replace(RING, size=16, speed=8.0, width=1.5, channels=20, depth=13, steps=(8000,), **LARGE),
    replace(TORUS, channels=16, steps=(1000, 1000, 2000, 10_000), **LARGE),
)


POINTS = 400  # of a scatter plot
AXES = ("vertical", "horizontal")


def draw_spectra(balls: Sequence[Ball]) -> Picture:
    """Draw the singular values of all layers, colored by frequency, one axes per network."""
    picture, (axes,) = panels(1, len(balls), (7.4 * len(balls), 4.8))
    for ax, ball in zip(axes, balls, strict=True):
        held = bottleneck(ball.profile.frequency_singular_values)
        channels = {found.frequency: found.channels for found in held.frequencies}
        kept = [channels.get(str(name), 0) for name in ball.profile["frequency"].values]
        ends = {} if held.start is None else {"bottleneck_start": held.start, "bottleneck_end": held.end}
        others = {key: value for key, value in ball.profile.attrs.items() if not str(key).startswith("bottleneck_")}
        profile = ball.profile.assign(kept_channels=("frequency", kept))
        profile.attrs = {**others, **ends}
        frequency_spectra(profile, ax)
        ax.set_title(f"Weights by frequency; {ball.title}", fontsize=11)
    return picture


def draw_readout(balls: Sequence[Ball]) -> Picture:
    """Draw R^2 of positions linear in frequency 1 along depth, and position and velocity read from its phases."""
    picture, axes = panels(len(balls), 3, (13.6, 4.1 * len(balls)), width_ratios=(1.35, 1, 1))
    for (left, center, right), ball in zip(axes, balls, strict=True):
        _draw_linear(picture, left, ball)
        layers = inside(bottleneck(ball.profile.frequency_singular_values)) or [max(1, len(ball.readouts) // 2)]
        layer = layers[len(layers) // 2]
        readout, unit = ball.readouts[layer - 1], ball.task.x.shape[-1] / (2 * math.pi)
        t = readout.time
        _scatter(center, readout.position, unit)
        label(center, rf"true $q_{{{t}}}$ (pixels)", "read (pixels)", f"Position: phase of $\\pm 1$ in layer {layer}")
        _scatter(right, readout.velocity, unit)
        step = rf"true $q_{{{t + 1}}}-q_{{{t}}}$ (pixels per frame)"
        label(right, step, "read (pixels per frame)", f"Velocity: difference of two phases in layer {layer}")
    return picture


def _draw_linear(picture: Picture, ax: Axes, ball: Ball) -> None:
    values = np.stack([readout.linear for readout in ball.readouts], 1)
    times, layers = values.shape
    style: dict[str, Any] = {"cmap": "cividis", "vmin": 0, "vmax": 1, "aspect": "auto", "origin": "lower"}
    shown = ax.imshow(values, extent=(0.5, layers + 0.5, -1.5, times - 1.5), **style)
    for (i, j), value in np.ndenumerate(values):
        ax.text(j + 1, i - 1, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if value < 0.6 else "k")
    label(ax, "layer", "time t of the frame", f"Position $q_t$ as a linear map of $\\pm 1$; {ball.title}")
    ax.grid(False)
    ax.set_xticks(range(1, layers + 1))
    ax.set_yticks(range(-1, times - 1), [f"{t}{' (input)' if t < 1 else ''}" for t in range(-1, times - 1)])
    held = inside(bottleneck(ball.profile.frequency_singular_values))
    if held:
        for edge in (held[0] - 0.5, held[-1] + 0.5):
            ax.axvline(edge, color=OKABE_ITO[1], linewidth=2.0)
    picture.colorbar(shown, ax=ax, label=r"held-out $R^2$; lines: bottleneck", shrink=0.95)


def _scatter(ax: Axes, parts: Sequence[Read], unit: float) -> None:
    ends = np.array([math.inf, -math.inf])
    for axis, part in enumerate(parts):
        true, read = part.true[:POINTS] * unit, part.read[:POINTS] * unit
        name = f"{AXES[axis]}, " if len(parts) > 1 else ""
        ax.plot(true, read, ".", color=OKABE_ITO[axis], ms=4, alpha=0.7, label=f"{name}$R^2$ = {part.r2:.4f}")
        ends = np.array([min(ends[0], true.min()), max(ends[1], true.max())])
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
            color = OKABE_ITO[t + 1] if t > 0 else ("0.7", "0.4")[t + 1]
            kind = "input" if t < 1 else "true"
            ax.plot(pixels, rows[t + 1], color=color, linewidth=2.0, label=f"t = {t}, {kind}")
            if t > 0:
                ax.plot(pixels, rows[t + 1 + following], "o", color=color, markersize=5, label=f"t = {t}, predicted")
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


FIGURE = Figure(
    "F6",
    "falling-ball",
    "A circular network keeps a falling ball in pairs of frequency 1",
    "Jacot2023c, Learning Newtonian Mechanics",
    "in the bottleneck only a few singular values, at the lowest frequencies, are near 1; position and velocity are "
    "kept in two frequency-1 pairs",
    {"quick": Settings(RING, TORUS), "paper": PAPER},
    make,
    gigabytes={"quick": 0.9, "paper": 4.0},
)
