"""Singular values, ranks and power of convolutions by frequency (T28), and the frequencies a bottleneck keeps (F6)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures import bottlenecks
from bnrank.measures.convolution import layer_blocks
from bnrank.measures.frequencies.modes import Convolutions, checked, label
from bnrank.measures.spectra import MAX_ENTRIES, WHICH, Accumulator
from bnrank.networks.functional import example
from bnrank.networks.reading import Captured, Reading, capture, named, read_or

if TYPE_CHECKING:
    import xarray as xr


PROBE = 64  # samples used to determine whether a flat tensor is an image


def weight_singular_values(
    net: nn.Module, x: Data | None = None, size: int | Sequence[int] | None = None, reading: Reading | None = None
) -> xr.DataArray:
    """Return the singular values of every convolution, frequency by frequency (T28).

    A circular convolution is block diagonal in Fourier space, and the singular values at frequency w are those of the
    c_out x c_in block there. The values at -w are the same: one name represents both, and ``multiplicity`` counts them.
    Repeated by multiplicity, the values are those of :func:`bnrank.spectra.weight_singular_values`.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with convolutions.
    x : Tensor or ndarray, optional
        Samples, (N, ...): gives the order of the layers and the sizes of the images.
    size : int or sequence of int, optional
        Size of the images, where ``x`` is not given.
    reading : Reading, optional
        The result of ``read(net, x)``.

    Returns
    -------
    DataArray
        (layer, frequency, channel), float64, descending along ``channel``, NaN where a layer has fewer channels.
        Coordinates: ``layer`` (number among all layers), ``layer_name``, ``frequency`` (names, see :class:`Grid`),
        ``multiplicity``, ``modulus`` (|w|), ``channel`` (from 1). Attributes: ``image_size``; ``notes``, assumptions
        for layers that are not circular convolutions; and ``skipped``, the skipped layers with reasons (layers with a
        stride, which mixes frequencies, and layers whose images differ in size from the first); one per line.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, a weight is not finite, or there is no such convolution.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((1, 4), [1], bias=False)
    >>> with torch.no_grad():
    ...     _ = net.conv1.weight.copy_(torch.tensor([[[0.0, 0.5, 0.5]]]))
    >>> weight_singular_values(net, size=4).squeeze().to_series().round(3).to_dict()        # |cos(pi w / 4)|
    {'0': 1.0, '1': 0.707, '2': 0.0}
    """
    found, rows = weight_convolutions(read_or(reading, net, x), size)
    return found.assemble(rows, "singular values of W_l")


def weight_convolutions(
    reading: Reading, size: int | Sequence[int] | None = None
) -> tuple[Convolutions, list[np.ndarray]]:
    """Return the convolutions of a module and their singular values, (frequency, channel) each."""
    found, rows = Convolutions(reading.skipped), []
    for layer in reading.layers:
        if not layer.is_convolution:
            found.skip(layer, f"a {layer.kind} layer has none")
            continue
        stride = tuple(layer.module.stride)  # type: ignore[arg-type]
        if any(s > 1 for s in stride):
            found.skip(layer, f"with stride {stride} those that alias share their singular values")
            continue
        values, note = layer_blocks(layer, size)
        if values is None:
            found.skip(layer, note)
        elif found.add(layer, values.shape[:-1], "images"):
            rows.append(values[found.grid.places].cpu().numpy())
            if note:
                found.notes[layer.name] = note
    return found, rows


def rank(values: xr.DataArray, atol: float = 0.1) -> xr.DataArray:
    """Return the number of singular values above a tolerance at every frequency.

    Parameters
    ----------
    values : DataArray
        (layer, frequency, channel), as :func:`weight_singular_values` returns it.
    atol : float
        Singular values above it count.

    Returns
    -------
    DataArray
        (layer, frequency), float64, NaN where a layer has no values. The sum over ``frequency``, weighted by
        ``multiplicity``, is the rank of the operator on images.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the array has other dimensions.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.CircularConvolutional((2, 5), [3], bias=False)
    >>> found = rank(weight_singular_values(net, size=5), atol=0.0)
    >>> found.values, float((found * found.multiplicity).sum())
    (array([[2., 2., 2.]]), 10.0)
    """
    values = checked(values)
    atol = validation.number(atol, "atol", 0.0)
    validation.expect(
        not values.size or bool(values.notnull().any()), "values", "no number", "at least one singular value"
    )
    counts = (values > atol).sum("channel").where(values.notnull().any("channel"))
    return counts.assign_attrs(long_name=f"number of singular values above {atol:g}", units="1")


@dataclass(frozen=True)
class KeptFrequency:
    """A frequency that a bottleneck keeps.

    Attributes
    ----------
    frequency : str
        Its name, see :class:`Grid`.
    channels : int
        Number of singular values above the tolerance in every layer of the bottleneck.
    multiplicity : int
        2 where the name represents w and -w, else 1.
    """

    frequency: str
    channels: int
    multiplicity: int


@dataclass(frozen=True)
class Kept(Printed):
    """The frequencies that a bottleneck keeps; ``print`` shows one line.

    Attributes
    ----------
    start, end : int or None
        First and last layer; None if there is no bottleneck (see ``reason``).
    frequencies : tuple of KeptFrequency
        By |w|.
    reason : str
        Why there is no bottleneck; empty if there is one.
    """

    start: int | None
    end: int | None
    frequencies: tuple[KeptFrequency, ...]
    reason: str = ""

    @property
    def rank(self) -> int | None:
        """The sum of channels times multiplicities, None without a bottleneck."""
        return None if self.start is None else sum(f.channels * f.multiplicity for f in self.frequencies)

    def __str__(self) -> str:
        if self.start is None:
            return f"no bottleneck: {self.reason}"
        each = [
            f"{label(f.frequency, f.multiplicity)} in {f.channels} channel{'s' if f.channels > 1 else ''}"
            for f in self.frequencies
        ]
        return f"layers {self.start} to {self.end}, rank {self.rank}: {', '.join(each) or 'nothing'}"


def kept(
    values: xr.DataArray,
    start: int | None = None,
    end: int | None = None,
    *,
    atol: float = 0.1,
    near_one: tuple[float, float] = (0.5, 2.0),
) -> Kept:
    """Return the frequencies kept by a bottleneck: those with a singular value above ``atol`` in each layer (F6).

    Parameters
    ----------
    values : DataArray
        (layer, frequency, channel), as :func:`weight_singular_values` returns it.
    start, end : int, optional
        First and last layer of the bottleneck; default: as detected by :func:`bnrank.measures.bottlenecks.detect` from
        all values of every layer.
    atol : float
        Singular values above it count.
    near_one : tuple of float
        Range of values near 1 in :func:`bnrank.measures.bottlenecks.detect`.

    Returns
    -------
    Kept
        The kept frequencies, each with its number of channels: the smallest over the layers.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the array has other dimensions, or no layer lies between start and end.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.CircularConvolutional((1, 6), [4, 4, 1])
    >>> print(kept(bnrank.frequencies.weight_singular_values(net, size=6), 2, 3, atol=0.0))
    layers 2 to 3, rank 6: 0 in 1 channel, ±1 in 1 channel, ±2 in 1 channel, 3 in 1 channel
    """
    values = checked(values)
    validation.expect((start is None) == (end is None), "start, end", "one without the other", "both or neither")
    if start is None or end is None:
        flat = [np.repeat(row, values["multiplicity"].values, 0).ravel() for row in values.values]
        rows = [np.sort(row[~np.isnan(row)])[::-1] for row in flat]
        found = bottlenecks.detect(rows, atol=atol, near_one=near_one)
        if found.start is None or found.end is None:
            return Kept(None, None, (), found.reason)
        start, end = (int(values["layer"][i - 1]) for i in (found.start, found.end))
    start, end = validation.integer(start, "start"), validation.integer(end, "end")
    inside = rank(values.sel(layer=slice(start, end)), atol)
    some = f"some of the layers {values['layer'].values.tolist()}"
    validation.expect(inside.sizes["layer"], "start, end", f"{start} and {end}", some)
    smallest = inside.fillna(0).min("layer")
    columns = zip(smallest["frequency"].values, smallest.values, smallest["multiplicity"].values, strict=True)
    frequencies = (KeptFrequency(str(name), int(count), int(times)) for name, count, times in columns if count)
    return Kept(start, end, tuple(frequencies))


def activation_power(
    net: nn.Module,
    x: Data,
    *,
    which: str = "activations",
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
) -> xr.DataArray:
    """Return the power of the activations of every convolution at every frequency.

    For channel c of layer l at frequency w, the power is (1/N) sum_i |F a_l(x_i)_c (w)|^2 with the unitary Fourier
    transform F, summed over w and -w where a name represents both. Its sum over ``frequency`` and ``channel`` is the
    mean squared norm (1/N) sum_i ||a_l(x_i)||^2 (Parseval).

    Parameters
    ----------
    net : torch.nn.Module
        Any module with convolutions.
    x : Tensor or ndarray
        Samples, (N, ...).
    which : "activations" or "preactivations"
        a_l as in :func:`bnrank.spectra.activation_singular_values` (the input of the next layer; the module's output
        for the last), or a~_l, the output of the convolution. Flattened tensors are read as images if they agree with
        a~_l where it is positive.
    chunk_size : int
        Samples per forward pass.
    dtype : torch.dtype
        Precision of the forward pass; the transform is in float64 in any case.
    reading : Reading, optional
        The result of ``read(net, x)``.

    Returns
    -------
    DataArray
        (layer, frequency, channel) with the coordinates of :func:`weight_singular_values`; ``channel`` is the channel,
        from 1. Attribute ``skipped`` names layers whose activations are not images, or differ in size from the first.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no convolution returns an image, or the module cannot be run on x in ``dtype``.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.CircularConvolutional((2, 6), [3, 1])
    >>> x = torch.linspace(-1, 1, 108).reshape(9, 2, 6)
    >>> power = activation_power(net, x)
    >>> bool(abs(power[-1].sum() - float(net(x).square().sum()) / 9) < 1e-4)
    True
    """
    found, parts = _images(net, x, which, chunk_size, dtype, reading)
    sums = [torch.zeros(()) for _ in found.layers]
    for images in parts:
        sums = [total + z.abs().square().sum(0) for total, z in zip(sums, images, strict=True)]
    times = np.array(found.grid.multiplicity)[:, None]
    rows = [total.cpu().numpy() * times / len(x) for total in sums]
    return found.assemble(rows, f"power of the {which}, w and -w added")


def activation_singular_values(
    net: nn.Module,
    x: Data,
    *,
    which: str = "activations",
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
) -> xr.DataArray:
    """Return the singular values over the samples of the frequency-w component of the activations of convolutions.

    At frequency w these are the singular values of the complex matrix N^{-1/2} (F a_l(x_i)_c (w))_{i, c}, N x channels,
    with the unitary Fourier transform F. Their squares, times ``multiplicity``, add up to the mean squared norm of a_l.
    A layer that keeps w in k channels has k values at w that are not small.

    Parameters
    ----------
    net, x, which, chunk_size, dtype, reading
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
    found, parts = _images(net, x, which, chunk_size, dtype, reading)
    held = [Accumulator() for _ in found.layers]
    for images in parts:
        if sum(2 * z.shape[1] * z.shape[2] ** 2 for z in images) > MAX_ENTRIES:
            raise ValueError(f"net: its {which} by frequency need more than {MAX_ENTRIES} numbers at a time")
        for accumulator, z in zip(held, images, strict=True):
            accumulator.add(z.permute(1, 0, 2))
    rows = [(accumulator.singular_values() / math.sqrt(len(x))).cpu().numpy() for accumulator in held]
    return found.assemble(rows, f"singular values of the {which} / sqrt(N)")


