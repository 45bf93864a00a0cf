"""F3 (Jacot2023a, Figure 3): deep autoencoders project noise onto the data, shallow ones do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bnrank.figures.f03_autoencoders.computation import RTOL, OfCurve, OfImages, curve_runs, image_runs, image_task
from bnrank.figures.f03_autoencoders.drawing import draw_arrows, draw_digits, draw_images, draw_runs
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section

__all__ = ["FIGURE", "curve_claims", "image_claims", "make"]

RIDGE = 1e-4
QUARTER = 0.25  # of the distance to the curve, at most this is left by a network that projects
MOST, FEW = 0.8, 0.2  # shares of runs: one in five may end in another local minimum
NINE_TENTHS = 0.9  # of the points: a Jacobian is looked at on nearly all of them
SMALL = 0.1
FITS = 0.01
FITS_IMAGES = 0.25


def curve_claims(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> tuple[Claim, ...]:
    """Measure what must be seen of autoencoders of curves, every run counted."""
    projects = _share(run.ratio <= QUARTER for run in deep)
    does_too = _share(run.ratio <= QUARTER for run in shallow)
    left = float(np.median([run.ratio for run in shallow]))
    ones = _share(run.ones >= NINE_TENTHS for run in deep)
    twos = _share(run.twos >= NINE_TENTHS for run in shallow)
    projections = _share(run.ones >= NINE_TENTHS and run.defect < SMALL for run in deep)
    fits = float(np.max([run.unexplained for run in (*deep, *shallow)]))
    where = f"at {100 * NINE_TENTHS:g} percent of the points or more, s_2 against {RTOL:g} s_1"
    return (
        Claim(
            "curves: largest mean of ||f(x) - x||^2 over that of ||x||^2 on the data", fits < FITS, fits, f"< {FITS:g}"
        ),
        Claim(
            "curves, deep: share of runs that leave a quarter or less of the distance to the curve",
            projects >= MOST,
            projects,
            f">= {MOST:g}",
        ),
        Claim("curves, shallow: share of runs that do", does_too <= FEW, does_too, f"<= {FEW:g}"),
        Claim(
            "curves, shallow: distance to the curve after / before, median over runs: more is kept than taken away",
            left > 0.5,
            left,
            "> 0.5",
        ),
        Claim(f"curves, deep: share of runs with a Jacobian of rank 1 {where}", ones >= MOST, ones, f">= {MOST:g}"),
        Claim(f"curves, shallow: share of runs with a Jacobian of rank 2 {where}", twos >= MOST, twos, f">= {MOST:g}"),
        Claim(
            "curves, deep: share of runs of rank 1 where J is a projection, median of ||J^2 - J|| / ||J|| below "
            f"{SMALL:g}",
            projections >= MOST,
            projections,
            f">= {MOST:g}",
        ),
    )


def image_claims(deep: Sequence[OfImages], shallow: Sequence[OfImages]) -> tuple[Claim, ...]:
    """Measure what must be seen of autoencoders of images; the least favorable network decides."""
    fits = float(np.max([run.unexplained for run in (*deep, *shallow)]))
    seen, unseen = (float(np.max([getattr(run, name) for run in deep])) for name in ("ratio_seen", "ratio"))
    kept = float(np.min([run.ratio for run in shallow]))
    rank = float(np.max([run.rank for run in deep]) / np.min([run.rank for run in shallow]))
    passed = float(np.max([run.kept for run in deep]) / np.min([run.kept for run in shallow]))
    distance = "median distance to the image without noise, after / before"
    return (
        Claim(
            "images: largest mean of ||f(x) - x||^2 over the variance, training images: no collapse",
            fits < FITS_IMAGES,
            fits,
            f"< {FITS_IMAGES:g}",
        ),
        Claim(f"images, deep: {distance}, training images, largest", seen < 0.75, seen, "< 0.75"),
        Claim(f"images, deep: {distance}, unseen images, largest", unseen < 0.75, unseen, "< 0.75"),
        Claim(f"images, shallow: {distance}, unseen images, least", kept > 0.75, kept, "> 0.75"),
        Claim(
            "images: share of the length of the noise that comes out again, largest of deep over least of shallow",
            passed < 0.75,
            passed,
            "< 0.75",
        ),
        Claim(
            "images: effective rank of the Jacobian, largest of deep over least of shallow", rank < 0.5, rank, "< 0.5"
        ),
    )


def make(
    folder: Path,
    progress: bool,
    *,
    curves: Mapping[str, Any],
    curve_deep: Mapping[str, Any],
    curve_shallow: Mapping[str, Any],
    shown: Sequence[int],
    images: Mapping[str, Any],
    images_both: Mapping[str, Any],
    images_deep: Mapping[str, Any],
    images_shallow: Mapping[str, Any],
) -> Outcome:
    """Train deep and shallow autoencoders on curves and on images, add noise, and look at what comes out.

    ``curves`` and ``images_both`` are settings that deep and shallow networks share, ``images`` says which images;
    ``shown`` are the curves drawn.
    """
    deep, shallow = (curve_runs(folder, progress, ridge=RIDGE, **curves, **one) for one in (curve_deep, curve_shallow))
    task, mean = image_task(**images)
    assert task.x_test is not None
    deep_images, shallow_images = (
        image_runs(folder, progress, task, ridge=RIDGE, **images_both, **one) for one in (images_deep, images_shallow)
    )
    drawn = [[next(run for run in runs if run.curve == curve) for curve in shown] for runs in (deep, shallow)]
    pictures = {
        "arrows": draw_arrows(*drawn),
        "digits": draw_digits(deep_images[0], shallow_images[0], task.x_test, mean),
        "noise-and-rank": draw_runs(deep, shallow, QUARTER),
        "images": draw_images(deep_images, shallow_images),
    }
    claims = (*curve_claims(deep, shallow), *image_claims(deep_images, shallow_images))
    of_images = [_image_row(run) for run in (*deep_images, *shallow_images)]
    sections = (
        Section("Curves", text=CURVES, rows=[_curve_row(run) for run in (*deep, *shallow)]),
        Section("Images", text=IMAGES, rows=of_images),
    )
    return Outcome("F3", claims, sections, pictures, {"data": task.name}, captions=CAPTIONS)


CAPTIONS = {
    "arrows": "Random points of the plane and where they are taken to, by the first networks of the first "
    "curves: above deep ones, below shallow ones.",
    "digits": "Unseen images with noise, and what deep and shallow networks make of them.",
    "noise-and-rank": "Every run: what is left of the noise off the curve, and where the Jacobian has rank 1.",
    "images": "How far from the image without noise the outputs are, and spectra of Jacobians.",
}


CURVES = (
    "x = g(z) for a Gaussian z and a random ReLU network g into the plane, y = x, mean ||x||^2 = 1. Distances are "
    "those of unseen points with noise to the exact piecewise linear curve, over the range of z seen. The loss is "
    f"mean ||f(x) - x||^2 + {RIDGE:g} ||theta||^2, the ridge not divided by the depth. 'rank 1' and "
    "'rank 2' are the shares "
    f"of unseen points where the Jacobian has that rank, singular values above {RTOL:g} of the largest counted."
)
IMAGES = (
    "Pixels in [0, 1] less the mean image. Distances are Euclidean, to the image without noise; 'nearest' is the "
    "distance to the nearest training image. Networks of both depths take the same number of steps, far from "
    "a minimum: what is measured depends on it. The effective rank is (sum s)^2 / sum s^2 of the singular values of "
    "the Jacobian."
)


def _curve_row(run: OfCurve) -> dict[str, object]:
    return {
        "depth": run.depth,
        "curve": run.curve,
        "net": run.net,
        "distance before": run.before,
        "after": run.after,
        "after / before": run.ratio,
        "rank 1": run.ones,
        "rank 2": run.twos,
        "||J^2 - J|| / ||J||": run.defect,
        "unexplained": run.unexplained,
        "loss": run.loss,
        "||theta||^2 / L": run.norm / run.depth,
        "status": run.status,
    }


def _image_row(run: OfImages) -> dict[str, object]:
    return {
        "depth": run.depth,
        "net": run.net,
        "after / before, unseen": run.ratio,
        "trained on": run.ratio_seen,
        "noise kept": run.kept,
        "effective rank": run.rank,
        "nearest, before": run.near_before,
        "nearest, after": run.near,
        "unexplained, trained on": run.unexplained,
        "unexplained, unseen": run.unexplained_unseen,
        "loss": run.loss,
        "||theta||^2 / L": run.norm / run.depth,
        "status": run.status,
    }


def _share(flags: Any) -> float:
    return float(np.mean([bool(flag) for flag in flags]))


FIGURE = Figure(
    "F3",
    "autoencoders",
    "Deep autoencoders project noise onto the data, shallow ones do not",
    "Jacot2023a, Figure 3",
    "noisy digits come out clean of a deep autoencoder; random points of the plane are taken onto the curve by a deep "
    "one, and stay about where they are with a shallow one",
    {
        "quick": {
            "curves": {"curves": (0, 1, 2, 3, 4, 5), "nets": 2, "samples": 200, "corners": 20, "noise": 0.07},
            "curve_deep": {"depth": 20, "width": 30, "init": 0.19, "steps": 900},
            "curve_shallow": {"depth": 2, "width": 50, "init": "he", "steps": 900},
            "shown": (0, 1, 2),
            "images": {"images": 1000, "unseen": 300, "seed": 0, "whole": False},
            "images_both": {"nets": 2, "lr": 2e-3, "batch": None, "noise": 0.3, "looked_at": 10},
            "images_deep": {"depth": 6, "width": 100, "init": 0.05, "steps": 1000},
            "images_shallow": {"depth": 2, "width": 400, "init": "he", "steps": 1000},
        },
        "paper": {
            "curves": {"curves": tuple(range(10)), "nets": 3, "samples": 1000, "corners": 20, "noise": 0.07},
            "curve_deep": {"depth": 20, "width": 50, "init": 0.15, "steps": 5000},
            "curve_shallow": {"depth": 2, "width": 100, "init": "he", "steps": 5000},
            "shown": (0, 1, 2),
            "images": {"images": None, "unseen": 2000, "seed": 0, "whole": True},
            "images_both": {"nets": 2, "lr": 1e-3, "batch": 500, "noise": 0.3, "looked_at": 50},
            "images_deep": {"depth": 6, "width": 400, "init": 0.025, "steps": 40_000},
            "images_shallow": {"depth": 2, "width": 1600, "init": "he", "steps": 40_000},
        },
    },
    make,
    gigabytes={"quick": 1.2, "paper": 6.0},
    data={"paper": ("mnist",)},
)
