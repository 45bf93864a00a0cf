"""How fast new neurons join the chain at a saddle, and when they are there (T41)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from bnrank import _validate
from bnrank.networks.mlp import leaky_relu
from bnrank.theory.escape.one_neuron import OneNeuron, fastest
from bnrank.theory.escape.passes import Pass, bias_free

__all__ = ["JoinRate", "exit_time", "join_rate"]

SMALL = 0.03  # of the largest part in the chain: neurons that may join in any case

TURNS = 5  # of the outgoing direction, at kinks
AS_FAST = 0.99  # of kappa: -v* counts as well


@dataclass(frozen=True)
class JoinRate:
    """The fastest growth of a new neuron at a saddle.

    Attributes
    ----------
    kappa, upper : float
        Bracket of the rate: of the fastest neuron found in any layer that was asked for, and a bound that none
        exceeds.
    layer : int
        Hidden layer, from 1, of that neuron.
    direction, output : Tensor
        v*, (n_{l-1},), and u*, (n_{l+1},): unit incoming row and outgoing column of that neuron.
    per_layer : dict
        Layer -> its rate, a bracket with direction and output of its own.
    amplitude : float
        Size of what of the growing mode is in the small weights already.
    size : float
        Where growth ends: the A at which the neuron A v*, A u*, added alone, lowers the loss most, with downstream
        layers linearised; at most the size of the chain in these layers, sqrt(s_1(W_l) s_1(W_{l+1})).
    predicted_exit : float
        log(size / amplitude) / kappa, the time until growth ends; inf where nothing grows.
    gradient_norm : float
        ||grad C||_F over all weights: how near to a saddle the network is.
    """

    kappa: float
    upper: float
    layer: int
    direction: Tensor
    output: Tensor
    per_layer: dict[int, OneNeuron]
    amplitude: float
    size: float
    predicted_exit: float
    gradient_norm: float

    def exit_after(self, amplitude: float) -> float:
        """Return log(size / amplitude) / kappa for an amplitude of the growing mode, 0 if it is ``size`` or more."""
        amplitude = _validate.number(amplitude, "amplitude", 0.0)
        if amplitude >= self.size > 0:
            return 0.0
        return math.log(self.size / amplitude) / self.kappa if amplitude > 0 and self.kappa > 0 else math.inf


def join_rate(
    net: nn.Module,
    loss: str | Callable[..., Any],
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    *,
    layers: Sequence[int] | None = None,
    starts: int = 32,
    compress: float = 1e-6,
    kink: float = 0.0,
    seed: int = 0,
) -> JoinRate:
    """Return the rate kappa at which a small new neuron grows at a saddle of the loss C.

    A neuron of hidden layer l with incoming row a v and outgoing column b u, both small and ||v|| = ||u|| = 1, adds
    a b sum_i u . delta_{l+1,i} sigma(v . a_{l-1,i}) to C, with delta_{l+1} = dC/d(preactivation of layer l + 1). With u
    against the sum, and the best v,

        kappa_l = max_{||v|| = 1} || sum_i sigma(v . a_{l-1,i}) delta_{l+1,i} ||,

    gradient flow has da/dt = kappa b, db/dt = kappa a, so that the neuron grows like exp(kappa t). It is the speed of
    one neuron (:func:`~bnrank.theory.escape.one_neuron.rank_one_speed`) with X = a_{l-1} and G = delta_{l+1}. At a
    saddle that is a chain of single neurons, kappa_l is 0 for l >= 2: there all inputs of the layer are multiples of
    one direction, and to grow along it is what the chain does not want. So new neurons join in the first layer.

    Samples on which the chain is silent have preactivations of exactly 0 from layer 2 on, and sit on kinks. A neuron
    with u > 0 opens them, sigma' = 1, one with u < 0 does not, sigma' = 0: there delta_{l+1} is one-sided and depends
    on u. Both kinds are searched, u in turn with v. With one neuron in layer l + 1 they are all there is; in wider
    layers the upper end of the bracket is that of neurons that open all such samples or none. Where no sample is
    silent, sum_i delta_{2,i} x_i^T = 0 at the saddle, and -v* is as fast as v*: neurons may join on both sides.

    The amplitude is read off the weights. The chain is the pair v_1, c_1 of the top right singular vector of W_l and
    the top left one of W_{l+1}, spread over many neurons in a wide network. What row and column of a neuron have in
    common with it, alpha = min(row . v_1, column . c_1) times the pair if positive, is taken away. Neurons for which
    alpha exceeds what remains belong to the chain, unless alpha is below 3 percent of the largest; the others are free
    to join. With r_j and c_j the row and the column that remain, the growing mode is (r_j . v* + c_j . u*)/2, or the
    same at -v* where that is as fast, and the amplitude is the root of the sum of squares of those that are positive.
    The predicted exit is good up to a time of order 1 / kappa, in which small neurons turn to v* and large ones leave
    the linear regime.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Depth 2 or more, without biases; ReLU, leaky ReLU or linear. At or near a saddle: ``gradient_norm`` tells.
    loss : "mse", "cross_entropy" or callable
        The named ones are means over samples, "mse" with the sum over outputs and without 1/2. A callable is given
        outputs, (N, d_out), and ``y``, and returns a tensor of one number.
    x : Tensor or ndarray
        Samples, (N, d_in); a random part of a large data set will do.
    y : Tensor or ndarray
        (N, d_out), or class numbers, (N,).
    layers : sequence of int, optional
        Hidden layers to look at, 1 to L - 1; all without it.
    starts : int
        Ascents of each layer.
    compress : float
        Directions of a_{l-1} and delta_{l+1} with singular values below this share of the largest are left out of the
        search; the bracket covers them. 1e-3 makes wide layers several times faster.
    kink : float
        A preactivation of at most this times the largest of its layer counts as 0. Values above 0 make sense where the
        small weights give silent samples small preactivations, which a growing neuron soon exceeds.
    seed : int
        Of the starts.

    Returns
    -------
    JoinRate

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the network has biases or no hidden layer.

    Notes
    -----
    Source: T41.

    Examples
    --------
    >>> from bnrank.networks import from_layers
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> chain = [torch.tensor([[1.0, 0.0], [0.0, 1e-3]]), torch.tensor([[1.0, 1e-3]])]  # a second, small neuron
    >>> rate = join_rate(from_layers(chain, slope=0.0), "mse", x, torch.ones(2, 1))
    >>> round(rate.kappa, 4), rate.layer, round(rate.predicted_exit, 2), round(math.log(1e3) / rate.kappa, 2)
    (1.0, 1, 6.91, 6.91)
    """
    mlp = bias_free(net)
    depth = len(mlp.weights)
    asked = range(1, depth) if layers is None else [_validate.integer(layer, "layers") for layer in layers]
    if not len(asked) or max(asked) > depth - 1:
        raise ValueError(f"layers: got {list(asked)}, expected hidden layers, from 1 to {depth - 1}")
    starts, seed = _validate.integer(starts, "starts"), _validate.integer(seed, "seed", 0)
    compress = _validate.number(compress, "compress", 0.0)
    samples = _validate.samples(x, "x", features=mlp.widths[0]).detach().cpu().double()
    here = Pass(mlp, loss, samples, y, _validate.number(kink, "kink", 0.0))
    search = functools.partial(fastest, slope=mlp.slope, starts=starts, steps=100, seed=seed, compress=compress)
    per_layer = {layer: _rate(here, layer, search) for layer in asked}
    layer = max(per_layer, key=lambda number: per_layer[number].lower)
    best = per_layer[layer]
    response, sides = _sides(here, layer, best)
    amplitude, chain = _amplitude(here.weights[layer - 1], here.weights[layer], sides)
    size = _saturation(here, response, chain) if best.lower > 0 else chain
    rate = JoinRate(
        best.lower,
        max(found.upper for found in per_layer.values()),
        layer,
        best.direction,
        best.output,
        per_layer,
        amplitude,
        size,
        math.inf,
        here.gradient_norm(),
    )
    return replace(rate, predicted_exit=rate.exit_after(amplitude))


def exit_time(
    net: nn.Module, loss: str | Callable[..., Any], x: Tensor | np.ndarray, y: Tensor | np.ndarray, **options: Any
) -> float:
    """Return the predicted time until joining neurons have grown to their full size, from the weights as they are.

    Parameters
    ----------
    net, loss, x, y, **options
        As in :func:`join_rate`.

    Returns
    -------
    float
        ``join_rate(...).predicted_exit``; inf where nothing grows.

    Raises
    ------
    TypeError, ValueError
        As :func:`join_rate`.

    Notes
    -----
    Source: T41.

    Examples
    --------
    >>> from bnrank.networks import from_layers
    >>> chain = [torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0]])]  # nothing small is left
    >>> exit_time(from_layers(chain, slope=0.0), "mse", torch.eye(2), torch.ones(2, 1))
    inf
    """
    return join_rate(net, loss, x, y, **options).predicted_exit


def _rate(here: Pass, layer: int, search: Callable[..., OneNeuron]) -> OneNeuron:
    """Return kappa_l; where samples sit on kinks above layer l, of one-sided changes."""
    inputs = here.activations[layer - 1].numpy()
    shut, opened = here.delta(layer + 1), here.delta(layer + 1, open_kinks=True)
    found = search(inputs, shut.numpy())
    if torch.equal(shut, opened):
        return found
    other = search(inputs, opened.numpy())
    columns = [sign * u for u in (found.output, other.output) for sign in (1.0, -1.0) if u.any()]
    tried = [_one_sided(here, layer, u, search) for u in _distinct(columns)]
    if not tried:
        return found
    best = max(tried, key=lambda neuron: neuron.lower)
    if here.weights[layer].shape[0] == 1:  # u is 1 or -1, and both were tried
        upper, exact = max(neuron.upper for neuron in tried), all(neuron.exact for neuron in tried)
    else:
        upper, exact = max(found.upper, other.upper, best.upper), False
    return replace(best, upper=upper, exact=exact)


def _one_sided(here: Pass, layer: int, u: Tensor, search: Callable[..., OneNeuron]) -> OneNeuron:
    """Return the fastest neuron with outgoing direction u, then turn u and look again, while that helps."""
    inputs = here.activations[layer - 1]
    best: OneNeuron | None = None
    for _ in range(TURNS):
        response, delta = here.respond(layer + 1, u.expand(len(inputs), -1))
        fall = -(response * here.at_outputs).sum(1, keepdim=True)
        found = search(inputs.numpy(), fall.numpy(), signed=True)
        if best is not None and found.lower <= best.lower * (1 + 1e-9):
            break
        best = replace(found, output=u)
        if len(u) == 1 or found.lower == 0:
            break
        u = -(delta.T @ leaky_relu(inputs @ found.direction, here.slope))
        u = u / u.norm()
    assert best is not None
    return best


def _distinct(columns: list[Tensor]) -> list[Tensor]:
    kept: list[Tensor] = []
    for u in columns:
        if all(float(u @ v) < 1 - 1e-9 for v in kept):
            kept.append(u)
    return kept


def _sides(here: Pass, layer: int, best: OneNeuron) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the change of outputs by the unit neuron, and (v*, u*), and the same at -v* where that is as fast."""
    inputs = here.activations[layer - 1] @ best.direction
    change = torch.outer(leaky_relu(inputs, here.slope), best.output)
    response, delta = here.respond(layer + 1, change)
    other = delta.T @ leaky_relu(-inputs, here.slope)
    rate = float(other.norm())
    mirrored = [(-best.direction, -other / rate)] if rate > AS_FAST * best.lower and rate > 0 else []
    return response, [(best.direction, best.output), *mirrored]


