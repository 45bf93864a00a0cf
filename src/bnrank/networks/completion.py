"""The second layer of a low-rank factorization whose first layer computes some of the units themselves."""

from typing import Any, cast

import torch
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""The type of the inner layer by the number of dimensions of the images, 0 without images."""


class Completion(nn.Module):
    r"""All units of a layer of rank r from r of them: the others are linear combinations of these.

    z in R^r becomes (z, W z + b) in R^m, reordered. Behind a layer with r units it makes a layer of rank r with r (n +
    m - r) weights, n the number of inputs: fewer than the n m of a full one for every r < min(n, m), and r^2 fewer than
    two dense factors. This is an interpolative decomposition (Cheng, Gimbutas, Martinsson and Rokhlin, "On the
    compression of low rank matrices", 2005).

    Parameters
    ----------
    in_features, out_features : int
        r and m, r < m.
    bias : bool
        Whether the other units have biases.
    dimensions : int
        0 for features in the last dimension, d for the channels of images with d dimensions, (..., channels, n1, ...,
        nd).

    Attributes
    ----------
    others : torch.nn.Module
        The Linear, or the convolution with one tap, that computes the m - r other units.
    order : Tensor
        (m,), the place of every unit in (z, W z + b).

    Raises
    ------
    ValueError
        If the sizes or the dimensions are out of range.

    Examples
    --------
    >>> twice = Completion(1, 2)
    >>> with torch.no_grad():
    ...     _ = twice.others.weight.fill_(2.0), twice.others.bias.zero_()
    >>> twice(torch.tensor([[3.0]])), twice.weight
    (tensor([[3., 6.]], grad_fn=<IndexSelectBackward0>), tensor([[1.],
            [2.]], grad_fn=<IndexSelectBackward0>))
    """

    __jit_unused_properties__ = ["bias", "weight"]  # noqa: RUF012

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dimensions: int = 0) -> None:
        super().__init__()
        if not 0 < in_features < out_features:
            raise ValueError(f"in_features: got {in_features}, expected 0 < in_features < out_features={out_features}")
        if dimensions not in range(4):
            raise ValueError(f"dimensions: got {dimensions}, expected 0 to 3")
        self.in_features, self.out_features, self.dimensions = in_features, out_features, dimensions
        sizes = (in_features, out_features - in_features)
        kind: Any = LAYERS[dimensions]
        self.others: Any = kind(*sizes, *((1,) if dimensions else ()), bias=bias)
        self.order: Tensor
        self.register_buffer("order", torch.arange(out_features))

    @property
    def bias(self) -> Tensor | None:
        """The bias b of the other units, (m - r,), or None."""
        return cast(Tensor | None, self.others.bias)

    @property
    def weight(self) -> Tensor:
        """The matrix from z to all units, (m, r): rows of the identity, and W."""
        weight = self.others.weight.flatten(1)
        known = torch.eye(self.in_features, dtype=weight.dtype, device=weight.device)
        return torch.cat([known, weight]).index_select(0, self.order)

    def completed(self, known: Tensor | None) -> Tensor:
        """Return the bias of the layer before and this one together, (m,), from that of the first, (r,) or None."""
        weight = self.others.weight.flatten(1)
        first = weight.new_zeros(self.in_features) if known is None else known
        rest = weight @ first if self.bias is None else weight @ first + self.bias
        return torch.cat([first, rest]).index_select(0, self.order)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.in_features}, {self.out_features}, dimensions={self.dimensions}"

    def forward(self, z: Tensor) -> Tensor:
        """Return all units, (..., m) or (..., m, n1, ..., nd), from r of them."""
        axis = -1 - self.dimensions
        return torch.cat([z, self.others(z)], axis).index_select(axis, self.order)
