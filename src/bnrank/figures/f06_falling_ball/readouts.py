"""Readouts of the ball of F6, its position and its velocity, from the layers of a network."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.figures.harness.training import held_out
from bnrank.tasks import Task

NOISE = 1e-3  # power of the noise added for readouts, as a share of the variance of the layer


class Read(NamedTuple):
    """An angle on held-out samples, true and read, in radians; R^2 is 1 - sum (difference)^2 / sum (true)^2."""

    true: np.ndarray
    read: np.ndarray
    r2: float


@dataclass(frozen=True)
class Readout:
    """Position and velocity read from one layer's preactivations at one frequency w along each axis.

    The position q_t is read by a complex linear map from the channels' Fourier coefficients at w to
    exp(-2 pi i w q_t / n), as the phase of its output. The velocity is read in one of three ways: as the difference of
    two such phases at consecutive times ("phases"), as a cubic polynomial of the modulus of the leading principal
    component of the coefficients at w ("amplitude"), or as an affine map of the channels' coefficients at frequency 0
    ("means").

    Attributes
    ----------
    linear : ndarray
        R^2 of the complex maps for t = -1, 0, 1, ..., the minimum over the axes.
    time, start : int
        t at which the position is read, where its map fits best, and t from which the velocity is: from phases, where
        the worse of the maps of t and t + 1 fits best; else 0. The worst axis counts.
    position, velocity : tuple of Read
        Of w q_t at ``time``, and of w (q_{t+1} - q_t) at ``start``, as angles, one per axis; if not from phases, of
        q_1 - q_0.
    """

    linear: np.ndarray
    time: int
    start: int
    position: tuple[Read, ...]
    velocity: tuple[Read, ...]

    @property
    def known(self) -> tuple[float, float]:
        """R^2 of position and of velocity, the minimum over the axes; NaN if one is."""
        position, velocity = ([part.r2 for part in parts] for parts in (self.position, self.velocity))
        return float(np.min(position)), float(np.min(velocity))

    @property
    def most(self) -> float:
        """R^2 of position or velocity, the maximum over the axes: small if nothing can be read."""
        return float(np.max([part.r2 for part in (*self.position, *self.velocity)]))


def read_out(network: nn.Module, task: Task, frequency: int, velocity: str = "phases") -> list[Readout]:
    """Return position and velocity read out from all convolutions; maps are fitted on half of the test samples.

    ``velocity`` is "phases", "amplitude" or "means", as in `Readout`. White noise of `NOISE` times the variance of the
    layer over the samples is added to every coefficient, so that much weaker components are not detected.
    """
    x, places = held_out(task)[0].double(), angles(task)
    found = []
    with torch.no_grad():
        for name, part in network.named_children():
            x = part(x)
            if name.startswith("conv"):
                found.append(_read(x, places, frequency, velocity))
    return found


def angles(task: Task) -> Tensor:
    """Return the angles 2 pi q_t / n of the test balls at t = -1, 0, ..., shape (time, sample, axis)."""
    assert task.truth is not None
    d, n = task.x.ndim - 2, task.x.shape[-1]
    cosine, sine, velocity = task.truth.latents_test.split(d, 1)
    fall = torch.tensor([float(task.settings["gravity"]), 0.0][:d], dtype=torch.float64)
    t = torch.arange(-1, task.y.shape[1] // n**d + 1, dtype=torch.float64)[:, None, None]
    fallen = 2 * math.pi / n * (t * velocity + t * (t + 1) / 2 * fall)
    return torch.atan2(sine, cosine).add(fallen)


def _read(images: Tensor, places: Tensor, frequency: int, velocity: str) -> Readout:
    samples, axes = places.shape[1:]
    half = samples // 2
    transformed = torch.fft.fftn(images, dim=tuple(range(2, images.ndim)), norm="ortho")
    deviation = math.sqrt(NOISE * float((images - images.mean(0)).square().flatten(1).sum(1).mean()))
    generator = torch.Generator().manual_seed(0)

    def noisy(z: Tensor) -> Tensor:
        return z + deviation * torch.randn(z.shape, dtype=z.dtype, generator=generator)

    turned = frequency * places
    wanted, read = torch.exp(-1j * turned), torch.zeros(places.shape, dtype=torch.complex128)
    amplitudes = torch.zeros(samples, axes, dtype=torch.float64)
    for axis in range(axes):
        z = noisy(transformed[(slice(None), slice(None), *(frequency if k == axis else 0 for k in range(axes)))])
        read[:, :, axis] = _fitted(z, wanted[:, :half, axis].T).T
        amplitudes[:, axis] = (z @ torch.linalg.svd(z[:half], full_matrices=False).Vh[0].conj()).abs()
    error = (read - wanted).abs().square()
    fitted, linear = (1 - part.mean(1).amax(1) for part in (error[:, :half], error[:, half:]))
    best, first = int(fitted.argmax()), 1
    steps = places[2] - places[1]
    if velocity == "phases":
        first = int(torch.minimum(fitted[:-1], fitted[1:]).argmax())
        steps, found = turned[first + 1] - turned[first], (read[first] * read[first + 1].conj()).angle()
    else:
        means = noisy(transformed[(slice(None), slice(None), *[0] * axes)].real)
        powers = [amplitudes.pow(k) for k in (1, 2, 3)] if velocity == "amplitude" else [means]
        found = _fitted(torch.cat([torch.ones_like(steps[:, :1]), *powers], 1), steps[:half])
    return Readout(
        linear.numpy(),
        best - 1,
        first - 1,
        tuple(_compare(turned[best, half:, k], -read[best, half:, k].angle()) for k in range(axes)),
        tuple(_compare(steps[half:, k], found[half:, k]) for k in range(axes)),
    )


def _fitted(known: Tensor, wanted: Tensor) -> Tensor:
    """Return the linear maps of the columns of ``known`` that are closest to ``wanted`` on the first samples."""
    return known @ torch.linalg.lstsq(known[: len(wanted)], wanted).solution


def _compare(true: Tensor, read: Tensor) -> Read:
    """Return true and read angles, both in (-pi, pi] around the circular mean of the true ones, and R^2."""
    middle = torch.exp(1j * true).mean().angle()
    true = _wrapped(true - middle)
    apart = _wrapped(read - middle - true)
    r2 = 1 - float(apart.square().sum() / true.square().sum())
    return Read(true.numpy(), (true + apart).numpy(), r2)


def _wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
