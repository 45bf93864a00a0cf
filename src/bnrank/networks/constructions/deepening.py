"""Deeper networks with the same function."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.mlp import MLP, leaky_relu


def deepen(net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, *, rtol: float = 1e-12) -> MLP:
    """Return a deeper network with the same function, with linear layers inserted where they increase the norm least.

    Without x the function is preserved everywhere. After a ReLU layer of width n, each inserted layer is I_n and adds n
    to the norm; among these, the narrowest hidden layer is best. Where values can be negative (other slopes, the input,
    the output), two neurons per coordinate represent z as max(z, 0) and max(-z, 0). This adds 2n per layer, plus the
    cost of splitting and joining once. The position with the lowest total cost is chosen.

    With x the function is preserved on the samples, and wherever the representation lies in their span. Each inserted
    layer is the orthogonal projection onto span a_l(X) and adds its dimension k to the norm, or 2k with two neurons per
    dimension if a_l(X) has negative entries. The position (input, hidden layer or output) with the lowest total norm is
    chosen.

    Inserted layers have zero bias. For a linear network (slope 1) the costs are n and k at every position.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; it is not modified.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, shape (N, d_in).
    rtol : float
        Singular values of a_l(X) up to ``rtol`` times the largest are excluded from the span. The relative error on the
        samples is of this size; a larger ``rtol`` gives an approximate network of lower norm.

    Returns
    -------
    MLP
        In the precision of ``net``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the network is not such a chain.

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
    layers = read_chain(net, "net")
    depth = validation.integer(depth, "depth", layers.depth)
    validation.allocation(256 * depth, "depth", depth)
    rtol = validation.number(rtol, "rtol", 0.0)
    if x is not None:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach().to(layers.device, torch.float64)
    return inserted(layers, depth, x, rtol).network()


def inserted(layers: Chain, depth: int, x: Tensor | None = None, rtol: float = 1e-12) -> Chain:
    """Return the layers with the insertion of lowest cost that reaches ``depth``; ``x`` is in float64."""
    extra = depth - layers.depth
    if extra == 0:
        return layers
    best, lowest = layers, float("inf")
    for place, basis, positive in _places(layers, x, rtol):
        if positive:
            candidate = _put(layers, place, [basis @ basis.T] * extra)
            cost = float(extra * basis.shape[1])
        else:
            candidate = _split(layers, place, two_sided(basis, extra + 1, layers.slope))
            cost = candidate.norm - layers.norm
        if cost < lowest:
            best, lowest = candidate, cost
    return best


def _places(layers: Chain, x: Tensor | None, rtol: float) -> Iterator[tuple[int, Tensor, bool]]:
    """Yield each position l = 0..L, hidden layers first, a basis of its values, and whether sigma preserves them."""
    linear, relu, last = layers.slope == 1, layers.slope == 0, layers.depth
    values = None if x is None else _values(layers, x)
    for place in [*range(1, last), 0, last]:
        width = layers.weights[place].shape[1] if place < last else len(layers.weights[-1])
        if values is None:
            basis, positive = torch.eye(width, dtype=torch.float64, device=layers.device), relu and 0 < place < last
        else:
            _, s, vh = torch.linalg.svd(values[place], full_matrices=False)
            basis, positive = vh[: int(linalg.rank(s, rtol))].T, bool((values[place] >= 0).all())
        yield place, basis, linear or positive


def _values(layers: Chain, x: Tensor) -> list[Tensor]:
    """Return a_0, ..., a_{L-1} and f on the samples."""
    values = [x]
    for i, weight in enumerate(layers.weights):
        z = values[-1] @ weight.T + (layers.biases[i] if layers.biases else 0)
        values.append(z if i == layers.depth - 1 else leaky_relu(z, layers.slope))
    return values


def _put(layers: Chain, place: int, steps: list[Tensor]) -> Chain:
    zeros = [step.new_zeros(len(step)) for step in steps]
    return replace(
        layers,
        weights=[*layers.weights[:place], *steps, *layers.weights[place:]],
        biases=layers.biases and [*layers.biases[:place], *zeros, *layers.biases[place:]],
    )


def _split(layers: Chain, place: int, steps: list[Tensor]) -> Chain:
    """Return a chain with inserted layers.

    The last inserted layer is merged into the next layer; at the output, the first is merged into the last layer.
    """
    weights, biases = list(layers.weights), list(layers.biases)
    if place < layers.depth:
        weights[place] = weights[place] @ steps[-1]
        return _put(replace(layers, weights=weights), place, steps[:-1])
    weights[-1] = steps[0] @ weights[-1]
    if biases:
        biases[-1] = steps[0] @ biases[-1]
    return _put(replace(layers, weights=weights, biases=biases), place, steps[1:])


def two_sided(basis: Tensor, depth: int, slope: float) -> list[Tensor]:
    """Return layers of the projection U U^T, exact for both signs, for an orthonormal basis U, shape (n, k).

    Each hidden layer has 2k neurons, z_+ and z_-; with slope 1 it has k.
    """
    k = basis.shape[1]
    if depth == 1:
        return [basis @ basis.T]
    eye = torch.eye(k, dtype=basis.dtype, device=basis.device)
    if slope == 1:
        return [basis.T, *[eye] * (depth - 2), basis]
    into, out = torch.cat([basis.T, -basis.T]), torch.cat([basis, -basis], 1)
    if depth == 2:
        return [into, out / (1 + slope)]
    parts = torch.cat([torch.cat([eye, slope * eye], 1), torch.cat([slope * eye, eye], 1)]) / (1 - slope**2)
    both = torch.eye(2 * k, dtype=basis.dtype, device=basis.device)
    return [into, parts, *[both] * (depth - 3), out]
