"""The frequencies that a bottleneck keeps, by name (F6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.measures import bottlenecks
from bnrank.measures.frequencies.modes import checked, label
from bnrank.measures.frequencies.values import rank

if TYPE_CHECKING:
    import xarray as xr


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
        2 where the name stands for w and -w, 1 else.
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
    """Return the frequencies that the layers of a bottleneck keep, those with a value above ``atol`` in each (F6).

    Parameters
    ----------
    values : DataArray
        (layer, frequency, channel), as :func:`weight_singular_values` returns it.
    start, end : int, optional
        First and last layer of the bottleneck; default: those :func:`bnrank.measures.bottlenecks.detect` finds in all
        values of every layer.
    atol : float
        Singular values above it count.
    near_one : tuple of float
        Range of values near 1 in :func:`bnrank.measures.bottlenecks.detect`.

    Returns
    -------
    Kept
        With how many channels each frequency keeps. A frequency with values in other channels in different layers
        counts with the least number.

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
    if (start is None) != (end is None):
        raise ValueError("start, end: got one without the other, expected both or neither")
    if start is None or end is None:
        flat = [np.repeat(row, values["multiplicity"].values, 0).ravel() for row in values.values]
        rows = [np.sort(row[~np.isnan(row)])[::-1] for row in flat]
        found = bottlenecks.detect(rows, atol=atol, near_one=near_one)
        if found.start is None or found.end is None:
            return Kept(None, None, (), found.reason)
        start, end = (int(values["layer"][i - 1]) for i in (found.start, found.end))
    start, end = validation.integer(start, "start"), validation.integer(end, "end")
    inside = rank(values.sel(layer=slice(start, end)), atol)
    if not inside.sizes["layer"]:
        raise ValueError(
            f"start, end: got {start} and {end}, expected some of the layers {values['layer'].values.tolist()}"
        )
    least = inside.fillna(0).min("layer")
    columns = zip(least["frequency"].values, least.values, least["multiplicity"].values, strict=True)
    frequencies = (KeptFrequency(str(name), int(count), int(times)) for name, count, times in columns if count)
    return Kept(start, end, tuple(frequencies))
