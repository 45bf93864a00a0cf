"""Inside a deep network of small norm: weights near partial isometries, bounded representations (T11, T21 to T23)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import ntk
from bnrank.measures.backward import mlp_forward
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, example
from bnrank.networks.mlp import MLP
from bnrank.theory.path import Path, biased, paths

__all__ = [
    "ActivationBound",
    "PreactivationBound",
    "WeightStructure",
    "activation_bound",
    "preactivation_bound",
    "weight_structure",
]


@dataclass(frozen=True)
class WeightStructure:
    """How far every layer is from a partial isometry of rank k in the directions that matter at a point (T21).

    sum_l (weights_l + nonlinearity_l + biases_l) <= slack = ||theta||^2 - k L - 2 log |Jf(x)|_+.

    Attributes
    ----------
    rank : int
        k.
    parameter_norm : float
        ||theta||^2, so that c1 = ||theta||^2 - k L.
    log_pseudo_determinant : float
        log |Jf(x)|_+, of the k largest singular values.
    weights : Tensor
        ||W_l - U_l V_l^T||_F^2, (L,).
    nonlinearity : Tensor
        k - ||D_l P_{W_l M_{l-1}}||_F^2, (L,); 0 for the last layer.
    biases : Tensor
        ||b_l||^2, (L,).
    left, right : tuple of Tensor
        U_l (n_l, k) and V_l (n_{l-1}, k): W_l P_{M_{l-1}} = U_l S_l V_l^T, M_0 = Im Jf(x)^T, M_l = J a_l(x) M_0.
    """

    rank: int
    parameter_norm: float
    log_pseudo_determinant: float
    weights: Tensor
    nonlinearity: Tensor
    biases: Tensor
    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]

    @property
    def depth(self) -> int:
        """L."""
        return len(self.weights)

    @property
    def terms(self) -> Tensor:
        """The three terms of every layer together, (L,)."""
        return self.weights + self.nonlinearity + self.biases

    @property
    def total(self) -> float:
        """The left-hand side, the sum over all layers."""
        return float(self.terms.sum())

    @property
    def slack(self) -> float:
        """The right-hand side, ||theta||^2 - k L - 2 log |Jf(x)|_+."""
        return self.parameter_norm - self.rank * self.depth - 2 * self.log_pseudo_determinant

    def bound(self, p: float) -> float:
        """Return slack / (p L), which at least (1 - p) L of the ``terms`` do not exceed."""
        return self.slack / (_fraction(p) * self.depth)

    def layers_within(self, p: float) -> tuple[int, ...]:
        """Return the layers, counted from 1, whose terms are at most ``bound(p)``: at least (1 - p) L of them."""
        return _at_most(self.terms, self.bound(p), self.parameter_norm)


@dataclass(frozen=True)
class _Bound:
    rank: int
    values: Tensor
    ntk_trace: float
    log_pseudo_determinant: float
    log_growth: float
    log_balanced_growth: float

    @property
    def total(self) -> float:
        """The sum of ``values`` over the layers, the left-hand side."""
        return float(self.values.sum())

    @property
    def bound(self) -> float:
        """The right-hand side with the constant for these weights; it needs no balance."""
        return self._with(self.log_growth)

    @property
    def balanced_bound(self) -> float:
        """The right-hand side with the constant for balanced weights, as in the source."""
        return self._with(self.log_balanced_growth)

    @property
    def spread(self) -> bool:
        """Whether the constant for balanced weights covers these; it does if they are balanced (T14)."""
        return self.log_growth <= self.log_balanced_growth + 1e-9 * max(1.0, abs(self.log_balanced_growth))

    def layers_within(self, p: float) -> tuple[int, ...]:
        """Return the layers, from 1, whose value is at most ``bound`` / (p L): at least (1 - p) L of them."""
        return _at_most(self.values, self.bound / (_fraction(p) * len(self.values)), float(self.values.max()))

    def _with(self, log_growth: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class ActivationBound(_Bound):
    """How large the representations of a point can be, given its NTK (T22).

    ``total`` <= ``bound`` = Tr Theta(x, x) G / (k |Jf(x)|_+^{2/k}).

    Attributes
    ----------
    rank : int
        k.
    values : Tensor
        ||a_{l-1}(x)||^2, plus 1 where layer l has a bias, (L,).
    ntk_trace : float
        Tr Theta(x, x) = c L over all parameters.
    log_pseudo_determinant : float
        log |Jf(x)|_+, of the k largest singular values.
    log_growth : float
        log G, G = max{1, max_l (q_l / k)^l} with q_l the mean of ||W_1||_F^2, ..., ||W_l||_F^2.
    log_balanced_growth : float
        log max{1, e^{c1/k}}, c1 = ||theta||^2 - k L.
    """

    def _with(self, log_growth: float) -> float:
        return self.ntk_trace / self.rank * exp(log_growth - 2 * self.log_pseudo_determinant / self.rank)


@dataclass(frozen=True)
class PreactivationBound(_Bound):
    """How near the representations of the data are to k dimensions (T23).

    ``total`` <= ``bound`` = (slack Tr G / (k min |Jf|_+^{2/k}))^{1/2}.

    Attributes
    ----------
    rank : int
        k.
    values : Tensor
        s_{k+1}(N^{-1/2} a~_l(X)), (L,).
    ntk_trace : float
        (1/N) Tr Theta(X, X) = c L over all parameters.
    log_pseudo_determinant : float
        log min_i |Jf(x_i)|_+, of the k largest singular values.
    log_growth, log_balanced_growth : float
        As in :class:`ActivationBound`.
    slack : float
        c1 - 2 log max_i |Jf(x_i)|_+, the right-hand side of T21 at the best sample.
    """

    slack: float

    def _with(self, log_growth: float) -> float:
        squared = max(self.slack, 0.0) * self.ntk_trace / self.rank
        return math.sqrt(squared) * exp(log_growth / 2 - self.log_pseudo_determinant / self.rank)


def weight_structure(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> WeightStructure:
    """Return every layer's distance to a partial isometry at a point, and what bounds their sum (T21).

    With M_0 the span of the first k right singular vectors of Jf(x) (its row space where k is the rank),
    M_l = J a_l(x) M_0 and W_l P_{M_{l-1}} = U_l S_l V_l^T,
    sum_l ||W_l - U_l V_l^T||_F^2 + sum_{l<L} (k - ||D_l P_{W_l M_{l-1}}||_F^2) + sum_l ||b_l||^2
    <= ||theta||^2 - k L - 2 log |Jf(x)|_+, every term being non-negative.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation, slope in (-1, 1), or none.
    x : Tensor or ndarray
        One sample, (d_in,) or (1, d_in).
    rank : int, optional
        k, at most rank Jf(x), which is the default. The statement holds for every such k; the right-hand side is least
        when k counts the singular values of Jf(x) above e^{-L/2}.
    rtol : float
        Singular values above ``rtol`` times the largest count for the rank of Jf(x).

    Returns
    -------
    WeightStructure
        The terms of both sides, U_l and V_l.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the module is no such chain.

    Notes
    -----
    Source: Jacot2023b theorem 6. Its projections are on Im J a_{l-1} and Im J(a~_l -> f)^T, with which it fails (E12).

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([2, 2, 2], bias=False)
    >>> with torch.no_grad():
    ...     for weight in net.weights:
    ...         _ = weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    >>> found = weight_structure(net, torch.ones(2))
    >>> found.rank, found.weights.tolist(), round(found.slack, 3)             # 8 - 2 - 2 log 4
    (1, [1.0, 1.0], 3.227)
    """
    chain, x = _chain(net), _point(x)
    weights, _, slopes = _forward(chain, x)
    path = Path(weights, [d[0] for d in slopes])
    k = _rank(rank, path, rtol)
    biases = [b.detach() for b in chain.biases]
    norm = _squared_norm(chain)
    return weight_structure_of(path, biases, norm, float(path.decomposition[1][:k].log().sum()), k)


def activation_bound(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> ActivationBound:
    """Return the norms of the representations of a point and what bounds their sum (T22).

    sum_l (||a_{l-1}(x)||^2 + 1) <= Tr Theta(x, x) G / (k |Jf(x)|_+^{2/k}), Theta over all parameters, without the + 1
    for layers without biases. G = max{1, max_l (q_l / k)^l} with q_l = (||W_1||_F^2 + ... + ||W_l||_F^2) / l always; in
    a balanced network (T14) the norms do not decrease with l, q_l <= ||theta||^2 / L, and G = max{1, e^{c1/k}} will do.

    Parameters
    ----------
    net, x, rank, rtol
        As in :func:`weight_structure`; Jf(x) must not be 0.

    Returns
    -------
    ActivationBound
        Both sides, with both constants.

    Raises
    ------
    TypeError, ValueError
        As :func:`weight_structure`, or if Jf(x) = 0.

    Notes
    -----
    Source: Jacot2023b theorem 7.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([1, 1, 1], bias=False)
    >>> with torch.no_grad():
    ...     for weight in net.weights:
    ...         _ = weight.fill_(1.0)
    >>> found = activation_bound(net, torch.full((1,), 3.0))
    >>> found.total, found.bound                                              # 9 + 9, attained
    (18.0, 18.0)
    """
    chain, x = _chain(net), _point(x)
    weights, inputs, slopes = _forward(chain, x)
    path = Path(weights, [d[0] for d in slopes])
    k = _rank(rank, path, rtol)
    if k == 0:
        raise ValueError("x: got a point where Jf(x) = 0, expected one where the rank is at least 1")
    squares = [float((a * a).sum()) + b for a, b in zip(inputs, biased(net), strict=True)]
    trace = float(ntk.trace(net, x.reshape(1, -1)))
    norm = _squared_norm(chain)
    determinant = float(path.decomposition[1][:k].log().sum())
    growth = log_growths([float((w**2).sum()) for w in weights], norm, k)
    return ActivationBound(k, torch.tensor(squares, dtype=torch.float64), trace, determinant, *growth)


def preactivation_bound(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> PreactivationBound:
    """Return s_{k+1} of the preactivations of the data in every layer and what bounds their sum (T23).

    sum_l s_{k+1}(N^{-1/2} a~_l(X)) <= ((c1 - 2 log max_i |Jf(x_i)|_+) (1/N) Tr Theta(X, X) G
    / (k min_i |Jf(x_i)|_+^{2/k}))^{1/2}, with G as in :func:`activation_bound`; so at least (1 - p) L layers have no
    more than that over p L.

    Parameters
    ----------
    net, rtol
        As in :func:`weight_structure`.
    x : Tensor or ndarray
        Samples, (N, d_in).
    rank : int, optional
        k, at most the least rank of Jf(x_i), which is the default.

    Returns
    -------
    PreactivationBound
        Both sides, with both constants.

    Raises
    ------
    TypeError, ValueError
        As :func:`weight_structure`, or if Jf = 0 at a sample.

    Notes
    -----
    Source: Jacot2023b corollary 8, where max{1, .} is left out; with biases Theta must be over all parameters (E13).

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 4, 4, 4, 4, 4, 3], seed=1)
    >>> found = preactivation_bound(net, torch.rand(20, 3), rank=1)
    >>> found.total <= found.bound
    True
    """
    chain = _chain(net)
    x = example(chain, x).to(torch.float64)
    weights, inputs, slopes = _forward(chain, x)
    found = paths(weights, slopes, range(len(x)))
    k = min(_rank(rank, path, rtol) for path in found)
    if k == 0:
        raise ValueError("x: got a point where Jf(x) = 0, expected only points where the rank is at least 1")
    norm = _squared_norm(chain)
    determinants = torch.stack([path.decomposition[1][:k].log().sum() for path in found])
    growth = log_growths([float((w**2).sum()) for w in weights], norm, k)
    return PreactivationBound(
        k,
        next_values(weights, [b.detach() for b in chain.biases], inputs, k),
        float(ntk.trace(net, x).mean()),
        float(determinants.min()),
        *growth,
        norm - k * chain.depth - 2 * float(determinants.max()),
    )


def weight_structure_of(path: Path, biases: Sequence[Tensor], norm: float, volume: float, k: int) -> WeightStructure:
    """Return T21's terms at one point, of a given ||theta||^2, log |Jf|_+ and k."""
    narrow = path.narrow(k)
    weights = [
        float(((w - u @ v.T) ** 2).sum()) for w, u, v in zip(path.weights, narrow.left, narrow.right, strict=True)
    ]
    linear = [*(k - kept for kept in narrow.kept), 0.0]
    held = [float((b**2).sum()) for b in biases] or [0.0] * len(weights)
    first, second, third = (torch.tensor(part, dtype=torch.float64) for part in (weights, linear, held))
    return WeightStructure(k, norm, volume, first, second, third, narrow.left, narrow.right)


