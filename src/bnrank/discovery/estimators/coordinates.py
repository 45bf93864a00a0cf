"""The bottleneck coordinates: encoder and decoder of a network, whitened, in a fixed order and with a fixed sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.measures.jacobian import Jacobian
from bnrank.networks.mlp import MLP, from_layers

__all__ = ["Coordinates", "coordinates", "sensitivity"]

ROWS = 500  # that derivatives are averaged over
DEAD = 1e-9  # spread, relative to the largest, below which a coordinate does not vary


@dataclass(frozen=True)
class Coordinates:
    """f = h o g, g: x -> z in R^k and h: z -> y, z of mean 0 and covariance the identity on the rows given.

    Attributes
    ----------
    encoder, decoder : MLP
        g and h, float64, in the units of the network.
    layer : int
        The layer whose preactivations hold z.
    spectrum : ndarray
        Standard deviations of these preactivations along their principal directions, descending, of the network before
        it was cut: k large ones, then the gap.
    influence : ndarray
        Root mean square of the derivative of the outputs in each z_i, (k,), descending.
    """

    encoder: MLP
    decoder: MLP
    layer: int
    spectrum: np.ndarray
    influence: np.ndarray


def coordinates(net: MLP, x: Tensor, layer: int, k: int) -> Coordinates:
    """Split a network at a layer through the k principal directions of its preactivations.

    z is unique up to a rotation. Its axes are the principal axes of how the outputs depend on it, those of
    mean_i Jh(z_i)^T Jh(z_i), most influential first; and the sign is the one for which the input that z_j is most
    correlated with, on the rows given, increases it.

    Parameters
    ----------
    net : MLP
        The network, with biases.
    x : Tensor
        Rows, (N, d_in).
    layer : int
        Counted from 1.
    k : int
        Number of coordinates, at least 1.
    """
    net = net.double()
    x = x.double()
    weights, biases = [w.detach() for w in net.weights], [b.detach() for b in net.biases]
    first = from_layers(weights[:layer], biases[:layer], net.slope)
    with torch.no_grad():
        values = first(x)
    origin = values.mean(0)
    _, s, vt = torch.linalg.svd(values - origin, full_matrices=False)
    spread = s / len(x) ** 0.5
    k = min(k, len(spread))
    used = spread[:k] > DEAD * max(float(spread[0]), 1e-300)
    scale = torch.where(used, spread[:k], 1.0)
    down, up = (vt[:k].T / scale * used).T, vt[:k].T * scale * used  # z = down (a - origin), a = origin + up z

    decoder = _decoder(net, weights, biases, layer, up, origin)
    z = (values - origin) @ down.T
    some = z[:: max(1, len(z) // ROWS)]
    gram = sum((j.mT @ j).sum(0) for j in Jacobian(decoder, some, kink_rtol=None).chunks()) / len(some)
    strength, axes = torch.linalg.eigh(gram)
    axes = axes.flip(1)
    axes = axes * _signs(z @ axes, x)
    encoder = from_layers(
        [*weights[: layer - 1], axes.T @ down @ weights[layer - 1]],
        [*biases[: layer - 1], axes.T @ down @ (biases[layer - 1] - origin)],
        net.slope,
    )
    decoder = _decoder(net, weights, biases, layer, up @ axes, origin)
    influence = strength.flip(0).clamp_min(0).sqrt()
    return Coordinates(encoder, decoder, layer, spread.numpy(), influence.numpy())


def sensitivity(encoder: MLP, x: Tensor, spread: Tensor) -> np.ndarray:
    """Return how much each coordinate moves with each input: root mean square of dz_j/dx_i, times the spread of x_i.

    Parameters
    ----------
    encoder : MLP
        x -> z.
    x : Tensor
        Rows, (N, d_in), of which 500 at most are used.
    spread : Tensor
        Standard deviation of every input, (d_in,).

    Returns
    -------
    ndarray
        (k, d_in).
    """
    some = x[:: max(1, len(x) // ROWS)].double()
    squares = sum(j.square().sum(0) for j in Jacobian(encoder, some, kink_rtol=None).chunks()) / len(some)
    return (torch.as_tensor(squares).sqrt() * spread).numpy()


def _decoder(net: MLP, weights: list[Tensor], biases: list[Tensor], layer: int, up: Tensor, origin: Tensor) -> MLP:
    """Return z -> y: the activation after origin + up z, and the layers that follow."""
    if layer == len(weights):
        return from_layers([up], [origin], net.slope)
    return from_layers([up, *weights[layer:]], [origin, *biases[layer:]], net.slope)


def _signs(z: Tensor, x: Tensor) -> Tensor:
    covariance = (z - z.mean(0)).T @ ((x - x.mean(0)) / x.std(0).clamp_min(1e-12))
    strongest = covariance.gather(1, covariance.abs().argmax(1, keepdim=True)).squeeze(1)
    return torch.where(strongest < 0, -1.0, 1.0).to(z.dtype)
