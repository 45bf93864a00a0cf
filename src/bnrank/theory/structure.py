"""Structure of deep networks of small norm: weights near partial isometries, bounded representations (T11, T21-T25)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.results import Printed
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import example
from bnrank.theory.facts import Facts

__all__ = [
    "ActivationBound",
    "PreactivationBound",
    "WeightStructure",
    "activation_bound",
    "preactivation_bound",
    "weight_structure",
]


@dataclass(frozen=True)
class WeightStructure(Printed):
    """The distance of every layer from a partial isometry of rank k, in the relevant directions at a point (T21).

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
        """The sum of the three terms of every layer, (L,)."""
        return self.weights + self.nonlinearity + self.biases

    @property
    def total(self) -> float:
        """The left-hand side, the sum over all layers."""
        return float(self.terms.sum())

    @property
    def slack(self) -> float:
        """The right-hand side, ||theta||^2 - k L - 2 log |Jf(x)|_+."""
        return self.parameter_norm - self.rank * self.depth - 2 * self.log_pseudo_determinant

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.depth} layers: distances add up to {self.total:.4g} <= {self.slack:.4g}"

    def bound(self, p: float) -> float:
        """Return slack / (p L); at least (1 - p) L of the ``terms`` are at most this."""
        return self.slack / (_fraction(p) * self.depth)

    def layers_within(self, p: float) -> tuple[int, ...]:
        """Return the layers, counted from 1, whose terms are at most ``bound(p)``: at least (1 - p) L of them."""
        return _at_most(self.terms, self.bound(p), self.parameter_norm)


@dataclass(frozen=True)
class _Bound(Printed):
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
        """The right-hand side with the constant for these weights, which need not be balanced."""
        return self._with(self.log_growth)

    @property
    def balanced_bound(self) -> float:
        """The right-hand side with the constant for balanced weights, as in the source."""
        return self._with(self.log_balanced_growth)

    @property
    def spread(self) -> bool:
        """Whether the constant for balanced weights covers these; it does if they are balanced (T14)."""
        return self.log_growth <= self.log_balanced_growth + 1e-9 * max(1.0, abs(self.log_balanced_growth))

    def __str__(self) -> str:
        return f"rank {self.rank}, {len(self.values)} layers: values add up to {self.total:.4g} <= {self.bound:.4g}"

    def layers_within(self, p: float) -> tuple[int, ...]:
        """Return the layers, from 1, whose value is at most ``bound`` / (p L): at least (1 - p) L of them."""
        return _at_most(self.values, self.bound / (_fraction(p) * len(self.values)), float(self.values.max()))

    def _with(self, log_growth: float) -> float:
        return self.ntk_trace / self.rank * linalg.exp(log_growth - 2 * self.log_pseudo_determinant / self.rank)


class ActivationBound(_Bound):
    """The bound on the norms of the representations of a point, given its NTK (T22).

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


@dataclass(frozen=True)
class PreactivationBound(_Bound):
    """The bound on the distance of the representations of the data to k dimensions (T23).

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
    most : float
        The largest possible ``total`` for preactivations of these norms, sum_l ||a~_l(X)||_F / (N (k + 1))^{1/2} over
        the layers with more than k neurons (and samples).
    """

    slack: float
    most: float

    def _with(self, log_growth: float) -> float:
        squared = max(self.slack, 0.0) * self.ntk_trace / self.rank
        return math.sqrt(squared) * linalg.exp(log_growth / 2 - self.log_pseudo_determinant / self.rank)


def weight_structure(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> WeightStructure:
    """Return the distance of every layer to a partial isometry at a point, with the bound on their sum (T21).

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
        k, at most rank Jf(x), which is the default. The statement holds for every such k; the right-hand side is
        smallest when k counts the singular values of Jf(x) above e^{-L/2}.
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
    facts = _at_point(net, x, rtol)
    return weight_structure_at(facts, 0, _rank(rank, facts, 0))


