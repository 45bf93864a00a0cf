"""Growth rate of new neurons at a saddle that is a chain of single neurons, and the predicted exit time (T41)."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.one_neuron import OneNeuron, fastest
from bnrank.networks.mlp import leaky_relu
from bnrank.theory.escape.passes import Pass
from bnrank.theory.escape.reading import Loss, bias_free, gradient_at

SMALL = 0.03  # a neuron whose part in the chain is below this share of the largest is free to join

TURNS = 5  # maximum number of updates of the outgoing direction at kinks
AS_FAST = 0.99  # -v* counts as well if its rate is at least this share of kappa
DRAWN = 12  # candidates of each kind of start at kinks
FOLLOWED = 4  # number of these starts that are searched


@dataclass(frozen=True)
class JoinRate:
    """The fastest growth of a new neuron at a saddle.

    Attributes
    ----------
    kappa, upper : float
        Rate of the fastest neuron found in the requested layers, and an upper bound on the rate. The bound is far above
        ``kappa`` where samples sit on kinks and layer l + 1 has several neurons.
    layer : int
        Hidden layer, from 1, of that neuron.
    direction, output : Tensor
        v*, (n_{l-1},), and u*, (n_{l+1},): unit incoming row and outgoing column of that neuron.
    per_layer : dict
        Layer -> bracket of its rate, with its direction and output.
    amplitude : float
        Size of the growing mode in the current small weights.
    size : float
        Amplitude at which growth ends: the A at which adding the single neuron A v*, A u* lowers the loss most, with
        downstream layers linearized; at most the size of the chain in these layers, sqrt(s_1(W_l) s_1(W_{l+1})).
    predicted_exit : float
        log(size / amplitude) / kappa, the time until growth ends; inf if nothing grows. NaN if undetermined: the search
        finds no growing neuron but the bracket does not exclude one, or one of the two layers is zero, so that no chain
        determines ``size``.
    gradient_norm : float
        ||grad C||_F over all weights; small near a saddle.
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
        """Return log(size / amplitude) / kappa for an amplitude of the growing mode, 0 if it is ``size`` or more.

        Like ``predicted_exit``, it is inf if nothing grows and NaN if undetermined.
        """
        amplitude = validation.number(amplitude, "amplitude", 0.0)
        if amplitude >= self.size > 0:
            return 0.0
        if self.kappa <= 0:
            return math.nan if self.upper > 0 else math.inf
        if amplitude == 0:
            return math.inf
        return math.log(self.size / amplitude) / self.kappa if self.size > 0 else math.nan


