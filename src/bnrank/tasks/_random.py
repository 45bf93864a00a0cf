"""Random streams: one generator per purpose, so that changing one argument does not affect the other draws."""

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation


def streams(seed: int, count: int) -> list[torch.Generator]:
    """Return ``count`` independent generators derived from one seed; the global generators are not used.

    The seeds come from ``numpy.random.SeedSequence``, so that a task and a network with the same seed have
    different draws.

    Raises
    ------
    TypeError, ValueError
        If ``seed`` is not an integer of at least 0.
    """
    states = np.random.SeedSequence(validation.integer(seed, "seed", 0)).generate_state(count, np.uint32)
    return [torch.Generator().manual_seed(int(state)) for state in states]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Return independent N(0, 1) numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Return independent numbers, uniform on [0, 1), in float64."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)
