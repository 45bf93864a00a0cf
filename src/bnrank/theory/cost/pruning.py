"""Removal of superfluous neurons: dead, constant, or parallel to others."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.mlp import MLP
from bnrank.theory.cost.rescaling import Array, Arrays, Mask

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True)
class Pruned:
    """A network without superfluous neurons, and a record of them.

    Attributes
    ----------
    network : MLP
        The smaller network. A hidden layer that loses all neurons keeps one with zero weights.
    removed : tuple of tuple of int
        For l = 1..L-1: neurons of the original network that are removed or folded into the next bias.
    merged : tuple of tuple of (int, tuple of int)
        For l = 1..L-1: neurons that are kept, each with those that are merged into it.
    exact_on : "everywhere" or "samples"
        Where the function is unchanged, up to rounding and ``rtol``: "samples" if activations at ``x`` are used.
    norm_before, norm : float
        ||theta||^2 before and after, in float64.
    """

    network: MLP
    removed: tuple[tuple[int, ...], ...]
    merged: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    exact_on: str
    norm_before: float
    norm: float


def prune(net: nn.Module, x: Tensor | np.ndarray | None = None, *, rtol: float = 1e-12) -> Pruned:
    r"""Return the network without superfluous neurons and with parallel ones merged; the norm never increases.

    Exact everywhere:

    - dead neurons, on no path of non-zero weights from an input or a bias to an output, are removed;
    - constant neurons, with zero in-weights, are folded into the next bias, b_{l+1} += sigma(b) W_{l+1}[:,i], unless
      that would raise the norm (a chain of constants can be a cheaper way to a large bias);
    - parallel neurons, with (W_l[i,:], b_l[i]) = c (W_l[j,:], b_l[j]), c > 0 (any c != 0 for slope 1), are merged by
      adding the columns of W_{l+1}: W_{l+1}[:,j] += c W_{l+1}[:,i].

    With ``x``, further steps that are exact on these samples, but possibly not elsewhere:

    - neurons whose activation is 0 at every sample (inactive ones, for ReLU) are removed;
    - neurons whose activations over the samples are multiples of each other are merged into the one with the
      smallest in-norm for its activation.

    Neurons that are linear on all samples are kept. A merged neuron is rescaled so that its in- and out-norm agree.
    With r_i, w_i the in-weights (bias included) and out-weights of the neurons merged into it, whose activations are
    multiples c_i of one vector, its squared norm is
    2 min_i(||r_i|| / c_i) ||sum_i c_i w_i|| <= sum_i 2 ||r_i|| ||w_i|| <= sum_i ||r_i||^2 + ||w_i||^2.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Any network that :func:`bnrank.networks.as_mlp` accepts; not modified.
    x : Tensor or ndarray, optional
        Samples, (N, d_in).
    rtol : float
        Two vectors are parallel if their distance, after scaling to unit length, is at most this.

    Returns
    -------
    Pruned
        The smaller network, in the precision of ``net``, and the record.

    Raises
    ------
    TypeError
        If the network is not a chain of linear layers with one activation, or ``x`` is not floating point.
    ValueError
        If parameters or ``x`` are not finite, or ``x`` has the wrong shape.

    Examples
    --------
    >>> import torch, bnrank
    >>> w1, w2 = torch.tensor([[1.0], [3.0], [-1.0], [0.0]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    >>> net = bnrank.networks.from_layers([w1, w2])
    >>> found = prune(net)                                   # relu(3 x) = 3 relu(x); relu(0) = 0
    >>> found.network.widths, found.merged, found.removed, found.exact_on
    ([1, 2, 1], (((0, (1,)),),), ((3,),), 'everywhere')
    >>> prune(net, x=torch.tensor([[1.0], [2.0]])).network.widths     # relu(-x) = 0 there
    [1, 1, 1]
    """
    chain = Arrays.of(net)
    work = _Work(chain, validation.number(rtol, "rtol", 0.0))
    work.until_nothing_changes(None)
    everywhere = work.changes
    if x is not None:
        work.until_nothing_changes(
            validation.samples(x, "x", features=chain.weights[0].shape[1]).detach().cpu().double().numpy()
        )
    parameter = next(p for p in net.parameters() if p.is_floating_point())
    return Pruned(
        network=work.chain.network().to(parameter.device, parameter.dtype),
        removed=tuple(map(tuple, work.removed)),
        merged=tuple(map(tuple, work.merged)),
        exact_on="everywhere" if work.changes == everywhere else "samples",
        norm_before=chain.norm,
        norm=work.chain.norm,
    )


class _Work:
    """A chain from which neurons are removed, and a record of them."""

    def __init__(self, chain: Arrays, rtol: float) -> None:
        self.weights = [w.copy() for w in chain.weights]
        self.biases = [b.copy() for b in chain.biases]
        self.chain = Arrays(self.weights, self.biases, chain.slope)  # shares these lists, which change in place
        self.slope, self.rtol, self.changes = chain.slope, rtol, 0
        self.labels = [np.arange(len(w)) for w in self.weights[:-1]]
        self.removed: list[list[int]] = [[] for _ in self.labels]
        self.merged: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in self.labels]

    def until_nothing_changes(self, x: Array | None) -> None:
        """Prune layer by layer, using the samples if given, until nothing changes."""
        before = -1
        while before < self.changes:
            before, inputs = self.changes, x
            for l, alive in enumerate(self.chain.alive()):  # noqa: E741
                self._remove(l, ~alive)
            for l in range(len(self.labels)):  # noqa: E741
                self._fold(l)
                if inputs is None:
                    self._merge(l, self._rows(l), signed=self.slope == 1)
                else:
                    self._remove(l, (self._activations(l, inputs) != 0).sum(0) == 0)
                    self._merge(l, self._activations(l, inputs).T, signed=True)
                    inputs = self._activations(l, inputs)

    def _rows(self, l: int) -> Array:  # noqa: E741
        return np.c_[self.weights[l], self.biases[l]] if self.biases else self.weights[l]

    def _activations(self, l: int, inputs: Array) -> Array:  # noqa: E741
        z = inputs @ self.weights[l].T + (self.biases[l] if self.biases else 0.0)
        return np.where(z > 0, z, self.slope * z)

    def _remove(self, l: int, which: Mask) -> None:  # noqa: E741
        """Delete neurons of hidden layer l (from 0); the last remaining one is set to zero instead."""
        which = which.copy()
        if which.all():
            which[0] = False
            touched = [self.weights[l][0], self.weights[l + 1][:, 0], *(b[:1] for b in self.biases[l : l + 1])]
            if any(part.any() for part in touched):
                self.removed[l].append(int(self.labels[l][0]))
                self.changes += 1
            for part in touched:
                part[:] = 0.0
        if which.any():
            self.removed[l] += self.labels[l][which].tolist()
            self._delete(l, which)

    def _delete(self, l: int, which: Mask) -> None:  # noqa: E741
        self.weights[l], self.weights[l + 1] = self.weights[l][~which], self.weights[l + 1][:, ~which]
        if self.biases:
            self.biases[l] = self.biases[l][~which]
        self.labels[l] = self.labels[l][~which]
        self.changes += int(which.sum())

    def _fold(self, l: int) -> None:  # noqa: E741
        """Fold constant neurons into the next bias if this does not raise the norm."""
        if not self.biases:
            return
        folded = np.zeros(len(self.labels[l]), bool)
        for i in np.flatnonzero(~self.weights[l].any(1) & (self.biases[l] != 0)):
            value, column = self.biases[l][i], self.weights[l + 1][:, i]
            bias = self.biases[l + 1] + (value if value > 0 else self.slope * value) * column
            raised = np.vdot(bias, bias) - np.vdot(self.biases[l + 1], self.biases[l + 1])
            if raised <= 2 * abs(value) * np.linalg.norm(column):  # squared norm of the balanced neuron
                self.biases[l + 1], folded[i] = bias, True
        self._remove(l, folded)

    def _merge(self, l: int, vectors: Array, *, signed: bool) -> None:  # noqa: E741
        """Merge the neurons whose vectors are parallel."""
        lengths, costs = np.linalg.norm(vectors, axis=1), np.linalg.norm(self._rows(l), axis=1)
        some = lengths > 0
        units = vectors / np.where(some, lengths, 1.0)[:, None]
        same = cdist(units, units) <= self.rtol
        opposite = cdist(units, -units) <= self.rtol if signed else np.zeros_like(same)
        gone = np.zeros(len(some), bool)
        for i in np.flatnonzero(some):
            group = np.flatnonzero((same[i] | opposite[i]) & some & ~gone)
            if gone[i] or len(group) < 2:
                continue
            kept = group[np.argmin(costs[group] / lengths[group])]
            ratios = np.where(same[kept, group], 1.0, -1.0) * lengths[group] / lengths[kept]
            parts = self.weights[l + 1][:, group] * ratios
            column = parts.sum(1)
            column[np.abs(column) <= 4 * EPS * np.abs(parts).sum(1)] = 0.0
            size = np.linalg.norm(column)
            scale = np.sqrt(size / costs[kept]) if size > 0 else 1.0
            self.weights[l][kept] *= scale
            if self.biases:
                self.biases[l][kept] *= scale
            self.weights[l + 1][:, kept] = column / scale
            others = group[group != kept]
            gone[others] = True
            self.merged[l].append((int(self.labels[l][kept]), tuple(self.labels[l][others].tolist())))
        self._delete(l, gone)
