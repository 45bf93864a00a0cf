"""What F3 computes: autoencoders trained on curves and on images, and what they do to noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.measures.denoising import Denoising, denoising, distances_to_samples
from bnrank.measures.jacobian import Jacobian
from bnrank.measures.spectra import effective_rank
from bnrank.networks import MLP
from bnrank.tasks import Task, autoencoder, distances_to_polyline, handwritten_digits, mnist, planar_curve, polyline
from bnrank.theory.symmetry import projection
from bnrank.training import Adam, Run, train

__all__ = ["RTOL", "OfCurve", "OfImages", "curve_runs", "image_runs", "image_task"]

LEVELS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # times the noise that is claimed about
RTOL = 0.01  # a singular value of a Jacobian below this share of the largest does not count
NOISE_SEED = 1


@dataclass(frozen=True)
class OfCurve:
    """One autoencoder of a curve, measured at test samples.

    Attributes
    ----------
    curve, net : int
        Seeds of the data and of the network.
    depth : int
        L.
    ratio : float
        Median distance to the curve of noisy samples after the network, over that before.
    ones, twos : float
        Shares of samples where the Jacobian has rank 1 and 2, relative tolerance RTOL.
    defect : float
        Median of ||J^2 - J||_F / ||J||_F.
    unexplained : float
        Training cost over mean ||x||^2.
    before, after, loss, norm : float
        The two medians, the loss with its ridge and ||theta||^2.
    status : str
        Of the run.
    task, corners, network : Task, Tensor, module
        What it was trained on, the curve, and the network.
    """

    curve: int
    net: int
    depth: int
    ratio: float
    ones: float
    twos: float
    defect: float
    unexplained: float
    before: float = 0.0
    after: float = 0.0
    loss: float = 0.0
    norm: float = 0.0
    status: str = ""
    task: Task | None = None
    corners: Tensor | None = None
    network: nn.Module | None = None


@dataclass(frozen=True)
class OfImages:
    """One autoencoder of images.

    Attributes
    ----------
    net, depth : int
        Seed of the network, and L.
    ratio, ratio_seen : float
        Median distance of noisy images to themselves without noise, after the network over before: of unseen images,
        and of images trained on.
    rank : float
        Median effective rank of the Jacobian at unseen images.
    kept : float
        Median share of the length of the noise that comes out again, of unseen images.
    unexplained, unexplained_unseen : float
        Mean ||f(x) - x||^2 over mean ||x - mean||^2, without noise.
    near_before, near : float
        Median distance of noisy unseen images to the nearest training image, before and after.
    loss, norm : float
        The loss with its ridge and ||theta||^2.
    spectra : Tensor or None
        Singular values of the Jacobian, (samples, values).
    noise : Denoising or None
        Of unseen images.
    distances : tuple of pairs
        Median distance to the image without noise before and after, of unseen images, for noise of several levels.
    """

    net: int
    depth: int
    ratio: float
    ratio_seen: float
    rank: float
    kept: float
    unexplained: float
    unexplained_unseen: float
    near_before: float = 0.0
    near: float = 0.0
    loss: float = 0.0
    norm: float = 0.0
    status: str = ""
    spectra: Tensor | None = None
    noise: Denoising | None = None
    distances: tuple[tuple[float, float], ...] = ()


def curve_runs(
    out: Path,
    progress: bool,
    *,
    curves: Sequence[int],
    nets: int,
    samples: int,
    corners: int,
    depth: int,
    width: int,
    init: float | str,
    ridge: float,
    steps: int,
    noise: float,
) -> list[OfCurve]:
    """Train networks of one depth on each curve, and measure every one of them; noise per coordinate, ||x||^2 = 1."""
    result = []
    for curve in curves:
        task = planar_curve(samples, corners, curve, n_test=samples)
        net = MLP([2, *[width] * (depth - 1), 2], init=init)
        run = train(
            net,
            task,
            ridge=ridge,
            steps=steps,
            members=nets,
            seed=nets * curve,
            record=max(1, steps // 10),
            out=out / f"curve-{curve}-depth-{depth}",
            progress=progress,
        )
        result += [_of_curve(run, member, task, curve, depth, noise) for member in range(nets)]
    return result


def _of_curve(run: Run, member: int, task: Task, curve: int, depth: int, noise: float) -> OfCurve:
    assert task.truth is not None and task.x_test is not None  # noqa: PT018
    seen = torch.cat([task.truth.latents, task.truth.latents_test])
    line = polyline(task.truth.x_of_latents, float(seen.min()), float(seen.max()))  # type: ignore[arg-type]
    network, last = run.network(member), run.summary.isel(member=member)
    found = denoising(
        network, task.x_test, noise, distance=lambda points: distances_to_polyline(points, line), seed=NOISE_SEED
    )
    near = projection(network, task.x_test, rtol=RTOL)
    return OfCurve(
        curve=curve,
        net=int(last.seed),
        depth=depth,
        ratio=found.ratio,
        ones=_share(near.ranks == 1),
        twos=_share(near.ranks == 2),
        defect=float(near.defects.median()),
        unexplained=float(last.cost) / float(task.x.square().sum(1).mean()),
        before=float(found.before.median()),
        after=float(found.after.median()),
        loss=float(last.loss),
        norm=float(last.parameter_norm),
        status=str(last.status.values),
        task=task,
        corners=line,
        network=network,
    )


def image_task(images: int | None, unseen: int, seed: int, whole: bool) -> tuple[Task, Tensor]:
    """Return handwritten digits with y = x, pixels in [0, 1], and their mean image, which is taken away.

    Of MNIST and no other if ``whole``.
    """
    load: Any = mnist if whole else handwritten_digits
    task = load(images, unseen, seed, standardize=False)
    mean = task.x.mean(0)
    return autoencoder(replace(task, x=task.x - mean, x_test=task.x_test - mean)), mean


def image_runs(
    out: Path,
    progress: bool,
    task: Task,
    *,
    nets: int,
    depth: int,
    width: int,
    init: float | str,
    ridge: float,
    steps: int,
    lr: float,
    batch: int | None,
    noise: float,
    looked_at: int,
) -> list[OfImages]:
    """Train networks of one depth on images, and measure every one of them; noise per pixel, of [0, 1]."""
    run = train(
        MLP([task.d_in, *[width] * (depth - 1), task.d_in], init=init),
        task,
        ridge=ridge,
        steps=steps,
        members=nets,
        seed=0,
        optimizer=Adam(lr=lr, schedule="cosine"),
        batch_size=batch,
        record=max(1, steps // 10),
        out=out / f"images-depth-{depth}",
        progress=progress,
    )
    return [_of_images(run, member, task, depth, noise, looked_at) for member in range(nets)]


def _of_images(run: Run, member: int, task: Task, depth: int, noise: float, looked_at: int) -> OfImages:
    assert task.x_test is not None
    network, last = run.network(member), run.summary.isel(member=member)
    unseen = denoising(network, task.x_test, noise, seed=NOISE_SEED)
    seen = denoising(network, task.x[: len(task.x_test)], noise, seed=NOISE_SEED)
    spectra = Jacobian(network, task.x_test[:looked_at]).singular_values
    spread = float((task.x - task.x.mean(0)).square().sum(1).mean())
    with torch.no_grad():
        errors = [float((network(x) - x).square().sum(1).mean()) / spread for x in (task.x, task.x_test)]
    levels = [denoising(network, task.x_test, level * noise, seed=NOISE_SEED) for level in LEVELS]
    near = [float(distances_to_samples(points, task.x).median()) for points in (unseen.noisy, unseen.outputs)]
    return OfImages(
        net=int(last.seed),
        depth=depth,
        ratio=unseen.ratio,
        ratio_seen=seen.ratio,
        rank=float(effective_rank(spectra).median()),
        kept=float(unseen.kept.median()),
        unexplained=errors[0],
        unexplained_unseen=errors[1],
        near_before=near[0],
        near=near[1],
        loss=float(last.loss),
        norm=float(last.parameter_norm),
        status=str(last.status.values),
        spectra=spectra,
        noise=unseen,
        distances=tuple((float(d.before.median()), float(d.after.median())) for d in levels),
    )


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())