def join_rate(
    net: nn.Module,
    loss: Loss,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    *,
    layers: Sequence[int] | None = None,
    starts: int = 32,
    rtol: float = 1e-6,
    kink_rtol: float = 0.0,
    seed: int = 0,
) -> JoinRate:
    """Return the rate kappa at which a small new neuron grows at a saddle of the loss C.

    A neuron of hidden layer l with incoming row a v and outgoing column b u, both small and ||v|| = ||u|| = 1, adds
    a b sum_i u . delta_{l+1,i} sigma(v . a_{l-1,i}) to C, with delta_{l+1} = dC/d(preactivation of layer l + 1). With u
    opposite to the sum, and the best v,

        kappa_l = max_{||v|| = 1} || sum_i sigma(v . a_{l-1,i}) delta_{l+1,i} ||,

    gradient flow gives da/dt = kappa b, db/dt = kappa a, so the neuron grows like exp(kappa t). The rate kappa_l is the
    speed of one neuron (:func:`~bnrank.theory.escape.one_neuron.rank_one_speed`) with X = a_{l-1} and G = delta_{l+1}.
    At a saddle of a ReLU network that is a chain of single neurons, kappa_l is 0 for l >= 2: all inputs of the layer
    are non-negative multiples of one direction, and since the chain is stationary, the sum vanishes for every v. So new
    neurons join in the first layer.

    Samples on which the chain is silent have preactivations of exactly 0 from layer 2 on, and sit on kinks. A neuron
    with u > 0 activates them (sigma' = 1), one with u < 0 does not (sigma' = 0). There delta_{l+1} is one-sided and
    depends on u; for a leaky ReLU, whose sigma(v . a) has both signs, it also depends on the sample. With one neuron in
    layer l + 1, u is 1 or -1, and both are searched for the best v. In wider layers, u and v are optimized alternately
    from many starts, which may miss the maximum. The upper end of the bracket lets every neuron and sample choose its
    side independently:

        kappa_l <= max_v || sum_i sigma(v . a_i) c_i || + max_v || sum_i |sigma(v . a_i)| r_i ||

    with centers c_i and radii r_i of intervals that contain delta_{l+1,i}. This bound is valid, but seldom tight. If no
    sample is silent, sum_i delta_{2,i} x_i^T = 0 at the saddle, and -v* is as fast as v*: neurons may join on both
    sides.

    The amplitude is computed from the weights. The chain is the pair (v_1, c_1) of the top right singular vector of W_l
    and the top left singular vector of W_{l+1}; in a wide network it is spread over many neurons. The part of a neuron
    in the chain is alpha times this pair, alpha = max(min(row . v_1, column . c_1), 0), and is subtracted from its row
    and column. Neurons for which alpha exceeds the norm of the remainder belong to the chain, unless alpha is below 3
    percent of the largest; the others are free to join. With r_j and c_j the remaining row and column, the growing mode
    is (r_j . v* + c_j . u*)/2, or the same at -v* if that is as fast and gives more. The amplitude is the root of the
    sum of the squares of the positive values of the free neurons. The predicted exit is accurate up to a time of order
    1 / kappa, in which small neurons align with v* and large ones leave the linear regime.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Depth 2 or more, without biases; ReLU, leaky ReLU or linear. It should be at or near a saddle; check
        ``gradient_norm``.
    loss : "mse", "cross_entropy" or callable
        The named losses are means over samples; "mse" sums over outputs, without a factor 1/2. A callable takes the
        outputs, (N, d_out), and ``y``, and returns a scalar tensor.
    x : Tensor or ndarray
        Samples, (N, d_in); a random subset of a large data set suffices.
    y : Tensor or ndarray
        Targets, (N, d_out), or class indices, (N,).
    layers : sequence of int, optional
        Hidden layers, from 1 to L - 1. Default: all.
    starts : int
        Number of ascents per layer.
    rtol : float
        Directions of a_{l-1} and delta_{l+1} with singular values below this share of the largest are left out of the
        search; the bracket covers them. 1e-3 makes wide layers several times faster.
    kink_rtol : float
        A preactivation whose absolute value is at most this times the largest in its layer counts as 0. Values above 0
        make sense if the small weights give silent samples small preactivations, which a growing neuron soon exceeds.
    seed : int
        Random seed of the starts.

    Returns
    -------
    JoinRate

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the network has biases or no hidden layer. RangeError, a ValueError, if the
        outputs or the rate overflow.

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
    chain = bias_free(net)
    validation.expect(chain.depth >= 2, "net", "depth 1", "at least one hidden layer that neurons can join")
    hidden = range(1, chain.depth)
    layers = sorted(layers) if isinstance(layers, set | frozenset) else layers
    layers = hidden if layers is None else validation.integers(layers, "layers")
    inside = len(layers) > 0 and max(layers) in hidden
    validation.expect(inside, "layers", f"{layers}", f"hidden layers, from 1 to {chain.depth - 1}")
    seed = validation.seed(seed)
    rtol = validation.number(rtol, "rtol", 0.0)
    samples = validation.samples(x, "x", features=chain.weights[0].shape[1]).detach().cpu().double()
    here = Pass(chain, loss, samples, y, validation.number(kink_rtol, "kink_rtol", 0.0))
    search = functools.partial(fastest, slope=chain.slope, starts=starts, steps=100, seed=seed, rank_rtol=rtol)
    per_layer = {layer: _rate(here, layer, search, seed) for layer in layers}
    layer = max(per_layer, key=lambda number: per_layer[number].lower)
    best = per_layer[layer]
    response, sides = _sides(here, layer, best)
    amplitude, chain_size = _amplitude(here.weights[layer - 1], here.weights[layer], sides)
    size = _saturation(here, response, chain_size) if best.lower > 0 else chain_size
    upper, norm = max(found.upper for found in per_layer.values()), here.gradient_norm()
    rate = JoinRate(best.lower, upper, layer, best.direction, best.output, per_layer, amplitude, size, math.inf, norm)
    return replace(rate, predicted_exit=rate.exit_after(amplitude))


def exit_time(net: nn.Module, loss: Loss, x: Tensor | np.ndarray, y: Tensor | np.ndarray, **options: Any) -> float:
    """Return the predicted time until joining neurons have grown to their final size, starting from these weights.

    Parameters
    ----------
    net, loss, x, y, **options
        As in :func:`join_rate`.

    Returns
    -------
    float
        ``join_rate(...).predicted_exit``; inf if nothing grows, NaN if undetermined.

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


