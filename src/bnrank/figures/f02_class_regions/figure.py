"""F2 (Jacot2023a, Figure 2): shallow classifiers have points where three classes meet, deep ones have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import torch

from bnrank.figures.f02_class_regions.drawing import draw_every_seed, draw_further_out, draw_regions
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.measures.regions import ClassRegions, tripoints
from bnrank.networks import MLP
from bnrank.reporting import Section
from bnrank.tasks import Task, s_shapes
from bnrank.training import Adam, train

__all__ = ["FIGURE", "Classifier", "agreement", "claims", "look", "make"]

FITTED = 0.99
MOST = 0.5


@dataclass(frozen=True, eq=False)
class Classifier:
    """One trained network and what its class regions look like.

    Attributes
    ----------
    depth, seed : int
        Number of weight layers, and the seed of the start.
    ridge : float
        lambda; 0 without L2.
    accuracy, accuracy_test, cost, norm : float
        Shares of samples that are classified correctly, the cross-entropy of the training set, ||theta||^2.
    regions : ClassRegions
        The exact class regions.
    reach : ndarray
        Of each tripoint: how many times the data's bounding box has to be blown up about its center to contain it.
    nearest : float
        Distance from a tripoint to a sample, the least; infinite without tripoints.
    weights : ndarray
        The three largest singular values of the weight matrix in the middle, W_{floor(L/2) + 1}.
    spread : ndarray
        s_2 / s_1 of the centered activations of each hidden layer on the training set: 0 if they lie on a line.
    """

    depth: int
    ridge: float
    seed: int
    accuracy: float
    accuracy_test: float
    cost: float
    norm: float
    regions: ClassRegions
    reach: np.ndarray
    nearest: float
    weights: np.ndarray
    spread: np.ndarray

    @property
    def kind(self) -> str:
        """What it is one seed of."""
        return f"depth {self.depth}, {'with' if self.ridge else 'no'} L2"

    def within(self, times: float) -> int:
        """Return the number of tripoints in the data's bounding box blown up so many times."""
        return int((self.reach <= times).sum())


def claims(found: Sequence[Classifier], times: float) -> tuple[Claim, ...]:
    """Measure what Figure 2 shows.

    Parameters
    ----------
    found : sequence of Classifier
        Networks of two depths with and without L2, some of each.
    times : float
        Tripoints are counted in the data's bounding box, blown up so many times.
    """
    shallow, deep = min(c.depth for c in found), max(c.depth for c in found)
    least = min(c.accuracy for c in found)
    missed = sum(not c.regions.complete for c in found)
    result = [
        Claim(
            "every network fits: least share of training samples classified correctly",
            least >= FITTED,
            least,
            f">= {FITTED:g}",
        ),
        Claim(
            "all of the plane that is looked at is covered: networks that had too many regions",
            missed == 0,
            missed,
            "0",
        ),
    ]
    for depth, regularized in product((shallow, deep), (False, True)):
        of_kind = [c for c in found if c.depth == depth and bool(c.ridge) == regularized]
        having = sum(c.within(times) > 0 for c in of_kind)
        number = sum(c.within(times) for c in of_kind)
        share = having / max(len(of_kind), 1)
        result.append(
            Claim(
                f"{of_kind[0].kind}: share of networks with tripoints in {times:g} times the data's box",
                bool(share > MOST if depth == shallow else share == 0),
                f"{share:g} ({having} of {len(of_kind)}; {number} tripoints)",
                f"> {MOST:g}: most have some" if depth == shallow else "0: none has any",
            )
        )
    return tuple(result)


