"""F12 (Bantzis2025, Figure 5): the speed of a chain of single neurons against its direction, on T40's data."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure as Picture

from bnrank.figures.harness.claims import Claim, above, below
from bnrank.figures.harness.drawing import color, label, panels
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.measures.one_neuron import OneNeuron
from bnrank.reporting import Section
from bnrank.theory.escape.one_neuron import one_neuron_speed, rank_one_speed

BEST = math.sqrt(2) - 1
RANK_TWO = 0.5
POINTS = 8
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Settings:
    """Settings of F12: the number of angles."""

    angles: int = 721


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Evaluate max_u u G^T relu(X v) for v = (sin phi, cos phi), eight points on the circle and G = +1, -1, ..."""
    del folder, progress
    kinks = np.arange(POINTS) * 2 * math.pi / POINTS  # v is orthogonal to a point
    x, g = _directions(kinks), (-1.0) ** torch.arange(POINTS, dtype=torch.float64)[:, None]
    angle = np.union1d(np.linspace(0, 2 * math.pi, settings.angles), kinks)
    measured = one_neuron_speed(x, g, _directions(angle)).numpy()
    at_kinks = one_neuron_speed(x, g, _directions(kinks)).numpy()
    rows = [{"angle": float(a), "speed": float(s)} for a, s in zip(kinks, at_kinks, strict=True)]
    section = Section("Speed at the kinks", text="Angles in radians; elsewhere the speed is lower.", rows=rows)
    pictures = {"speed-against-angle": draw(angle, measured, kinks, at_kinks)}
    captions = {"speed-against-angle": "The escape speed of one neuron per layer against its direction"}
    made = claims(angle, measured, at_kinks, rank_one_speed(x, g))
    data = {"data": "eight points on a circle"}
    return Outcome(claims=made, sections=(section,), pictures=pictures, settings=data, captions=captions)


def closed_form(angle: np.ndarray) -> np.ndarray:
    """Return sqrt(4 - 2 sqrt 2) |sin(pi/8 - xi)|, xi = angle mod pi/4 (T40).

    Examples
    --------
    >>> closed_form(np.array([0.0, np.pi / 8])).round(6)
    array([0.414214, 0.      ])
    """
    return math.sqrt(4 - 2 * math.sqrt(2)) * np.abs(np.sin(math.pi / 8 - angle % (math.pi / 4)))


def claims(angle: np.ndarray, measured: np.ndarray, at_kinks: np.ndarray, best: OneNeuron) -> tuple[Claim, ...]:
    """Return the claims of Figure 5 on speeds over (angle,), at the kinks, and on the exact maximum."""
    off = np.abs(measured - closed_form(angle)).max()
    top = np.abs([best.lower - BEST, *(at_kinks - BEST)]).max()  # NaN if one of them is
    gap = RANK_TWO - np.max([best.upper, *measured])
    at_maximum = "maximum, exact and reached at every kink: difference from sqrt(2) - 1"
    return (
        below("largest difference from the closed form", off, TOLERANCE),
        below(at_maximum, top, TOLERANCE, given=best.exact),
        above("how much faster the direction of rank two is, speed 1/2", gap, 0, note=f", {RANK_TWO - BEST:.4f}"),
    )


def draw(angle: np.ndarray, measured: np.ndarray, kinks: np.ndarray, at_kinks: np.ndarray) -> Picture:
    """Draw the measured curve, the closed form in dots, the maxima at the kinks and the speed of rank two."""
    picture, ((ax,),) = panels(1, 1, (7.2, 4.2))
    degrees = np.degrees
    ax.plot(degrees(angle), measured, color=color(0), linewidth=1.8, label="one neuron, measured")
    few = np.linspace(0, 2 * math.pi, 8 * POINTS, endpoint=False) + math.pi / (8 * POINTS)
    ax.plot(degrees(few), closed_form(few), ".", color="black", markersize=4, label="closed form")
    ends, top = np.append(kinks, 2 * math.pi), np.append(at_kinks, at_kinks[:1])
    maximum = f"kinks: maximum √2 − 1 = {BEST:.4f}"
    ax.plot(degrees(ends), top, "o", color=color(1), markersize=6, label=maximum, clip_on=False, zorder=3)
    ax.axhline(RANK_TWO, color=color(2), linestyle="--", linewidth=1.5, label="rank two: 1/2")
    within = {"xticks": degrees(ends), "xlim": (0, 360), "ylim": (0, 0.72)}
    label(ax, "angle of the neuron (degrees)", "escape speed s", "", **within)
    ax.legend(loc="upper center", ncols=2, frameon=False)
    return picture


def _directions(angle: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], 1))


FIGURE = Figure(
    "F12",
    "one-neuron",
    "The fastest single neuron points at a kink, and is slower than a pair of neurons",
    "Bantzis2025, Figure 5",
    "eight arcs of a sine; the maximum sqrt(2) - 1 at the kinks, below the 1/2 of a direction of rank two",
    {"quick": Settings(), "paper": Settings(angles=36001)},
    make,
    gigabytes={"quick": 0.5, "paper": 0.5},
)
