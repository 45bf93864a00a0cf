"""Pieces of the input space on which a network is affine, and its Jacobians and affine maps there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from bnrank._core import validation
from bnrank.measures.regions.shapes import Array, Cells, Intervals, Polygons
from bnrank.networks.chain import read_chain

Shapes = Intervals | Polygons | Cells

ROUNDING = 1e-12  # a preactivation up to this times |W_i| |a| + |b_i| is 0
HUGE = 1e150  # squares of larger numbers overflow
BATCH = 1024  # pieces at a time
CHUNK_ENTRIES = 2**18  # entries of the largest intermediate array: 2 MiB, the size of a cache


class Layers(NamedTuple):
    """A network as arrays in float64: W_l (n_l, n_{l-1}), b_l (n_l,) and the slope."""

    weights: list[Array]
    biases: list[Array]
    slope: float

    @property
    def d_in(self) -> int:
        """Number of inputs."""
        return int(self.weights[0].shape[1])

    def slopes(self, patterns: Array) -> list[Array]:
        """Return diag D_1, ..., diag D_{L-1}, each (..., n_l), of patterns (..., hidden)."""
        ends = np.cumsum([0, *(len(weight) for weight in self.weights[:-1])])
        return [np.where(patterns[..., i:j] > 0, 1.0, self.slope) for i, j in itertools.pairwise(ends)]


def read(net: nn.Module) -> Layers:
    """Return the layers of a chain of linear layers; refuse other modules and parameters that are not finite."""
    chain = read_chain(net, multiply_out=True).biased()  # regions depend on the function, not on its parameters
    return Layers(*chain.arrays(), chain.slope)


def jacobians(layers: Layers, patterns: Array) -> Iterator[tuple[Array, Array]]:
    """Iterate over Jf for activation patterns, (n, d_out, d_in), each chunk with its relative rounding error, (n,).

    Products are taken from the side with fewer units; the error comes from the cancellation in each step.
    """
    last, first = len(layers.weights[-1]), layers.d_in
    factors = layers.weights[::-1] if last <= first else [weight.T for weight in layers.weights]
    chunk = max(1, CHUNK_ENTRIES // (max(first, *map(len, layers.weights)) * min(first, last)))
    for start in range(0, len(patterns), chunk):
        slopes = layers.slopes(patterns[start : start + chunk])
        number = len(patterns[start : start + chunk])
        product, error = np.broadcast_to(factors[0], (number, *factors[0].shape)), np.zeros(number)
        for factor, slope in zip(factors[1:], slopes[::-1] if last <= first else slopes, strict=True):
            masked = product * slope[:, None, :]
            product = (masked.reshape(-1, len(factor)) @ factor).reshape(number, -1, factor.shape[1])
            before = np.linalg.norm(masked, axis=(1, 2)) * np.linalg.norm(factor)
            after = np.linalg.norm(product, axis=(1, 2))
            error += 8 * np.finfo(float).eps * before / np.where(after > 0, after, 1.0)
        if not np.isfinite(product).all():
            raise ValueError("net: its Jacobian has NaN or infinite entries, expected finite ones")
        yield (product if last <= first else product.swapaxes(1, 2)), error


def spectra(layers: Layers, patterns: Array, rtol: float) -> tuple[Array, Array]:
    """Return the singular values of Jf, (n, min(d_in, d_out)), and its rank, (n,), for activation patterns.

    Singular values count above ``rtol`` times the largest, and above the rounding error of Jf.
    """
    parts = [(np.linalg.svd(each, compute_uv=False), error) for each, error in jacobians(layers, patterns)]
    spectrum, error = map(np.concatenate, zip(*parts, strict=True))
    return spectrum, (spectrum > np.maximum(rtol, error)[:, None] * spectrum[:, :1]).sum(1)


def offset(layers: Layers, pattern: Array) -> Array:
    """Return f(x) - Jf x on the region of one activation pattern, (d_out,)."""
    value = layers.biases[0]
    for weight, bias, slope in zip(layers.weights[1:], layers.biases[1:], layers.slopes(pattern), strict=True):
        value = weight @ (slope * value) + bias
    return value.copy()


class Swept(NamedTuple):
    """Pieces on which a network is affine.

    Attributes
    ----------
    shapes : Intervals, Polygons or Cells
        The pieces, in coordinates in which the domain is [-1, 1]^dimensions.
    patterns : ndarray
        Signs of the hidden neurons, (pieces, hidden), int8.
    maps : ndarray
        What was kept of the affine maps, (pieces, ...).
    complete : bool
        Whether all of the domain was swept.
    """

    shapes: Any
    patterns: Array
    maps: Array
    complete: bool


def sweep(
    layers: Layers,
    origin: Array,
    axes: Array,
    shapes: Shapes,
    max_regions: int,
    keep: Callable[[Array, Array], Array] = lambda z, size: size[:, :0],
) -> Swept:
    """Return pieces of the input space on which no hidden neuron changes sign, by cutting the given ones.

    Depth first, to save memory. A neuron that is 0 on a whole piece takes its sign near the piece, in one random
    direction that is the same for all neurons. The pattern is then that of a region of the input space adjacent to the
    piece. If the neuron is 0 there as well, its sign is 0.

    Parameters
    ----------
    layers : Layers
        The network.
    origin, axes : ndarray
        The points with coordinates 0, (pieces, d_in), and one vector for each coordinate, (pieces, dimensions, d_in).
    shapes : Intervals, Polygons or Cells
        The pieces at the start.
    max_regions : int
        Stop at this number of pieces.
    keep : callable
        What to keep of the affine maps: a function of their coefficients z, (pieces, dimensions + 2, d_out), at the
        point 0, along each coordinate and in a random direction, and of their size that is rounding, (pieces, d_out).
    """
    direction = np.random.default_rng(0).standard_normal(layers.d_in)
    beside = np.linalg.norm(axes, axis=2).max(1)[:, None, None] * direction / np.linalg.norm(direction)
    start = np.concatenate([origin[:, None], axes, beside], 1)
    found, complete = 0, True
    done: list[tuple[Shapes, Array, Array]] = []
    stack = [(0, start, np.zeros(len(start)), np.zeros((len(start), 0), np.int8), np.arange(len(start)), shapes)]
    while stack and found < max_regions:
        depth, z, size, patterns, parents, shapes = stack.pop()
        if len(shapes) > BATCH:
            rest = slice(BATCH, None)
            stack.append((depth, z, size, patterns, parents[rest], shapes[rest]))
            parents, shapes = parents[:BATCH], shapes[:BATCH]
        if len(shapes) > max_regions - found:  # each contains at least one region
            parents, shapes, complete = parents[: max_regions - found], shapes[: max_regions - found], False
        a, patterns = z[parents], patterns[parents]
        if depth > 0:
            value = a[:, 0] + np.einsum("pk,pki->pi", shapes.centers(), a[:, 1:-1])
            value = np.where(np.abs(value) > size[parents], value, a[:, -1])
            signs = np.where(np.abs(value) > size[parents], np.sign(value), 0).astype(np.int8)
            a, patterns = a * np.where(signs > 0, 1.0, layers.slope)[:, None], np.concatenate([patterns, signs], 1)
        z, size = _affine(layers, depth, a)
        if depth < len(layers.weights) - 1:
            parents, shapes = shapes.cut(z[:, :-1], size, max_regions - found)
            stack.append((depth + 1, z, size, patterns, parents, shapes))
        else:
            found += len(shapes)
            done.append((shapes, patterns, keep(z, size)))
    parts, signs_done, maps = zip(*done, strict=True)
    return Swept(type(shapes).joined(parts), np.concatenate(signs_done), np.concatenate(maps), complete and not stack)


def _affine(layers: Layers, depth: int, a: Array) -> tuple[Array, Array]:
    """Return a layer applied to a (pieces, k, n): W a + b for the first of the k, W a for the others; and what is 0."""
    weight, bias = layers.weights[depth], layers.biases[depth]
    with np.errstate(over="ignore", invalid="ignore"):
        z = (a.reshape(-1, a.shape[-1]) @ weight.T).reshape(*a.shape[:-1], len(weight))
        z[:, 0] += bias
    if not np.abs(z).max() < HUGE:
        raise validation.RangeError(
            f"net: layer {depth + 1} has values of 1e150 and more there, or NaN, expected smaller ones"
        )
    if layers.slope == 1:  # no kinks
        return z, np.full((len(z), len(weight)), np.inf)
    reach = np.abs(a).max((1, 2)) * np.sqrt(a.shape[2])
    size = ROUNDING * (reach[:, None] * np.linalg.norm(weight, axis=1) + np.abs(bias))
    return z, size + np.finfo(float).tiny
