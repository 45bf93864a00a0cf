"""Singular values of convolutions as operators on images (T28), never of the flattened kernel."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank._core.validation import Data
from bnrank.networks.reading import Layer

Size = int | Sequence[int]

CHUNK_ENTRIES = 2**20  # complex entries of the transfer matrices in memory at a time: 16 MiB


def conv_singular_values(kernel: Data, size: Size, *, stride: Size = 1, dilation: Size = 1, groups: int = 1) -> Tensor:
    """Return the singular values of a convolution with circular padding, frequency by frequency.

    The convolution is block diagonal in Fourier space: at frequency w the block is the c_out x c_in matrix
    K^(w) = sum_t K[:, :, t] exp(-2 pi i w.t / n), with taps beyond the image wrapped around and added. Real kernels
    have s_w = s_{-w}, so half the frequencies are computed. sum s^2 = n^d ||K||_F^2 for stride 1 (T28). With a stride,
    the s^d frequencies that alias to one output frequency share a block, c_out x (s^d c_in).

    Parameters
    ----------
    kernel : Tensor or ndarray
        (c_out, c_in / groups, k), (..., k, k) or (..., k, k, k), as in PyTorch.
    size : int or sequence of int
        n, the size of the images in each dimension.
    stride, dilation : int or sequence of int
        As in PyTorch; n must be a multiple of the stride.
    groups : int
        As in PyTorch; the singular values of all groups are joined at each frequency.

    Returns
    -------
    Tensor
        (n, min(c_out, c_in)), (n, n, min) or (n, n, n, min), float64, descending along the last dimension, at the
        frequencies of ``numpy.fft.fftfreq``. With stride s, (n/s, ..., min(c_out, s^d c_in)).

    Raises
    ------
    TypeError, ValueError
        If the kernel has another shape or is not finite, or the arguments are inconsistent.

    Notes
    -----
    Source: T28; Sedghi, Gupta and Long, "The singular values of convolutional layers", 2019.

    Examples
    --------
    >>> import torch
    >>> mean_of_two = torch.tensor([[[0.5, 0.5]]])
    >>> conv_singular_values(mean_of_two, 4).squeeze().round(decimals=3)      # |cos(pi w / 4)|
    tensor([1.0000, 0.7070, 0.0000, 0.7070], dtype=torch.float64)
    """
    kernel = validation.numbers(kernel, "kernel")
    usable = kernel.ndim in (3, 4, 5) and kernel.is_floating_point() and kernel.numel() > 0
    validation.expect(usable, "kernel", kernel, "real (c_out, c_in, k), (..., k, k) or (..., k, k, k)")
    kernel = validation.finite(kernel.to(torch.float64), "kernel")
    d = kernel.ndim - 2
    given = {"size": size, "stride": stride, "dilation": dilation}
    n, s, dil = (per_dimension(value, name, d) for name, value in given.items())
    validation.expect(not any(a % b for a, b in zip(n, s, strict=True)), "size", f"{n}", f"multiples of the stride {s}")
    groups = validation.integer(groups, "groups")
    validation.expect(not kernel.shape[0] % groups, "groups", f"{groups}", f"a divisor of c_out = {kernel.shape[0]}")
    each = 2 * d + 6 + 2 * min(kernel.shape[0], groups * kernel.shape[1] * math.prod(s))  # numbers per frequency
    validation.allocation(each * math.prod(n), "size", size)
    blocks = [_block_values(block, n, s, dil) for block in kernel.chunk(groups)]
    return torch.cat(blocks, -1).sort(-1, descending=True).values


def circular_singular_values(layer: Layer, size: Size | None = None) -> tuple[Tensor | None, str]:
    """Return all singular values of a layer as a circular convolution, (K,) descending, and a note on assumptions.

    Parameters
    ----------
    layer : Layer
        Read with an example input; otherwise ``size`` is required.
    size : int or sequence of int, optional
        Size of the images, instead of the example's.

    Returns
    -------
    values : Tensor or None
        None if they cannot be computed (see the note).
    note : str
        Empty if the values are those of the true operator.

    Examples
    --------
    >>> from torch import nn
    >>> from bnrank.networks import read
    >>> layer = read(nn.Conv1d(1, 2, 3)).layers[0]
    >>> circular_singular_values(layer)[1]
    'the spectrum of a convolution depends on the image size; give an example x or a size'
    >>> circular_singular_values(layer, size=8)[0].shape
    torch.Size([8])
    """
    values, note = layer_blocks(layer, size)
    return None if values is None else values.flatten().sort(descending=True).values, note


def layer_blocks(layer: Layer, size: Size | None = None) -> tuple[Tensor | None, str]:
    """Return the singular values of a convolutional layer as :func:`conv_singular_values` does, and a note.

    Parameters and errors as for :func:`circular_singular_values`, which returns the same values in one list.

    Examples
    --------
    >>> from torch import nn
    >>> from bnrank.networks import read
    >>> layer_blocks(read(nn.Conv1d(1, 2, 3)).layers[0], size=8)[0].shape
    torch.Size([8, 1])
    """
    conv = cast(Any, layer.module)
    d = layer.weight.ndim - 2
    if size is None:
        if layer.input_shape is None:
            return None, "the spectrum of a convolution depends on the image size; give an example x or a size"
        n = layer.input_shape[-d:]
    else:
        n = tuple(per_dimension(size, "size", d))
    if any(a % b for a, b in zip(n, conv.stride, strict=True)):
        return None, f"image size {tuple(n)} is no multiple of the stride {tuple(conv.stride)}"
    try:
        values = conv_singular_values(layer.weight, n, stride=conv.stride, dilation=conv.dilation, groups=conv.groups)
    except ValueError as error:
        raise ValueError(f"net: layer {layer.name!r}: {error}") from error
    return values, _padding_note(conv, n)


def _padding_note(conv: Any, n: Sequence[int]) -> str:
    """Return how the layer differs from a circular convolution of its images; "" if it does not."""
    pads = conv.padding == "same" or (conv.padding != "valid" and any(conv.padding))
    if all(k == 1 for k in conv.kernel_size) and (conv.padding == "same" or not pads):
        return ""
    if not pads:
        return "computed for circular padding, the layer does not pad"
    if conv.padding_mode != "circular":
        return f"computed for circular padding, the layer pads with {conv.padding_mode}"
    if conv.padding == "same":
        return ""
    reach = [dil * (k - 1) for dil, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    out = [(a + 2 * p - r - 1) // s + 1 for a, p, r, s in zip(n, conv.padding, reach, conv.stride, strict=True)]
    if out == [a // s for a, s in zip(n, conv.stride, strict=True)]:
        return ""
    return f"computed for circular padding that keeps the image size, the layer turns {tuple(n)} into {tuple(out)}"


def _block_values(kernel: Tensor, n: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    """Return the singular values of one group, (n_1 / s_1, ..., min(c_out, c_in prod s)), for all frequencies."""
    c_out, c_in = kernel.shape[:2]
    m = [a // b for a, b in zip(n, stride, strict=True)]
    frequencies = _vectors(m)
    index = torch.arange(len(frequencies)).reshape(m)
    mirror = index[tuple(((-frequencies[:, i]) % m[i]) for i in range(len(m)))]
    half = torch.nonzero(torch.arange(len(frequencies)) <= mirror).squeeze(1)
    aliases = math.prod(stride)
    out = torch.empty(len(frequencies), min(c_out, c_in * aliases), dtype=torch.float64, device=kernel.device)
    for some in half.split(max(1, CHUNK_ENTRIES // (c_out * c_in * aliases))):
        shifts = _vectors(stride) * torch.tensor(m)
        parts = [_transfer(kernel, frequencies[some] + shift, n, dilation) for shift in shifts]
        values = torch.linalg.svdvals(torch.cat(parts, -1)) / math.sqrt(aliases)
        out[some] = values
        out[mirror[some]] = values
    return out.reshape(*m, -1)


def _transfer(kernel: Tensor, frequencies: Tensor, n: list[int], dilation: list[int]) -> Tensor:
    """Return K^(w) at the given frequencies, (F, c_out, c_in), complex128."""
    c_out, c_in, *taps = kernel.shape
    places = _vectors(taps)
    turns = torch.zeros(len(frequencies), len(places), dtype=torch.float64)
    for i, a in enumerate(n):
        turns += (frequencies[:, i : i + 1] * places[:, i] * dilation[i] % a).double() / a
    angle = (-2 * math.pi * turns).to(kernel.device)
    flat = kernel.reshape(c_out * c_in, -1)
    transfer = torch.complex(angle.cos() @ flat.T, angle.sin() @ flat.T)  # (F, c_out c_in)
    return transfer.reshape(-1, c_out, c_in)


def _vectors(sizes: Sequence[int]) -> Tensor:
    """Return all integer vectors w with 0 <= w_i < sizes_i, (prod sizes, d)."""
    return torch.cartesian_prod(*map(torch.arange, sizes)).reshape(-1, len(sizes))


def per_dimension(value: Any, name: str, d: int | None = None) -> list[int]:
    """Return an integer for each of d dimensions, from one integer or d; as many as given if d is None.

    Examples
    --------
    >>> per_dimension(6, "size", 2), per_dimension((4, 6), "size", 2)
    ([6, 6], [4, 6])
    """
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes):
        entries = validation.integers(value, name)
        validation.expect(d in (None, len(entries)), name, f"{entries}", f"one integer or {d}")
        return entries
    return [validation.integer(value, name)] * (d or 1)
