"""What many tests need: random tensors from a seed, norms, and which claims failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def norm(net: nn.Module) -> float:
    """||theta||^2 in float64."""
    return sum(float((p.detach().double() ** 2).sum()) for p in net.parameters())


def passed(claims: Iterable[Any]) -> list[bool | None]:
    """Whether each claim passed."""
    return [claim.passed for claim in claims]


def failing(claims: Iterable[Any]) -> list[int]:
    """The numbers of the claims that did not pass."""
    return [i for i, claim in enumerate(claims) if not claim.passed]
