"""Which kinks have one derivative in common: those of a neuron with samples that are multiples of each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Ties", "of"]

Array = np.ndarray
DIGITS = 11  # to which the directions of samples agree


@dataclass(frozen=True)
class Ties:
    """Kinks in groups with one unknown each: alpha on one side, 1 + slope - alpha on the other.

    Attributes
    ----------
    groups, sides : ndarray, (kinks,)
        The group of each kink, from 0, and 1 or -1.
    first : ndarray, (groups,)
        The first kink of each group; its side is 1.
    slope : float
        Of the activation.
    """

    groups: Array
    sides: Array
    first: Array
    slope: float

    def all(self, free: Array) -> Array:
        """Return the derivatives at all kinks for the unknowns of the groups."""
        return np.where(self.sides > 0, free[self.groups], 1 + self.slope - free[self.groups])

    def matrix(self) -> Array | None:
        """Return how :meth:`all` changes with the unknowns, (kinks, groups); None for the identity."""
        if len(self.groups) == len(self.first):
            return None
        result = np.zeros((len(self.groups), len(self.first)))
        result[np.arange(len(result)), self.groups] = self.sides
        return result


def of(layers: Array, neurons: Array, samples: Array, x: Array, slope: float) -> Ties:
    """Tie the kinks (layer from 0, neuron, sample) of a neuron with samples c x, for c > 0, in layer 0 for c < 0 too.

    Positive homogeneity gives sigma(Z_l) of c x, c > 0, as c times that of x, whatever the weights. After layer 0 this
    is not so for c < 0; and activations that happen to be multiples, of samples that are not, need not stay so when the
    weights change. No row of x, (N, d_in), is 0.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [-2.0, -4.0], [0.5, 1.0]])
    >>> tied = of(np.array([0, 0, 1, 1, 1]), np.zeros(5, int), np.array([0, 1, 0, 1, 2]), x, 0.0)
    >>> tied.groups.tolist(), tied.sides.tolist()
    ([0, 0, 1, 2, 1], [1, -1, 1, 1, 1])
    """
    units = x / np.abs(x).max(1, keepdims=True)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    side = np.where(units @ np.random.default_rng(0).normal(size=units.shape[1]) >= 0, 1, -1)
    _, line = np.unique(np.round(units * side[:, None], DIGITS) + 0.0, axis=0, return_inverse=True)
    sides = side[samples]
    keys = np.stack([layers, neurons, line.ravel()[samples], np.where(layers > 0, sides, 0)])
    _, first, groups = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)  # groups in the order of their kinks
    groups, first = np.argsort(order)[groups.ravel()], first[order]
    return Ties(groups, sides * sides[first][groups], first, slope)
