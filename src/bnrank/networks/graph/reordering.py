"""Operations that only put entries in another order, found by running them on numbered entries."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bnrank.networks.graph.values import (
    NO_SAMPLES,
    SAMPLES,
    Call,
    Emit,
    UnreadError,
    Value,
    canonical,
    generators,
    leaves,
    replace,
)

MIXES = "mixes samples, or has no dimension for them"


def reorder(values: list[Value], run: Callable[..., Any], result: Any, emit: Emit, **fields: Any) -> Any:
    """Add an "index" node for every tensor of the result, by running the operation on numbered entries.

    Parameters
    ----------
    values : list of Value
        What the operation takes.
    run : callable
        The operation on tensors in their place.
    result
        What it gave: a tensor, or several.
    emit : callable
        Adds a node.
    """
    sizes = [v.tensor.numel() // SAMPLES for v in values]
    total = sum(sizes)
    ids, start = [], 1
    for value, size in zip(values, sizes, strict=True):
        entries = torch.arange(size, dtype=torch.float64) + start
        numbered = torch.stack([entries + sample * total for sample in range(SAMPLES)])
        numbered = numbered.reshape(value.canonical.shape).movedim(0, value.batch)
        ids.append(numbered.reshape(value.tensor.shape))  # positions that are merged with the samples come after them
        start += size
    found = run(ids)
    numbers, tensors = leaves(found, Tensor), leaves(result, Tensor)
    made = iter([_reordered(n, t, values, total, emit, fields) for n, t in zip(numbers, tensors, strict=True)])
    return replace(result, lambda leaf: next(made) if isinstance(leaf, Tensor) else leaf)


def _reordered(
    numbers: Tensor, tensor: Tensor, values: list[Value], total: int, emit: Emit, fields: Mapping[str, Any]
) -> Value:
    batch, merged = _samples(torch.where(numbers == 0, -1, (numbers - 1) // total))
    entries = canonical(numbers, batch, merged)
    index = torch.where(entries == 0, -1, (entries - 1) % total).to(torch.int64)
    if not torch.equal(index[0], index[1]):
        raise UnreadError("treats samples differently")
    flat = index[0].flatten()
    same = len(values) == 1 and index[0].shape == values[0].canonical.shape[1:]
    if same and torch.equal(flat, torch.arange(len(flat))):
        return Value(tensor, values[0].node, batch, merged=merged)
    values, flat = _needed(values, flat)
    return emit("index", values, tensor, batch, merged, index=flat.numpy(), **fields)


def _samples(sample: Tensor) -> tuple[int, int]:
    """Return the dimension along which samples follow each other, and how many entries of it each has."""
    for merged_too in (False, True):
        for batch, size in enumerate(sample.shape):
            if size % SAMPLES == 0 and (size == SAMPLES or merged_too):
                rows = canonical(sample, batch, size // SAMPLES).reshape(SAMPLES, -1)
                if all(bool(((row == i) | (row == -1)).all()) for i, row in enumerate(rows)):
                    return batch, size // SAMPLES
    raise UnreadError(MIXES)


def layout(call: Call, number: int) -> tuple[int, int]:
    """Return where the samples are in a tensor of the result of any operation: which dimension, how many entries each.

    Where it is no dimension that was the samples' before, they are found by changing one sample at a time.
    """
    result: Tensor = leaves(call.result, Tensor)[number]
    sizes = dict(enumerate(result.shape))
    for value in call.values:
        if value.merged == 1 and sizes.get(value.batch) == SAMPLES:
            return value.batch, 1
    if all(value.batch != NO_SAMPLES for value in call.values):
        plain = _rerun(call, None)[number]
        sample = torch.full(result.shape, -1)
        for i in range(SAMPLES):
            moved = _rerun(call, i)[number] != plain
            sample = torch.where(moved, torch.where(sample == -1, i, SAMPLES), sample)
        with contextlib.suppress(UnreadError):
            return _samples(sample)
    return (0, 1) if sizes.get(0) == SAMPLES else (NO_SAMPLES, 1)


def _rerun(call: Call, sample: int | None) -> list[Tensor]:
    """Return what an operation gives on its arguments, with one sample changed; random numbers are the same."""

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, Value):
            return leaf
        tensor = leaf.tensor.detach().clone()
        if leaf.node is not None and sample is not None and tensor.is_floating_point():
            canonical(tensor, leaf.batch, leaf.merged)[sample].mul_(1.5).add_(0.25)
        return tensor

    args, kwargs = replace((call.args, call.kwargs), plain)
    with generators(0):
        found: list[Tensor] = leaves(call.run(*args, **kwargs), Tensor)
    return found


def _needed(values: list[Value], index: Tensor) -> tuple[list[Value], Tensor]:
    """Leave out the inputs of which nothing is taken."""
    kept, start, moved = [], 0, index.clone()
    for value in values:
        size = value.tensor.numel() // SAMPLES
        here = (index >= start) & (index < start + size)
        if bool(here.any()):
            kept.append(value)
        else:
            moved[index >= start + size] -= size
        start += size
    return kept or values[:1], moved
