"""F6 (Jacot2023c): a circular network that predicts a falling ball keeps it in pairs of frequency 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bnrank.figures.f06_falling_ball.computation import GAP, KNOWN, LINEAR, UNKNOWN, Ball, Setup, follow, trained
from bnrank.figures.f06_falling_ball.drawing import draw_prediction, draw_readout, draw_spectra
from bnrank.figures.f06_falling_ball.readouts import NOISE
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below, is_true, prefixed
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.measures.frequencies import kept
from bnrank.reporting import Section

SHARE = 0.8  # of the networks that show the picture


@dataclass(frozen=True)
class Settings:
    """Settings of F6: the ball on a ring, with velocities on a circle and in an interval, and on a torus."""

    ring: Setup
    interval: Setup
    torus: Setup


def claims(balls: Sequence[Ball]) -> tuple[Claim, ...]:
    """Return the claims of the slide, one about all networks and the others about the first.

    Without a bottleneck they fail. Layers of the bottleneck need not be linear, as its ends are transitional. One of
    them, the nearly linear one with the widest gap, represents them.
    """
    ball, shows = balls[0], [ball.shows for ball in balls]
    spectra, layers = ball.spectra, ball.layers
    segment = kept(spectra)
    position, velocity, control, gap = _clearest(ball)
    bent = float(ball.profile.nonlinearity.sel(layer=layers).min()) if layers else math.nan
    modulus = dict(zip(spectra["frequency"].values, spectra["modulus"].values, strict=True))
    longest = "longest segment of layers of the same rank (bnrank.profile): frequencies kept, and their channels"
    low = segment.frequencies and max(modulus[each.frequency] for each in segment.frequencies) <= 1
    values = "singular value" if ball.pairs == 1 else f"{ball.pairs} singular values"
    pairs = f"layers with {values} in [0.5, 2] at each |w| = 1 and none above 0.1 beyond"
    depth = spectra.sizes["layer"]
    second = f"from frequency 2{', velocity from 0,' if ball.pairs == 1 else ''} and {100 * NOISE:g} % of noise"
    phases = "the amplitude of frequency 1" if ball.pairs == 1 else "the difference of two phases of frequency 1"
    best = "nearly linear layer of these with the widest gap"
    clear = f"{gap:.4g} (layer {ball.clearest or 'none'})"
    runs = "; ".join(f"{each.seed}: {_from_to(each.layers)}" for each in balls)
    picture = (
        f"networks with explained share > {KNOWN:g} and, in the nearly linear layer of these with the widest gap, gap "
        f">= {GAP}, position and velocity R^2 > {KNOWN:g}, control R^2 < {UNKNOWN:g}"
    )
    share = f"{sum(shows)} of {len(shows)} (layers by seed {runs})"
    measured: tuple[Claim, ...] = (
        above("next frames, explained share of the variance, balls all over", ball.explained, KNOWN),
        is_true(longest, low, str(segment), "some, none with |w| > 1"),
        at_least(pairs, len(layers), depth / 3, shown=_from_to(layers), note=" of them (L / 3)"),
        at_least(picture, sum(shows), math.ceil(SHARE * len(shows)), shown=share, note=f" of {len(shows)}"),
        below("of these layers, smallest nonlinearity ratio (T27)", bent, LINEAR),
        at_least(f"{best}: smallest singular value kept over the next at |w| > 0", gap, GAP, shown=clear),
        above(f"{best}: position, from a phase of frequency 1, R^2", position, KNOWN),
        above(f"{best}: velocity, from {phases}, R^2", velocity, KNOWN),
        below(f"{best}: position or velocity, {second}, largest R^2", control, UNKNOWN),
        above("explained where these layers pass on only the kept frequencies", ball.only, KNOWN),
        below("explained where one of them loses |w| = 1, largest", ball.without, 0.5),
    )
    if ball.pairs == 1:
        measured += (at_most(f"{best}: singular values above 0.1 at frequency 0", _still(ball), 1),)
    return prefixed(ball.title, measured)


def _still(ball: Ball) -> float:
    """Return the number of singular values above 0.1 at frequency 0 in the clearest layer, NaN without one."""
    if ball.clearest is None:
        return math.nan
    values = ball.spectra.sel(layer=ball.clearest)
    return float((values.values[values["modulus"].values == 0] > 0.1).sum())


def _from_to(layers: Sequence[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if layers else "none"


def _clearest(ball: Ball) -> tuple[float, float, float, float]:
    """Return measurements of the clearest layer of the bottleneck, NaN if no layer of it is nearly linear.

    R^2 of position and of velocity, the largest R^2 of the control, and the gap.
    """
    layer = ball.clearest
    if layer is None:
        return (math.nan,) * 4
    position, velocity = ball.readouts[layer - 1].known
    return position, velocity, ball.controls[layer - 1].most, ball.gap(layer)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train networks on balls in one dimension and in two."""
    parts = {"ring": (1, settings.ring), "interval": (1, settings.interval), "torus": (2, settings.torus)}
    each = [(d, setup, folder / name) for name, (d, setup) in parts.items()]
    ahead([partial(trained, *one, False) for one in each], progress)
    found = [follow(*one, progress) for one in each]
    balls = [members[0] for members in found]
    pictures = {"spectra": draw_spectra(balls), "readout": draw_readout(balls), "prediction": draw_prediction(balls)}
    captions = {
        "spectra": "Singular values of the weights of every layer, frequency by frequency; shaded: those with the "
        "expected values near 1 at each |w| = 1 and nothing beyond. The network with the lowest loss.",
        "readout": "Position and velocity read from the layers as phases of frequency 1; velocities of an interval "
        "as its amplitude.",
        "prediction": "Test balls: two input frames, two predicted ones.",
    }
    sections = [part for members in found for part in _sections(members)]
    made = tuple(claim for members in found for claim in claims(members))
    return Outcome(claims=made, sections=sections, pictures=pictures, captions=captions)