def _rate(here: Pass, layer: int, search: Callable[..., OneNeuron], seed: int) -> OneNeuron:
    """Return the bracket of kappa_l; one-sided derivatives are used for samples on kinks above layer l."""
    inputs = here.activations[layer - 1].numpy()
    center, radius = here.delta_range(layer + 1)
    found = search(inputs, here.delta(layer + 1).numpy())
    if not radius.any():
        return found
    width = here.weights[layer].shape[0]
    if width == 1:  # u is 1 or -1
        tried = [_one_sided(here, layer, torch.tensor([u], dtype=center.dtype), search) for u in (1.0, -1.0)]
        best = max(tried, key=lambda neuron: neuron.lower)
        return replace(best, upper=max(neuron.upper for neuron in tried), exact=all(neuron.exact for neuron in tried))
    other = search(inputs, here.delta(layer + 1, open_kinks=True).numpy())
    columns = [sign * u for u in (found.output, other.output) for sign in (1.0, -1.0) if u.any()]
    columns += _starts(here, layer, [found.direction, other.direction], columns, seed)
    best = max((_one_sided(here, layer, u, search) for u in _distinct(columns)), key=lambda neuron: neuron.lower)
    spread = search(inputs, radius.numpy(), slope=-abs(here.slope)).upper  # |sigma_s| = sigma_{-|s|}
    upper = max(search(inputs, center.numpy()).upper + spread, best.lower)
    return replace(best, upper=upper, exact=False, method="sides")


def _one_sided(here: Pass, layer: int, u: Tensor, search: Callable[..., OneNeuron]) -> OneNeuron:
    """Return the fastest neuron with outgoing direction u, alternating with updates of u while the rate increases.

    A leaky neuron adds u sigma(v . a) where v . a > 0, and -u s |v . a| elsewhere. At kinks, the layers above respond
    to them with different one-sided derivatives, so it is treated as a ReLU neuron on the samples and their negatives.
    """
    inputs = here.activations[layer - 1].numpy()
    best: OneNeuron | None = None
    for _ in range(TURNS):
        fall = _fall(here, layer, u)
        if here.slope > 0:
            twice = np.concatenate([fall, here.slope * _fall(here, layer, -u)])
            found = search(np.concatenate([inputs, -inputs]), twice, slope=0.0, signed=True)
        else:
            found = search(inputs, fall, signed=True)
        if best is not None and found.lower <= best.lower * (1 + 1e-9):
            break
        best = replace(found, output=u)
        if len(u) == 1 or found.lower == 0:
            break
        u = _turned(here, layer, found.direction, u)
    assert best is not None
    return best


def _fall(here: Pass, layer: int, u: Tensor) -> np.ndarray:
    """Return the decrease of the loss per sample, (N, 1), for a small change u of the preactivations of layer + 1."""
    response = here.respond(layer + 1, u.expand(len(here.outputs), -1))[0]
    return -(response * here.at_outputs).sum(1, keepdim=True).numpy()


def _gain(here: Pass, layer: int, v: Tensor, u: Tensor) -> float:
    change = torch.outer(leaky_relu(here.activations[layer - 1] @ v, here.slope), u)
    return -float((here.respond(layer + 1, change)[0] * here.at_outputs).sum())


