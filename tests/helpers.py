"""What many tests need: random tensors from a seed, norms, and which claims failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank.networks.mlp import MLP, make


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(
    widths: list[int],
    slope: float = 0.0,
    bias: bool = True,
    scale: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> MLP:
    """A random network: weights as initialized times a scale, biases of standard deviation 0.3."""
    net = make(widths, slope, bias, seed=seed, dtype=dtype)
    with torch.no_grad():
        for weight in net.weights:
            weight.mul_(scale)
        for i, b in enumerate(net.biases):
            b.copy_(0.3 * normal(len(b), seed=1000 * seed + i))
    return net


def norm(net: nn.Module) -> float:
    """||theta||^2 in float64."""
    return sum(float((p.detach().double() ** 2).sum()) for p in net.parameters())


def passed(claims: Iterable[Any]) -> list[bool | None]:
    """Whether each claim passed."""
    return [claim.passed for claim in claims]


def failing(claims: Iterable[Any]) -> list[int]:
    """The numbers of the claims that did not pass."""
    return [i for i, claim in enumerate(claims) if not claim.passed]


def values_of(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the singular values of every matrix of a profile, by name."""
    found = zip(dataset.layer_name.values, dataset.weight_singular_values.values, strict=True)
    return {str(name): row[np.isfinite(row)] for name, row in found}


def listed(dataset: xr.Dataset) -> dict[str, str]:
    """Return the reasons of the tensors that a profile does not measure, by name."""
    if "skipped" not in dataset.dims:
        return {}
    return dict(zip(dataset.skipped_name.values.tolist(), dataset.skipped_reason.values.tolist(), strict=True))
