"""The computation of F14: kernels along the depth of linear, of trained and of diverging networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from bnrank._core import linalg
from bnrank.figures.f14_geodesics.kernels import ZERO, affine_invariant, angle, bures, distances, factors
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.figure import middle
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.measures.nonlinearities import nonlinearity
from bnrank.networks import MLP, LinearNetwork
from bnrank.tasks import Task, low_rank_map
from bnrank.theory.constructions import completely_positive, diverging_geodesic, linear
from bnrank.theory.cost.bounds import two_point
from bnrank.training import Run, Stop, train

FULL = ((2.0, 1.0, 0.0, 0.0), (0.0, 2.0, 1.0, 0.0), (0.0, 0.0, 1.5, 0.5), (0.5, 0.0, 0.0, 1.0))
LOW = ((3.0, 1.0, 0.0, 0.0), (0.0, 2.0, 1.0, 0.0), (3.0, 3.0, 1.0, 0.0), (1.5, 0.5, 0.0, 0.0))  # rank 2
CORNERS = ((1.0, 0.25, 0.5), (0.25, 1.0, 0.5))  # one point on either side of the kink of T31


@dataclass(frozen=True)
class Settings:
    """Settings of F14.

    Attributes
    ----------
    linear_depth, linear_width, linear_ridge, linear_steps
        Of the linear networks and their training.
    samples, depths, width, ridge, gain, steps, members, seed
        Of the trained ReLU networks: outputs start about ``gain`` times larger than with He's weights.
    diverging_depths, gammas, stretches, floor_depth
        Of Example 20's networks: depths, eps = L^-gamma, fixed u, largest depth at which T10's bound is computed.
    """

    linear_depth: int = 8
    linear_width: int = 8
    linear_ridge: float = 1e-2
    linear_steps: int = 3000
    samples: int = 300
    depths: tuple[int, ...] = (10, 20, 40)
    width: int = 50
    ridge: float = 1e-3
    gain: float = 30.0
    steps: tuple[int, ...] = (800, 2000, 1300)
    members: int = 2
    seed: int = 0
    diverging_depths: tuple[int, ...] = (10, 32, 100, 316, 1000, 3162, 10_000)
    gammas: tuple[float, ...] = (0.6, 0.75, 0.9)
    stretches: tuple[float, ...] = (2.0,)
    floor_depth: int = 316


@dataclass(frozen=True)
class Line:
    """Kernels along the depth of a network that is linear on its data, A_l = W_l ... W_1.

    Attributes
    ----------
    title : str
        Which network.
    rank : int
        k = rank A_L.
    logs : ndarray
        Eigenvalues of log(A_l^T A_l) on the range of A^T, l = 0..L, (L + 1, k), descending.
    bent : float
        max_l ||log A_l^T A_l - (l/L) log A^T A||_F / ||log A^T A||_F there.
    distances : ndarray
        Affine-invariant distances of the kernels at the samples, from the first layer of rank k on.
    mixed : float
        max_l ||K_l - (1 - l/L) K_0 - (l/L) K_L||_F / ||K_L||_F.
    norm : float
        ||theta||^2.
    kernels : tuple of Tensor
        Factors of the kernels at the samples, layers 0..L.
    """

    title: str
    rank: int
    logs: np.ndarray
    bent: float
    distances: np.ndarray
    mixed: float
    norm: float
    kernels: tuple[Tensor, ...]

    @property
    def off(self) -> float:
        """The largest | d(K_l, K_m) - |l - m| / n d(first, last) | / d(first, last), n steps in all."""
        d, n = self.distances, len(self.distances) - 1
        if not np.isfinite(d).all():  # kernels of different ranges
            return float("inf")
        layers = np.arange(n + 1)
        return float(np.abs(d / d[0, -1] - np.abs(layers[:, None] - layers) / n).max())

    @property
    def length(self) -> float:
        """The sum of the steps over the distance of the ends: 1 for a shortest path."""
        ends = float(self.distances[0, -1])
        return float(np.diag(self.distances, 1).sum()) / ends if np.isfinite(ends) else float("inf")


@dataclass(frozen=True)
class Trained:
    """Kernels along the depth of a ReLU network, before training or after it.

    Attributes
    ----------
    depth : int
        L.
    loss, cost, norm : float
        C + lambda ||theta||^2, C and ||theta||^2.
    kernels : tuple of Tensor
        Factors of the kernels of the preactivations at the training samples, layers 0..L.
    angles, bures : ndarray
        Distances of consecutive kernels, (L,).
    values : ndarray
        Singular values of N^(-1/2) a~_l(X), (L + 1, 10), padded with 0.
    bent : ndarray
        Nonlinearity ratios ||Z - sigma(Z)||_F / ||Z||_F of layers 1..L-1.
    start : Trained, optional
        The same network before training; None if this is the initial network.
    """

    depth: int
    loss: float
    cost: float
    norm: float
    kernels: tuple[Tensor, ...]
    angles: np.ndarray
    bures: np.ndarray
    values: np.ndarray
    bent: np.ndarray
    start: Trained | None = None

    @property
    def inner(self) -> slice:
        """The steps of ``angles`` that end in the middle third."""
        layers = middle(self.depth)
        return slice(layers[0] - 1, layers[-1])

    @property
    def share(self) -> float:
        """The fraction of the path's length, in angles, that lies in the middle third."""
        return float(self.angles[self.inner].sum() / self.angles.sum())

    @property
    def jumps(self) -> float:
        """The smaller of the largest steps of the first and the last sixth, over the mean step of the middle third."""
        sixth = max(1, self.depth // 6)
        ends = min(self.angles[:sixth].max(), self.angles[-sixth:].max())
        return float(ends / self.angles[self.inner].mean())


@dataclass(frozen=True)
class Family:
    """T31's network at many depths, of one gamma or of one total stretch u = (L - 2) eps.

    Attributes
    ----------
    title : str
        Which.
    gamma : float
        eps = L^-gamma; NaN where u is fixed.
    stretch : ndarray
        u, (depths,).
    depths : ndarray
        L, (depths,).
    excess : ndarray
        ||theta||^2 - 3 L, (depths,).
    growth : ndarray
        log of the largest eigenvalue of the kernel at layer L/2 over that of the input's, (depths,).
    errors : ndarray
        Largest error of the function at the samples, (depths,).
    floors : ndarray
        T10's bound on ||theta||^2 less 3 L with the network's own C; NaN at depths where it was not computed.
    courses : tuple of ndarray
        ``growth`` at the layers 0..L, per depth.
    """

    title: str
    gamma: float
    stretch: np.ndarray
    depths: np.ndarray
    excess: np.ndarray
    growth: np.ndarray
    errors: np.ndarray
    floors: np.ndarray
    courses: tuple[np.ndarray, ...]


def lines(folder: Path, progress: bool, settings: Settings) -> list[Line]:
    """Return optimal, T7's and trained networks of a map of rank 4, then optimal and trained ones of rank 2."""
    s, depth = settings, settings.linear_depth
    x = 2 * torch.rand(100, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for entries, word in ((FULL, ""), (LOW, ", rank 2")):
        a = torch.tensor(entries, dtype=torch.float64)
        found.append(read_line("optimal (T8)" + word, linear(a, depth), x))
        if not word:
            found.append(read_line("completely positive (T7)", completely_positive(a, depth, torch.eye(4)), x))
        net = LinearNetwork([4, *[s.linear_width] * (depth - 1), 4], bias=False)
        task = Task(x, x @ a.T, loss="mse", name="linear map")
        stop = Stop(s.linear_steps, gradient_norm=1e-12)
        options: dict[str, Any] = {"ridge": s.linear_ridge, "seed": 0, "dtype": torch.float64, "record": 50}
        out = folder / f"linear{word.replace(', ', '-').replace(' ', '-')}"
        run = train(net, task, steps=stop, out=out, progress=progress, **options)
        found.append(read_line("trained with a ridge" + word, cast(MLP, run.network(0)), x))
    return found


def read_line(title: str, net: MLP, x: Tensor) -> Line:
    """Return the kernels of a network that is linear at the samples x, (N, d_in), float64."""
    product, maps = torch.eye(x.shape[1], dtype=torch.float64), []
    for weight in net.weights:
        product = weight.detach().to(torch.float64) @ product
        maps.append(product)
    _, s, vh = torch.linalg.svd(product)
    rank = int(linalg.rank(s, ZERO))
    logs = torch.stack([torch.zeros(rank, rank, dtype=torch.float64), *(_log(m @ vh[:rank].T) for m in maps)])
    ratios = torch.linspace(0, 1, len(logs), dtype=torch.float64)[:, None, None]
    bent = (logs - ratios * logs[-1]).flatten(1).norm(dim=1).max() / logs[-1].norm()
    kernels = factors(net, x)
    first = 0 if rank == x.shape[1] else 1
    k = torch.stack([f @ f.T for f in kernels])
    mixed = (k - (1 - ratios) * k[0] - ratios * k[-1]).flatten(1).norm(dim=1).max() / k[-1].norm()
    eigenvalues = torch.linalg.eigvalsh(logs).flip(1).numpy()
    apart = distances(kernels[first:], affine_invariant)
    return Line(title, rank, eigenvalues, float(bent), apart, float(mixed), _norm(net), kernels)


def _log(a: Tensor) -> Tensor:
    """Return log(A^T A) of a matrix with independent columns."""
    _, s, vh = torch.linalg.svd(a, full_matrices=False)
    return cast(Tensor, (vh.T * (2 * s.log())) @ vh)


def _norm(net: MLP) -> float:
    return math.fsum(float(p.detach().double().square().sum()) for p in net.parameters())


def trained(folder: Path, progress: bool, settings: Settings) -> list[Trained]:
    """Return networks trained on F4's data, per depth the member with the lowest loss, with its initial network.

    Every depth has its own initial draws. Hidden weights have He's standard deviation times gain^(1/L), so that initial
    outputs are about ``gain`` times larger: with He's initialization, outputs of deep narrow networks are so small that
    the ridge drives the weights to 0 first (F4).
    """
    s, task = settings, low_rank_map(settings.samples)
    found = []
    ahead([partial(_run, folder, False, s, task, i) for i in range(len(s.depths))], progress)
    for i, depth in enumerate(s.depths):
        init, first, run = _run(folder, progress, s, task, i)
        best = int(run.summary.loss.argmin("member"))
        history = run.history.isel(member=best)
        start = read_trained(mlp(task, depth, s.width, init=init, seed=first + best), task.x, history.isel(step=0))
        end = read_trained(cast(MLP, run.network(best)), task.x, history.isel(step=-1))
        found.append(replace(end, start=start))
    return found


def _run(folder: Path, progress: bool, s: Settings, task: Task, i: int) -> tuple[float, int, Run]:
    """Return the standard deviation of the initial weights, the first seed and the run of the i-th depth."""
    depth = s.depths[i]
    init, first = math.sqrt(2 / s.width) * s.gain ** (1 / depth), s.seed + i * s.members
    net, out = mlp(task, depth, s.width, init=init, seed=first), folder / f"depth-{depth}"
    options: dict[str, Any] = {"members": s.members, "seed": first, "ridge": s.ridge, "steps": s.steps[i]}
    return init, first, train_recorded(net, task, out, progress, **options)


def read_trained(net: MLP, x: Tensor, row: xr.Dataset) -> Trained:
    """Return the kernels of a network at x; ``row`` is its recorded row."""
    kernels = factors(net, x)
    spectra = [torch.linalg.svdvals(f)[:10] for f in kernels]
    values = torch.stack([torch.nn.functional.pad(s, (0, 10 - len(s))) for s in spectra])
    angles, steps = (np.array([metric(a, b) for a, b in itertools.pairwise(kernels)]) for metric in (angle, bures))
    costs = (float(row.loss), float(row.cost), float(row.parameter_norm))
    bent = np.array([float(v) for v in nonlinearity(net, x).values()])
    return Trained(net.depth, *costs, kernels, angles, steps, values.numpy(), bent)


def apart(one: Trained, other: Trained) -> np.ndarray:
    """Return the angles between the kernels of two depths at the ratios l / L of the first, (L + 1,)."""
    scale = other.depth / one.depth
    pairs = ((f, other.kernels[round(layer * scale)]) for layer, f in enumerate(one.kernels))
    return np.array([angle(f, g) for f, g in pairs])


def cheapest_stretch(depths: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the u that minimizes ||theta||^2 of T31's networks (even L, a = 1) at every depth, and the norm less 3 L.

    Setting the derivative to 0 gives e^-u = 12 u / L to leading order, so u grows like log L - log log L and the norm
    is about 3 L + 12 (u^2 + 2 u) / L: less than with any eps = L^-gamma, and the representations still diverge.
    """
    depth = np.asarray(depths, dtype=np.float64)
    u = np.linspace(0, np.log(depth), 20_001)
    eps = u / (depth - 2)
    layers = 4 * np.sinh(eps) ** 2 + 2 * np.sinh(2 * eps) ** 2  # 2 cosh 2 eps + cosh 4 eps - 3
    norm = (depth - 2) * layers + kink(u)
    return u[norm.argmin(0), np.arange(len(depth))], norm.min(0)


def kink(u: np.ndarray | float) -> np.ndarray:
    """Return the cost of the row and the column of the nonlinear term at stretch u, 2 e^-u + e^-2u."""
    return np.asarray(2 * np.exp(-np.asarray(u)) + np.exp(-2 * np.asarray(u)))


def family(title: str, depths: Sequence[int], gamma: float, stretch: float | None, floor: int) -> Family:
    """Return the measurements of the networks of one family."""
    x = torch.rand(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = torch.cat([x[:, :2], x[:, 2:] + (x[:, :1] - x[:, 1:2]).relu()], 1)
    rows: list[tuple[float, ...]] = []
    courses = []
    for depth in depths:
        power = gamma if stretch is None else math.log((depth - 2) / stretch) / math.log(depth)
        net = diverging_geodesic(depth, power)
        course, out = _course(net, x)
        bound = float(two_point(net, torch.tensor(CORNERS, dtype=torch.float64))) if depth <= floor else math.nan
        u = (depth - 2) * depth**-power
        error = float((out - f).abs().max())
        rows.append((u, _norm(net) - 3 * depth, float(course[depth // 2]), error, bound - 3 * depth))
        courses.append(course)
    u, excess, growth, errors, floors = np.array(rows).T
    return Family(title, gamma, u, np.array(depths), excess, growth, errors, floors, tuple(courses))


def _course(net: MLP, x: Tensor) -> tuple[np.ndarray, Tensor]:
    """Return log of the kernels' largest eigenvalues over the input's at layers 0..L, and the outputs."""
    grams, a = [x.T @ x], x
    for layer, weight in enumerate(net.weights):
        z = (a if layer == 0 else a.relu()) @ weight.detach().T
        grams.append(z.T @ z)
        a = z
    wide = max(len(g) for g in grams)
    top = torch.linalg.eigvalsh(torch.stack([torch.nn.functional.pad(g, (0, wide - len(g)) * 2) for g in grams]))
    logs = top[:, -1].log()
    return (logs - logs[0]).numpy(), a