def _sections(balls: Sequence[Ball]) -> list[Section]:
    best = balls[0]
    seeds = "Every network, by its seed, lowest loss first. Position and velocity are those of the clearest layer."
    return [
        Section(best.title, text=_words(best), profile=best.profile, history=best.history, rows=_rows(best)),
        Section(f"{best.title}, all seeds", text=seeds, rows=[_seed_row(ball) for ball in balls]),
    ]


def _seed_row(ball: Ball) -> dict[str, object]:
    position, velocity, control, gap = _clearest(ball)
    row: dict[str, object] = {"seed": ball.seed, "loss": ball.loss, "explained": ball.explained}
    row |= {"layers": _from_to(ball.layers), "clearest": ball.clearest or "none"}
    row |= {"position": position, "velocity": velocity, "control": control, "gap": gap}
    return row | {"kept": str(ball.held), "shows the picture": ball.shows}


def _words(ball: Ball) -> str:
    which = f"layer {ball.clearest}" if ball.clearest else "there is none"
    pairs = "two pairs" if ball.pairs == 2 else "one pair"
    phases = "from phases: the position for the best time, the velocity for the best two consecutive ones"
    still = "from the phase, for the best time, and from the amplitude, by a cubic polynomial"
    return (
        f"The input is two frames, at t = -1 and 0; the network predicts the next ones. Layers that keep {pairs} of "
        f"frequency 1 along each axis and nothing beyond: {ball.held}. Longest "
        f"segment of layers of the same rank, the bottleneck of the profile below: {kept(ball.spectra)}. Fourier "
        "coefficients of the preactivations at frequency 1 are mapped linearly to exp(-2 pi i q_t / n), one map per "
        "axis, fitted on half of the test samples; R^2 in the table is on the other half, for every t, and for "
        f"position and velocity, read {phases if ball.pairs == 2 else still}. White noise of "
        f"{100 * NOISE:g} percent of the layer's variance over the samples is added to every coefficient, so that far "
        "weaker components do not count; without it, traces of frequency 2 can be read. Claims on one layer are about "
        f"the nearly linear one with the widest gap ({which})."
    )


def _rows(ball: Ball) -> list[dict[str, object]]:
    rows = []
    for layer, (readout, control) in enumerate(zip(ball.readouts, ball.controls, strict=True), 1):
        row: dict[str, object] = {"layer": layer}
        row |= {f"q_{t}": float(value) for t, value in enumerate(readout.linear, -1)}
        row |= {"best t": readout.time, "position": readout.known[0]}
        row |= {"from t": readout.start, "velocity": readout.known[1]}
        other = f"velocity, frequency {2 if ball.pairs == 2 else 0}"
        rows.append(row | {"position, frequency 2": control.known[0], other: control.known[1]})
    return rows


RING = Setup(
    size=12,
    gravity=1.0,
    width=1.2,
    samples=160,
    channels=12,
    depths=(4, 11, 11),
    speeds=(6.0, 6.0, 6.0),
    ridge=(0.001, 0.02, 0.04),
    steps=(600, 600, 400),
    lr=(0.01, 0.0, 0.0),
    after=3,
    seed=40,
)
STILL: dict[str, Any] = {"ridge": (0.001, 0.02), "steps": (400, 800), "lr": (0.01, 0.0)}
INTERVAL = replace(RING, speeds=(2.0, 2.0), depths=(4, 11), after=2, pairs=1, **STILL)
TORUS = replace(
    RING,
    size=8,
    gravity=0.5,
    samples=200,
    channels=16,
    depths=(4, 4, 4, 9, 9),
    speeds=(1.5, 3.0, 4.0, 4.0, 4.0),
    ridge=(5e-4, 5e-4, 5e-4, 0.03, 0.1),
    steps=(250, 200, 400, 200, 1500),
    lr=(0.003, 0.003, 0.003, 0.0, 0.0),
)
SETTINGS = Settings(RING, INTERVAL, TORUS)  # at both scales: the slides give no sizes

FIGURE = Figure(
    "F6",
    "falling-ball",
    "A circular network keeps a falling ball in pairs of frequency 1",
    "Jacot2023c, Learning Newtonian Mechanics",
    "in the bottleneck only a few singular values, at the lowest frequencies, are near 1; position and velocity are "
    "kept in two frequency-1 pairs",
    {"quick": SETTINGS, "paper": SETTINGS},
    make,
    version=4,
    gigabytes={"quick": 1.1, "paper": 1.1},
)