def activation_bound(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> ActivationBound:
    """Return the norms of the representations of a point, with the bound on their sum (T22).

    sum_l (||a_{l-1}(x)||^2 + 1) <= Tr Theta(x, x) G / (k |Jf(x)|_+^{2/k}), Theta over all parameters, without the + 1
    for layers without biases. G = max{1, max_l (q_l / k)^l} with q_l = (||W_1||_F^2 + ... + ||W_l||_F^2) / l always; in
    a balanced network (T14) the norms do not decrease with l, q_l <= ||theta||^2 / L, and G = max{1, e^{c1/k}} is
    enough.

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
    facts = _at_point(net, x, rtol)
    k = _rank(rank, facts, 0)
    validation.expect(k != 0, "x", "a point where Jf(x) = 0", "one where the rank is at least 1")
    return activation_bound_at(facts, 0, k)


def preactivation_bound(net: nn.Module, x: Any, rank: int | None = None, rtol: float = 1e-6) -> PreactivationBound:
    """Return s_{k+1} of the preactivations of the data in every layer, with the bound on their sum (T23).

    sum_l s_{k+1}(N^{-1/2} a~_l(X)) <= ((c1 - 2 log max_i |Jf(x_i)|_+) (1/N) Tr Theta(X, X) G
    / (k min_i |Jf(x_i)|_+^{2/k}))^{1/2}, with G as in :func:`activation_bound`. In at least (1 - p) L layers s_{k+1} is
    at most this bound over p L.

    Parameters
    ----------
    net, rtol
        As in :func:`weight_structure`.
    x : Tensor or ndarray
        Samples, (N, d_in).
    rank : int, optional
        k, at most the smallest rank of Jf(x_i), which is the default.

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
    facts = Facts(net, example(as_mlp(net), x), rtol=rtol)
    rows = range(len(facts.x))
    k = min(_rank(rank, facts, row) for row in rows)
    validation.expect(k != 0, "x", "a point where Jf(x) = 0", "only points where the rank is at least 1")
    return preactivation_bound_at(facts, rows, k)


def volume_splits(facts: Facts, row: int, k: int) -> list[tuple[Tensor, Tensor]]:
    """Return the singular values of J a_l P_{M_0} and of J(a_l -> f) P_{M_l} for l = 1..L-1 at a sample (T11).

    M_0 is spanned by the first k right singular vectors of Jf(x), M_l = J a_l(x) M_0. For every l the logarithms of the
    first k values of both add up to log |Jf(x)|_+.
    """
    path = facts.paths[row]
    bases = path.narrow(k).bases
    images = zip(path.push(bases[0]), path.backward, bases[1:], strict=False)
    return [(torch.linalg.svdvals(image), torch.linalg.svdvals(back @ basis)) for image, back, basis in images]


def weight_structure_at(facts: Facts, row: int, k: int) -> WeightStructure:
    """Return :func:`weight_structure` at a sample of the facts, for a rank k."""
    path, narrow = facts.paths[row], facts.paths[row].narrow(k)
    terms = [
        [float(((w - u @ v.T) ** 2).sum()) for w, u, v in zip(path.weights, narrow.left, narrow.right, strict=True)],
        [*(k - kept for kept in narrow.kept), 0.0],
        [float((b**2).sum()) for b in facts.biases] or [0.0] * facts.depth,
    ]
    weights, nonlinearity, biases = torch.tensor(terms, dtype=torch.float64)
    volume = facts.log_volume(row, k)
    return WeightStructure(k, facts.parameter_norm, volume, weights, nonlinearity, biases, narrow.left, narrow.right)


def activation_bound_at(facts: Facts, row: int, k: int) -> ActivationBound:
    """Return :func:`activation_bound` at a sample of the facts, for a rank k >= 1."""
    trace, squares = float(facts.ntk_trace[row]), facts.squared_inputs[row].cpu()
    return ActivationBound(k, squares, trace, facts.log_volume(row, k), *log_growths(facts, k))


def preactivation_bound_at(facts: Facts, rows: Sequence[int], k: int) -> PreactivationBound:
    """Return :func:`preactivation_bound` at samples of the facts, for a rank k >= 1."""
    chosen, found, most = list(rows), [], 0.0
    for i, (weight, a) in enumerate(zip(facts.weights, facts.inputs, strict=True)):
        z = a[chosen] @ weight.T + (facts.biases[i] if facts.biases else 0.0)
        values = torch.linalg.svdvals(z)
        found.append(float(values[k]) / math.sqrt(len(z)) if k < len(values) else 0.0)
        most += float(values.norm()) / math.sqrt(len(z) * (k + 1)) if k < len(values) else 0.0
    values = torch.tensor(found, dtype=torch.float64)
    trace = float(facts.ntk_trace[chosen].mean())
    volumes = [facts.log_volume(row, k) for row in chosen]
    slack = facts.parameter_norm - k * facts.depth - 2 * max(volumes)
    return PreactivationBound(k, values, trace, min(volumes), *log_growths(facts, k), slack, most)


def segment_kernels(facts: Facts, row: int) -> tuple[float, Tensor]:
    """Return the length of a segment without kinks that starts at a sample, and ||Theta||_op at both ends (T25).

    The segment follows the first right singular vector of Jf(x), 0.9 of the way to the next kink. Its length is
    1 + ||x|| if there is no kink, and 0 if the sample is next to one.
    """
    path = facts.paths[row]
    u = path.decomposition[2][:, :1]
    along = [image[:, 0] for image in (u, *path.push(u)[:-1])]
    before = [a[row] for a in facts.inputs]
    length = 1.0 + float(before[0].norm())
    for i, weight in enumerate(facts.weights[:-1] if facts.slope != 1 else []):
        bias = facts.biases[i] if facts.biases else weight.new_zeros(len(weight))
        z, step = weight @ before[i] + bias, weight @ along[i]
        size = weight.abs() @ before[i].abs() + bias.abs()
        if bool(((z.abs() <= 1e-9 * size) & (step != 0)).any()):
            return 0.0, z.new_zeros(2)
        crossing = -z / step
        ahead = crossing[(crossing > 0) & (step != 0)]
        length = min([length, *(0.9 * ahead).tolist()])
    ends = [torch.stack([(a + t * d).square().sum() for a, d in zip(before, along, strict=True)]) for t in (0, length)]
    return length, torch.stack([torch.linalg.matrix_norm(path.kernel(end + facts.biased), 2) for end in ends])


def log_growths(facts: Facts, k: int) -> tuple[float, float]:
    """Return log max{1, max_l (q_l / k)^l}, q_l the mean of the first l ||W_l||_F^2, and log max{1, e^{c1/k}} (T22)."""
    growth = total = 0.0
    for number, weight in enumerate(facts.weights, start=1):
        total += float((weight**2).sum())
        growth = max(growth, number * math.log(total / number / k)) if total > 0 else growth
    return growth, max(0.0, facts.parameter_norm / k - facts.depth)


def _at_point(net: nn.Module, x: Any, rtol: float) -> Facts:
    """Return the facts of a chain at one sample; TypeError if the network is not a chain."""
    x = validation.numbers(x, "x")
    x = validation.samples(x[None] if x.ndim == 1 else x, "x")
    validation.expect(len(x) == 1, "x", f"shape {tuple(x.shape)}", "one sample, (d_in,) or (1, d_in)")
    return Facts(net, example(as_mlp(net), x.detach().to(torch.float64)), rtol=rtol)


def _rank(rank: int | None, facts: Facts, row: int) -> int:
    found = facts.paths[row].rank(facts.rtol)
    rank = found if rank is None else validation.integer(rank, "rank", 0)
    validation.expect(rank <= found, "rank", f"{rank}", f"at most the rank of Jf(x), {found}")
    return rank


def _at_most(values: Tensor, limit: float, size: float) -> tuple[int, ...]:
    """Return the layers whose value is at most the limit, up to the rounding of numbers of a given size."""
    return tuple(int(i) + 1 for i in (values <= limit + 1e-12 * size).nonzero()[:, 0])


def _fraction(p: float) -> float:
    p = validation.number(p, "p", 0.0, strict=True)
    validation.expect(p < 1, "p", f"{p:g}", "a number in (0, 1)")
    return p
