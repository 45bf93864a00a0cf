"""Bounds on a whole domain: Lipschitz constants of parts in sequence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.chain import CONVOLUTIONS, pads_of, reach_of
from bnrank.measures.convolution import conv_singular_values
from bnrank.networks.functional import hooked

_NON_EXPANSIVE = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Flatten, nn.Unflatten)
_SLOPES = {**dict.fromkeys(_NON_EXPANSIVE, 1.0), nn.Sigmoid: 0.25, nn.GELU: 1.13, nn.SiLU: 1.1}  # largest slopes


@dataclass(frozen=True)
class Bound:
    """An upper bound on the difference of two networks at any input near the samples.

    ||f^(x) - f(x)|| <= max_i ||f^(x_i) - f(x_i)|| + (Lip f + Lip f^) r for every x within r of a sample x_i, in
    Euclidean norms. The Lipschitz constants are products of operator norms: true everywhere, and usually far from
    tight.

    Attributes
    ----------
    lipschitz_before, lipschitz_after : float
        Of f and f^.
    at_samples : float
        max_i ||f^(x_i) - f(x_i)|| over the samples.
    size : float
        Root mean square of ||f(x_i)||.

    Examples
    --------
    >>> print(Bound(lipschitz_before=3.0, lipschitz_after=1.0, at_samples=0.5, size=10.0))
    bound at distance r from the samples: 5 % + 40 % r of the outputs (Lipschitz constants)
    """

    lipschitz_before: float
    lipschitz_after: float
    at_samples: float
    size: float

    def within(self, distance: float) -> float:
        """Return the bound at all inputs no farther than ``distance`` from a sample, relative to ``size``.

        Where ``size`` is 0 (all outputs are 0 on the samples), it is 0 if nothing can change, and else infinite.
        """
        return self._relative(self.at_samples + self._lipschitz * distance)

    @property
    def per_distance(self) -> float:
        """Increase of the bound per unit of distance, relative to ``size``; where that is 0, as in ``within``."""
        return self._relative(self._lipschitz)

    @property
    def _lipschitz(self) -> float:
        return self.lipschitz_before + self.lipschitz_after

    def _relative(self, value: float) -> float:
        if self.size > 0:
            return value / self.size
        return 0.0 if value == 0 else math.inf

    def __str__(self) -> str:
        where = "bound at distance r from the samples:"
        if self.size > 0:
            at, more = (f"{100 * value:.3g} %" for value in (self.within(0.0), self.per_distance))
            return f"{where} {at} + {more} r of the outputs (Lipschitz constants)"
        total = f"{self.at_samples:.3g} + {self._lipschitz:.3g} r"
        return f"{where} {total}, absolute, as the outputs are 0 on the samples (Lipschitz constants)"


def lipschitz(parts: Sequence[nn.Module], x: Tensor) -> float | None:
    """Return a Lipschitz constant of parts in sequence, the product of theirs; None where one is not known.

    Linear: the operator norm, of several in a row that of their product. A convolution: its largest singular value on a
    torus that its padded image fits on, which is no less (T28). Activations: their largest slope. Pooling windows must
    not overlap.

    Parameters
    ----------
    parts : sequence of torch.nn.Module
        In order.
    x : Tensor
        Their input for at least one sample, (N, ...).

    Examples
    --------
    >>> shrink = nn.Linear(2, 2)
    >>> _ = shrink.weight.data.copy_(torch.eye(2) / 2)
    >>> lipschitz([shrink, nn.ReLU(), shrink], torch.ones(1, 2))
    0.25
    """
    total = 1.0
    product: Tensor | None = None  # of Linear in a row
    value = x[:1]
    with torch.no_grad():
        for part in parts:
            if type(part) is nn.Linear and not hooked(part):
                weight = part.weight.detach().double()
                product = weight if product is None else weight @ product
            else:
                norm = _norm(part, value)
                if norm is None:
                    return None
                total *= norm * _operator_norm(product)
                product = None
            value = part(value)
    return total * _operator_norm(product)


def _operator_norm(matrix: Tensor | None) -> float:
    return 1.0 if matrix is None else float(torch.linalg.matrix_norm(matrix, 2))


def _norm(part: Any, value: Tensor) -> float | None:
    if hooked(part):
        return None
    if type(part) in _SLOPES:
        return _SLOPES[type(part)]
    if isinstance(part, nn.LeakyReLU):
        return max(1.0, abs(part.negative_slope))
    if isinstance(part, CONVOLUTIONS):
        sizes, pads, wraps = list(value.shape[2:]), pads_of(part), part.padding_mode == "circular"
        too_wide = any(pad > reach for pad, reach in zip(pads, reach_of(part), strict=True))
        if part.padding_mode not in ("zeros", "circular") or (wraps and too_wide):
            return None
        sizes = sizes if wraps else [size + pad for size, pad in zip(sizes, pads, strict=True)]
        return float(conv_singular_values(part.weight, sizes, dilation=part.dilation, groups=part.groups).max())
    if isinstance(part, nn.AvgPool1d | nn.AvgPool2d | nn.MaxPool1d | nn.MaxPool2d):
        d = value.ndim - 2
        kernel, stride, padding = (
            (v,) * d if isinstance(v, int) else tuple(v) for v in (part.kernel_size, part.stride, part.padding)
        )
        partial = getattr(part, "ceil_mode", False) or getattr(part, "divisor_override", None)
        if partial and isinstance(part, nn.AvgPool1d | nn.AvgPool2d):
            return None  # a mean over fewer entries than the window has
        if any(s < k for s, k in zip(stride, kernel, strict=True)) or any(padding) or getattr(part, "dilation", 1) != 1:
            return None
        return 1.0 if isinstance(part, nn.MaxPool1d | nn.MaxPool2d) else 1 / math.sqrt(math.prod(kernel))
    return None
