"""Linear networks at minima of every rank, stochastic gradient descent from there, and the jumps of the rank."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats

from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.training import train_recorded
from bnrank.networks.mlp import LinearNetwork
from bnrank.tasks import Task
from bnrank.training import GradientDescent, Run

Array = NDArray[np.float64]

LOW, HIGH = 0.15, 0.4  # a direction is lost below the first, and won above the second
POLISH, POLISH_LR = 3000, 0.03  # steps and their size of gradient descent to the minimum
ROWS = 100


@dataclass(frozen=True)
class Settings:
    """Settings of F17.

    ``targets`` are the singular values of the linear map that the data come from, ``noise`` the standard deviation of
    their errors. From the minimum of every rank, displaced by ``perturbation`` in every weight, ``repeats`` networks
    take ``steps`` of size ``lr`` on batches of every size in ``batches``; ``controls`` of them use all samples.
    """

    targets: tuple[float, ...] = (1.5, 1.0, 0.35, 0.345, 0.34, 0.335)
    samples: int = 1000
    noise: float = 0.5
    depth: int = 3
    ridge: float = 0.1
    lr: float = 0.02
    batches: tuple[int, ...] = (1, 2)
    steps: int = 8000
    perturbation: float = 3e-3
    repeats: int = 50
    controls: int = 2
    seeds: tuple[int, ...] = (3, 4, 5)


def problem(settings: Settings, seed: int) -> tuple[Task, torch.Tensor]:
    """Return noisy samples of a linear map at inputs of norm sqrt(d), and the map."""
    s, d, rng = settings, len(settings.targets), np.random.default_rng(seed)
    x = rng.normal(size=(s.samples, d))
    x *= np.sqrt(d) / np.linalg.norm(x, axis=1, keepdims=True)
    left, right = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    wanted = left @ np.diag(s.targets) @ right.T
    y = x @ wanted.T + s.noise * rng.normal(size=(s.samples, d))
    return Task(torch.as_tensor(x), torch.as_tensor(y)), torch.as_tensor(wanted)


def balanced(wanted: torch.Tensor, rank: int, depth: int) -> LinearNetwork:
    """Return the balanced network whose map is the truncation of a matrix to a rank: W_l^T W_l = W_{l-1} W_{l-1}^T."""
    left, values, right = torch.linalg.svd(wanted)
    root = torch.diag(torch.where(torch.arange(len(values)) < rank, values, 0.0) ** (1 / depth))
    net = LinearNetwork([len(wanted)] * (depth + 1), dtype=torch.float64)
    layers = [root @ right, *[root] * (depth - 2), left @ root]
    with torch.no_grad():
        for weight, layer in zip(net.weights, layers, strict=True):
            weight.copy_(layer)
    return net


def minima(settings: Settings, seed: int, folder: Path, progress: bool) -> Run:
    """Return the run of gradient descent that ends at a minimum for the truncation to every rank, 0 included."""
    task, wanted = problem(settings, seed)
    nets = [balanced(wanted, rank, settings.depth) for rank in range(len(settings.targets) + 1)]
    return train_recorded(
        nets, task, folder / f"minima-{seed}", progress, steps=POLISH, records=3, ridge=settings.ridge,
        optimizer=GradientDescent(POLISH_LR), dtype=torch.float64,
    )  # fmt: skip


def trained(settings: Settings, seed: int, batch: int, folder: Path, progress: bool) -> Run:
    """Return the run of descent from displaced minima; ``batch`` 0 stands for all samples."""
    s = settings
    task, _ = problem(s, seed)
    found = minima(s, seed, folder, False)
    repeats = s.repeats if batch else s.controls
    nets = [
        moved(found.network(rank), s, (seed, rank, i)) for rank in range(len(s.targets) + 1) for i in range(repeats)
    ]
    return train_recorded(
        nets, task, folder / f"batches-{batch}-{seed}", progress, steps=s.steps, records=ROWS, ridge=s.ridge,
        optimizer=GradientDescent(s.lr), batch_size=batch or None, dtype=torch.float64,
    )  # fmt: skip


def moved(net: torch.nn.Module, settings: Settings, seed: Sequence[int]) -> torch.nn.Module:
    """Return a copy of a network in float64 with a Gaussian displacement of every weight, and batches of its own."""
    net, rng = copy.deepcopy(net).double(), np.random.default_rng(list(seed))
    net.seed = int(rng.integers(2**31))  # type: ignore[assignment]  # of the batches
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.as_tensor(settings.perturbation * rng.normal(size=tuple(p.shape))))
    return net


def jumps(values: Array) -> Array:
    """Return the rank at every recorded row, (members, rows), of smallest singular values over the layers.

    ``values`` are (members, rows, k). A direction counts until its value is below 0.15, and again when it is above 0.4,
    so that noise around one threshold is no jump.
    """
    state = values[:, 0] > HIGH
    ranks = [state.sum(-1)]
    for row in np.moveaxis(values[:, 1:], 1, 0):
        state = (state & (row >= LOW)) | (row > HIGH)
        ranks.append(state.sum(-1))
    return np.stack(ranks, 1)


def measure(settings: Settings, folder: Path, progress: bool) -> tuple[pd.DataFrame, dict[int, Array]]:
    """Return one row per network with its jumps, and the ranks over time, (networks, rows), for every batch size."""
    s = settings
    ahead([partial(minima, s, seed, folder, False) for seed in s.seeds], progress)
    kinds = [(seed, batch) for batch in (*s.batches, 0) for seed in s.seeds]
    ahead([partial(trained, s, *kind, folder, False) for kind in kinds], progress)
    rows, courses = [], dict[int, list[Array]]()
    for seed, batch in kinds:
        ranks = _ranks(trained(s, seed, batch, folder, progress))
        courses.setdefault(batch, []).append(ranks)
        rows += [{"batch": batch, "data": seed} | one for one in _rows(ranks)]
    return pd.DataFrame(rows), {batch: np.concatenate(found) for batch, found in courses.items()}


def _ranks(run: Run) -> Array:
    values = run.history["weight_singular_values"].values  # (member, step, layer, k)
    if not np.isfinite(values).all():
        raise ValueError("lr: a network diverged; expected a smaller step size")
    return jumps(values.min(axis=2))


def _rows(ranks: Array) -> Iterator[dict[str, int]]:
    for course in ranks:
        steps = np.diff(course)
        down, up = int(-steps[steps < 0].sum()), int(steps[steps > 0].sum())
        yield {"first": int(course[0]), "last": int(course[-1]), "down": down, "up": up}


def share(count: int, total: int) -> tuple[float, float, float]:
    """Return a share and its 95 percent interval (Clopper and Pearson); NaN without any."""
    if not total:
        return np.nan, 0.0, 1.0
    found = stats.binomtest(count, total).proportion_ci(0.95, "exact")
    return count / total, float(found.low), float(found.high)


def global_rank(settings: Settings) -> int:
    """Return the rank of the global minimum for whitened inputs and no noise: how many modes cost less kept than left.

    A singular value a fitted to s costs (s - a)^2 + ridge L a^(2/L), and s^2 if it is left out.
    """
    s, grid = settings, np.linspace(0, max(settings.targets), 20_001)
    costs = (np.array(s.targets)[:, None] - grid) ** 2 + s.ridge * s.depth * grid ** (2 / s.depth)
    return int((costs.min(1) < np.array(s.targets) ** 2).sum())
