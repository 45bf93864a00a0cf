"""Pieces of lines and planes cut along the kinks of a network, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, cast

import numpy as np

from bnrank._core import validation
from bnrank.measures.regions.maps import Array, Layers, fingerprints

__all__ = ["Shapes", "Swept", "beside", "cut_off", "sweep"]

ROUNDING = 1e-12  # a preactivation up to this times |W_i| |a| + |b_i| is 0
HUGE = 1e150  # squares of what is larger overflow
BATCH = 4096  # pieces at a time


class Shapes(Protocol):
    """Convex pieces of a domain that has coordinates in [-1, 1]."""

    def __len__(self) -> int:
        """Return the number of pieces."""

    def __getitem__(self, part: slice) -> Self:
        """Return some of the pieces."""

    def cut(self, z: Array, size: Array, most: int) -> tuple[Array, Self]:
        """Cut piece p where z[p, 0, i] + c . z[p, 1:, i] = 0 for any i; return of each new piece the old one, and it.

        Values up to size[p, i] are taken for 0. After more than ``most`` new pieces it may stop.
        """

    def centers(self) -> Array:
        """Return the coordinates of a point in the interior of each piece, (pieces, dimensions)."""


S = TypeVar("S", bound=Shapes)


@dataclass(frozen=True)
class Swept(Generic[S]):
    """Pieces on which a network is affine.

    Attributes
    ----------
    shapes : list of Shapes
        The pieces, in parts.
    patterns : ndarray
        Signs of the hidden neurons, (pieces, hidden), int8.
    maps : ndarray
        Fingerprints of the affine maps, (pieces, 4).
    complete : bool
        Whether all of the domain was swept.
    """

    shapes: list[S]
    patterns: Array
    maps: Array
    complete: bool


def sweep(layers: Layers, start: Array, shapes: S, limit: int) -> Swept[S]:
    """Cut pieces of the input space into those on which no hidden neuron changes sign.

    Depth first, so that little is in memory. A neuron that is 0 on all of a piece takes the sign it has beside the
    piece, in one random direction that is the same for all neurons: so the pattern is that of a region of the input
    space which touches the piece. Where it is 0 there as well, the sign is 0.

    Parameters
    ----------
    layers : Layers
        The network.
    start : ndarray
        (pieces, dimensions + 2, d_in): the point with coordinates 0, one vector for each coordinate, and the random
        direction.
    shapes : Shapes
        The pieces at the start.
    limit : int
        Stop when so many are found.
    """
    last = len(layers.weights) - 1
    found, complete = 0, True
    done: list[S] = []
    patterns_done, maps_done = [np.zeros((0, layers.hidden), np.int8)], [np.zeros((0, 4))]
    stack: list[tuple[int, Array, Array, Array, Array, S]] = []

    def push(depth: int, z: Array, size: Array, patterns: Array, parents: Array, shapes: S) -> None:
        for first in reversed(range(0, len(shapes), BATCH)):
            part = slice(first, first + BATCH)
            stack.append((depth, z, size, patterns, parents[part], shapes[part]))

    pieces = np.arange(len(shapes))
    push(0, start, np.zeros(len(shapes)), np.zeros((len(shapes), 0), np.int8), pieces, shapes)
    while stack and found < limit:
        depth, z, size, patterns, parents, shapes = stack.pop()
        if len(shapes) > limit - found:  # in each there is a region at least
            parents, shapes, complete = parents[: limit - found], shapes[: limit - found], False
        a, patterns = z[parents], patterns[parents]
        if depth > 0:
            a, signs = _activate(a, size[parents], shapes, layers.slope)
            patterns = np.concatenate([patterns, signs], 1)
        z = _affine(layers, depth, a)
        if depth == last:
            found += len(shapes)
            done.append(shapes)
            patterns_done.append(patterns)
            maps_done.append(fingerprints(z))
            continue
        reach = np.abs(a).max((1, 2)) * np.sqrt(a.shape[2])
        lengths = np.linalg.norm(layers.weights[depth], axis=1)
        size = ROUNDING * (reach[:, None] * lengths + np.abs(layers.biases[depth])) + np.finfo(float).tiny
        parents = np.arange(len(shapes))
        if layers.slope != 1:
            parents, shapes = shapes.cut(z[:, :-1], size, limit - found)
        push(depth + 1, z, size, patterns, parents, shapes)
    return Swept(done, np.concatenate(patterns_done), np.concatenate(maps_done), complete and not stack)


def _activate(z: Array, size: Array, shapes: Shapes, slope: float) -> tuple[Array, Array]:
    """Return the activations of a layer and the signs of its neurons; signs 0 where there are no kinks."""
    if slope == 1:
        return z, np.zeros((len(z), z.shape[2]), np.int8)
    value = z[:, 0] + np.einsum("pk,pki->pi", shapes.centers(), z[:, 1:-1])
    value = np.where(np.abs(value) > size, value, z[:, -1])
    signs = np.where(np.abs(value) > size, np.sign(value), 0).astype(np.int8)
    return z * np.where(signs > 0, 1.0, slope)[:, None], signs


def _affine(layers: Layers, depth: int, a: Array) -> Array:
    """Apply a layer to a (pieces, k, n): W a + b to the first of the k, W a to the others."""
    weight = layers.weights[depth]
    with np.errstate(over="ignore", invalid="ignore"):
        z = (a.reshape(-1, a.shape[-1]) @ weight.T).reshape(*a.shape[:-1], len(weight))
        z[:, 0] += layers.biases[depth]
    if not np.abs(z).max() < HUGE:
        raise validation.RangeError(
            f"net: layer {depth + 1} has values of 1e150 and more there, or NaN, expected smaller ones"
        )
    return z


def beside(axes: Array) -> Array:
    """Return a random direction, of the size of the longest of the axes, (..., dimensions, d_in)."""
    draw = np.random.default_rng(0).standard_normal(axes.shape[-1])
    lengths = np.linalg.norm(axes, axis=-1).max(-1, keepdims=True)
    return cast(Array, lengths * (draw / np.linalg.norm(draw)))


def cut_off(complete: bool, limit: int) -> str:
    """Return what a note says of a limit that was reached."""
    return "" if complete else f", the search stopped at the limit of {limit}"
