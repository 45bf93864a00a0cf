"""The value of a node from the values of its inputs, by what its fields say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, conv3d, linear, pad, prelu

from bnrank.networks.graph.layers import Node
from bnrank.networks.graph.reordering import gather

__all__ = ["apply"]


def apply(node: Node, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    """Return the value (N, *shape) of a node from the values of its inputs, from its fields alone.

    Parameters
    ----------
    node : Node
        Any but "input" and "outside".
    inputs : sequence of Tensor
        (N, *shape) each.
    parameters : mapping of str to Tensor
        By name, in the inputs' precision.

    Raises
    ------
    ValueError
        If the node is "input" or "outside", or pooling whose windows were too large to build.
    """
    a = inputs[0] if inputs else torch.empty(0)
    weight, bias = parameters.get(node.weight), parameters.get(node.bias)
    if node.op == "linear" and weight is not None:
        return linear(a, weight.T if node.transposed else weight, bias)
    if node.op == "conv" and weight is not None:
        padding: Any = node.padding
        if node.padding_mode == "circular":
            a, padding = pad(a, [p for p in reversed(padding) for _ in range(2)], mode="circular"), 0
        conv: Any = (conv1d, conv2d, conv3d)[len(node.kernel) - 1]
        return conv(a, weight, bias, node.stride, padding, node.dilation, node.groups)
    if node.op == "activation":
        if weight is not None:
            return prelu(a, weight)
        return torch.where(a < 0, node.slope * a, a)
    if node.op == "add":
        return sum((factor * value for factor, value in zip(node.factors, inputs, strict=True)), torch.zeros_like(a))
    if node.op == "diagonal" and weight is not None:
        return a * weight.reshape(node.weight_shape)
    if node.op in ("average", "maximum") and node.windows is not None:
        windows = torch.as_tensor(node.windows, dtype=a.dtype)
        last = tuple(range(a.ndim - len(node.dims), a.ndim))
        moved = a.movedim([d + 1 for d in node.dims], last).flatten(-len(node.dims))
        if node.op == "average":
            return (moved @ windows.T).reshape(-1, *node.shape)
        outside = torch.zeros_like(windows).masked_fill(windows == 0, -math.inf)
        return torch.stack([(moved + row).amax(-1) for row in outside], -1).reshape(-1, *node.shape)
    if node.op == "index" and node.index is not None:
        return gather(inputs, node.index, node.shape)
    raise ValueError(f"node: got {node.name!r} ({node.op}), expected one whose value its fields say")
