"""Products along the layers of an MLP, for Jacobians and kernels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.mlp import MLP, leaky_relu

BLOCK_ENTRIES = 2**20  # entries of one product of a block of samples: 8 MiB in float64
BLOCK_ROWS = 128  # least number of rows of a product, so that wide layers are not read from memory too often
WORTH = 0.9  # fraction of active neurons of a layer at all samples below which dead ones are omitted from the products


@dataclass(frozen=True)
class Forward:
    """Values of a forward pass.

    Attributes
    ----------
    inputs : list of Tensor
        a_0, ..., a_{L-1}, each (n, n_l).
    preactivations : list of Tensor
        a~_1, ..., a~_{L-1}, each (n, n_l).
    slopes : list of Tensor
        Diagonals of D_1, ..., D_{L-1}, each (n, n_l); s at a kink, as PyTorch has it.
    """

    inputs: list[Tensor]
    preactivations: list[Tensor]
    slopes: list[Tensor]


@dataclass(frozen=True)
class Layers:
    """The parameters of an MLP in one precision.

    Attributes
    ----------
    weights, biases : list of Tensor
        W_1, ..., W_L, and b_1, ..., b_L or nothing.
    slope : float
        s.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    slope: float

    @classmethod
    def of(cls, net: MLP, dtype: torch.dtype, *, copy: bool = False) -> Layers:
        """Return the parameters of an MLP in the given precision; with ``copy``, always as copies."""
        dtype = validation.dtype(dtype)
        weights, biases = ([p.detach().to(dtype, copy=copy) for p in group] for group in (net.weights, net.biases))
        return cls(weights, biases, net.slope)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.weights[0].device

    @property
    def widths(self) -> list[int]:
        """n_0, ..., n_L."""
        return [self.weights[0].shape[1], *(w.shape[0] for w in self.weights)]

    def block(self, rows: int) -> int:
        """Return the number of samples of a block, for products of so many rows."""
        return max(1, BLOCK_ENTRIES // (rows * max(self.widths[1:-1], default=1)), BLOCK_ROWS // rows)

    def forward(self, x: Tensor) -> Forward:
        """Return the values of a forward pass on x, (n, d_in)."""
        first = self.weights[0]
        inputs, preactivations, slopes = [x.to(first.device, first.dtype)], [], []
        for i, weight in enumerate(self.weights[:-1]):
            z = torch.addmm(self.biases[i], inputs[-1], weight.T) if self.biases else inputs[-1] @ weight.T
            d = torch.gt(z, 0, out=torch.empty_like(z))
            slopes.append(d.add_(1 - d, alpha=self.slope) if self.slope else d)
            preactivations.append(z)
            inputs.append(leaky_relu(z, self.slope))
        return Forward(inputs, preactivations, slopes)

    def to_output(self, slopes: list[Tensor]) -> Iterator[Tensor]:
        """Iterate over J(a~_l -> f) for l = L..1, each (n, d_out, n_l), the first (1, d_out, d_out)."""
        return self._products(self.widths[-1], self.weights[:0:-1], slopes[::-1])

    def from_input(self, slopes: list[Tensor]) -> Iterator[Tensor]:
        """Iterate over the transposes of J a_{l-1} for l = 1..L, each (n, d_in, n_{l-1}), the first (1, d_in, d_in)."""
        return self._products(self.widths[0], [weight.mT for weight in self.weights[:-1]], slopes)

    def _products(self, size: int, weights: list[Tensor], slopes: list[Tensor]) -> Iterator[Tensor]:
        """Iterate over the products of the weights and diagonals up to each of them, from the identity on."""
        product = torch.eye(size, dtype=self.weights[0].dtype, device=self.device)[None]
        yield product
        for i, (weight, d) in enumerate(zip(weights, slopes, strict=True)):
            product = (product @ weight).mul_(d[:, None]) if i else weight * d[:, None]
            yield product

    def jacobian(self, at: Forward) -> Tensor:
        """Return Jf(x_i), (n, d_out, d_in), for a block of samples, by products from the narrower end."""
        layers, slopes = self._alive(at.slopes)
        from_output = len(layers.weights[-1]) <= layers.widths[0]
        product = deque(layers.to_output(slopes) if from_output else layers.from_input(slopes), maxlen=1).pop()
        matrices = product @ layers.weights[0] if from_output else (product @ layers.weights[-1].mT).mT
        return matrices.expand(len(at.inputs[0]), -1, -1)

    def traced(self, at: Forward, *, matrix: bool = True) -> tuple[Tensor, Tensor]:
        """Return Tr Theta(x_i, x_i), (n,), and the compact Jacobians (n, ...), if requested, from the same products."""
        layers, slopes = self.compact._alive(at.slopes)
        total = torch.zeros_like(at.inputs[0][:, 0])
        for i, (a, product) in enumerate(zip(at.inputs[::-1], layers.to_output(slopes), strict=True)):
            norms = torch.linalg.vector_norm(product.flatten(1), dim=1).square() if i else self.widths[-1]
            total += (a.square().sum(1) + bool(self.biases)) * norms
        return total, (product @ layers.weights[0]).expand(len(total), -1, -1) if matrix else product

    def _alive(self, slopes: list[Tensor]) -> tuple[Layers, list[Tensor]]:
        """Return the layers and slopes without neurons whose derivative is 0 at all samples, if they are many.

        A GPU, which the host would have to wait for, keeps all neurons.
        """
        if self.slope != 0 or self.device.type != "cpu":
            return self, slopes
        active = [d.amax(0).nonzero().flatten() for d in slopes]
        if all(len(alive) >= WORTH * d.shape[1] for d, alive in zip(slopes, active, strict=True)):
            return self, slopes
        weights = list(self.weights)
        for i, alive in enumerate(active):
            weights[i] = weights[i][alive]
            weights[i + 1] = weights[i + 1][:, alive]
        return Layers(weights, [], self.slope), [d[:, alive] for d, alive in zip(slopes, active, strict=True)]

    @cached_property
    def compact(self) -> Layers:
        """Layers whose Jacobians are smaller, with the same non-zero singular values, if the first or last is wide.

        Of W_L = Q R and W_1^T = Q R they have only R, without the orthonormal factor.
        """
        weights = list(self.weights)
        if len(weights) > 1:
            for place, long in ((0, weights[0].mT), (-1, weights[-1])):
                if long.shape[0] > long.shape[1]:
                    short = torch.linalg.qr(long, mode="r").R
                    weights[place] = short if place else short.mT
        return Layers(weights, [], self.slope)
