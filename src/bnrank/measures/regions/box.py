"""All regions of a network in a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrank._core import validation
from bnrank.measures.regions.cells import Ball, Cell, Cells, Polytope
from bnrank.measures.regions.inputs import pairs
from bnrank.measures.regions.line import sweep_lines
from bnrank.measures.regions.maps import Array, read
from bnrank.measures.regions.plane import sweep_plane
from bnrank.measures.regions.region import Regions
from bnrank.measures.regions.shapes import Polygons
from bnrank.measures.regions.sweep import cut_off, sweep

__all__ = ["enumerate"]

FAST, MOST = 8, 12  # inputs up to which vertices are faster than linear programmes, and fit in memory


@dataclass(frozen=True)
class _Segments:
    """Intervals of x."""

    ends: Array

    def shape(self, index: int) -> dict[str, Any]:
        """Return what a Region knows of its shape."""
        ends = self.ends[index]
        return _shape(np.array([[-1.0], [1.0]]), ends * [-1.0, 1.0], ends[:, None])

    def sizes(self) -> Array:
        """Return the lengths."""
        return np.diff(self.ends)[:, 0]


@dataclass(frozen=True)
class _Polygons:
    """Polygons of x."""

    polygons: Polygons

    def shape(self, index: int) -> dict[str, Any]:
        """Return what a Region knows of its shape."""
        corners = self.polygons.corners(index)
        along = np.roll(corners, -1, 0) - corners
        lengths = np.linalg.norm(along, axis=1, keepdims=True)
        rows = np.stack([along[:, 1], -along[:, 0]], 1)[lengths[:, 0] > 0] / lengths[lengths > 0, None]
        return _shape(rows, (rows * corners[lengths[:, 0] > 0]).sum(1), corners)

    def sizes(self) -> Array:
        """Return the areas."""
        return self.polygons.areas()


@dataclass(frozen=True)
class _Polytopes:
    """Cells in coordinates y, x = center + half y."""

    cells: list[Cell]
    center: Array
    half: Array

    def shape(self, index: int) -> dict[str, Any]:
        """Return what a Region knows of its shape."""
        cell = self.cells[index]
        rows = cell.rows / self.half
        lengths = np.linalg.norm(rows, axis=1)
        vertices = self.center + self.half * cell.vertices if isinstance(cell, Polytope) else None
        return _shape(rows / lengths[:, None], (cell.sides + rows @ self.center) / lengths, vertices)

    def sizes(self) -> Array:
        """Refuse to return volumes."""
        raise ValueError(f"sizes: got a box with d_in = {len(self.half)}, expected at most 2 with method='auto'")


def _shape(rows: Array, sides: Array, vertices: Array | None) -> dict[str, Any]:
    return {
        "halfspaces": (torch.from_numpy(rows), torch.from_numpy(sides)),
        "vertices": None if vertices is None else torch.from_numpy(vertices),
    }


def enumerate(
    net: nn.Module, box: object, *, rtol: float = 1e-6, limit: int = 100_000, method: str = "auto"
) -> Regions:
    """Return all regions of a small network in a box.

    Exact: layer by layer, every region is cut along the hyperplanes where a neuron changes sign. If ``complete``, the
    largest rank of a Jacobian among them is Rank_J over the box (T18).

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    box : array_like
        Rows (low, high), (d_in, 2), as bounds are in ``scipy.optimize``, or one such pair for all inputs.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    limit : int
        Stop when so many regions are found.
    method : {"auto", "vertices", "linear programmes"}
        How a hyperplane is known to cross a region. "vertices": there are vertices on both sides; thousands of regions
        a second for few inputs, but regions have of the order of 2^d_in vertices. "linear programmes": a ball fits in
        on both sides; about a hundred regions a second, for any d_in. "auto": vertices up to 8 inputs.

    Returns
    -------
    Regions
        One for each activation pattern, with half-spaces and vertices.

    Raises
    ------
    TypeError
        If the network is no such chain; the message says what is in the way.
    ValueError
        If an argument is out of range, or the network is not finite in the box.

    Notes
    -----
    A part stays with its neighbor if, in units of half the sides of the box, it reaches less than 1e-9 beyond the kink
    (vertices), no ball of radius 1e-9 fits in (linear programmes), or it reaches less than 1e-12 beyond (intervals and
    polygons, "auto" for up to 2 inputs). A preactivation is 0 as in :func:`along_line` and :func:`in_plane`.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3), torch.eye(3)])  # x -> relu(x): one region for each orthant
    >>> regions = enumerate(net, (-1, 1))
    >>> len(regions), regions.complete, regions.rank, regions.rank_counts
    (8, True, 3, {0: 1, 1: 3, 2: 3, 3: 1})
    """
    layers = read(net)
    d = layers.d_in
    bounds = pairs(box, "box", d)
    rtol, limit = validation.rtol(rtol), validation.integer(limit, "limit")
    method = validation.choice(method, "method", ["auto", "vertices", "linear programmes"])
    if method == "vertices" and d > MOST:
        raise ValueError(
            f"method: got 'vertices' for d_in = {d}, expected 'linear programmes' for more than {MOST} inputs"
        )
    geometry: _Segments | _Polygons | _Polytopes
    if method == "auto" and d == 1:
        pieces, patterns, maps, complete = sweep_lines(layers, bounds[:, :1], bounds[:, 1:], limit)
        geometry = _Segments(bounds[0, 0] + (bounds[0, 1] - bounds[0, 0]) * (pieces.ends + 1) / 2)
        points = geometry.ends.mean(1, keepdims=True)
    elif method == "auto" and d == 2:
        swept, polygons, points = sweep_plane(layers, np.zeros(2), np.eye(2), bounds, limit)
        geometry = _Polygons(polygons)
        patterns, maps, complete = swept.patterns, swept.maps, swept.complete
    else:
        kind: type[Cell] = Polytope if method == "vertices" or (method == "auto" and d <= FAST) else Ball
        center, half = bounds.mean(1), np.diff(bounds)[:, 0] / 2
        start = np.vstack([center, np.diag(half), half])
        swept_cells = sweep(layers, start[None], Cells([kind.cube(d)]), limit)
        cells = [cell for part in swept_cells.shapes for cell in part.cells]
        geometry = _Polytopes(cells, center, half)
        points = center + half * np.stack([cell.center() for cell in cells])
        patterns, maps, complete = swept_cells.patterns, swept_cells.maps, swept_cells.complete
    note = "The rank is Rank_J over the box: all of its regions are seen."
    if not complete:
        note = f"The rank is a lower bound on Rank_J over the box: not all regions are seen{cut_off(complete, limit)}."
    return Regions(
        domain="box",
        complete=complete,
        note=note,
        rtol=rtol,
        activation_regions=len(points),
        points=torch.from_numpy(points),
        patterns=torch.from_numpy(patterns),
        _layers=layers,
        _maps=maps,
        _shape=geometry.shape,
        _sizes=geometry.sizes,
    )
