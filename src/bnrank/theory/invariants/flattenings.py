"""Linear layers as tensors (out channels, in channels, the rest), flattened in two ways, and how norms compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.conserved import Conserved

__all__ = ["Layer", "Map", "largest", "squares"]


@dataclass(frozen=True)
class Map:
    """A learnable linear map between two values whose channels may be mixed by any matrix.

    Attributes
    ----------
    name : str
        Of the node, e.g. "layers_2".
    kind : str
        "linear" or "conv".
    weight, bias : str
        Names of its parameters; "" for no bias.
    written : ndarray
        (channels out, ...): which entry of the flattened weight stands where in the written form, a row per channel of
        the value it writes.
    read : ndarray
        (..., channels in): the same of the read form, a column per channel of the value it reads.
    biases : ndarray or None
        (channels out, ...): the same of the bias.
    """

    name: str
    kind: str
    weight: str
    bias: str
    written: np.ndarray = field(repr=False, compare=False)
    read: np.ndarray = field(repr=False, compare=False)
    biases: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def rest(self) -> int:
        """How many entries there are per channel in and out: kernel size, positions of a flattened value, or 1."""
        return self.written.size // (self.written.shape[0] * self.read.shape[1])

    @property
    def factor(self) -> int:
        """By how much the written form's squared operator norm can exceed the read form's: min(channels in, rest)."""
        return min(self.read.shape[1], self.rest)

    def written_form(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the weight as a matrix (channels out, in times rest), float64."""
        return _taken(parameters, self.weight, self.written)

    def read_form(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the weight as a matrix (out times rest, channels in), float64."""
        return _taken(parameters, self.weight, self.read)

    def bias_form(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the bias as a matrix (channels out, entries of the bias per channel), float64; no columns without."""
        if self.biases is None:
            return torch.zeros(self.written.shape[0], 0, dtype=torch.float64)
        return _taken(parameters, self.bias, self.biases)


@dataclass(frozen=True)
class Layer:
    """What lies between two values of a linear tail: one map, or several chains of maps whose outputs are added.

    Attributes
    ----------
    name : str
        Of the node that gives its value, e.g. "layers_2" or "add".
    kind : str
        "linear", "conv", "free block" (two or more chains), or "sum" (the first layer of a tail, if what it adds comes
        from different places).
    branches : tuple of tuple of Map
        The chains, the map that reads first.
    inside : tuple of tuple of Conserved
        The conserved matrices E = in - out of the values inside the chains, biases with in; per chain.
    after : Conserved or None
        The conserved matrix D = in - out of the value that it writes, biases with in; None for the output.
    """

    name: str
    kind: str
    branches: tuple[tuple[Map, ...], ...]
    inside: tuple[tuple[Conserved, ...], ...] = ()
    after: Conserved | None = None

    @property
    def factor(self) -> int:
        """By how much the written form's squared operator norm can exceed the read form's, up to a constant.

        The sum over the chains of the product over the maps: 1 for a fully connected layer, min(in, k) for a
        convolution, 2 for a free block.
        """
        return sum(int(np.prod([m.factor for m in branch])) for branch in self.branches)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the weights and biases."""
        names = [n for branch in self.branches for m in branch for n in (m.weight, m.bias) if n]
        return tuple(dict.fromkeys(names))

    def written(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the written form, float64: W, out x (in k), or [Z D]; a row per channel of the value it writes."""
        return torch.cat([branch[-1].written_form(parameters) for branch in self.branches], 1)

    def read(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the read form, float64: W, (out k) x in, or [Y; D]; a column per channel of the value it reads."""
        return torch.cat([branch[0].read_form(parameters) for branch in self.branches])

    def biases(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the biases added to the value it writes, (channels, entries per channel), float64."""
        return torch.cat([branch[-1].bias_form(parameters) for branch in self.branches], 1)

    def added(self, inner: Sequence[Sequence[Tensor]], rank: int) -> float:
        """Return how much further the read form can be from rank r f than the written form from rank r, f the factor.

        Distances are sums of squared singular values; ``inner`` are the eigenvalues of :attr:`inside`, r is ``rank``.
        Along a chain X_1, ..., X_m (first map first) E_i = X_i X_i^T + c_i c_i^T - X_{i+1}^T X_{i+1}; a written form of
        rank r has a read form of rank f r at most, f the map's factor; biases c_i only take away.
        """
        total = 0.0
        for branch, spectra in zip(self.branches, inner, strict=True):
            reached = rank
            for one, values in zip(reversed(branch[1:]), reversed(spectra), strict=True):
                reached *= one.factor
                total += largest(values, len(values) - reached)
        return total


def largest(values: Tensor, count: int) -> float:
    """Return the sum of the largest eigenvalues, given in ascending order; 0 of none.

    Examples
    --------
    >>> largest(torch.tensor([-1.0, 2.0, 3.0]), 2), largest(torch.tensor([1.0]), -1)
    (5.0, 0.0)
    """
    return float(values[len(values) - count :].sum()) if count > 0 else 0.0


def squares(matrix: Tensor) -> Tensor:
    """Return the squared singular values of a matrix in descending order, in float64; at least one.

    Examples
    --------
    >>> squares(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [16.0, 9.0]
    """
    matrix = matrix.to(torch.float64)
    if not matrix.numel():
        return torch.zeros(1, dtype=torch.float64)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0.0)


def _taken(parameters: Mapping[str, Tensor], name: str, index: np.ndarray) -> Tensor:
    flat = parameters[name].detach().to(torch.float64).flatten()
    return flat[torch.from_numpy(index).to(flat.device)]
