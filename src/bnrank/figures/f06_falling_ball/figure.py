"""F6 (Jacot2023c): a circular network that predicts a falling ball keeps it in pairs of frequency 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f06_falling_ball.computation import LINEAR, NOISE, PAIRS, Ball, Setup, follow
from bnrank.figures.f06_falling_ball.drawing import draw_prediction, draw_readout, draw_spectra
from bnrank.figures.harness.claims import Claim, above, at_least, below, is_true, prefixed
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.measures.frequencies import kept
from bnrank.reporting import Section

KNOWN = 0.95  # share of a variance


@dataclass(frozen=True)
class Settings:
    """Settings of F6: the ball on a ring and the ball on a torus."""

    ring: Setup
    torus: Setup


def claims(ball: Ball) -> tuple[Claim, ...]:
    """Return the claims of the slide on one trained network; without a bottleneck, those about it fail.

    Layers with two pairs need not be linear, as the ends of a bottleneck are transitional. One of them, the nearly
    linear one with the best readout, represents them.
    """
    spectra, layers = ball.spectra, ball.layers
    segment = kept(spectra)
    position, velocity, control, gap = _clearest(ball)
    bent = float(ball.profile.nonlinearity.sel(layer=layers).min()) if layers else math.nan
    every = f" (of every seed: {'; '.join(_from_to(run) for run in ball.every)})" if len(ball.every) > 1 else ""
    modulus = dict(zip(spectra["frequency"].values, spectra["modulus"].values, strict=True))
    longest = "longest segment of layers of the same rank (bnrank.profile): frequencies kept, and their channels"
    low = segment.frequencies and max(modulus[each.frequency] for each in segment.frequencies) <= 1
    pairs = f"layers with {PAIRS} singular values in [0.5, 2] at each |w| = 1 and none above 0.1 beyond"
    depth = spectra.sizes["layer"]
    second = f"from frequency 2 and {100 * NOISE:g} % of noise"
    phases = "from the difference of two phases of frequency 1"
    best = "nearly linear layer of these with the best readout"
    clear = f"{gap:.4g} (layer {ball.clearest})"
    measured = (
        above("next frames, explained share of the variance, balls all over", ball.explained, KNOWN),
        is_true(longest, low, str(segment), "some, none with |w| > 1"),
        at_least(pairs, len(layers), depth / 3, shown=_from_to(layers) + every, note=" of them (L / 3)"),
        below("of these layers, smallest nonlinearity ratio (T27)", bent, LINEAR),
        at_least(f"{best}: smallest singular value kept over the next at |w| > 0", gap, 20, shown=clear),
        above(f"{best}: position, from a phase of frequency 1, R^2", position, KNOWN),
        above(f"{best}: velocity, {phases}, R^2", velocity, KNOWN),
        below(f"{best}: position or velocity, {second}, larger R^2", control, 0.5),
        above("explained where these layers pass on only the kept frequencies", ball.only, KNOWN),
        below("explained where one of them loses |w| = 1, largest", ball.without, 0.5),
    )
    return prefixed(ball.title, measured)


def _from_to(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if layers else "none"


def _clearest(ball: Ball) -> tuple[float, float, float, float]:
    """Return measurements of the clearest layer of the bottleneck, NaN if no layer of it is nearly linear.

    R^2 of position and of velocity, the larger R^2 from frequency 2, and the smallest of the pairs' singular values
    over the largest other one at |w| > 0.
    """
    layer = ball.clearest
    if layer is None:
        return (math.nan,) * 4
    values = np.nan_to_num(ball.spectra.sel(layer=layer).transpose("frequency", ...).values)
    modulus = ball.spectra["modulus"].values
    others = max(values[modulus == 1][:, PAIRS:].max(initial=0), values[modulus > 1].max(initial=0))
    gap = values[modulus == 1][:, :PAIRS].min() / max(others, 1e-12)
    position, velocity = ball.readouts[layer - 1].known
    return position, velocity, max(ball.controls[layer - 1].known), float(gap)


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
    sections = [Section(b.title, text=_words(b), profile=b.profile, history=b.history, rows=_rows(b)) for b in balls]
    made = tuple(claim for ball in balls for claim in claims(ball))
    return Outcome(claims=made, sections=sections, pictures=pictures, captions=captions)


def _words(ball: Ball) -> str:
    which = f"layer {ball.clearest}" if ball.clearest else "there is none"
    return (
        "The input is two frames, at t = -1 and 0; the network predicts the next ones. Layers that keep two pairs of "
        f"frequency 1 along each axis and nothing beyond, the source's picture: {ball.held}. Longest "
        f"segment of layers of the same rank, the bottleneck of the profile below: {kept(ball.spectra)}. Fourier "
        "coefficients of the preactivations at frequency 1 are mapped linearly to exp(-2 pi i q_t / n), one map per "
        "axis, fitted on half of the test samples; R^2 in the table is on the other half, for every t, and for "
        "position and velocity, read from phases, for the best two consecutive times. White noise of "
        f"{100 * NOISE:g} percent of the power of the layer is added to every coefficient, so that far weaker "
        "components do not count; without it, traces of frequency 2 can be read. Claims on one layer are about "
        f"the nearly linear one with the best readout on these samples ({which})."
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
STAGES: dict[str, Any] = {
    "ridge": (0.001, 0.01, 0.04, 0.1),
    "steps": (2000, 800, 800, 1600),
    "optimizer": "adam",
}
TORUS = replace(RING, size=6, speed=3.0, gravity=0.5, width=1.0, samples=200, depth=9, **STAGES)
LARGE: dict[str, Any] = {"samples": 400, "tests": 4000, "members": 5}
PAPER = Settings(
    replace(RING, size=16, speed=8.0, width=1.5, channels=20, depth=13, steps=(8000,), **LARGE),
    replace(TORUS, channels=16, steps=(4000, 2000, 2000, 10_000), **LARGE),
)

FIGURE = Figure(
    "F6",
    "falling-ball",
    "A circular network keeps a falling ball in pairs of frequency 1",
    "Jacot2023c, Learning Newtonian Mechanics",
    "in the bottleneck only a few singular values, at the lowest frequencies, are near 1; position and velocity are "
    "kept in two frequency-1 pairs",
    {"quick": Settings(RING, TORUS), "paper": PAPER},
    make,
    version=2,
    gigabytes={"quick": 0.9, "paper": 4.0},
)
