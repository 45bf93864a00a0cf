"""Nodes of computation graphs and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, conv3d, linear, pad, prelu


@dataclass(frozen=True)
class Node:
    """An operation and its value.

    Attributes
    ----------
    name : str
        Unique name, e.g. "layers_0".
    op : str
        The operation: "input" (the module's input), "linear" (W a + b along the last dimension), "conv" (convolution,
        channels along the first dimension), "activation" (sigma_s, entrywise), "add" (weighted sum of the inputs),
        "diagonal" (entrywise product with a learnable vector), "average" (mean, sum or average pooling: fixed weights
        along some dimensions, the same for all others), "maximum" (max pooling: positively homogeneous, the same for
        every channel), "index" (rearranged entries of the inputs: flatten, reshape, permute, cat, chunk, pad) or
        "outside" (any other operation, outside the theory).
    inputs : tuple of str
        Names of the input nodes, in order; a node can occur twice.
    shape : tuple of int
        Shape of the value of one sample, without the sample dimension.
    module : str
        Name of the submodule, or "" for a function.
    weight, bias : str
        Names of the parameters as in ``module.named_parameters()``, or "" if there is none. The weight of a "linear" is
        (out, in) unless ``transposed``, and that of a "conv" is (out, in / groups, *kernel). The weight of a "diagonal"
        is reshaped to ``weight_shape`` and broadcasts against the values (N, *shape).
    transposed : bool
        For "linear": whether the weight is (in, out), as in ``a @ W``.
    weight_shape : tuple of int
        For "diagonal": the shape in which the weight broadcasts, e.g. (1, C, 1, 1).
    slope : float
        Slope s of an activation sigma_s, any number: 0 is ReLU, 1 the identity, -1 the absolute value. NaN if it is
        learned (PReLU); then ``weight`` names the parameter, with one entry or one per channel (first dimension).
    factors : tuple of float
        For "add", one factor per input: (1, 1) is a sum, (1, -1) a difference, (2,) twice the input.
    index : ndarray or None
        For "index": for every entry of the flattened value, the index of the equal entry of the inputs (flattened and
        concatenated), or -1 if the entry is 0 for every input.
    stride, padding, dilation, kernel : tuple of int
        For "conv" and pooling with a fixed window, per spatial dimension. Empty for means over dimensions and adaptive
        pooling, which ``windows`` describes.
    padding_mode : str
        For "conv": "zeros" or "circular". Reflection, replication and asymmetric padding are represented by an "index"
        before a "conv" without padding.
    groups : int
        For "conv": number of groups.
    dims : tuple of int
        For "average" and "maximum": the dimensions of one sample's input along which the operation acts. Other
        dimensions, including channels, are unaffected.
    windows : ndarray or None
        For "average" and "maximum": shape (positions out, positions in), with positions along ``dims``, flattened in
        order. The weight of every input position in every output position: for the input a of one sample, the value is
        ``a.movedim(dims, last).flatten(-len(dims)) @ windows.T``, reshaped. For "maximum", 1 if the position is in the
        window. None if it would have more than 2^22 entries.
    held : tuple of str
        For "outside": names of the parameters it uses.
    text : str
        Label in drawings and reasons, e.g. "Linear(3, 5)".
    reason : str
        For "outside": the reason.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    module: str = ""
    weight: str = ""
    bias: str = ""
    slope: float = 1.0
    factors: tuple[float, ...] = ()
    index: np.ndarray | None = field(default=None, repr=False, compare=False)
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    padding_mode: str = "zeros"
    groups: int = 1
    windows: np.ndarray | None = field(default=None, repr=False, compare=False)
    text: str = ""
    reason: str = ""
    transposed: bool = False
    weight_shape: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of entries of the value of one sample."""
        return math.prod(self.shape)

    def weight_places(self) -> np.ndarray:
        """Return, for a "diagonal", the entry of the weight that multiplies every entry of the value, (size,)."""
        entries = np.arange(math.prod(self.weight_shape)).reshape(self.weight_shape)
        return np.broadcast_to(entries, (1, *self.shape)).reshape(-1)

    def bias_places(self, count: int) -> np.ndarray:
        """Return the entry of the bias, of ``count`` entries, that is added to every entry of the value, (size,)."""
        if self.op == "conv":
            return np.repeat(np.arange(count), self.size // count)
        return np.tile(np.arange(count), self.size // count) if self.op == "linear" else self.weight_places()

    def pooled(self, before: Node) -> tuple[np.ndarray, np.ndarray]:
        """Return the output and input entries of an "average" or "maximum", each of shape (others, positions)."""
        taken = np.moveaxis(np.arange(before.size).reshape(before.shape), self.dims, range(-len(self.dims), 0))
        taken = taken.reshape(math.prod(taken.shape[: -len(self.dims)]), -1)
        return np.arange(self.size).reshape(len(taken), -1), taken


def apply(node: Node, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    """Return the value (N, *shape) of a node, computed from its fields and the values of its inputs.

    Parameters
    ----------
    node : Node
        Any node except "input" and "outside".
    inputs : sequence of Tensor
        Values of the input nodes, each of shape (N, *shape).
    parameters : mapping of str to Tensor
        Parameters by name, in the precision of the inputs.

    Raises
    ------
    ValueError
        If the node is "input" or "outside", or pooling whose ``windows`` are None.
    """
    a = inputs[0] if inputs else torch.empty(0)
    weight, bias = parameters.get(node.weight), parameters.get(node.bias)
    if node.op == "linear" and weight is not None:
        return linear(a, weight.T if node.transposed else weight, bias)
    if node.op == "conv" and weight is not None:
        return _convolved(node, a, weight, bias)
    if node.op == "activation":
        return torch.where(a < 0, node.slope * a, a) if weight is None else prelu(a, weight)
    if node.op == "add":
        return sum((factor * value for factor, value in zip(node.factors, inputs, strict=True)), torch.zeros_like(a))
    if node.op == "diagonal" and weight is not None:
        return a * weight.reshape(node.weight_shape)
    if node.op in ("average", "maximum") and node.windows is not None:
        return _pooled(node, a, torch.as_tensor(node.windows, dtype=a.dtype))
    if node.op == "index" and node.index is not None:
        flat = torch.cat([value.reshape(len(a), -1) for value in inputs], 1)  # a value of one number per sample is (N,)
        padded = torch.cat([flat, flat.new_zeros(len(a), 1)], 1)  # -1 is the last
        return padded[:, torch.from_numpy(node.index)].reshape(len(a), *node.shape)
    raise ValueError(f"node: got {node.name!r} ({node.op}), expected one whose value its fields say")


def _convolved(node: Node, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    pads = [p for p in reversed(node.padding) for _ in range(2)]
    a = pad(a, pads, mode="circular" if node.padding_mode == "circular" else "constant")
    conv: Any = (conv1d, conv2d, conv3d)[len(node.kernel) - 1]
    return conv(a, weight, bias, node.stride, 0, node.dilation, node.groups)


def _pooled(node: Node, a: Tensor, windows: Tensor) -> Tensor:
    last = tuple(range(a.ndim - len(node.dims), a.ndim))
    moved = a.movedim([d + 1 for d in node.dims], last).flatten(-len(node.dims))
    if node.op == "average":
        return (moved @ windows.T).reshape(-1, *node.shape)
    outside = torch.zeros_like(windows).masked_fill(windows == 0, -math.inf)
    return torch.stack([(moved + row).amax(-1) for row in outside], -1).reshape(-1, *node.shape)
