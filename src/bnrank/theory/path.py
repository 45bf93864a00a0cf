"""The linear maps of a chain at one point, and the images of k directions under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bnrank._core import linalg


@dataclass(frozen=True)
class Path:
    """The linear maps of a chain at one point: Jf(x) = W_L D_{L-1} ... D_1 W_1.

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
        return self.push(torch.eye(first.shape[1]).to(first))

    @cached_property
    def to_output(self) -> list[Tensor]:
        """J(a~_1 -> f), ..., J(a~_L -> f), each (d_out, n_l)."""
        last = self.weights[-1]
        found = [torch.eye(len(last)).to(last)]
        for weight, d in zip(self.weights[:0:-1], self.slopes[::-1], strict=True):
            found.append(found[-1] @ weight * d)
        return found[::-1]

    @cached_property
    def backward(self) -> list[Tensor]:
        """J(a_1 -> f), ..., J(a_{L-1} -> f), each (d_out, n_l)."""
        return [g @ weight for g, weight in zip(self.to_output[1:], self.weights[1:], strict=True)]

    @cached_property
    def jacobian(self) -> Tensor:
        """Jf(x), (d_out, d_in), multiplied from its narrower end."""
        d_out, d_in = len(self.weights[-1]), self.weights[0].shape[1]
        if d_out > d_in or not self.slopes:
            return self.forward[-1]
        return self.to_output[0] @ self.weights[0]

    @cached_property
    def decomposition(self) -> tuple[Tensor, Tensor, Tensor]:
        """Thin singular value decomposition of Jf(x): (d_out, K), (K,), (d_in, K)."""
        u, s, v = torch.linalg.svd(self.jacobian, full_matrices=False)
        return u, s, v.T

    @cached_property
    def noise(self) -> float:
        """A bound on the rounding error of Jf(x), sum_l n_l eps ||J(a~_l -> f)||_F ||W_l||_F ||J a_{l-1}||_F.

        First order in the machine precision; the norms of Jacobians are estimated with 8 random vectors. inf if a norm
        is beyond the range of floats.
        """
        draw, first = torch.Generator().manual_seed(0), self.weights[0]
        sizes = first.shape[1], len(self.weights[-1])
        v, u = (torch.randn(n, 8, generator=draw, dtype=torch.float64).to(first) / 8**0.5 for n in sizes)
        total = float(self.jacobian.norm())
        before = [float(image.norm()) for image in self.push(v)]
        after = 1.0
        for weight, d, norm in zip(self.weights[:0:-1], self.slopes[::-1], before[-2::-1], strict=True):
            total += weight.shape[1] * after * float(weight.norm()) * norm
            u = d[:, None] * (weight.T @ u)
            after = float(u.norm())
        return math.inf if math.isnan(total) else torch.finfo(torch.float64).eps * total  # 0 inf bounds nothing

    def rank(self, rtol: float) -> int:
        """Return the rank of Jf(x): its singular values above ``rtol`` times the largest and 10 times the noise."""
        return int(linalg.rank(self.decomposition[1], rtol, 10 * self.noise))

    def volume_error(self, k: int) -> float:
        """Return a bound on the rounding error of log |Jf(x)|_+ for the first k singular values."""
        return float((self.noise / self.decomposition[1][:k]).sum())

    def kernel(self, squares: Tensor) -> Tensor:
        """Return Theta(x, x) = sum_l squares_l J(a~_l -> f) J(a~_l -> f)^T, (d_out, d_out) (T24).

        ``squares`` are ||a_{l-1}(x)||^2, plus 1 where layer l has a bias, (L,).
        """
        last = self.to_output[-1]
        return sum((s * (g @ g.T) for s, g in zip(squares, self.to_output, strict=True)), start=torch.zeros_like(last))

    def narrow(self, k: int) -> Narrow:
        """Return the images in every layer of M_0, the span of the first k right singular vectors of Jf(x)."""
        left, right, kept, bases = [], [], [], [self.decomposition[2][:, :k]]
        for i, weight in enumerate(self.weights):
            u, _, z = torch.linalg.svd(weight @ bases[i], full_matrices=False)
            left.append(u[:, :k])
            right.append(bases[i] @ z[:k].T)
            if i < len(self.slopes):
                image = self.slopes[i][:, None] * left[i]
                kept.append(float((image * image).sum()))
                bases.append(torch.linalg.qr(image)[0])
        return Narrow(tuple(bases), tuple(left), tuple(right), tuple(kept))


@dataclass(frozen=True)
class Narrow:
    """The images M_l = J a_l(x) M_0 of a k-dimensional space of directions M_0 in every layer (T21).

    Attributes
    ----------
    bases : tuple of Tensor
        Orthonormal bases of M_0, ..., M_{L-1}, (n_l, k).
    left, right : tuple of Tensor
        U_l (n_l, k) and V_l (n_{l-1}, k) with W_l P_{M_{l-1}} = U_l S_l V_l^T, l = 1..L.
    kept : tuple of float
        ||D_l P_{W_l M_{l-1}}||_F^2, l = 1..L-1; k where the nonlinearity preserves these directions.
    """

    bases: tuple[Tensor, ...]
    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    kept: tuple[float, ...]
