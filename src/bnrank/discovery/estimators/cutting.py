"""A trained network cut to k dimensions, for every k, and what that changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators.linear import sample_losses
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.factorization import Cut, cuts

__all__ = ["Truncation", "changes", "project", "truncate"]

ROWS = 1000  # that the place of a cut is chosen on


@dataclass(frozen=True)
class Truncation:
    """A network cut to 0, 1, ..., K dimensions, each where it changes the outputs least.

    Attributes
    ----------
    layers : list of int
        The layer whose preactivations are projected, for every k.
    change : ndarray
        Mean change of the outputs for every k: ||f - F_k||^2, or the divergence KL(f || F_k) of class probabilities.
    errors : ndarray
        Loss of F_k on held-out rows, (K + 1, rows); empty without any.
    """

    layers: list[int]
    change: np.ndarray
    errors: np.ndarray


def truncate(
    net: MLP, x: Tensor, most: int, held_out: tuple[Tensor, np.ndarray] | None = None, classes: int = 0
) -> Truncation:
    """Cut a network to every number of dimensions up to ``most``.

    f passes through the preactivations of each of its layers. For F_k those of one layer are replaced by their nearest
    point in the k-dimensional affine subspace that fits them best (T5: then F_k = h o g with inner dimension k, so
    that k bounds its bottleneck rank); the layer is the one that leaves the outputs most as they are.

    Parameters
    ----------
    net : MLP
        The network.
    x : Tensor
        Rows it was trained on, (N, d_in).
    most : int
        Largest number of dimensions.
    held_out : tuple, optional
        Inputs and outputs of other rows.
    classes : int
        Number of classes, 0 for the squared error.
    """
    places = _places(net, x[:: max(1, len(x) // ROWS)])
    full = places[-1].values
    others = _places(net, held_out[0]) if held_out is not None else []
    layers, change, errors = [], [], []
    for k in range(most + 1):
        made = [float(changes(full, cut.rest(cut.principal(k).project(cut.values)), classes).mean()) for cut in places]
        best = int(np.argmin(made))
        layers.append(places[best].layer)
        change.append(made[best])
        if held_out is not None:
            values = others[best].rest(places[best].principal(k).project(others[best].values))
            errors.append(sample_losses(values.numpy(), held_out[1], classes))
        if made[best] <= 1e-9 * max(change[0], 1e-12):  # nothing is left to lose
            rest = most - k
            return Truncation(
                layers + layers[-1:] * rest,
                np.array(change + change[-1:] * rest),
                np.array(errors + errors[-1:] * rest),
            )
    return Truncation(layers, np.array(change), np.array(errors))


def changes(before: Tensor, after: Tensor, classes: int) -> Tensor:
    """Return how far outputs are from others, row by row: ||f - F||^2, or KL(softmax f || softmax F).

    Examples
    --------
    >>> changes(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]), 0)
    tensor([5.])
    """
    if not classes:
        return (before - after).square().sum(1)
    p, q = before.log_softmax(1), after.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def project(net: MLP, x: Tensor, layer: int, k: int) -> MLP:
    """Return F_k as a network of the same widths, float64: W_l and b_l of one layer are projected."""
    basis = next(cut for cut in _places(net, x) if cut.layer == layer).principal(k)
    assert basis.directions is not None
    onto = basis.directions @ basis.directions.T
    weights = [w.detach().double() for w in net.weights]
    biases = [b.detach().double() for b in net.biases]
    weights[layer - 1] = onto @ weights[layer - 1]
    biases[layer - 1] = basis.origin + onto @ (biases[layer - 1] - basis.origin)
    return from_layers(weights, biases, net.slope)


def _places(net: MLP, x: Tensor) -> list[Cut]:
    with torch.no_grad():
        return [cut for cut in cuts(net, x) if cut.place in ("preactivation", "output")]
