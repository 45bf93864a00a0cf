"""F2 (Jacot2023a, Figure 2): shallow classifiers have points where three classes meet, deep ones have none."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bnrank.figures.harness.claims import Claim, above, at_least, equals
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, ticks
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import mlp
from bnrank.measures.regions import ClassRegions, tripoints
from bnrank.networks import MLP
from bnrank.reporting import Section
from bnrank.tasks import Task, s_shapes
from bnrank.training import Adam, train

FITTED = 0.99
MOST = 0.5
CLASSES = tuple(color(i) for i in (0, 5, 2, 3, 4, 1))
KINDS = ((color(1), "--"), (color(1), "-"), (color(0), "--"), (color(0), "-"))
RING: dict[str, Any] = {"marker": "o", "mfc": "white", "mec": "black", "ls": ""}


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


@dataclass(frozen=True, eq=False)
class Classifier:
    """One trained network and its class regions.

    Attributes
    ----------
    depth, seed : int
        Number of weight layers, and the seed of the start.
    ridge : float
        lambda; 0 without L2.
    regions : ClassRegions
        The exact class regions.
    reach : ndarray
        Of each tripoint: the smallest multiple of the data's bounding box about its center that contains it.
    spread : ndarray
        s_2 / s_1 of the centered activations of each hidden layer on the training set: 0 if they lie on a line.
    row : dict
        The measurements by column of the table: shares of correctly classified samples, the cross-entropy of the
        training set, ||theta||^2, the smallest distance from a tripoint to a sample, the three largest singular values
        of the weight matrix in the middle, W_{floor(L/2) + 1}, and more.
    """

    depth: int
    ridge: float
    seed: int
    regions: ClassRegions
    reach: np.ndarray
    spread: np.ndarray
    row: dict[str, Any]

    @property
    def kind(self) -> str:
        """Depth and kind of training."""
        return f"depth {self.depth}, {'with' if self.ridge else 'no'} L2"

    def within(self, times: float) -> int:
        """Return the number of tripoints in ``times`` the data's bounding box."""
        return int((self.reach <= times).sum())


