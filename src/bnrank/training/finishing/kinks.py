"""Kinks: neurons and samples at which the preactivation is zero, where the loss has a crease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnrank.measures.second_order import Array, Evaluation, Problem
from bnrank.measures.subgradients import zeros

BENT = 1e-2  # at kinks of the smoothed network s (1 - s) of the derivative s is larger than this


@dataclass(frozen=True)
class Kinks:
    """Pairs of a hidden neuron and a sample with preactivation zero, and the derivatives of the activation there.

    Attributes
    ----------
    layers, neurons, samples : ndarray of int, (K,)
        Indices, from 0.
    slopes : ndarray, (K,)
        Derivatives of the activation.
    """

    layers: Array
    neurons: Array
    samples: Array
    slopes: Array

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def places(self) -> tuple[Array, Array, Array]:
        """Layers, neurons and samples."""
        return self.layers, self.neurons, self.samples

    def select(self, values: Sequence[Array]) -> Array:
        """Return the values at the kinks, (K,), of arrays (N, n_l), one per hidden layer."""
        result = np.zeros(len(self))
        for layer in np.unique(self.layers):
            at = self.layers == layer
            result[at] = values[layer][self.samples[at], self.neurons[at]]
        return result

    def kept(self, keep: Array) -> Kinks:
        """Return some of the kinks."""
        return Kinks(self.layers[keep], self.neurons[keep], self.samples[keep], self.slopes[keep])

    def with_slopes(self, slopes: Array) -> Kinks:
        """Return the kinks with other derivatives."""
        return Kinks(*self.places, slopes)

    def and_one(self, layer: int, neuron: int, sample: int, slope: float) -> Kinks:
        """Return the kinks and one more."""
        one = (layer, neuron, sample, slope)
        return Kinks(*(np.append(part, new) for part, new in zip((*self.places, self.slopes), one, strict=True)))

    def joined(self, other: Kinks) -> Kinks:
        """Return these kinks and others."""
        parts = zip((*self.places, self.slopes), (*other.places, other.slopes), strict=True)
        return Kinks(*(np.concatenate(pair) for pair in parts))

    def lengths(self, at: Evaluation) -> Array:
        """Return ||w|| ||a|| at the kinks, (K,)."""
        terms = zip(at.inputs, at.layers[:-1], strict=False)
        return self.select([np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(w, axis=1) for a, w in terms])

    @classmethod
    def where(cls, masks: Sequence[Array], slopes: Sequence[Array]) -> Kinks:
        """Return the kinks where masks, (N, n_l), one per hidden layer, are set, with the derivatives given there."""
        found = [np.nonzero(mask) for mask in masks]
        layers = np.repeat(np.arange(len(found)), [len(samples) for samples, _ in found])
        samples, neurons = (np.concatenate([pair[i] for pair in found]).astype(int) for i in (0, 1))
        values = np.concatenate([s[pair] for s, pair in zip(slopes, found, strict=True)])
        return cls(layers, neurons, samples, values)


def of_smoothed(problem: Problem, layers: Sequence[Array], smooth: Array, bent: float = BENT) -> Kinks:
    """Return the kinks near a stationary point of the smoothed loss, with the slopes that it suggests."""
    first = Evaluation(problem, layers, smooth).first
    low, high = min(problem.slope, 1.0), 1.0
    shares = [(f - low) / (high - low) for f in first]
    return Kinks.where([share * (1 - share) > bent for share in shares], first)


def at_zero(problem: Problem, layers: Sequence[Array], kink_rtol: float) -> Kinks:
    """Return the kinks of layers: preactivations that are 0 up to ``kink_rtol`` times ||w|| ||a||."""
    at = Evaluation(problem, layers)
    return Kinks.where(zeros(at, kink_rtol), [np.full_like(z, (problem.slope + 1) / 2) for z in at.z[:-1]])
