"""Products along the layers of an MLP, in blocks that fit the cache, for Jacobians and kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.mlp import MLP, leaky_relu

BLOCK_ENTRIES = 2**17  # entries of one product of a block of samples; two products in float64 fill a cache of 2 MiB
BLOCKS = 8  # that share a forward pass
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
        """Return the number of samples for one forward pass: of blocks whose products of so many rows fit the cache."""
        return BLOCKS * max(1, BLOCK_ENTRIES // (rows * max(self.widths[1:-1], default=1)), BLOCK_ROWS // rows)

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

    def to_output(self, slopes: list[Tensor]) -> list[Tensor]:
        """Return J(a~_l -> f), (n, d_out, n_l), for l = 1..L."""
        products = [self._identity(self.widths[-1], slopes)]
        for weight, d in zip(self.weights[:0:-1], slopes[::-1], strict=True):
            products.append((products[-1] @ weight) * d[:, None, :])
        return products[::-1]

    def from_input(self, slopes: list[Tensor]) -> list[Tensor]:
        """Return J a_{l-1}, (n, n_{l-1}, d_in), for l = 1..L."""
        products = [self._identity(self.widths[0], slopes)]
        for weight, d in zip(self.weights[:-1], slopes, strict=True):
            products.append(d[:, :, None] * (weight @ products[-1]))
        return products

    def _identity(self, size: int, slopes: list[Tensor]) -> Tensor:
        identity = torch.eye(size, dtype=self.weights[0].dtype, device=self.weights[0].device)
        return identity.expand(len(slopes[0]) if slopes else 1, -1, -1)

    def jacobian(
        self, at: Forward, *, matrix: bool = True, compact: bool = False, trace: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the Jacobians and NTK traces of a block of samples, both from the same products.

        Parameters
        ----------
        at : Forward
            The values at the samples.
        matrix : bool
            Whether to return the Jacobians, else matrices without columns.
        compact : bool
            Return a smaller matrix with the same non-zero singular values, where the first or last layer allows it.
        trace : bool
            Whether to return the traces.

        Returns
        -------
        tuple
            Jf(x_i), (n, d_out, d_in); Tr Theta(x_i, x_i), (n,), or None.
        """
        weights = list(self._narrowed if compact else self.weights)
        if not matrix:
            weights[0] = weights[0][:, :0]
        weights, slopes = self._alive(weights, at.slopes)
        from_output = trace or len(weights[-1]) <= weights[0].shape[1]
        weights, slopes = (weights[::-1], slopes[::-1]) if from_output else ([w.mT for w in weights], slopes)
        n, products, norms = len(at.inputs[0]), [], []
        size = max(1, self.block(weights[0].shape[0]) // BLOCKS)
        for begin in range(0, n, size):
            block = [d[begin : begin + size, None] for d in slopes]
            product = weights[0].contiguous().expand(min(size, n - begin), -1, -1)
            for i, (weight, d) in enumerate(zip(weights[1:], block, strict=True)):
                product = product.mul_(d) if i else product * d
                if trace:
                    norms.append(torch.linalg.vector_norm(product.view(len(d), -1), dim=1))
                product = product @ weight
            products.append(product)
        matrices = torch.cat(products)
        if not trace:
            return matrices if from_output else matrices.mT, None
        one = 1.0 if self.biases else 0.0
        scales = [(a * a).sum(1) + one for a in at.inputs[::-1]]
        total = scales[0] * self.widths[-1]
        for i, scale in enumerate(scales[1:]):
            total = total + scale * torch.cat(norms[i :: len(slopes)]).square()
        return matrices, total

    @cached_property
    def _narrowed(self) -> list[Tensor]:
        """The weights, the first and last without orthonormal factors: of W_L = Q R and W_1^T = Q R only R."""
        weights = list(self.weights)
        if len(weights) > 1:
            for place, long in ((0, weights[0].mT), (-1, weights[-1])):
                if long.shape[0] > long.shape[1]:
                    short = torch.linalg.qr(long, mode="r").R
                    weights[place] = short if place else short.mT
        return weights

    def _alive(self, weights: list[Tensor], slopes: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights and slopes without neurons whose derivative is 0 at all samples, if they are many.

        A GPU, which the host would have to wait for, keeps all neurons.
        """
        if self.slope != 0 or weights[0].device.type != "cpu":
            return weights, slopes
        active = [d.amax(0).nonzero().flatten() for d in slopes]
        if all(len(alive) >= WORTH * d.shape[1] for d, alive in zip(slopes, active, strict=True)):
            return weights, slopes
        for i, alive in enumerate(active):
            weights[i] = weights[i][alive]
            weights[i + 1] = weights[i + 1][:, alive]
        return weights, [d[:, alive] for d, alive in zip(slopes, active, strict=True)]