def look(net: MLP, task: Task, last: Any, ridge: float, settings: Settings) -> Classifier:
    """Return the measurements of one network in ``far`` times the data's bounding box; ``last`` is its summary."""
    times, far = settings.times, settings.far
    center, half = _box(task)
    bounds = torch.stack([center - far * half, center + far * half], 1)
    regions = tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], bounds, max_regions=1_000_000)
    reach = np.sort(((regions.points - center).abs() / half).amax(1).numpy())
    spread = _spread(net, task.x)
    weights = torch.linalg.svdvals(net.weights[net.depth // 2].detach().double())
    row = {
        "correct, training": _accuracy(net, task.x, task.y),
        "correct, test": float("nan") if task.x_test is None else _accuracy(net, task.x_test, task.y_test),
        "cross-entropy": float(last.cost),
        "||theta||^2": float(last.parameter_norm),
        **{f"tripoints, reach {r:g}": int((reach <= r).sum()) for r in (1.0, times, far)},
        "reach of the first": float(reach[0]) if len(reach) else "",
        "smallest distance to a sample": float(torch.cdist(regions.points, task.x.double()).min())
        if len(reach)
        else "",
        "regions": len(regions.cells),
        **{f"s_{i}": float(value) for i, value in enumerate(weights[:3], 1)},
        "closest to a line": float(np.min(spread)),
    }
    return Classifier(net.depth, ridge, int(last.seed), regions, reach, spread, row)


def agreement(first: MLP, second: MLP, task: Task, grid: int = 300) -> float:
    """Return the share of the data's bounding box on which two networks predict the same class, on a grid of points."""
    center, half = _box(task)
    steps = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid * 2 - 1
    x = (center + half * torch.cartesian_prod(steps, steps)).to(task.x.dtype)
    with torch.no_grad():
        return float((first(x).argmax(1) == second(x).argmax(1)).double().mean())


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


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train each depth without L2, continue with L2, and find the points where classes meet.

    At depth 9 the origin is a local minimum of the loss with L2 that attracts networks with small initial weights. So
    L2 starts once the data are fitted.
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


def draw_regions(found: Sequence[Classifier], task: Task, times: float) -> Picture:
    """Draw the class regions of one network of each kind, with the data."""
    rows = max(1, len(found) // 2)
    picture, axes = panels(rows, 2, (10.5, 4.1 * rows + 0.5), sharex=True, sharey=True)
    for letter, ax, c in zip("ABCDEFGH", axes.ravel(), found, strict=False):
        _regions(ax, c, times, task)
        x, y = task.x.numpy().T
        colors = [CLASSES[k % len(CLASSES)] for k in task.y.tolist()]
        ax.scatter(x, y, s=7, c=colors, edgecolors="black", linewidths=0.25, zorder=3)
        ax.plot(*c.regions.points.numpy().T, **RING, ms=9, mew=1.6, zorder=4)
        number = c.within(times)
        count = f"{number} tripoint{'' if number == 1 else 's'}" if number else "no tripoint"
        across, up = "$x_1$" if ax in axes[-1] else "", "$x_2$" if ax in axes[:, 0] else ""
        label(ax, across, up, f"{letter}: {c.kind}; {count}")
        ax.grid(False)
    _legend(picture, task, data=True)
    return picture


def draw_every_seed(found: Sequence[Classifier], task: Task, times: float, max_seeds: int = 5) -> Picture:
    """Draw regions and tripoints of every network, a row per kind."""
    kinds = list(dict.fromkeys(c.kind for c in found))
    seeds = list(dict.fromkeys(c.seed for c in found))[:max_seeds]
    size = (2.35 * len(seeds) + 0.5, 2.0 * len(kinds) + 0.5)
    picture, axes = panels(len(kinds), len(seeds), size, sharex=True, sharey=True)
    for row, kind in zip(axes, kinds, strict=True):
        for ax, seed in zip(row, seeds, strict=True):
            (c,) = (c for c in found if c.kind == kind and c.seed == seed)
            _regions(ax, c, times, task)
            ax.plot(*c.regions.points.numpy().T, **RING, ms=6, mew=1.2, zorder=4)
            ax.set(xticks=[], yticks=[])
        row[0].set_ylabel(kind.replace(", ", "\n"), fontsize=10)
    for ax, seed in zip(axes[0], seeds, strict=True):
        ax.set_title(f"seed {seed}", fontsize=10)
    _legend(picture, task, data=False)
    return picture


def draw_further_out(found: Sequence[Classifier], times: float, far: float) -> Picture:
    """Draw how many tripoints there are within a reach, and how close to a line the activations of a layer are."""
    picture, ((left, right),) = panels(1, 2, (11.5, 4.6))
    kinds = list(dict.fromkeys(c.kind for c in found))
    reaches = np.geomspace(0.5, far, 400)
    for (hue, dash), kind in zip(KINDS, kinds, strict=False):
        of_kind = [c for c in found if c.kind == kind]
        counts = np.array([[c.within(r) for r in reaches] for c in of_kind])
        left.plot(reaches, counts.mean(0), color=hue, linestyle=dash, linewidth=2, label=kind)
        spread = np.array([c.spread for c in of_kind])
        layers = np.arange(1, spread.shape[1] + 1)
        marker, face = "o" if len(layers) == 1 else "", {} if dash == "-" else {"mfc": "white"}
        for i, values in enumerate(spread):
            name = kind if i == 0 else None
            right.plot(layers, values, color=hue, linestyle=dash, linewidth=1.4, marker=marker, label=name, **face)
    left.axvline(times, color=GRAY, linestyle=":", linewidth=1.3)
    left.annotate(
        "claims", (times, 1), (4, -4), xycoords=("data", "axes fraction"), textcoords="offset points", va="top"
    )
    up = "tripoints within reach, per network"
    label(left, "reach (multiple of the data's box)", up, "Mean over the seeds", log="x", bottom=-0.1)
    ticks(left, [t for t in (0.5, 1, 2, 3, 5, 10, 20) if t <= far])
    title = "Activations of each network: 0 on a line"
    label(right, "hidden layer", "$s_2/s_1$ of centered activations", title, bottom=0)
    right.xaxis.get_major_locator().set_params(integer=True)
    legend_below(picture, left, 4)
    return picture


def _regions(ax: Axes, c: Classifier, times: float, task: Task) -> None:
    """Fill the cells and draw the boundaries between classes."""
    center, half = (part.numpy() for part in _box(task))
    low, high = center - times * half, center + times * half
    cells, colors = [], []
    for cell, k in zip(c.regions.cells, c.regions.cell_classes.tolist(), strict=True):
        if (cell.amin(0).numpy() <= high).all() and (cell.amax(0).numpy() >= low).all():
            cells.append(cell.numpy())
            colors.append(_pale(k))
    ax.add_collection(PolyCollection(cells, facecolors=colors, edgecolors=colors, linewidths=0.3))
    ax.add_collection(LineCollection(list(c.regions.boundaries.numpy()), colors="black", linewidths=1.1))
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")


def _pale(k: int) -> tuple[float, float, float]:
    """Return the color of the region of a class, gray for -1."""
    red, green, blue = (0.55 + 0.45 * value for value in to_rgb(CLASSES[k % len(CLASSES)]))
    return (red, green, blue) if k >= 0 else (0.92, 0.92, 0.92)


def _legend(picture: Picture, task: Task, data: bool) -> None:
    classes = len(set(task.y.tolist()))
    fills = [Patch(facecolor=_pale(k), label=f"class {k + 1}") for k in range(classes)]
    lines = [Line2D([], [], color="black", linewidth=1.1, label="boundary")]
    lines.append(Line2D([], [], **RING, ms=8, mew=1.5, label="tripoint"))
    if data:
        lines.append(Line2D([], [], marker="o", ls="", ms=3.5, mfc="0.6", mec="black", mew=0.4, label="sample"))
    picture.legend(handles=[*fills, *lines], loc="outside lower center", ncols=7, frameon=False)


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
