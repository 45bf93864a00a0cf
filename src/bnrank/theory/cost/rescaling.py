"""Minimization of the norm over rescalings of neurons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnrank.measures.balance import between
from bnrank.networks.chain import read_chain
from bnrank.networks.functional import unwrap
from bnrank.networks.mlp import MLP, from_layers
from bnrank.networks.replicas import copied
from bnrank.training.ensemble import Workers

Array = NDArray[Any]  # float64
Mask = NDArray[np.bool_]
Scale = tuple[Array, NDArray[Any]]  # c = m 2^e of every neuron of a layer: products over many layers stay finite

LN2 = float(np.log(2))
EXACT = 4e-15  # rounding error of log ||in|| - log ||out||
PATIENCE = 100  # iterations without an improvement by a factor of 2; weights near the smallest floats never converge


@dataclass(frozen=True)
class Balancing:
    """A balanced network, and the iterations that led to it.

    Attributes
    ----------
    network : torch.nn.Module
        See :func:`balance`.
    norm_before, norm : float
        ||theta||^2 before and after, biases included; the latter in float64, before rounding to the network's dtype.
    residual : float
        The remaining residual of :func:`imbalance`; like ``norm``, before rounding to the network's dtype.
    dead : tuple of Tensor
        For l = 1..L-1, (n_l,), bool: neurons set to zero because they are on no path of non-zero weights from an input
        or a bias to an output.
    newton_steps, sweeps : int
        Number of iterations of each kind.
    """

    network: nn.Module
    norm_before: float
    norm: float
    residual: float
    dead: tuple[Tensor, ...]
    newton_steps: int
    sweeps: int


def balance(net: nn.Module) -> nn.Module:
    r"""Return the network of smallest norm among the rescalings of its neurons.

    Neuron i of layer l is rescaled by c_{l,i} > 0: its row of W_l and b_l[i] are multiplied by it, its column of
    W_{l+1} is divided by it. The function does not change, since sigma_s(c z) = c sigma_s(z). The norm ||theta||^2,
    biases included, is a sum of exponentials of differences of the log c. It is strictly convex, and minimal where
    every hidden neuron is balanced (T14; Jacot2023a, Proposition 12 and Remark 6):

        ||W_l[i,:]||^2 + b_l[i]^2 = ||W_{l+1}[:,i]||^2,   l = 1..L-1.

    The minimum does not exist if some neurons are on no path of non-zero weights from an input or a bias to an output.
    The infimum is then the norm with all their weights set to zero, which does not change the function; that network is
    returned.

    Method: Newton steps on the logs of both sides. The matrix is that of a random walk up and down the layers. It is
    block tridiagonal, with an inverse of at most L^2 / 8 for all scales; a step costs O(sum_l n_l^3). A step that does
    not lower the norm is replaced by a sweep that balances one layer after the other, which always lowers it.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain, as for :func:`bnrank.networks.as_mlp`; any slope, with or without biases. It is not modified.

    Returns
    -------
    torch.nn.Module
        A copy with rescaled parameters, of the same type and precision. Computed in float64, with a residual below
        1e-14; in networks of lower precision the residual is the rounding error.

    Raises
    ------
    TypeError
        If the network is not a chain of linear layers with one activation.
    ValueError
        If it has NaN or infinite parameters.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[8.0]]), torch.tensor([[2.0]])])
    >>> [w.item() for w in balance(net).weights]                  # 8^2 + 2^2 = 68 becomes 4^2 + 4^2 = 32
    [4.0, 4.0]
    """
    return balancing(net).network


def balancing(net: nn.Module) -> Balancing:
    """Return the network of :func:`balance` with a record of the iterations.

    Parameters, errors and method are those of :func:`balance`.

    Returns
    -------
    Balancing
        The network, norms before and after, the remaining residual, dead neurons and iterations.

    Examples
    --------
    >>> import bnrank
    >>> found = balancing(bnrank.MLP([3, 100, 100, 2], seed=0))
    >>> found.norm < found.norm_before, found.residual < 1e-15
    (True, True)
    """
    chain = Arrays.of(net)
    balanced, steps, sweeps = chain.balanced()
    result = copied(unwrap(net))
    layers = [m for m in result.modules() if isinstance(m, nn.Linear)]  # in call order
    with torch.no_grad():
        for layer, weight, bias in itertools.zip_longest(layers, balanced.weights, balanced.biases):
            layer.weight.copy_(torch.from_numpy(weight))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(bias))
    return Balancing(
        network=result,
        norm_before=chain.norm,
        norm=balanced.norm,
        residual=between(*balanced.tensors()).residual,
        dead=tuple(torch.from_numpy(~mask) for mask in chain.alive()),
        newton_steps=steps,
        sweeps=sweeps,
    )


@dataclass(frozen=True)
class Arrays:
    """The parameters of a chain of linear layers as float64 arrays: W_1, ..., W_L, and b_1, ..., b_L or no biases."""

    weights: list[Array]
    biases: list[Array]
    slope: float

    @classmethod
    def of(cls, net: nn.Module) -> Arrays:
        """Return the parameters of a chain of linear layers."""
        chain = read_chain(net)
        return cls(*chain.arrays(), chain.slope)

    def tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return weights and biases as tensors."""
        return [torch.from_numpy(w) for w in self.weights], [torch.from_numpy(b) for b in self.biases]

    def network(self) -> MLP:
        """Return the MLP with these parameters."""
        return from_layers(*self.tensors(), self.slope)

    @property
    def norm(self) -> float:
        """||theta||^2."""
        return float(sum(np.vdot(p, p) for p in [*self.weights, *self.biases]))

    @property
    def all_biases(self) -> list[Array]:
        """The biases, or zeros if there are none."""
        return self.biases or [np.zeros(len(w)) for w in self.weights]

    def alive(self) -> list[Mask]:
        """Return which neurons of each hidden layer are on a path of non-zero weights from input or bias to output."""
        reached, reaching = [np.ones(self.weights[0].shape[1], bool)], [np.ones(len(self.weights[-1]), bool)]
        for weight, bias in zip(self.weights[:-1], self.all_biases, strict=False):
            reached.append((weight[:, reached[-1]] != 0).any(1) | (bias != 0))
        for weight in self.weights[:0:-1]:
            reaching.append((weight[reaching[-1]] != 0).any(0))
        return [a & b for a, b in zip(reached[1:], reaching[:0:-1], strict=True)]

    def scaled(self, scales: list[Scale]) -> Arrays:
        """Return the chain with its hidden neurons rescaled."""
        ends = [(np.ones(n), np.zeros(n, int)) for n in (self.weights[0].shape[1], len(self.weights[-1]))]
        scales = [ends[0], *scales, ends[1]]
        weights = [_scaled(w, *pair) for w, pair in zip(self.weights, itertools.pairwise(scales), strict=True)]
        return Arrays(
            weights, [np.ldexp(b * m, e) for b, (m, e) in zip(self.biases, scales[1:], strict=False)], self.slope
        )

    def balanced(self) -> tuple[Arrays, int, int]:
        """Return the chain of smallest norm, zero at dead neurons, and the numbers of Newton steps and sweeps."""
        alive = self.alive()
        if not alive:
            return self, 0, 0
        zeros = [[np.zeros_like(p) for p in of] for of in (self.weights, self.biases[:-1])]
        result = Arrays(zeros[0], [*zeros[1], *self.biases[-1:]], self.slope)
        # a bias may be the first input at any layer; all layers before it are then dead
        first = next((number for number, mask in enumerate(alive) if mask.any()), len(alive))
        if first == len(alive):
            return result, 0, 0
        masks = [np.ones(self.weights[0].shape[1], bool), *alive, np.ones(len(self.weights[-1]), bool)]
        where = [np.ix_(rows, columns) for columns, rows in itertools.pairwise(masks)][first:]
        live = [w[index] for w, index in zip(self.weights[first:], where, strict=True)]
        held = [b[mask] for b, mask in zip(self.biases[first:], masks[first + 1 :], strict=False)]
        state, steps, sweeps = _minimize(Arrays(live, held, self.slope))
        for target, index, weight in zip(result.weights[first:], where, state.chain.weights, strict=True):
            target[index] = weight
        for target, mask, bias in zip(result.biases[first:-1], alive[first:], state.chain.biases[:-1], strict=False):
            target[mask] = bias
        return result, steps, sweeps


