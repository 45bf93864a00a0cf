"""Singular values of convolutions with the padding that they have: exact where affordable, else with upper bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bnrank.measures.convolution import (
    Size,
    conv_singular_values,
    layer_blocks,
    per_dimension,
)
from bnrank.networks.reading import Layer

DENSE_WORK = 2e9  # rows x columns x the smaller of both, of a matrix whose singular values are all computed
DENSE_ENTRIES = 2**25  # entries of such a matrix: 256 MiB
BLOCK_ENTRIES = 2**20  # entries of the largest tensor while the matrix is formed: 8 MiB
LANCZOS_WORK = 1e9  # multiply-adds of products with the operator for its largest singular values, some seconds
LARGEST = 6  # singular values that are computed without forming the matrix
LANCZOS_RTOL = 1e-7
SUBSPACE = 30  # vectors that Lanczos iterations keep
PRODUCTS = 120  # expected number of products with the operator and its transpose
DISJOINT = "exact: its patches do not overlap, so that the values are those of the kernel, once per patch"
RANKS = "entropy and relative rank are those of the bounds, stable rank is"
_NUMPY_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def layer_singular_values(layer: Layer, size: Size | None = None) -> tuple[Tensor | None, str]:
    """Return all singular values of a convolutional layer, (K,) descending, and a note on what they are.

    Exact: circular padding; patches that do not overlap (stride at least the kernel, no padding), which are the
    flattened kernel, once per patch; and any other padding whose matrix is small enough to be formed. Otherwise upper
    bounds for every singular value: with zero or without padding the operator is a part of a circular one on larger
    images, whose singular values are not smaller, one by one. Where affordable, the largest are then computed by
    Lanczos iterations without forming the matrix. Transposed convolutions have the singular values of the convolution
    with the same kernel, from their outputs to their inputs.

    Parameters
    ----------
    layer : Layer
        Read with an example input; otherwise ``size`` is required.
    size : int or sequence of int, optional
        Size of the images, instead of the example's.

    Returns
    -------
    values : Tensor or None
        None if they cannot be computed (see the note). Zeros that every operator of these sizes has are left out.
    note : str
        Empty if the values are exact.

    Examples
    --------
    >>> from torch import nn
    >>> from bnrank.networks import read
    >>> layer_singular_values(read(nn.Conv1d(1, 2, 3)).layers[0])[1]
    'the spectrum of a convolution depends on the image size; give an example x or a size'
    >>> layer = read(nn.Conv2d(3, 8, 4, stride=4)).layers[0]
    >>> values, note = layer_singular_values(layer, size=16)
    >>> len(values), note                                                  # 8 values in each of 16 patches
    (128, '')
    """
    conv: Any = layer.module
    operator, reason = _operator(layer, size)
    if operator is None:
        return None, reason
    if not operator.overlaps:
        kernels = operator.kernel.flatten(1).chunk(conv.groups)
        values = torch.cat([torch.linalg.svdvals(kernel) for kernel in kernels]).repeat(math.prod(operator.out))
        return values.sort(descending=True).values, ""
    if conv.padding_mode == "circular":
        found, note = layer_blocks(layer, size)
        if found is not None and not note:
            return found.flatten().sort(descending=True).values, ""
    if operator.dense_work <= DENSE_WORK and operator.entries <= DENSE_ENTRIES:
        return torch.cat(operator.values()).sort(descending=True).values, ""
    bounds = operator.bounds()[: operator.rank]
    if PRODUCTS * operator.work > LANCZOS_WORK or min(operator.shape) <= 2 * SUBSPACE:
        note = "upper bounds: singular values of a circular convolution on larger images"
        return bounds, f"{note}; {RANKS} a lower bound"
    largest = operator.largest(LARGEST)
    values = torch.cat([largest, bounds[len(largest) :].clamp(max=float(largest[-1]))])
    note = f"the {len(largest)} largest are exact, the others are upper bounds (circular, on larger images)"
    return values, f"{note}; {RANKS} exact"


def operator_values(layer: Layer, size: Size | None = None) -> tuple[Tensor | None, float | None, str]:
    """Return the singular values of a convolutional layer, its squared norm where they are bounds, and a note.

    The Frobenius norm is that of the operator on images, with the padding that it has: exact for all sizes, without
    singular values. See :func:`layer_singular_values` for the rest.

    Examples
    --------
    >>> from torch import nn
    >>> from bnrank.networks import read
    >>> values, norm, note = operator_values(read(nn.Conv1d(1, 2, 4, stride=4)).layers[0], size=8)
    >>> len(values), note
    (4, 'exact: its patches do not overlap, so that the values are those of the kernel, once per patch')
    """
    values, note = layer_singular_values(layer, size)
    operator, _ = _operator(layer, size)
    if values is None or operator is None:
        return None, None, note
    if note:
        return values, operator.squared_norm(), note
    return values, None, "" if operator.overlaps or math.prod(operator.kernel.shape[2:]) == 1 else DISJOINT


class _Operator:
    """A convolution without bias as a linear map of images of one size, with the padding that it has."""

    def __init__(
        self, kernel: Tensor, conv: Any, n: tuple[int, ...], pads: list[tuple[int, int]], out: list[int]
    ) -> None:
        self.kernel, self.conv, self.n, self.pads, self.out = kernel, conv, n, pads, out
        self.groups = conv.groups
        self.rows = kernel.shape[0] // self.groups * math.prod(out)  # of one group
        self.columns = kernel.shape[1] * math.prod(n)
        self.shape = self.groups * self.rows, self.groups * self.columns
        self.rank = self.groups * min(self.rows, self.columns)
        self.entries = self.rows * self.columns
        self.dense_work = self.groups * self.entries * min(self.rows, self.columns)
        self.work = kernel.numel() * math.prod(out)
        reach = [d * (k - 1) + 1 for d, k in zip(conv.dilation, kernel.shape[2:], strict=True)]
        unpadded = not any(map(any, pads))
        self.overlaps = not (unpadded and all(s >= r for s, r in zip(conv.stride, reach, strict=True)))

    def __call__(self, x: Tensor, kernel: Tensor | None = None, groups: int = 1) -> Tensor:
        """Return the images, (N, c_out, ...), for images (N, c_in, ...)."""
        kernel = self.kernel if kernel is None else kernel
        mode = "constant" if self.conv.padding_mode == "zeros" else self.conv.padding_mode
        flat = [amount for pair in reversed(self.pads) for amount in pair]
        x = functional.pad(x, flat, mode=mode) if any(flat) else x
        apply: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[len(self.n) - 1]
        images = apply(x, kernel, None, self.conv.stride, 0, self.conv.dilation, groups)
        # with an output padding of at least the stride, the transpose takes the first places only
        return cast(Tensor, images[(..., *(slice(size) for size in self.out))])

    def squared_norm(self) -> float:
        """Return the sum of the squared entries of the matrix.

        An entry is the sum of the taps by which a place of the output reads a pixel. Its square is the sum over pairs
        of taps, and the number of places at which both taps read the same pixel is a product over dimensions.
        """
        paired = self.kernel
        for d, (size, pads, out) in enumerate(zip(self.n, self.pads, self.out, strict=True)):
            mode = _NUMPY_MODES[self.conv.padding_mode]
            outside: dict[str, Any] = {"constant_values": -1} if mode == "constant" else {}
            pixels = np.pad(np.arange(size), pads, mode=cast(Any, mode), **outside)
            taps = self.conv.dilation[d] * np.arange(self.kernel.shape[2 + d])
            read = pixels[self.conv.stride[d] * np.arange(out)[:, None] + taps]
            if mode == "constant":  # the taps of one place read different pixels
                counts = torch.from_numpy((read >= 0).sum(0)).to(paired)
                paired = paired.movedim(2 + d, -1).mul(counts).movedim(-1, 2 + d)
                continue
            both = np.zeros((len(taps), len(taps)), dtype=np.int64)
            for some in np.array_split(read, -(-read.size * len(taps) // BLOCK_ENTRIES)):
                both += (some[:, :, None] == some[:, None, :]).sum(0)
            counts = torch.from_numpy(both).to(paired)
            paired = torch.tensordot(paired, counts, dims=([2 + d], [0])).movedim(-1, 2 + d)
        return float((self.kernel * paired).sum())

    def values(self) -> list[Tensor]:
        """Return the singular values of every group, from the matrix."""
        largest = max(self.columns, self.rows, self.kernel[0].numel() * math.prod(self.out))  # of one image
        count = max(1, BLOCK_ENTRIES // largest)
        found = []
        for kernel in self.kernel.chunk(self.groups):
            images = (self(self._basis(start, count), kernel) for start in range(0, self.columns, count))
            found.append(torch.linalg.svdvals(torch.cat([image.flatten(1) for image in images])))
        return found

    def _basis(self, start: int, count: int) -> Tensor:
        """Return up to ``count`` of the images with one pixel that is 1, from a number on."""
        size = min(count, self.columns - start)
        basis = torch.zeros(size, self.columns, dtype=torch.float64, device=self.kernel.device)
        basis[:, start : start + size].fill_diagonal_(1.0)
        return basis.view(size, self.kernel.shape[1], *self.n)

    def bounds(self) -> Tensor:
        """Return numbers that are not smaller than the singular values, one by one, from a larger circular operator.

        The circular operator on the padded images, enlarged to a multiple of the stride, has all rows and columns of
        this one. Padding by repeated pixels multiplies by a matrix of norm at most the root of the largest number of
        times that a pixel is repeated.
        """
        reach = [d * (k - 1) for d, k in zip(self.conv.dilation, self.kernel.shape[2:], strict=True)]
        least = [max(a + sum(p), r + 1) for a, p, r in zip(self.n, self.pads, reach, strict=True)]
        torus = [-(-a // s) * s for a, s in zip(least, self.conv.stride, strict=True)]
        found = conv_singular_values(
            self.kernel, torus, stride=self.conv.stride, dilation=self.conv.dilation, groups=self.groups
        )
        return found.flatten().sort(descending=True).values * math.sqrt(self._repeats())

    def _repeats(self) -> int:
        """Return how often padding repeats a pixel at most, itself included."""
        if self.conv.padding_mode == "zeros":
            return 1
        mode, total = _NUMPY_MODES[self.conv.padding_mode], 1
        for size, pair in zip(self.n, self.pads, strict=True):
            total *= int(np.bincount(np.pad(np.arange(size), pair, mode=cast(Any, mode))).max())
        return total

    def largest(self, count: int) -> Tensor:
        """Return the largest singular values, descending, by Lanczos iterations on products with the operator."""
        from scipy.sparse.linalg import LinearOperator, svds

        images, device = (1, self.kernel.shape[1] * self.groups, *self.n), self.kernel.device
        with torch.enable_grad():
            x = torch.zeros(images, dtype=torch.float64, device=device, requires_grad=True)
            out = self(x, groups=self.groups)

        def forward(v: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                given = torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)).to(device).view(images)
                return self(given, groups=self.groups).flatten().cpu().numpy()

        def backward(v: np.ndarray) -> np.ndarray:
            given = torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)).to(device).view(out.shape)
            return torch.autograd.grad(out, x, given, retain_graph=True)[0].flatten().cpu().numpy()

        start = np.random.default_rng(0).standard_normal(min(self.shape))
        operator = LinearOperator(self.shape, matvec=forward, rmatvec=backward, dtype=np.float64)
        values = svds(operator, k=count, return_singular_vectors=False, v0=start, tol=LANCZOS_RTOL, ncv=SUBSPACE)
        return torch.from_numpy(np.sort(values)[::-1].copy()).to(device)


def _operator(layer: Layer, size: Size | None) -> tuple[_Operator | None, str]:
    """Return the operator of a layer, of a transposed convolution the one it transposes, or the reason without."""
    conv: Any = layer.module
    if not isinstance(layer.module, nn.modules.conv._ConvNd):
        return None, "its module is no convolution of torch, so that stride and padding are not known"
    d = layer.weight.ndim - 2
    if size is None and layer.input_shape is None:
        return None, "the spectrum of a convolution depends on the image size; give an example x or a size"
    n = tuple(cast(Sequence[int], layer.input_shape)[-d:] if size is None else per_dimension(size, "size", d))
    kernel = layer.weight.detach().to(torch.float64)
    if not bool(torch.isfinite(kernel).all()):
        raise ValueError(f"net: layer {layer.name!r}: kernel: got NaN or infinite entries, expected finite ones")
    reach = [dil * (k - 1) for dil, k in zip(conv.dilation, kernel.shape[2:], strict=True)]
    if conv.padding == "same":
        pads = [(r // 2, r - r // 2) for r in reach]
    else:
        pads = [(p, p) for p in ([0] * d if conv.padding == "valid" else conv.padding)]
    if layer.is_transposed:
        shape = layer.output_shape
        if size is not None or shape is None:
            extra = conv.output_padding
            parts = zip(n, conv.stride, pads, reach, extra, strict=True)
            shape = tuple((a - 1) * s - sum(p) + r + e + 1 for a, s, p, r, e in parts)
        n, out = shape[-d:], list(n)
    else:
        out = [(a + sum(p) - r - 1) // s + 1 for a, p, r, s in zip(n, pads, reach, conv.stride, strict=True)]
    if min(out) < 1 or min(n) < 1:
        return None, f"the kernel is larger than images of size {n}"
    limited = {"reflect": min(n) - 1, "circular": min(n)}.get(conv.padding_mode, math.inf)
    if max(map(max, pads)) > limited:
        return None, f"its padding is larger than images of size {n}"
    return _Operator(kernel, conv, n, pads, out), ""
