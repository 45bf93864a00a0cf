"""F3 (Jacot2023a, Figure 3): deep autoencoders project noise onto the data, shallow ones do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from torch import Tensor

from bnrank.figures.f03_autoencoders import computation
from bnrank.figures.f03_autoencoders.computation import RIDGE, RTOL, Curves, Images, Network, OfCurve, OfImages
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, reference
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import held_out
from bnrank.networks.functional import Functional
from bnrank.reporting import Section

QUARTER = 0.25  # largest share of the distance to the curve that a projecting network leaves
MOST, FEW = 0.8, 0.2  # shares of runs: one in five may end in another local minimum
NINE_TENTHS = 0.9  # share of the points at which a Jacobian has its rank
SMALL = 0.1


@dataclass(frozen=True)
class Settings:
    """Settings of F3: curves and images, deep and shallow networks on both, and the curves to draw."""

    curves: Curves
    curve_deep: Network
    curve_shallow: Network
    images: Images
    images_deep: Network
    images_shallow: Network
    shown: tuple[int, ...] = (0, 1, 2)


QUICK = Settings(
    Curves(),
    Network(20, 30, 0.19, 900),
    Network(2, 50, "he", 900),
    Images(),
    Network(6, 100, 0.05, 1000),
    Network(2, 400, "he", 1000),
)
PAPER = Settings(
    Curves(tuple(range(10)), nets=3, samples=1000),
    Network(20, 50, 0.15, 5000),
    Network(2, 100, "he", 5000),
    Images(None, 2000, whole=True, lr=1e-3, batch_size=500, jacobians=50),
    Network(6, 400, 0.025, 40_000),
    Network(2, 1600, "he", 40_000),
)


def curve_claims(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> tuple[Claim, ...]:
    """Return the claims on autoencoders of curves; every run counts."""
    deep_rows, rows = (pd.DataFrame([run.row for run in runs]) for runs in (deep, shallow))
    ratio, defect = "after / before", "||J^2 - J|| / ||J||"
    fits = pd.concat([deep_rows, rows])["unexplained"].max(skipna=False)
    ones, twos = deep_rows["rank 1"] >= NINE_TENTHS, rows["rank 2"] >= NINE_TENTHS
    where = f"at {100 * NINE_TENTHS:g} percent of the points or more, s_2 against {RTOL:g} s_1"
    quarter = "leave a quarter or less of the distance to the curve"
    projection = f"curves, deep: share of runs of rank 1 where J is a projection, median of {defect} below {SMALL:g}"
    return (
        below("curves: largest mean of ||f(x) - x||^2 over that of ||x||^2 on the data", fits, 0.01),
        at_least(f"curves, deep: share of runs that {quarter}", (deep_rows[ratio] <= QUARTER).mean(), MOST),
        at_most(f"curves, shallow: share of runs that {quarter}", (rows[ratio] <= QUARTER).mean(), FEW),
        above(
            "curves, shallow: distance to the curve after / before, median over runs: the larger part is kept",
            rows[ratio].median(skipna=False),
            0.5,
        ),
        at_least(f"curves, deep: share of runs with a Jacobian of rank 1 {where}", ones.mean(), MOST),
        at_least(f"curves, shallow: share of runs with a Jacobian of rank 2 {where}", twos.mean(), MOST),
        at_least(projection, (ones & (deep_rows[defect] < SMALL)).mean(), MOST),
    )


def image_claims(deep: Sequence[OfImages], shallow: Sequence[OfImages]) -> tuple[Claim, ...]:
    """Return the claims on autoencoders of images; the least favorable network decides."""
    largest = {name: float(np.max([run.row[name] for run in deep])) for name in deep[0].row if name != "status"}
    smallest = {name: float(np.min([run.row[name] for run in shallow])) for name in shallow[0].row if name != "status"}
    fits = float(np.max([run.row["unexplained, trained on"] for run in (*deep, *shallow)]))
    distance, unseen = "median distance to the image without noise, after / before", "after / before, unseen"
    over = "largest of deep over smallest of shallow"
    passed, rank = (largest[name] / smallest[name] for name in ("noise kept", "effective rank"))
    return (
        below("images: largest mean of ||f(x) - x||^2 over the variance, training images: no collapse", fits, 0.25),
        below(f"images, deep: {distance}, training images, largest", largest["trained on"], 0.75),
        below(f"images, deep: {distance}, unseen images, largest", largest[unseen], 0.75),
        above(f"images, shallow: {distance}, unseen images, smallest", smallest[unseen], 0.75),
        below(f"images: share of the length of the noise in the outputs, {over}", passed, 0.75),
        below(f"images: effective rank of the Jacobian, {over}", rank, 0.5),
    )


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train deep and shallow autoencoders on curves and on images, and apply them to noisy samples."""
    s = settings
    deep, shallow = (computation.curve_runs(folder, progress, s.curves, net) for net in (s.curve_deep, s.curve_shallow))
    task, mean = computation.image_task(s.images)
    deep_images, shallow_images = (
        computation.image_runs(folder, progress, task, s.images, net) for net in (s.images_deep, s.images_shallow)
    )
    first = [[next(run for run in runs if run.row["curve"] == curve) for curve in s.shown] for runs in (deep, shallow)]
    pictures = {
        "arrows": draw_arrows(*first),
        "digits": draw_digits(deep_images[0], shallow_images[0], held_out(task)[0], mean),
        "noise-and-rank": draw_runs(deep, shallow, QUARTER),
        "images": draw_images(deep_images, shallow_images),
    }
    claims = (*curve_claims(deep, shallow), *image_claims(deep_images, shallow_images))
    sections = (
        Section("Curves", text=CURVES, rows=[run.row for run in (*deep, *shallow)]),
        Section("Images", text=IMAGES, rows=[run.row for run in (*deep_images, *shallow_images)]),
    )
    data = {"data": task.name}
    return Outcome(claims=claims, sections=sections, pictures=pictures, settings=data, captions=CAPTIONS)


