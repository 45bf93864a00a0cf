"""F9 (Bantzis2025, Figures 1 and 3): handwritten digits from small weights, past the first and the second saddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f09_first_escape import joins, saddles
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import handwritten_digits

__all__ = ["FIGURE", "escape", "make"]

DEPTH = 6


def make(
    folder: Path,
    progress: bool,
    *,
    images: int | None,
    width: int,
    runs: Sequence[Mapping[str, Any]],
    scales: Sequence[float],
) -> Outcome:
    """Follow a bias-free network of depth 6 from small weights, and a chain of single neurons with small ones added.

    The plateau at the origin is skipped (T35); from there Euler steps follow the flow on mini-batches. ``runs`` differ
    in the scale of the initial weights, the mini-batches and how long they are followed. The wait for a second singular
    value in the deep layers grows like a power of 1/init; ``scales`` are those of the small weights around a saddle,
    where the wait for neurons to join is log(1/scale) / kappa.
    """
    task = handwritten_digits(images)
    claims: list[Claim] = []
    sections, pictures, captions = [], {}, {}
    for i, settings in enumerate(runs):
        flow = saddles.descend(task, DEPTH, folder / f"run-{i}", progress, width=width, seed=0, **settings)
        last = i == len(runs) - 1
        title = f"{task.name}, {task.n} images, width {width}, init {settings['init']:g}"
        part = saddles.Part.of(flow, task, title, predict=not last)
        claims += [replace(claim, name=f"init {settings['init']:g}: {claim.name}") for claim in part.claims(last)]
        sections.append(part.section())
        name = "plateaus" if last else f"plateaus-init-{settings['init']:g}"
        pictures[name] = part.picture()
        captions[name] = f"The loss and the spectra of all layers, from weights of scale {settings['init']:g}"
    exits = joins.measure(task, DEPTH, scales)
    pictures["joins"] = joins.draw(exits)
    captions["joins"] = "How long a network stays at a saddle around which its other weights are small"
    table = [
        {"scale": s, "exit at": t, "log(1/scale) / kappa": float(np.log(1 / s) / exits.kappa), "rate seen": r}
        for s, t, r in zip(exits.scales, exits.times, exits.rates, strict=True)
    ]
    text = (
        f"A saddle with one neuron per layer (mean squares, {joins.SAMPLES} images in {joins.COMPONENTS} components), "
        f"small weights around it, width {joins.WIDTH}. kappa = {exits.kappa:.4g}. The time that is left on a plateau "
        "falls by a constant, not by a factor, if weights are ten times larger."
    )
    sections.append(Section("Leaving a saddle by joins (T41)", text=text, rows=table))
    made = (*claims, *joins.claims(exits))
    return Outcome("F9", made, tuple(sections), pictures, {"data": task.name}, captions=captions)


def escape(loss: np.ndarray, share: float = 0.1) -> int | None:
    """Return the row at which the first fall of the loss is over, None if there was none.

    The fall begins where a twentieth of the first value is lost, and is over where the loss falls at less than
    ``share`` of the fastest rate seen so far.
    """
    loss = loss[np.isfinite(loss)]
    if len(loss) < 3:
        return None
    rate = -np.diff(loss)
    begun = np.flatnonzero(loss < 0.95 * loss[0])
    for row in range(int(begun[0]) if len(begun) else len(loss), len(rate)):
        if rate[row] < share * rate[: row + 1].max():
            return row
    return None


FIGURE = Figure(
    "F9",
    "first-escape",
    "Leaving the saddle at the origin, every deep layer becomes rank one; leaving the second, rank two",
    "Bantzis2025, Figures 1 and 3",
    "a plateau of the loss; then one dominant singular value per layer, more so in deep layers; a second one later",
    {
        "quick": {
            "images": 1000,
            "width": 50,
            "runs": (
                {"init": 1e-3, "time": 40.0, "step": 0.1, "batch_size": 50},
                {"init": 3e-2, "time": 900.0, "step": 0.1, "batch_size": 50},
            ),
            "scales": (1e-3, 1e-4, 1e-5),
        },
        "paper": {
            "images": None,
            "width": 1000,
            "runs": (
                {"init": 1e-3, "time": 60.0, "step": 0.1, "batch_size": 1000},
                {"init": 1e-3, "time": 2400.0, "step": 0.1, "batch_size": 64},
            ),
            "scales": (1e-3, 1e-4, 1e-5, 1e-6),
        },
    },
    make,
    gigabytes={"quick": 0.7, "paper": 2.5},
    data={"paper": ("mnist",)},
)
