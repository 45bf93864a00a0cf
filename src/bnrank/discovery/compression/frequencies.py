"""Linear maps between images that commute with translations on the torus, frequency by frequency (T28)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.chain import CONVOLUTIONS
from bnrank.discovery.compression.low_rank import AffineFit

__all__ = ["equivariant_fit"]

RIDGE = 1e-8  # of the largest power at a frequency, against division by rounding


def equivariant_fit(parts: Sequence[nn.Module], z1: Tensor, z2: Tensor) -> AffineFit | None:
    """Fit a translation-equivariant map between images and keep its frequencies by what they carry.

    At each frequency w the coefficients of z2 are regressed on those of z1, c_out x c_in numbers from N samples, far
    fewer than a map between all pixels has. What the map gives has principal components frequency by frequency, a pair
    of a cosine and a sine each (one alone where w = -w); those of most power come first.

    Parameters
    ----------
    parts : sequence of torch.nn.Module
        What stands from the first layer on, which gives z1, to the one that gives z2.
    z1, z2 : Tensor
        (N, c1, *n), (N, c2, *n), two samples or more.

    Returns
    -------
    AffineFit or None
        On images flattened; ``tails`` count half the power of a pair for each of the two. None where a part does not
        commute with translations: a convolution that does not wrap around or has a stride, anything but activations;
        or the images have different sizes.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> z1 = torch.randn(20, 1, 6, generator=generator, dtype=torch.float64)
    >>> mean = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    >>> found = equivariant_fit([mean], z1, z1.mean(2, keepdim=True).expand(-1, -1, 6))     # one frequency, 0
    >>> a, b, c = found.at(1)
    >>> a.shape, bool((b @ a @ z1[0].flatten() + c - z1[0].mean()).abs().max() < 1e-6)
    (torch.Size([1, 6]), True)
    """
    if z1.shape[2:] != z2.shape[2:] or z1.ndim < 3 or not all(map(_equivariant, parts)):
        return None
    image = tuple(z1.shape[2:])
    axes = tuple(range(2, z1.ndim))
    mean1, mean2 = (z.mean((0, *axes), keepdim=True) for z in (z1, z2))
    f1, f2 = (torch.fft.fftn(z - m, dim=axes, norm="ortho").flatten(2) for z, m in ((z1, mean1), (z2, mean2)))
    basis = torch.eye(math.prod(image), dtype=torch.float64).reshape(-1, *image)
    waves = torch.fft.fftn(basis.to(z1.device), dim=tuple(range(1, len(image) + 1)), norm="ortho").reshape(
        len(basis), -1
    )
    n, scale = len(z1), math.sqrt(len(z1))
    largest = float(f1.abs().square().sum(0).max())
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    powers: list[float] = []
    for w, mirror in _half(image):
        a, b = f1[:, :, w], f2[:, :, w]
        if w == mirror:
            a, b = a.real, b.real
        gram = a.mH @ a
        gram.diagonal().add_(RIDGE * largest + torch.finfo(torch.float64).tiny)
        m = torch.linalg.solve(gram, a.mH @ b)  # b near a @ m, (c1, c2)
        _, s, vh = torch.linalg.svd(a @ m, full_matrices=False)
        wave = waves[:, w]
        for i in range(len(s)):
            if s[i] <= 1e-12 * math.sqrt(largest):
                continue
            reading = m @ vh[i].conj() / s[i] * scale  # t = a @ reading has mean square 1
            writing = vh[i] * s[i] / scale
            for part in _real(torch.kron(reading, wave), torch.kron(writing, wave.conj()), w == mirror):
                rows.append(part[0])
                columns.append(part[1])
                powers.append(float(s[i] ** 2))
    if not rows:
        return None
    order = sorted(range(len(rows)), key=lambda i: -powers[i])
    ranked = torch.tensor([powers[i] for i in order] + [0.0], dtype=torch.float64)
    return AffineFit(
        torch.stack([rows[i] for i in order]),
        torch.stack([columns[i] for i in order], 1),
        mean1.expand(1, -1, *image).flatten(),
        mean2.expand(1, -1, *image).flatten(),
        (ranked.flip(0).cumsum(0).flip(0) / n).sqrt(),
    )


def _real(reading: Tensor, writing: Tensor, alone: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the real readings and writings of a component at w and its conjugate at -w."""
    if alone:
        return [(reading.real, writing.real)]
    root = math.sqrt(2)
    return [(root * reading.real, root * writing.real), (root * reading.imag, -root * writing.imag)]


def _half(image: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return one frequency of every pair w and -w with the other, as places in the flattened spectrum."""
    index = torch.arange(math.prod(image)).reshape(image)
    mirror = index
    for axis in range(len(image)):
        mirror = mirror.flip(axis).roll(1, axis)
    pairs = zip(index.flatten().tolist(), mirror.flatten().tolist(), strict=True)
    return [(w, m) for w, m in pairs if w <= m]


def _equivariant(part: Any) -> bool:
    if not isinstance(part, CONVOLUTIONS):
        return isinstance(part, nn.ReLU | nn.LeakyReLU | nn.Tanh | nn.GELU | nn.SiLU | nn.ELU | nn.Sigmoid)
    reach = (
        zip(part.padding, part.dilation, part.kernel_size, strict=True) if part.padding not in ("same", "valid") else []
    )
    pads: list[Any] = list(reach)
    same = part.padding == "same" or (bool(pads) and all(2 * p == d * (k - 1) for p, d, k in pads))
    wraps = part.padding_mode == "circular" or all(k == 1 for k in part.kernel_size)
    return all(s == 1 for s in part.stride) and same and wraps
