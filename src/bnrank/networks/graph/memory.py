"""Where tensors lie in memory: who sees a change in place, and what they see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["addresses", "same_memory", "same_order", "same_place", "written"]


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are views of the same memory."""
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same_place(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are the same view of the same memory."""
    return same_memory(a, b) and a.storage_offset() == b.storage_offset() and same_order(a, b)


def same_order(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors of the same beginning lay out their entries alike."""
    if a.shape != b.shape or a.data_ptr() != b.data_ptr():
        return False
    return all(x == y or n == 1 for x, y, n in zip(a.stride(), b.stride(), a.shape, strict=True))


def addresses(tensor: Tensor) -> NDArray[np.int64]:
    """Return where in its memory every entry of a tensor lies."""
    found = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
    for d, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        found += (np.arange(size) * stride).reshape([-1 if i == d else 1 for i in range(tensor.ndim)])
    return found


def written(shown: Tensor, by: Tensor) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return what gives, of the entries of two tensors over the same memory, ``shown`` once ``by`` is written."""
    places = [torch.from_numpy(addresses(tensor)) for tensor in (shown, by)]

    def seen(entries: Sequence[Tensor]) -> Tensor:
        memory = torch.zeros(1 + max(int(place.max()) for place in places), dtype=torch.float64)
        for place, numbers in zip(places, entries, strict=True):
            memory[place.flatten()] = numbers.flatten()
        return memory[places[0]]

    return seen
