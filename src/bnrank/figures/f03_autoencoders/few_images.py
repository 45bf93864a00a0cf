"""The projection of F3: autoencoders of few images, applied to the same images with noise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.figures.f03_autoencoders.computation import Denoising, Images, Network, denoising, image_task
from bnrank.figures.f03_autoencoders.linear_projections import linear_projections
from bnrank.figures.harness.training import held_out
from bnrank.measures.jacobian import Jacobian
from bnrank.measures.spectra import effective_rank
from bnrank.tasks import Task
from bnrank.theory.symmetry import projection
from bnrank.training import Adam, Run

LEAST = 0.1  # a gap below s_k counts only if s_k is at least this share of s_1


@dataclass(frozen=True)
class FewImages:
    """Few images of MNIST, and how networks are trained on them.

    Attributes
    ----------
    images, unseen : int
        Training images, and test images.
    seeds : tuple of int
        Of the choice of images and of the start, both.
    noise : float
        Per pixel, of [0, 1].
    jacobians : int
        Training images at which Jacobians are taken.
    lr : float
        Of Adam, with a cosine schedule.
    """

    images: int = 50
    unseen: int = 300
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    noise: float = 0.3
    jacobians: int = 20
    lr: float = 2e-3

    def task(self, seed: int) -> tuple[Task, Tensor]:
        """Return the images of a seed with y = x, pixels minus the mean image, and the mean image."""
        return image_task(Images(self.images, self.unseen, seed))


@dataclass(frozen=True)
class OfFew:
    """One autoencoder of few images.

    Attributes
    ----------
    row : dict
        The measurements, by column of the table: median distance to the image without noise, after over before, of
        noisy training images, the same for the best projection and for unseen images; median of
        ||f(f(y)) - f(y)|| / ||f(y) - y|| over noisy training images y ("applied again"); medians over training images
        of the widest gap s_k / s_(k+1) of the Jacobian, of its k, of the effective rank and of ||J^2 - J||_F / ||J||_F;
        mean ||f(x) - x||^2 over mean ||x||^2.
    spectra : Tensor
        Singular values of the Jacobian at training images, (images, values).
    noise : Denoising
        Of the training images.
    """

    row: dict[str, Any]
    spectra: Tensor
    noise: Denoising


def few_runs(out: Path, progress: bool, few: FewImages, net: Network) -> list[OfFew]:
    """Train one network per seed on the images of the seed, and return the measurements of all of them."""
    result = []
    for seed in few.seeds:
        task, run = few_run(out, progress, few, net, seed)
        result.append(_of_few(run.network(0), task, few, run.summary.isel(member=0), net.depth))
    return result


def few_run(out: Path, progress: bool, few: FewImages, net: Network, seed: int) -> tuple[Task, Run]:
    """Return the images of a seed and the run of a network on them."""
    task, _ = few.task(seed)
    folder = out / f"few-images-depth-{net.depth}-seed-{seed}"
    return task, net.train(task, folder, progress, seed=seed, optimizer=Adam(few.lr, "cosine"))


def _of_few(network: nn.Module, task: Task, few: FewImages, last: Any, depth: int) -> OfFew:
    x, x_test = task.x, held_out(task)[0]
    seen, unseen = (denoising(network, part, few.noise) for part in (x, x_test))
    spectra = Jacobian(network, x[: few.jacobians]).singular_values
    gaps, places = widest_gaps(spectra)
    with torch.no_grad():
        errors = [float((network(part) - part).square().sum() / part.square().sum()) for part in (x, x_test)]
        again = network(seen.outputs.to(x.dtype)).double()
    moved = (again - seen.outputs).norm(dim=1) / (seen.outputs - seen.noisy).norm(dim=1)
    row = {
        "depth": depth,
        "seed": int(last.seed),
        "after / before, trained on": seen.ratio,
        "best projection": min(row["after / before"] for row in linear_projections(x, x, few.noise)),
        "unseen": unseen.ratio,
        "applied again": float(moved.quantile(0.5)),
        "gap": float(gaps.median()),
        "k": int(places.median()),
        "effective rank": float(effective_rank(spectra).median()),
        "||J^2 - J|| / ||J||": float(projection(network, x[: few.jacobians], rtol=LEAST).defects.median()),
        "unexplained, trained on": errors[0],
        "unexplained, unseen": errors[1],
        "loss": float(last.loss),
        "||theta||^2 / L": float(last.parameter_norm) / depth,
    }
    return OfFew(row, spectra, seen)


def widest_gaps(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest s_k / s_(k+1) with s_k at least ``LEAST`` s_1, and its k, of each row of singular values."""
    top = values[:, :1]
    ratios = values[:, :-1] / values[:, 1:].clamp_min(1e-12 * top)
    gaps, places = torch.where(values[:, :-1] >= LEAST * top, ratios, 0.0).max(1)
    return gaps, places + 1
