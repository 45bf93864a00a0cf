"""F2 (Jacot2023a, Figure 2): shallow classifiers have points where three classes meet, deep ones have none."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bnrank.figures.f02_class_regions.computation import Classifier, Settings, agreement, look
from bnrank.figures.f02_class_regions.drawing import draw_every_seed, draw_further_out, draw_regions
from bnrank.figures.harness.claims import Claim, above, at_least, equals
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import mlp
from bnrank.networks import MLP
from bnrank.reporting import Section
from bnrank.tasks import s_shapes
from bnrank.training import Adam, train

FITTED = 0.99
MOST = 0.5


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train each depth without L2, continue with L2, and find the points where classes meet.

    At depth 9 the origin is a local minimum of the loss with L2 that attracts networks with small initial weights. L2
    therefore starts once the data are fitted.
    """
    s, task = settings, s_shapes(settings.samples, n_test=settings.samples)
    members: dict[str, Any] = {"members": len(s.seeds), "seed": list(s.seeds), "progress": progress}
    found: list[Classifier] = []
    same = {}
    for depth, first_steps in zip(s.depths, s.steps, strict=True):
        net: Any = mlp(task, depth, s.width, init=s.init)
        networks = []
        stages = ((0.0, first_steps, Adam(3e-3, "cosine")), (s.ridge, s.steps_ridge, "kfac-lbfgs"))
        for ridge, steps, optimizer in stages:
            out = folder / f"depth-{depth}{'-l2' if ridge else ''}"
            run = train(net, task, ridge=ridge, steps=steps, optimizer=optimizer, out=out, **members)
            trained = [cast(MLP, run.network(i)) for i in range(run.members)]
            found += [look(one, task, run.summary.isel(member=i), ridge, s) for i, one in enumerate(trained)]
            net = dict(zip(s.seeds, trained, strict=True)).__getitem__
            networks.append(trained)
        pairs = {
            "with and without L2": zip(*networks, strict=True),
            "of two seeds without L2": itertools.pairwise(networks[0]),
        }
        same[depth] = {name: float(np.mean([agreement(a, b, task) for a, b in each])) for name, each in pairs.items()}
    pictures = {
        "class-regions": draw_regions([c for c in found if c.seed == s.seeds[0]], task, s.times),
        "every-seed": draw_every_seed(found, task, s.times),
        "further-out": draw_further_out(found, s.times, s.far),
    }
    captions = {
        "class-regions": f"Exact class regions of the networks of seed {s.seeds[0]}. Tripoints are ringed.",
        "every-seed": "The boundaries of all networks (of the first five seeds), tripoints ringed.",
        "further-out": "Left: tripoints further from the data. Right: how close to a line the activations lie.",
    }
    sections = _sections(found, same, s.times, s.far)
    return Outcome(claims=claims(found, s.times), sections=sections, pictures=pictures, captions=captions)


def claims(found: Sequence[Classifier], times: float) -> tuple[Claim, ...]:
    """Return the claims of Figure 2.

    Parameters
    ----------
    found : sequence of Classifier
        Networks of two depths with and without L2, some of each.
    times : float
        Tripoints are counted in this multiple of the data's bounding box.
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
        having = sum(c.within(times) > 0 for c in of_kind)
        share = having / max(len(of_kind), 1)
        name = f"{of_kind[0].kind}: share of networks with tripoints in {times:g} times the data's box"
        shown = f"{share:g} ({having} of {len(of_kind)}; {sum(c.within(times) for c in of_kind)} tripoints)"
        if depth == shallow:
            result.append(above(name, share, MOST, shown=shown, note=": most have some"))
        else:
            result.append(equals(name, share, 0, shown=shown, note=": none has any"))
    return tuple(result)


def _sections(
    found: Sequence[Classifier], same: Mapping[int, Mapping[str, float]], times: float, far: float
) -> tuple[Section, ...]:
    text = (
        "A tripoint is a point where three class regions meet. Regions are exact: the plane is cut into the polygons "
        "on which a network is affine, and these where two outputs tie for the largest. A function f = h o z with a "
        "scalar z has no tripoints (T17). Reach r is r times the data's bounding box about its center; claims are for "
        f"r = {times:g}. Networks with L2 continue from those without."
    )
    rank = (
        "s_1 to s_3 are the largest singular values of the weights in the middle. Biases let one direction carry what "
        "is constant over the data, so two can be large although the activations lie close to a line. The last column "
        "is the smallest s_2 / s_1 of centered activations over the hidden layers, 0 for a line."
    )
    shares = []
    for kind in dict.fromkeys(c.kind for c in found):
        of_kind = [c for c in found if c.kind == kind]
        row: dict[str, object] = {"networks": kind, "seeds": len(of_kind)}
        for r in (1.0, times, far):
            counts = [c.within(r) for c in of_kind]
            row[f"share with tripoints, reach {r:g}"] = sum(n > 0 for n in counts) / len(counts)
            row[f"mean number, reach {r:g}"] = float(np.mean(counts))
        row |= {f"same class in the data's box, {pair}": share for pair, share in same[of_kind[0].depth].items()}
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
        "paper": Settings(1000, (2, 9), 100, 0.04, seeds=tuple(range(20)), steps=(20_000, 10_000), steps_ridge=3000),
    },
    make,
    gigabytes={"quick": 1.0, "paper": 2.0},
)