def look(
    net: MLP, task: Task, *, ridge: float, seed: int, cost: float, norm: float, far: float, limit: int = 1_000_000
) -> Classifier:
    """Measure one network in the data's bounding box blown up ``far`` times."""
    center, half = _box(task)
    bounds = torch.stack([center - far * half, center + far * half], 1)
    regions = tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], bounds, max_regions=limit)
    distances = torch.cdist(regions.points, task.x.double())
    return Classifier(
        depth=net.depth,
        ridge=ridge,
        seed=seed,
        accuracy=_accuracy(net, task.x, task.y),
        accuracy_test=float("nan") if task.x_test is None else _accuracy(net, task.x_test, task.y_test),
        cost=cost,
        norm=norm,
        regions=regions,
        reach=np.sort(((regions.points - center).abs() / half).amax(1).numpy()),
        nearest=float(distances.min()) if len(regions) else float("inf"),
        weights=torch.linalg.svdvals(net.weights[net.depth // 2].detach().double())[:3].numpy(),
        spread=_spread(net, task.x),
    )


def agreement(first: MLP, second: MLP, task: Task, grid: int = 300) -> float:
    """Return on which share of the data's bounding box two networks name the same class, on a grid of points."""
    center, half = _box(task)
    steps = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid * 2 - 1
    x = (center + half * torch.cartesian_prod(steps, steps)).to(task.x.dtype)
    with torch.no_grad():
        return float((first(x).argmax(1) == second(x).argmax(1)).double().mean())


def _mean_agreement(first: Sequence[MLP], second: Sequence[MLP], task: Task) -> float:
    return float(np.mean([agreement(one, other, task) for one, other in zip(first, second, strict=True)]))


def _box(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the center of the data's bounding box and half its sides."""
    low, high = task.x.double().amin(0), task.x.double().amax(0)
    return (low + high) / 2, (high - low) / 2


def _accuracy(net: MLP, x: torch.Tensor, y: torch.Tensor | None) -> float:
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


def _spread(net: MLP, x: torch.Tensor) -> np.ndarray:
    ratios = []
    with torch.no_grad():
        for layer in net.layers[:-1]:
            x = layer(x).relu()
            values = torch.linalg.svdvals((x - x.mean(0)).double())
            ratios.append(float(values[1] / values[0]) if values[0] > 0 else float("nan"))
    return np.array(ratios)


def make(
    folder: Path,
    progress: bool,
    *,
    samples: int,
    depths: tuple[int, int],
    width: int,
    init: str | float,
    ridge: float,
    seeds: Sequence[int],
    steps: Sequence[int],
    steps_ridge: int,
    times: float,
    far: float,
) -> Outcome:
    """Train each depth without L2 and go on with it, and find where classes meet.

    At depth 9 the origin is a local minimum of the loss with L2, to which networks with a small start are drawn: so L2
    comes in where the data are fitted.

    Parameters
    ----------
    samples : int
        Training samples, and as many test samples.
    depths : tuple of int
        The shallow and the deep one.
    width : int
        Of every hidden layer.
    init : "he" or float
        Standard deviation of all weights at the start; biases start at 0.
    ridge : float
        lambda of the networks with L2.
    seeds : sequence of int
        Of the starts; the data are the same.
    steps : sequence of int
        Of Adam (3e-3, cosine) without L2 at each depth; there is no minimum to converge to, and shallow networks fit
        more slowly.
    steps_ridge : int
        Of L-BFGS with L2, from there.
    times, far : float
        Tripoints are claimed for the data's bounding box blown up ``times``, and looked for as far as ``far``.
    """
    task = s_shapes(samples, n_test=samples)
    found, same = [], {}
    for depth, steps_plain in zip(depths, steps, strict=True):
        net = MLP([task.d_in, *[width] * (depth - 1), task.d_out], init=init)
        networks: dict[float, list[MLP]] = {}
        start: dict[int, MLP] = {}
        for value in (0.0, ridge):
            run = train(
                start.__getitem__ if value else net,
                task,
                ridge=value,
                steps=steps_ridge if value else steps_plain,
                optimizer="kfac-lbfgs" if value else Adam(3e-3, "cosine"),
                members=len(seeds),
                seed=list(seeds),
                out=folder / f"depth-{depth}{'-l2' if value else ''}",
                progress=progress,
            )
            networks[value] = [cast(MLP, run.network(i)) for i in range(len(seeds))]
            start = dict(zip(seeds, networks[value], strict=True))
            costs, norms = run.summary.cost.values.tolist(), run.summary.parameter_norm.values.tolist()
            found += [
                look(one, task, ridge=value, seed=seed, cost=cost, norm=norm, far=far)
                for one, seed, cost, norm in zip(networks[value], seeds, costs, norms, strict=True)
            ]
        same[depth] = {
            "with and without L2": _mean_agreement(networks[0.0], networks[ridge], task),
            "of two seeds without L2": _mean_agreement(networks[0.0][:-1], networks[0.0][1:], task),
        }
    pictures = {
        "class-regions": draw_regions([c for c in found if c.seed == seeds[0]], task, times),
        "every-seed": draw_every_seed(found, task, times),
        "further-out": draw_further_out(found, times, far),
    }
    captions = {
        "class-regions": f"Exact class regions of the networks of seed {seeds[0]}. Tripoints are ringed.",
        "every-seed": "The boundaries of all networks (of the first five seeds), tripoints ringed.",
        "further-out": "Left: tripoints further from the data. Right: how close to a line the activations lie.",
    }
    sections = _sections(found, same, times, far)
    return Outcome("F2", claims(found, times), sections, pictures, captions=captions)


def _sections(
    found: Sequence[Classifier], same: Mapping[int, Mapping[str, float]], times: float, far: float
) -> tuple[Section, ...]:
    text = (
        "A tripoint is a point where three class regions meet. Regions are exact: the plane is cut into the polygons "
        "on which a network is affine, and these where two outputs tie for the largest. A function f = h o z with a "
        "scalar z has no tripoints (T17). Reach r is the data's bounding box, r times as wide and as high about its "
        f"center; claims are about r = {times:g}. Networks with L2 go on from those without, which "
        "have fitted the data."
    )
    rank = (
        "The columns s_1 to s_3 are the largest singular values of the weights in the middle. With biases one "
        "direction can carry what is constant over the data: two can be large although the activations lie close to a "
        "line. The last column is the least s_2 / s_1 of centered activations over the hidden layers, 0 for a line."
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
        "distance to a sample, least": c.nearest if len(c.reach) else "",
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
        "quick": {
            "samples": 400,
            "depths": (2, 9),
            "width": 50,
            "init": 0.06,
            "ridge": 3e-4,
            "seeds": tuple(range(8)),
            "steps": (4000, 2000),
            "steps_ridge": 800,
            "times": 3.0,
            "far": 10.0,
        },
        "paper": {
            "samples": 1000,
            "depths": (2, 9),
            "width": 100,
            "init": 0.04,
            "ridge": 3e-4,
            "seeds": tuple(range(20)),
            "steps": (20_000, 10_000),
            "steps_ridge": 3000,
            "times": 3.0,
            "far": 10.0,
        },
    },
    make,
    gigabytes={"quick": 1.0, "paper": 2.0},
)
