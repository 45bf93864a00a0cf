"""Intervals, convex polygons and polytopes, and how they are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CHUNK_ENTRIES = 2**18  # entries of the largest intermediate array: 2 MiB, the size of a cache
CLOSE = 1e-12  # closer breakpoints of a line in [-1, 1] are merged
TOUCH = 1e-9  # in coordinates of [-1, 1]: parts that extend less beyond a kink are not separated
SOLVER = {"presolve": False, "primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class Intervals:
    """Intervals of [-1, 1] on lines.

    Attributes
    ----------
    ends : ndarray
        (pieces, 2).
    lines : ndarray
        Index of the line of each piece, (pieces,).
    """

    ends: Array
    lines: Array

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, part: slice) -> Intervals:
        return Intervals(self.ends[part], self.lines[part])

    def centers(self) -> Array:
        """Return the midpoints, (pieces, 1)."""
        return cast(Array, self.ends.mean(1, keepdims=True))

    @classmethod
    def joined(cls, parts: Sequence[Intervals]) -> Intervals:
        """Return all intervals of some parts as one."""
        return cls(np.concatenate([part.ends for part in parts]), np.concatenate([part.lines for part in parts]))

    def scaled(self, center: Array, half: Array) -> Intervals:
        """Return the intervals in coordinates center + half y."""
        return Intervals(center + half * self.ends, self.lines)

    def sizes(self) -> Array:
        """Return the lengths, (pieces,)."""
        return np.diff(self.ends)[:, 0]

    def corners(self, index: int) -> Array:
        """Return the ends of one interval, (2, 1)."""
        return self.ends[index, :, None]

    def halfspaces(self, index: int) -> tuple[Array, Array]:
        """Return the rows and sides of one interval, rows y <= sides."""
        return np.array([[-1.0], [1.0]]), self.ends[index] * [-1.0, 1.0]

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Intervals]:
        """Return parents and pieces after cutting piece p at points c with z[p, 0, i] + c . z[p, 1:, i] = 0 for any i.

        Parents are the indices of the pieces before the cut. Values up to size[p, i] count as 0. All shapes share this
        interface; polygons and cells stop at ``max_pieces`` + 1 pieces.
        """
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
class Polygons:
    """Convex polygons in [-1, 1]^2.

    Attributes
    ----------
    vertices : ndarray
        (pieces, most vertices, 2), counter-clockwise; the last vertex is repeated where there are fewer.
    counts : ndarray
        Number of vertices of each, (pieces,).
    """

    vertices: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, part: slice | Array) -> Polygons:
        return Polygons(self.vertices[part], self.counts[part])

    @classmethod
    def of(cls, corners: Sequence[Array]) -> Polygons:
        """Return polygons given by their vertices, (vertices, 2) each."""
        counts = np.array([len(each) for each in corners])
        slots = np.arange(counts.max())
        return cls(np.stack([each[np.minimum(slots, len(each) - 1)] for each in corners]), counts)

    @classmethod
    def joined(cls, parts: Sequence[Polygons]) -> Polygons:
        """Return all polygons of some parts as one."""
        most = max((part.vertices.shape[1] for part in parts), default=1)
        padded = [np.pad(p.vertices, ((0, 0), (0, most - p.vertices.shape[1]), (0, 0)), mode="edge") for p in parts]
        return cls(np.concatenate(padded), np.concatenate([part.counts for part in parts]))

    def centers(self) -> Array:
        """Return the means of the vertices, (pieces, 2)."""
        real = np.arange(self.vertices.shape[1]) < self.counts[:, None]
        return cast(Array, np.einsum("pvk,pv->pk", self.vertices, real / self.counts[:, None]))

    def corners(self, index: int) -> Array:
        """Return the vertices of one polygon, (vertices, 2)."""
        return self.vertices[index, : self.counts[index]]

    def scaled(self, center: Array, half: Array) -> Polygons:
        """Return the polygons in coordinates center + half y."""
        return Polygons(center + half * self.vertices, self.counts)

    def halfspaces(self, index: int) -> tuple[Array, Array]:
        """Return the rows, of length 1, and sides of one polygon, rows y <= sides."""
        corners = self.corners(index)
        along = np.roll(corners, -1, 0) - corners
        lengths = np.linalg.norm(along, axis=1)
        rows = np.stack([along[:, 1], -along[:, 0]], 1)[lengths > 0] / lengths[lengths > 0, None]
        return rows, (rows * corners[lengths > 0]).sum(1)

    def sizes(self) -> Array:
        """Return the areas, (pieces,)."""
        x, y = np.moveaxis(self.vertices - self.vertices[:, :1], 2, 0)
        return cast(Array, (x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(1) / 2)

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Polygons]:
        """Return parents and polygons after cutting along the lines z = 0, one neuron of each polygon at a time."""
        old, neuron = self._crossed(z, size)
        number = np.bincount(old, minlength=len(self))
        first = np.cumsum(number) - number
        rest, parents = self, np.arange(len(self))
        done, parents_done, left = [], [], max_pieces + 1
        for step in range(number.max() + 1):
            rest, parents = rest[:left], parents[:left]
            more = number[parents] > step
            done.append(rest[~more])
            parents_done.append(parents[~more])
            left -= len(done[-1])
            rest, parents = rest[more], parents[more]
            if not len(rest):
                break
            i = neuron[first[parents] + step]
            which, rest = rest._halved(z[parents, :, i], size[parents, i])
            parents = parents[which]
        return np.concatenate(parents_done), Polygons.joined(done)

    def _crossed(self, z: Array, size: Array) -> tuple[Array, Array]:
        """Return all pairs (polygon, neuron) where the neuron changes sign on the polygon."""
        most = self.vertices.shape[1]
        chunk = max(1, CHUNK_ENTRIES // (most * z.shape[2]))
        pairs = []
        for start in range(0, len(self), chunk):
            part = slice(start, start + chunk)
            values = self.vertices[part] @ z[part, 1:] + z[part, :1]  # (pieces, vertices, neurons)
            crossed = (values.min(1) < -size[part]) & (values.max(1) > size[part])
            pairs.append(np.argwhere(crossed) + np.array([start, 0]))
        old, neuron = np.concatenate(pairs).T
        return old, neuron

    def _halved(self, z: Array, size: Array) -> tuple[Array, Polygons]:
        """Return parents and polygons after cutting each polygon with vertices on both sides of its line."""
        values = (self.vertices @ z[:, 1:, None])[:, :, 0] + z[:, :1]
        signs = np.where(np.abs(values) > size[:, None], np.sign(values), 0)
        both = np.flatnonzero((signs.min(1) < 0) & (signs.max(1) > 0))
        part, values, signs = self[both], values[both], signs[both]
        slots = np.arange(self.vertices.shape[1])
        after = np.where(slots + 1 < part.counts[:, None], slots + 1, 0)
        values_after, signs_after = (np.take_along_axis(v, after, 1) for v in (values, signs))
        real = slots < part.counts[:, None]
        crossed = real & (signs * signs_after < 0)
        share = values / np.where(crossed, values - values_after, 1.0)
        step = np.take_along_axis(part.vertices, after[:, :, None], 1) - part.vertices
        crossings = part.vertices + np.where(crossed, share, 0.0)[:, :, None] * step
        shape = len(part), 2 * len(slots)
        corners = np.stack([part.vertices, crossings], 2).reshape(*shape, 2)
        halves = [
            _packed(corners, np.stack([real & (side * signs >= 0), crossed], 2).reshape(shape)) for side in (1, -1)
        ]
        whole = np.ones(len(self), bool)
        whole[both] = False
        return np.concatenate([np.flatnonzero(whole), both, both]), Polygons.joined([self[whole], *halves])


def _packed(corners: Array, kept: Array) -> Polygons:
    """Return the polygons of the kept corners, in their order."""
    counts = kept.sum(1)
    order = np.argsort(~kept, axis=1, kind="stable")
    slots = np.minimum(np.arange(max(counts.max(initial=1), 1)), counts[:, None] - 1)
    return Polygons(np.take_along_axis(corners, np.take_along_axis(order, slots, 1)[:, :, None], 1), counts)


# Any number of dimensions, one by one ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Polytope:
    """The points y with rows y <= sides (unit rows), the vertices, and a mask of the vertices ``on`` each row."""

    rows: Array
    sides: Array
    vertices: Array
    on: Array

    @classmethod
    def cube(cls, dimensions: int) -> Polytope:
        """Return [-1, 1]^dimensions."""
        eye = np.eye(dimensions)
        corners = 1.0 - 2 * (np.arange(2**dimensions)[:, None] >> np.arange(dimensions) & 1)
        return cls(np.vstack([eye, -eye]), np.ones(2 * dimensions), corners, np.hstack([corners > 0, corners < 0]))

    @property
    def center(self) -> Array:
        """The mean of the vertices."""
        return np.asarray(self.vertices.mean(0))

    def crossed(self, rows: Array, values: Array) -> Array:
        """Return which hyperplanes have vertices on both sides."""
        heights = self.vertices @ rows.T + values
        return np.flatnonzero((heights.min(0) < -TOUCH) & (heights.max(0) > TOUCH))

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
        edges = holding.sum(1) == 2  # no third vertex on all the rows that both lie on
        upper, lower, shared = upper[edges], lower[edges], shared[edges]
        share = heights[upper] / (heights[upper] - heights[lower])
        new = self.vertices[upper] + share[:, None] * (self.vertices[lower] - self.vertices[upper])
        flat = ~above & ~below
        parts = []
        for kept, sign in ((~below, -1.0), (~above, 1.0)):
            on = np.vstack([self.on[kept], shared])
            on = np.column_stack([on, np.append(flat[kept], np.ones(len(new), bool))])
            facets = on.sum(0) >= d
            rows, sides = np.vstack([self.rows, sign * row])[facets], np.append(self.sides, -sign * value)[facets]
            parts.append(Polytope(rows, sides, np.vstack([self.vertices[kept], new]), on[:, facets]))
        return parts


@dataclass(frozen=True)
class Ball:
    """The points y with rows y <= sides, the rows of length 1, with a ball inside, by linear programs if needed."""

    rows: Array
    sides: Array
    center: Array
    radius: float

    @classmethod
    def cube(cls, dimensions: int) -> Ball:
        """Return [-1, 1]^dimensions."""
        eye = np.eye(dimensions)
        return cls(np.vstack([eye, -eye]), np.ones(2 * dimensions), np.zeros(dimensions), 1.0)

    def crossed(self, rows: Array, values: Array) -> Array:
        """Return which hyperplanes have a ball on both sides."""
        possible = np.flatnonzero(np.abs(values) < np.abs(rows).sum(1))  # all cells are in [-1, 1]^d
        return np.array([i for i in possible if len(self.halves(rows[i], values[i])) == 2], int)

    def halves(self, row: Array, value: float) -> list[Ball]:
        """Return both parts, each with the largest known ball inside."""
        height = float(self.center @ row + value)
        sign = 1.0 if height >= 0 else -1.0
        height *= sign
        near, far = (np.append(self.sides, side * value) for side in (sign, -sign))
        near_rows, far_rows = (np.vstack([self.rows, side * row]) for side in (-sign, sign))
        if height < self.radius / 2:
            beyond = self.center - sign * row * (self.radius + height) / 2, (self.radius - height) / 2
        else:
            beyond = _largest_ball(far_rows, far)
            if beyond[1] <= TOUCH:
                return [self]
        center, radius = self.center, self.radius
        if height < radius:
            center, radius = center + sign * row * (radius - height) / 2, (radius + height) / 2
        return [Ball(near_rows, near, center, radius), Ball(far_rows, far, *beyond)]


@dataclass(frozen=True)
class Cells:
    """Cells, Polytopes or Balls, in coordinates y of points x = center + half y."""

    cells: Sequence[Any]
    center: Array | float = 0.0
    half: Array | float = 1.0

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, part: slice) -> Cells:
        return Cells(self.cells[part])

    @classmethod
    def joined(cls, parts: Sequence[Cells]) -> Cells:
        """Return all cells of some parts as one."""
        return cls([cell for part in parts for cell in part.cells])

    def centers(self) -> Array:
        """Return a point in the interior of each, (pieces, dimensions)."""
        return np.stack([cell.center for cell in self.cells])

    def scaled(self, center: Array, half: Array) -> Cells:
        """Return the cells with x = center + half y."""
        return Cells(self.cells, center, half)

    def sizes(self) -> Array:
        """Raise an error: volumes are not computed."""
        d = self.cells[0].rows.shape[1]
        raise ValueError(f"sizes: got a box with d_in = {d}, expected at most 2 with method='auto'")

    def corners(self, index: int) -> Array | None:
        """Return the vertices x of one cell, (vertices, d); None where they are not known."""
        cell = self.cells[index]
        return self.center + self.half * cell.vertices if isinstance(cell, Polytope) else None

    def halfspaces(self, index: int) -> tuple[Array, Array]:
        """Return the rows, of length 1, and sides of one cell, rows x <= sides."""
        cell = self.cells[index]
        rows = cell.rows / self.half
        lengths = np.linalg.norm(rows, axis=1)
        return rows / lengths[:, None], (cell.sides + rows @ np.broadcast_to(self.center, rows.shape[1])) / lengths

    def cut(self, z: Array, size: Array, max_pieces: int) -> tuple[Array, Cells]:
        """Return parents and cells after cutting at the zeros of z, one neuron at a time."""
        found = list(islice(self._parts(z, size), max_pieces + 1))
        return np.array([parent for parent, _ in found]), Cells([cell for _, cell in found])

    def _parts(self, z: Array, size: Array) -> Iterator[tuple[int, Any]]:
        for parent, cell in enumerate(self.cells):
            lengths = np.linalg.norm(z[parent, 1:], axis=0)
            kinks = lengths > size[parent]
            rows, values = z[parent, 1:, kinks] / lengths[kinks, None], z[parent, 0, kinks] / lengths[kinks]
            order = cell.crossed(rows, values)
            stack = [(cell, 0)]
            while stack:
                part, step = stack.pop()
                if step == len(order):
                    yield parent, part
                else:
                    i = order[step]
                    stack.extend((half, step + 1) for half in part.halves(rows[i], values[i]))


def _product(a: Array, b: Array) -> Array:
    """Return the product of 0-1 matrices, without the spurious floating-point flags that some BLAS kernels raise."""
    with np.errstate(invalid="ignore"):
        return a @ b


def _largest_ball(rows: Array, sides: Array) -> tuple[Array, float]:
    """Return center and radius of the largest ball in rows y <= sides; the radius is negative if there is none."""
    from scipy.optimize import linprog

    d = rows.shape[1]
    found = linprog(
        np.append(np.zeros(d), -1.0),
        A_ub=np.column_stack([rows, np.ones(len(rows))]),
        b_ub=sides,
        bounds=[(None, None)] * (d + 1),
        method="highs-ds",
        options=SOLVER,
    )
    if found.x is None:
        raise RuntimeError(f"linear program of {len(rows)} rows: {found.message}")
    return found.x[:d], float((sides - rows @ found.x[:d]).min())
