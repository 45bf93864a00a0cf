"""Units rescaled so that no layer is much larger than the next: the same function, better conditioned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.chain import Parts, neighbors, run
from bnrank.discovery.compression.low_rank import with_weight
from bnrank.discovery.compression.neurons import ACTIVATIONS, by_unit, unit_rows

__all__ = ["balanced"]

SWEEPS = 20


def balanced(parts: Parts, x: Tensor) -> Parts:
    """Rescale neurons and channels so that the weights into each and out of each have the same norm (T14).

    That needs what stands between to be positively homogeneous; other units stay as they are. For chains of Linear
    :func:`bnrank.cost.balance` finds the limit by Newton's method; this goes to and fro, and takes convolutions too.

    Parameters
    ----------
    parts : tuple of torch.nn.Module
        Of a segment.
    x : Tensor
        Samples that enter it; only shapes matter.

    Returns
    -------
    tuple of torch.nn.Module
        The same function.

    Examples
    --------
    >>> uneven = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> with torch.no_grad():
    ...     _ = uneven[0].weight.copy_(100 * torch.eye(2)), uneven[2].weight.fill_(0.01)
    >>> [part.weight.tolist() for part in balanced(tuple(uneven), torch.ones(2, 2)) if isinstance(part, nn.Linear)]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]]]
    """
    new: list[Any] = list(parts)
    with torch.no_grad():
        values = x[:2]
        pairs = []
        for i, j in neighbors(parts):
            given = run(parts[: i + 1], values)
            between = [part for part in parts[i + 1 : j] if type(part) in ACTIVATIONS]
            homogeneous = all(type(part) in (nn.ReLU, nn.LeakyReLU) for part in between)
            if homogeneous and unit_rows(parts, i, j, given, run(parts[i + 1 : j], given)) is not None:
                pairs.append((i, j))
        for _ in range(SWEEPS):
            for i, j in pairs:
                new[i], new[j] = _evened(new[i], new[j])
    return tuple(new)


def _evened(layer: Any, reader: Any) -> tuple[nn.Module, nn.Module]:
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    columns = by_unit(reader, len(weight))
    squares = weight.flatten(1).square().sum(1) + (0.0 if bias is None else bias.square())
    out = columns.square().sum((0, 2))
    scale = torch.where((squares > 0) & (out > 0), (out / squares.clamp(min=1e-300)) ** 0.25, torch.ones_like(out))
    slim = with_weight(
        layer, weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), None if bias is None else bias * scale
    )
    divided = (columns / scale[:, None]).reshape(reader.weight.shape)
    return slim, with_weight(reader, divided, None if reader.bias is None else reader.bias.detach())
