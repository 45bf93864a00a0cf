"""The bottleneck as seen in the weights: k singular values near 1 in a run of layers, the others small."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank import _validate

__all__ = ["Bottleneck", "detect", "ranks"]


@dataclass(frozen=True)
class Bottleneck:
    """A run of layers with the same clear gap in their singular values.

    Attributes
    ----------
    rank : int or None
        k, the number of singular values near 1 in every layer of the run; 0 for a collapsed network; None where no
        run is long enough (undetermined).
    start, end : int or None
        First and last layer of the run, counted from 1.
    gap : float or None
        s_k / s_{k+1} in the middle layer, (start + end) // 2; s_0 counts as 1; infinite where s_{k+1} is 0 or there
        is none.
    values : tuple of float
        All singular values of the middle layer.
    counts : tuple of int
        For every layer the number of singular values above the threshold.
    threshold, near, min_layers
        The tolerances it was found with.
    reason : str
        Why the rank is undetermined; empty where it is not.
    """

    rank: int | None
    start: int | None
    end: int | None
    gap: float | None
    values: tuple[float, ...]
    counts: tuple[int, ...]
    threshold: float
    near: tuple[float, float]
    min_layers: int
    reason: str = ""


def detect(
    values: Tensor | np.ndarray | Mapping[str, Tensor] | Sequence[Any],
    *,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
) -> Bottleneck:
    """Find the longest run of layers in which k singular values are near 1 and the others small (T27).

    A layer is clear, with rank k, if its k largest singular values lie in ``near`` and all others are at most
    ``threshold``. The bottleneck is the longest run of clear layers of the same k; of several as long, the one of
    the least rank, then the first.

    Parameters
    ----------
    values : array of shape (layer, index), mapping, or one sequence per layer
        Singular values of the weights, such as ``profile.weight_singular_values`` or what
        :func:`~bnrank.measures.spectra.weight_singular_values` returns. NaN is padding; a layer of nothing else is
        not clear.
    threshold : float
        What counts as small (Jacot2023b figure 1 has 0.1).
    near : tuple of float
        What counts as near 1.
    min_layers : int
        Least length of a run, at most the depth: one layer alone, such as a narrow last one, shows nothing.

    Returns
    -------
    Bottleneck
        With rank None where no run is long enough.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the array has another shape.

    Examples
    --------
    >>> found = detect([[3.0, 1.1, 0.4], [1.1, 1.0, 0.02], [1.0, 0.9, 0.01], [2.5, 0.7, 0.3]])
    >>> found.rank, found.start, found.end, round(found.gap)
    (2, 2, 3, 50)
    """
    threshold, near, min_layers = _validate_tolerances(threshold, near, min_layers)
    rows = _rows(values)
    counts = tuple(int((row > threshold).sum()) for row in rows)
    clear = [_is_clear(row, count, near) for row, count in zip(rows, counts, strict=True)]
    runs: list[tuple[int, int, int]] = []  # length, start, rank
    start = 0
    for key, group in itertools.groupby(zip(clear, counts, strict=True)):
        length = len(list(group))
        if key[0]:
            runs.append((length, start, key[1]))
        start += length
    needed = min(min_layers, len(rows))
    settings = counts, threshold, near, min_layers
    if not runs:
        return Bottleneck(None, None, None, None, (), *settings, "no layer has a clear gap")
    length, first, rank = min(runs, key=lambda run: (-run[0], run[2], run[1]))
    if length < needed:
        reason = f"the longest run of layers with the same clear gap has {length} layer(s), expected {needed}"
        return Bottleneck(None, None, None, None, (), *settings, reason)
    middle = rows[(first + 1 + first + length) // 2 - 1]
    above = middle[rank - 1] if rank else 1.0
    below = middle[rank] if rank < len(middle) else 0.0
    gap = float(above / below) if below > 0 else float("inf")
    return Bottleneck(rank, first + 1, first + length, gap, tuple(map(float, middle)), *settings)


def ranks(
    values: Tensor | np.ndarray,
    *,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
) -> np.ndarray:
    """Detect the bottleneck rank along all leading dimensions of (..., layer, index), such as (member, step).

    Parameters
    ----------
    values : array of shape (..., layer, index)
        Singular values of the weights; NaN is padding.
    threshold, near, min_layers
        As in :func:`detect`.

    Returns
    -------
    ndarray
        (...), float64; NaN where undetermined.

    Raises
    ------
    TypeError, ValueError
        As :func:`detect`.

    Examples
    --------
    >>> ranks(np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.3], [1.0, 0.3]]]))
    array([ 1., nan])
    """
    array = _array(values)
    if array.ndim < 2:
        raise ValueError(f"values: got shape {array.shape}, expected (..., layer, index)")
    out = np.full(array.shape[:-2], np.nan)
    for at in np.ndindex(out.shape):
        found = detect(array[at], threshold=threshold, near=near, min_layers=min_layers).rank
        out[at] = np.nan if found is None else found
    return out


def _validate_tolerances(threshold: object, near: Any, min_layers: object) -> tuple[float, tuple[float, float], int]:
    threshold = _validate.number(threshold, "threshold", 0.0)
    if not isinstance(near, tuple | list) or len(near) != 2:
        raise TypeError(f"near: got {_validate.describe(near)}, expected two numbers, (lowest, highest)")
    low, high = (_validate.number(v, f"near[{i}]", 0.0, strict=True) for i, v in enumerate(near))
    if not threshold < low <= 1 <= high:
        raise ValueError(f"near: got {(low, high)}, expected threshold = {threshold:g} < lowest <= 1 <= highest")
    return threshold, (low, high), _validate.integer(min_layers, "min_layers")


def _rows(values: Any) -> list[np.ndarray]:
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        rows = [_array(row) for row in values]
    else:
        array = _array(values)
        if array.ndim != 2:
            raise ValueError(f"values: got shape {array.shape}, expected (layer, index)")
        rows = list(array)
    if not rows or any(row.ndim != 1 for row in rows):
        raise ValueError("values: expected (layer, index), at least one layer with a list of singular values each")
    if any(bool((row < 0).any()) for row in rows):
        raise ValueError("values: got negative entries, expected singular values")
    return [np.sort(row[~np.isnan(row)])[::-1] for row in rows]


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


def _is_clear(row: np.ndarray, count: int, near: tuple[float, float]) -> bool:
    return len(row) > 0 and bool(((row[:count] >= near[0]) & (row[:count] <= near[1])).all())
