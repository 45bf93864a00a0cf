"""The least norm found for networks that interpolate data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.mlp import MLP, from_layers, make
from bnrank.tasks import Task
from bnrank.theory.cost.balancing import Array, least, live_neurons
from bnrank.theory.cost.pruning import prune
from bnrank.training import train

__all__ = ["Solution", "solve"]

RIDGES = (1e-1, 1e-2)  # of the two stages, in units of mean ||y||^2 / L
SPREAD = (
    1e-3  # the last start's ridge over the first's: a large one forgets small directions, a small one finds no order
)
POLISHED = 3  # starts that are polished, the best ones
CORRECTIONS = 30  # at most, to come to interpolate
EXACT = 1e-11  # error of the interpolation while polishing, of the largest |y|
GAIN = 1e-10  # of the norm, per iteration of polishing
MOST_ENTRIES = 2**27  # of the parameter Jacobian: 1 GiB
RANK = 1e-13  # eigenvalues of J J^T above it, relative to the largest, are inverted


@dataclass(frozen=True)
class Solution:
    """An interpolating network of small norm.

    Attributes
    ----------
    network : MLP
        The best one found, balanced and pruned, in float64. Where no start interpolates, the one closest to it.
    norm : float
        Its ||theta||^2, biases included: an upper bound on the least norm if ``interpolates``.
    error : float
        max_i |f(x_i) - y_i|, over samples and outputs.
    norms : tuple of float
        For every start, the norm at which it interpolates (the best ones polished); inf where it does not.
    interpolates : bool
        Whether ``error`` <= tol * max |y|.
    """

    network: MLP
    norm: float
    error: float
    norms: tuple[float, ...]
    interpolates: bool


def solve(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    depth: int,
    width: int,
    *,
    slope: float = 0.0,
    bias: bool = True,
    starts: int = 8,
    seed: int = 0,
    tol: float = 1e-6,
    steps: int = 300,
    polish: int = 100,
) -> Solution:
    r"""Search for the network of least norm through given points, min ||theta||^2 s.t. f(x_i) = y_i.

    The norm found is an upper bound on the minimum over networks of this depth (and on R(f; {x_i}, L) of the function
    found, T1): the problem is not convex, and nothing says that it is reached. A lower bound needs the Jacobian of f,
    see T4.

    Method: all starts are trained as one ensemble on data scaled to unit size, with the loss
    (1/N) sum ||f(x_i) - y_i||^2 + lambda ||theta||^2 in two stages of falling ridge, each start with its own. Every
    one is brought to interpolate by Gauss-Newton corrections of least norm, theta += J^T (J J^T)^+ (y - f), J the
    Jacobian of the outputs in theta; those that fail are trained on without ridge and tried again. They are pruned on
    the samples and balanced. The best three are polished: a step towards the point of least norm that satisfies the
    linearized constraints, J^T (J J^T)^+ (J theta + y - f), then corrections and balancing, while the norm falls. Where
    the optimum is on ReLU kinks at the samples, this stops short of it (by 1e-4 of the norm on three points).

    Parameters
    ----------
    x, y : Tensor or ndarray
        Samples, (N, d_in), and values, (N, d_out), floating point. The same x may come twice with the same y.
    depth : int
        L, number of weight layers.
    width : int
        Of every hidden layer.
    slope : float
        s in (-1, 1), 0 for ReLU, or 1 for linear networks.
    bias : bool
        Whether the network has biases; they count in the norm.
    starts : int
        Initial draws.
    seed : int
        Of the first; the others have the seeds that follow.
    tol : float
        Largest error, relative to max |y|, that counts as interpolating.
    steps : int
        Evaluations of loss and gradient in each stage.
    polish : int
        Most iterations of polishing for each of the three best starts.

    Returns
    -------
    Solution
        Network, norm, error, and the norms of all starts.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the same x comes with different y.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(0.1, 1, 5).reshape(-1, 1)
    >>> found = solve(x, x, depth=3, width=4, starts=4, steps=100)      # the identity on R_+ costs L (T29)
    >>> round(found.norm, 5), found.interpolates
    (3.0, True)
    """
    x = validation.samples(x, "x").detach().cpu().double()
    y = validation.samples(y, "y").detach().cpu().double()
    if len(x) != len(y):
        raise ValueError(f"x, y: got {len(x)} and {len(y)} samples, expected the same number in both")
    depth, width = validation.integer(depth, "depth"), validation.integer(width, "width")
    starts, seed = validation.integer(starts, "starts"), validation.integer(seed, "seed", 0)
    steps, polish = validation.integer(steps, "steps"), validation.integer(polish, "polish", 0)
    tol = validation.number(tol, "tol", 0.0)
    size = float(y.abs().max())
    points, values = _distinct(x, y, tol * size)
    net = make([x.shape[1], *[width] * (depth - 1), y.shape[1]], slope, bias, seed=seed, dtype=torch.float64)
    rows, parameters = y.shape[1] * len(points), sum(p.numel() for p in net.parameters())
    if rows * parameters > MOST_ENTRIES:
        raise ValueError(
            f"x: got {len(points)} samples, with {y.shape[1]} outputs and {parameters} parameters, a Jacobian of more "
            f"than {MOST_ENTRIES} numbers, expected at most {MOST_ENTRIES // (y.shape[1] * parameters)} samples"
        )
    if size == 0:
        zero = prune(net.reset(seed, 0.0)).network
        return Solution(zero, 0.0, 0.0, (0.0,) * starts, True)

    search = _Search(points.numpy(), values.numpy(), tol * size)
    training = _Training(net, points, values, steps)
    found = [search.interpolating(start) for start in training.with_ridges(list(range(seed, seed + starts)))]
    lost = [i for i, start in enumerate(found) if start.norm == math.inf]
    for i, start in zip(lost, training.without_ridge([seed + i for i in lost]), strict=True):
        found[i] = min(found[i], search.interpolating(start))
    for i in sorted(range(starts), key=found.__getitem__)[:POLISHED]:
        found[i] = min(found[i], search.polished(found[i], polish))
    best = min(found)
    network = best.net.module()
    with torch.no_grad():
        error = float((network(x) - y).abs().max())
    norm = float(best.net.theta @ best.net.theta)  # also where it does not interpolate
    return Solution(network, norm, error, tuple(start.norm for start in found), error <= tol * size)


def _distinct(x: Tensor, y: Tensor, allowed: float) -> tuple[Tensor, Tensor]:
    """Return the samples, each x once; raise where the same x has different y."""
    points, inverse = torch.unique(x, dim=0, return_inverse=True)
    first = torch.full((len(points),), len(x)).scatter_reduce(0, inverse, torch.arange(len(x)), "amin")
    differing = (y - y[first[inverse]]).abs().amax(1) > allowed
    if bool(differing.any()):
        i = int(differing.nonzero()[0])
        pair = f"{int(first[inverse[i]])} and {i}"
        raise ValueError(f"y: got different values at the same x, samples {pair}, expected a function of x")
    return points, y[first]


@dataclass(frozen=True)
class _Net:
    """An MLP as arrays; its parameters as one vector are the weights and then the biases."""

    weights: list[Array]
    biases: list[Array]
    slope: float

    @classmethod
    def of(cls, net: MLP) -> _Net:
        return cls([w.detach().numpy() for w in net.weights], [b.detach().numpy() for b in net.biases], net.slope)

    def module(self) -> MLP:
        weights, biases = ([torch.from_numpy(p) for p in of] for of in (self.weights, self.biases))
        return from_layers(weights, biases, self.slope)

    @property
    def theta(self) -> Array:
        return np.concatenate([p.ravel() for p in [*self.weights, *self.biases]])

    def at(self, theta: Array) -> _Net:
        """Return the network with other parameters."""
        held = [*self.weights, *self.biases]
        ends = itertools.accumulate(p.size for p in held)
        parts = [theta[end - p.size : end].reshape(p.shape) for p, end in zip(held, ends, strict=True)]
        return _Net(parts[: len(self.weights)], parts[len(self.weights) :], self.slope)

    def balanced(self) -> _Net:
        chain, _, _ = least(self.weights, self.biases[:-1], live_neurons(self.weights, self.biases))
        return _Net(chain.weights, [*chain.biases, *self.biases[-1:]], self.slope)

    def linearized(self, x: Array) -> tuple[Array, Array]:
        """Return the outputs, (N, d_out), and their Jacobian in theta, (N d_out, P)."""
        inputs, slopes = [x], []
        for l, weight in enumerate(self.weights):  # noqa: E741
            z = inputs[-1] @ weight.T + (self.biases[l] if self.biases else 0.0)
            slopes.append(np.where(z > 0, 1.0, self.slope))
            inputs.append(z * slopes[-1])
        n, d_out = z.shape
        back = [np.broadcast_to(np.eye(d_out), (n, d_out, d_out))]  # J(a~_l -> f), from l = L down
        for weight, d in zip(self.weights[:0:-1], slopes[-2::-1], strict=True):
            back.append((back[-1] @ weight) * d[:, None, :])
        back.reverse()
        of_weights = [
            (b[..., None] * a[:, None, None, :]).reshape(n * d_out, -1) for b, a in zip(back, inputs, strict=False)
        ]
        of_biases = [b.reshape(n * d_out, -1) for b in back] if self.biases else []
        return z, np.concatenate([*of_weights, *of_biases], 1)


@dataclass(frozen=True)
class _Start:
    """A network on its way: its norm, infinite where it does not interpolate, and its error."""

    norm: float
    error: float
    net: _Net

    def __lt__(self, other: _Start) -> bool:
        return (self.norm, self.error) < (other.norm, other.error)


class _Training:
    """The starts, trained as ensembles on data scaled to unit size."""

    def __init__(self, net: MLP, x: Tensor, y: Tensor, steps: int) -> None:
        self.net, self.steps = net, steps
        self.units = [float((data**2).mean().sqrt()) or 1.0 for data in (x, y)]
        repeats = 2 if len(x) == 1 else 1  # training wants two samples
        self.task = Task((x / self.units[0]).repeat(repeats, 1), (y / self.units[1]).repeat(repeats, 1))
        self.members: dict[int, MLP] = {}

    def with_ridges(self, seeds: list[int]) -> list[_Net]:
        """Return networks drawn with these seeds and trained, in the units of the data."""
        ridges = np.geomspace(1.0, SPREAD, len(seeds)) * float((self.task.y**2).sum(1).mean()) / self.net.depth
        for ridge in RIDGES:
            self._train(seeds, (ridge * ridges).tolist())
        return self._results(seeds)

    def without_ridge(self, seeds: list[int]) -> list[_Net]:
        """Return some of them trained further, without ridge."""
        if seeds:
            self._train(seeds, [0.0] * len(seeds))
        return self._results(seeds)

    def _train(self, seeds: list[int], ridges: list[float]) -> None:
        def member(seed: int) -> MLP:
            return self.members[seed]

        run = train(
            member if self.members else self.net,
            self.task,
            ridge=ridges,
            steps=self.steps,
            seed=seeds,
            optimizer="kfac-lbfgs" if self.members else "auto",
            dtype=torch.float64,
            record=self.steps,
            progress=False,
        )
        for i, seed in enumerate(seeds):
            self.members[seed] = cast(MLP, run.network(i))

    def _results(self, seeds: Sequence[int]) -> list[_Net]:
        x_unit, y_unit = self.units
        factor = (y_unit / x_unit) ** (1 / self.net.depth)
        nets = [_Net.of(self.members[seed]) for seed in seeds]
        return [
            _Net(
                [w * factor for w in net.weights],
                [b * x_unit * factor**l for l, b in enumerate(net.biases, 1)],  # noqa: E741
                net.slope,
            )
            for net in nets
        ]


class _Search:
    """Networks brought to interpolate the data, and moved to lower norms while they do."""

    def __init__(self, x: Array, y: Array, allowed: float) -> None:
        self.x, self.y, self.allowed = x, y, allowed
        self.exact = EXACT * float(np.abs(y).max())

    def interpolating(self, net: _Net) -> _Start:
        """Correct, and if it interpolates then, prune and balance."""
        found = self._corrected(net)
        return found if found.norm == math.inf else self._tidied(found.net)

    def polished(self, start: _Start, iterations: int) -> _Start:
        """Lower the norm along the interpolating networks."""
        if start.error > self.exact:
            return start
        part, now = 1.0, start
        for _ in range(iterations):
            theta = now.net.theta
            outputs, jacobian = now.net.linearized(self.x)
            step = _shortest(jacobian, jacobian @ theta + (self.y - outputs).ravel()) - theta
            while part > 1e-3:
                trial = self._corrected(now.net.at(theta + part * step))
                if trial.error <= self.exact:
                    trial = self._start(trial.net.balanced(), trial.error)
                    if trial.norm < now.norm * (1 - GAIN):
                        break
                part /= 2
            else:
                break
            now, part = trial, min(1.0, 2 * part)
        return self._tidied(now.net)

    def _start(self, net: _Net, error: float) -> _Start:
        theta = net.theta
        return _Start(float(theta @ theta) if error <= self.allowed else math.inf, error, net)

    def _tidied(self, net: _Net) -> _Start:
        """Prune on the samples, balance, and correct what rounding there was."""
        return self._corrected(_Net.of(prune(net.module(), self.x).network).balanced())

    def _corrected(self, net: _Net) -> _Start:
        """Bring a network to interpolate, or as near as it comes."""
        outputs, jacobian = net.linearized(self.x)
        for _ in range(CORRECTIONS):
            gap = (self.y - outputs).ravel()
            if float(np.abs(gap).max()) <= self.exact / 10:
                break
            theta, step = net.theta, _shortest(jacobian, gap)
            for part in (1.0, 0.5, 0.25, 0.125):
                nearer = net.at(theta + part * step)
                with np.errstate(over="ignore", invalid="ignore"):  # a step too long, which is not taken
                    found = nearer.linearized(self.x)
                    better = float(np.linalg.norm(self.y - found[0])) < float(np.linalg.norm(gap))
                if better:
                    net, (outputs, jacobian) = nearer, found
                    break
            else:
                break
        return self._start(net, float(np.abs(self.y - outputs).max()))


def _shortest(jacobian: Array, right: Array) -> Array:
    """Return J^T (J J^T)^+ right, the shortest v with J v = right."""
    values, vectors = np.linalg.eigh(jacobian @ jacobian.T)
    kept = values > RANK * values[-1]
    return jacobian.T @ (vectors[:, kept] @ ((vectors[:, kept].T @ right) / values[kept]))
