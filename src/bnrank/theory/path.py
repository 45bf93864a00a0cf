"""The linear maps that a chain applies at one point, and k directions followed through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

__all__ = ["Narrow", "Path", "biased", "paths"]


@dataclass(frozen=True)
class Path:
    """The linear maps that a chain applies at one point: Jf(x) = W_L D_{L-1} ... D_1 W_1.

    Attributes
    ----------
    weights : sequence of Tensor
        W_1, ..., W_L, (n_l, n_{l-1}), float64.
    slopes : sequence of Tensor
        The diagonals of D_1, ..., D_{L-1}, (n_l,).
    """

    weights: Sequence[Tensor]
    slopes: Sequence[Tensor]

    def push(self, directions: Tensor) -> list[Tensor]:
        """Return J a_1 v, ..., J a_{L-1} v, Jf v for directions v, the columns of (d_in, m)."""
        found = [self.weights[0] @ directions]
        for d, weight in zip(self.slopes, self.weights[1:], strict=True):
            found[-1] = d[:, None] * found[-1]
            found.append(weight @ found[-1])
        return found

    @cached_property
    def forward(self) -> list[Tensor]:
        """J a_1, ..., J a_{L-1}, Jf, each (n_l, d_in)."""
        first = self.weights[0]
        return self.push(torch.eye(first.shape[1], dtype=first.dtype, device=first.device))

    @cached_property
    def backward(self) -> list[Tensor]:
        """J(a_1 -> f), ..., J(a_{L-1} -> f), each (d_out, n_l)."""
        found: list[Tensor] = []
        for i in range(len(self.slopes) - 1, -1, -1):
            weight = self.weights[i + 1]
            found.insert(0, weight if not found else (found[0] * self.slopes[i + 1]) @ weight)
        return found

    @cached_property
    def jacobian(self) -> Tensor:
        """Jf(x), (d_out, d_in), multiplied from its narrower end."""
        d_out, d_in = len(self.weights[-1]), self.weights[0].shape[1]
        if d_out > d_in or not self.slopes:
            return self.forward[-1]
        return (self.backward[0] * self.slopes[0]) @ self.weights[0]

    @cached_property
    def decomposition(self) -> tuple[Tensor, Tensor, Tensor]:
        """Thin singular value decomposition of Jf(x): (d_out, K), (K,), (d_in, K)."""
        u, s, v = torch.linalg.svd(self.jacobian, full_matrices=False)
        return u, s, v.T

    @cached_property
    def noise(self) -> float:
        """A bound on the rounding error of Jf(x), sum_l n_l eps ||J(a~_l -> f)||_F ||W_l||_F ||J a_{l-1}||_F.

        First order in the machine precision; the norms of Jacobians are estimated with 8 random vectors.
        """
        first, last = self.weights[0], self.weights[-1]
        draw = torch.Generator().manual_seed(0)
        v = torch.randn(first.shape[1], 8, generator=draw, dtype=torch.float64).to(first) / 8**0.5
        u = torch.randn(len(last), 8, generator=draw, dtype=torch.float64).to(first) / 8**0.5
        total = float(self.jacobian.norm())
        before = [float(image.norm()) for image in self.push(v)]
        after = 1.0
        for weight, d, norm in zip(self.weights[:0:-1], self.slopes[::-1], before[-2::-1], strict=True):
            total += weight.shape[1] * after * float(weight.norm()) * norm
            u = d[:, None] * (weight.T @ u)
            after = float(u.norm())
        return torch.finfo(torch.float64).eps * total

    def rank(self, rtol: float) -> int:
        """Count the singular values of Jf(x) above ``rtol`` times the largest and above 10 times the rounding error."""
        values = self.decomposition[1]
        return int((values > max(rtol * float(values[0]), 10 * self.noise)).sum())

    def narrow(self, k: int) -> Narrow:
        """Follow the span M_0 of the first k right singular vectors of Jf(x) through the layers."""
        basis = self.decomposition[2][:, :k]
        left, values, right, kept, volumes = [], [], [], [], [0.0]
        bases = [basis]
        for i, weight in enumerate(self.weights):
            u, s, z = torch.linalg.svd(weight @ basis, full_matrices=False)
            left.append(u[:, :k])
            values.append(s[:k])
            right.append(basis @ z[:k].T)
            volume = volumes[-1] + float(s[:k].log().sum())
            if i < len(self.slopes):
                image = self.slopes[i][:, None] * left[-1]
                kept.append(float((image * image).sum()))
                basis, r = torch.linalg.qr(image)
                volume += float(r.diagonal().abs().log().sum())
                bases.append(basis)
            volumes.append(volume)
        return Narrow(tuple(bases), tuple(left), tuple(values), tuple(right), tuple(kept), tuple(volumes))


@dataclass(frozen=True)
class Narrow:
    """A k-dimensional space of directions M_0, followed through the layers: M_l = J a_l(x) M_0 (T21).

    Attributes
    ----------
    bases : tuple of Tensor
        Orthonormal bases of M_0, ..., M_{L-1}, (n_l, k).
    left, values, right : tuple of Tensor
        U_l (n_l, k), S_l (k,), V_l (n_{l-1}, k) with W_l P_{M_{l-1}} = U_l S_l V_l^T, l = 1..L.
    kept : tuple of float
        ||D_l P_{W_l M_{l-1}}||_F^2, l = 1..L-1; k where the nonlinearity leaves these directions as they are.
    volumes : tuple of float
        log |J a_l(x) P_{M_0}|_+ for l = 0..L (T11), the last one log |Jf(x) P_{M_0}|_+.
    """

    bases: tuple[Tensor, ...]
    left: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    kept: tuple[float, ...]
    volumes: tuple[float, ...]


def paths(weights: Sequence[Tensor], slopes: Sequence[Tensor], rows: Iterable[int]) -> list[Path]:
    """Return what a chain applies at some samples, from W_l and the diagonals of D_l at all samples, (N, n_l)."""
    return [Path(weights, [d[i] for d in slopes]) for i in rows]


def biased(net: nn.Module) -> list[bool]:
    """Say of each layer of a chain whether it has a bias."""
    return [layer.bias is not None for layer in net.modules() if isinstance(layer, nn.Linear)]
