"""Singular values and ranks of convolutions by frequency (T28), and the frequencies that a bottleneck keeps (F6)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures import bottlenecks
from bnrank.measures.convolution import layer_blocks
from bnrank.networks.reading import Layer, Reading, read_or
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    import xarray as xr

DIMS = ("layer", "frequency", "channel")


@dataclass(frozen=True)
class Grid:
    """One frequency of every pair w and -w of an image: for real images and kernels both have the same values.

    Attributes
    ----------
    size : tuple of int
        n of the images in each dimension.
    vectors : tuple of tuple of int
        w, cycles per image in each dimension, from -((n - 1) // 2) to n // 2; by |w|, then by the entries.
    multiplicity : tuple of int
        2 where the name represents w and -w, 1 where these are equal (0, and n/2 for even n).
    """

    size: tuple[int, ...]
    vectors: tuple[tuple[int, ...], ...]
    multiplicity: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names: "0", "1", ... in one dimension, else "(0, 1)", "(1, -1)", ..."""
        return tuple(str(w[0]) if len(self.size) == 1 else str(w) for w in self.vectors)

    @property
    def modulus(self) -> tuple[float, ...]:
        """|w|."""
        return tuple(math.hypot(*w) for w in self.vectors)

    @property
    def places(self) -> tuple[Tensor, ...]:
        """Indices of the frequencies in a Fourier transform, one tensor per dimension."""
        return tuple(torch.tensor([w[i] % n for w in self.vectors]) for i, n in enumerate(self.size))


def grid(size: int | Sequence[int]) -> Grid:
    """Return the frequencies of images of a given size, one of every pair w and -w, with names.

    Parameters
    ----------
    size : int or sequence of int
        n of a one-dimensional image, or of every dimension.

    Returns
    -------
    Grid

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer.

    Examples
    --------
    >>> grid(4).names, grid(4).multiplicity
    (('0', '1', '2'), (1, 2, 1))
    >>> grid((3, 3)).names
    ('(0, 0)', '(0, 1)', '(1, 0)', '(1, 1)', '(1, -1)')
    """
    one = isinstance(size, int | np.integer)
    entries = [size] if one else validation.sequence(size, "size", "an integer or one per dimension")
    sizes = tuple(validation.integer(n, "size") for n in entries)
    validation.allocation(200 * math.prod(sizes), "size", size)
    validation.expect(sizes, "size", "none", "one integer per dimension")
    found: dict[tuple[int, ...], int] = {}
    for w in itertools.product(*(range(-((n - 1) // 2), n // 2 + 1) for n in sizes)):
        mirror = tuple(-a if 2 * a != n else a for a, n in zip(w, sizes, strict=True))
        found[max(w, mirror)] = 1 if w == mirror else 2
    vectors = sorted(found, key=lambda w: (sum(a * a for a in w), [abs(a) for a in w], [-a for a in w]))
    return Grid(sizes, tuple(vectors), tuple(found[w] for w in vectors))


def label(name: str, multiplicity: int) -> str:
    """Return the display name of a frequency: "±1", "±(0, 1)", and "0" for one that equals its negative.

    Examples
    --------
    >>> label("1", 2), label("(0, 0)", 1)
    ('±1', '(0, 0)')
    """
    name, multiplicity = validation.text(name, "name"), validation.integer(multiplicity, "multiplicity", 1, 2)
    return f"±{name}" if multiplicity == 2 else name


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
    return by_frequency(read_or(reading, net, x), size)[0]


def by_frequency(reading: Reading, size: int | Sequence[int] | None = None) -> tuple[xr.DataArray, list[Skipped]]:
    """Return the singular values of the convolutions of a module, and what was skipped."""
    import xarray as xr

    layers: list[Layer] = []
    rows, notes, skipped, modes = [], [], list(reading.skipped), Grid((), (), ())
    for layer in reading.layers:
        values, note = None, f"a {layer.kind} layer has none"
        stride = tuple(cast(Any, layer.module).stride) if layer.is_convolution else ()
        if any(s > 1 for s in stride):
            note = f"with stride {stride} those that alias share their singular values"
        elif stride:
            values, note = layer_blocks(layer, size)
        if values is not None and layers and tuple(values.shape[:-1]) != modes.size:
            note = f"its images have size {tuple(values.shape[:-1])}, those of the first {modes.size}"
            values = None
        if values is None:
            skipped.append(Skipped.part(layer.name, layer.module, f"frequencies: {note}"))
            continue
        modes = modes if layers else grid(values.shape[:-1])
        layers.append(layer)
        rows.append(values[modes.places].cpu().numpy())
        notes += [f"{layer.name}: {note}"] if note else []
    if not layers:
        why = ". Skipped: " + "; ".join(map(str, skipped)) if skipped else ""
        raise ValueError(f"net: found no convolution with frequencies, expected at least one{why}")
    most = max(row.shape[1] for row in rows)
    table = np.stack([np.pad(row, ((0, 0), (0, most - row.shape[1])), constant_values=np.nan) for row in rows])
    multiplicity = {"long_name": "2 where the name stands for w and -w, else 1"}
    coords = {
        "layer": [layer.index for layer in layers],
        "layer_name": ("layer", np.array([layer.name for layer in layers], dtype=str)),
        "frequency": (
            "frequency",
            np.array(modes.names, dtype=str),
            {"long_name": "cycles per image, standing for w and -w"},
        ),
        "multiplicity": ("frequency", np.array(modes.multiplicity), multiplicity),
        "modulus": ("frequency", np.array(modes.modulus), {"long_name": "|w|, cycles per image"}),
        "channel": np.arange(1, most + 1),
    }
    attrs = {"long_name": "singular values of W_l", "units": "1", "image_size": list(modes.size)}
    attrs |= {"notes": "\n".join(notes), "skipped": "\n".join(map(str, skipped))}
    return xr.DataArray(table, coords, DIMS, attrs=attrs), skipped


def checked(values: object) -> xr.DataArray:
    """Return an array with dimensions (layer, frequency, channel) in this order; raise an error for others."""
    import xarray as xr

    if not isinstance(values, xr.DataArray):
        raise TypeError(f"values: got {validation.describe(values)}, expected an xarray.DataArray over {DIMS}")
    known = set(values.dims) == set(DIMS) and "multiplicity" in values.coords
    validation.expect(known, "values", f"dimensions {values.dims}", f"{DIMS} and the coordinate multiplicity")
    return values.transpose(*DIMS)


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


def kept(values: xr.DataArray, start: int | None = None, end: int | None = None, *, atol: float = 0.1) -> Kept:
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
        found = bottlenecks.detect(rows, atol=atol)
        if found.start is None or found.end is None:
            return Kept(None, None, (), found.reason)
        start, end = (int(values["layer"][i - 1]) for i in (found.start, found.end))
    start, end = validation.integer(start, "start"), validation.integer(end, "end")
    inside = rank(values.sel(layer=slice(start, end)), atol)
    layers = f"some of the layers {values['layer'].values.tolist()}"
    validation.expect(inside.sizes["layer"], "start, end", f"{start} and {end}", layers)
    smallest = inside.fillna(0).min("layer")
    columns = zip(smallest["frequency"].values, smallest.values, smallest["multiplicity"].values, strict=True)
    frequencies = (KeptFrequency(str(name), int(count), int(times)) for name, count, times in columns if count)
    return Kept(start, end, tuple(frequencies))
