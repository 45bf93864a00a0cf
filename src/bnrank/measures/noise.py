"""Effect of an autoencoder on noise: distances to the data, or to a curve, before and after (T17)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.validation import Data
from bnrank.networks.functional import Functional, example

__all__ = ["Denoising", "denoising", "distances_to_samples"]


@dataclass(frozen=True)
class Denoising:
    """Samples with noise before and after an autoencoder.

    Attributes
    ----------
    noisy, outputs : Tensor
        x_i + e_i and f(x_i + e_i), (N, d), float64.
    before, after : Tensor
        Distances of the rows of ``noisy`` and of ``outputs``, (N,), float64.
    kept : Tensor
        ||f(x_i + e_i) - f(x_i)|| / ||e_i||, (N,): the fraction of the noise in the output, independent of the error of
        f at x_i.
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


def denoising(
    net: nn.Module, x: Data, std: float, *, distance: Callable[[Tensor], Tensor] | None = None, seed: int = 0
) -> Denoising:
    """Return samples with noise N(0, std^2) on every entry, and their distances before and after the network.

    An autoencoder whose rank is that of its data projects points near the data onto them (T17; Jacot2023a section 5):
    noise normal to the data is removed, tangential noise is preserved.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with as many outputs as inputs; in eval mode, in float64, left unchanged.
    x : Tensor or ndarray
        Samples without noise, (N, ...).
    std : float
        Standard deviation of the noise, above 0.
    distance : callable, optional
        Distances (N,) of points (N, d), such as to the curve that the samples lie on. By default the distance of a row
        to its own sample without noise.
    seed : int
        Random seed.

    Returns
    -------
    Denoising
        Points and distances.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the output is not of the size of the input, or ``distance`` does not return one
        number per point.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.mlp.from_layers([torch.tensor([[1.0, 0.0], [0.0, 0.0]])])
    >>> found = denoising(net, torch.ones(100, 2), 0.1, distance=lambda points: points[:, 1].abs())
    >>> found.ratio, round(float(found.before.mean()), 1)
    (0.0, 1.0)
    """
    samples = example(net, x).detach().double().cpu()
    std = validation.number(std, "std", 0.0, strict=True)
    # not torch's generator, which with a network's seed would reproduce the network's initial weights
    generator = np.random.default_rng(validation.seed(seed, bits=128))
    noise = std * torch.from_numpy(generator.standard_normal(tuple(samples.shape)))
    function = Functional(net)
    with torch.no_grad():
        noisy, plain = (function(part).flatten(1).double().cpu() for part in (samples + noise, samples))
    flat, noise = samples.flatten(1), noise.flatten(1)
    fits = noisy.shape == flat.shape
    validation.expect(fits, "net", f"{noisy.shape[1]} outputs", f"as many as inputs, {flat.shape[1]}")
    before, after = (
        (points - flat).norm(dim=1) if distance is None else _distances(distance(points), len(flat))
        for points in (flat + noise, noisy)
    )
    return Denoising(flat + noise, noisy, before, after, (noisy - plain).norm(dim=1) / noise.norm(dim=1))


def _distances(values: object, n: int) -> Tensor:
    if not isinstance(values, Tensor) or tuple(values.shape) != (n,):
        raise ValueError(f"distance: got {validation.describe(values)}, expected one number per point, a Tensor ({n},)")
    return values.double()


def distances_to_samples(points: Tensor, x: Tensor) -> Tensor:
    """Return the Euclidean distance of points to the nearest of the samples, (N,), float64.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit.

    Examples
    --------
    >>> import torch
    >>> distances_to_samples(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 5.0]]))
    tensor([1.], dtype=torch.float64)
    """
    x = validation.samples(x, "x").double()
    points = validation.samples(points, "points", features=x.shape[1]).double()
    return torch.cdist(points, x, compute_mode="donot_use_mm_for_euclid_dist").min(1).values
