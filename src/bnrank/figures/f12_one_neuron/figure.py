"""F12 (Bantzis2025, Figure 5): the speed of a chain of single neurons against its direction, on T40's data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from bnrank._core.axes import OKABE_ITO
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.theory.escape.one_neuron import OneNeuron, one_neuron_speed, rank_one_speed

__all__ = ["FIGURE", "claims", "closed_form", "draw", "make"]

BEST = math.sqrt(2) - 1
RANK_TWO = 0.5
POINTS = 8
TOLERANCE = 1e-12


def make(folder: Path, progress: bool, *, angles: int) -> Outcome:
    """Evaluate max_u u G^T relu(X v) for v = (sin phi, cos phi), eight points on the circle and G = +1, -1, ..."""
    del folder, progress
    position = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
    x = torch.stack([position.sin(), position.cos()], 1)
    g = (-1.0) ** torch.arange(POINTS, dtype=torch.float64)[:, None]
    kinks = np.arange(POINTS) * 2 * math.pi / POINTS  # where v is orthogonal to a point
    angle = np.union1d(np.linspace(0, 2 * math.pi, angles), kinks)
    measured = one_neuron_speed(x, g, _directions(angle)).numpy()
    at_kinks = one_neuron_speed(x, g, _directions(kinks)).numpy()
    best = rank_one_speed(x, g)
    picture = Canvas(figsize=(7.2, 4.2), layout="constrained")
    draw(picture.add_subplot(), angle, measured, kinks, at_kinks)
    rows = [{"angle": float(a), "speed": float(s)} for a, s in zip(kinks, at_kinks, strict=True)]
    section = Section("Speed at the kinks", text="Angles in radians; elsewhere the speed is lower.", rows=rows)
    outcome = claims(angle, measured, at_kinks, best)
    pictures = {"speed-against-angle": picture}
    captions = {"speed-against-angle": "The escape speed of one neuron per layer against its direction"}
    settings = {"data": "eight points on a circle"}
    return Outcome("F12", outcome, (section,), pictures, settings, captions=captions)


def closed_form(angle: np.ndarray) -> np.ndarray:
    """Return sqrt(4 - 2 sqrt 2) |sin(pi/8 - xi)|, xi = angle mod pi/4 (T40).

    Examples
    --------
    >>> closed_form(np.array([0.0, np.pi / 8])).round(6)
    array([0.414214, 0.      ])
    """
    return math.sqrt(4 - 2 * math.sqrt(2)) * np.abs(np.sin(math.pi / 8 - angle % (math.pi / 4)))


def claims(angle: np.ndarray, measured: np.ndarray, at_kinks: np.ndarray, best: OneNeuron) -> tuple[Claim, ...]:
    """Measure what Figure 5 shows on speeds over (angle,), at the kinks, and on the exact maximum."""
    off = float(np.abs(measured - closed_form(angle)).max())
    top = float(np.abs([best.lower - BEST, *(at_kinks - BEST)]).max())  # NaN, where there is one
    gap = RANK_TWO - float(np.max([best.upper, *measured]))
    return (
        Claim("largest difference from the closed form", off < TOLERANCE, off, f"< {TOLERANCE:g}"),
        Claim(
            "maximum, exact and reached at every kink: difference from sqrt(2) - 1",
            best.exact and top < TOLERANCE,
            top,
            f"< {TOLERANCE:g}",
        ),
        Claim("how much faster the direction of rank two is, speed 1/2", gap > 0, gap, f"> 0, {RANK_TWO - BEST:.4f}"),
    )


def draw(ax: Axes, angle: np.ndarray, measured: np.ndarray, kinks: np.ndarray, at_kinks: np.ndarray) -> None:
    """Draw the measured curve, the closed form in dots, the maxima at the kinks and the speed of rank two."""
    degrees = np.degrees
    ax.plot(degrees(angle), measured, color=OKABE_ITO[0], linewidth=1.8, label="one neuron, measured")
    few = np.linspace(0, 2 * math.pi, 8 * POINTS, endpoint=False) + math.pi / (8 * POINTS)
    ax.plot(degrees(few), closed_form(few), ".", color="black", markersize=4, label="closed form")
    ends = np.append(kinks, 2 * math.pi)
    top = np.append(at_kinks, at_kinks[:1])
    label = f"kinks: maximum √2 − 1 = {BEST:.4f}"
    ax.plot(degrees(ends), top, "o", color=OKABE_ITO[1], markersize=6, label=label, clip_on=False, zorder=3)
    ax.axhline(RANK_TWO, color=OKABE_ITO[2], linestyle="--", linewidth=1.5, label="rank two: 1/2")
    ax.set_xlabel("angle of the neuron (degrees)")
    ax.set_ylabel("escape speed s")
    ax.set_xticks(degrees(ends))
    ax.set_xlim(0, 360)
    ax.set_ylim(0, 0.72)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper center", ncols=2, frameon=False)


def _directions(angle: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], 1))


FIGURE = Figure(
    "F12",
    "one-neuron",
    "The fastest single neuron points at a kink, and is slower than a pair of neurons",
    "Bantzis2025, Figure 5",
    "eight arcs of a sine; the maximum sqrt(2) - 1 at the kinks, below the 1/2 of a direction of rank two",
    {"quick": {"angles": 721}, "paper": {"angles": 36001}},
    make,
    gigabytes={"quick": 0.5, "paper": 0.5},
)
