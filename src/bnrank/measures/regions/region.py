"""Linear regions of a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core.results import Printed
from bnrank.measures.regions.pieces import Layers, Swept, jacobians, offset, spectra
from bnrank.measures.regions.shapes import Array, Cells

NOTES = {
    "whole box": "The rank is Rank_J over the box: all of its regions are covered.",
    "box": "The rank is a lower bound on Rank_J over the box: not all regions are covered.",
    "plane": "The rank is a lower bound on Rank_J: only the regions that the rectangle meets are covered.",
    "lines": "The rank is a lower bound on Rank_J: only the regions that the segments meet are covered.",
}


@dataclass(frozen=True, eq=False)
class Region:
    """A convex set on which a network is affine, f(x) = ``matrix`` x + ``offset``; all in float64.

    Attributes
    ----------
    matrix : Tensor
        Jf, (d_out, d_in).
    offset : Tensor
        (d_out,).
    rank : int
        Rank of ``matrix``: the number of singular values above ``rtol`` times the largest and above its rounding error.
    singular_values : Tensor
        Of ``matrix``, (min(d_in, d_out),), descending.
    point : Tensor
        A point in the interior, (d_in,).
    pattern : Tensor
        Signs of the hidden neurons, layer 1 first, (hidden,), int8. 0 for a neuron that is 0 on all of the region and
        around it, or that has no kink (slope 1). Of merged pieces of a line: the signs on the longest.
    interval : tuple of float, optional
        On a line: smallest and largest t, x = start + t (end - start).
    line : int, optional
        On lines: index of the line.
    polygon : Tensor, optional
        In a plane: the vertices (a, b), counter-clockwise, (vertices, 2), x = origin + a u + b v.
    vertices : Tensor, optional
        In a box: the vertices x, (vertices, d_in), counter-clockwise if d_in = 2.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), torch.ones(1, 2)])     # relu(x_1) + relu(x_2)
    >>> regions = bnrank.regions.along_line(net, [-1.0, 1.0], [1.0, 1.0])
    >>> region = regions[1]                                                     # a bnrank.regions.Region
    >>> region.interval, region.matrix.tolist(), region.rank
    ((0.5, 1.0), [[1.0, 1.0]], 1)
    """

    matrix: Tensor
    offset: Tensor
    rank: int
    singular_values: Tensor
    point: Tensor
    pattern: Tensor
    interval: tuple[float, float] | None = None
    line: int | None = None
    polygon: Tensor | None = None
    vertices: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Regions(Printed):
    """Regions of a network on lines, in a plane or in a box, and the ranks of its Jacobian there.

    Each :class:`Region` is made on access, by index or in a loop. ``len()`` counts linear pieces on lines (if merged),
    regions of one activation pattern in planes and boxes.

    Attributes
    ----------
    domain : str
        "lines", "plane" or "box".
    complete : bool
        Whether a whole box was covered: then ``rank`` is Rank_J over the box (T18), else a lower bound on it.
    note : str
        Meaning of ``rank``: Rank_J, or why it is only a lower bound.
    rtol : float
        Singular values above ``rtol`` times the largest of the same region count.
    points : Tensor
        A point in the interior of every region, (regions, d_in), float64.
    patterns : Tensor
        Signs of the hidden neurons in every region, (regions, hidden), int8, as in :class:`Region`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), torch.eye(2)])         # x -> relu(x)
    >>> regions = bnrank.regions.enumerate(net, (-1, 1))                        # a bnrank.regions.Regions
    >>> len(regions), regions.rank, regions.rank_counts, regions.complete
    (4, 2, {0: 1, 1: 2, 2: 1}, True)
    """

    domain: str
    complete: bool
    note: str
    rtol: float
    points: Tensor = field(repr=False)
    patterns: Tensor = field(repr=False)
    _layers: Layers = field(repr=False)
    _shapes: Any = field(repr=False)
    _bounds: Array = field(repr=False)

    @classmethod
    def of(
        cls, domain: str, layers: Layers, swept: Swept, points: Array, bounds: Array, rtol: float, max_regions: int
    ) -> Regions:
        """Return the regions of a swept domain, with points inside; the sides of its cube stand for bounds (k, 2)."""
        complete = domain == "box" and swept.complete
        note = NOTES["whole box" if complete else domain]
        note += "" if swept.complete else f" The search stopped at max_regions = {max_regions}."
        inside, patterns = torch.from_numpy(points), torch.from_numpy(swept.patterns)
        return cls(domain, complete, note, rtol, inside, patterns, layers, swept.shapes, bounds)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Region:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index: got {index}, expected one of {len(self)} regions")
        index %= len(self)
        pattern = self.patterns[index].numpy()
        matrix, _ = next(jacobians(self._layers, pattern[None]))
        values, ranks = spectra(self._layers, pattern[None], self.rtol)
        corners = self._bounds.mean(1) + np.diff(self._bounds)[:, 0] / 2 * self._shapes.corners(index)
        shape: dict[str, Any] = {"polygon" if self.domain == "plane" else "vertices": torch.from_numpy(corners)}
        if self.domain == "lines":
            shape = {"interval": tuple(corners[:, 0].tolist()), "line": int(self._shapes.lines[index])}
        affine = torch.from_numpy(matrix[0].copy()), torch.from_numpy(offset(self._layers, pattern))
        spectrum = int(ranks[0]), torch.from_numpy(values[0])
        return Region(*affine, *spectrum, self.points[index], self.patterns[index], **shape)

    def __iter__(self) -> Iterator[Region]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lines(self) -> Tensor | None:
        """On lines: index of the line of every piece, (regions,)."""
        return torch.from_numpy(self._shapes.lines) if self.domain == "lines" else None

    @property
    def intervals(self) -> Tensor | None:
        """On lines: smallest and largest t of every piece, (regions, 2)."""
        return torch.from_numpy(self._shapes.ends) if self.domain == "lines" else None

    @cached_property
    def _spectra(self) -> tuple[Array, Array]:
        patterns = self.patterns.numpy()
        _, first, where = np.unique(np.packbits(patterns > 0, axis=1), axis=0, return_index=True, return_inverse=True)
        values, ranks = spectra(self._layers, patterns[first], self.rtol)
        return values[where], ranks[where]

    @property
    def singular_values(self) -> Tensor:
        """Singular values of the Jacobians, (regions, min(d_in, d_out)), descending; computed lazily and cached."""
        return torch.from_numpy(self._spectra[0])

    @property
    def ranks(self) -> Tensor:
        """Rank of the Jacobian in every region, (regions,)."""
        return torch.from_numpy(self._spectra[1])

    @property
    def rank(self) -> int:
        """The largest rank: Rank_J over the box if ``complete``, else a lower bound on it (T18)."""
        return int(self.ranks.max())

    @property
    def rank_counts(self) -> dict[int, int]:
        """Number of regions of each rank, in ascending order of rank."""
        return dict(sorted(Counter(self.ranks.tolist()).items()))

    @property
    def witness(self) -> Region:
        """A region of the largest rank; of several, the one with the largest s_rank / s_1."""
        values, ranks = self._spectra
        margin = values[:, max(self.rank - 1, 0)] / np.where(values[:, 0] > 0, values[:, 0], 1.0)
        return self[int(np.where(ranks == self.rank, margin, -1.0).argmax())]

    @property
    def sizes(self) -> Tensor:
        """Lengths of t on lines, areas of (a, b) in a plane, lengths or areas of x in a box with d_in <= 2, (regions,).

        Raises
        ------
        ValueError
            For a box with more inputs.
        """
        if isinstance(self._shapes, Cells):
            raise ValueError(f"sizes: got a box with d_in = {self.points.shape[1]}, expected at most 2")
        return torch.from_numpy(self._shapes.sizes() * np.prod(np.diff(self._bounds) / 2))

    def __str__(self) -> str:
        counts = ", ".join(f"{number} of rank {rank}" for rank, number in self.rank_counts.items())
        return f"{len(self)} regions, {counts}. {self.note}"
