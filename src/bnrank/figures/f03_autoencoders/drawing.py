"""The pictures of F3."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from torch import Tensor

from bnrank.figures.f03_autoencoders.computation import OfCurve, OfImages
from bnrank.figures.f03_autoencoders.few_images import OfFew
from bnrank.figures.harness.drawing import GRAY, color, label, legend_below, panels, reference
from bnrank.networks.functional import Functional

BLUE, ORANGE, GREEN = color(0), color(1), color(2)
ARROWS = 70
FLOOR, SHOWN = 1e-4, 50  # of spectra on training images: smallest value and number of values


def draw_arrows(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> Picture:
    """Draw, for each curve, the displacement of random points of the plane: deep networks above, shallow ones below."""
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
    """Draw, for every run on a curve, the fractions of remaining noise and of samples with a Jacobian of rank 1."""
    picture, ((left, right),) = panels(1, 2, (11, 4.4))
    for runs, hue, mark, shift in ((deep, BLUE, "o", -0.12), (shallow, ORANGE, "s", 0.12)):
        curves = np.array([run.row["curve"] for run in runs]) + shift
        style: dict[str, Any] = {"color": hue, "markersize": 7, "label": f"depth {runs[0].row['depth']}"}
        left.plot(curves, [run.row["after / before"] for run in runs], mark, **style)
        right.plot(curves, [100 * run.row["rank 1"] for run in runs], mark, **style)
    reference(left, threshold, f"{threshold:g}")
    places = sorted({run.row["curve"] for run in deep})
    title = "Noise off the curve that is left"
    label(left, "curve (seed)", "median distance to the curve, after / before", title, log="y", xticks=places)
    label(right, "curve (seed)", "unseen points (%)", "Where the Jacobian has rank 1", ylim=(-4, 104), xticks=places)
    legend_below(picture, left)
    return picture


def draw_digits(
    deep: OfImages | OfFew, shallow: OfImages | OfFew, clean: Tensor, mean: Tensor, title: str, count: int = 10
) -> Picture:
    """Draw images, the same with noise, and the outputs of a deep and of a shallow network."""
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
    picture.suptitle(title, fontsize=12)
    return picture


def draw_few(deep: Sequence[OfFew], shallow: Sequence[OfFew], threshold: float) -> Picture:
    """Draw, for every network of few images, the remaining distance, and the spectra of the Jacobians."""
    picture, ((left, right),) = panels(1, 2, (11, 4.6))
    seeds = [run.row["seed"] for run in deep]
    left.plot(
        seeds,
        [run.row["best projection"] for run in deep],
        "^",
        color=GREEN,
        markersize=7,
        label="best linear projection",
    )
    for runs, hue, mark in ((deep, BLUE, "o"), (shallow, ORANGE, "s")):
        style: dict[str, Any] = {"color": hue, "label": f"depth {runs[0].row['depth']}"}
        left.plot(seeds, [run.row["after / before, trained on"] for run in runs], mark, markersize=7, **style)
        for run in runs:
            values = run.spectra.median(0).values.clamp_min(FLOOR).numpy()
            right.plot(np.arange(1, len(values) + 1), values, color=hue, linewidth=1.3)
    reference(left, threshold, f"{threshold:g}")
    title = "Training images with noise"
    label(left, "seed", "median distance to the image, after / before", title, xticks=seeds, bottom=0)
    title = "Spectra of the Jacobian on training images"
    up = r"singular value of $Jf(x)$, median over images"
    label(right, "index", up, title, log="y", xlim=(0, SHOWN), ylim=(FLOOR, None))
    legend_below(picture, left)
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
    what = "median distance to the image without noise"
    title = "Spectra of the Jacobian on unseen images"
    label(left, f"{what}, before", f"{what}, after", "Unseen images, noise of six levels", legend="best")
    left.yaxis.label.set_size(9)
    up = r"singular value of $Jf(x)$, median over images"
    label(right, "index", up, title, log="x", legend="best", bottom=0)
    return picture
