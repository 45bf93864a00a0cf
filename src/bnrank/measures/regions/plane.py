"""Exact regions of a network in a plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.regions.inputs import plane
from bnrank.measures.regions.maps import Array, Layers, read
from bnrank.measures.regions.region import Regions
from bnrank.measures.regions.shapes import Polygons
from bnrank.measures.regions.sweep import Swept, beside, cut_off, sweep

__all__ = ["in_plane", "sweep_plane"]


@dataclass(frozen=True)
class _Geometry:
    """Polygons in the coordinates (a, b)."""

    polygons: Polygons

    def shape(self, index: int) -> dict[str, Any]:
        """Return what a Region knows of its shape."""
        return {"polygon": torch.from_numpy(self.polygons.corners(index))}

    def sizes(self) -> Array:
        """Return the areas."""
        return self.polygons.areas()


def in_plane(
    net: nn.Module,
    origin: Tensor | np.ndarray,
    u: Tensor | np.ndarray,
    v: Tensor | np.ndarray,
    bounds: object = (-1.0, 1.0),
    *,
    rtol: float = 1e-6,
    limit: int = 1_000_000,
) -> Regions:
    """Return the polygons of a plane, origin + a u + b v, on which a network is affine.

    Exact at any depth: layer by layer, every polygon is cut along the lines where a neuron changes sign. A neuron that
    is 0 on a whole polygon is taken as in :func:`along_lines`.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    origin, u, v : Tensor or ndarray
        (d_in,); u and v linearly independent, of any length.
    bounds : array_like
        ((a_low, a_high), (b_low, b_high)), or one pair for both.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    limit : int
        Stop when so many regions are found.

    Returns
    -------
    Regions
        One for each activation pattern, with polygons in (a, b); their areas add up to that of the rectangle.

    Raises
    ------
    TypeError
        If the network is no such chain; the message says what is in the way.
    ValueError
        If an argument is out of range, u and v are parallel, or the network is not finite there.

    Notes
    -----
    A preactivation w.a + b is 0 if it is below 1e-12 (||w|| ||a|| + |b|), where a may be any of the previous
    activations and their changes along u and v across the rectangle. So a part that reaches less than 5e-13 of the
    rectangle beyond a kink stays with its neighbor.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(2, 3), torch.eye(2)])  # x_1, x_2 through a ReLU
    >>> regions = in_plane(net, torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1])
    >>> len(regions), regions.rank, regions.rank_counts, regions.sizes.sum().item()
    (4, 2, {0: 1, 1: 2, 2: 1}, 4.0)
    """
    layers = read(net)
    start, axes, rectangle = plane(origin, u, v, bounds, layers.d_in)
    rtol, limit = validation.rtol(rtol), validation.integer(limit, "limit")
    swept, polygons, points = sweep_plane(layers, start, axes, rectangle, limit)
    geometry = _Geometry(polygons)
    cut = cut_off(swept.complete, limit)
    return Regions(
        domain="plane",
        complete=False,
        note=f"The rank is a lower bound on Rank_J: only the regions that the rectangle meets are seen{cut}.",
        rtol=rtol,
        activation_regions=len(points),
        points=torch.from_numpy(points),
        patterns=torch.from_numpy(swept.patterns),
        _layers=layers,
        _maps=swept.maps,
        _shape=geometry.shape,
        _sizes=geometry.sizes,
    )


def sweep_plane(
    layers: Layers, origin: Array, axes: Array, bounds: Array, limit: int
) -> tuple[Swept[Polygons], Polygons, Array]:
    """Return the regions in a rectangle of the plane, their polygons in its coordinates, and points inside them."""
    center, half = bounds.mean(1), np.diff(bounds)[:, 0] / 2
    scaled = half[:, None] * axes
    start = np.vstack([origin + center @ axes, scaled, beside(scaled)])
    square = Polygons(np.array([[[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]]), np.array([4]))
    swept = sweep(layers, start[None], square, limit)
    found = Polygons.joined(swept.shapes)
    points = start[0] + found.centers() @ scaled
    return swept, Polygons(center + half * found.vertices, found.counts), points
