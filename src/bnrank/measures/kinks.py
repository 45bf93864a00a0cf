"""Samples near a kink of a piecewise linear network, where the Jacobian is one-sided."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bnrank.measures.backward import Forward, Layers
from bnrank.networks.functional import Functional

KINK_RTOL = 1e-12
ROUNDING = 64  # changes of an argument up to this times the machine precision of its terms are rounding


class KinkWarning(UserWarning):
    """Samples lie on or near a kink, where the Jacobian is discontinuous and the returned one is one-sided.

    Examples
    --------
    >>> import torch, warnings, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), torch.eye(2)])                 # x -> relu(x)
    >>> with warnings.catch_warnings(record=True) as issued:
    ...     rank = bnrank.Jacobian(net, torch.zeros(1, 2)).rank()                       # at a kink
    >>> issued[0].category is bnrank.measures.KinkWarning
    True
    """


def describe(near: Tensor, rtol: float, numbers: np.ndarray | None = None) -> str:
    """Return a text on the samples near a kink: their number and the first (by ``numbers``)."""
    rows = near.nonzero().flatten()
    first = int(rows[0]) if numbers is None else int(numbers[int(rows[0])])
    within = f"within {rtol:g} (relative) of" if rtol else "on"
    where = f"{len(rows)} of {len(near)} samples lie {within} a kink, the first is row {first}"
    return f"{where}; the Jacobian there is that of one side, as PyTorch takes it"


def of_layers(layers: Layers, at: Forward, rtol: float) -> Tensor:
    """Return a mask of samples with a preactivation near 0 that depends on x, (n,).

    Near means |z_i| <= rtol (sum_j |w_ij| |a_j| + |b_i|) for z = W a + b. If there are some, a second pass at points
    near the samples determines whether they depend on x.
    """
    moved = torch.zeros(len(at.inputs[0]), dtype=torch.bool, device=at.inputs[0].device)
    near = {}
    for i, (a, z) in enumerate(zip(at.inputs, at.preactivations, strict=False)):
        weight, bias = layers.weights[i], layers.biases[i].abs() if layers.biases else z.new_zeros(1)
        most = torch.linalg.vector_norm(a, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max() + bias.max()
        if float(z.abs().amin()) <= rtol * float(most):  # seldom: the terms are not computed otherwise
            terms = a.abs() @ weight.abs().T + bias
            near[i] = z.abs() <= rtol * terms, ROUNDING * torch.finfo(z.dtype).eps * terms
    if layers.slope == 1 or not any(bool(mask.any()) for mask, _ in near.values()):
        return moved
    there = layers.forward(_nearby(at.inputs[0])).preactivations
    for i, (mask, rounding) in near.items():
        moved |= (mask & ((there[i] - at.preactivations[i]).abs() > rounding)).any(1)
    return moved


def _nearby(x: Tensor) -> Tensor:
    """Return points near the samples, displaced at random."""
    flat, generator = x.flatten(1), torch.Generator().manual_seed(0)
    direction = (0.5 + torch.rand(flat.shape, generator=generator, dtype=torch.float64)).to(x.device, x.dtype)
    largest = flat.abs().amax(1, keepdim=True)
    step = math.sqrt(torch.finfo(x.dtype).eps) * torch.where(largest > 0, largest, 1.0)
    return x + (step * direction).reshape(x.shape)


def _bounds(z: Any, low: Any = None, high: Any = None) -> list[Any]:
    return [z - bound for bound in (low, high) if bound is not None]


# Functions of an operation's arguments that vanish at a kink.
_KINKS: dict[str, Callable[..., list[Any]]] = {
    "relu": lambda z: [z],
    "leaky_relu": lambda z, slope=0.01: [] if slope == 1 else [z],
    "_prelu_kernel": lambda z, weight: [z],
    "threshold": lambda z, threshold, value: [z - threshold],
    "hardtanh": lambda z, low=-1, high=1: _bounds(z, low, high),
    "hardsigmoid": lambda z: _bounds(z, -3, 3),
    "hardswish": lambda z: _bounds(z, -3, 3),
    "clamp": lambda z, min=None, max=None: _bounds(z, min, max),
    "clamp_min": lambda z, min: _bounds(z, min),
    "clamp_max": lambda z, max: _bounds(z, max),
    "abs": lambda z: [z],
    "maximum": lambda a, b: [a - b],
    "minimum": lambda a, b: [a - b],
}


class _Arguments(TorchDispatchMode):
    """Records arguments of operations with a kink, by their number in order of execution: those that are selected."""

    def __init__(self, selects: Callable[[int, Tensor], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        self.selects, self.number, self.kept = selects, 0, dict[int, Tensor]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Inspect the arguments of the operation, then run it."""
        kwargs = kwargs or {}
        of = _KINKS.get(func.overloadpacket.__name__.removesuffix("_")) if func.namespace == "aten" else None
        for z in of(*args, **kwargs) if of is not None else ():
            if isinstance(z, Tensor) and z.is_floating_point() and z.numel():
                if self.selects(self.number, z):
                    self.kept[self.number] = z.clone()
                self.number += 1
        return func(*args, **kwargs)


def of_module(function: Functional, x: Tensor, rtol: float) -> Tensor:
    """Return a mask of samples where the argument of a kink is near it and depends on x, (n,).

    Inspects the operations of one forward pass: relu, leaky_relu, prelu, threshold, hardtanh, hardsigmoid, hardswish,
    clamp, abs, maximum and minimum; near means within ``rtol`` of the largest argument of the same operation on the
    same sample. If an argument is near, a second pass at points near the samples determines whether it depends on x.
    """
    x = x.to(function.device, function.dtype)
    with torch.no_grad(), _Arguments(lambda _, z: bool(_near(_rows(z, len(x)), rtol).any())) as first:
        function(x)
    if not first.kept:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return _moving(function, x, rtol, first.kept)


def _moving(function: Functional, x: Tensor, rtol: float, near: dict[int, Tensor]) -> Tensor:
    """Return a mask of samples where arguments that are near a kink, by their number, depend on x."""
    n = len(x)
    if any(len(_rows(z, n)) != n for z in near.values()):  # not a fixed number of rows per sample
        return torch.cat([of_module(function, x[i : i + 1], rtol) for i in range(n)])
    there = _nearby(x)
    with torch.no_grad(), _Arguments(lambda number, _: number in near) as second:
        function(there)
    moved = torch.zeros(n, dtype=torch.bool, device=x.device)
    for number in near.keys() & second.kept.keys():
        before, after = _rows(near[number], n), _rows(second.kept[number], n)
        if before.shape == after.shape:
            rounding = ROUNDING * torch.finfo(before.dtype).eps * torch.maximum(_sizes(before), _sizes(after))
            moved |= (((after - before).abs() > rounding) & _near(before, rtol)).any(1).to(x.device)
    return moved


def _rows(z: Tensor, n: int) -> Tensor:
    return z.reshape(n if z.ndim and z.shape[0] % n == 0 else 1, -1)


def _sizes(z: Tensor) -> Tensor:
    return torch.where(z.isfinite(), z.abs(), 0.0).amax(1, keepdim=True)


def _near(z: Tensor, rtol: float) -> Tensor:
    return z.abs() <= rtol * _sizes(z)
