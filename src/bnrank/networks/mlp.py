"""Fully connected networks with positively homogeneous activations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from bnrank import _validate

__all__ = ["MLP", "leaky_relu"]


def leaky_relu(z: Tensor, slope: float) -> Tensor:
    """Apply sigma_s(z) = z for z >= 0 and s z otherwise, for any slope s in (-1, 1); s = 0 is ReLU."""
    return torch.relu(z) if slope == 0 else nn.functional.leaky_relu(z, slope)


class MLP(nn.Module):
    r"""Fully connected network of depth L with activation sigma_s between layers and none after the last.

    a_0 = x, a~_l = W_l a_{l-1} + b_l, a_l = sigma_s(a~_l), f(x) = a~_L, for layers l = 1..L
    (theory.md section 0; Jacot2023a section 2).

    Parameters
    ----------
    widths : sequence of int
        n_0 = d_in, n_1, ..., n_L = d_out; at least two, each at least 1.
    slope : float
        s in (-1, 1); 0 is ReLU.
    bias : bool
        Whether the layers have biases.
    init : "he" or float
        "he": weights N(0, 2 / ((1 + s^2) fan_in)); a number: weights N(0, init^2). Biases start at 0 either way.
    seed : int
        Seed of the network's own generator; the global one is not touched.
    dtype : torch.dtype
        Floating-point type of the parameters. The draw is made in float64 and rounded, so that the same seed
        gives the same network in every precision.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 10, 10, 2], seed=0)
    >>> net(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    >>> [tuple(w.shape) for w in net.weights]
    [(10, 3), (10, 10), (2, 10)]
    """

    def __init__(
        self,
        widths: Sequence[int],
        slope: float = 0.0,
        bias: bool = True,
        init: str | float = "he",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not isinstance(widths, Iterable) or isinstance(widths, str):
            raise TypeError(f"widths: got {_validate.describe(widths)}, expected a sequence [d_in, ..., d_out]")
        widths = list(widths)
        if len(widths) < 2:
            raise ValueError(f"widths: got {widths}, expected at least two, [d_in, ..., d_out]")
        self.widths = [_validate.integer(width, f"widths[{i}]") for i, width in enumerate(widths)]
        self.slope = _validate.slope(slope)
        self.bias = bool(bias)
        self.init = _validate_init(init)
        self.seed = _validate.integer(seed, "seed", 0)
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, n_in, n_out, bias=self.bias, dtype=dtype)
            for n_in, n_out in zip(self.widths, self.widths[1:], strict=False)
        )
        self.reset(self.seed)

    @property
    def depth(self) -> int:
        """L, the number of weight layers."""
        return len(self.layers)

    @property
    def weights(self) -> list[nn.Parameter]:
        """W_1, ..., W_L, of shapes (n_l, n_{l-1})."""
        return [cast(nn.Parameter, layer.weight) for layer in self.layers]

    @property
    def biases(self) -> list[nn.Parameter]:
        """b_1, ..., b_L, of shapes (n_l,); an empty list without biases."""
        return [cast(nn.Parameter, layer.bias) for layer in self.layers] if self.bias else []

    def reset(self, seed: int, init: str | float | None = None) -> MLP:
        """Draw all parameters anew, in place, from the network's own generator; returns itself."""
        init = self.init if init is None else _validate_init(init)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.weights:
                std = math.sqrt(2 / ((1 + self.slope**2) * weight.shape[1])) if isinstance(init, str) else init
                draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
                weight.copy_(draw * std)
            for bias in self.biases:
                bias.zero_()
        self.seed, self.init = seed, init
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x), shape (..., d_out), for x of shape (..., d_in)."""
        for layer in self.layers[:-1]:
            x = leaky_relu(layer(x), self.slope)
        return cast(Tensor, self.layers[-1](x))

    def extra_repr(self) -> str:
        """Return the settings shown by ``print(net)``."""
        return f"widths={self.widths}, slope={self.slope:g}, bias={self.bias}"


def _validate_init(init: str | float) -> str | float:
    if isinstance(init, str):
        return _validate.choice(init, "init", ["he"])
    return _validate.number(init, "init", 0.0)
