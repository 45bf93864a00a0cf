"""A network cut to k dimensions, trained on at that size."""

from __future__ import annotations

import torch
from torch import nn

from bnrank.discovery.estimators.coordinates import coordinates
from bnrank.discovery.estimators.path import Data, finished
from bnrank.networks.mlp import MLP, from_layers
from bnrank.training import Record, train

__all__ = ["polish"]


def polish(net: MLP, data: Data, layer: int, k: int, ridge: float, steps: int) -> MLP:
    """Train h o g through exactly k dimensions, from where the cut network is.

    W_l = up down is a product of two factors of inner dimension k that are trained with all other parameters, so that
    the dimension stays k; the product goes back into W_l.

    Returns
    -------
    MLP
        A network of the same widths, float64, whose layer ``layer`` has rank k.
    """
    task = data.task()
    split = coordinates(net, task.x, layer, k)
    both = nn.Sequential(split.encoder.float(), split.decoder.float())
    run = train(
        both, task, ridge=ridge, steps=steps, optimizer="lbfgs", record=Record(every=steps, top_k=1), progress=False
    )
    trained = finished(run)
    assert isinstance(trained, nn.Sequential)
    g, h = trained[0], trained[1]
    assert isinstance(g, MLP)
    assert isinstance(h, MLP)
    g, h = g.double(), h.double()
    with torch.no_grad():
        joined = h.weights[0] @ g.weights[-1]
        bias = h.weights[0] @ g.biases[-1] + h.biases[0]
    return from_layers([*g.weights[:-1], joined, *h.weights[1:]], [*g.biases[:-1], bias, *h.biases[1:]], net.slope)