def _turned(here: Pass, layer: int, v: Tensor, u: Tensor) -> Tensor:
    """Return the best unit u for v; kinks of layer l + 1 take the new u into account, those above keep the given u."""
    signal = leaky_relu(here.activations[layer - 1] @ v, here.slope)
    change, side = torch.outer(signal, u), signal[:, None].expand(-1, len(u))
    up = -(here.respond(layer + 1, change, side)[1].T @ signal)
    down = here.respond(layer + 1, change, -side)[1].T @ signal
    best = torch.where(up >= down, up.clamp(min=0), -down.clamp(min=0))
    norm = best.norm()
    return best / norm if norm > 0 else u


def _starts(here: Pass, layer: int, directions: list[Tensor], columns: list[Tensor], seed: int) -> list[Tensor]:
    """Return promising outgoing directions: from axes, deltas and random vectors, with the best incoming directions."""
    generator = torch.Generator().manual_seed(seed)
    inputs, width = here.activations[layer - 1], here.weights[layer].shape[0]

    def some(rows: Tensor) -> Tensor:
        rows = rows[rows.any(1)]
        rows = rows[torch.randperm(len(rows), generator=generator)[:DRAWN]]
        return rows / rows.norm(dim=1, keepdim=True)

    drawn = torch.randn(DRAWN, inputs.shape[1], generator=generator, dtype=inputs.dtype)
    v = torch.cat([torch.stack(directions), some(inputs), drawn / drawn.norm(dim=1, keepdim=True)])
    v = torch.cat([v, -v])
    signals = leaky_relu(inputs @ v.T, here.slope).numpy()
    deltas = torch.cat([here.delta(layer + 1), here.delta(layer + 1, open_kinks=True)])
    rows = [some(torch.eye(width, dtype=inputs.dtype)), some(deltas)]
    u = torch.cat([*rows, *(-part for part in rows), torch.randn(DRAWN, width, generator=generator).double()])
    scored = []
    for column in [*columns, *(u / u.norm(dim=1, keepdim=True))]:
        above, below = _fall(here, layer, column), _fall(here, layer, -column)
        gains = (np.maximum(signals, 0) * above + np.maximum(-signals, 0) * below).sum(0)
        best = v[int(gains.argmax())]
        turned = _turned(here, layer, best, column)
        scored.append((_gain(here, layer, best, turned), turned))
    scored.sort(key=lambda pair: -pair[0])
    return _distinct([turned for gain, turned in scored if gain > 0])[:FOLLOWED] or [u[0]]


def _distinct(columns: list[Tensor]) -> list[Tensor]:
    kept: list[Tensor] = []
    for u in columns:
        if all(float(u @ v) < 1 - 1e-9 for v in kept):
            kept.append(u)
    return kept


def _sides(here: Pass, layer: int, best: OneNeuron) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the output change due to the unit neuron, and the pairs (v*, u*): also the pair at -v* if as fast."""
    inputs = here.activations[layer - 1] @ best.direction
    response = here.respond(layer + 1, torch.outer(leaky_relu(inputs, here.slope), best.output))[0]
    sides = [(best.direction, best.output)]
    turned = [_turned(here, layer, -best.direction, u) for u in (best.output, -best.output)]
    gains = [_gain(here, layer, -best.direction, u) for u in turned]
    if max(gains) > max(AS_FAST * best.lower, 0.0):
        sides.append((-best.direction, turned[int(np.argmax(gains))]))
    return response, sides


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
    size = math.sqrt(float(s[0])) * math.sqrt(float(t[0]))
    return float(modes[free].clamp(min=0).norm()), size


def _saturation(here: Pass, response: Tensor, chain: float) -> float:
    """Return the A, at most ``chain``, that minimizes C(f + A^2 h); h is the output change due to the unit neuron."""
    unit = response / response.abs().max().clamp(min=np.finfo(float).tiny)

    def derivative(square: float) -> float:
        return float((gradient_at(here.loss, here.outputs + square * response, here.y) * unit).sum())

    if not (chain > 0 and derivative(0.0) < 0 < derivative(chain**2)):
        return chain
    from scipy.optimize import brentq

    return math.sqrt(brentq(derivative, 0.0, chain**2, xtol=1e-12 * chain**2, rtol=1e-9))
