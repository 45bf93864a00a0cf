"""Deeper networks of the same function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.constructions._layers import DOUBLE, Layers, read, two_sided
from bnrank.networks.mlp import MLP, leaky_relu

__all__ = ["deepen"]


def deepen(net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, *, rtol: float = 1e-12) -> MLP:
    """Return a deeper network of the same function, with linear layers inserted where they cost least.

    Without x the function is the same everywhere. Between a ReLU layer of width n and the next, each inserted layer is
    I_n and costs n; the narrowest hidden layer is taken. Where values may be negative (other slopes, and at the input
    and the output) two neurons per coordinate carry z as max(z, 0) and max(-z, 0), at a cost of 2n per layer and
    once for splitting and joining; such a place is taken where it is cheaper in all.

    With x the function is the same on the samples, and wherever the representation lies in their span:
    each inserted layer is the orthogonal projection on span a_l(X) and costs k, its dimension; where a_l(X) has
    negative entries, two neurons per dimension cost 2k. The place (input, hidden layer or output) with the least norm
    in all is taken.

    Inserted layers have bias 0. For a linear network (slope 1) the costs are n and k everywhere.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; left as it is.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, (N, d_in).
    rtol : float
        Singular values of a_l(X) up to ``rtol`` times the largest do not count for the span. The error on the
        samples is of that relative size: a larger one gives an approximate, cheaper network.

    Returns
    -------
    MLP
        In the network's precision.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the network is no such chain.

    Notes
    -----
    Source: T29.

    Examples
    --------
    >>> import bnrank, torch
    >>> net, x = bnrank.MLP([5, 20, 3, 20, 2], seed=0), torch.randn(50, 5)
    >>> deeper = deepen(net, 9)
    >>> deeper.widths, torch.allclose(deeper(x), net(x), atol=1e-5)
    ([5, 20, 3, 3, 3, 3, 3, 3, 20, 2], True)
    """
    layers = read(net, "net")
    depth = validation.integer(depth, "depth", layers.depth)
    rtol = validation.number(rtol, "rtol", 0.0)
    if x is not None:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach().to(layers.device, DOUBLE)
    return inserted(layers, depth, x, rtol).network()


def inserted(layers: Layers, depth: int, x: Tensor | None = None, rtol: float = 1e-12) -> Layers:
    """Return the layers with the cheapest insertion that brings them to the depth; x in float64."""
    extra = depth - layers.depth
    if extra == 0:
        return layers
    best, least = layers, float("inf")
    for place, basis, positive in _places(layers, x, rtol):
        if positive:
            projection, cost = basis @ basis.T, float(extra * basis.shape[1])
            if cost < least:
                best, least = _put(layers, place, [projection] * extra), cost
            continue
        steps = two_sided(basis, extra + 1, layers.slope)
        candidate = _split(layers, place, steps)
        cost = candidate.norm - layers.norm
        if cost < least:
            best, least = candidate, cost
    return best


def _places(layers: Layers, x: Tensor | None, rtol: float) -> Iterator[tuple[int, Tensor, bool]]:
    """Yield a place l = 0..L (hidden layers first), a basis of what passes there, and whether sigma keeps it."""
    linear, relu, last = layers.slope == 1, layers.slope == 0, layers.depth
    values = None if x is None else _values(layers, x)
    for place in [*range(1, last), 0, last]:
        width = layers.weights[place].shape[1] if place < last else len(layers.weights[-1])
        if values is None:
            yield place, torch.eye(width, dtype=DOUBLE, device=layers.device), linear or (relu and 0 < place < last)
        else:
            _, s, vh = torch.linalg.svd(values[place], full_matrices=False)
            yield place, vh[s > rtol * s[0]].T, linear or bool((values[place] >= 0).all())


def _values(layers: Layers, x: Tensor) -> list[Tensor]:
    """Return a_0, ..., a_{L-1} and f on the samples."""
    values = [x]
    for i, weight in enumerate(layers.weights):
        z = values[-1] @ weight.T + (layers.biases[i] if layers.biases else 0)
        values.append(z if i == layers.depth - 1 else leaky_relu(z, layers.slope))
    return values


def _put(layers: Layers, place: int, steps: list[Tensor]) -> Layers:
    zeros = [step.new_zeros(len(step)) for step in steps]
    return replace(
        layers,
        weights=[*layers.weights[:place], *steps, *layers.weights[place:]],
        biases=layers.biases and [*layers.biases[:place], *zeros, *layers.biases[place:]],
    )


def _split(layers: Layers, place: int, steps: list[Tensor]) -> Layers:
    """Insert layers of which the last (at the output: the first) merges with the layer next to it."""
    weights, biases = list(layers.weights), list(layers.biases)
    if place < layers.depth:
        weights[place] = weights[place] @ steps[-1]
        return _put(replace(layers, weights=weights), place, steps[:-1])
    weights[-1] = steps[0] @ weights[-1]
    if biases:
        biases[-1] = steps[0] @ biases[-1]
    return _put(replace(layers, weights=weights, biases=biases), place, steps[1:])
