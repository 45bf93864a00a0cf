"""The pictures of F3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from torch import Tensor

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.f03_autoencoders.computation import OfCurve, OfImages
from bnrank.networks.functional import Functional

__all__ = ["draw_arrows", "draw_digits", "draw_images", "draw_runs"]

BLUE, ORANGE, GREEN = OKABE_ITO[:3]
ARROWS = 70


def draw_arrows(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> Picture:
    """Draw for each curve where random points of the plane are taken to, by deep networks above, by shallow below."""
    picture = Picture(figsize=(4.3 * len(deep), 9.2), layout="constrained")
    axes = picture.subplots(2, len(deep), squeeze=False)
    for row, runs in zip(axes, (deep, shallow), strict=True):
        for ax, run in zip(row, runs, strict=True):
            _arrows(ax, run)
            dress(ax, "$x_1$", "$x_2$", f"depth {run.depth}, curve {run.curve}: noise left {100 * run.ratio:.0f} %")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return picture


def _arrows(ax: Axes, run: OfCurve) -> None:
    assert run.task is not None and run.corners is not None and run.network is not None  # noqa: PT018
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
    style: dict[str, Any] = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 1,
        "width": 0.0028,
        "headwidth": 5,
        "color": "0.55",
    }
    ax.quiver(*start.numpy().T, *step, zorder=3, **style)
    ax.plot(*start.numpy().T, "o", color=GREEN, markersize=4, zorder=4, label="random inputs")
    ax.plot(*stop.numpy().T, "o", color=ORANGE, markersize=4, zorder=5, label="their outputs")
    ax.set_aspect("equal")
    edge = 1.15 * half
    ax.set_xlim(float(center[0]) - edge, float(center[0]) + edge)
    ax.set_ylim(float(center[1]) - edge, float(center[1]) + edge)


def draw_runs(deep: Sequence[OfCurve], shallow: Sequence[OfCurve], threshold: float) -> Picture:
    """Draw for every run on a curve the share of the noise that is left, and of samples with a Jacobian of rank 1."""
    picture = Picture(figsize=(11, 4.4), layout="constrained")
    left, right = picture.subplots(1, 2)
    for runs, color, mark, shift in ((deep, BLUE, "o", -0.12), (shallow, ORANGE, "s", 0.12)):
        curves = np.array([run.curve for run in runs]) + shift
        label = f"depth {runs[0].depth}"
        left.plot(curves, [run.ratio for run in runs], mark, color=color, markersize=7, label=label)
        right.plot(curves, [100 * run.ones for run in runs], mark, color=color, markersize=7, label=label)
    left.axhline(threshold, color="0.35", linestyle="--", linewidth=1.2, label=f"{threshold:g}")
    dress(left, "curve (seed)", "median distance to the curve, after / before", "Noise off the curve that is left")
    left.set_yscale("log")
    dress(right, "curve (seed)", "unseen points (%)", "Where the Jacobian has rank 1")
    right.set_ylim(-4, 104)
    for ax in (left, right):
        ax.set_xticks(sorted({run.curve for run in deep}))
    picture.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return picture


def draw_digits(deep: OfImages, shallow: OfImages, clean: Tensor, mean: Tensor, count: int = 10) -> Picture:
    """Draw unseen images, the same with noise, and what comes out of a deep and of a shallow network."""
    assert deep.noise is not None and shallow.noise is not None  # noqa: PT018
    rows = {
        "without noise": clean,
        "with noise": deep.noise.noisy,
        f"output, depth {deep.depth}": deep.noise.outputs,
        f"output, depth {shallow.depth}": shallow.noise.outputs,
    }
    count = min(count, len(clean))
    side = round(len(mean) ** 0.5)
    picture = Picture(figsize=(1.1 * count + 1.5, 4.8), layout="constrained")
    axes = picture.subplots(len(rows), count, squeeze=False)
    for row, (name, images) in zip(axes, rows.items(), strict=True):
        for ax, image in zip(row, (images[:count].double() + mean.double()).numpy(), strict=True):
            ax.imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=11)
    picture.suptitle("Images that were not trained on", fontsize=12)
    return picture


def draw_images(deep: Sequence[OfImages], shallow: Sequence[OfImages]) -> Picture:
    """Draw the distance to the image without noise after against before, and the spectra of the Jacobians."""
    picture = Picture(figsize=(11, 4.6), layout="constrained")
    left, right = picture.subplots(1, 2)
    for runs, color, mark in ((deep, BLUE, "o"), (shallow, ORANGE, "s")):
        for i, run in enumerate(runs):
            label = f"depth {run.depth}" if i == 0 else None
            left.plot(*np.array(run.distances).T, mark + "-", color=color, markersize=5, linewidth=1.4, label=label)
            assert run.spectra is not None
            values = run.spectra.median(0).values.numpy()
            ranks = " and ".join(f"{one.rank:.0f}" for one in runs)
            name = f"depth {run.depth}, effective rank {ranks}" if i == 0 else None
            right.plot(np.arange(1, len(values) + 1), values, color=color, linewidth=1.6, label=name)
    most = max(before for run in (*deep, *shallow) for before, _ in run.distances)
    left.plot([0, most], [0, most], color="0.35", linestyle="--", linewidth=1.2, label="as before")
    what = "median distance to the image without noise"
    dress(left, f"{what}, before", f"{what}, after", "Unseen images, noise of six levels")
    left.yaxis.label.set_size(9)
    left.legend(frameon=False)
    dress(right, "index", r"singular value of $Jf(x)$, median over images", "Spectra of the Jacobian on unseen images")
    right.set_xscale("log")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    return picture
