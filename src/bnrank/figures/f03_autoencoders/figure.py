"""F3 (Jacot2023a, Figure 3): deep autoencoders project noise onto a curve, shallow ones do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from bnrank.figures.f03_autoencoders import computation
from bnrank.figures.f03_autoencoders.computation import RIDGE, RTOL, Curves, Images, Network, OfCurve, OfImages
from bnrank.figures.f03_autoencoders.drawing import draw_arrows, draw_digits, draw_few, draw_images, draw_runs
from bnrank.figures.f03_autoencoders.few_images import LEAST, FewImages, OfFew, few_run, few_runs
from bnrank.figures.f03_autoencoders.linear_projections import on_unseen
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import held_out
from bnrank.reporting import Section

QUARTER = 0.25  # largest ratio of distances to the curve, after over before, for a projecting network
MOST, FEW = 0.8, 0.2  # shares of runs: one in five may end in another local minimum
NINE_TENTHS = 0.9  # share of the points at which a Jacobian has its rank
SMALL = 0.1
FIFTH = 0.2  # largest ratio of distances to the image without noise, after over before, for a projecting network
GAP, NO_GAP = 10.0, 1.5  # smallest s_k / s_(k+1) that is a gap; largest of a spectrum without gap


@dataclass(frozen=True)
class Settings:
    """Settings of F3: curves, images and few images, deep and shallow networks on each, and the curves to draw."""

    curves: Curves
    curve_deep: Network
    curve_shallow: Network
    images: Images
    images_deep: Network
    images_shallow: Network
    few: FewImages
    few_deep: Network
    few_shallow: Network
    shown: tuple[int, ...] = (0, 1, 2)


QUICK = Settings(
    Curves(),
    Network(20, 30, 0.19, 900),
    Network(2, 50, "he", 900),
    Images(),
    Network(6, 100, 0.05, 1000),
    Network(2, 400, "he", 1000),
    FewImages(),
    Network(7, 200, "pytorch", 1500, ridge=1e-2),
    Network(2, 200, "pytorch", 1500, ridge=1e-2),
)
PAPER = Settings(
    Curves(tuple(range(10)), nets=3, samples=1000),
    Network(20, 50, 0.15, 5000),
    Network(2, 100, "he", 5000),
    Images(None, 2000, whole=True, lr=1e-3, batch_size=500, jacobians=50),
    Network(6, 400, 0.025, 40_000),
    Network(2, 1600, "he", 40_000),
    FewImages(seeds=tuple(range(10)), jacobians=50),
    Network(7, 400, "pytorch", 5000, ridge=1e-2),
    Network(2, 800, "pytorch", 5000, ridge=1e-2),
)


def curve_claims(deep: Sequence[OfCurve], shallow: Sequence[OfCurve]) -> tuple[Claim, ...]:
    """Return the claims on autoencoders of curves; every run counts."""
    deep_rows, rows = (pd.DataFrame([run.row for run in runs]) for runs in (deep, shallow))
    ratio, defect = "after / before", "||J^2 - J|| / ||J||"
    fits = pd.concat([deep_rows, rows])["unexplained"].max(skipna=False)
    ones, twos = deep_rows["rank 1"] >= NINE_TENTHS, rows["rank 2"] >= NINE_TENTHS
    where = f"at {100 * NINE_TENTHS:g} percent of the points or more, s_2 against {RTOL:g} s_1"
    kept = "curves, shallow: distance to the curve after / before, median over runs: the larger part is kept"
    quarter = "leave a quarter or less of the distance to the curve"
    projection = f"curves, deep: share of runs of rank 1 where J is a projection, median of {defect} below {SMALL:g}"
    return (
        below("curves: largest mean of ||f(x) - x||^2 over that of ||x||^2 on the data", fits, 0.01),
        at_least(f"curves, deep: share of runs that {quarter}", (deep_rows[ratio] <= QUARTER).mean(), MOST),
        at_most(f"curves, shallow: share of runs that {quarter}", (rows[ratio] <= QUARTER).mean(), FEW),
        above(kept, rows[ratio].median(skipna=False), 0.5),
        at_least(f"curves, deep: share of runs with a Jacobian of rank 1 {where}", ones.mean(), MOST),
        at_least(f"curves, shallow: share of runs with a Jacobian of rank 2 {where}", twos.mean(), MOST),
        at_least(projection, (ones & (deep_rows[defect] < SMALL)).mean(), MOST),
    )


def image_claims(deep: Sequence[OfImages], shallow: Sequence[OfImages]) -> tuple[Claim, ...]:
    """Return the claims on autoencoders of images; the least favorable network decides."""
    largest = {name: float(np.max([run.row[name] for run in deep])) for name in deep[0].row if name != "status"}
    smallest = {name: float(np.min([run.row[name] for run in shallow])) for name in shallow[0].row if name != "status"}
    fits = float(np.max([run.row["unexplained, trained on"] for run in (*deep, *shallow)]))
    distance = "median distance to the image without noise, after / before"
    unseen = "after / before, unseen"
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


def few_claims(deep: Sequence[OfFew], shallow: Sequence[OfFew]) -> tuple[Claim, ...]:
    """Return the claims on noisy training images of networks of few images; every network counts."""
    rows, others = (pd.DataFrame([run.row for run in runs]) for runs in (deep, shallow))
    removed = f"share of networks that remove {100 * (1 - FIFTH):g} percent or more of the distance to the image"
    deep_share, share = ((of["after / before, trained on"] <= FIFTH).mean() for of in (rows, others))
    both = f"{deep_share:.4g} (shallow networks: {share:.4g})"
    linear = "few images: best projection onto principal components, distance to the image, after / before, smallest"
    gap = "median of s_k / s_(k+1) of the Jacobian"
    rank = rows["effective rank"].max(skipna=False) / others["effective rank"].min(skipna=False)
    return (
        at_least(f"few images, deep: {removed}", deep_share, MOST, shown=both),
        above(linear, rows["best projection"].min(skipna=False), FIFTH),
        at_least(f"few images, deep: share of networks with {gap} at least {GAP:g}", (rows["gap"] >= GAP).mean(), MOST),
        at_most(f"few images, shallow: {gap}, largest", others["gap"].max(skipna=False), NO_GAP),
        below("few images: effective rank of the Jacobian, largest of deep over smallest of shallow", rank, 0.25),
    )


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train deep and shallow autoencoders on curves and on images, and apply them to noisy samples."""
    s = settings
    task, mean = computation.image_task(s.images)
    of_curves, of_images = (s.curve_deep, s.curve_shallow), (s.images_deep, s.images_shallow)
    with_few = task.name.startswith("mnist")
    calls: list[Callable[[], object]] = [
        partial(computation.image_run, folder, False, s.images, net) for net in of_images
    ]
    if with_few:
        of_few = (s.few_deep, s.few_shallow)
        calls += [partial(few_run, folder, False, s.few, net, seed) for net in of_few for seed in s.few.seeds]
    curves = s.curves.curves
    calls += [partial(computation.curve_run, folder, False, s.curves, net, one) for net in of_curves for one in curves]
    ahead(calls, progress)
    deep, shallow = (computation.curve_runs(folder, progress, s.curves, net) for net in of_curves)
    deep_images, shallow_images = (computation.image_runs(folder, progress, task, s.images, net) for net in of_images)
    first = [[next(run for run in runs if run.row["curve"] == curve) for curve in s.shown] for runs in (deep, shallow)]
    pictures = {
        "arrows": draw_arrows(*first),
        "digits": draw_digits(deep_images[0], shallow_images[0], held_out(task)[0], mean, UNSEEN),
        "noise-and-rank": draw_runs(deep, shallow, QUARTER),
        "images": draw_images(deep_images, shallow_images),
    }
    claims: tuple[Claim, ...] = (*curve_claims(deep, shallow), *image_claims(deep_images, shallow_images))
    sections: tuple[Section, ...] = (
        Section("Curves", text=CURVES, rows=[run.row for run in (*deep, *shallow)]),
        Section("Images", text=IMAGES, rows=[run.row for run in (*deep_images, *shallow_images)]),
    )
    # with 8 x 8 pixels, a projection onto 3 dimensions leaves more than a fifth of the noise
    if with_few:
        few = s.few
        deep_few, shallow_few = (few_runs(folder, progress, few, net) for net in (s.few_deep, s.few_shallow))
        seen, mean_seen = few.task(few.seeds[0])
        linear = on_unseen((few.images, 1000, None), few.unseen, few.noise, FIFTH)
        pictures |= {
            "few-digits": draw_digits(deep_few[0], shallow_few[0], seen.x, mean_seen, SEEN),
            "few-images": draw_few(deep_few, shallow_few, FIFTH),
        }
        claims += few_claims(deep_few, shallow_few)
        sections += (
            Section("Few images", text=FEW_IMAGES, rows=[run.row for run in (*deep_few, *shallow_few)]),
            Section("Linear projections of unseen images", text=LINEAR, rows=linear),
        )
    captions = {name: CAPTIONS[name] for name in pictures}
    data = {"data": task.name}
    return Outcome(claims=claims, sections=sections, pictures=pictures, settings=data, captions=captions)


