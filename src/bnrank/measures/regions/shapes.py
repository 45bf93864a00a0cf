"""Intervals and convex polygons, and how they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bnrank.measures.regions.maps import CHUNK_ENTRIES, Array

__all__ = ["Intervals", "Polygons"]

CLOSE = 1e-12  # break points of a line in [-1, 1] that are closer are one


@dataclass(frozen=True)
class Intervals:
    """Intervals of [-1, 1] on lines.

    Attributes
    ----------
    ends : ndarray
        (pieces, 2).
    lines : ndarray
        The line that each piece is of, (pieces,).
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

    def cut(self, z: Array, size: Array, most: int) -> tuple[Array, Intervals]:
        """Cut at the zeros of z, in the order of the line."""
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
        parts = np.bincount(old, minlength=len(self)) + 1
        parents = np.repeat(np.arange(len(self)), parts)
        starts = np.zeros(len(parents), bool)
        starts[np.cumsum(parts) - parts] = True
        ends = np.empty((len(parents), 2))
        ends[starts, 0], ends[~starts, 0] = low, zeros
        lasts = np.roll(starts, -1)
        ends[lasts, 1], ends[~lasts, 1] = high, zeros
        return parents, Intervals(ends, self.lines[parents])


@dataclass(frozen=True)
class Polygons:
    """Convex polygons in [-1, 1]^2.

    Attributes
    ----------
    vertices : ndarray
        (pieces, most vertices, 2), counter-clockwise; the last vertex is repeated where there are fewer.
    counts : ndarray
        How many vertices each has, (pieces,).
    """

    vertices: Array
    counts: Array

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, part: slice | Array) -> Polygons:
        return Polygons(self.vertices[part], self.counts[part])

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

    def areas(self) -> Array:
        """Return the areas, (pieces,)."""
        x, y = np.moveaxis(self.vertices - self.vertices[:, :1], 2, 0)
        return cast(Array, (x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(1) / 2)

    def cut(self, z: Array, size: Array, most: int) -> tuple[Array, Polygons]:
        """Cut along the lines where z is 0, one neuron of each polygon at a time."""
        old, neuron = self._crossed(z, size)
        number = np.bincount(old, minlength=len(self))
        first = np.cumsum(number) - number
        rest, parents = self, np.arange(len(self))
        done, parents_done = [], []
        for step in range(number.max() + 1):
            more = number[parents] > step
            done.append(rest[~more])
            parents_done.append(parents[~more])
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
        """Cut each polygon along one line, where it has vertices on both sides; return the old one of each, and all."""
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
    """Return the polygons of those corners that are kept, in their order."""
    counts = kept.sum(1)
    order = np.argsort(~kept, axis=1, kind="stable")
    slots = np.minimum(np.arange(max(counts.max(initial=1), 1)), counts[:, None] - 1)
    return Polygons(np.take_along_axis(corners, np.take_along_axis(order, slots, 1)[:, :, None], 1), counts)