def _norms(rows: Array) -> Array:
    """Return the norms of the rows, even if their squares overflow or underflow."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    if squares.min() > 1e-280 and squares.max() < 1e280:
        return np.sqrt(squares)
    largest = np.abs(rows).max(1, initial=0.0)
    return largest * np.sqrt(((rows / np.where(largest > 0, largest, 1.0)[:, None]) ** 2).sum(1))


def _scaled(weight: Array, below: Scale, above: Scale) -> Array:
    (m, e), (n, f) = above, below
    if max(np.abs(e).max(initial=0), np.abs(f).max(initial=0)) < 500:  # same result, faster
        return weight * (np.ldexp(m, e)[:, None] / np.ldexp(n, f))
    return np.ldexp(weight * (m[:, None] / n), e[:, None] - f)


class _State:
    """A chain without dead neurons, the scales of its neurons, and the remaining imbalance with these scales."""

    def __init__(self, chain: Arrays, scales: list[Scale]) -> None:
        self.original, self.scales, self.chain = chain, scales, chain.scaled(scales)
        self.incoming = [_norms(w) for w in self.chain.weights[:-1]]
        if self.chain.biases:
            self.incoming = [np.hypot(a, b) for a, b in zip(self.incoming, self.chain.biases, strict=False)]
        self.outgoing = [_norms(w.T) for w in self.chain.weights[1:]]
        self.gaps = [_log_ratio(o, i) for o, i in zip(self.outgoing, self.incoming, strict=True)]
        self.imbalance = max(float(np.abs(gap).max()) for gap in self.gaps)
        with np.errstate(divide="ignore"):
            self.log_norm = float(np.logaddexp.reduce(2 * np.log(np.concatenate([*self.incoming, self.outgoing[-1]]))))

    def moved(self, step: Sequence[Array]) -> _State:
        """Return the state with scales multiplied by exp(step)."""
        scales = []
        for (m, e), d in zip(self.scales, step, strict=True):
            twos = np.rint(d / LN2)
            mantissa, carry = np.frexp(m * np.exp(d - twos * LN2))
            scales.append((mantissa, e + carry + twos.astype(int)))
        with np.errstate(over="ignore", invalid="ignore"):  # too long a step, rejected later
            return _State(self.original, scales)


def _log_ratio(above: Array, below: Array) -> Array:
    (a, i), (b, j) = np.frexp(above), np.frexp(below)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(a / b) + (i - j) * LN2


def _minimize(chain: Arrays) -> tuple[_State, int, int]:
    """Return the balanced state, and the numbers of Newton steps and sweeps.

    The systems have one unknown per neuron of a layer: more than one thread of LAPACK slows them down.
    """
    state = best = _State(chain, [(np.ones(n), np.zeros(n, int)) for n in map(len, chain.weights[:-1])])
    steps = sweeps = idle = 0
    with Workers(1):
        while best.imbalance > EXACT and idle < (3 if best.imbalance < 1e-10 else PATIENCE):
            after = state.moved(_newton(state))
            if after.log_norm < state.log_norm or after.imbalance < state.imbalance / 2:
                steps += 1
            else:
                after, sweeps = state.moved(_sweep(state)), sweeps + 1
            state = after
            idle = idle + 1 if state.imbalance > best.imbalance / 2 else 0
            best = min(best, state, key=lambda s: s.imbalance)
    return best, steps, sweeps


def _newton(state: _State) -> list[Array]:
    """Return d with 2 d_l - P_l d_{l-1} - Q_l d_{l+1} = gap_l; P and Q are shares of the squared in- and out-norms."""
    weights, incoming, outgoing = state.chain.weights, state.incoming, state.outgoing
    ratios: list[Array] = []  # d_l = offsets_l + ratios_l d_{l+1}
    offsets: list[Array] = []
    for l, gap in enumerate(state.gaps):  # noqa: E741
        matrix, right = 2 * np.eye(len(gap)), gap
        if l > 0:
            from_below = (weights[l] / incoming[l][:, None]) ** 2
            matrix -= from_below @ ratios[-1]
            right = gap + from_below @ offsets[-1]
        to_above = (weights[l + 1].T / outgoing[l][:, None]) ** 2
        solution = np.linalg.solve(matrix, np.c_[to_above, right])
        ratios.append(solution[:, :-1])
        offsets.append(solution[:, -1])
    step = offsets[-1:]  # d_L = 0
    for ratio, offset in zip(ratios[-2::-1], offsets[-2::-1], strict=True):
        step.append(offset + ratio @ step[-1])
    return step[::-1]


def _sweep(state: _State) -> list[Array]:
    """Return the logs of the scales that balance the layers one after the other."""
    step: list[Array] = []
    below = np.zeros(state.chain.weights[0].shape[1])
    for l, outgoing in enumerate(state.outgoing):  # noqa: E741
        incoming = _norms(state.chain.weights[l] * np.exp(-below))
        if state.chain.biases:
            incoming = np.hypot(incoming, state.chain.biases[l])
        below = _log_ratio(outgoing, incoming) / 2
        step.append(below)
    return step
