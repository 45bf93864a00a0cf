"""Power and singular values of what convolutions give, frequency by frequency."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.frequencies.grid import Grid, assemble, grid, none_found, places, skip
from bnrank.measures.spectra import MAX_ENTRIES
from bnrank.networks.functional import example
from bnrank.networks.reading import Captured, Layer, Reading, Skipped, capture, read

__all__ = ["activation_power", "activation_singular_values"]

WHICH = ("activations", "preactivations")
PROBE = 64  # samples from which it is seen whether a flat tensor is an image


def activation_power(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    which: str = "activations",
    chunk: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
) -> xr.DataArray:
    """Return the power of the activations of every convolution at every frequency.

    Of channel c of layer l at frequency w it is (1/N) sum_i |F a_l(x_i)_c (w)|^2 with the unitary Fourier transform F,
    w and -w added where a name stands for both: summed over ``frequency`` and ``channel`` it is the mean squared norm
    (1/N) sum_i ||a_l(x_i)||^2 (Parseval).

    Parameters
    ----------
    net : torch.nn.Module
        Any module with convolutions.
    x : Tensor or ndarray
        Samples, (N, ...).
    which : "activations" or "preactivations"
        a_l as in :func:`bnrank.spectra.activation_singular_values`, what enters the next layer and the output for the
        last, or a~_l, what the convolution gives. Flattened ones are images too, as long as they agree with a~_l where
        that is positive.
    chunk : int
        Samples per forward pass.
    dtype : torch.dtype
        Precision of the forward pass; the transform is in float64 in any case.
    reading : Reading, optional
        What ``read(module, x)`` returned.

    Returns
    -------
    DataArray
        (layer, frequency, channel) with the coordinates of :func:`weight_singular_values`; ``channel`` is the channel,
        from 1. Layers whose activations are no images, or of another size than the first, are in attribute ``skipped``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no convolution gives an image, or the module cannot be run on x in ``dtype``.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((2, 6), [3, 1])
    >>> x = torch.linspace(-1, 1, 108).reshape(9, 2, 6)
    >>> power = activation_power(net, x)
    >>> bool(abs(power[-1].sum() - float(net(x).square().sum()) / 9) < 1e-4)
    True
    """
    layers, place, skipped, parts = _images(net, x, which, chunk, dtype, reading)
    sums = [torch.zeros(()) for _ in layers]
    for images in parts:
        sums = [total + z.abs().square().sum(0) for total, z in zip(sums, images, strict=True)]
    times = np.array(place.multiplicity)[:, None]
    rows = [total.cpu().numpy() * times / len(x) for total in sums]
    return assemble(layers, rows, place, skipped, [], f"power of the {which}, w and -w added")


def activation_singular_values(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    which: str = "activations",
    chunk: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
) -> xr.DataArray:
    """Return the singular values over the samples of the frequency-w component of the activations of convolutions.

    At frequency w they are those of the complex matrix N^{-1/2} (F a_l(x_i)_c (w))_{i, c}, N x channels, with the
    unitary Fourier transform F. Their squares, times ``multiplicity``, add up to the mean squared norm of a_l. A layer
    that keeps w in k channels has k of them that are not small.

    Parameters
    ----------
    module, x, which, chunk, dtype, reading
        As in :func:`activation_power`.

    Returns
    -------
    DataArray
        (layer, frequency, channel), float64, min(N, channels) values in descending order along ``channel``, with the
        coordinates of :func:`weight_singular_values`.

    Raises
    ------
    TypeError, ValueError
        As :func:`activation_power`, or if the layers need more than 2^27 numbers at a time.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((1, 6), [3, 1])
    >>> dict(activation_singular_values(net, torch.randn(9, 1, 6)).sizes)
    {'layer': 2, 'frequency': 4, 'channel': 3}
    """
    layers, place, skipped, parts = _images(net, x, which, chunk, dtype, reading)
    held: list[Tensor] = []  # per layer R factors, (frequency, min(rows so far, channels), channels)
    for images in parts:
        pieces = [z.permute(1, 0, 2) for z in images]
        if sum(2 * len(z) * z.shape[2] ** 2 for z in pieces) > MAX_ENTRIES:
            raise ValueError(f"net: its {which} by frequency need more than {MAX_ENTRIES} numbers at a time")
        joined = [torch.cat([r, z], 1) for r, z in zip(held, pieces, strict=True)] if held else pieces
        held = [torch.linalg.qr(z, mode="r")[1] if z.shape[1] > z.shape[2] else z for z in joined]
    rows = [(torch.linalg.svdvals(r) / math.sqrt(len(x))).cpu().numpy() for r in held]
    return assemble(layers, rows, place, skipped, [], f"singular values of the {which} / sqrt(N)")


def _images(
    net: nn.Module, x: object, which: str, chunk: int, dtype: torch.dtype, reading: Reading | None
) -> tuple[list[Layer], Grid, list[Skipped], Iterator[list[Tensor]]]:
    """Convolutions that give images, their frequencies, all others, and transforms (n, frequency, channel) of each."""
    validation.choice(which, "which", WHICH)
    x = example(net, x)
    reading = read(net, x) if reading is None else reading
    probe = next(iter(capture(net, x[:PROBE], reading, PROBE, dtype)))
    skipped = list(reading.skipped)
    chosen: list[tuple[int, tuple[int, ...]]] = []
    place: Grid | None = None
    for i, layer in enumerate(reading.layers):
        found, given = getattr(probe, which)[i], probe.preactivations[i]
        shape = tuple(given.shape[1:] if _is_flat(found, given) else found.shape[1:])
        if layer.kind == "linear":
            skipped.append(skip(layer, "a linear layer has none"))
        elif len(shape) != given.ndim - 1:
            skipped.append(skip(layer, f"its {which} have shape {shape} and are no images"))
        elif place is not None and shape[1:] != place.size:
            skipped.append(skip(layer, f"its {which} have size {shape[1:]}, those of the first {place.size}"))
        else:
            place = grid(shape[1:]) if place is None else place
            chosen.append((i, shape))
    if place is None:
        raise none_found(skipped)
    at = (slice(None), *places(place))
    dims = tuple(range(2, 2 + len(place.size)))

    def transform(part: Captured) -> list[Tensor]:
        images = [getattr(part, which)[i].double().reshape(-1, *shape) for i, shape in chosen]
        for (i, _), image in zip(chosen, images, strict=True):
            if not bool(torch.isfinite(image).all()):
                raise ValueError(f"net: {which} of layer {reading.layers[i].name!r}: got NaN or infinite entries")
        return [torch.fft.fftn(image, dim=dims, norm="ortho").movedim(1, -1)[at] for image in images]

    parts = map(transform, capture(net, x, reading, chunk, dtype))
    return [reading.layers[i] for i, _ in chosen], place, skipped, parts


def _is_flat(found: Tensor, given: Tensor) -> bool:
    """Say whether a tensor is what the convolution gives, or sigma_s of it, and flattened."""
    if found.ndim == given.ndim or found.flatten(1).shape != given.flatten(1).shape:
        return False
    found, given = found.flatten(1), given.flatten(1)
    positive = given > 0
    agrees = bool(positive.any()) and torch.equal(found[positive], given[positive])
    return agrees or torch.equal(found, given) or not bool(found.any())
