"""Which samples decide, which judge, which are held out, and more of them where there are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.discovery.compression.chain import Stretch, trace
from bnrank.networks.functional import example

__all__ = ["ENRICH", "affordable", "enriched", "entering", "split"]

ENTRIES = 2e7  # of all values of a stretch over the deciding samples: 160 MB
ENRICH = 1000  # samples that fits are made on; fewer are joined by points on lines through neighbours
REACH = 1.0  # how far on these lines, beyond either neighbour, in units of their distance
NEIGHBOURS = 5


def split(module: nn.Module, x: Tensor, held_out: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Return the samples that decide, in random order, and those that are held out."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    if isinstance(held_out, Tensor | np.ndarray):
        kept = example(module, held_out)
        if kept.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"held_out: got samples of shape {tuple(kept.shape[1:])}, expected {tuple(x.shape[1:])} as in x"
            )
        return x[order], kept
    share = _validate.number(held_out, "held_out", 0.0, strict=True)
    if share >= 1:
        raise ValueError(f"held_out: got {share:g}, expected samples or a share of x in (0, 1)")
    count = min(max(1, round(share * len(x))), len(x) - 4)
    return x[order[count:]], x[order[:count]]


def enriched(x: Tensor, fitted: int, least: int, seed: int) -> Tensor:
    """Put samples between neighbours in front of the fitted ones, until there are so many."""
    count = least - fitted
    if count <= 0 or not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(seed)
    own = x[:fitted].flatten(1)
    near = torch.cdist(own, own).topk(min(NEIGHBOURS + 1, fitted), largest=False).indices[:, 1:]
    i = torch.randint(0, fitted, (count,), generator=generator)
    j = near[i, torch.randint(0, near.shape[1], (count,), generator=generator)]
    u = torch.rand((count, 1), generator=generator, dtype=torch.float64) * (1 + 2 * REACH) - REACH
    between = own[i] + u.to(own) * (own[j] - own[i])
    return torch.cat([between.reshape(count, *x.shape[1:]), x])


def affordable(module: nn.Module, found: list[Stretch], x: Tensor, most: int) -> int:
    """Return how many samples may decide: at most so many, and no more values of a stretch than memory is spent on."""
    entries = 1
    with torch.no_grad():
        for stretch in found:
            values = trace(stretch.parts, entering(module, stretch.name, x[:2]))
            entries = max(entries, sum(value[0].numel() for value in values))
    return min(most, max(64, int(ENTRIES / entries)))


def entering(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what enters a submodule, "" for the module itself, on x."""
    if not name:
        return x
    seen: list[Tensor] = []
    handle = module.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    try:
        module(x.clone())
    finally:
        handle.remove()
    return seen[0]
