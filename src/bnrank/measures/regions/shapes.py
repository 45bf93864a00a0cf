"""Intervals, convex polygons and polytopes, and how they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CLOSE = 1e-12  # closer breakpoints of a line in [-1, 1] are merged
TOUCH = 1e-9  # in coordinates of [-1, 1]: parts of polytopes that extend less beyond a kink are not separated


class Pieces:
    """Pieces of [-1, 1]^k, held as arrays with one row for each.

    ``cut(z, size, max_pieces)`` returns parents and pieces after cutting piece p at the points c where
    z[p, 0, i] + c . z[p, 1:, i] = 0 for any i. Parents are the indices of the pieces before the cut. Values up to
    size[p, i] count as 0. Polygons and cells stop at ``max_pieces`` + 1 pieces.
    """

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, part: slice | Array) -> Self:
        return type(self)(*(rows[part] for rows in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all pieces of some parts as one."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass(frozen=True)
class Intervals(Pieces):
    """Intervals of [-1, 1], by their ends (pieces, 2), on lines of given indices (pieces,)."""

    ends: Array
    lines: Array

    def centers(self) -> Array:
        """Return the midpoints, (pieces, 1)."""
        return cast(Array, self.ends.mean(1, keepdims=True))

    def sizes(self) -> Array:
        """Return the lengths, (pieces,)."""
        return np.diff(self.ends)[:, 0]

    def corners(self, index: int) -> Array:
        """Return the ends of one interval, (2, 1)."""
        return self.ends[index, :, None]

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Intervals]:
        """Return parents and intervals, in order along each line."""
        low, high = self.ends.T
        at_low, at_high = (z[:, 0] + end[:, None] * z[:, 1] for end in (low, high))
        crossed = (np.minimum(at_low, at_high) < -size) & (np.maximum(at_low, at_high) > size)
        old, neuron = np.nonzero(crossed)
        start, stop = at_low[old, neuron], at_high[old, neuron]
        zeros = low[old] + (high - low)[old] * (start / (start - stop))
        order = np.lexsort((zeros, old))
        old, zeros = old[order], zeros[order]
        kept = (np.diff(old, prepend=-1) > 0) | (np.diff(zeros, prepend=0.0) > CLOSE)
        old, zeros = old[kept], zeros[kept]
        every = np.arange(len(self))
        owners, points = np.concatenate([every, old, every]), np.concatenate([low, zeros, high])
        order = np.argsort(owners, kind="stable")  # per interval: its low end, the zeros, its high end
        owners, points = owners[order], points[order]
        inside = owners[1:] == owners[:-1]
        parents, ends = owners[1:][inside], np.stack([points[:-1], points[1:]], 1)[inside]
        return parents, Intervals(ends, self.lines[parents])


@dataclass(frozen=True)
class Polygons(Pieces):
    """Convex polygons in [-1, 1]^2, by their vertices (pieces, most vertices, 2), counter-clockwise.

    The last vertex is repeated where there are fewer.
    """

    vertices: Array

    @classmethod
    def joined(cls, parts: Sequence[Polygons]) -> Polygons:
        """Return all polygons of some parts as one."""
        most = max(part.vertices.shape[1] for part in parts)
        padded = [np.pad(p.vertices, ((0, 0), (0, most - p.vertices.shape[1]), (0, 0)), mode="edge") for p in parts]
        return cls(np.concatenate(padded))

    def distinct(self) -> Array:
        """Return which vertices are not repetitions, (pieces, most vertices)."""
        return cast(Array, (self.vertices != np.roll(self.vertices, 1, 1)).any(2))

    def centers(self) -> Array:
        """Return the means of the vertices, (pieces, 2)."""
        distinct = self.distinct()
        return cast(Array, np.einsum("pvk,pv->pk", self.vertices, distinct / distinct.sum(1, keepdims=True)))

    def sizes(self) -> Array:
        """Return the areas, (pieces,)."""
        x, y = np.moveaxis(self.vertices - self.vertices[:, :1], 2, 0)
        return cast(Array, (x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(1) / 2)

    def corners(self, index: int) -> Array:
        """Return the vertices of one polygon, (vertices, 2)."""
        return cast(Array, self.vertices[index][self[index : index + 1].distinct()[0]])

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Polygons]:
        """Return parents and polygons after cutting along the lines z = 0, one neuron at a time."""
        values = self.vertices @ z[:, 1:] + z[:, :1]  # (pieces, vertices, neurons)
        crossed = (values.min(1) < -size) & (values.max(1) > size)
        parents, pieces = np.arange(len(self)), self
        for i in np.flatnonzero(crossed.any(0)):
            cut = crossed[parents, i]
            which, halves = pieces[cut]._halved(z[parents[cut], :, i], size[parents[cut], i])
            parents = np.concatenate([parents[~cut], parents[cut][which]])[: max_pieces + 1]
            pieces = Polygons.joined([pieces[~cut], halves])[: max_pieces + 1]
        return parents, pieces

    def _halved(self, z: Array, size: Array) -> tuple[Array, Polygons]:
        """Return parents and polygons after cutting each polygon with vertices on both sides of its line."""
        values = z[:, :1] + z[:, 1:2] * self.vertices[:, :, 0] + z[:, 2:] * self.vertices[:, :, 1]
        both = (values.min(1) < -size) & (values.max(1) > size)
        if not both.any():
            return np.arange(len(self)), self
        part, values = self[both], values[both]
        signs = np.where(np.abs(values) > size[both, None], np.sign(values), 0)
        vertices, distinct = part.vertices, part.distinct()
        crossed = signs * np.roll(signs, -1, 1) < 0
        share = values / np.where(crossed, values - np.roll(values, -1, 1), np.inf)
        crossings = vertices + share[:, :, None] * (np.roll(vertices, -1, 1) - vertices)
        corners = np.stack([vertices, crossings], 2).reshape(len(part), -1, 2)
        halves = []
        for side in (1, -1):
            kept = np.stack([distinct & (side * signs >= 0), crossed], 2).reshape(len(part), -1)
            last = kept.sum(1, keepdims=True) - 1
            slots = np.minimum(np.arange(last.max() + 1), last)
            order = np.take_along_axis(np.argsort(~kept, axis=1, kind="stable"), slots, 1)
            halves.append(Polygons(np.take_along_axis(corners, order[:, :, None], 1)))
        parents = np.concatenate([np.flatnonzero(~both), *[np.flatnonzero(both)] * 2])
        return parents, Polygons.joined([self[~both], *halves])


SQUARE = Polygons(np.array([[[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]]))


@dataclass(frozen=True)
class Polytope:
    """The convex hull of vertices, (vertices, d), with a mask of the vertices ``on`` each facet."""

    vertices: Array
    on: Array

    def halves(self, row: Array, value: float) -> list[Polytope]:
        """Return both parts, by the double description method: new vertices lie on edges that cross."""
        heights = self.vertices @ row + value
        above, below = heights > TOUCH, heights < -TOUCH
        if not (above.any() and below.any()):
            return [self]
        d = self.vertices.shape[1]
        upper, lower = np.flatnonzero(above), np.flatnonzero(below)
        incidence = self.on.astype(np.float32)
        pairs = np.argwhere(_product(incidence[upper], incidence[lower].T) >= d - 1)
        upper, lower = upper[pairs[:, 0]], lower[pairs[:, 1]]
        shared = self.on[upper] & self.on[lower]
        holding = _product(shared.astype(np.float32), incidence.T) == shared.sum(1, keepdims=True)
        edges = holding.sum(1) == 2  # no third vertex on all the facets that both lie on
        upper, lower, shared = upper[edges], lower[edges], shared[edges]
        share = heights[upper] / (heights[upper] - heights[lower])
        new = self.vertices[upper] + share[:, None] * (self.vertices[lower] - self.vertices[upper])
        parts = []
        for kept in (~below, ~above):
            on = np.vstack([self.on[kept], shared])
            on = np.column_stack([on, np.append((~above & ~below)[kept], np.ones(len(new), bool))])
            parts.append(Polytope(np.vstack([self.vertices[kept], new]), on[:, on.sum(0) >= d]))
        return parts


def _product(a: Array, b: Array) -> Array:
    """Return the product of 0-1 matrices, without the spurious floating-point flags that some BLAS kernels raise."""
    with np.errstate(invalid="ignore"):
        return a @ b


@dataclass(frozen=True)
class Cells(Pieces):
    """Polytopes of any number of dimensions, cut one by one."""

    polytopes: Array

    @classmethod
    def cube(cls, dimensions: int) -> Cells:
        """Return [-1, 1]^dimensions."""
        corners = 1.0 - 2 * (np.arange(2**dimensions)[:, None] >> np.arange(dimensions) & 1)
        return cls(np.array([Polytope(corners, np.hstack([corners > 0, corners < 0]))], object))

    def centers(self) -> Array:
        """Return the means of the vertices, (pieces, dimensions)."""
        return np.stack([polytope.vertices.mean(0) for polytope in self.polytopes])

    def corners(self, index: int) -> Array:
        """Return the vertices of one polytope, (vertices, dimensions)."""
        return cast(Array, self.polytopes[index].vertices)

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Cells]:
        """Return parents and polytopes after cutting at the zeros of z, one neuron at a time."""
        parents: list[int] = []
        done: list[Polytope] = []
        for parent, polytope in enumerate(self.polytopes):
            lengths = np.linalg.norm(z[parent, 1:], axis=0)
            kinks = lengths > size[parent]
            rows, values = z[parent, 1:, kinks] / lengths[kinks, None], z[parent, 0, kinks] / lengths[kinks]
            heights = polytope.vertices @ rows.T + values
            parts = [polytope]
            for i in np.flatnonzero((heights.min(0) < -TOUCH) & (heights.max(0) > TOUCH)):
                parts = [half for part in parts for half in part.halves(rows[i], values[i])]
                parts = parts[: max_pieces + 1 - len(done)]
            done += parts
            parents += [parent] * len(parts)
            if len(done) > max_pieces:
                break
        return np.array(parents), Cells(np.array(done, object))
