"""Sequential modules with one seed for all parameters, and residual networks, which are such stacks."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.drawn import Diagonal, Drawn
from bnrank.networks.mlp import leaky_relu, linear, size


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
            if not isinstance(part, nn.Module) or not isinstance(name, str):
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


def linear_tail(width: int, widths: Sequence[int], d_out: int, bias: bool, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Return linear layers of these widths after a width, ``tail1``, ..., and the ``output``, not yet drawn."""
    sizes = list(itertools.pairwise([width, *widths, d_out]))
    names = [*(f"tail{i}" for i in range(1, len(sizes))), "output"]
    return {name: linear(*size, bias, dtype) for name, size in zip(names, sizes, strict=True)}


def activation(slope: float) -> nn.Module:
    """Return sigma_s as a module."""
    return nn.Identity() if slope == 1 else nn.ReLU() if slope == 0 else nn.LeakyReLU(slope)


class Block(Drawn):
    """A residual block a -> Z sigma_s(Y a) + D a (LeJegelka2022, Definition 5); `inner` is Y, `outer` Z, `skip` D.

    Use :class:`IdentityBlock`, :class:`DiagonalBlock` or :class:`FreeBlock`, alone, in ``nn.Sequential`` or in
    :class:`Stack`.

    Parameters
    ----------
    width : int
        Entries of a.
    hidden : int
        Rows of Y.
    slope : float
        s in (-1, 1), or 1 for a linear block.
    after : float, optional
        Slope of an activation after the addition; none without it.
    bias : bool
        Whether Y and Z have biases; D has none.
    init, seed, dtype
        As in :class:`Drawn`, and the floating-point type.
    out : int, optional
        Rows of Z and D, where D is free; ``width`` without it.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.
    """

    kind = ""

    def __init__(
        self,
        width: int,
        hidden: int,
        slope: float = 0.0,
        after: float | None = None,
        bias: bool = False,
        init: str | float = "he",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        *,
        out: int | None = None,
    ) -> None:
        super().__init__()
        self.width, self.hidden = validation.integer(width, "width"), validation.integer(hidden, "hidden")
        self.out = self.width if out is None else validation.integer(out, "out")
        if self.out != self.width and self.kind != "free":
            raise ValueError(f"out: got {out} for width {width}, but only a FreeBlock may give another width")
        self.slope = validation.slope(slope, linear=True)
        self.after = 1.0 if after is None else validation.slope(after, "after", linear=True)
        bias, dtype = validation.flag(bias, "bias"), validation.dtype(dtype)
        count = self.width * self.hidden + self.hidden * self.out + self.width * self.out * (self.kind == "free")
        validation.largest_fits(count, {"width": self.width, "hidden": self.hidden, "out": self.out}, dtype.itemsize)
        self.inner = linear(self.width, self.hidden, bias, dtype)
        self.outer = linear(self.hidden, self.out, bias, dtype)
        self.skip: nn.Module = nn.Identity()
        if self.kind == "diagonal":
            self.skip = Diagonal(self.width, dtype)
        elif self.kind == "free":
            self.skip = linear(self.width, self.out, False, dtype)
        self.reset(seed, init)

    def _drawn(self, reads: float) -> tuple[list[tuple[nn.Module, float]], float]:
        """Return Y, Z and D, with the slope of the sigma_s that each reads, and the slope after the block."""
        return [(self.inner, reads), (self.outer, self.slope), (self.skip, reads)], self.after

    def forward(self, a: Tensor) -> Tensor:
        """Return Z sigma(Y a) + D a, shape (..., out), for a of shape (..., width)."""
        return leaky_relu(self.outer(leaky_relu(self.inner(a), self.slope)) + self.skip(a), self.after)

    def extra_repr(self) -> str:
        """Return the settings shown by ``print``."""
        after = "" if self.after == 1 else f", after={self.after:g}"
        return f"{self.width}, {self.hidden}, slope={self.slope:g}{after}"


class IdentityBlock(Block):
    """a -> Z sigma_s(Y a) + a; arguments as in :class:`Block`.

    Examples
    --------
    >>> import torch, bnrank
    >>> block = bnrank.networks.IdentityBlock(width=4, hidden=6)
    >>> block(torch.zeros(5, 4)).shape, sum(p.numel() for p in block.parameters())
    (torch.Size([5, 4]), 48)
    """

    kind = "identity"


class DiagonalBlock(Block):
    """a -> Z sigma_s(Y a) + diag(d) a with d learnable; arguments as in :class:`Block`.

    Examples
    --------
    >>> import torch, bnrank
    >>> block = bnrank.networks.DiagonalBlock(width=4, hidden=6)
    >>> block(torch.zeros(5, 4)).shape, block.skip.weight.shape
    (torch.Size([5, 4]), torch.Size([4]))
    """

    kind = "diagonal"


