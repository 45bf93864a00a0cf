"""The computation of F3: autoencoders trained on curves and on images, and their effect on noise."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.figures.harness.training import held_out, mlp, start_as_pytorch, train_recorded
from bnrank.measures.jacobian import Jacobian
from bnrank.measures.spectra import effective_rank
from bnrank.networks import MLP
from bnrank.tasks import Task, autoencoder, distances_to_polyline, handwritten_digits, mnist, planar_curve, polyline
from bnrank.theory.symmetry import projection
from bnrank.training import Adam, Run

RIDGE = 1e-4
LEVELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # multiples of the noise of the claims
RTOL = 0.01  # singular values of a Jacobian below this, relative to the largest, do not count
NOISE_SEED = 1


@dataclass(frozen=True)
class Network:
    """Depth, width, start, training steps and ridge of a network.

    The start is the standard deviation of the weights, "he", or "pytorch" for that of `torch.nn.Linear`.
    """

    depth: int
    width: int
    init: float | str
    steps: int
    ridge: float = RIDGE

    def train(self, task: Task, folder: Path, progress: bool, **options: Any) -> Run:
        """Return a run of such networks, trained on a task."""

        def start(seed: int) -> MLP:
            return start_as_pytorch(mlp(task, self.depth, self.width), seed)

        net = start if self.init == "pytorch" else mlp(task, self.depth, self.width, init=self.init)
        return train_recorded(net, task, folder, progress, ridge=self.ridge, steps=self.steps, records=10, **options)


@dataclass(frozen=True)
class Curves:
    """Curves in the plane: seeds, networks per curve, samples, corners, noise per coordinate (mean ||x||^2 = 1)."""

    curves: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    nets: int = 2
    samples: int = 200
    corners: int = 20
    noise: float = 0.07


@dataclass(frozen=True)
class Images:
    """Images and how networks are trained on them.

    Attributes
    ----------
    images, unseen, seed : int
        Training images (None for all), test images, seed.
    whole : bool
        Whether MNIST is required.
    nets, lr, batch_size
        Networks, step size and mini-batch size (None for all) of Adam.
    noise : float
        Per pixel, of [0, 1].
    jacobians : int
        Unseen images at which Jacobians are taken.
    """

    images: int | None = 1000
    unseen: int = 300
    seed: int = 0
    whole: bool = False
    nets: int = 2
    lr: float = 2e-3
    batch_size: int | None = None
    noise: float = 0.3
    jacobians: int = 10


@dataclass(frozen=True)
class Denoising:
    """Samples with noise, and outputs for them, (N, d).

    Attributes
    ----------
    before, after : Tensor
        Distances of both, (N,), to the samples without noise or to a curve.
    kept : Tensor
        ||f(x_i + e_i) - f(x_i)|| / ||e_i||, (N,): the fraction of the noise in the output, whatever the error at x_i.
    """

    noisy: Tensor
    outputs: Tensor
    before: Tensor
    after: Tensor
    kept: Tensor

    @property
    def ratio(self) -> float:
        """Median distance after, over the median distance before."""
        return float(self.after.quantile(0.5) / self.before.quantile(0.5))  # Tensor.median takes the lower of two


def denoising(net: nn.Module, x: Tensor, std: float, distance: Callable[[Tensor], Tensor] | None = None) -> Denoising:
    """Return samples with noise N(0, std^2) on every entry, before and after a network; it runs in float64 (T17)."""
    x, function = x.double(), copy.deepcopy(net).double()
    # not torch's generator, which with a network's seed would reproduce the network's initial weights
    noise = std * torch.from_numpy(np.random.default_rng(NOISE_SEED).standard_normal(tuple(x.shape)))
    with torch.no_grad():
        outputs, plain = function(x + noise), function(x)
    before, after = (
        (points - x).norm(dim=1) if distance is None else distance(points) for points in (x + noise, outputs)
    )
    return Denoising(x + noise, outputs, before, after, (outputs - plain).norm(dim=1) / noise.norm(dim=1))


@dataclass(frozen=True)
class OfCurve:
    """One autoencoder of a curve.

    Attributes
    ----------
    row : dict
        The measurements at test samples, by column of the table: medians of the distance to the curve before and after
        the network, shares of samples with a Jacobian of rank 1 and 2, medians of ||J^2 - J||_F / ||J||_F, training
        cost over mean ||x||^2 ("unexplained").
    task, corners, network : Task, Tensor, module
        Its training data, the curve, and the network.
    """

    row: dict[str, Any]
    task: Task
    corners: Tensor
    network: nn.Module


@dataclass(frozen=True)
class OfImages:
    """One autoencoder of images.

    Attributes
    ----------
    row : dict
        The measurements, by column of the table: median distances of noisy images to the image without noise, after the
        network over before; the share of the length of the noise in the outputs; medians of the effective rank of the
        Jacobian and of the distance to the nearest training image; mean ||f(x) - x||^2 over mean ||x - mean||^2.
    spectra : Tensor
        Singular values of the Jacobian at unseen images, (samples, values).
    noise : Denoising
        Of unseen images.
    distances : list of pairs
        Median distance to the image without noise before and after, of unseen images, for noise of several levels.
    """

    row: dict[str, Any]
    spectra: Tensor
    noise: Denoising
    distances: list[tuple[float, float]]


def curve_runs(out: Path, progress: bool, curves: Curves, net: Network) -> list[OfCurve]:
    """Train networks of one depth on each curve, and return the measurements of all of them."""
    result = []
    for curve in curves.curves:
        task, run = curve_run(out, progress, curves, net, curve)
        result += [_of_curve(run, member, task, curve, net.depth, curves.noise) for member in range(curves.nets)]
    return result


def curve_run(out: Path, progress: bool, curves: Curves, net: Network, curve: int) -> tuple[Task, Run]:
    """Return a curve and the run of networks of one depth on it."""
    task = planar_curve(curves.samples, curves.corners, curve, n_test=curves.samples)
    folder = out / f"curve-{curve}-depth-{net.depth}"
    return task, net.train(task, folder, progress, members=curves.nets, seed=curves.nets * curve)


def _of_curve(run: Run, member: int, task: Task, curve: int, depth: int, noise: float) -> OfCurve:
    assert task.truth is not None
    seen = torch.cat([task.truth.latents, task.truth.latents_test])
    line = polyline(task.truth.x_of_latents, float(seen.min()), float(seen.max()))  # type: ignore[arg-type]
    network = run.network(member)
    last = run.summary.isel(member=member)
    x = held_out(task)[0]
    found = denoising(network, x, noise, lambda points: distances_to_polyline(points, line))
    near = projection(network, x, rtol=RTOL)
    row = {
        "depth": depth,
        "curve": curve,
        "net": int(last.seed),
        "distance before": float(found.before.median()),
        "after": float(found.after.median()),
        "after / before": found.ratio,
        "rank 1": float((near.ranks == 1).double().mean()),
        "rank 2": float((near.ranks == 2).double().mean()),
        "||J^2 - J|| / ||J||": float(near.defects.median()),
        "unexplained": float(last.cost) / float(task.x.square().sum(1).mean()),
        **_trained(last, depth),
    }
    return OfCurve(row, task, line, network)


def image_task(images: Images) -> tuple[Task, Tensor]:
    """Return handwritten digits with y = x, pixels in [0, 1] minus the mean image, and the mean image."""
    load: Any = mnist if images.whole else handwritten_digits
    task = load(images.images, images.unseen, images.seed, standardize=False)
    mean = task.x.mean(0)
    return autoencoder(replace(task, x=task.x - mean, x_test=task.x_test - mean)), mean


def image_runs(out: Path, progress: bool, task: Task, images: Images, net: Network) -> list[OfImages]:
    """Train networks of one depth on images, and return the measurements of all of them."""
    run = image_run(out, progress, images, net, task)
    return [_of_images(run, member, task, net.depth, images) for member in range(images.nets)]


def image_run(out: Path, progress: bool, images: Images, net: Network, task: Task | None = None) -> Run:
    """Return the run of networks of one depth on images, given as the result of `image_task` or made anew."""
    data = image_task(images)[0] if task is None else task
    folder = out / f"images-depth-{net.depth}"
    optimizer = Adam(lr=images.lr, schedule="cosine")
    batches: dict[str, Any] = {"optimizer": optimizer, "batch_size": images.batch_size}
    return net.train(data, folder, progress, members=images.nets, seed=0, **batches)


def _of_images(run: Run, member: int, task: Task, depth: int, images: Images) -> OfImages:
    network = run.network(member)
    last = run.summary.isel(member=member)
    x = held_out(task)[0]
    unseen = denoising(network, x, images.noise)
    spectra = Jacobian(network, x[: images.jacobians]).singular_values
    spread = float((task.x - task.x.mean(0)).square().sum(1).mean())
    with torch.no_grad():
        errors = [float((network(x) - x).square().sum(1).mean()) / spread for x in (task.x, x)]
    levels = [denoising(network, x, level * images.noise) for level in LEVELS]
    near = [
        float(torch.cdist(points, task.x.double(), compute_mode="donot_use_mm_for_euclid_dist").min(1).values.median())
        for points in (unseen.noisy, unseen.outputs)
    ]
    row = {
        "depth": depth,
        "net": int(last.seed),
        "after / before, unseen": unseen.ratio,
        "trained on": denoising(network, task.x[: len(x)], images.noise).ratio,
        "noise kept": float(unseen.kept.median()),
        "effective rank": float(effective_rank(spectra).median()),
        "nearest, before": near[0],
        "nearest, after": near[1],
        "unexplained, trained on": errors[0],
        "unexplained, unseen": errors[1],
        **_trained(last, depth),
    }
    distances = [(float(level.before.median()), float(level.after.median())) for level in levels]
    return OfImages(row, spectra, unseen, distances)


def _trained(last: Any, depth: int) -> dict[str, Any]:
    norm = float(last.parameter_norm) / depth
    return {"loss": float(last.loss), "||theta||^2 / L": norm, "status": str(last.status.values)}
