"""F2 (Jacot2023a, Figure 2): shallow classifiers have points where three classes meet, deep ones have none."""

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bnrank.figures.f02_class_regions.computation import HE, PYTORCH, Classifier, Settings, classifiers, trained
from bnrank.figures.f02_class_regions.drawing import draw_every_seed, draw_further_out, draw_regions
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, equals
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section

FITTED = 0.99
MOST, FEW = 0.5, 0.2  # shares of networks


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train each depth without L2, continue with L2, and find the points where classes meet."""
    s = settings
    shallow, deep = s.depths
    kinds = [(shallow, PYTORCH, s.seeds), (deep, PYTORCH, s.seeds), (deep, HE, s.seeds[: s.control])]
    each = [(s, seed, depth, start, folder) for depth, start, seeds in kinds for seed in seeds]
    ahead([partial(trained, *one, False) for one in each], progress)
    found = [network for one in each for network in classifiers(*one, progress)]
    claimed = [c for c in found if c.start == PYTORCH]
    claimed.sort(key=lambda c: (c.depth, bool(c.ridge), c.seed))
    pictures = {
        "class-regions": draw_regions([c for c in claimed if c.seed == s.seeds[0]]),
        "every-seed": draw_every_seed(claimed),
        "further-out": draw_further_out(claimed, s.times, s.far),
    }
    captions = {
        "class-regions": f"Exact class regions of the networks of seed {s.seeds[0]}. Tripoints are ringed, the data's "
        "bounding box is dashed.",
        "every-seed": "The boundaries of all networks (of the first five seeds), tripoints ringed.",
        "further-out": "Left: tripoints further from the data. Right: how close to a line the activations lie.",
    }
    return Outcome(
        claims=claims(claimed, s.times), sections=_sections(found, s.times, s.far), pictures=pictures, captions=captions
    )


def claims(found: Sequence[Classifier], times: float) -> tuple[Claim, ...]:
    """Return the claims of Figure 2.

    Parameters
    ----------
    found : sequence of Classifier
        Networks of two depths with and without L2, some of each.
    times : float
        Most shallow networks have tripoints in the data's bounding box; few deep ones have any in this multiple of it.
    """
    shallow, deep = min(c.depth for c in found), max(c.depth for c in found)
    worst = min(c.row["correct, training"] for c in found)
    missed = sum(not c.regions.complete for c in found)
    result = [
        at_least("every network fits: smallest share of training samples classified correctly", worst, FITTED),
        equals("the search covers its whole box: networks with too many regions", missed, 0),
    ]
    for depth, regularized in itertools.product((shallow, deep), (False, True)):
        of_kind = [c for c in found if c.depth == depth and bool(c.ridge) == regularized]
        reach, where = (1.0, "the data's box") if depth == shallow else (times, f"{times:g} times the data's box")
        having = sum(c.within(reach) > 0 for c in of_kind)
        share = having / max(len(of_kind), 1)
        name = f"{of_kind[0].kind}: share of networks with tripoints in {where}"
        shown = f"{share:g} ({having} of {len(of_kind)}; {sum(c.within(reach) for c in of_kind)} tripoints)"
        if depth == shallow:
            result.append(above(name, share, MOST, shown=shown, note=": most have some"))
        else:
            result.append(at_most(name, share, FEW, shown=shown))
    return tuple(result)


def _sections(found: Sequence[Classifier], times: float, far: float) -> tuple[Section, ...]:
    text = (
        "A tripoint is a point where three class regions meet. Regions are exact: the plane is cut into the polygons "
        "on which a network is affine, and these where two outputs tie for the largest. A function f = h o z with a "
        "scalar z has no tripoints (T17). Reach r is r times the data's bounding box about its center. Every seed has "
        "its own data and start. Initial weights are those of torch.nn.Linear, except for the networks marked as a "
        "control, to which no claim refers. Networks with L2 continue from those without."
    )
    rank = (
        "s_1 to s_3 are the largest singular values of the weights in the middle. Biases let one direction carry what "
        "is constant over the data, so two can be large although the activations lie close to a line. The last column "
        "is the smallest s_2 / s_1 of centered activations over the hidden layers, 0 for a line."
    )
    shares = []
    for kind in dict.fromkeys(c.kind for c in found):
        of_kind = [c for c in found if c.kind == kind]
        name = kind if of_kind[0].start == PYTORCH else f"{kind} (control)"
        row: dict[str, object] = {"networks": name, "seeds": len(of_kind)}
        for r in (1.0, times, far):
            counts = [c.within(r) for c in of_kind]
            row[f"share with tripoints, reach {r:g}"] = sum(n > 0 for n in counts) / len(counts)
            row[f"mean number, reach {r:g}"] = float(np.mean(counts))
        if of_kind[0].ridge:
            row["same class as without L2 in the data's box"] = float(np.mean([c.same for c in of_kind]))
        shares.append(row)
    rows = [{"network": c.kind, "seed": c.seed, **c.row} for c in found]
    return (
        Section("Shares of networks with tripoints", text=text, rows=shares),
        Section("Every network", text=rank, rows=rows),
    )


FIGURE = Figure(
    "F2",
    "class-regions",
    "In shallow classifiers three classes meet in points, in deep ones they do not",
    "Jacot2023a, Figure 2 and section 5",
    "class regions of four inverted S shapes: tripoints at depth 2, none at depth 9, L2 makes little difference",
    {
        "quick": Settings(),
        "paper": Settings(100, (2, 9), 100, seeds=tuple(range(20, 40)), steps=(20_000, 10_000), steps_ridge=3000),
    },
    make,
    gigabytes={"quick": 1.0, "paper": 2.0},
)