def _images(
    net: nn.Module, x: object, which: str, chunk_size: int, dtype: torch.dtype, reading: Reading | None
) -> tuple[Convolutions, Iterator[list[Tensor]]]:
    """Return the convolutions that return images, and an iterator over transforms (n, frequency, channel) of each."""
    validation.choice(which, "which", WHICH)
    x = example(net, x)
    reading = read_or(reading, net, x, dtype)
    probe = next(iter(capture(net, x[:PROBE], reading, PROBE, dtype)))
    result = Convolutions(reading.skipped)
    chosen: list[tuple[int, tuple[int, ...]]] = []
    for i, layer in enumerate(reading.layers):
        found, given = getattr(probe, which)[i], probe.preactivations[i]
        shape = tuple(given.shape[1:] if _is_flat(found, given) else found.shape[1:])
        if not layer.is_convolution:
            result.skip(layer, f"a {layer.kind} layer has none")
        elif len(shape) != given.ndim - 1:
            result.skip(layer, f"its {which} have shape {shape} and are no images")
        elif result.add(layer, shape[1:], which):
            chosen.append((i, shape))
    at = (slice(None), *result.grid.places)
    dims = tuple(range(2, 1 + len(at)))

    def transform(part: Captured) -> list[Tensor]:
        images = [getattr(part, which)[i].double().reshape(-1, *shape) for i, shape in chosen]
        for (i, _), image in zip(chosen, images, strict=True):
            if not bool(torch.isfinite(image).all()):
                raise ValueError(f"net: {named(reading.layers, i, which)}: got NaN or infinite entries")
        return [torch.fft.fftn(image, dim=dims, norm="ortho").movedim(1, -1)[at] for image in images]

    return result, map(transform, capture(net, x, reading, chunk_size, dtype))


def _is_flat(found: Tensor, given: Tensor) -> bool:
    """Return whether a tensor is the flattened output of the convolution, or sigma_s of it."""
    if found.ndim == given.ndim or found.flatten(1).shape != given.flatten(1).shape:
        return False
    found, given = found.flatten(1), given.flatten(1)
    positive = given > 0
    agrees = bool(positive.any()) and torch.equal(found[positive], given[positive])
    return agrees or torch.equal(found, given) or not bool(found.any())
