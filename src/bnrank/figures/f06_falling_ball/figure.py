"""F6 (Jacot2023c): a circular network that predicts a falling ball keeps it in pairs of frequency 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f06_falling_ball.computation import NOISE, PAIRS, Ball, bottleneck, follow, inside
from bnrank.figures.f06_falling_ball.drawing import draw_prediction, draw_readout, draw_spectra
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.measures.frequencies import kept
from bnrank.reporting import Section

__all__ = ["FIGURE", "claims", "make"]

KNOWN = 0.95  # of a variance
ABOVE = f"> {KNOWN:g}"
BENT = 0.05


def claims(ball: Ball) -> tuple[Claim, ...]:
    """Measure what the slide shows on one trained network; without a bottleneck all that is about it fails.

    What its layers are like is measured in the middle one of them: at its ends a bottleneck goes over into the rest.
    """
    spectra = ball.profile.frequency_singular_values
    held, stretch, third = bottleneck(spectra), kept(spectra), spectra.sizes["layer"] / 3
    layers = inside(held)
    bent, position, velocity, control, gap = _middle(ball, layers)
    every = f" (of every seed: {'; '.join(_from_to(run) for run in ball.every)})" if len(ball.every) > 1 else ""
    modulus = dict(zip(spectra["frequency"].values, spectra["modulus"].values, strict=True))
    measured = (
        ("next frames explained, share of the variance, balls all over", ball.explained > KNOWN, ball.explained, ABOVE),
        (
            "longest stretch of layers of the same rank (bnrank.profile): frequencies kept, and in how many channels",
            bool(stretch.frequencies) and max(modulus[each.frequency] for each in stretch.frequencies) <= 1,
            str(stretch),
            "some, none with |w| > 1",
        ),
        (
            f"layers with {PAIRS} singular values in [0.5, 2] at each |w| = 1 and none above 0.1 beyond",
            len(layers) >= third,
            _from_to(layers) + every,
            f"at least L / 3 = {third:.3g} of them",
        ),
        ("middle layer of these: least singular value kept over the next at |w| > 0", gap >= 20, gap, ">= 20"),
        ("middle layer: nonlinearity ratio (T27)", bent < BENT, bent, f"< {BENT:g}"),
        ("middle layer: position, from a phase of frequency 1, R^2", position > KNOWN, position, ABOVE),
        (
            "middle layer: velocity, from the difference of two phases of frequency 1, R^2",
            velocity > KNOWN,
            velocity,
            ABOVE,
        ),
        (
            f"middle layer: position or velocity, from frequency 2 and {100 * NOISE:g} % of noise, R^2, larger one",
            control < 0.5,
            control,
            "< 0.5",
        ),
        ("explained where these layers pass on the kept frequencies only", ball.only > KNOWN, ball.only, ABOVE),
        ("explained where one of them loses |w| = 1, largest", ball.without < 0.5, ball.without, "< 0.5"),
    )
    return tuple(Claim(f"{ball.title}: {name}", bool(ok), value, wanted) for name, ok, value, wanted in measured)


def _from_to(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if layers else "none"


def _middle(ball: Ball, layers: Sequence[int]) -> tuple[float, float, float, float, float]:
    """Return what is claimed of the middle one of some layers, NaN where there are none.

    Nonlinearity ratio, R^2 of position and of velocity, the larger R^2 from frequency 2, and the least of the pairs'
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


def make(folder: Path, progress: bool, *, ring: Mapping[str, Any], torus: Mapping[str, Any]) -> Outcome:
    """Train on a ball in one dimension and on one in two; ``ring`` and ``torus`` are the arguments of `ball.follow`."""
    balls = [
        follow(dimensions, progress, folder / name, **settings)
        for dimensions, name, settings in ((1, "ring", ring), (2, "torus", torus))
    ]
    pictures = {
        "spectra": draw_spectra(balls),
        "readout": draw_readout(balls),
        "prediction": draw_prediction(balls),
    }
    captions = {
        "spectra": "Singular values of the weights of every layer, frequency by frequency; shaded: those that "
        f"keep {PAIRS} values near 1 at each |w| = 1 and nothing beyond.",
        "readout": "What the layers know of the ball: position and velocity as phases of frequency 1.",
        "prediction": "Balls that were not trained on: two frames in, two out.",
    }
    sections = [
        Section(ball.title, text=_words(ball), profile=ball.profile, history=ball.history, rows=_rows(ball))
        for ball in balls
    ]
    return Outcome(
        "F6", tuple(claim for ball in balls for claim in claims(ball)), tuple(sections), pictures, captions=captions
    )


