"""Arguments of the constructions: chains brought to one form, slopes, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.chain import Chain

DOUBLE = torch.float64


def together(f: Chain, g: Chain, names: tuple[str, str]) -> tuple[Chain, Chain]:
    """Bring two networks to one slope, precision and device, and to biases in both or in neither."""
    deep = [chain.slope for chain in (f, g) if chain.depth > 1]  # without activations the slope is arbitrary
    if len(set(deep)) > 1:
        raise ValueError(
            f"{names[0]}: got slope {f.slope:g} where {names[1]} has {g.slope:g}, expected the same; "
            "convert one with with_slope"
        )
    slope, dtype = (deep or [f.slope])[0], torch.promote_types(f.dtype, g.dtype)
    if f.biases or g.biases:
        f, g = f.biased(), g.biased()
    weights, biases = [w.to(f.device) for w in g.weights], [b.to(f.device) for b in g.biases]
    return replace(f, slope=slope, dtype=dtype), Chain(weights, biases, slope, dtype, f.device)


def array(value: object, name: str, shape: str, ndim: int | Sequence[int]) -> Tensor:
    """Return a tensor or array of floating point with finite entries and ``ndim`` dimensions, in its precision."""
    ndims = [ndim] if isinstance(ndim, int) else list(ndim)
    tensor = torch.from_numpy(np.ascontiguousarray(value)) if _is_numeric(value) else value
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"{name}: got {validation.describe(value)}, expected floating-point numbers of shape {shape}")
    if tensor.ndim not in ndims or 0 in tensor.shape:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {shape}")
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name}: got {bad} NaN or infinite entries, expected finite numbers")
    return tensor.detach()


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
