"""Exact linear pieces of a network along lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.regions.inputs import vector
from bnrank.measures.regions.maps import Array, Layers, differ, read
from bnrank.measures.regions.region import Regions
from bnrank.measures.regions.shapes import Intervals
from bnrank.measures.regions.sweep import beside, cut_off, sweep

__all__ = ["along_line", "along_lines", "sweep_lines"]


@dataclass(frozen=True)
class _Geometry:
    """Intervals of t on lines."""

    intervals: Array
    lines: Array

    def shape(self, index: int) -> dict[str, Any]:
        """Return what a Region knows of its shape."""
        return {"interval": tuple(self.intervals[index].tolist()), "line": int(self.lines[index])}

    def sizes(self) -> Array:
        """Return the lengths."""
        return np.diff(self.intervals)[:, 0]


def along_line(
    net: nn.Module,
    start: Tensor | np.ndarray,
    end: Tensor | np.ndarray,
    *,
    merge: bool = True,
    rtol: float = 1e-6,
    limit: int = 1_000_000,
) -> Regions:
    """Return the pieces of a segment on which a network is affine, in order.

    Parameters
    ----------
    net : torch.nn.Module
        A chain of linear layers, as in :func:`along_lines`.
    start, end : Tensor or ndarray
        The ends, (d_in,).
    merge, rtol, limit
        As in :func:`along_lines`.

    Returns
    -------
    Regions
        The pieces, with intervals of t in x = start + t (end - start).

    Raises
    ------
    TypeError, ValueError
        As :func:`along_lines`.

    Examples
    --------
    >>> import torch
    >>> from bnrank.networks.mlp import from_layers
    >>> absolute = from_layers([torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0, 1.0]])])
    >>> pieces = along_line(absolute, torch.tensor([-1.0]), torch.tensor([3.0]))
    >>> [(piece.interval, piece.matrix.item()) for piece in pieces]
    [((0.0, 0.25), -1.0), ((0.25, 1.0), 1.0)]
    """
    layers = read(net)
    ends = vector(start, "start", layers.d_in), vector(end, "end", layers.d_in)
    return _along(layers, ends[0][None], ends[1][None], merge, rtol, limit)


def along_lines(
    net: nn.Module,
    starts: Tensor | np.ndarray,
    ends: Tensor | np.ndarray,
    *,
    merge: bool = True,
    rtol: float = 1e-6,
    limit: int = 1_000_000,
) -> Regions:
    """Return the pieces of many segments on which a network is affine, segment by segment, each in order.

    Exact at any depth: layer by layer, every piece is cut where a neuron changes sign. ``points`` of the result are the
    midpoints of the pieces, samples of all the regions that the segments pass through. A piece on which a neuron is 0
    lies inside a kink; it gets the Jacobian of one of the regions it touches, so that its rank is a rank that f has.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP, or a Sequential of Linear, ReLU and LeakyReLU: what :func:`bnrank.networks.as_mlp` takes.
    starts, ends : Tensor or ndarray
        The ends of the segments, (segments, d_in).
    merge : bool
        Whether neighboring pieces with the same affine map become one, a linear piece of f; if not, there is one for
        each activation pattern. A neuron that has no effect downstream makes the difference.
    rtol : float
        Singular values above ``rtol`` times the largest of the same Jacobian count.
    limit : int
        Stop when so many pieces are found, before merging.

    Returns
    -------
    Regions
        The pieces, with intervals of t in x = start + t (end - start).

    Raises
    ------
    TypeError
        If the network is no such chain; the message says what is in the way.
    ValueError
        If an argument is out of range, a segment has no length, or the network is not finite on it.

    Notes
    -----
    Break points closer than 5e-13 of the segment are one. A preactivation w.a + b is 0 if it is below
    1e-12 (||w|| ||a|| + |b|), where a may be the previous activations or their change along the segment. Affine maps
    are the same if their coefficients differ by less than 1e-9 of their size.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 20, 20, 2], seed=0)
    >>> pieces = along_lines(net, -torch.eye(3), torch.eye(3))
    >>> pieces.rank, bool((pieces.sizes.sum() - 3).abs() < 1e-12), sorted(set(pieces.lines.tolist()))
    (2, True, [0, 1, 2])
    """
    layers = read(net)
    firsts, seconds = (
        validation.samples(value, name, features=layers.d_in).detach().cpu().double().numpy()
        for value, name in ((starts, "starts"), (ends, "ends"))
    )
    if len(firsts) != len(seconds):
        raise ValueError(f"ends: got {len(seconds)} points, expected as many as starts, {len(firsts)}")
    return _along(layers, firsts, seconds, merge, rtol, limit)


def sweep_lines(layers: Layers, starts: Array, ends: Array, limit: int) -> tuple[Intervals, Array, Array, bool]:
    """Return the pieces in coordinates from -1 at the start to 1, patterns, fingerprints and whether all were found."""
    half = (ends - starts) / 2
    start = np.stack([starts + half, half, beside(half[:, None])], 1)
    whole = Intervals(np.tile([-1.0, 1.0], (len(starts), 1)), np.arange(len(starts)))
    swept = sweep(layers, start, whole, limit)
    pieces = Intervals(
        *(np.concatenate(parts) for parts in zip(*((s.ends, s.lines) for s in swept.shapes), strict=True))
    )
    return pieces, swept.patterns, swept.maps, swept.complete


def _along(layers: Layers, starts: Array, ends: Array, merge: bool, rtol: float, limit: int) -> Regions:
    rtol, limit = validation.rtol(rtol), validation.integer(limit, "limit")
    empty = np.flatnonzero((starts == ends).all(1))
    if len(empty):
        where = "" if len(starts) == 1 else f" in segment {empty[0]}"
        raise ValueError(f"end: got the start itself{where}, expected another point")
    pieces, patterns, maps, complete = sweep_lines(layers, starts, ends, limit)
    number = len(pieces)
    intervals, lines = (pieces.ends + 1) / 2, pieces.lines
    points = starts[lines] + (ends - starts)[lines] * intervals.mean(1, keepdims=True)
    if merge:
        new = np.append(True, (np.diff(lines) > 0) | differ(maps[1:], maps[:-1]))
        group, first = np.cumsum(new) - 1, np.flatnonzero(new)
        order = np.lexsort((-np.diff(intervals)[:, 0], group))
        longest = order[first]
        intervals = np.stack([intervals[first, 0], intervals[np.append(first[1:], number) - 1, 1]], 1)
        points, patterns, maps, lines = points[longest], patterns[longest], maps[longest], lines[longest]
    segments = "the segment meets" if len(starts) == 1 else f"{len(starts)} segments meet"
    note = f"The rank is a lower bound on Rank_J: only the regions that {segments} are seen{cut_off(complete, limit)}."
    geometry = _Geometry(intervals, lines)
    return Regions(
        domain="lines",
        complete=False,
        note=note,
        rtol=rtol,
        activation_regions=number,
        points=torch.from_numpy(points),
        patterns=torch.from_numpy(patterns),
        lines=torch.from_numpy(lines),
        intervals=torch.from_numpy(intervals),
        _layers=layers,
        _maps=maps,
        _shape=geometry.shape,
        _sizes=geometry.sizes,
    )
