"""From a trained network to a stationary point of C + lambda ||theta||^2, and to a local minimum."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrank._core import validation
from bnrank._core.progress import bar
from bnrank._core.results import Printed
from bnrank.measures import subgradients
from bnrank.measures.critical_points import BIRTH_RTOL, Birth, Stationarity, of_layers
from bnrank.measures.second_order import Array, Evaluation, Problem
from bnrank.measures.subgradients import KINK_RTOL
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import MLP
from bnrank.tasks.task import Task, as_task
from bnrank.training.finishing import corners, creases, newton, quasi, shrinking
from bnrank.training.finishing.kinks import Kinks, at_zero, of_smoothed
from bnrank.training.options import check_finishable

SMOOTHING = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6)  # eps in units of the root mean square preactivation of the layer
SHRINKING = 1e-3  # down to this eps, weak neurons are removed and parallel ones merged
TRIED = 1e-4  # from this eps on, the kinks are identified and the search along them is tried
SMALLEST = 1e-100  # least root mean square preactivation that is assumed
LOOSE = 1e-3  # relative gradient at which the smoothing is reduced
EVERY, ROUNDS = 300, 40  # iterations of L-BFGS between reductions of the network, and the number of rounds
GAIN = 1e-4  # relative decrease of the loss per round below which Newton's method takes over
DENSE = 12_000  # largest number of parameters for Newton's method
STEPS, PASSES = 10, 30  # Newton steps between reductions, and the number of such passes at one eps
CORNER_STEPS, BIRTH_STEPS = 300, 120  # Newton steps along kinks, also right after a neuron was added
MANY = 150  # kinks above which the search along them waits for the smallest eps, where few of them are wrong
DEAD = 1e-6  # relative weight of neurons that are removed, and distance of parallel ones, when kinks are known
NEAR = 1e-5  # preactivations that count as 0 after neurons were removed
RESTARTS = (1e-4, 3e-3)  # eps from which a search along kinks that ended early is repeated
PROGRESS = 1e-12  # least relative decrease of the loss by a new neuron
BIRTHS = 60  # largest number of neurons added
NO_SIZE = "no size that was tried does"


@dataclass(frozen=True)
class Finished(Printed):
    """A network at a stationary point, with what is known about the point.

    Attributes
    ----------
    network : MLP
        The network in float64, of the given widths; neurons that are not needed have zero weights.
    stationarity : Stationarity
        The certificate: residual, kinks, curvature, new neurons.
    loss_before : float
        C + lambda ||theta||^2 of the given network.
    born : int
        Number of neurons added because they lower the loss.
    seconds : float
        Time it took.
    reason : str
        Why it ended: "stationary", "out of time", or what it could not do.
    """

    network: MLP
    stationarity: Stationarity
    loss_before: float
    born: int
    seconds: float
    reason: str

    @property
    def kind(self) -> str:
        """The kind of point; see `bnrank.measures.stationarity`."""
        return self.stationarity.kind

    @property
    def loss(self) -> float:
        """C + lambda ||theta||^2 of the network."""
        return self.stationarity.loss

    def __str__(self) -> str:
        born = f", {self.born} neurons added" if self.born else ""
        return f"{self.stationarity}\nloss before {self.loss_before:.10g}; {self.seconds:.1f} s{born}; {self.reason}"


def finish(
    net: nn.Module,
    task: Task | tuple[Any, ...],
    ridge: float,
    *,
    rtol: float = 1e-8,
    births: bool = True,
    max_minutes: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Finished:
    r"""Return a stationary point of C(f_theta) + lambda ||theta||^2 near a trained network, with a certificate.

    Gradient methods stop at kinks of the loss of a ReLU network. This goes on to a point where 0 is a subgradient:

    1. Neurons whose work others of their layer can do are removed (optimal brain surgeon), while L-BFGS minimizes the
       loss with a smoothed activation.
    2. Newton's method with the exact Hessian minimizes it while the smoothing is reduced.
    3. Preactivations that end at 0 are held there, Newton's method moves along these kinks, and the derivatives of the
       activation there, which must lie between its slope and 1, are those of least gradient.
    4. In layers with dead neurons, a neuron that would lower the loss is added, and 2. and 3. are repeated.

    Parameters
    ----------
    net : nn.Module
        A trained chain of linear layers with one activation of slope in (-1, 1); never changed.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss).
    ridge : float
        lambda > 0, of both weights and biases; the one of training.
    rtol : float
        Largest ||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||).
    births : bool
        Whether to add neurons in layers with dead ones.
    max_minutes : float, optional
        Time after which the best point so far is returned. Default: no limit.
    seed : int
        Random seed of the search for neurons to add.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Finished
        The network and its certificate. Its loss is not above that of ``net``.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain, sizes differ, or ridge is not positive: without a penalty there need be no
        minimum at finite norm.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)
    >>> run = bnrank.train(bnrank.MLP([3, 6, 6, 3]), task, ridge=5e-3, steps=300, seed=0, progress=False)
    >>> done = bnrank.finish(run.network(0), task, 5e-3, progress=False)
    >>> done.stationarity.residual < 1e-8, done.loss <= done.loss_before
    (True, True)
    """
    ridge = validation.number(ridge, "ridge", 0.0)
    rtol, births = validation.number(rtol, "rtol", 0.0, strict=True), validation.flag(births, "births")
    limit = validation.optional(validation.number, max_minutes, "max_minutes", 0.0, strict=True)
    task, chain = as_task(task, weighted=True), as_mlp(net)
    check_finishable([ridge], task.loss, chain.widths, chain.slope)
    problem = Problem.of(chain, task, ridge)
    problem.refuse_infinite(problem.layers(chain))
    with bar(progress, "finishing", 100) as tell:
        search = _Search(problem, rtol, limit, validation.seed(seed), births, chain.widths[1:-1], tell)
        layers, reason = search.run(problem.layers(chain))
    network = _padded(layers, chain)
    found = of_layers(problem, problem.layers(network), rtol, KINK_RTOL, births=births, seed=search.seed)
    before = Evaluation(problem, problem.layers(chain)).loss
    if found.residual > rtol and reason != "out of time":
        reason += f", at a relative gradient of {found.residual:.1e}"
    return Finished(network, found, before, search.born, time.perf_counter() - search.began, reason)


def _padded(layers: Sequence[Array], like: MLP) -> MLP:
    """Return an MLP of the given widths with these layers and zeros elsewhere."""
    net = MLP(like.widths, slope=like.slope, bias=like.bias, dtype=torch.float64)
    with torch.no_grad():
        for number, layer in enumerate(layers):
            rows, columns = layer.shape[0], layer.shape[1] - like.bias
            net.weights[number].zero_()
            net.weights[number][:rows, :columns] = torch.from_numpy(layer[:, :columns])
            if like.bias:
                net.biases[number].zero_()
                net.biases[number][:rows] = torch.from_numpy(layer[:, -1])
    return net


class _Search:
    """The search, with its time limit."""

    def __init__(
        self,
        problem: Problem,
        rtol: float,
        max_minutes: float | None,
        seed: int,
        births: bool,
        widths: Sequence[int],
        tell: Any,
    ) -> None:
        self.problem, self.rtol, self.seed, self.births = problem, rtol, seed, births
        self.widths, self.tell = widths, tell
        self.began, self.limit, self.born = time.perf_counter(), max_minutes, 0

    def late(self) -> bool:
        """Return whether the time is over."""
        return self.limit is not None and time.perf_counter() - self.began > 60 * self.limit

    def run(self, start: list[Array]) -> tuple[list[Array], str]:
        """Return the layers of lowest loss that were reached, and why the search ended."""
        if (arrived := self.arrived(start)) is not None:
            best, reason = arrived, "stationary"
        else:
            best, reason = self.descended(start, shrink=True)
            if self.loss(best) > self.loss(start) and not self.late():
                best, reason = self.descended(start, shrink=False)
            if self.loss(best) > self.loss(start):
                why = f"the loss could not be kept below that of the network given ({reason})"
                return shrinking.balanced(start), why
            zero = [np.zeros_like(layer) for layer in best]
            least = Evaluation(self.problem, zero)
            if reason != "stationary" and least.relative_gradient <= self.rtol and least.loss <= self.loss(best):
                best, reason = zero, "stationary"  # weights that shrink for ever
        failed: dict[int, str] = {}  # layers whose new neuron did not lead to a stationary point, and why
        while reason == "stationary" and self.births and self.born < BIRTHS and not self.late():
            birth = self.birth(best, failed)
            if birth is None:
                break
            found, ended = self.grown(best, birth)
            if ended == "stationary" and self.loss(found) < self.loss(best) * (1 - PROGRESS):
                best, self.born, failed = found, self.born + 1, {}
            else:
                failed[birth.layer] = _unused(self.loss(found) - self.loss(best), ended)
        if failed:
            reason += f"; {next(iter(failed.values()))}"
        if self.late():
            reason = "stationary; out of time for new neurons" if reason.startswith("stationary") else "out of time"
        if arrived is not None and not self.born:
            best = start
        return best, reason

    def arrived(self, start: list[Array]) -> list[Array] | None:
        """Return the live part of the given network if it is stationary, or None."""
        try:
            found = subgradients.least(self.problem, start)
        except ValueError:  # too many kinks
            return None
        enough = found.best.relative_gradient <= self.rtol and all(len(layer) for layer in found.layers)
        return found.layers if enough else None

    def loss(self, layers: Sequence[Array]) -> float:
        """Return C + lambda ||theta||^2."""
        return Evaluation(self.problem, layers).loss

    def smoothing(self, layers: Sequence[Array], eps: float) -> Array:
        """Return eps times the root mean squares of the preactivations of the hidden layers."""
        squares = [float((z * z).mean()) for z in Evaluation(self.problem, layers).z[:-1]]
        return np.array([eps * max(np.sqrt(square), SMALLEST) for square in squares])

    def descended(self, start: Sequence[Array], *, shrink: bool) -> tuple[list[Array], str]:
        """Return a stationary point reached with L-BFGS and then Newton's method."""
        problem, last = self.problem, np.inf
        layers = shrinking.tidy(start) if shrink else shrinking.tidy(start, 0.0, 0.0)
        for number in range(ROUNDS):
            sizes = [len(layer) for layer in layers]
            smooth = self.smoothing(layers, SMOOTHING[0])
            if shrink:
                layers = shrinking.thinned(problem, layers, smooth)
            layers = quasi.descend(problem, layers, smooth, EVERY, self.late)
            at = Evaluation(problem, layers, smooth)
            self.tell(number, f"finishing: loss {at.loss:.8g}, {sum(layer.size for layer in layers)} parameters")
            if shrink:
                layers = shrinking.tidy(layers)
            same = [len(layer) for layer in layers] == sizes
            if self.late() or at.relative_gradient <= LOOSE or (same and at.loss > last * (1 - GAIN)):
                break
            last = at.loss
        if sum(layer.size for layer in layers) > DENSE:
            return layers, f"more than {DENSE} live parameters are left, too many for exact Hessians"
        return self.sharpened(layers, SMOOTHING[0], shrink=shrink)

    def sharpened(self, layers: list[Array], largest: float, *, shrink: bool) -> tuple[list[Array], str]:
        """Return a stationary point reached by Newton's method while the smoothing is reduced."""
        problem, damping, reason = self.problem, 0.0, "not started"
        best, stationary, before, smooth = layers, None, largest, self.smoothing(layers, largest)
        for eps in [eps for eps in SMOOTHING if eps <= largest]:
            last = np.inf
            if eps < TRIED:
                layers = creases.nearer(problem, layers, smooth, eps / before)
            before = eps
            for _ in range(PASSES):
                smooth = self.smoothing(layers, eps)
                layers, _, damping, steps = newton.descend(problem, layers, smooth, LOOSE, STEPS, damping, self.late)
                loss, sizes = Evaluation(problem, layers, smooth).loss, [len(layer) for layer in layers]
                self.tell(50, f"finishing: loss {loss:.8g}, smoothing {eps:g}")
                if shrink:
                    layers = shrinking.tidy(layers) if eps >= SHRINKING else shrinking.tidy(layers, DEAD, DEAD)
                    if [len(layer) for layer in layers] != sizes:
                        last = np.inf
                        continue
                slow = eps <= TRIED and loss > last * (1 - 1e-7)
                if steps < STEPS or slow or self.late():
                    break
                last = loss
            if eps > TRIED:
                best = layers
                continue
            if self.loss(layers) < self.loss(best):
                best = layers
            if self.late():
                break
            kinks = of_smoothed(problem, layers, smooth)
            if len(kinks) > MANY and eps > SMOOTHING[-1]:
                continue
            corner = self.cornered(layers, kinks)
            if corner.reason == "stationary":
                if self.loss(corner.layers) <= self.loss(best):
                    return corner.layers, corner.reason
                # The smoothed point has a lower loss: some of its kinks are none. A smaller eps tells them apart.
                if stationary is None or self.loss(corner.layers) < self.loss(stationary):
                    stationary = corner.layers
            elif self.loss(corner.layers) < self.loss(best):
                best, reason = corner.layers, corner.reason
        if not self.late():
            corner = self.cornered(best, at_zero(problem, best, KINK_RTOL))
            best, reason = corner.layers, corner.reason
        if reason != "stationary" and stationary is not None:
            return stationary, "stationary"
        return best, "out of time" if self.late() else reason

    def cornered(self, layers: Sequence[Array], kinks: Kinks, steps: int = CORNER_STEPS) -> corners.Corner:
        """Return where the search along kinks ends, without neurons that died on the way."""
        corner = corners.search(self.problem, layers, kinks, self.rtol / 10, steps, self.late)
        less = shrinking.tidy(corner.layers, DEAD, DEAD)
        if [len(layer) for layer in less] != [len(layer) for layer in corner.layers]:
            again = at_zero(self.problem, less, NEAR)
            without = corners.search(self.problem, less, again, self.rtol / 10, steps, self.late)
            no_worse = self.loss(without.layers) <= self.loss(corner.layers) * (1 + PROGRESS)
            if no_worse and (without.reason == "stationary" or corner.reason != "stationary"):
                corner = without
        loss = self.loss(corner.layers)
        self.tell(80, f"finishing: loss {loss:.8g}, {len(corner.kinks)} kinks, {corner.reason}")
        return corner

    def birth(self, layers: list[Array], without: Collection[int]) -> Birth | None:
        """Return the new neuron, not in some layers, that lowers the loss most for its norm, or None if none does."""
        wide = _with_room(layers, self.widths)
        found = of_layers(self.problem, wide, self.rtol, KINK_RTOL, births=True, seed=self.seed)
        better = [birth for birth in found.births if birth.lower > 1 + BIRTH_RTOL and birth.layer not in without]
        return max(better, key=lambda birth: birth.lower, default=None)

    def grown(self, layers: list[Array], birth: Birth) -> tuple[list[Array], str]:
        """Return a stationary point reached from layers with the neuron added.

        The kinks are kept while the neuron grows: the loss falls with the square of its size only along them. The
        largest size for which it falls is where the search begins.
        """
        number, width, base = birth.layer - 1, len(layers[birth.layer - 1]), self.loss(layers)
        kinks = at_zero(self.problem, layers, KINK_RTOL)
        live = [np.logical_or(low.any(1), high[:, : len(low)].any(0)) for low, high in itertools.pairwise(layers)]
        incoming = _spread(birth.incoming, live[number - 1] if number else np.ones(0, dtype=bool))
        outgoing = _spread(birth.outgoing, live[number + 1] if number + 1 < len(live) else np.ones(0, dtype=bool))
        best: list[Array] | None = None
        for size in 2.0 ** np.arange(1, -12, -1):
            wider = list(layers)
            wider[number] = np.concatenate([layers[number], size * incoming[None]])
            high, column = layers[number + 1], size * outgoing[:, None]
            wider[number + 1] = np.concatenate([high[:, :width], column, high[:, width:]], axis=1)
            there = creases.onto(self.problem, wider, kinks)
            if self.loss(there) < base:
                base, best = self.loss(there), there
        if best is None:
            return layers, NO_SIZE
        corner = self.cornered(best, kinks, BIRTH_STEPS)
        found, reason = corner.layers, corner.reason
        for eps in RESTARTS:
            if reason == "stationary" or self.late():
                break
            tried, ended = self.sharpened(found, eps, shrink=True)
            if self.loss(tried) < self.loss(found) or (ended == "stationary" and self.loss(tried) < self.loss(layers)):
                found, reason = tried, ended
        return found, reason