class FreeBlock(Block):
    """a -> Z sigma_s(Y a) + D a with D a learnable matrix; arguments as in :class:`Block`.

    Examples
    --------
    >>> import torch
    >>> block = FreeBlock(4, 6, slope=1, out=3)
    >>> y, z, d = block.inner.weight, block.outer.weight, block.skip.weight
    >>> a = torch.ones(5, 4)
    >>> torch.allclose(block(a), a @ (z @ y + d).T, atol=1e-5)
    True
    """

    kind = "free"


class ResNet(Stack):
    r"""An input layer, residual blocks, perhaps linear layers, and an output layer.

    f(x) = W_out V_k ... V_1 B_m(... B_1(W_in x)), B_l(a) = Z_l sigma_s(Y_l a) + D_l a (LeJegelka2022, Definition 5),
    parts ``input``, ``block1``, ..., ``tail1``, ..., ``output``. Use :class:`ResNetIdentity`, :class:`ResNetDiagonal`
    or :class:`ResNetFree`.

    Parameters
    ----------
    d_in, d_out : int
        Numbers of inputs and outputs.
    width : int
        Of the values between the blocks.
    hidden : int
        Of the values inside the blocks.
    blocks : int
        Number of blocks.
    slope : float
        s in (-1, 1), or 1 for linear blocks.
    tail : sequence of int
        Widths of linear layers after the blocks, without activations between them.
    after : float, optional
        Slope of an activation after every addition; none without it.
    bias : bool
        Whether all linear layers but the D_l have biases.
    init, seed, dtype
        As in :class:`Drawn`, and the floating-point type. With "he" every block with a free or identity skip about
        doubles the squared norm of what passes.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.ResNetIdentity(5, 1, width=8, hidden=6, blocks=2, tail=[4])
    >>> net(torch.ones(3, 5)).shape
    torch.Size([3, 1])
    >>> [name for name, _ in net.named_parameters()][:4]
    ['input.weight', 'block1.inner.weight', 'block1.outer.weight', 'block2.inner.weight']
    """

    block: type[Block]

    def __init__(
        self,
        d_in: int,
        d_out: int = 1,
        width: int = 20,
        hidden: int = 20,
        blocks: int = 2,
        slope: float = 0.0,
        tail: Sequence[int] = (),
        after: float | None = None,
        bias: bool = False,
        init: str | float = "he",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        sizes = {"d_in": d_in, "d_out": d_out, "width": width, "hidden": hidden, "blocks": blocks}
        sizes = {name: validation.integer(value, name) for name, value in sizes.items()}
        tail, bias, dtype = validation.integers(tail, "tail"), validation.flag(bias, "bias"), validation.dtype(dtype)
        each = 2 * sizes["width"] * sizes["hidden"] + sizes["width"] ** 2 * (self.block.kind == "free") + 1024
        ends = size([sizes["d_in"], sizes["width"]]) + size([sizes["width"], *tail, sizes["d_out"]])
        validation.largest_fits(each * sizes["blocks"] + ends, {**sizes, "tail": max(tail, default=0)}, dtype.itemsize)
        parts: dict[str, nn.Module] = {"input": linear(d_in, width, bias, dtype)}
        for i in range(blocks):
            parts[f"block{i + 1}"] = self.block(width, hidden, slope, after, bias, dtype=dtype)
        parts |= linear_tail(width, tail, d_out, bias, dtype)
        super().__init__(parts, init=init, seed=validation.seed(seed))
        self.settings = sizes | {"slope": float(slope), "tail": tail, "after": after, "bias": bias}


class ResNetIdentity(ResNet):
    """A residual network with fixed identity skips; see :class:`ResNet`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.ResNetIdentity(5, 1, width=8, hidden=6, blocks=2)
    >>> net(torch.ones(3, 5)).shape, [name for name, part in net.named_children()]
    (torch.Size([3, 1]), ['input', 'block1', 'block2', 'output'])
    """

    block = IdentityBlock


class ResNetDiagonal(ResNet):
    """A residual network with learnable diagonal skips; see :class:`ResNet`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.ResNetDiagonal(5, 1, width=8, hidden=6, blocks=2)
    >>> net(torch.ones(3, 5)).shape, net.block1.skip.weight.shape
    (torch.Size([3, 1]), torch.Size([8]))
    """

    block = DiagonalBlock


class ResNetFree(ResNet):
    """A residual network with learnable free matrices as skips; see :class:`ResNet`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.ResNetFree(5, 1, width=8, hidden=6, blocks=2)
    >>> net(torch.ones(3, 5)).shape, net.block1.skip.weight.shape
    (torch.Size([3, 1]), torch.Size([8, 8]))
    """

    block = FreeBlock
