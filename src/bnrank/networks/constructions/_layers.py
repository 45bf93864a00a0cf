"""What the constructions share: layers taken out of networks in float64 and put back, and checks of matrices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, unwrap
from bnrank.networks.mlp import MLP, from_layers

DOUBLE = torch.float64
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layers:
    """Weights and biases (none or one per layer) in float64, and the precision and device to return them in."""

    weights: list[Tensor]
    biases: list[Tensor]
    slope: float
    dtype: torch.dtype = DOUBLE
    device: torch.device = CPU

    @property
    def depth(self) -> int:
        """L."""
        return len(self.weights)

    @property
    def norm(self) -> float:
        """||theta||^2."""
        return sum(square(value) for value in [*self.weights, *self.biases])

    def biased(self) -> Layers:
        """Return the same with biases 0 where there were none."""
        return self if self.biases else replace(self, biases=[w.new_zeros(len(w)) for w in self.weights])

    def network(self) -> MLP:
        """Return the network with these layers."""
        return from_layers(self.weights, self.biases, self.slope).to(self.device, self.dtype)


def square(value: Tensor) -> float:
    """Return the sum of squares."""
    return float((value * value).sum())


def read(module: nn.Module, name: str) -> Layers:
    """Take the layers out of a chain of linear layers; errors speak of the argument ``name``."""
    try:
        check_finite(module)
        net = as_mlp(module)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {str(error).removeprefix('net: ')}") from error
    found = [p.dtype for p in unwrap(module).parameters() if p.is_floating_point()]
    dtype = functools.reduce(torch.promote_types, found)
    weights, biases = [w.detach() for w in net.weights], [b.detach() for b in net.biases]
    return Layers(weights, biases, net.slope, dtype, weights[0].device)


def together(f: Layers, g: Layers, names: tuple[str, str]) -> tuple[Layers, Layers]:
    """Bring two networks to one slope, precision and device, and to biases in both or in neither."""
    deep = [layers.slope for layers in (f, g) if layers.depth > 1]  # without activations any slope will do
    if len(set(deep)) > 1:
        raise ValueError(
            f"{names[0]}: got slope {f.slope:g} where {names[1]} has {g.slope:g}, expected the same; "
            "convert one with with_slope"
        )
    slope, dtype = (deep or [f.slope])[0], torch.promote_types(f.dtype, g.dtype)
    if f.biases or g.biases:
        f, g = f.biased(), g.biased()
    weights, biases = [w.to(f.device) for w in g.weights], [b.to(f.device) for b in g.biases]
    return replace(f, slope=slope, dtype=dtype), Layers(weights, biases, slope, dtype, f.device)


def two_sided(basis: Tensor, depth: int, slope: float) -> list[Tensor]:
    """Return layers of the projection U U^T, U (n, k) orthonormal, exact for both signs: 2k neurons z_+, z_- each."""
    k = basis.shape[1]
    if depth == 1:
        return [basis @ basis.T]
    eye = torch.eye(k, dtype=basis.dtype, device=basis.device)
    if slope == 1:
        return [basis.T, *[eye] * (depth - 2), basis]
    into, out = torch.cat([basis.T, -basis.T]), torch.cat([basis, -basis], 1)
    if depth == 2:
        return [into, out / (1 + slope)]
    parts = torch.cat([torch.cat([eye, slope * eye], 1), torch.cat([slope * eye, eye], 1)]) / (1 - slope**2)
    both = torch.eye(2 * k, dtype=basis.dtype, device=basis.device)
    return [into, parts, *[both] * (depth - 3), out]


def activation_slope(value: object) -> float:
    """Return the slope of an activation, in (-1, 1), or 1 for none."""
    return 1.0 if isinstance(value, int | float) and not isinstance(value, bool) and value == 1 else _slope(value)


def _slope(value: object) -> float:
    try:
        return validation.slope(value)
    except ValueError as error:
        raise ValueError(f"{error}, 1 is no activation") from error


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
