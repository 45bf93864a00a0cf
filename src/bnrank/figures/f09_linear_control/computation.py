"""The computation of F9L: exact reduction of the data, closed-form law of each mode, flow of linear networks."""

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.integrate import quad, solve_ivp
from torch import Tensor

from bnrank._core import validation
from bnrank.measures import spectra
from bnrank.networks import MLP, from_layers
from bnrank.tasks import handwritten_digits
from bnrank.training import Limits, Record, SkipPlateau, plateaus
from bnrank.training.gradient_flow import Flow, flow

HALF = 0.5  # mode k has escaped at this share of s_k; relative tolerance of the ranks of layers
EVERY = 2  # steps between rows, and between rows with singular values
STAY = 1.1  # multiple of the time of the last escape at which a flow ends
LONG = 1e5  # latest time after the hand-over


@dataclass(frozen=True)
class Reduced:
    """A least-squares task with as few samples as inputs and the same gradients.

    Attributes
    ----------
    x, y : Tensor
        (d, d_in) and (d, d_out), d = d_in.
    constant : float
        C over all samples minus C over these, for every linear map.
    """

    x: Tensor
    y: Tensor
    constant: float

    @property
    def correlation(self) -> np.ndarray:
        """S = Y^T X / N, (d_out, d_in), the same for all samples and for these."""
        return (self.y.T @ self.x / len(self.x)).numpy()


@dataclass(frozen=True)
class Staircase:
    """A flow with its modes and plateaus.

    Attributes
    ----------
    flow : Flow
        The flow, with a network for every row.
    times : ndarray
        Of the networks: time since the hand-over, or since the start without one.
    modes : ndarray
        u_k^T A v_k of every network, (networks, modes).
    escapes : ndarray
        When mode k reaches s_k / 2, inf where it does not.
    found : tuple of Plateau
        Plateaus of the loss, the one at the origin first, with the ranks of all layers.
    """

    flow: Flow
    times: np.ndarray
    modes: np.ndarray
    escapes: np.ndarray
    found: tuple[plateaus.Plateau, ...]


def network_at(path: Flow, plateau: plateaus.Plateau) -> MLP:
    """Return the network of a flow at a plateau."""
    rows = np.asarray(path.network_rows)
    return cast(MLP, path.networks[int(np.abs(rows - plateau.row).argmin())])


def reduced(x: Tensor, y: Tensor) -> Reduced:
    """Return d_in samples with the Gram matrix X^T X / N and the correlation Y^T X / N of all.

    For linear maps C = tr(A Sigma A^T) - 2 tr(A S^T) + const depends on the data through Sigma = X^T X / N and
    S = Y^T X / N alone, so X' = sqrt(d) Sigma^{1/2} and Y' = sqrt(d) Sigma^{-1/2} S^T have the same gradients.

    Parameters
    ----------
    x, y : Tensor
        (N, d_in) and (N, d_out).

    Examples
    --------
    >>> g = torch.Generator().manual_seed(0)
    >>> x, y = (torch.randn(50, d, dtype=torch.float64, generator=g) for d in (3, 2))
    >>> few, a = reduced(x, y), torch.ones(2, 3, dtype=torch.float64)
    >>> cost = lambda x, y: float((x @ a.T - y).square().sum() / len(x))
    >>> len(few.x), abs(cost(few.x, few.y) + few.constant - cost(x, y)) < 1e-12
    (3, True)
    """
    x, y = x.double(), y.double()
    n, d = x.shape
    values, vectors = torch.linalg.eigh(x.T @ x / n)
    root = values.clamp_min(0).sqrt()
    inverse = torch.where(root > 1e-10 * root.max(), 1 / root, torch.zeros(()).double())
    few_x = math.sqrt(d) * (vectors * root) @ vectors.T
    few_y = math.sqrt(d) * (vectors * inverse) @ vectors.T @ (x.T @ y / n)
    return Reduced(few_x, few_y, float(y.square().sum() / n - few_y.square().sum() / d))


def drawing(images: int | None) -> tuple[Reduced, str]:
    """Return the task of drawing digits, reduced, and the name of the data.

    Inputs: e_c / sqrt(p_c) for an image of class c, whose share is p_c, so that X^T X / N = I. Targets: the image minus
    the mean image, in orthonormal coordinates of the span of the class means; the remainder cannot be fitted from
    labels.
    """
    task = handwritten_digits(images, n_test=0)
    pixels = task.x.double() - task.x.double().mean(0)
    hot = torch.nn.functional.one_hot(task.y, task.d_out).double()
    share = hot.mean(0)
    validation.expect(bool((share > 0).all()), "images", f"{images}, in which some digit does not occur", "more")
    x = hot / share.sqrt()
    u, s, _ = torch.linalg.svd(pixels.T @ x / len(x), full_matrices=False)
    return reduced(x, pixels @ u[:, s > 1e-8 * s[0]]), f"{task.name}, {task.n} images"


