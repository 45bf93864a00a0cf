"""Sequential modules with one seed for all parameters."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.mlp import MLP


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

    def reset(self, seed: int, init: str | float | None = None) -> Self:
        """Redraw all trained parameters in place, in float64 and then rounded, and return the module.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, or a parameter belongs to a module other than Linear, Conv, `Diagonal` and
            `MLP`.
        """
        seed = validation.integer(seed, "seed", 0)
        init = validation.init(self.init if init is None else init)
        draw = Draw(torch.Generator().manual_seed(seed), init)
        draw(self, 1.0)
        unknown = [name for name, p in self.named_parameters() if p.requires_grad and id(p) not in draw.reached]
        if unknown:
            raise ValueError(
                f"seed: cannot draw {', '.join(unknown[:5])}; give seed=None, or a function "
                "seed -> nn.Module where networks are trained"
            )
        self.seed, self.init = seed, init
        return self

    def _draw(self, draw: Draw, reads: float) -> float:
        """Draw the parts in order."""
        for part in self.children():
            reads = draw(part, reads)
        return reads


class Diagonal(nn.Module):
    """Elementwise product with a learnable vector, a -> weight * a, shape (..., n)."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(validation.integer(n, "n"), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return weight * x."""
        return x * self.weight

    def extra_repr(self) -> str:
        """Return the size shown by ``print``."""
        return str(len(self.weight))


_LAYERS = (nn.Linear, Diagonal, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Stack(nn.Sequential, Drawn):
    """A ``nn.Sequential`` with one seed for all parameters.

    It combines networks of which only the last part is linear (T48): any trunk, then linear
    convolutions, linear residual blocks (slope 1) and linear layers.

    Parameters
    ----------
    *parts : torch.nn.Module
        In order; or one mapping from names to modules. Their parameters are redrawn.
    init : "he" or float
        As in :class:`Drawn`.
    seed : int or None
        Seed of the draw; None keeps the parameters.

    Raises
    ------
    TypeError, ValueError
        If a part is not a module, or has parameters that cannot be drawn (see :meth:`reset`); give ``seed=None`` then.

    Examples
    --------
    A ReLU trunk, a linear residual block with a free skip, two linear layers to a scalar:

    >>> import torch
    >>> from bnrank.networks import FreeBlock
    >>> net = Stack(nn.Linear(5, 8), nn.ReLU(), FreeBlock(8, 6, slope=1), nn.Linear(8, 4), nn.Linear(4, 1), seed=0)
    >>> net(torch.ones(3, 5)).shape
    torch.Size([3, 1])
    >>> [name for name, _ in net.named_parameters() if "weight" in name]
    ['0.weight', '2.inner.weight', '2.outer.weight', '2.skip.weight', '3.weight', '4.weight']
    """

    settings: Mapping[str, Any] = MappingProxyType({})
    """The arguments of a network of a derived class."""

    def __init__(self, *parts: Any, init: str | float = "he", seed: int | None = 0) -> None:
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            named = dict(parts[0])
        else:
            named = {str(i): part for i, part in enumerate(parts)}
        for name, part in named.items():
            if not isinstance(part, nn.Module):
                raise TypeError(f"parts: got {validation.describe(part)} as {name}, expected torch.nn.Modules")
        super().__init__(OrderedDict(named))
        self.init = validation.init(init)
        if seed is not None:
            self.reset(seed)

    def __getitem__(self, index: Any) -> Any:
        """Return a part, or for a slice a ``nn.Sequential`` of the parts, without a new draw."""
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)

    def extra_repr(self) -> str:
        """Return the settings shown by ``print``."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def linear(n_in: int, n_out: int, bias: bool, dtype: torch.dtype) -> nn.Linear:
    """Return a Linear with parameters not yet drawn."""
    return nn.utils.skip_init(nn.Linear, n_in, n_out, bias=bias, dtype=dtype)


def linear_tail(width: int, widths: Sequence[int], d_out: int, bias: bool, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return linear layers of these widths after a width, ``tail1``, ..., and the ``output``, not yet drawn."""
    sizes = list(itertools.pairwise([width, *widths, d_out]))
    names = [*(f"tail{i}" for i in range(1, len(sizes))), "output"]
    return {name: linear(*size, bias, dtype) for name, size in zip(names, sizes, strict=True)}


def activation(slope: float) -> nn.Module:
    """Return sigma_s as a module."""
    return nn.Identity() if slope == 1 else nn.ReLU() if slope == 0 else nn.LeakyReLU(slope)


class Draw:
    """A draw: generator, scale, and the parameters reached so far.

    Parameters
    ----------
    generator : torch.Generator
        The source of random numbers.
    init : "he" or float
        As in :class:`Drawn`.
    """

    def __init__(self, generator: torch.Generator, init: str | float) -> None:
        self.generator, self.init = generator, init
        self.reached: set[int] = set()

    def __call__(self, net: nn.Module, reads: float) -> float:
        """Draw a module whose input comes from sigma_s, s = ``reads``; return the slope before the next module."""
        if isinstance(net, nn.ReLU | nn.LeakyReLU):
            return float(getattr(net, "negative_slope", 0.0))
        if isinstance(net, _LAYERS):
            self._layer(net, reads)
            return 1.0
        if isinstance(net, MLP):
            for layer in net.layers:
                self(layer, net.slope)
            return 1.0
        if isinstance(net, Drawn):
            return net._draw(self, reads)
        for part in net.children():
            reads = self(part, reads)
        return reads

    def _layer(self, layer: nn.Module, reads: float) -> None:
        with torch.no_grad():
            for name, p in layer.named_parameters(recurse=False):
                self.reached.add(id(p))
                if not p.requires_grad:
                    continue
                if name == "bias":
                    p.zero_()
                elif isinstance(layer, Diagonal) and isinstance(self.init, str):
                    p.fill_(1.0)
                else:
                    gain = 2 / (1 + reads**2) * p.shape[0] / p.numel()
                    std = math.sqrt(gain) if isinstance(self.init, str) else self.init
                    p.copy_(torch.randn(p.shape, generator=self.generator, dtype=torch.float64) * std)