CAPTIONS = {
    "arrows": "Random points of the plane and where they are taken to, by the first networks of the first "
    "curves: above deep ones, below shallow ones.",
    "digits": "Unseen images with noise, and the outputs of deep and shallow networks.",
    "noise-and-rank": "Every run: remaining noise off the curve, and where the Jacobian has rank 1.",
    "images": "How far from the image without noise the outputs are, and spectra of Jacobians.",
}

CURVES = (
    "x = g(z) for a Gaussian z and a random ReLU network g into the plane, y = x, mean ||x||^2 = 1. Distances are "
    "those of unseen points with noise to the exact piecewise linear curve, over the range of all z. The loss is "
    f"mean ||f(x) - x||^2 + {RIDGE:g} ||theta||^2, the ridge not divided by the depth. 'rank 1' and "
    "'rank 2' are the shares "
    f"of unseen points where the Jacobian has that rank, singular values above {RTOL:g} of the largest count."
)
IMAGES = (
    "Pixels in [0, 1] less the mean image. Distances are Euclidean, to the image without noise; 'nearest' is the "
    "distance to the nearest training image. Networks of both depths take the same number of steps, far from "
    "a minimum, and the results depend on it. The effective rank is (sum s)^2 / sum s^2 of the singular values of "
    "the Jacobian."
)


BLUE, ORANGE, GREEN = color(0), color(1), color(2)
ARROWS = 70


def draw_arrows(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> Picture:
    """Draw for each curve where random points of the plane are taken to, by deep networks above, by shallow below."""
    picture, axes = panels(2, len(deep), (4.3 * len(deep), 9.2))
    for row, runs in zip(axes, (deep, shallow), strict=True):
        for ax, run in zip(row, runs, strict=True):
            _arrows(ax, run)
            left = f"{100 * run.row['after / before']:.0f} %"
            label(ax, "$x_1$", "$x_2$", f"depth {run.row['depth']}, curve {run.row['curve']}: noise left {left}")
    legend_below(picture, axes[0, 0])
    return picture


def _arrows(ax: Axes, run: OfCurve) -> None:
    x = run.task.x.double()
    low, high = torch.quantile(x, 0.03, 0), torch.quantile(x, 0.97, 0)
    center, half = (low + high) / 2, float((high - low).max()) / 2 + 0.35
    draws = torch.from_numpy(np.random.default_rng(0).random((ARROWS, 2)))
    start = center + half * (2 * draws - 1)
    with torch.no_grad():
        stop = Functional(run.network)(start).cpu()
    ax.plot(*run.corners.T.numpy(), color=BLUE, linewidth=1.0, alpha=0.5, zorder=1)
    ax.plot(*x.T.numpy(), ".", color=BLUE, markersize=5, zorder=2, label="training data, on the curve")
    step = (stop - start).numpy().T
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.0028, "headwidth": 5}
    ax.quiver(*start.numpy().T, *step, zorder=3, color="0.55", **style)
    ax.plot(*start.numpy().T, "o", color=GREEN, markersize=4, zorder=4, label="random inputs")
    ax.plot(*stop.numpy().T, "o", color=ORANGE, markersize=4, zorder=5, label="their outputs")
    (left, bottom), (right, top) = (center - 1.15 * half).tolist(), (center + 1.15 * half).tolist()
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")


