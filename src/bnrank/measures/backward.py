"""Products along the layers of an MLP, in blocks that fit the cache, for Jacobians and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.measures import kinks
from bnrank.networks.mlp import MLP, leaky_relu

BLOCK_ENTRIES = 2**17  # entries of one product in a block; two products in float64 fill a cache of 2 MiB
BLOCK_ROWS = 128  # minimum number of rows, so that wide layers are not read from memory too often
WORTH = 0.9  # fraction of active neurons in a piece below which dead ones are omitted from the products
PIECE_ENTRIES = 2**20  # entries stored per piece: activations, slopes and Jacobians, 8 MiB in float64


@dataclass(frozen=True)
class Forward:
    """Values of a forward pass that the products require.

    Attributes
    ----------
    inputs : list of Tensor
        a_0, ..., a_{L-1}, each (n, n_l).
    slopes : list of Tensor
        Diagonals of D_1, ..., D_{L-1}, each (n, n_l); s at a kink, as PyTorch has it.
    candidates : list of (int, Tensor)
        Index of a layer, from 0, and a mask of its preactivations near 0, (n, n_l); only layers with some.
    """

    inputs: list[Tensor]
    slopes: list[Tensor]
    candidates: list[tuple[int, Tensor]]


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

    def forward(self, x: Tensor, kink_rtol: float | None = None) -> Forward:
        """Return the values of a forward pass on x, (n, d_in), and preactivations near 0 if a tolerance is given."""
        first = self.weights[0]
        inputs, slopes, candidates = [x.to(first.device, first.dtype)], [], []
        for i, weight in enumerate(self.weights[:-1]):
            a, bias = inputs[-1], self.biases[i] if self.biases else None
            z = a @ weight.T if bias is None else torch.addmm(bias, a, weight.T)
            if kink_rtol is not None and self.slope != 1:
                near = kinks.near_zero(z, a, weight, bias, kink_rtol)
                if near is not None:
                    candidates.append((i, near))
            d = torch.gt(z, 0, out=torch.empty_like(z))
            slopes.append(d.add_(1 - d, alpha=self.slope) if self.slope else d)
            inputs.append(leaky_relu(z, self.slope))
        return Forward(inputs, slopes, candidates)

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


def mlp_forward(net: MLP, x: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return the layers' inputs a_0, ..., a_{L-1} and the slopes diag D_1, ..., D_{L-1}, each (n, n_l)."""
    found = Layers.of(net, dtype).forward(x)
    return found.inputs, found.slopes


