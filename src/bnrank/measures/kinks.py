"""Samples near a kink of a piecewise linear network, where the Jacobian is one-sided."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bnrank.networks.functional import Functional

ROUNDING = 1e-12  # relative to a derivative's terms; smaller values count as zero


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


@dataclass
class Watch:
    """A search for samples near a kink.

    Parameters
    ----------
    rtol : float
        The tolerance.

    Attributes
    ----------
    masks : list of Tensor
        Masks of samples near a kink, (n,), block by block.
    """

    rtol: float
    masks: list[Tensor] = field(default_factory=list)

    @property
    def found(self) -> Tensor:
        """Mask of samples near a kink, (N,)."""
        return torch.cat(self.masks)


def describe(near: Tensor, rtol: float, numbers: np.ndarray | None = None) -> str:
    """Return a text on the samples near a kink: their number and the first (by ``numbers``); empty if there is none."""
    rows = near.nonzero().flatten()
    if not len(rows):
        return ""
    first = int(rows[0]) if numbers is None else int(numbers[int(rows[0])])
    within = f"within {rtol:g} (relative) of" if rtol else "on"
    where = f"{len(rows)} of {len(near)} samples lie {within} a kink, the first is row {first}"
    return f"{where}; the Jacobian there is that of one side, as PyTorch takes it"


# MLPs ------------------------------------------------------------------------------------------------------------


def near_zero(z: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, rtol: float) -> Tensor | None:
    """Return a mask of |z_i| <= rtol (sum_j |w_ij| |a_j| + |b_i|), z = W a + b, (n, n_l); None if it is empty."""
    most = float(torch.linalg.vector_norm(a, dim=1).max() * torch.linalg.vector_norm(weight, dim=1).max())
    most += 0.0 if bias is None else float(bias.abs().max())
    if float(z.abs().amin()) > rtol * most:  # the usual case, detected without computing the terms
        return None
    terms = a.abs() @ weight.abs().T + (0.0 if bias is None else bias.abs())
    near = z.abs() <= rtol * terms
    return near if bool(near.any()) else None


def depending(
    weights: list[Tensor], slopes: list[Tensor], candidates: list[tuple[int, Tensor]], n: int, tangent: Tensor | None
) -> Tensor:
    """Return which samples have a preactivation near 0 that depends on x (along the tangents, if given), (n,).

    The Jacobian of a random combination of the preactivations near 0 vanishes only if all of their Jacobians do.
    """
    found = torch.zeros(n, dtype=torch.bool, device=weights[0].device)
    rounding = max(ROUNDING, 64 * torch.finfo(weights[0].dtype).eps)
    generator = torch.Generator().manual_seed(0)
    for layer, near in candidates:
        rows = (near.any(1) & ~found).nonzero().flatten()
        if not len(rows):
            continue
        draw = 0.5 + torch.rand(near.shape[1], generator=generator, dtype=torch.float64)
        row = (near[rows] * draw.to(weights[0].device)).to(weights[0].dtype)
        terms = row
        for k in range(layer, -1, -1):
            row, terms = row @ weights[k], terms @ weights[k].abs()
            if k:
                row, terms = row * slopes[k - 1][rows], terms * slopes[k - 1][rows].abs()
        if tangent is not None:
            basis = tangent[rows] if tangent.ndim == 3 else tangent
            row = (row[:, None, :] @ basis)[:, 0]
            terms = (terms[:, None, :] @ basis.abs())[:, 0]
        found[rows] = (row.abs() > rounding * terms).any(1)
    return found


# Any module ------------------------------------------------------------------------------------------------------


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


class _Recorder(TorchDispatchMode):
    """Records the arguments of kinks, numbered in order of execution, selected by a function of number and argument."""

    def __init__(self, selects: Callable[[int, Tensor], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        self.selects, self.number = selects, 0
        self.kept: dict[int, Tensor] = {}

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


def of_module(function: Functional, x: Tensor, rtol: float, tangent: Tensor | None = None) -> Tensor:
    """Return a mask of samples where the argument of a kink is near it and depends on x (along given tangents), (n,).

    Inspects the operations of one forward pass: relu, leaky_relu, prelu, threshold, hardtanh, hardsigmoid, hardswish,
    clamp, abs, maximum and minimum; near means within ``rtol`` of the largest argument of the same operation on the
    same sample. If an argument is near, a second pass at points near the samples determines whether it depends on x.
    """
    n = len(x)

    def rows(z: Tensor) -> Tensor:
        return z.reshape(n if z.ndim and z.shape[0] % n == 0 else 1, -1)

    def sizes(z: Tensor) -> Tensor:
        return torch.where(z.isfinite(), z.abs(), 0.0).amax(1, keepdim=True)

    def near(z: Tensor) -> Tensor:
        return z.abs() <= rtol * sizes(z)

    first = _Recorder(lambda _, z: bool(near(rows(z)).any()))
    with torch.no_grad(), first:
        function(x)
    if any(len(rows(z)) != n for z in first.kept.values()):  # not a fixed number of rows per sample
        parts = tangent if tangent is not None and tangent.ndim == 3 else [tangent] * n
        return torch.cat([of_module(function, x[i : i + 1], rtol, parts[i]) for i in range(n)])
    moved = torch.zeros(n, dtype=torch.bool, device=x.device)
    if not first.kept:
        return moved
    generator = torch.Generator().manual_seed(0)
    m = x[0].numel() if tangent is None else tangent.shape[-1]
    direction = (0.5 + torch.rand(n, m, generator=generator, dtype=torch.float64)).to(x.device, x.dtype)
    if tangent is not None:
        direction = (tangent @ direction[:, :, None])[..., 0]
    largest = x.flatten(1).abs().amax(1, keepdim=True)
    step = math.sqrt(torch.finfo(function.dtype).eps) * torch.where(largest > 0, largest, 1.0) * direction
    second = _Recorder(lambda number, _: number in first.kept)
    with torch.no_grad(), second:
        function(x + step.reshape(x.shape))
    for number in first.kept.keys() & second.kept.keys():
        before, after = rows(first.kept[number]), rows(second.kept[number])
        if before.shape == after.shape:
            rounding = 64 * torch.finfo(before.dtype).eps * torch.maximum(sizes(before), sizes(after))
            moved |= (((after - before).abs() > rounding) & near(before)).any(1).to(moved.device)
    return moved
