"""Exact class regions of a classifier in a plane, and the points where three of them meet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures.regions.domains import plane
from bnrank.measures.regions.pieces import read, sweep
from bnrank.measures.regions.shapes import SQUARE, Array, Polygons

Vector = Data | Sequence[float]

NEAR = 1e-9  # points closer than this are merged, in coordinates in which the rectangle is [-1, 1]^2


@dataclass(frozen=True, eq=False)
class ClassRegions(Printed):
    """The parts of a rectangle where each class has the largest output; all in float64.

    Attributes
    ----------
    points : Tensor
        The tripoints (a, b), (tripoints, 2), in ascending order of a.
    inputs : Tensor
        The same points x = origin + a u + b v, (tripoints, d_in).
    classes : tuple of tuple of int
        The classes that meet at each, ascending; three or more.
    cell_classes : Tensor
        The class of each of ``cells``, (cells,); -1 where two or more outputs tie for the largest on all of the cell.
    boundaries : Tensor
        Segments (a, b) to (a, b) between cells of different classes, (segments, 2, 2).
    boundary_classes : Tensor
        The two classes on the sides of each segment, ascending, (segments, 2); -1 as in ``cell_classes``.
    areas : Tensor
        Area in (a, b) of each class, (d_out,), without ties.
    tied : float
        Area in (a, b) that belongs to no class.
    complete : bool
        Whether the whole rectangle was covered; if not, the search stopped at ``max_regions``.
    cells : tuple of Tensor
        Convex polygons in (a, b), counter-clockwise, each (vertices, 2), that fill the rectangle. On each the network
        is affine and one class has the largest output.
    """

    points: Tensor
    inputs: Tensor
    classes: tuple[tuple[int, ...], ...]
    cell_classes: Tensor = field(repr=False)
    boundaries: Tensor = field(repr=False)
    boundary_classes: Tensor = field(repr=False)
    areas: Tensor = field(repr=False)
    tied: float
    complete: bool
    cells: tuple[Tensor, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.points)

    def __str__(self) -> str:
        present = int((self.areas > 0).sum())
        cut = "" if self.complete else "; the rectangle was not fully covered"
        tie = f", {self.tied:.3g} of the area without a class" if self.tied else ""
        return f"{len(self)} tripoint{'' if len(self) == 1 else 's'} of {present} classes{tie}{cut}"


def tripoints(
    net: nn.Module, origin: Vector, u: Vector, v: Vector, bounds: object = (-1.0, 1.0), *, max_regions: int = 1_000_000
) -> ClassRegions:
    """Return the class regions of a classifier in a plane, origin + a u + b v, and where three or more of them meet.

    Exact at any depth. The region of class k is the open set where output k is larger than all others. A tripoint is a
    point of the rectangle in the closure of three or more of these sets (within the rectangle). A function f = h o z
    with a scalar z has none (T17; Jacot2023a section 5): near z(x) at most two classes have the largest output, one on
    each side. The plane is cut into the polygons on which the network is affine, as in :func:`in_plane`, and each of
    these along the lines where two outputs tie for the largest.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes; one output per
        class, two at least.
    origin, u, v : Tensor or ndarray
        (d_in,); u and v linearly independent. For a network with two inputs (0, 0), (1, 0) and (0, 1) are the plane.
    bounds : array_like
        ((a_low, a_high), (b_low, b_high)), or one pair for both.
    max_regions : int
        Maximum number of polygons on which the network is affine.

    Returns
    -------
    ClassRegions
        Tripoints, cells and boundaries.

    Raises
    ------
    TypeError
        If the network is not such a chain; the message gives the reason.
    ValueError
        If an argument is out of range, u and v are parallel, the network has one output, or is not finite there.

    Notes
    -----
    A region on which outputs tie belongs to no class, unlike with ``argmax``, which takes the first: a class that is
    never strictly the largest has no region, and a region of ties creates no tripoint. Outputs tie if they differ by
    less than 1e-12 (||w|| ||a|| + |b|), w and b of the last layer and a of the layer before. Points closer than 1e-9 of
    half the sides of the rectangle are merged: two such tripoints become one, at which all of their classes meet. A
    tripoint on an edge of the rectangle counts if three cells inside meet there.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> corners = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])  # of a triangle: the nearest one wins
    >>> net = from_layers([corners], [-(corners**2).sum(1) / 2])
    >>> found = tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], (-3, 3))
    >>> print(found)
    1 tripoint of 3 classes
    >>> found.classes, len(found.boundaries), round(found.points[0, 1].item(), 4)
    (((0, 1, 2),), 3, -0.1667)
    """
    layers = read(net)
    center, axes, rectangle = plane(origin, u, v, bounds, layers.d_in)
    max_regions, number = validation.integer(max_regions, "max_regions"), len(layers.weights[-1])
    validation.expect(number >= 2, "net", "one output", "one output per class, two at least")
    swept = sweep(layers, center[None], axes[None], SQUARE, max_regions, _outputs)
    cells, top = _cells(swept.shapes, swept.maps)
    whole = top.all(1)
    labels = np.where(whole.sum(1) == 1, whole.argmax(1), -1)
    spots, classes = _tripoints(cells, top, labels)
    ends, beside = _boundaries(cells, top, labels)
    middle, half = rectangle.mean(1), np.diff(rectangle)[:, 0] / 2
    areas = cells.sizes() * half.prod()
    return ClassRegions(
        points=torch.from_numpy(middle + half * spots),
        inputs=torch.from_numpy(center + spots @ axes),
        classes=classes,
        cell_classes=torch.from_numpy(labels),
        boundaries=torch.from_numpy(middle + half * ends),
        boundary_classes=torch.from_numpy(beside),
        areas=torch.from_numpy(np.bincount(labels + 1, areas, number + 1)[1:]),
        tied=float(areas[labels < 0].sum()),
        complete=swept.complete,
        cells=tuple(torch.from_numpy(middle + half * cells.corners(i)) for i in range(len(cells))),
    )


def _outputs(z: Array, size: Array) -> Array:
    """Return the outputs at the center and along both axes, and what counts as 0 of them, (pieces, 4, d_out)."""
    return np.concatenate([z[:, :3], np.broadcast_to(size.max(1)[:, None, None], z[:, :1].shape)], 1)


def _cells(polygons: Polygons, outputs: Array) -> tuple[Polygons, Array]:
    """Return cells with the same largest outputs everywhere inside, and these, (cells, most vertices, d_out).

    A polygon with several is cut along all lines where two outputs are equal.
    """
    top = _largest(polygons, outputs)
    mixed = np.flatnonzero((top.sum(2).max(1) > 1) | ~np.any(top.all(1), 1))
    first, second = np.triu_indices(outputs.shape[2], 1)
    differences = outputs[mixed, :3][:, :, first] - outputs[mixed, :3][:, :, second]
    parents, parts = polygons[mixed].cut(differences, outputs[mixed, 3][:, first], sys.maxsize - 1)
    whole = np.delete(np.arange(len(polygons)), mixed)
    cells = Polygons.joined([polygons[whole], parts])
    return cells, _largest(cells, outputs[np.concatenate([whole, mixed[parents]])])


def _largest(polygons: Polygons, outputs: Array) -> Array:
    """Return which outputs are the largest at every vertex, up to rounding, (polygons, most vertices, d_out)."""
    values = polygons.vertices @ outputs[:, 1:3] + outputs[:, :1]
    return np.asarray(values >= values.max(2, keepdims=True) - outputs[:, 3:])


def _tripoints(cells: Polygons, top: Array, labels: Array) -> tuple[Array, tuple[tuple[int, ...], ...]]:
    """Return the points where cells of three or more classes meet, (points, 2), and these classes.

    Cells of different polygons meet in a tripoint only where three outputs tie at a corner of each: a kink of f that
    ends on the side of a polygon continues into it.
    """
    from sklearn.cluster import DBSCAN

    cell, vertex = np.nonzero(top.sum(2) >= 3)
    if not len(cell):
        return np.zeros((0, 2)), ()
    where = cells.vertices[cell, vertex]
    groups = DBSCAN(NEAR, min_samples=1, algorithm="kd_tree").fit_predict(where)
    found = []
    for group in range(groups.max() + 1):
        classes = sorted(set(labels[cell[groups == group]].tolist()) - {-1})
        if len(classes) >= 3:
            found.append((*where[groups == group].mean(0), tuple(classes)))
    found.sort()
    return np.array([spot[:2] for spot in found]).reshape(-1, 2), tuple(spot[2] for spot in found)


def _boundaries(cells: Polygons, top: Array, labels: Array) -> tuple[Array, Array]:
    """Return the segments between cells of different classes, (segments, 2, 2), and the classes, (segments, 2).

    They are what two edges with different classes have in common, among edges along which outputs tie.
    """
    after = np.roll(cells.vertices, -1, 1)
    lengths = np.linalg.norm(after - cells.vertices, axis=2)
    cell, vertex = np.nonzero(((top & np.roll(top, -1, 1)).sum(2) >= 2) & (lengths > NEAR))
    ends, lengths, labels = np.stack([cells.vertices, after], 2)[cell, vertex], lengths[cell, vertex], labels[cell]
    directions = (ends[:, 1] - ends[:, 0]) / lengths[:, None]
    segments, classes = [], []
    for i, direction in enumerate(directions):
        others = i + 1 + np.flatnonzero(labels[i + 1 :] != labels[i])
        offsets = ends[others] - ends[i, 0]
        heights = offsets @ np.array([-direction[1], direction[0]])
        positions = np.sort(offsets @ direction, 1)
        start, stop = np.maximum(positions[:, 0], 0), np.minimum(positions[:, 1], lengths[i])
        for j in np.flatnonzero((np.abs(heights) <= NEAR).all(1) & (stop - start > NEAR)):
            segments.append(ends[i, 0] + np.outer([start[j], stop[j]], direction))
            classes.append(sorted((labels[i], labels[others[j]])))
    return np.array(segments).reshape(-1, 2, 2), np.array(classes, int).reshape(-1, 2)