def draw_runs(deep: Sequence[OfCurve], shallow: Sequence[OfCurve], threshold: float) -> Picture:
    """Draw for every run on a curve the share of the noise that is left, and of samples with a Jacobian of rank 1."""
    picture, ((left, right),) = panels(1, 2, (11, 4.4))
    for runs, hue, mark, shift in ((deep, BLUE, "o", -0.12), (shallow, ORANGE, "s", 0.12)):
        curves = np.array([run.row["curve"] for run in runs]) + shift
        style: dict[str, Any] = {"color": hue, "markersize": 7, "label": f"depth {runs[0].row['depth']}"}
        left.plot(curves, [run.row["after / before"] for run in runs], mark, **style)
        right.plot(curves, [100 * run.row["rank 1"] for run in runs], mark, **style)
    reference(left, threshold, f"{threshold:g}")
    title = "Noise off the curve that is left"
    label(left, "curve (seed)", "median distance to the curve, after / before", title, log="y")
    label(right, "curve (seed)", "unseen points (%)", "Where the Jacobian has rank 1", ylim=(-4, 104))
    for ax in (left, right):
        ax.set_xticks(sorted({run.row["curve"] for run in deep}))
    legend_below(picture, left)
    return picture


def draw_digits(deep: OfImages, shallow: OfImages, clean: Tensor, mean: Tensor, count: int = 10) -> Picture:
    """Draw unseen images, the same with noise, and what comes out of a deep and of a shallow network."""
    rows = {
        "without noise": clean,
        "with noise": deep.noise.noisy,
        f"output, depth {deep.row['depth']}": deep.noise.outputs,
        f"output, depth {shallow.row['depth']}": shallow.noise.outputs,
    }
    count = min(count, len(clean))
    side = round(len(mean) ** 0.5)
    picture, axes = panels(len(rows), count, (1.1 * count + 1.5, 4.8))
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, image in zip(row, (images[:count].double() + mean.double()).numpy(), strict=True):
            ax.imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=11)
    picture.suptitle("Images that were not trained on", fontsize=12)
    return picture


def draw_images(deep: Sequence[OfImages], shallow: Sequence[OfImages]) -> Picture:
    """Draw the distance to the image without noise after against before, and the spectra of the Jacobians."""
    picture, ((left, right),) = panels(1, 2, (11, 4.6))
    for runs, hue, mark in ((deep, BLUE, "o"), (shallow, ORANGE, "s")):
        for i, run in enumerate(runs):
            depth = f"depth {run.row['depth']}"
            name = depth if i == 0 else None
            left.plot(*np.array(run.distances).T, mark + "-", color=hue, markersize=5, linewidth=1.4, label=name)
            values = run.spectra.median(0).values.numpy()
            ranks = " and ".join(f"{one.row['effective rank']:.0f}" for one in runs)
            name = f"{depth}, effective rank {ranks}" if i == 0 else None
            right.plot(np.arange(1, len(values) + 1), values, color=hue, linewidth=1.6, label=name)
    end = max(before for run in (*deep, *shallow) for before, _ in run.distances)
    left.plot([0, end], [0, end], color=GRAY, linestyle="--", linewidth=1.2, label="unchanged")
    what, title = "median distance to the image without noise", "Spectra of the Jacobian on unseen images"
    label(left, f"{what}, before", f"{what}, after", "Unseen images, noise of six levels", legend="best")
    left.yaxis.label.set_size(9)
    up = r"singular value of $Jf(x)$, median over images"
    label(right, "index", up, title, log="x", legend="best", bottom=0)
    return picture


FIGURE = Figure(
    "F3",
    "autoencoders",
    "Deep autoencoders project noise onto the data, shallow ones do not",
    "Jacot2023a, Figure 3",
    "noisy digits come out clean of a deep autoencoder; a deep one takes random points of the plane onto the curve, a "
    "shallow one leaves them about where they are",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": 1.2, "paper": 6.0},
    data={"paper": ("mnist",)},
)
