"""Which rows stand for all of them."""

import torch
from torch import Tensor


def evenly_spaced(count: int, limit: int) -> Tensor:
    """Return at most ``limit`` evenly spaced integers from 0 to ``count`` - 1, both ends included.

    Examples
    --------
    >>> evenly_spaced(10, 4), evenly_spaced(2, 4)
    (tensor([0, 3, 6, 9]), tensor([0, 1]))
    """
    return torch.linspace(0, count - 1, min(limit, count)).round().long()
