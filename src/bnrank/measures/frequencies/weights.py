"""Singular values and ranks of convolutions, frequency by frequency (T28)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.convolution import layer_blocks
from bnrank.measures.frequencies.grid import Grid, assemble, checked, grid, none_found, places, skip
from bnrank.networks.reading import Layer, Reading, read

__all__ = ["of_reading", "rank", "weight_singular_values"]


def weight_singular_values(
    net: nn.Module,
    x: Tensor | np.ndarray | None = None,
    size: int | Sequence[int] | None = None,
    reading: Reading | None = None,
) -> xr.DataArray:
    """Return the singular values of every convolution, frequency by frequency (T28).

    A circular convolution is block diagonal in Fourier space, and the singular values at frequency w are those of the
    c_out x c_in block there. Those at -w are the same, so that a name stands for both and ``multiplicity`` counts them:
    all values, each that many times, are what :func:`bnrank.spectra.weight_singular_values` returns.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with convolutions.
    x : Tensor or ndarray, optional
        Samples, (N, ...): gives the order of the layers and the sizes of the images.
    size : int or sequence of int, optional
        Size of the images, where ``x`` is not given.
    reading : Reading, optional
        What ``read(module, x)`` returned.

    Returns
    -------
    DataArray
        (layer, frequency, channel), float64, descending along ``channel``, NaN where a layer has fewer channels.
        Coordinates: ``layer`` (number among all layers), ``layer_name``, ``frequency`` (names, see :class:`Grid`),
        ``multiplicity``, ``modulus`` (|w|), ``channel`` (from 1). Attributes: ``image_size``; ``notes``, what was
        assumed of layers that are no circular convolution; and ``skipped``, what was left out and why: layers with a
        stride, whose frequencies mix, and with images of another size than the first (both JSON lists).

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
    return of_reading(read(net, x) if reading is None else reading, size)


def of_reading(reading: Reading, size: int | Sequence[int] | None = None) -> xr.DataArray:
    """Return what :func:`weight_singular_values` returns, of layers that were read."""
    skipped = list(reading.skipped)
    notes = []
    rows: list[tuple[Layer, np.ndarray]] = []
    place: Grid | None = None
    for layer in reading.layers:
        values, note = _blocks(layer, size)
        if values is None:
            skipped.append(skip(layer, note))
            continue
        n = tuple(values.shape[:-1])
        place = grid(n) if place is None else place
        if n != place.size:
            skipped.append(skip(layer, f"its images have size {n}, those of the first {place.size}"))
            continue
        rows.append((layer, values[places(place)].cpu().numpy()))
        notes += [{"name": layer.name, "note": note}] if note else []
    if place is None:
        raise none_found(skipped)
    return assemble(
        [layer for layer, _ in rows], [row for _, row in rows], place, skipped, notes, "singular values of W_l"
    )


def rank(values: xr.DataArray, threshold: float = 0.1) -> xr.DataArray:
    """Count the singular values above a threshold at every frequency.

    Parameters
    ----------
    values : DataArray
        (layer, frequency, channel), as :func:`weight_singular_values` returns it.
    threshold : float
        What counts.

    Returns
    -------
    DataArray
        (layer, frequency), float64, NaN where a layer has no values. Times ``multiplicity`` and summed over
        ``frequency`` it is the rank of the operator on images.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the array has other dimensions.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.CircularConvolutional((2, 5), [3], bias=False)
    >>> found = rank(weight_singular_values(net, size=5), threshold=0.0)
    >>> found.values, float((found * found.multiplicity).sum())
    (array([[2., 2., 2.]]), 10.0)
    """
    values = checked(values)
    threshold = validation.number(threshold, "threshold", 0.0)
    counts = (values > threshold).sum("channel").where(values.notnull().any("channel"))
    return counts.assign_attrs(long_name=f"number of singular values above {threshold:g}", units="1")


def _blocks(layer: Layer, size: int | Sequence[int] | None) -> tuple[Tensor | None, str]:
    """Singular values of a layer by frequency, (n, ..., channels), and what was assumed; None and why not."""
    if layer.kind == "linear":
        return None, "a linear layer has none"
    stride = tuple(layer.module.stride)  # type: ignore[arg-type]
    if any(s > 1 for s in stride):
        return None, f"with stride {stride} those that alias share their singular values"
    return layer_blocks(layer, size)
