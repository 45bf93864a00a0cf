"""Arguments of the constructions: chains brought to one form, slopes, arrays."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.chain import Chain

DOUBLE = torch.float64


def together(f: Chain, g: Chain, names: tuple[str, str]) -> tuple[Chain, Chain]:
    """Return two networks with one slope, precision and device, and with biases in both or in neither."""
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
    """Return a tensor or array of finite numbers with ``ndim`` dimensions, in its precision."""
    if not isinstance(value, Tensor | np.ndarray) or (isinstance(value, Tensor) and not value.is_floating_point()):
        raise TypeError(f"{name}: got {validation.describe(value)}, expected floating-point numbers of shape {shape}")
    tensor = validation.real(value, name, f"floating-point numbers of shape {shape}")
    if tensor.ndim not in ([ndim] if isinstance(ndim, int) else ndim) or 0 in tensor.shape:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {shape}")
    return tensor
