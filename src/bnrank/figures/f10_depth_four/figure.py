"""F10 (Bantzis2025, Figure 4): the same as F9 at depth 4, where plateaus are less distinct."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bnrank.figures.f09_first_escape import saddles
from bnrank.figures.f09_first_escape.figure import EPOCH, PRINT
from bnrank.figures.f09_first_escape.saddles import Descent
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, below
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import handwritten_digits

DEPTHS = (4, 6)
LEVEL = 0.01  # of the tests
GINI, STAY = "Gini coefficient", "longest stay"


@dataclass(frozen=True)
class Settings:
    """Settings of F10.

    Attributes
    ----------
    images : int or None
        Number of digits; None for all.
    width : int
        Of the hidden layers.
    descent : Descent
        Flow at both depths.
    smaller : float or None
        Initial scale of one more flow at depth 4.
    seeds : int
        Number of networks per depth.
    first_seed : int
        Of the networks.
    """

    images: int | None
    width: int
    descent: Descent
    smaller: float | None = None
    seeds: int = 5
    first_seed: int = 0


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Follow networks of depth 4 and of depth 6 from the same scale of small weights, and compare their plateaus.

    One more network of depth 4 starts from ``smaller`` weights, from which it shows a second plateau.
    """
    s, task = settings, handwritten_digits(settings.images)
    pictures, captions, sections, table = {}, {}, [], []
    seeds = range(s.first_seed, s.first_seed + s.seeds)
    runs = [(depth, seed, s.descent) for seed in seeds for depth in DEPTHS]
    if s.smaller is not None:
        runs.append((DEPTHS[0], s.first_seed, replace(s.descent, init=s.smaller)))
    places = [folder / f"depth-{depth}-init-{descent.init:g}-seed-{seed}" for depth, seed, descent in runs]
    each = zip(runs, places, strict=True)
    flows = [
        partial(saddles.descend_digits, s.images, depth, s.width, descent, place, seed)
        for (depth, seed, descent), place in each
    ]
    ahead(flows, progress)
    for (depth, seed, descent), place in zip(runs, places, strict=True):
        name = f"depth-{depth}-init-{descent.init:g}"
        flow = saddles.descend(task, depth, s.width, descent, place, progress, seed=seed)
        if descent is s.descent:
            gini = saddles.concentration(flow.history)
            plateaus = len(saddles.stages(flow.history))
            stay = saddles.longest_stay(flow.history)
            table.append({"depth": depth, "seed": seed, GINI: gini, STAY: stay, "plateaus": plateaus})
        if seed == s.first_seed:
            title = f"{task.name}, {task.n} images, depth {depth}, width {s.width}, init {descent.init:g}"
            part = saddles.Part.of(flow, task, title)
            pictures[name] = part.picture()
            what = f"The loss and the spectra of all layers at depth {depth}"
            captions[name] = f"{what}, from weights of scale {descent.init:g}"
            sections.append(part.section())
    found = {
        name: {depth: [float(row[name]) for row in table if row["depth"] == depth] for depth in DEPTHS}
        for name in (GINI, STAY)
    }
    text = (
        "The Gini coefficient of the numbers of steps that the loss takes for equal drops, from 5 percent below its "
        "first value to its last: 0 for a loss that falls along a line, near 1 for a staircase. "
        "The longest stay, Levy's concentration function, is the largest share of the same steps in which the loss is "
        "within an interval of 5 percent of its range: 0.05 on a line. Both scores are a choice of this library. "
        "The initial weights have the same scale at both depths."
    )
    sections.append(Section("How distinct plateaus are", text=text, rows=table))
    data = {"data": task.name}
    return Outcome(claims=claims(found), sections=sections, pictures=pictures, settings=data, captions=captions)


def claims(found: Mapping[str, Mapping[int, Sequence[float]]]) -> tuple[Claim, ...]:
    """Return a claim per score, given as name of the score -> depth -> one number per seed."""
    from scipy.stats import mannwhitneyu  # here, as it takes a second to import

    result = []
    for name, numbers in found.items():
        shallow, deep = (numbers[depth] for depth in DEPTHS)
        known = not any(map(math.isnan, (*shallow, *deep)))
        p = mannwhitneyu(deep, shallow, alternative="greater", method="exact").pvalue if known else math.nan
        text = f"plateaus are more distinct at depth 6 than at depth 4, {name}: p of the one-sided Mann-Whitney test"
        result.append(below(text, p, LEVEL))
    return tuple(result)


FIGURE = Figure(
    "F10",
    "depth-four",
    "Plateaus are less distinct at depth 4 than at depth 6",
    "Bantzis2025, Figure 4",
    "the plateaus of F9, shorter against the falls between them",
    {
        "quick": Settings(1000, 50, Descent(3e-2, 900.0, 0.1, 50), smaller=5e-3),
        "paper": Settings(None, 1000, replace(PRINT, max_steps=20 * EPOCH)),
    },
    make,
    version=3,
    gigabytes={"quick": 0.7, "paper": 3.5},
    data={"paper": ("mnist",)},
)
