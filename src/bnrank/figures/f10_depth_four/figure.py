"""F10 (Bantzis2025, Figure 4): the same as F9 at depth 4, where plateaus are less distinct."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bnrank.figures.f09_first_escape import saddles
from bnrank.figures.f09_first_escape.saddles import Descent
from bnrank.figures.harness.claims import Claim, above
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import handwritten_digits

DEPTHS = (4, 6)


@dataclass(frozen=True)
class Settings:
    """Settings of F10: digits (None for all), width, flow, smaller initial scale of one more flow, number of seeds."""

    images: int | None
    width: int
    descent: Descent
    smaller: float
    seeds: int = 2


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Follow networks of depth 4 and of depth 6 from the same scale of small weights, and compare their plateaus.

    One more network of depth 4 starts from ``smaller`` weights, from which it shows a second plateau.
    """
    s, task = settings, handwritten_digits(settings.images)
    pictures, captions, sections, table = {}, {}, [], []
    runs = [(depth, seed, s.descent) for depth in DEPTHS for seed in range(s.seeds)]
    for depth, seed, descent in [*runs, (DEPTHS[0], 0, replace(s.descent, init=s.smaller))]:
        name = f"depth-{depth}-init-{descent.init:g}"
        flow = saddles.descend(task, depth, s.width, descent, folder / f"{name}-seed-{seed}", progress, seed=seed)
        if descent is s.descent:
            table.append({"depth": depth, "seed": seed, "clearness": saddles.clearness(flow.history)})
        if seed == 0:
            title = f"{task.name}, {task.n} images, depth {depth}, width {s.width}, init {descent.init:g}"
            part = saddles.Part.of(flow, task, title)
            pictures[name] = part.picture()
            what = f"The loss and the spectra of all layers at depth {depth}"
            captions[name] = f"{what}, from weights of scale {descent.init:g}"
            sections.append(part.section())
    clear = {depth: [row["clearness"] for row in table if row["depth"] == depth] for depth in DEPTHS}
    text = (
        "Clearness: log10 of the longest time that the loss takes for a twentieth of its fall after the first "
        "twentieth, over the median of these times. The initial weights have the same scale at both depths."
    )
    sections.append(Section("How clear plateaus are", text=text, rows=table))
    data = {"data": task.name}
    return Outcome(claims=claims(clear), sections=sections, pictures=pictures, settings=data, captions=captions)


def claims(clear: Mapping[int, Sequence[float]]) -> tuple[Claim, ...]:
    """Return the claims on the clearness of plateaus, given as depth -> one number per seed."""
    shallow, deep = (np.asarray(clear[depth]) for depth in DEPTHS)
    name = "plateaus are clearer at depth 6 than at depth 4: smallest clearness there minus the largest here"
    return above(name, deep.min() - shallow.max(), 0), above("mean clearness at depth 6", deep.mean(), 0.7)


FIGURE = Figure(
    "F10",
    "depth-four",
    "Plateaus are less distinct at depth 4 than at depth 6",
    "Bantzis2025, Figure 4",
    "the plateaus of F9, shorter against the falls between them",
    {
        "quick": Settings(1000, 50, Descent(3e-2, 900.0, 0.1, 50), smaller=5e-3),
        "paper": Settings(None, 1000, Descent(2.5e-3, 900.0, 0.1, 128), smaller=1e-3),
    },
    make,
    gigabytes={"quick": 0.7, "paper": 2.2},
    data={"paper": ("mnist",)},
)
