"""Polytopes with any number of dimensions, cut one by one: by their vertices or by linear programmes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, Self

import numpy as np
from scipy.optimize import linprog

from bnrank.measures.regions.maps import Array

__all__ = ["TOUCH", "Ball", "Cell", "Cells", "Polytope"]

TOUCH = 1e-9  # in coordinates of [-1, 1]: what reaches less far beyond a kink is left with its neighbor
SOLVER = {"presolve": False, "primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


class Cell(Protocol):
    """The points y with rows y <= sides, the rows of length 1."""

    @property
    def rows(self) -> Array:
        """Return the rows, (m, d)."""

    @property
    def sides(self) -> Array:
        """Return the sides, (m,)."""

    @classmethod
    def cube(cls, dimensions: int) -> Self:
        """Return [-1, 1]^dimensions."""

    def center(self) -> Array:
        """Return a point in the interior."""

    def crossed(self, rows: Array, values: Array) -> Array:
        """Return which of the hyperplanes rows y + values = 0 have parts on both sides."""

    def halves(self, row: Array, value: float) -> Sequence[Self]:
        """Return the parts on both sides of row y + value = 0, or the cell itself if it has but one."""


@dataclass(frozen=True)
class Cells:
    """Cells as pieces for :func:`~bnrank.measures.regions.sweep.sweep`."""

    cells: Sequence[Cell]

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, part: slice) -> Cells:
        return Cells(self.cells[part])

    def centers(self) -> Array:
        """Return a point in the interior of each, (pieces, dimensions)."""
        return np.stack([cell.center() for cell in self.cells])

    def cut(self, z: Array, size: Array, most: int) -> tuple[Array, Cells]:
        """Cut at the zeros of z, one neuron at a time; stop after ``most`` pieces and one more."""
        found = list(islice(self._parts(z, size), most + 1))
        return np.array([parent for parent, _ in found]), Cells([cell for _, cell in found])

    def _parts(self, z: Array, size: Array) -> Iterator[tuple[int, Cell]]:
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


@dataclass(frozen=True)
class Polytope:
    """A cell with its vertices, (vertices, d), and which of them lie on which row, (vertices, rows)."""

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

    def center(self) -> Array:
        """Return the mean of the vertices."""
        return self.vertices.mean(0)

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
    """A cell with a ball inside, found by linear programmes where it is not plain to see."""

    rows: Array
    sides: Array
    middle: Array
    radius: float

    @classmethod
    def cube(cls, dimensions: int) -> Ball:
        """Return [-1, 1]^dimensions."""
        eye = np.eye(dimensions)
        return cls(np.vstack([eye, -eye]), np.ones(2 * dimensions), np.zeros(dimensions), 1.0)

    def center(self) -> Array:
        """Return the center of the ball."""
        return self.middle

    def crossed(self, rows: Array, values: Array) -> Array:
        """Return which hyperplanes have a ball on both sides."""
        possible = np.flatnonzero(np.abs(values) < np.abs(rows).sum(1))  # all cells are in [-1, 1]^d
        return np.array([i for i in possible if len(self.halves(rows[i], values[i])) == 2], int)

    def halves(self, row: Array, value: float) -> list[Ball]:
        """Return both parts with the largest ball inside that is known."""
        height = float(self.middle @ row + value)
        sign = 1.0 if height >= 0 else -1.0
        height *= sign
        near, far = (np.append(self.sides, side * value) for side in (sign, -sign))
        near_rows, far_rows = (np.vstack([self.rows, side * row]) for side in (-sign, sign))
        if height < self.radius / 2:
            beyond = self.middle - sign * row * (self.radius + height) / 2, (self.radius - height) / 2
        else:
            beyond = _largest_ball(far_rows, far)
            if beyond[1] <= TOUCH:
                return [self]
        middle, radius = self.middle, self.radius
        if height < radius:
            middle, radius = middle + sign * row * (radius - height) / 2, (radius + height) / 2
        return [Ball(near_rows, near, middle, radius), Ball(far_rows, far, *beyond)]


def _product(a: Array, b: Array) -> Array:
    """Multiply matrices of zeros and ones; some BLAS kernels flag what lies beyond a small matrix as invalid."""
    with np.errstate(invalid="ignore"):
        return a @ b


def _largest_ball(rows: Array, sides: Array) -> tuple[Array, float]:
    """Return center and radius of the largest ball in rows y <= sides; a radius below 0 where there is none."""
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
        raise RuntimeError(f"linear programme of {len(rows)} rows: {found.message}")
    return found.x[:d], float((sides - rows @ found.x[:d]).min())
