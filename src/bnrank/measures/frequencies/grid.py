"""Frequencies of images, and arrays over layers, frequencies and channels."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.reading import Layer, Skipped

__all__ = ["Grid", "assemble", "checked", "grid", "label", "none_found", "places", "skip"]


@dataclass(frozen=True)
class Grid:
    """Half the frequencies of an image, one of every pair w and -w: real images and kernels have the same at both.

    Attributes
    ----------
    size : tuple of int
        n of the images in each dimension.
    vectors : tuple of tuple of int
        w, cycles per image in each dimension, from -(n - 1) // 2 to n // 2; by |w|, then by the entries.
    names : tuple of str
        "0", "1", ... in one dimension, else "(0, 1)", "(1, -1)", ...
    multiplicity : tuple of int
        2 where the name stands for w and -w, 1 where these are the same (0, and n/2 for even n).
    modulus : tuple of float
        |w|.
    """

    size: tuple[int, ...]
    vectors: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    multiplicity: tuple[int, ...]
    modulus: tuple[float, ...]


def grid(size: int | Sequence[int]) -> Grid:
    """Return the frequencies of images of a size, half of them, with their names.

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
        If a size is no positive integer.

    Examples
    --------
    >>> grid(4).names, grid(4).multiplicity
    (('0', '1', '2'), (1, 2, 1))
    >>> grid((3, 3)).names
    ('(0, 0)', '(0, 1)', '(1, 0)', '(1, 1)', '(1, -1)')
    """
    sizes = tuple(validation.integer(n, "size") for n in (size if isinstance(size, Sequence) else [size]))
    if not sizes:
        raise ValueError("size: got none, expected one integer per dimension")
    found: dict[tuple[int, ...], int] = {}
    for w in itertools.product(*(range(-((n - 1) // 2), n // 2 + 1) for n in sizes)):
        mirror = tuple(-a if 2 * a != n else a for a, n in zip(w, sizes, strict=True))
        found[max(w, mirror)] = 1 if w == mirror else 2
    vectors = sorted(found, key=lambda w: (sum(a * a for a in w), [abs(a) for a in w], [-a for a in w]))
    names = [str(w[0]) if len(sizes) == 1 else str(w) for w in vectors]
    modulus = [math.hypot(*w) for w in vectors]
    return Grid(sizes, tuple(vectors), tuple(names), tuple(found[w] for w in vectors), tuple(modulus))


def label(name: str, multiplicity: int) -> str:
    """Return how a frequency is written where it is shown: "±1", "±(0, 1)", and "0" for one that is its own mirror.

    Examples
    --------
    >>> label("1", 2), label("(0, 0)", 1)
    ('±1', '(0, 0)')
    """
    return f"±{name}" if multiplicity == 2 else name


def places(place: Grid) -> tuple[Tensor, ...]:
    """Where the frequencies of a grid stand in what a Fourier transform gives, one index per dimension."""
    return tuple(torch.tensor([w[i] % n for w in place.vectors]) for i, n in enumerate(place.size))


def assemble(
    layers: Sequence[Layer],
    rows: Sequence[np.ndarray],
    place: Grid,
    skipped: Sequence[Skipped],
    notes: object,
    text: str,
) -> xr.DataArray:
    """Put (frequency, channel) arrays of layers together, filled up with NaN."""
    most = max(row.shape[1] for row in rows)
    values = np.stack([np.pad(row, ((0, 0), (0, most - row.shape[1])), constant_values=np.nan) for row in rows])
    found = xr.DataArray(
        values,
        dims=("layer", "frequency", "channel"),
        coords={
            "layer": [layer.index for layer in layers],
            "layer_name": ("layer", np.array([layer.name for layer in layers], dtype=str)),
            "frequency": np.array(place.names, dtype=str),
            "multiplicity": ("frequency", np.array(place.multiplicity)),
            "modulus": ("frequency", np.array(place.modulus)),
            "channel": np.arange(1, most + 1),
        },
        attrs={
            "long_name": text,
            "units": "1",
            "image_size": list(place.size),
            "notes": json.dumps(notes),
            "skipped": json.dumps([vars(s) for s in skipped]),
        },
    )
    found["frequency"].attrs["long_name"] = "cycles per image, standing for w and -w"
    found["multiplicity"].attrs["long_name"] = "2 where the name stands for w and -w, else 1"
    found["modulus"].attrs["long_name"] = "|w|, cycles per image"
    return found


def checked(values: object) -> xr.DataArray:
    """Return an array over (layer, frequency, channel) with the dimensions in this order; refuse others."""
    dims = ("layer", "frequency", "channel")
    if not isinstance(values, xr.DataArray):
        raise TypeError(f"values: got {validation.describe(values)}, expected an xarray.DataArray over {dims}")
    if set(values.dims) != set(dims) or "multiplicity" not in values.coords:
        raise ValueError(f"values: got dimensions {values.dims}, expected {dims} and the coordinate multiplicity")
    return values.transpose(*dims)


def skip(layer: Layer, reason: str) -> Skipped:
    """Return a layer as left out."""
    return Skipped(layer.name, type(layer.module).__name__, f"frequencies: {reason}")


def none_found(skipped: Sequence[Skipped]) -> ValueError:
    """Return the error of a module without any layer that has frequencies."""
    why = "; ".join(f"{s.name or 'the module itself'} ({s.type}): {s.reason}" for s in skipped)
    return ValueError(
        "net: found no convolution with frequencies, expected at least one" + f". Skipped: {why}" * bool(why)
    )