def _words(ball: Ball) -> str:
    spectra = ball.profile.frequency_singular_values
    return (
        "The network sees two frames, at t = -1 and 0, and predicts those that follow. Layers that keep two pairs of "
        f"frequency 1 along each axis and nothing beyond, the source's picture: {bottleneck(spectra)}. Longest "
        f"stretch of layers of the same rank, the bottleneck of the profile below: {kept(spectra)}. Fourier "
        "coefficients of the preactivations at frequency 1 are mapped linearly to exp(-2 pi i q_t / n), one map per "
        "axis, fitted on half of the test samples; R^2 in the table is on the other half, for every t, and for "
        "position and velocity, read from phases, for the best two consecutive times. White noise of "
        f"{100 * NOISE:g} percent of the power of the layer is added to every coefficient: what is far weaker does not "
        "count as known, and without it traces of frequency 2 can be read."
    )


def _rows(ball: Ball) -> list[dict[str, object]]:
    rows = []
    for layer, (readout, control) in enumerate(zip(ball.readouts, ball.controls, strict=True), 1):
        row: dict[str, object] = {"layer": layer}
        row |= {f"q_{t}": float(value) for t, value in enumerate(readout.linear, -1)}
        row |= {"best t": readout.time, "position": readout.known[0], "velocity": readout.known[1]}
        rows.append(row | {"position, frequency 2": control.known[0], "velocity, frequency 2": control.known[1]})
    return rows


FIGURE = Figure(
    "F6",
    "falling-ball",
    "A circular network keeps a falling ball in pairs of frequency 1",
    "Jacot2023c, Learning Newtonian Mechanics",
    "in the bottleneck only a few singular values, at the lowest frequencies, are near 1; position and velocity are "
    "kept in two frequency-1 pairs",
    {
        "quick": {
            "ring": {
                "size": 12,
                "speed": 6.0,
                "gravity": 1.0,
                "width": 1.2,
                "frames": 2,
                "samples": 160,
                "tests": 2000,
                "channels": 12,
                "depth": 11,
                "ridge": (0.02,),
                "steps": (2000,),
                "members": 2,
                "seed": 0,
            },
            "torus": {
                "size": 6,
                "speed": 3.0,
                "gravity": 0.5,
                "width": 1.0,
                "frames": 2,
                "samples": 200,
                "tests": 2000,
                "channels": 12,
                "depth": 9,
                "ridge": (0.001, 0.01, 0.04, 0.1),
                "steps": (400, 400, 800, 2000),
                "members": 2,
                "seed": 0,
            },
        },
        "paper": {
            "ring": {
                "size": 16,
                "speed": 8.0,
                "gravity": 1.0,
                "width": 1.5,
                "frames": 2,
                "samples": 400,
                "tests": 4000,
                "channels": 20,
                "depth": 13,
                "ridge": (0.02,),
                "steps": (8000,),
                "members": 5,
                "seed": 0,
            },
            "torus": {
                "size": 6,
                "speed": 3.0,
                "gravity": 0.5,
                "width": 1.0,
                "frames": 2,
                "samples": 400,
                "tests": 4000,
                "channels": 16,
                "depth": 9,
                "ridge": (0.001, 0.01, 0.04, 0.1),
                "steps": (1000, 1000, 2000, 10_000),
                "members": 5,
                "seed": 0,
            },
        },
    },
    make,
    gigabytes={"quick": 0.9, "paper": 4.0},
)
