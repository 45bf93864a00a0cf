"""Means, sums and maxima along positions, read as windows with weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.networks.graph.reordering import MIXES
from bnrank.networks.graph.values import Call, Emit, UnreadError, Value

__all__ = ["mean", "numbers", "pool"]

_WINDOW_LIMIT = 2**22


def mean(call: Call, emit: Emit) -> Value:
    """Add the node of a mean, sum or maximum over dimensions."""
    x: Value = call.get(0, "input")
    dims = call.get(1, "dim", call.kwargs.get("axis"))
    keep = bool(call.get(2, "keepdim", False))
    if dims is None:
        raise UnreadError(MIXES)
    dims = sorted(d % x.tensor.ndim for d in (dims if isinstance(dims, list | tuple) else (dims,)))
    if x.batch in dims:
        raise UnreadError(MIXES)
    positions = math.prod(x.tensor.shape[d] for d in dims)
    weight = 1 / positions if call.name == "mean" else 1.0
    batch = x.batch if keep else x.batch - sum(d < x.batch for d in dims)
    own = tuple(d - (d > x.batch) for d in dims)
    op = "maximum" if call.name == "amax" else "average"
    windows = np.full((1, positions), weight) if positions <= _WINDOW_LIMIT else None
    return emit(op, [x], call.result, batch, dims=own, windows=windows)


def pool(call: Call, emit: Emit) -> Value:
    """Add the node of average or max pooling."""
    m: Any = call.module
    x: Value = call.get(0, "input")
    name = (call.name if m is None else type(m).__name__).lower()
    count = next(int(digit) for digit in name if digit in "123")
    if not isinstance(call.result, Tensor):
        raise UnreadError("returns indices as well")
    if x.batch >= x.tensor.ndim - count:
        raise UnreadError(MIXES)
    fields: dict[str, Any] = {}
    if "adaptive" not in name:
        get = (lambda _, key, default=None: getattr(m, key, default)) if m is not None else call.get
        kernel = numbers(get(1, "kernel_size"), count)
        stride = get(2, "stride")
        fields = {"kernel": kernel, "stride": numbers(stride, count) if stride else kernel}
        fields["padding"] = numbers(get(3, "padding", 0), count)
        fields["dilation"] = numbers(get(4, "dilation", 1) if "max" in name else 1, count)
    spatial = tuple(x.tensor.shape[-count:])
    dims = tuple(range(x.tensor.ndim - 1))[-count:]
    windows = _windows(call, spatial, math.prod(call.result.shape[-count:]))
    op = "maximum" if "max" in name else "average"
    return emit(op, [x], call.result, x.batch, dims=dims, windows=windows, **fields)


def _windows(call: Call, spatial: tuple[int, ...], positions: int) -> np.ndarray | None:
    """Return the value of pooling on unit images, one channel each."""
    size = math.prod(spatial)
    if positions * size > _WINDOW_LIMIT:
        return None
    columns = []
    for units in torch.eye(size, dtype=torch.float64).split(max(1, _WINDOW_LIMIT // size)):
        args = (units.reshape(-1, 1, *spatial), *call.args[1:]) if call.args else ()
        kwargs = call.kwargs if call.args else {**call.kwargs, "input": units.reshape(-1, 1, *spatial)}
        columns.append(call.run(*args, **kwargs).flatten(1))
    return torch.cat(columns).T.contiguous().numpy()


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """Return one number per spatial dimension."""
    held = tuple(value) if isinstance(value, list | tuple) else (value,)
    return tuple(int(v) for v in (held * count if len(held) == 1 else held))
