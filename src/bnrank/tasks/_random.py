"""Random streams: one generator per purpose, so that changing one argument leaves the other draws alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation


def streams(seed: int, count: int) -> list[torch.Generator]:
    """Return ``count`` independent generators made from one seed; the global generators are not touched.

    The seeds are spread by ``numpy.random.SeedSequence``, so that a task and a network of the same seed do not
    share their draws.

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