def aligned_network(correlation: np.ndarray, depth: int, width: int, size: float, seed: int = 0) -> MLP:
    """Return the balanced network whose layers have the singular values ``size`` and whose map has the vectors of S.

    W_1 = size Q_1 V^T, W_l = size Q_l Q_{l-1}^T, W_L = size U Q_{L-1}^T with random orthonormal columns Q_l.
    """
    u, s, vt = np.linalg.svd(correlation, full_matrices=False)
    count = int((s > 1e-8 * s[0]).sum())
    g = np.random.default_rng(seed)
    inner = [np.linalg.qr(g.normal(size=(width, count)))[0] for _ in range(depth - 1)]
    bases = [vt[:count].T, *inner, u[:, :count]]
    return from_layers([torch.from_numpy(size * b @ a.T) for a, b in itertools.pairwise(bases)], slope=1.0)


def time_of_mode(start: float, end: float, s: float, depth: int) -> float:
    """Return the time that da/dt = 2 L a^{2 - 2/L} (s - a) takes from ``start`` to ``end``, both below s.

    Examples
    --------
    >>> round(time_of_mode(0.1, 0.5, 1.0, depth=2), 6) == round(math.log(9) / 4, 6)  # a' = 4 a (1 - a)
    True
    """
    near = quad(lambda w: 1 / (2 * w ** (depth - 1) * (s - w**depth)), start ** (1 / depth), end ** (1 / depth))
    return float(near[0])


def law(start: float, s: float, depth: int, times: np.ndarray) -> np.ndarray:
    """Return a(t) of the law at the given times, from a = ``start`` at time 0."""
    rate = lambda _, log: 2 * depth * np.exp(log * (1 - 2 / depth)) * (s - np.exp(log))  # noqa: E731
    options = {"t_eval": times, "method": "LSODA", "rtol": 1e-10, "atol": 1e-10}
    found = solve_ivp(rate, (0, float(times[-1])), [math.log(start)], **options)
    return np.asarray(np.exp(found.y[0]))


def staircase(net: MLP, task: Reduced, modes: int, skip: bool) -> Staircase:
    """Return the gradient flow until ``modes`` modes have escaped and the next plateau is reached."""
    u, s, vt = np.linalg.svd(task.correlation, full_matrices=False)
    level = float((s[modes:] ** 2).sum()) + 0.01 * float(s[modes - 1] ** 2)
    time, plateau = (None, SkipPlateau(t_after=LONG)) if skip else (LONG, None)
    record = Record(every=EVERY, spectra_every=EVERY)
    limits = Limits(stop=_after(level), max_evaluations=400_000, max_networks=100_000)
    path = flow(net, (task.x, task.y), time, plateau=plateau, record=record, limits=limits)
    maps = np.stack([end_to_end(own) for own in path.networks])
    values = np.einsum("ik,tij,kj->tk", u, maps, vt)
    times = path.times_since_handover[path.network_rows]
    escapes = np.array([crossing(times, values[:, k], HALF * s[k], len(path.history.layer)) for k in range(len(s))])
    found = plateaus.find(path.times_since_handover, path.loss, path.gradient_norm, min_drop=0.005)
    ranks = [spectra.weight_singular_values(network_at(path, p)).ranks(HALF) for p in found]
    ranked = (dataclasses.replace(p, ranks=own) for p, own in zip(found, ranks, strict=True))
    return Staircase(path, times, values, escapes, tuple(ranked))


def rank_table(stairs: Staircase) -> np.ndarray:
    """Return the rank of every layer at every plateau after the first, (plateaus, layers), as in T41."""
    depth = len(stairs.flow.history.layer)
    return np.array([p.ranks for p in stairs.found[1:]], dtype=int).reshape(-1, depth)


def best_losses(task: Reduced) -> np.ndarray:
    """Return C, without the constant, of the best maps of rank 0, 1, 2, ... for whitened inputs."""
    s = np.linalg.svd(task.correlation, compute_uv=False)
    return np.array([float((s[k:] ** 2).sum()) for k in range(len(s) + 1)])


def _after(level: float) -> Any:
    """Return a function that stops the flow some time after the loss falls below a level."""
    first: list[float] = []

    def stop(row: Any) -> bool:
        now = row.since_handover if math.isfinite(row.since_handover) else row.time
        if row.phase == "flow" and row.loss < level and not first:
            first.append(now)
        return bool(first) and now > STAY * first[0]

    return stop


def crossing(times: np.ndarray, values: np.ndarray, level: float, depth: int) -> float:
    """Return when a mode first exceeds a level, inf if it never does; between rows a^{2/L - 1} is linear (T37)."""
    row = int(np.argmax(values >= level))
    if values[row] < level:
        return math.inf
    if row == 0:
        return float(times[0])
    before, after = values[row - 1], values[row]
    if before > 0 and depth > 2:
        before, after, level = (-(v ** (2 / depth - 1)) for v in (before, after, level))
    share = (level - before) / (after - before)
    return float(times[row - 1] + share * (times[row] - times[row - 1]))


def end_to_end(net: Any) -> np.ndarray:
    """Return A = W_L ... W_1."""
    return functools.reduce(lambda product, w: array_of(w) @ product, net.weights[1:], array_of(net.weights[0]))


def array_of(w: Tensor) -> np.ndarray:
    """Return a weight as a float64 array."""
    return w.detach().double().numpy()
