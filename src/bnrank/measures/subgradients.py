"""The derivatives of the activation at kinks for which a gradient is least.

At a kink the derivative of the activation may be any number from its slope to 1. A gradient that depends on it is
linear in the derivatives of one layer and multilinear in all. Gauss-Newton steps with bounds minimize its norm; with
kinks in several layers there are local minima, so several starts are used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from bnrank._core import validation
from bnrank.measures.second_order import Array, Evaluation, Problem, selected, split

Places = tuple[Array, Array, Array]  # layers from 0, neurons, samples
Outer = Sequence[tuple[Array, Array]]  # per layer u and a, (K, n) each: the derivative by unknown k is sum_l u_k a_k^T

KINK_RTOL = 1e-9
ENTRIES = 1 << 26  # largest number of entries of the derivatives of the gradient with respect to the slopes
FEW = 100  # largest number of unknowns for which random starts are tried
EXACT = 300  # largest number of unknowns with several starts
ACTIVE = 600  # largest number of kinks for which an active-set method solves the bounded problem
STEPS = 50  # Gauss-Newton steps from each start
MANY_STEPS = 6  # the same with more than ACTIVE unknowns
SINGULAR = 1e-12  # added to the normalized normal equations of these: kinks may depend on each other
SHORT = 1e-9  # weight of the length of a move with bounds, relative to the largest column
ENOUGH = 1e-12  # relative size of a gradient that counts as 0


@dataclass(frozen=True)
class Unknowns:
    """Derivatives at kinks as unknowns: their bounds and starts, and how the kinks depend on them.

    Attributes
    ----------
    low : float
        Lower bound; the upper one is 1.
    plain : ndarray, (count,)
        The derivatives that a forward pass takes: the result is never worse.
    several : bool
        Whether there are kinks in several layers.
    joined : ndarray, (kinks, count), optional
        Derivative of the kinks' values with respect to the unknowns; the identity if None.
    """

    low: float
    plain: Array
    several: bool
    joined: Array | None = None

    @property
    def count(self) -> int:
        """Number of unknowns."""
        return len(self.plain)

    def starts(self) -> list[Array]:
        """Return where the minimization begins: the middle, 1 and random values, and the plain ones."""
        starts = [np.full(self.count, (1 + self.low) / 2)]
        if self.several and self.count <= EXACT:  # 1 leaves the choice to the kinks of one layer
            rng = np.random.default_rng(0)
            more = 6 if self.count <= FEW else 0
            starts += [np.ones(self.count), *(rng.uniform(self.low, 1, self.count) for _ in range(more))]
        return [*starts, np.clip(self.plain, self.low, 1)]


def minimize(
    remainder: Callable[[Array], list[Array]],
    columns: Callable[[Array], Outer],
    unknowns: Unknowns,
    enough: float = 0.0,
    steps: int = STEPS,
) -> tuple[Array, float]:
    """Return the unknowns of least || remainder ||, and that norm.

    Parameters
    ----------
    remainder : callable
        From unknowns to the gradient, one matrix per layer.
    columns : callable
        From unknowns to its derivatives with respect to the values at the kinks, as outer products.
    unknowns : Unknowns
        Their number, bounds and starts.
    enough : float
        No further start is tried at this norm.
    steps : int
        Largest number of Gauss-Newton steps from each start.
    """
    best, least = np.zeros(0), math.inf
    steps = steps if unknowns.count <= ACTIVE else min(steps, MANY_STEPS)
    for start in unknowns.starts():
        found, size = _from(start, remainder, columns, unknowns, steps)
        if size < least:
            best, least = found, size
        if least <= enough:
            break
    return best, least


def _from(
    values: Array,
    remainder: Callable[[Array], list[Array]],
    columns: Callable[[Array], Outer],
    unknowns: Unknowns,
    steps: int,
) -> tuple[Array, float]:
    """Return the unknowns after Gauss-Newton steps with bounds, and the norm of the remainder."""
    now = remainder(values)
    size = norm(now)
    for _ in range(steps if len(values) else 0):
        move = _bounded(columns(values), unknowns, now, unknowns.low - values, 1 - values)
        share = 1.0
        while share > 1e-3:
            tried = np.clip(values + share * move, unknowns.low, 1)
            there = remainder(tried)
            if norm(there) < size:
                break
            share /= 2
        else:
            break
        values, now, before, size = tried, there, size, norm(there)
        if size > before * (1 - 1e-4):
            break
    return values, size


def norm(parts: Sequence[Array]) -> float:
    """Return the norm of several arrays as one."""
    return math.sqrt(sum(float((p * p).sum()) for p in parts))


def _bounded(columns: Outer, unknowns: Unknowns, now: list[Array], low: Array, high: Array) -> Array:
    """Return argmin || now + sum_k (joined move)_k u_k a_k^T || within bounds."""
    from scipy.optimize import lsq_linear

    joined, count = unknowns.joined, len(columns[0][0])
    if count > ACTIVE or count * sum(n.size for n in now) > ENTRIES:
        # normal equations: half the digits, but memory of only kinks squared; the next step corrects their errors
        gram = np.asarray(sum((u @ u.T) * (a @ a.T) for u, a in columns))
        right = -np.asarray(sum(((u @ n) * a).sum(1) for (u, a), n in zip(columns, now, strict=False)))
        if joined is not None:
            gram, right = joined.T @ gram @ joined, joined.T @ right
        return _projected(gram, right, low, high)
    matrix = np.concatenate([np.einsum("ki,kj->ijk", u, a).reshape(-1, count) for u, a in columns])
    matrix = matrix if joined is None else matrix @ joined
    target = -np.concatenate([n.ravel() for n in now[: len(columns)]])
    if len(matrix) > len(low):
        q, matrix = np.linalg.qr(matrix)
        target = q.T @ target
    free = np.linalg.lstsq(matrix, target, rcond=1e-12)[0]
    if (free >= low).all() and (free <= high).all():
        return free
    # of several minima (dependent columns) that of the shortest move: the remainder is linear only locally
    least = SHORT * float(np.linalg.norm(matrix, axis=0).max()) * np.eye(len(low))
    matrix, target = np.concatenate([matrix, least]), np.concatenate([target, np.zeros(len(low))])
    found = lsq_linear(matrix, target, (low, high + 1e-300), method="bvls", tol=1e-14)
    return np.clip(found.x, low, high)


def _projected(gram: Array, right: Array, low: Array, high: Array) -> Array:
    """Return the minimum of m^T gram m / 2 - right^T m within bounds, by projected quasi-Newton steps.

    The minimum without bounds, by a Cholesky factor, is returned if it fulfills them.
    """
    from scipy import linalg, optimize

    scale = 1 / np.sqrt(np.maximum(np.diag(gram), max(1e-20 * float(np.diag(gram).max()), 1e-300)))
    normalized = gram * scale[:, None] * scale + SINGULAR * np.eye(len(gram))
    with suppress(linalg.LinAlgError):
        free = scale * linalg.cho_solve(linalg.cho_factor(normalized, check_finite=False), scale * right)
        if (free >= low).all() and (free <= high).all():
            return np.asarray(free)
    largest = float(np.abs(gram).sum(1).max()) or 1.0

    def value_and_gradient(m: Array) -> tuple[float, Array]:
        product = gram @ m
        return float(m @ (product / 2 - right)) / largest, (product - right) / largest

    options = {"maxiter": 1000, "maxfun": 2000, "ftol": 0.0, "gtol": 1e-14}
    start = np.clip(np.zeros_like(low), low, high)
    bounds = optimize.Bounds(low, high)
    found = optimize.minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.clip(found.x, low, high)


@dataclass(frozen=True)
class Subgradient:
    """The subgradient of least norm of C + lambda ||theta||^2 at a network.

    Attributes
    ----------
    live : list of ndarray of bool
        For every hidden layer, the neurons whose incoming and outgoing weights are not both zero. The following refers
        to the network of these.
    layers : list of ndarray
        Its layers.
    plain, best : Evaluation
        With the derivatives of the activation that PyTorch takes at kinks, and with those of least gradient.
    kinks : tuple of three ndarrays, (K,)
        Hidden layers, neurons and rows of ``Problem.x``, from 0, of the kinks.
    slopes : ndarray, (K,)
        The derivatives of the activation there.
    """

    live: list[Array]
    layers: list[Array]
    plain: Evaluation
    best: Evaluation
    kinks: Places
    slopes: Array

    @property
    def neurons(self) -> Array:
        """The neurons of the kinks, numbered as in the given network, (K,)."""
        names = [np.flatnonzero(mask) for mask in self.live]
        return np.array([names[a][b] for a, b in zip(*self.kinks[:2], strict=True)], dtype=int)

    def evaluation(self, problem: Problem, layers: Sequence[Array]) -> Evaluation:
        """Return the evaluation of the given network, dead neurons included, with these derivatives."""
        return Evaluation(problem, layers, (), (self.kinks[0], self.neurons, self.kinks[2]), self.slopes)


def zeros(at: Evaluation, kink_rtol: float) -> list[Array]:
    """Return which preactivations of the hidden layers are 0 up to ``kink_rtol`` times ||w|| ||a||, (N, n_l) each.

    Samples x = 0 of networks without biases are left out: their preactivations are 0 whatever the weights are.
    """
    masks, fed = [], np.any(at.inputs[0] != 0, axis=1, keepdims=True)
    for layer, inputs, z in zip(at.layers[:-1], at.inputs, at.z, strict=False):
        terms = np.linalg.norm(inputs, axis=1)[:, None] * np.linalg.norm(layer, axis=1)
        masks.append((np.abs(z) <= kink_rtol * terms) & fed)
    return masks


def least(
    problem: Problem, layers: Sequence[Array], kink_rtol: float = KINK_RTOL, most: int | None = None
) -> Subgradient:
    """Return the subgradient of least norm of C + lambda ||theta||^2.

    Parameters
    ----------
    problem : Problem
        Data, loss and penalty.
    layers : sequence of ndarray
        W_l, with b_l as last column if there are biases.
    kink_rtol : float
        A preactivation counts as 0 up to this times ||w|| ||a|| (with b and 1 appended).
    most : int, optional
        Largest number of kinks. Default: limited only by the size of their derivatives.

    Raises
    ------
    ValueError
        If there are too many kinks.
    """
    live, small = [], list(layers)
    for number, (low, high) in enumerate(itertools.pairwise(layers)):
        live.append(np.logical_or(low.any(1), high[:, : len(low)].any(0)))
        if not live[-1].all():
            small = selected(small, number, live[-1])
    at = Evaluation(problem, small)
    found = [np.nonzero(mask & (problem.slope != 1)) for mask in zeros(at, kink_rtol)]
    where = np.repeat(np.arange(len(found)), [len(samples) for samples, _ in found])
    samples, neurons = np.concatenate([np.zeros((2, 0), int), *found], axis=1)
    limit = min(ENTRIES // max(1, at.cost_gradient.size), len(where) if most is None else most)
    expected = f"at most {limit} kinks for {at.cost_gradient.size} live parameters"
    validation.expect(len(where) <= limit, "kink_rtol", f"{len(where)} preactivations that count as 0", expected)
    kinks = where, neurons, samples
    if not len(where):
        return Subgradient(live, small, at, at, kinks, np.zeros(0))
    shapes = [layer.shape for layer in small]

    def with_slopes(slopes: Array) -> Evaluation:
        return Evaluation(problem, small, (), kinks, slopes)

    def columns(slopes: Array) -> Outer:
        there = with_slopes(slopes)
        forces = np.array([there.below[a][c, b] for a, b, c in zip(*kinks, strict=True)])
        return [(u * forces[:, None], a) for u, a in there.preactivation_factors(*kinks)]

    several = len(np.unique(where)) > 1
    plain = np.array([at.first[a][c, b] for a, b, c in zip(*kinks, strict=True)])
    unknowns = Unknowns(min(problem.slope, 1.0), plain, several)
    enough = ENOUGH * float(np.linalg.norm(at.cost_gradient))
    slopes, _ = minimize(lambda s: split(with_slopes(s).gradient, shapes), columns, unknowns, enough)
    return Subgradient(live, small, at, with_slopes(slopes), kinks, slopes)
