"""Exact class regions of a classifier in a plane, and the points where three of them meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures.regions.domains import plane, sweep_plane
from bnrank.measures.regions.pieces import CHUNK_ENTRIES, ROUNDING, Layers, read
from bnrank.measures.regions.shapes import Array, Polygons

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
    swept = sweep_plane(layers, center, axes, max_regions)
    partition = _Partition.of(layers, center, axes, swept.shapes)
    spots, classes = partition.tripoints()
    ends, beside = partition.boundaries()
    middle, half = rectangle.mean(1), np.diff(rectangle)[:, 0] / 2
    labels = np.array([label for label, _ in partition.cells])
    cells = [middle + half * corners for _, corners in partition.cells]
    slots = np.arange(max(map(len, cells)))
    areas = Polygons(np.stack([cell[np.minimum(slots, len(cell) - 1)] for cell in cells])).sizes()
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
        cells=tuple(map(torch.from_numpy, cells)),
    )


@dataclass
class _Partition:
    """Cells of one class each, and candidates for tripoints and boundaries, in coordinates of [-1, 1]^2.

    Attributes
    ----------
    cells : list
        The class of each, -1 for ties, and its vertices.
    spots : list
        Corners where three outputs or more tie for the largest, with the classes of the cells there within a polygon.
    inner : list
        Edges between cells of different classes within a polygon: both ends, and both classes.
    outer : list
        Edges of polygons along which two outputs or more tie for the largest: both ends, and the class inside.
    """

    cells: list[tuple[int, Array]] = field(default_factory=list)
    spots: list[tuple[Array, frozenset[int]]] = field(default_factory=list)
    inner: list[tuple[Array, tuple[int, int]]] = field(default_factory=list)
    outer: list[tuple[Array, int]] = field(default_factory=list)

    @classmethod
    def of(cls, layers: Layers, center: Array, axes: Array, polygons: Polygons) -> _Partition:
        """Divide polygons on which a network is affine."""
        result = cls()
        widest = max(len(weight) for weight in layers.weights)
        chunk = max(1, CHUNK_ENTRIES // (polygons.vertices.shape[1] * widest))
        for first in range(0, len(polygons), chunk):
            part = polygons[first : first + chunk]
            values, size = _outputs(layers, *(center + at @ axes for at in (part.vertices, part.centers())))
            top = values >= values.max(2, keepdims=True) - size[:, None, None]
            for i, (winning, ties) in enumerate(zip(top.all(1), top.sum(2).max(1), strict=True)):
                if ties == 1 and winning.any():
                    result.cells.append((int(winning.argmax()), part.corners(i)))
                else:
                    result.divide(np.hstack([part.vertices[i], values[i]])[part.distinct()[i]], size[i])
        return result

    def divide(self, rows: Array, size: float) -> None:
        """Divide one polygon into cells, given its vertices and the outputs there, (vertices, 2 + d_out)."""
        excess = rows[:, 2:, None] - rows[:, None, 2:]
        equal = (np.abs(excess) <= size).all(0)
        beaten = (excess.max(0) < -size).any(1)
        rivals = np.flatnonzero(~beaten & (equal.argmax(1) == np.arange(len(equal)))).tolist()  # one of equal outputs
        cells = {}
        for k in rivals:
            cell = rows
            for j in rivals:
                if j != k:
                    cell = _clipped(cell, cell[:, 2 + k] - cell[:, 2 + j], size, k < j)
            if len(cell):
                cells[k] = cell
        labels = {k: k if equal[k].sum() == 1 else -1 for k in cells}
        for k, cell in cells.items():
            corners, top = cell[:, :2], cell[:, 2:] >= cell[:, 2:].max(1, keepdims=True) - size
            self.cells.append((labels[k], corners))
            for corner, winning in zip(corners, top, strict=True):
                if winning.sum() >= 3:
                    self.spots.append((corner, frozenset(labels[j] for j in cells if winning[j]) - {-1}))
            for ends, winning in zip(
                np.stack([corners, np.roll(corners, -1, 0)], 1), top & np.roll(top, -1, 0), strict=True
            ):
                beside = [j for j in cells if winning[j] and j != k]
                if not beside and winning.sum() >= 2:
                    self.outer.append((ends, labels[k]))
                elif beside and k < beside[0] and labels[k] != labels[beside[0]]:
                    first, second = sorted((labels[k], labels[beside[0]]))
                    self.inner.append((ends, (first, second)))

    def tripoints(self) -> tuple[Array, tuple[tuple[int, ...], ...]]:
        """Return the points where cells of three or more classes meet, (points, 2), and these classes.

        Cells of different polygons meet in a tripoint only where three outputs tie at a corner of each: a kink of f
        that ends on the side of a polygon continues into it.
        """
        if not self.spots:
            return np.zeros((0, 2)), ()
        from sklearn.cluster import DBSCAN

        where = np.stack([spot for spot, _ in self.spots])
        groups = DBSCAN(NEAR, min_samples=1, algorithm="kd_tree").fit_predict(where)
        found = []
        for group in range(groups.max() + 1):
            members = np.flatnonzero(groups == group)
            classes = frozenset().union(*(self.spots[i][1] for i in members))
            if len(classes) >= 3:
                found.append((*where[members].mean(0), tuple(sorted(classes))))
        found.sort()
        return np.array([spot[:2] for spot in found]).reshape(-1, 2), tuple(spot[2] for spot in found)

    def boundaries(self) -> tuple[Array, Array]:
        """Return the segments between cells of different classes, (segments, 2, 2), and the classes, (segments, 2)."""
        found = [*self.inner, *_overlaps(self.outer)]
        classes = np.array([classes for _, classes in found], int).reshape(-1, 2)
        return np.array([ends for ends, _ in found]).reshape(-1, 2, 2), classes


def _clipped(rows: Array, excess: Array, size: float, first: bool) -> Array:
    """Return the part of a polygon, (vertices, columns), where a function of given values at the vertices is positive.

    Values up to ``size`` are 0. A polygon on which all are 0 is kept if ``first``.
    """
    signs = np.where(np.abs(excess) <= size, 0, np.sign(excess))
    if not len(rows) or (signs.max() <= 0 and (signs.min() < 0 or not first)):
        return rows[:0]
    crossed = signs * np.roll(signs, -1) < 0
    share = excess / np.where(crossed, excess - np.roll(excess, -1), np.inf)
    crossings = rows + share[:, None] * (np.roll(rows, -1, 0) - rows)
    return np.stack([rows, crossings], 1)[np.stack([signs >= 0, crossed], 1)]


def _outputs(layers: Layers, x: Array, inside: Array) -> tuple[Array, Array]:
    """Return the outputs at the vertices x (polygons, vertices, d_in), and the tolerance for ties on each polygon.

    The active neurons of a polygon are found at a point inside, (polygons, d_in): at vertices on a kink the sign is
    round-off, and neurons dead on the polygon must be exactly 0 there.
    """
    a, within = x, inside
    for weight, bias in zip(layers.weights[:-1], layers.biases[:-1], strict=True):
        z = within @ weight.T + bias
        factor = np.where(z > 0, 1.0, layers.slope)
        a, within = factor[:, None] * (a @ weight.T + bias), factor * z
    reach = np.linalg.norm(a, axis=2).max(1)
    size = reach * np.linalg.norm(layers.weights[-1], axis=1).max() + np.abs(layers.biases[-1]).max()
    return a @ layers.weights[-1].T + layers.biases[-1], ROUNDING * size + np.finfo(float).tiny


def _overlaps(edges: Sequence[tuple[Array, int]]) -> Iterator[tuple[Array, tuple[int, int]]]:
    """Iterate over the segments that two edges with different classes have in common."""
    ends = np.array([e for e, _ in edges]).reshape(-1, 2, 2)
    labels = np.array([label for _, label in edges])
    along = ends[:, 1] - ends[:, 0]
    lengths = np.linalg.norm(along, axis=1)
    long = np.flatnonzero(lengths > NEAR)
    for i in long:
        direction = along[i] / lengths[i]
        others = long[(long > i) & (labels[long] != labels[i])]
        offsets = ends[others] - ends[i, 0]
        heights = offsets @ np.array([-direction[1], direction[0]])
        positions = np.sort(offsets @ direction, 1)
        start, stop = np.maximum(positions[:, 0], 0), np.minimum(positions[:, 1], lengths[i])
        for j in np.flatnonzero((np.abs(heights) <= NEAR).all(1) & (stop - start > NEAR)):
            first, second = sorted((int(labels[i]), int(labels[others[j]])))
            yield ends[i, 0] + np.outer([start[j], stop[j]], direction), (first, second)