def next_values(weights: Sequence[Tensor], biases: Sequence[Tensor], inputs: Sequence[Tensor], k: int) -> Tensor:
    """Return s_{k+1}(N^{-1/2} a~_l(X)) for l = 1..L, (L,); 0 where there are no more than k."""
    found = []
    for i, (weight, a) in enumerate(zip(weights, inputs, strict=True)):
        z = a @ weight.T + (biases[i] if len(biases) else 0.0)
        values = torch.linalg.svdvals(z)
        found.append(float(values[k]) / math.sqrt(len(a)) if k < len(values) else 0.0)
    return torch.tensor(found, dtype=torch.float64)


def log_growths(squares: Sequence[float], norm: float, k: int) -> tuple[float, float]:
    """Return log max{1, max_l (q_l / k)^l} for ||W_l||_F^2, and log max{1, e^{c1/k}} for ||theta||^2."""
    growth = total = 0.0
    for number, square in enumerate(squares, start=1):
        total += square
        growth = max(growth, number * math.log(total / number / k)) if total > 0 else growth
    return growth, max(0.0, norm / k - len(squares))


def exp(value: float) -> float:
    """Return e^value, infinite where it is too large for a float."""
    return math.exp(value) if value < 709 else math.inf


def _forward(net: MLP, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return W_1..W_L, a_0..a_{L-1} and the diagonals of D_1..D_{L-1}."""
    weights = [w.detach() for w in net.weights]
    inputs, slopes = mlp_forward(net, x.to(weights[0].device), torch.float64)
    return weights, inputs, slopes


def _squared_norm(net: MLP) -> float:
    return sum(float((p.detach() ** 2).sum()) for p in net.parameters())


def _chain(net: nn.Module) -> MLP:
    check_finite(net)
    return as_mlp(net)


def _point(x: Any) -> Tensor:
    x = torch.as_tensor(x)
    x = validation.samples(x[None] if x.ndim == 1 else x, "x")
    if len(x) != 1:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected one sample, (d_in,) or (1, d_in)")
    return x.detach().to(torch.float64)


def _rank(rank: int | None, path: Path, rtol: float) -> int:
    found = path.rank(validation.rtol(rtol))
    if rank is None:
        return found
    if validation.integer(rank, "rank", 0) > found:
        raise ValueError(f"rank: got {rank}, expected at most the rank of Jf(x), {found}")
    return rank


def _at_most(values: Tensor, limit: float, size: float) -> tuple[int, ...]:
    """Return the layers whose value is at most the limit, up to the rounding of numbers of a given size."""
    return tuple(int(i) + 1 for i in (values <= limit + 1e-12 * size).nonzero()[:, 0])


def _fraction(p: float) -> float:
    p = validation.number(p, "p", 0.0, strict=True)
    if p >= 1:
        raise ValueError(f"p: got {p:g}, expected a number in (0, 1)")
    return p
