"""Which samples decide, which judge, which are held out, and more of them where there are few."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.compression.arguments import LEAST, array, classes, samples
from bnrank.discovery.compression.chain import trace
from bnrank.networks import Segment

__all__ = ["ENRICH", "Parted", "affordable", "enriched", "entering", "split"]

ENTRIES = 2e7  # of all values of a segment over the deciding samples: 160 MB
ENRICH = 1000  # samples that fits are made on; fewer are joined by points on lines through neighbors
REACH = 1.0  # how far on these lines, beyond either neighbor, in units of their distance
NEIGHBORS = 5


class Parted(NamedTuple):
    """Samples in two groups, and their classes where they are known.

    Attributes
    ----------
    x, y : Tensor
        All samples given, and their classes or None.
    deciding : Tensor
        In random order.
    kept : Tensor
        Held out: they decide nothing.
    y_kept : Tensor or None
        Their classes.
    """

    x: Tensor
    y: Tensor | None
    deciding: Tensor
    kept: Tensor
    y_kept: Tensor | None


def split(net: nn.Module, x: Tensor, y: Any, held_out: Any, seed: int) -> Parted:
    """Return the samples that decide and those that are held out, a share of x or others."""
    y = None if y is None else classes(y, len(x), "y")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    y_kept = None
    if isinstance(held_out, tuple):
        if len(held_out) != 2 or y is None:
            raise ValueError("held_out: got a tuple, expected samples, or samples and classes where y is given, too")
        kept = samples(net, held_out[0], "held_out[0]", LEAST)
        held_out, y_kept = kept, classes(held_out[1], len(kept), "held_out[1]")
    held_out = array(held_out, "held_out")
    if isinstance(held_out, Tensor | np.ndarray):
        kept = samples(net, held_out, "held_out", LEAST)
        if kept.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"held_out: got samples of shape {tuple(kept.shape[1:])}, expected {tuple(x.shape[1:])} as in x"
            )
        if kept.is_floating_point() != x.is_floating_point():
            raise TypeError(f"held_out: got dtype {kept.dtype}, expected samples like x, of dtype {x.dtype}")
        return Parted(x, y, x[order], kept, y_kept)
    share = validation.number(held_out, "held_out", 0.0, strict=True)
    if share >= 1:
        raise ValueError(f"held_out: got {share:g}, expected samples or a share of x in (0, 1)")
    count = min(max(2, round(share * len(x))), len(x) - 4)
    return Parted(x, y, x[order[count:]], x[order[:count]], None if y is None else y[order[:count]])


def enriched(x: Tensor, fitted: int, least: int, seed: int) -> Tensor:
    """Put samples between neighbors in front of the fitted ones, until there are so many."""
    count = least - fitted
    if count <= 0 or not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(seed)
    own = x[:fitted].flatten(1)
    near = torch.cdist(own, own).topk(min(NEIGHBORS + 1, fitted), largest=False).indices[:, 1:]
    i = torch.randint(0, fitted, (count,), generator=generator)
    j = near[i, torch.randint(0, near.shape[1], (count,), generator=generator)]
    u = torch.rand((count, 1), generator=generator, dtype=torch.float64) * (1 + 2 * REACH) - REACH
    between = own[i] + u.to(own) * (own[j] - own[i])
    return torch.cat([between.reshape(count, *x.shape[1:]), x])


def affordable(net: nn.Module, found: list[Segment], x: Tensor, most: int) -> int:
    """Return how many samples may decide: at most so many, and no more values of a segment than memory is spent on."""
    entries = 1
    with torch.no_grad():
        for segment in found:
            values = trace(segment.parts, entering(net, segment.name, x[:2]))
            entries = max(entries, sum(value[0].numel() for value in values))
    return min(most, max(64, int(ENTRIES / entries)))


def entering(net: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what enters a submodule, "" for the module itself, on x."""
    if not name:
        return x
    seen: list[Tensor] = []
    handle = net.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    try:
        net(x.clone())
    finally:
        handle.remove()
    return seen[0]
