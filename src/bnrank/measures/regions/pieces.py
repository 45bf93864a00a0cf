"""Pieces of the input space on which a network is affine, and its Jacobians and affine maps there."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank.measures.regions.shapes import CHUNK_ENTRIES, Array, Cells, Intervals, Polygons
from bnrank.networks.chain import read_chain

S = TypeVar("S", Intervals, Polygons, Cells)

SAME = 1e-9  # affine maps that differ by less, relative to their size, count as equal
ROUNDING = 1e-12  # a preactivation up to this times |W_i| |a| + |b_i| is 0
HUGE = 1e150  # squares of larger numbers overflow
BATCH = 4096  # pieces at a time


class Layers(NamedTuple):
    """A network as arrays in float64: W_l (n_l, n_{l-1}), b_l (n_l,) and the slope."""

    weights: list[Array]
    biases: list[Array]
    slope: float

    @property
    def d_in(self) -> int:
        """Number of inputs."""
        return int(self.weights[0].shape[1])

    @property
    def hidden(self) -> int:
        """Number of hidden neurons."""
        return sum(len(weight) for weight in self.weights[:-1])

    def slopes(self, patterns: Array) -> list[Array]:
        """Return diag D_1, ..., diag D_{L-1}, each (..., n_l), of patterns (..., hidden)."""
        ends = np.cumsum([0, *(len(weight) for weight in self.weights[:-1])])
        return [np.where(patterns[..., i:j] > 0, 1.0, self.slope) for i, j in itertools.pairwise(ends)]


def read(net: nn.Module) -> Layers:
    """Return the layers of a chain of linear layers; refuse other modules and parameters that are not finite."""
    chain = read_chain(net, multiply_out=True).biased()  # regions depend on the function, not on its parameters
    return Layers(*chain.arrays(), chain.slope)


def jacobians(layers: Layers, patterns: Array) -> Iterator[tuple[Array, Array]]:
    """Iterate over Jf for activation patterns, (n, d_out, d_in), each chunk with its relative rounding error, (n,)."""
    weights = layers.weights
    d_out, d_in = len(weights[-1]), layers.d_in
    chunk = max(1, CHUNK_ENTRIES // (max(d_in, *map(len, weights)) * min(d_in, d_out)))
    for first in range(0, len(patterns), chunk):
        part = patterns[first : first + chunk]
        slopes = layers.slopes(part)
        if d_out <= d_in:
            yield _product(weights[::-1], slopes[::-1], len(part))
        else:
            product, error = _product([weight.T for weight in weights], slopes, len(part))
            yield product.swapaxes(1, 2), error


def _product(factors: Sequence[Array], slopes: Sequence[Array], number: int) -> tuple[Array, Array]:
    """Return factors[0] diag slopes[0] factors[1] ... and its relative error, from the cancellation in each step."""
    product = np.broadcast_to(factors[0], (number, *factors[0].shape))
    error = np.zeros(number)
    for factor, slope in zip(factors[1:], slopes, strict=True):
        masked = product * slope[:, None, :]
        product = (masked.reshape(-1, len(factor)) @ factor).reshape(number, -1, factor.shape[1])
        before = np.linalg.norm(masked, axis=(1, 2)) * np.linalg.norm(factor)
        after = np.linalg.norm(product, axis=(1, 2))
        error += 8 * np.finfo(float).eps * before / np.where(after > 0, after, 1.0)
    return product, error


def spectra(layers: Layers, patterns: Array, rtol: float) -> tuple[Array, Array]:
    """Return the singular values of Jf, (n, min(d_in, d_out)), and its rank, (n,), for activation patterns.

    Singular values count above ``rtol`` times the largest, and above the rounding error of Jf.
    """
    values = [np.zeros((0, min(len(layers.weights[-1]), layers.d_in)))]
    errors = [np.zeros(0)]
    for product, error in jacobians(layers, patterns):
        if not np.isfinite(product).all():
            raise ValueError("net: its Jacobian has NaN or infinite entries, expected finite ones")
        values.append(np.linalg.svd(product, compute_uv=False))
        errors.append(error)
    spectrum, error = np.concatenate(values), np.concatenate(errors)
    return spectrum, (spectrum > np.maximum(rtol, error)[:, None] * spectrum[:, :1]).sum(1)


def offset(layers: Layers, pattern: Array) -> Array:
    """Return f(x) - Jf x on the region of one activation pattern, (d_out,)."""
    value = layers.biases[0]
    for weight, bias, slope in zip(layers.weights[1:], layers.biases[1:], layers.slopes(pattern), strict=True):
        value = weight @ (slope * value) + bias
    return value.copy()


def fingerprints(coefficients: Array) -> Array:
    """Return three random projections and the norm of each affine map, (maps, 4), of its coefficients, (maps, ...)."""
    flat = coefficients.reshape(len(coefficients), int(np.prod(coefficients.shape[1:])))
    draw = np.random.default_rng(0).standard_normal((flat.shape[1], 3))
    return np.concatenate([flat @ draw, np.linalg.norm(flat, axis=1, keepdims=True)], 1)


def differ(first: Array, second: Array) -> Array:
    """Return where fingerprints in two arrays belong to different affine maps."""
    size = np.maximum(first[:, 3:], second[:, 3:])
    return cast(Array, (np.abs(first[:, :3] - second[:, :3]) > SAME * size).any(1))


def distinct(maps: Array) -> int:
    """Return the number of different affine maps among fingerprints."""
    labels = np.zeros(len(maps), int)
    for k in range(3):
        order = np.lexsort((maps[:, k], labels))
        ranked, group = maps[order], labels[order]
        gap = np.diff(ranked[:, k]) > SAME * np.maximum(ranked[1:, 3], ranked[:-1, 3])
        labels[order] = np.cumsum(np.concatenate([[True], gap | (np.diff(group) > 0)]))[: len(maps)]
    return len(np.unique(labels))


# Pieces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swept(Generic[S]):
    """Pieces on which a network is affine.

    Attributes
    ----------
    shapes : Intervals, Polygons or Cells
        The pieces, in coordinates in which the domain is [-1, 1]^dimensions.
    patterns : ndarray
        Signs of the hidden neurons, (pieces, hidden), int8.
    maps : ndarray
        Fingerprints of the affine maps, (pieces, 4).
    complete : bool
        Whether all of the domain was swept.
    """

    shapes: S
    patterns: Array
    maps: Array
    complete: bool


def sweep(layers: Layers, start: Array, shapes: S, max_regions: int) -> Swept[S]:
    """Return pieces of the input space on which no hidden neuron changes sign, by cutting the given ones.

    Depth first, to save memory. A neuron that is 0 on a whole piece takes its sign near the piece, in one random
    direction that is the same for all neurons. The pattern is then that of a region of the input space adjacent to the
    piece. If the neuron is 0 there as well, its sign is 0.

    Parameters
    ----------
    layers : Layers
        The network.
    start : ndarray
        (pieces, dimensions + 2, d_in): the point with coordinates 0, one vector for each coordinate, and the random
        direction.
    shapes : Intervals, Polygons or Cells
        The pieces at the start.
    max_regions : int
        Stop at this number of pieces.
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
    while stack and found < max_regions:
        depth, z, size, patterns, parents, shapes = stack.pop()
        if len(shapes) > max_regions - found:  # each contains at least one region
            parents, shapes, complete = parents[: max_regions - found], shapes[: max_regions - found], False
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
            parents, shapes = shapes.cut(z[:, :-1], size, max_regions - found)
        push(depth + 1, z, size, patterns, parents, shapes)
    return Swept(
        type(shapes).joined(done), np.concatenate(patterns_done), np.concatenate(maps_done), complete and not stack
    )


