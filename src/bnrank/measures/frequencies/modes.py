"""Frequencies of images, and arrays over layers, frequencies and channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.reading import Layer
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


class Convolutions:
    """Convolutions collected one by one, all with images of the size of the first.

    Parameters
    ----------
    skipped : sequence of Skipped
        Modules that were not read.
    """

    def __init__(self, skipped: Sequence[Skipped]) -> None:
        self.layers: list[Layer] = []
        self.skipped = list(skipped)
        self.notes: dict[str, str] = {}
        self.size: tuple[int, ...] = ()

    @property
    def grid(self) -> Grid:
        """The frequencies of the images; ValueError if there is no convolution."""
        if not self.layers:
            why = ". Skipped: " + "; ".join(map(str, self.skipped)) if self.skipped else ""
            raise ValueError(f"net: found no convolution with frequencies, expected at least one{why}")
        return grid(self.size)

    def add(self, layer: Layer, size: Sequence[int], images: str) -> bool:
        """Add a layer; return False, and skip it, if the size of its images differs from the first."""
        if self.layers and tuple(size) != self.size:
            self.skip(layer, f"its {images} have size {tuple(size)}, those of the first {self.size}")
            return False
        self.layers.append(layer)
        self.size = tuple(size)
        return True

    def skip(self, layer: Layer, reason: str) -> None:
        """Record a layer as skipped."""
        self.skipped.append(Skipped.part(layer.name, layer.module, f"frequencies: {reason}"))

    def assemble(self, rows: Sequence[np.ndarray], text: str) -> xr.DataArray:
        """Return the (frequency, channel) arrays of the layers as one array, padded with NaN."""
        import xarray as xr

        modes, most = self.grid, max(row.shape[1] for row in rows)
        values = np.stack([np.pad(row, ((0, 0), (0, most - row.shape[1])), constant_values=np.nan) for row in rows])
        frequency = {"long_name": "cycles per image, standing for w and -w"}
        multiplicity = {"long_name": "2 where the name stands for w and -w, else 1"}
        coords = {
            "layer": [layer.index for layer in self.layers],
            "layer_name": ("layer", np.array([layer.name for layer in self.layers], dtype=str)),
            "frequency": ("frequency", np.array(modes.names, dtype=str), frequency),
            "multiplicity": ("frequency", np.array(modes.multiplicity), multiplicity),
            "modulus": ("frequency", np.array(modes.modulus), {"long_name": "|w|, cycles per image"}),
            "channel": np.arange(1, most + 1),
        }
        notes = "\n".join(f"{name}: {note}" for name, note in self.notes.items())
        attrs = {"long_name": text, "units": "1", "image_size": list(modes.size), "notes": notes}
        return xr.DataArray(values, coords, DIMS, attrs=attrs | {"skipped": "\n".join(map(str, self.skipped))})


def checked(values: object) -> xr.DataArray:
    """Return an array with dimensions (layer, frequency, channel) in this order; raise an error for others."""
    import xarray as xr

    if not isinstance(values, xr.DataArray):
        raise TypeError(f"values: got {validation.describe(values)}, expected an xarray.DataArray over {DIMS}")
    known = set(values.dims) == set(DIMS) and "multiplicity" in values.coords
    validation.expect(known, "values", f"dimensions {values.dims}", f"{DIMS} and the coordinate multiplicity")
    return values.transpose(*DIMS)
