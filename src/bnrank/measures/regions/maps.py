"""Affine maps of a network on regions of constant activation pattern: their Jacobians, ranks and differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bnrank.networks.chain import read_chain

__all__ = [
    "CHUNK_ENTRIES",
    "SAME",
    "Array",
    "Layers",
    "differ",
    "distinct",
    "fingerprints",
    "jacobians",
    "offset",
    "read",
    "spectra",
]

Array = NDArray[Any]

SAME = 1e-9  # affine maps that differ by less, relative to their size, are the same
CHUNK_ENTRIES = 2**18  # numbers of the largest intermediate array: 2 MiB, what a cache holds


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

    def split(self, patterns: Array) -> list[Array]:
        """Return the part of each hidden layer of patterns (..., hidden)."""
        return np.split(patterns, np.cumsum([len(weight) for weight in self.weights[:-1]])[:-1], axis=-1)

    def slopes(self, patterns: Array) -> list[Array]:
        """Return diag D_1, ..., diag D_{L-1}, each (..., n_l), of patterns (..., hidden)."""
        return [np.where(part > 0, 1.0, self.slope) for part in self.split(patterns)] if self.weights[1:] else []


def read(net: nn.Module) -> Layers:
    """Return the layers of a chain of linear layers; refuse other modules and parameters that are not finite."""
    chain = read_chain(net, multiply_out=True).biased()  # regions are the function's, whatever its parameters
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
    """Return factors[0] diag slopes[0] factors[1] ... and its relative error, by how much each step cancels."""
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
    """Say where fingerprints in two arrays belong to different affine maps."""
    size = np.maximum(first[:, 3:], second[:, 3:])
    return cast(Array, (np.abs(first[:, :3] - second[:, :3]) > SAME * size).any(1))


def distinct(maps: Array) -> int:
    """Count the different affine maps among fingerprints."""
    labels = np.zeros(len(maps), int)
    for k in range(3):
        order = np.lexsort((maps[:, k], labels))
        ranked, group = maps[order], labels[order]
        gap = np.diff(ranked[:, k]) > SAME * np.maximum(ranked[1:, 3], ranked[:-1, 3])
        labels[order] = np.cumsum(np.concatenate([[True], gap | (np.diff(group) > 0)]))[: len(maps)]
    return len(np.unique(labels))