UNSEEN, SEEN = "Images that were not trained on", "Images that were trained on"

CAPTIONS = {
    "arrows": "Random points of the plane and where they are taken to, by the first networks of the first "
    "curves: above deep ones, below shallow ones.",
    "digits": "Unseen images with noise, and the outputs of deep and shallow networks.",
    "noise-and-rank": "Every run: remaining noise off the curve, and where the Jacobian has rank 1.",
    "images": "How far from the image without noise the outputs are, and spectra of Jacobians.",
    "few-digits": "Training images with noise, and the outputs of deep and shallow networks of few images.",
    "few-images": "Networks of few images: distance to the image without noise, and spectra of Jacobians.",
}

CURVES = (
    "x = g(z) for a Gaussian z and a random ReLU network g into the plane, y = x, mean ||x||^2 = 1. Distances are "
    "those of unseen points with noise to the exact piecewise linear curve, over the range of all z. The loss is "
    f"mean ||f(x) - x||^2 + {RIDGE:g} ||theta||^2, the ridge not divided by the depth. 'rank 1' and "
    "'rank 2' are the shares "
    f"of unseen points where the Jacobian has that rank, singular values above {RTOL:g} of the largest count."
)
IMAGES = (
    "Pixels in [0, 1] minus the mean image. Distances are Euclidean, to the image without noise; 'nearest' is the "
    "distance to the nearest training image. Networks of both depths take the same number of steps, far from "
    "a minimum, and the results depend on it. The effective rank is (sum s)^2 / sum s^2 of the singular values of "
    "the Jacobian."
)
FEW_IMAGES = (
    "Networks of few images of MNIST, each seed with its own images and start, applied to the same images with noise. "
    "'best projection' is the one onto principal components of these images, with the number of components that is "
    "best for these images and this noise. Deep and shallow networks both remove noise here; their spectra differ. "
    "'applied again' is ||f(f(y)) - f(y)|| / ||f(y) - y|| at noisy images y, 0 "
    f"for a projection. The gap is the widest s_k / s_(k+1) of the Jacobian with s_k at least {LEAST:g} s_1."
)
LINEAR = (
    "Projections onto principal components of images of MNIST, with the number of components that is best for the "
    "unseen images. What is left of the distance is sqrt(k / d) from the noise, and the unexplained part of the image."
)


FIGURE = Figure(
    "F3",
    "autoencoders",
    "Deep autoencoders project noise onto a curve, shallow ones do not",
    "Jacot2023a, Figure 3",
    "noisy digits come out clean of a deep autoencoder; a deep one takes random points of the plane onto the curve, a "
    "shallow one leaves them about where they are",
    {"quick": QUICK, "paper": PAPER},
    make,
    version=3,
    gigabytes={"quick": 2.0, "paper": 6.0},
    data={"paper": ("mnist",)},
)
