"""Activations of a network, and their variance along the orbits of rotations (T17)."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank.networks import MLP

Array = NDArray[np.float64]
CONSTANT = 1e-14  # variation, relative to the size of the data, that is rounding


def activations(net: MLP, x: Tensor, layer: int) -> Tensor:
    """Return a_layer(x), (..., n_layer), float64, of a network in float64; layer 0 is x itself."""
    return next(itertools.islice(_layers(net, x), layer, None))


def _layers(net: MLP, x: Tensor) -> Iterator[Tensor]:
    a = x.double()
    yield a
    for layer in net.layers:
        a = layer(a).detach()
        a = a if layer is net.layers[-1] else a.relu()
        yield a


def rotations(v: Tensor, axis: Tensor, count: int, seed: int) -> Tensor:
    """Return random points (m, count, d) on the orbits of v, (m, d), under the rotations that fix a unit axis w.

    The orbit of v consists of (w^T v) w + ||(I - w w^T) v|| q for all unit vectors q orthogonal to w.
    """
    along = (v @ axis)[:, None] * axis
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn((len(v), count, len(axis)), generator=generator, dtype=torch.float64)
    q = q - (q @ axis)[..., None] * axis
    return along[:, None] + (v - along).norm(dim=1)[:, None, None] * q / q.norm(dim=2, keepdim=True)


def collapse(h: Tensor) -> float:
    """Return the variance within orbits over the total variance, for h (..., orbits, points, features).

    Leading dimensions are strata, such as planes orthogonal to the axis: each has its own mean. NaN if h is constant.
    """
    within, total = (float((h - h.mean(dims, keepdim=True)).square().sum()) for dims in (-2, (-3, -2)))
    return within / total if total > CONSTANT**2 * float(h.square().sum()) else float("nan")


def collapse_by_layer(net: MLP, points: Tensor) -> Array:
    """Return the share of the variance within orbits for the inputs and every layer, (L + 1,)."""
    return np.array([collapse(h) for h in _layers(net, points)])
