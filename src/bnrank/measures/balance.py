"""Balancedness of consecutive layers, neuron by neuron."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnrank.networks.chain import read_chain


@dataclass(frozen=True)
class Imbalance:
    """Deviation of a network from balance (T14).

    Attributes
    ----------
    per_neuron : tuple of Tensor
        For l = 1..L-1, (n_l,): | ||W_l[i,:]||^2 + b_l[i]^2 - ||W_{l+1}[:,i]||^2 |.
    per_layer : Tensor
        (L-1,): the sums of these, divided by sum_i ||W_l[i,:]||^2 + b_l[i]^2 + ||W_{l+1}[:,i]||^2, in [0, 1].
    residual : float
        The sum of all numerators over the sum of all denominators, in [0, 1]; 0 for a network of one layer.
    """

    per_neuron: tuple[Tensor, ...]
    per_layer: Tensor
    residual: float


def imbalance(net: nn.Module) -> Imbalance:
    """Return the differences between incoming and outgoing norms of every hidden neuron.

    At a local minimum of the L2-regularized loss of a network with positively homogeneous activations,
    ||W_l[i,:]||^2 + b_l[i]^2 = ||W_{l+1}[:,i]||^2 for every hidden neuron (T14), and the residual is 0.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers, as for :func:`bnrank.networks.as_mlp`.

    Returns
    -------
    Imbalance
        Per neuron, per layer and overall; float64.

    Raises
    ------
    TypeError, ValueError
        If the module is not a chain, or has NaN or infinite parameters.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[3.0]]), torch.tensor([[1.0]])])
    >>> imbalance(net).residual                             # |9 - 1| / (9 + 1)
    0.8
    """
    chain = read_chain(net)
    return between(chain.weights, chain.biases)


def between(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Imbalance:
    """Return the imbalance of weights, each (n_l, n_{l-1}), and biases, each (n_l,), or none."""
    incoming, outgoing = norms(weights, biases)
    per_neuron = tuple((a - b).abs() for a, b in zip(incoming, outgoing, strict=True))
    above = torch.tensor([float(r.sum()) for r in per_neuron], dtype=torch.float64)
    below = torch.tensor([float((a + b).sum()) for a, b in zip(incoming, outgoing, strict=True)], dtype=torch.float64)
    per_layer = torch.where(below != 0, above / below.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    total = float(below.sum())
    overall = 0.0 if total == 0 else float(above.sum()) / total  # NaN and infinite weights give NaN
    return Imbalance(per_neuron, per_layer, overall)


def norms(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return ||W_l[i,:]||^2 + b_l[i]^2 and ||W_{l+1}[:,i]||^2 of every hidden neuron, for l = 1..L-1, each (n_l,)."""
    incoming = [w.double().square().sum(1) for w in weights[:-1]]
    outgoing = [w.double().square().sum(0) for w in weights[1:]]
    if len(biases):
        incoming = [norm + b.double().square() for norm, b in zip(incoming, biases, strict=False)]
    return incoming, outgoing
