"""F2 (Jacot2023a, Figure 2): shallow classifiers have points where three classes meet, deep ones have none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from bnrank.figures.f02_class_regions.computation import Classifier, look, mean_agreement
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


@dataclass(frozen=True)
class Settings:
    """Settings of F2.

    Attributes
    ----------
    samples : int
        Training samples, and as many test samples.
    depths : tuple of int
        The shallow and the deep one.
    width : int
        Of every hidden layer.
    init : "he" or float
        Standard deviation of all initial weights; biases start at 0.
    ridge : float
        lambda of the networks with L2.
    seeds : tuple of int
        Of the initial weights; the data are the same.
    steps : tuple of int
        Of Adam (3e-3, cosine) without L2 at each depth; there is no minimum to converge to, and shallow networks fit
        more slowly.
    steps_ridge : int
        Of L-BFGS with L2, from there.
    times, far : float
        Multiples of the data's bounding box: claims are about ``times``, the search extends to ``far``.
    """

    samples: int = 400
    depths: tuple[int, int] = (2, 9)
    width: int = 50
    init: str | float = 0.06
    ridge: float = 3e-4
    seeds: tuple[int, ...] = tuple(range(8))
    steps: tuple[int, int] = (4000, 2000)
    steps_ridge: int = 800
    times: float = 3.0
    far: float = 10.0


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
    worst = min(c.accuracy for c in found)
    missed = sum(not c.regions.complete for c in found)
    result = [
        at_least("every network fits: smallest share of training samples classified correctly", worst, FITTED),
        equals("the search covers its whole box: networks with too many regions", missed, 0),
    ]
    for depth, regularized in product((shallow, deep), (False, True)):
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


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train each depth without L2, continue with L2, and find the points where classes meet.

    At depth 9 the origin is a local minimum of the loss with L2 that attracts networks with small initial weights. So
    L2 starts once the data are fitted.
    """
    s, task = settings, s_shapes(settings.samples, n_test=settings.samples)
    found, same = [], {}
    for depth, steps in zip(s.depths, s.steps, strict=True):
        net: Any = mlp(task, depth, s.width, init=s.init)
        networks: dict[float, list[MLP]] = {}
        for ridge in (0.0, s.ridge):
            run = train(
                net,
                task,
                ridge=ridge,
                steps=s.steps_ridge if ridge else steps,
                optimizer="kfac-lbfgs" if ridge else Adam(3e-3, "cosine"),
                members=len(s.seeds),
                seed=list(s.seeds),
                out=folder / f"depth-{depth}{'-l2' if ridge else ''}",
                progress=progress,
            )
            networks[ridge] = [cast(MLP, run.network(i)) for i in range(len(s.seeds))]
            net = dict(zip(s.seeds, networks[ridge], strict=True)).__getitem__
            last = zip(run.summary.cost.values.tolist(), run.summary.parameter_norm.values.tolist(), strict=True)
            found += [
                look(one, task, ridge=ridge, seed=seed, cost=cost, norm=norm, far=s.far)
                for one, seed, (cost, norm) in zip(networks[ridge], s.seeds, last, strict=True)
            ]
        same[depth] = {
            "with and without L2": mean_agreement(networks[0.0], networks[s.ridge], task),
            "of two seeds without L2": mean_agreement(networks[0.0][:-1], networks[0.0][1:], task),
        }
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
    kinds = dict.fromkeys(c.kind for c in found)
    shares = []
    for kind in kinds:
        of_kind = [c for c in found if c.kind == kind]
        row: dict[str, object] = {"networks": kind, "seeds": len(of_kind)}
        for r in (1.0, times, far):
            counts = [c.within(r) for c in of_kind]
            row[f"share with tripoints, reach {r:g}"] = sum(n > 0 for n in counts) / len(counts)
            row[f"mean number, reach {r:g}"] = float(np.mean(counts))
        row |= {f"same class in the data's box, {pair}": share for pair, share in same[of_kind[0].depth].items()}
        shares.append(row)
    return (
        Section("Shares of networks with tripoints", text=text, rows=shares),
        Section("Every network", text=rank, rows=[_row(c, times, far) for c in found]),
    )


def _row(c: Classifier, times: float, far: float) -> dict[str, object]:
    return {
        "network": c.kind,
        "seed": c.seed,
        "correct, training": c.accuracy,
        "correct, test": c.accuracy_test,
        "cross-entropy": c.cost,
        "||theta||^2": c.norm,
        **{f"tripoints, reach {r:g}": c.within(r) for r in (1.0, times, far)},
        "reach of the first": float(c.reach[0]) if len(c.reach) else "",
        "smallest distance to a sample": c.nearest if len(c.reach) else "",
        "regions": len(c.regions.cells),
        **{f"s_{i + 1}": float(value) for i, value in enumerate(c.weights)},
        "closest to a line": float(np.min(c.spread)),
    }


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