def _unused(change: float, ended: str) -> str:
    """Return why a new neuron was not added: the loss after the search from it, less that before, and its end."""
    if ended == NO_SIZE:
        return f"by its derivative a new neuron lowers the loss, but {NO_SIZE}"
    if ended == "stationary":
        return "a new neuron lowers the loss, but the search from there ended at a stationary point that is no lower"
    where = "lower" if change < 0 else "not lower"
    return f"a new neuron lowers the loss, but the search from there did not arrive ({ended}; the loss is {where})"


def _spread(weights: Array, live: Array) -> Array:
    """Return weights to live neurons (and further ones after them) with zeros for the dead ones."""
    result = np.zeros(len(live) + len(weights) - int(live.sum()))
    result[np.concatenate([np.flatnonzero(live), np.arange(len(live), len(result))])] = weights
    return result


def _with_room(layers: Sequence[Array], widths: Sequence[int]) -> list[Array]:
    """Return the layers with one zero neuron in every hidden layer that has room for one."""
    result = copy.copy(list(layers))
    for number, width in enumerate(widths):
        have = len(result[number])
        if have < width:
            result[number] = np.concatenate([result[number], np.zeros((1, result[number].shape[1]))])
            high = result[number + 1]
            column = np.zeros((len(high), 1))
            result[number + 1] = np.concatenate([high[:, :have], column, high[:, have:]], axis=1)
    return result
