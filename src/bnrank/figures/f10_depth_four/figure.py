"""F10 (Bantzis2025, Figure 4): the same as F9 at depth 4, where plateaus are less distinct."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f09_first_escape import saddles
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import handwritten_digits

__all__ = ["FIGURE", "claims", "make"]

DEPTHS = (4, 6)


def make(
    folder: Path,
    progress: bool,
    *,
    images: int | None,
    width: int,
    init: float,
    smaller: float,
    time: float,
    step: float,
    batch_size: int,
    seeds: int,
) -> Outcome:
    """Follow networks of depth 4 and of depth 6 from the same scale of small weights, and compare their plateaus.

    One more network of depth 4 starts from ``smaller`` weights, from which a second plateau can be seen there.
    """
    task = handwritten_digits(images)
    clear: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    pictures, captions, sections = {}, {}, []
    asked = [(depth, seed, init) for depth in DEPTHS for seed in range(seeds)] + [(DEPTHS[0], 0, smaller)]
    for depth, seed, scale in asked:
        flow = saddles.descend(
            task,
            depth,
            folder / f"depth-{depth}-init-{scale:g}-seed-{seed}",
            progress,
            width=width,
            init=scale,
            seed=seed,
            time=time,
            step=step,
            batch_size=batch_size,
        )
        if scale == init:
            clear[depth].append(saddles.clearness(flow.history))
        if seed == 0:
            title = f"{task.name}, {task.n} images, depth {depth}, width {width}, init {scale:g}"
            part = saddles.Part.of(flow, task, title)
            name = f"depth-{depth}-init-{scale:g}"
            pictures[name] = part.picture()
            captions[name] = f"The loss and the spectra of all layers at depth {depth}, from weights of scale {scale:g}"
            sections.append(part.section())
    table: list[dict[str, Any]] = [
        {"depth": depth, "seed": seed, "clearness": value}
        for depth, values in clear.items()
        for seed, value in enumerate(values)
    ]
    text = (
        "Clearness: log10 of the longest time that the loss takes for a twentieth of its fall after the first "
        "twentieth, over the median of these times. The initial weights have the same scale at both depths."
    )
    sections.append(Section("How clear plateaus are", text=text, rows=table))
    return Outcome("F10", claims(clear), tuple(sections), pictures, {"data": task.name}, captions=captions)


def claims(clear: dict[int, Sequence[float]] | dict[int, list[float]]) -> tuple[Claim, ...]:
    """Compare the clearness of plateaus, depth -> one number per seed."""
    shallow, deep = (np.asarray(clear[depth]) for depth in DEPTHS)
    gap = float(deep.min() - shallow.max())
    return (
        Claim(
            "plateaus are clearer at depth 6 than at depth 4: least clearness there less the largest here",
            gap > 0,
            gap,
            "> 0",
        ),
        Claim("mean clearness at depth 6", float(deep.mean()) > 0.7, float(deep.mean()), "> 0.7"),
    )


FIGURE = Figure(
    "F10",
    "depth-four",
    "Plateaus are less distinct at depth 4 than at depth 6",
    "Bantzis2025, Figure 4",
    "the plateaus of F9, shorter against the falls between them",
    {
        "quick": {
            "images": 1000,
            "width": 50,
            "init": 3e-2,
            "smaller": 5e-3,
            "time": 900.0,
            "step": 0.1,
            "batch_size": 50,
            "seeds": 2,
        },
        "paper": {
            "images": None,
            "width": 1000,
            "init": 2.5e-3,
            "smaller": 1e-3,
            "time": 900.0,
            "step": 0.1,
            "batch_size": 128,
            "seeds": 2,
        },
    },
    make,
    gigabytes={"quick": 0.7, "paper": 2.2},
    data={"paper": ("mnist",)},
)