def _amplitude(below: Tensor, above: Tensor, sides: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return the amplitude of the growing mode in W_l and W_{l+1}, and the size of the chain."""
    u, s, vt = torch.linalg.svd(below, full_matrices=False)
    c, t, wt = torch.linalg.svd(above, full_matrices=False)
    largest = int(u[:, 0].abs().argmax())
    v_1, c_1 = vt[0] * torch.sign(u[largest, 0]), c[:, 0] * torch.sign(wt[0, largest])
    in_chain = torch.minimum(below @ v_1, above.T @ c_1).clamp(min=0)
    rows, columns = below - torch.outer(in_chain, v_1), above - torch.outer(c_1, in_chain)
    left = torch.hypot(rows.norm(dim=1), columns.norm(dim=0))
    free = (in_chain <= left) | (in_chain <= SMALL * in_chain.max())
    modes = torch.stack([rows @ v + columns.T @ u for v, u in sides]).amax(0) / 2
    size = math.sqrt(float(s[0] * t[0]))
    return float(modes[free].clamp(min=0).norm()), size


def _saturation(here: Pass, response: Tensor, chain: float) -> float:
    """Return the A, at most ``chain``, at which C(f + A^2 h) is least, h the change of outputs by the unit neuron."""

    def derivative(square: float) -> float:
        return float((here.gradient_at(here.outputs + square * response) * response).sum())

    if not (chain > 0 and derivative(0.0) < 0 < derivative(chain**2)):
        return chain
    return math.sqrt(brentq(derivative, 0.0, chain**2, xtol=1e-12 * chain**2, rtol=1e-9))
