"""The one number that says how much of a segment is left, which every step of the search saves on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bnrank.discovery.compression.chain import convolution
from bnrank.discovery.compression.costs import multiply_adds, parameters

__all__ = ["Counts", "cheapest", "cost", "counts", "share"]

Counts = tuple[int, int, int]


def counts(parts: Sequence[nn.Module], x: Tensor) -> Counts:
    """Return the numbers of parameters, multiply-adds per sample, and linear parts."""
    layers = sum(isinstance(part, nn.Linear) or convolution(part) for part in parts)
    return sum(parameters(part) for part in parts), multiply_adds(nn.Sequential(*parts), x), layers


def share(some: Sequence[float], whole: Counts) -> float:
    """Return the mean of three shares in those of the whole: parameters, multiply-adds, linear parts.

    The last stands for the time that a layer takes however small it is.

    Examples
    --------
    >>> share((50, 20, 1), (100, 80, 4))
    0.3333333333333333
    """
    return sum(a / max(b, 1) for a, b in zip(some, whole, strict=True)) / 3


def cost(parts: Sequence[nn.Module], x: Tensor, whole: Counts) -> float:
    """Return the :func:`share` of parts in the whole."""
    return share(counts(parts, x), whole)


def cheapest(prices: Tensor, tails: Tensor, threshold: float) -> int:
    """Return the place of the least price + (tail / threshold)^2.

    With one threshold for all layers an error is spent where it saves most: at the optimum of the sum of prices for a
    given sum of squared tails all layers have the same rate of exchange, threshold^2.

    Parameters
    ----------
    prices, tails : Tensor
        (n,): for every size that a layer can be cut to, what is left of the cost and the change that it makes.
    threshold : float
        The change that is worth all of the cost.

    Examples
    --------
    >>> import torch
    >>> tails = torch.tensor([1.0, 0.1, 0.0])
    >>> [cheapest(torch.tensor([0.1, 0.2, 0.3]), tails, t) for t in (0.1, 1.0, 10.0)]
    [2, 1, 0]
    """
    return int((prices.to(tails) + (tails / threshold).square()).argmin())
