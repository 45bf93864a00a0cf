"""Residual networks whose skip is the identity, a learnable diagonal or a free matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.mlp import leaky_relu
from bnrank.networks.stack import Diagonal, Draw, Drawn, Stack, linear, linear_tail


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
        self.inner = linear(self.width, self.hidden, bool(bias), dtype)
        self.outer = linear(self.hidden, self.out, bool(bias), dtype)
        self.skip: nn.Module = nn.Identity()
        if self.kind == "diagonal":
            self.skip = Diagonal(self.width, dtype)
        elif self.kind == "free":
            self.skip = linear(self.width, self.out, False, dtype)
        self.init = validation.init(init)
        self.reset(seed)

    def forward(self, a: Tensor) -> Tensor:
        """Return Z sigma(Y a) + D a, shape (..., out), for a of shape (..., width)."""
        return leaky_relu(self.outer(leaky_relu(self.inner(a), self.slope)) + self.skip(a), self.after)

    def extra_repr(self) -> str:
        """Return the settings shown by ``print``."""
        after = "" if self.after == 1 else f", after={self.after:g}"
        return f"{self.width}, {self.hidden}, slope={self.slope:g}{after}"

    def _draw(self, draw: Draw, reads: float) -> float:
        draw(self.inner, reads)
        draw(self.outer, self.slope)
        draw(self.skip, reads)
        return self.after


class IdentityBlock(Block):
    """a -> Z sigma_s(Y a) + a; arguments as in :class:`Block`."""

    kind = "identity"


class DiagonalBlock(Block):
    """a -> Z sigma_s(Y a) + diag(d) a with d learnable; arguments as in :class:`Block`."""

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
        tail, bias = validation.integers(tail, "tail"), bool(bias)
        parts: dict[str, nn.Module] = {"input": linear(d_in, width, bias, dtype)}
        for i in range(blocks):
            parts[f"block{i + 1}"] = self.block(width, hidden, slope, after, bias, dtype=dtype)
        parts |= linear_tail(width, tail, d_out, bias, dtype)
        super().__init__(parts, init=init, seed=validation.integer(seed, "seed", 0))
        self.settings = sizes | {"slope": float(slope), "tail": tail, "after": after, "bias": bias}


class ResNetIdentity(ResNet):
    """A residual network with fixed identity skips; see :class:`ResNet`."""

    block = IdentityBlock


class ResNetDiagonal(ResNet):
    """A residual network with learnable diagonal skips; see :class:`ResNet`."""

    block = DiagonalBlock


class ResNetFree(ResNet):
    """A residual network with learnable free matrices as skips; see :class:`ResNet`."""

    block = FreeBlock
