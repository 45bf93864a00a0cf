"""The smallest residual of T36 over the subgradients at ReLU kinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import subgradients
from bnrank.theory.escape import reading

Array = np.ndarray
KINK_RTOL = 1e-6
BLOCK = 1 << 24  # entries of the activations, and of the matrix of derivatives, that are held at a time
MAX_KINKS = 3000  # largest number of kinks to optimize over
DIGITS = 11  # sample directions that agree to this many digits count as equal


@dataclass(frozen=True)
class Stationarity:
    """The residual of T36, minimized over the subgradients at the kinks, and these kinks.

    Attributes
    ----------
    residual : float
        min ||grad L0 + s theta|| / (s ||theta||) over the subgradients, on the sphere ||theta||^2 = L; inf if s <= 0.
    plain : float
        The residual with relu'(0) = 0 at preactivations that are exactly 0, and the ordinary derivative elsewhere.
    speed : float
        s = -L0.
    kinks : int
        Number of pairs (neuron, sample) at a kink that affect the gradient.
    layers, neurons, samples : ndarray, (kinks,)
        Indices of the kinks; layers from 1, the others from 0.
    derivatives : ndarray, (kinks,)
        The derivatives of the activation at the kinks that give the smallest residual.
    groups, sides : ndarray, (kinks,)
        Kinks of one group, numbered from 0, share one unknown alpha: the derivative is alpha if the side is 1, and
        1 + slope - alpha if it is -1.
    """

    residual: float
    plain: float
    speed: float
    kinks: int = 0
    layers: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    neurons: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    samples: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    derivatives: Array = field(default_factory=lambda: np.zeros(0))
    groups: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    sides: Array = field(default_factory=lambda: np.zeros(0, dtype=int))


def residual(net: nn.Module, x: Tensor | Array, g: Tensor | Array, kink_rtol: float = KINK_RTOL) -> float:
    """Return the relative residual of the equation of an escape direction, 0 at an escape direction (T36).

    The network is scaled to the sphere ||theta||^2 = L. There grad L0(theta) = -s theta at an escape direction, with
    s = -L0(theta) > 0 its speed (T36), and this returns min ||grad L0 + s theta|| / (s ||theta||). The minimum is over
    the derivatives of the activation at all pairs of a neuron and a sample whose preactivation is 0 up to rounding. A
    derivative is any number from the slope to 1, with two constraints: samples that are positive multiples of each
    other share one number alpha, and in the first layer negative multiples have 1 + slope - alpha.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Without biases; any norm.
    x, g : Tensor or ndarray
        X, (N, d_in), and G, (N, d_out), the gradient of the loss at zero output.
    kink_rtol : float
        A preactivation sum_j W_ij a_j counts as 0 up to this times |W_i| |a|, a bound on the cosine of the angle
        between them. If an a_j is itself the activation of a neuron that counts as 0, its possible error is added.

    Returns
    -------
    float
        inf if s <= 0, as the loss does not fall along such a direction.

    Raises
    ------
    TypeError, ValueError
        If the network has biases or is not a chain of linear layers with one activation, x or g is zero, or sizes
        differ.

    Notes
    -----
    Relation to the Clarke subdifferential of L0: with kinks in one layer, the gradients considered here contain it, and
    the residual is at most the relative distance of -s theta from it. The residual is smaller, and can be 0 at a point
    that is not stationary, if samples at the kinks of a neuron are linearly dependent without being multiples (such as
    x, x' and x + x'): then not all combinations of derivatives between the slope and 1 occur. With kinks in several
    layers, the subdifferential is the convex hull of the limits of gradients, and products of derivatives do not reach
    all of it: the residual can be smaller or larger than the distance.

    With kinks in one layer, the minimum is a bounded linear least-squares problem. With kinks in several layers, the
    problem is multilinear, and the result is an upper bound: the best value that Gauss-Newton steps reach from a few
    starts. With more than 3,000 kinks, only the nearest 3,000 are used, which again gives an upper bound. Source: T36,
    T40; Bantzis2025, section 2.2.

    Examples
    --------
    At T40's direction the plain gradient does not satisfy the equation, a subgradient does.

    >>> import bnrank, torch
    >>> from bnrank.theory.escape.stationarity import examine, residual
    >>> task = bnrank.tasks.circle(dtype=torch.float64)
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    >>> signs = torch.tensor([[1.0, -1.0, 1.0, -1.0]]) / 2
    >>> net = bnrank.networks.from_layers([rows, signs, -torch.ones(1, 1)])
    >>> residual(net, task.x, -task.y) < 1e-12
    True
    >>> round(examine(net, task.x, -task.y).plain, 3)
    0.816
    """
    return examine(net, x, g, kink_rtol).residual


def examine(net: nn.Module, x: Tensor | Array, g: Tensor | Array, kink_rtol: float = KINK_RTOL) -> Stationarity:
    """Return the residual and its kinks as a :class:`Stationarity`; arguments and errors as in :func:`residual`.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.ones(1, 1), torch.ones(1, 1)])            # relu(x)
    >>> x, g = torch.ones(1, 1), -torch.ones(1, 1)
    >>> found = bnrank.escape.examine(net, x, g)
    >>> found.residual < 1e-12, found.kinks, round(found.speed, 9)
    (True, 0, 1.0)
    """
    kink_rtol = validation.number(kink_rtol, "kink_rtol", 0.0)
    x_, g_ = reading.data(x, g)
    weights, slope = reading.network(net, x_.shape[1], g_.shape[1])
    return of_weights(weights, x_, g_, slope, kink_rtol)


def of_weights(
    weights: Sequence[Array], x: Array, g: Array, slope: float, kink_rtol: float = KINK_RTOL
) -> Stationarity:
    """Return the same as :func:`examine`, for W_1, ..., W_L on the sphere ||theta||^2 = L."""
    x, g, units = reading.scaled(x, g)
    size = max(1, BLOCK // sum(len(w) for w in weights))
    smooth, plain = ([np.zeros_like(w) for w in weights] for _ in range(2))  # smooth: from samples without a kink
    touched = []
    for begin in range(0, len(x), size):
        block = _Samples(weights, x[begin : begin + size], g[begin : begin + size], slope, kink_rtol)
        at_kinks = np.any([np.isfinite(near).any(0) for near in block.near], axis=0)
        touched.append(begin + np.flatnonzero(at_kinks))
        for totals, keep in ((plain, slice(None)), (smooth, ~at_kinks)):
            for total, part in zip(totals, block.ascent(block.plain, keep), strict=True):
                total += part
    scale = float((weights[-1] * plain[-1]).sum())  # s of the scaled data
    if not scale > 0:
        return Stationarity(math.inf, math.inf, scale * units)
    unit, speed = scale * math.sqrt(len(weights)), scale * units
    plain_value = subgradients.norm([p - scale * w for p, w in zip(plain, weights, strict=True)]) / unit
    where = np.concatenate(touched)
    if not len(where):
        return Stationarity(plain_value, plain_value, speed)
    rest = [p - scale * w for p, w in zip(smooth, weights, strict=True)]
    near = _Samples(weights, x[where], g[where], slope, kink_rtol)
    kinks = near.kinks()
    alphas, value = _least(near, kinks, rest)
    layers, samples = kinks.layers + 1, where[kinks.samples]
    return Stationarity(
        value / unit, plain_value, speed, len(alphas), layers, kinks.neurons, samples, alphas, kinks.groups, kinks.sides
    )


@dataclass(frozen=True)
class _Kinks:
    """Pairs of a neuron and a sample with preactivation 0, in groups with one unknown alpha each.

    The derivative is alpha on side 1 and 1 + slope - alpha on side -1.
    """

    layers: Array  # of each kink, from 0
    neurons: Array
    samples: Array
    groups: Array
    sides: Array
    first: Array  # kink of each group; its side is 1
    slope: float

    def derivatives(self, free: Array) -> Array:
        """Return the derivatives at all kinks for the unknowns of the groups."""
        return np.where(self.sides > 0, free[self.groups], 1 + self.slope - free[self.groups])


class _Samples:
    """Some samples with their activations, derivatives and kinks."""

    def __init__(self, weights: Sequence[Array], x: Array, g: Array, slope: float, kink_rtol: float) -> None:
        self.weights, self.x, self.g, self.slope = weights, x, g, slope
        self.inputs = [x.T]  # a_0, ..., a_{L-1}, (n_l, N)
        self.plain: list[Array] = []  # derivatives, (n_l, N)
        self.near: list[Array] = []  # |z| over its tolerance, at most 1 at a kink; inf if there is no relevant kink
        open_ = x.any(1)  # samples whose gradient at the layer's outputs affects the gradient of an earlier weight
        unsure = np.zeros_like(x.T)  # error of an activation whose preactivation counts as 0
        for w in weights[:-1]:
            a = self.inputs[-1]
            z = w @ a
            self.plain.append(np.where(z > 0, 1.0, slope))
            self.inputs.append(z * self.plain[-1])
            bound = kink_rtol * np.outer(np.linalg.norm(w, axis=1), np.linalg.norm(a, axis=0)) + np.abs(w) @ unsure
            near = np.divide(np.abs(z), bound, out=np.where(z == 0, 0, np.inf), where=bound > 0)
            at = (near <= 1) & open_ & (slope != 1)
            unsure = np.where(near <= 1, bound, 0)
            self.near.append(np.where(at, near, np.inf))
            open_ = self.inputs[-1].any(0) | (open_ & ((self.plain[-1] != 0) | at).any(0))
        halves = [np.where(np.isfinite(n), (1 + slope) / 2, d) for n, d in zip(self.near, self.plain, strict=True)]
        for near, below in zip(self.near, deltas(weights, halves, g.T)[1], strict=True):
            near[below == 0] = np.inf  # the loss does not depend on this neuron

    def kinks(self) -> _Kinks:
        """Return the kinks layer by layer, tied in groups; if there are too many, the nearest. No sample may be 0.

        The kinks of a neuron at samples c x are tied for c > 0, and in layer 0 also for c < 0. By positive homogeneity,
        sigma(Z_l) at c x, c > 0, is c times its value at x, for any weights. For c < 0 this fails after layer 0.
        Activations that are multiples by coincidence, for samples that are not, are not tied: they need not remain
        multiples when the weights change.
        """
        values = np.concatenate([near[np.isfinite(near)] for near in self.near])
        limit = np.inf if len(values) <= MAX_KINKS else np.partition(values, MAX_KINKS)[MAX_KINKS]
        found = [np.nonzero(near < limit) for near in self.near]
        layers = np.repeat(np.arange(len(found)), [len(neurons) for neurons, _ in found])
        neurons, samples = np.concatenate(found, axis=1)
        directions = self.x / np.abs(self.x).max(1, keepdims=True)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        side = np.where(directions @ np.random.default_rng(0).normal(size=directions.shape[1]) >= 0, 1, -1)
        _, line = np.unique(np.round(directions * side[:, None], DIGITS) + 0.0, axis=0, return_inverse=True)
        sides = side[samples]
        keys = np.stack([layers, neurons, line.ravel()[samples], np.where(layers > 0, sides, 0)])
        _, first, groups = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)  # groups in the order of their kinks
        groups, first = np.argsort(order)[groups.ravel()], first[order]
        return _Kinks(layers, neurons, samples, groups, sides * sides[first][groups], first, self.slope)

    def with_alphas(self, kinks: _Kinks, alphas: Array) -> list[Array]:
        """Return the derivatives with those at kinks replaced."""
        result = [d.copy() for d in self.plain]
        for layer, derivatives in enumerate(result):
            at = kinks.layers == layer
            derivatives[kinks.neurons[at], kinks.samples[at]] = alphas[at]
        return result

    def ascent(self, derivatives: Sequence[Array], keep: Array | slice = slice(None)) -> list[Array]:
        """Return -dL0/dW_l, l = 1..L, summed over the selected samples."""
        found, _ = deltas(self.weights, derivatives, self.g.T)
        return [d[:, keep] @ a[:, keep].T for d, a in zip(found, self.inputs, strict=True)]

    def columns(self, derivatives: Sequence[Array], kinks: _Kinks) -> list[tuple[Array, Array]]:
        """Return the derivatives of -dL0/dW_l with respect to all alphas, as outer products u a^T, per hidden layer.

        u is (kinks, n_l) and a is (kinks, n_{l-1}); u is 0 for kinks in layers before l.
        """
        _, below = deltas(self.weights, derivatives, self.g.T)
        result = []
        u = np.zeros((len(kinks.layers), len(self.weights[-1])))
        for layer in reversed(range(len(below))):
            u = (u @ self.weights[layer + 1]) * derivatives[layer].T[kinks.samples]
            u[kinks.layers <= layer] = 0
            rows = np.flatnonzero(kinks.layers == layer)
            neurons = kinks.neurons[rows]
            u[rows, neurons] = below[layer][neurons, kinks.samples[rows]]
            result.append((u, self.inputs[layer].T[kinks.samples]))
        return result[::-1]


def deltas(weights: Sequence[Any], derivatives: Sequence[Any], g: Any) -> tuple[list[Any], list[Any]]:
    """Return -dL0/dz_l, l = 1..L, and -dL0/da_l, l = 1..L-1, each (n_l, N), for arrays or tensors; ``g`` is G^T."""
    found, below = [-g], []
    for w, d in zip(weights[:0:-1], derivatives[::-1], strict=True):
        below.append(w.T @ found[-1])
        found.append(below[-1] * d)
    return found[::-1], below[::-1]


def _least(near: _Samples, kinks: _Kinks, rest: list[Array]) -> tuple[Array, float]:
    """Return the derivatives that minimize || rest + ascent(alphas) ||, and the minimum."""
    slope, several = near.slope, len(np.unique(kinks.layers)) > 1

    def remainder(alphas: Array) -> list[Array]:
        parts = near.ascent(near.with_alphas(kinks, kinks.derivatives(alphas)))
        return [a + b for a, b in zip(parts, rest, strict=True)]

    def columns(alphas: Array) -> list[tuple[Array, Array]]:
        return near.columns(near.with_alphas(kinks, kinks.derivatives(alphas)), kinks)

    joined = np.eye(len(kinks.first))[kinks.groups] * kinks.sides[:, None]  # Jacobian of the derivatives
    at = zip(kinks.layers[kinks.first], kinks.neurons[kinks.first], kinks.samples[kinks.first], strict=True)
    plain = np.array([near.plain[layer][neuron, sample] for layer, neuron, sample in at])
    unknowns = subgradients.Unknowns(min(slope, 1.0), plain, several, joined)
    most = subgradients.STEPS if len(kinks.groups) <= subgradients.EXACT else subgradients.STEPS // 10
    enough = subgradients.ENOUGH * subgradients.norm(rest)
    best, value = subgradients.minimize(remainder, columns, unknowns, enough, most if several else 1)
    return kinks.derivatives(best), value
