"""Fully connected networks with positively homogeneous activations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.drawn import Drawn


def leaky_relu(z: Tensor, slope: float) -> Tensor:
    """Return sigma_s(z) = z for z >= 0 and s z otherwise; s = 0 is ReLU, s = 1 the identity."""
    if slope == 1:
        return z
    return torch.relu(z) if slope == 0 else nn.functional.leaky_relu(z, slope)


class MLP(Drawn):
    r"""Fully connected network of depth L with activation sigma_s between layers and none after the last.

    a_0 = x, a~_l = W_l a_{l-1} + b_l, a_l = sigma_s(a~_l), f(x) = a~_L, for layers l = 1..L
    (Jacot2023a section 2).

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
    seed : int or None
        Seed of the network's own generator; the global one is not touched. None: all parameters are 0.
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

    _keeps_frozen = False

    def __init__(
        self,
        widths: Sequence[int],
        slope: float = 0.0,
        bias: bool = True,
        init: str | float = "he",
        seed: int | None = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.widths = validation.integers(widths, "widths")
        validation.expect(len(self.widths) >= 2, "widths", f"{self.widths}", "at least two, [d_in, ..., d_out]")
        self.slope = validation.slope(slope, linear=isinstance(self, LinearNetwork))
        self.bias = validation.flag(bias, "bias")
        self.init, dtype = validation.init(init), validation.dtype(dtype)
        validation.allocation(size(self.widths), "widths", self.widths, dtype.itemsize)
        self.layers = nn.ModuleList(
            linear(n_in, n_out, self.bias, dtype) for n_in, n_out in zip(self.widths, self.widths[1:], strict=False)
        )
        if seed is not None:
            self.reset(seed)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the function: widths, slope and whether there are biases."""
        return {"widths": self.widths, "slope": self.slope, "bias": self.bias}

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

    def _drawn(self, reads: float) -> tuple[list[tuple[nn.Module, float]], float]:
        """Return the layers, drawn as if all read sigma_s, and the slope 1 after the last."""
        return [(layer, self.slope) for layer in self.layers], 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x), shape (..., d_out), for x of shape (..., d_in)."""
        for layer in self.layers[:-1]:
            x = leaky_relu(layer(x), self.slope)
        return cast(Tensor, self.layers[-1](x))

    def extra_repr(self) -> str:
        """Return the settings shown by ``print(net)``."""
        return f"widths={self.widths}, slope={self.slope:g}, bias={self.bias}"


class LinearNetwork(MLP):
    """Fully connected network without activations, f(x) = W_L ... W_1 x (+ biases): the slope s = 1.

    Parameters
    ----------
    widths, bias, init, seed, dtype
        As in :class:`MLP`; without biases by default. "he" weights are N(0, 1 / fan_in).

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch
    >>> net = LinearNetwork([3, 4, 2])
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(net(x), x @ (net.weights[1] @ net.weights[0]).T, atol=1e-6)
    True
    """

    def __init__(
        self,
        widths: Sequence[int],
        bias: bool = False,
        init: str | float = "he",
        seed: int | None = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(widths, 1.0, bias, init, seed, dtype)


class _Undrawn(nn.Linear):
    def reset_parameters(self) -> None:
        """Set the parameters to 0."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()


def linear(n_in: int, n_out: int, bias: bool, dtype: torch.dtype) -> nn.Linear:
    """Return a Linear with parameters 0, in a tenth of the time of ``torch.nn.utils.skip_init``."""
    layer = _Undrawn(n_in, n_out, bias, "cpu", dtype)
    layer.__class__ = nn.Linear  # type: ignore[assignment]
    return layer


def size(widths: Sequence[int]) -> int:
    """Return an upper bound on the numbers that a network holds: weights, biases, and what a layer itself takes."""
    return sum(n_in * n_out + n_out + 256 for n_in, n_out in itertools.pairwise(widths))


def make(widths: Sequence[int], slope: float = 0.0, bias: bool = True, **options: Any) -> MLP:
    """Return an :class:`MLP`, or a :class:`LinearNetwork` where the slope is 1."""
    if isinstance(slope, int | float) and slope == 1:
        return LinearNetwork(widths, bias, **options)
    return MLP(widths, slope, bias, **options)


def from_layers(weights: Sequence[Tensor], biases: Sequence[Tensor] = (), slope: float = 0.0) -> MLP:
    """Return the network with the given layers, in float64, the parameters copied.

    Parameters
    ----------
    weights : sequence of Tensor
        W_1, ..., W_L, (n_l, n_{l-1}).
    biases : sequence of Tensor
        b_1, ..., b_L, (n_l,), or none at all.
    slope : float
        s in (-1, 1), or 1 for a network without activations.

    Raises
    ------
    TypeError, ValueError
        If they are not numbers, or the shapes do not fit together.

    Examples
    --------
    >>> import torch
    >>> from_layers([torch.eye(2), torch.ones(1, 2)])(torch.tensor([[3.0, -1.0]], dtype=torch.float64)).item()
    3.0
    """
    weights = [validation.numbers(w, f"weights[{i}]") for i, w in enumerate(validation.sequence(weights, "weights"))]
    biases = [validation.numbers(b, f"biases[{i}]") for i, b in enumerate(validation.sequence(biases, "biases"))]
    shapes = [tuple(w.shape) for w in weights]
    matrices = bool(shapes) and all(len(shape) == 2 for shape in shapes)
    validation.expect(matrices, "weights", f"shapes {shapes}", "at least one (out, in)")
    fits = all(before[0] == after[1] for before, after in itertools.pairwise(shapes))
    validation.expect(fits, "weights", f"shapes {shapes}", "each to take what the one before gives")
    widths, rows = [shapes[0][1], *(shape[0] for shape in shapes)], [tuple(b.shape) for b in biases]
    validation.expect(rows in ([], [(n,) for n in widths[1:]]), "biases", f"shapes {rows}", "one per layer, (n_l,)")
    net = make(widths, slope, bool(len(biases)), seed=None, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip([*net.weights, *net.biases], [*weights, *biases], strict=True):
            parameter.copy_(torch.as_tensor(value))
    return net