def sweep(
    layers: Layers,
    x: Tensor,
    *,
    chunk_size: int | None = None,
    jacobian: bool = True,
    trace: bool = False,
    compact: bool = False,
    tangent: Tensor | None = None,
    watch: kinks.Watch | None = None,
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Iterate over Jacobians and NTK traces of pieces of the samples, both from the same products.

    Parameters
    ----------
    layers : Layers
        The network.
    x : Tensor
        Samples, (N, d_in).
    chunk_size : int, optional
        Samples per piece; by default as many as fit within 2^20 entries. Within a piece, the products of all blocks of
        samples use the same two buffers.
    jacobian, trace : bool
        What to compute.
    compact : bool
        Return a smaller matrix with the same non-zero singular values where the first or last layer allows it: with W_L
        = Q R (or W_1^T = Q R), Q of orthonormal columns, Q is omitted if the result is smaller.
    tangent : Tensor, optional
        Orthonormal columns Q, (d_in, m) or (N, d_in, m): Jf(x) Q instead of Jf(x).
    watch : Watch, optional
        Collects the samples near a kink.

    Yields
    ------
    tuple
        Jf(x_i) Q, (n, d_out, m), or None; Tr Theta(x_i, x_i), (n,), or None.
    """
    weights, widths, depth = layers.weights, layers.widths, len(layers.weights)
    each = tangent is not None and tangent.ndim == 3  # a basis per sample
    first = weights[-1]
    last = weights[0] if tangent is None or each else weights[0] @ tangent
    if compact and depth > 1:
        first = _narrow(first)
        last = last if each else _narrow(last.T).T
    m = tangent.shape[2] if tangent is not None and each else last.shape[1]
    by_output = trace or first.shape[0] <= m
    rows = first.shape[0] if by_output else m
    size = max(widths[1:-1], default=1)
    block = max(1, BLOCK_ENTRIES // (rows * size), BLOCK_ROWS // rows)
    piece = chunk_size or max(block, PIECE_ENTRIES // (2 * sum(widths) + first.shape[0] * max(m, last.shape[1])))
    buffers = [first.new_empty(min(block, piece, len(x)) * rows * size) for _ in range(2)]
    bases = tangent.split(piece) if tangent is not None and each else None
    for i, part in enumerate(x.split(piece)):
        n, base = len(part), None if bases is None else bases[i]
        found = layers.forward(part, None if watch is None else watch.rtol)
        if watch is not None:
            watch.masks.append(
                kinks.depending(weights, found.slopes, found.candidates, n, tangent if bases is None else base)
            )
            if not jacobian and not trace:
                continue
        masks, inner, first_part, last_part = _alive(layers, found.slopes, first, last)
        if by_output:
            start, masks = first_part.expand(n, -1, -1), masks[::-1]
            matrices = [*inner[::-1], *([last_part] if jacobian and depth > 1 else [])]
        else:
            start = (last_part.T if base is None else (last_part @ base).mT).expand(n, -1, -1)
            matrices = [*(w.T for w in inner), first_part.T]
        norms = first.new_empty(len(masks), n) if trace else None
        if depth > 1:
            target = first.new_empty(n, rows, matrices[-1].shape[1]) if jacobian else None
            _in_blocks(start, masks, matrices, block, buffers, target, norms)
            result = start if target is None else target
        else:
            result = last.expand(n, -1, -1).clone() if by_output else start.clone()
        if not by_output:
            result = result.mT
        elif base is not None and jacobian:
            result = result @ base
        yield result if jacobian else None, None if norms is None else _traces(layers, found.inputs, norms)


def _narrow(matrix: Tensor) -> Tensor:
    """Return R of A = QR, which has the same singular values, if A has more rows than columns, else A."""
    return torch.linalg.qr(matrix, mode="r").R if matrix.shape[0] > matrix.shape[1] else matrix


def _alive(
    layers: Layers, slopes: list[Tensor], first: Tensor, last: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Return D_1, ..., D_{L-1}; W_2, ..., W_{L-1}; W_L; W_1 without neurons whose derivative is 0 at all samples.

    A GPU, which the host would have to wait for, keeps all neurons.
    """
    inner = layers.weights[1:-1]
    if layers.slope != 0 or not slopes or first.device.type != "cpu":
        return slopes, inner, first, last
    kept: list[Tensor | slice] = [slice(None)] * len(slopes)
    for i, d in enumerate(slopes):
        alive = d.amax(0).nonzero().flatten()
        if len(alive) < WORTH * d.shape[1]:
            kept[i] = alive
    inner = [w[rows][:, columns] for w, columns, rows in zip(inner, kept, kept[1:], strict=False)]
    return [d[:, i] for d, i in zip(slopes, kept, strict=True)], inner, first[:, kept[-1]], last[kept[0]]


def _in_blocks(
    start: Tensor,
    masks: list[Tensor],
    matrices: list[Tensor],
    block: int,
    buffers: list[Tensor],
    result: Tensor | None,
    norms: Tensor | None,
) -> None:
    """Write start D M D M ... D M to ``result``, and the norm after every D to ``norms``, (matrices D, n)."""
    n, rows = start.shape[:2]
    for begin in range(0, n, block):
        here = slice(begin, min(begin + block, n))
        g = start[here]
        for i, mask in enumerate(masks):
            d = mask[here, None, :]
            g = g.mul_(d) if i else torch.mul(g, d, out=_view(buffers[0], len(d), rows, d.shape[2]))
            if norms is not None:
                torch.linalg.vector_norm(g.view(len(d), -1), dim=1, out=norms[i, here])
            if i == len(matrices):
                break
            matrix, is_last = matrices[i], i == len(masks) - 1
            if is_last and result is not None:
                out = result[here]
            else:
                out = _view(buffers[(i + 1) % 2], len(d), rows, matrix.shape[1])
            torch.mm(g.view(len(d) * rows, -1), matrix, out=out.view(len(d) * rows, -1))
            g = out


def _view(buffer: Tensor, *shape: int) -> Tensor:
    return buffer[: torch.Size(shape).numel()].view(shape)


def _traces(layers: Layers, inputs: list[Tensor], norms: Tensor) -> Tensor:
    """Return sum_l (||a_{l-1}||^2 + 1) ||J(a~_l -> f)||_F^2 from the norms of layers L-1, ..., 1."""
    one = 1.0 if layers.biases else 0.0
    scales = [(a * a).sum(1) + one for a in inputs]
    total = scales[-1] * layers.widths[-1]
    for scale, square in zip(scales[-2::-1], norms.square(), strict=True):
        total = total + scale * square
    return total