def _activate(z: Array, size: Array, shapes: Intervals | Polygons | Cells, slope: float) -> tuple[Array, Array]:
    """Return the activations of a layer and the signs of its neurons; signs are 0 where there are no kinks."""
    if slope == 1:
        return z, np.zeros((len(z), z.shape[2]), np.int8)
    value = z[:, 0] + np.einsum("pk,pki->pi", shapes.centers(), z[:, 1:-1])
    value = np.where(np.abs(value) > size, value, z[:, -1])
    signs = np.where(np.abs(value) > size, np.sign(value), 0).astype(np.int8)
    return z * np.where(signs > 0, 1.0, slope)[:, None], signs


def _affine(layers: Layers, depth: int, a: Array) -> Array:
    """Return a layer applied to a (pieces, k, n): W a + b for the first of the k, W a for the others."""
    weight = layers.weights[depth]
    with np.errstate(over="ignore", invalid="ignore"):
        z = (a.reshape(-1, a.shape[-1]) @ weight.T).reshape(*a.shape[:-1], len(weight))
        z[:, 0] += layers.biases[depth]
    if not np.abs(z).max() < HUGE:
        raise validation.RangeError(
            f"net: layer {depth + 1} has values of 1e150 and more there, or NaN, expected smaller ones"
        )
    return z


def random_direction(axes: Array) -> Array:
    """Return a random direction, as long as the longest of the axes, (..., dimensions, d_in)."""
    draw = np.random.default_rng(0).standard_normal(axes.shape[-1])
    lengths = np.linalg.norm(axes, axis=-1).max(-1, keepdims=True)
    return cast(Array, lengths * (draw / np.linalg.norm(draw)))
