"""Exact class regions of a classifier in a plane, and the points where three of them meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures.regions.domains import plane, sweep_plane
from bnrank.measures.regions.pieces import ROUNDING, Layers, read
from bnrank.measures.regions.shapes import CHUNK_ENTRIES, Array, Polygons

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
    start, axes, rectangle = plane(origin, u, v, bounds, layers.d_in)
    max_regions = validation.integer(max_regions, "max_regions")
    validation.expect(len(layers.weights[-1]) >= 2, "net", "one output", "one output per class, two at least")
    swept, _ = sweep_plane(layers, start, axes, rectangle, max_regions)
    center, half = rectangle.mean(1), np.diff(rectangle)[:, 0] / 2
    found = _Partition.of(layers, start + center @ axes, half[:, None] * axes, swept.shapes)
    spots, classes = found.tripoints()
    ends, beside = found.boundaries()
    labels, cells = np.array(found.labels), Polygons.of(found.corners).scaled(center, half)
    areas = cells.sizes()
    points = center + half * spots
    return ClassRegions(
        points=torch.from_numpy(points),
        inputs=torch.from_numpy(start + points @ axes),
        classes=classes,
        cell_classes=torch.from_numpy(labels),
        boundaries=torch.from_numpy(center + half * ends),
        boundary_classes=torch.from_numpy(beside),
        areas=torch.from_numpy(np.bincount(labels + 1, areas, len(layers.weights[-1]) + 1)[1:]),
        tied=float(areas[labels < 0].sum()),
        complete=swept.complete,
        cells=tuple(torch.from_numpy(cells.corners(i)) for i in range(len(cells))),
    )


@dataclass
class _Partition:
    """Cells of one class each, and candidates for tripoints and boundaries, in coordinates of [-1, 1]^2.

    Attributes
    ----------
    corners, labels : list
        The cells and their classes; -1 for ties.
    spots : list
        Points where three outputs or more tie for the largest, each with the classes of the cells that have it as a
        corner within the same polygon.
    inner : list
        Edges between cells of different classes within a polygon: both ends, and both classes.
    outer : list
        Edges of polygons along which two outputs or more tie for the largest: both ends, and the class inside.
    """

    corners: list[Array] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    spots: list[tuple[Array, frozenset[int]]] = field(default_factory=list)
    inner: list[tuple[Array, tuple[int, int]]] = field(default_factory=list)
    outer: list[tuple[Array, int]] = field(default_factory=list)

    @classmethod
    def of(cls, layers: Layers, origin: Array, axes: Array, polygons: Polygons) -> _Partition:
        """Divide polygons on which a network is affine."""
        result = cls()
        widest = max(len(weight) for weight in layers.weights)
        chunk = max(1, CHUNK_ENTRIES // (polygons.vertices.shape[1] * widest))
        for first in range(0, len(polygons), chunk):
            part = polygons[first : first + chunk]
            values, size = _outputs(layers, *(origin + at @ axes for at in (part.vertices, part.centers())))
            top = values >= values.max(2, keepdims=True) - size[:, None, None]
            for i, (winning, number) in enumerate(zip(top.all(1), top.sum(2).max(1), strict=True)):
                corners, n = part.corners(i), part.counts[i]
                if number == 1 and winning.any():
                    result.corners.append(corners)
                    result.labels.append(int(winning.argmax()))
                else:
                    result.divide(corners, values[i, :n], size[i])
        return result

    def divide(self, corners: Array, values: Array, size: float) -> None:
        """Divide one polygon, given the outputs at its vertices, (vertices, d_out)."""
        points, outputs = list(corners), list(values)
        beside: dict[tuple[int, int], list[int]] = defaultdict(list)
        around: dict[int, set[int]] = defaultdict(set)
        for winners, loop in _divided(points, outputs, size):
            label = winners[0] if len(winners) == 1 else -1
            self.corners.append(np.stack([points[p] for p in loop]))
            self.labels.append(label)
            for p, q in zip(loop, [*loop[1:], loop[0]], strict=True):
                beside[min(p, q), max(p, q)].append(label)
                around[p].add(label)
        ties = [int((f >= f.max() - size).sum()) for f in outputs]
        for p, touching in around.items():
            if ties[p] >= 3 or len(touching - {-1}) >= 3:
                self.spots.append((points[p], frozenset(touching - {-1})))
        for (p, q), labels in beside.items():
            ends = np.stack([points[p], points[q]])
            if len(labels) == 2 and labels[0] != labels[1]:
                self.inner.append((ends, (min(labels), max(labels))))
            elif len(labels) == 1 and min(ties[p], ties[q]) >= 2:
                self.outer.append((ends, labels[0]))

    def tripoints(self) -> tuple[Array, tuple[tuple[int, ...], ...]]:
        """Return the points where cells of three or more classes meet, (points, 2), and these classes.

        Cells of one polygon share their corners. Cells of different ones meet in a tripoint only where three outputs
        tie at a corner of each: a kink of f that ends on the side of a polygon continues into it.
        """
        if not self.spots:
            return np.zeros((0, 2)), ()
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
        from scipy.spatial import cKDTree

        where = np.stack([spot for spot, _ in self.spots])
        near = cKDTree(where).query_pairs(NEAR, output_type="ndarray")
        graph = coo_array((np.ones(len(near)), near.T), shape=(len(where),) * 2)
        groups = connected_components(graph, directed=False)[1]
        found = []
        for group in np.unique(groups):
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


def _divided(points: list[Array], values: list[Array], size: float) -> list[tuple[tuple[int, ...], list[int]]]:
    """Return the cells of a convex polygon on each of which some affine functions are the largest.

    Functions are inserted one by one. Cells refer to shared vertices by index, so that the cells that meet at a point
    are known without comparing coordinates.

    Parameters
    ----------
    points, values : list of ndarray
        Coordinates (2,) of the vertices, and the values of all functions there. New vertices are appended.
    size : float
        Differences up to ``size`` are 0.

    Returns
    -------
    list
        Functions that are largest on a cell, and the numbers of its vertices, counter-clockwise.
    """
    table = np.stack(values)
    highest = (table[:, :, None] - table[:, None, :]).max(0)  # largest excess of function i over function j
    first, *others = np.flatnonzero(~(highest < -size).any(1)).tolist()
    cells: list[tuple[tuple[int, ...], list[int]]] = [((first,), list(range(len(points))))]
    inserted = [first]
    for k in others:
        excess = [f[k] - f[inserted].max() for f in values]
        sign = [0 if abs(e) <= size else 1 if e > 0 else -1 for e in excess]
        crossings: dict[tuple[int, int], int] = {}
        before, cells = cells, []
        for label, loop in before:
            signs = {sign[p] for p in loop}
            if signs == {0}:
                cells.append(((*label, k), loop))
            elif 1 not in signs:
                cells.append((label, loop))
            elif -1 not in signs:
                cells.append(((k,), loop))
            else:
                above: list[int] = []
                below: list[int] = []
                for p, q in zip(loop, [*loop[1:], loop[0]], strict=True):
                    above += [p] if sign[p] >= 0 else []
                    below += [p] if sign[p] <= 0 else []
                    if sign[p] * sign[q] < 0:
                        a, b = min(p, q), max(p, q)
                        if (a, b) not in crossings:
                            share = excess[a] / (excess[a] - excess[b])
                            crossings[a, b] = len(points)
                            points.append(points[a] + share * (points[b] - points[a]))
                            values.append(values[a] + share * (values[b] - values[a]))
                        above.append(crossings[a, b])
                        below.append(crossings[a, b])
                cells += [((k,), above), (label, below)]
        inserted.append(k)
    return cells


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
