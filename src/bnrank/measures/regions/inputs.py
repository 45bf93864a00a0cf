"""Points, vectors and boxes as arguments."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.measures.regions.maps import Array

__all__ = ["pairs", "plane", "vector"]


def vector(value: object, name: str, size: int) -> Array:
    """Return a finite vector (size,) in float64."""
    array = _numbers(value, name, f"({size},)")
    if array.shape != (size,):
        raise ValueError(f"{name}: got shape {array.shape}, expected ({size},)")
    return array


def pairs(value: object, name: str, number: int) -> Array:
    """Return (number, 2) rows (low, high) with low < high, from such rows or from one pair for all."""
    expected = f"rows (low, high), ({number}, 2), or one pair (low, high)"
    array = _numbers(value, name, expected)
    if array.shape not in ((2,), (number, 2)):
        raise ValueError(f"{name}: got shape {array.shape}, expected {expected}")
    array = np.broadcast_to(array, (number, 2))
    if not (array[:, 0] < array[:, 1]).all():
        raise ValueError(f"{name}: got {array.tolist()}, expected low < high in every row")
    return array


def plane(origin: object, u: object, v: object, bounds: object, size: int) -> tuple[Array, Array, Array]:
    """Return the origin (size,), the axes (2, size), linearly independent, and the rectangle (2, 2) of a plane."""
    start, *axes = (vector(value, name, size) for value, name in ((origin, "origin"), (u, "u"), (v, "v")))
    rectangle = pairs(bounds, "bounds", 2)
    lengths = [float(np.linalg.norm(axis)) for axis in axes]
    if 0 in lengths or np.linalg.svd(np.stack(axes) / np.reshape(lengths, (2, 1)), compute_uv=False)[-1] < 1e-12:
        raise ValueError(f"u, v: got {axes[0].tolist()} and {axes[1].tolist()}, expected linearly independent vectors")
    return start, np.stack(axes), rectangle


def _numbers(value: object, name: str, expected: str) -> Array:
    if isinstance(value, Tensor):
        value = value.detach().cpu().to(torch.float64)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise ValueError
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: got {validation.describe(value)}, expected numbers, {expected}") from error
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got NaN or infinite entries, expected finite ones")
    return array
