"""Modules that draw their parameters from a generator of their own."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Self

import torch
from torch import Tensor, nn

from bnrank._core import validation


class Drawn(nn.Module):
    """A module that draws its parameters from its own generator.

    Attributes
    ----------
    seed : int or None
        Of the last draw; None if the parameters were given.
    init : "he" or float
        "he": weights N(0, g / fan_in) with g = 2 / (1 + s^2) after an activation sigma_s and g = 1 elsewhere,
        diagonals 1; a number: weights and diagonals N(0, init^2). Biases 0 either way.
    """

    seed: int | None = None
    init: str | float = "he"
    _keeps_frozen = True
    _without_effect = ("init", "seed")  # attributes that do not change the function

    def reset(self, seed: int, init: str | float | None = None) -> Self:
        """Redraw all trained parameters, of an `MLP` all, in place, in float64 and then rounded, and return the module.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, or a parameter belongs to a module other than Linear, Conv, `Diagonal` and
            `MLP`.
        """
        seed = validation.seed(seed)
        init = validation.init(self.init if init is None else init)
        generator, reached = torch.Generator().manual_seed(seed), set()
        for layer, reads in _layers(self, 1.0):
            _draw(layer, reads, init, generator, self._keeps_frozen)
            reached |= set(map(id, layer.parameters(recurse=False)))
        unknown = [name for name, p in self.named_parameters() if p.requires_grad and id(p) not in reached]
        if unknown and self._keeps_frozen:
            raise ValueError(
                f"seed: cannot draw {validation.listed(unknown)}; give seed=None, or a function "
                "seed -> nn.Module where networks are trained"
            )
        self.seed, self.init = seed, init
        return self

    def _drawn(self, reads: float) -> tuple[list[tuple[nn.Module, float]], float] | None:
        """Return the parts, each with the slope of the sigma_s that it reads, and the slope after the module.

        None where the children run one after another. ``reads`` is the slope before the module.
        """
        return None


class Diagonal(nn.Module):
    """Elementwise product with a learnable vector, a -> weight * a, shape (..., n)."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return weight * x."""
        return x * self.weight

    def extra_repr(self) -> str:
        """Return the size shown by ``print``."""
        return str(len(self.weight))


_LAYERS = (nn.Linear, Diagonal, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _layers(net: nn.Module, reads: float) -> Generator[tuple[nn.Module, float], None, float]:
    """Yield the layers to draw, each with the slope s of the sigma_s it reads; return the slope after the module."""
    if isinstance(net, nn.ReLU | nn.LeakyReLU):
        return float(getattr(net, "negative_slope", 0.0))
    if isinstance(net, _LAYERS):
        yield net, reads
        return 1.0
    if isinstance(net, Drawn) and (known := net._drawn(reads)):
        for part, slope in known[0]:
            yield from _layers(part, slope)
        return known[1]
    for part in net.children():
        reads = yield from _layers(part, reads)
    return reads


def _draw(layer: nn.Module, reads: float, init: str | float, generator: torch.Generator, trained: bool) -> None:
    """Draw the parameters of a layer, or only its trained ones, whose input comes from sigma_s, s = ``reads``."""
    with torch.no_grad():
        for name, p in layer.named_parameters(recurse=False):
            if trained and not p.requires_grad:
                continue
            if name == "bias":
                p.zero_()
            elif isinstance(layer, Diagonal) and isinstance(init, str):
                p.fill_(1.0)
            else:
                fan_in = p.numel() // p.shape[0]
                std = math.sqrt(2 / ((1 + reads**2) * fan_in)) if isinstance(init, str) else init
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * std)
