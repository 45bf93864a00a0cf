"""The computation of F2: trained classifiers and their exact class regions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bnrank.figures.harness.training import mlp, start_as_pytorch
from bnrank.measures.regions import ClassRegions, tripoints
from bnrank.networks import MLP
from bnrank.tasks import Task, s_shapes
from bnrank.training import Adam, Run, train

PYTORCH, HE = "PyTorch", "He"  # starts


@dataclass(frozen=True)
class Settings:
    """Settings of F2.

    Attributes
    ----------
    samples : int
        Training samples, and as many test samples.
    depths : tuple of int
        Depths of the shallow and the deep network.
    width : int
        Of every hidden layer.
    ridge : float
        lambda of the L2-regularized networks.
    seeds : tuple of int
        Of the data and of the initial weights, both.
    steps : tuple of int
        Of Adam (3e-3, cosine) without L2 at each depth; there is no minimum to converge to, and shallow networks fit
        more slowly.
    steps_ridge : int
        Of L-BFGS with L2, from there.
    times, far : float
        Multiples of the data's bounding box: claims on deep networks are about ``times``, those on shallow ones about
        the box itself; the search extends to ``far``.
    control : int
        Number of seeds with which deep networks are also trained from He's start.
    """

    samples: int = 100
    depths: tuple[int, int] = (2, 9)
    width: int = 50
    ridge: float = 3e-4
    seeds: tuple[int, ...] = tuple(range(20, 30))
    steps: tuple[int, int] = (3000, 1500)
    steps_ridge: int = 600
    times: float = 3.0
    far: float = 10.0
    control: int = 5


@dataclass(frozen=True, eq=False)
class Classifier:
    """One trained network and its class regions.

    Attributes
    ----------
    depth, seed : int
        Number of weight layers, and the seed of data and start.
    start : str
        Distribution of the initial weights, "PyTorch" or "He".
    ridge : float
        lambda; 0 without L2.
    task : Task
        The data.
    same : float
        Fraction of the data's bounding box where this network and the one without L2 from which it continues predict
        the same class; 1 without L2.
    regions : ClassRegions
        The exact class regions.
    reach : ndarray
        For each tripoint: the smallest multiple of the data's bounding box (scaled about its center) that contains it.
    spread : ndarray
        s_2 / s_1 of the centered activations of each hidden layer on the training set: 0 if they lie on a line.
    row : dict
        The measurements by column of the table: shares of correctly classified samples, the cross-entropy of the
        training set, ||theta||^2, the smallest distance from a tripoint to a sample, the three largest singular values
        of the weight matrix in the middle, W_{floor(L/2) + 1}, and more.
    """

    depth: int
    start: str
    ridge: float
    seed: int
    task: Task
    same: float
    regions: ClassRegions
    reach: np.ndarray
    spread: np.ndarray
    row: dict[str, Any]

    @property
    def kind(self) -> str:
        """Depth, whether trained with L2, and the start if it is not PyTorch's."""
        start = "" if self.start == PYTORCH else f", {self.start} start"
        return f"depth {self.depth}, {'with' if self.ridge else 'no'} L2{start}"

    def within(self, times: float) -> int:
        """Return the number of tripoints in ``times`` the data's bounding box."""
        return int((self.reach <= times).sum())


def trained(
    s: Settings, seed: int, depth: int, start: str, folder: Path, progress: bool
) -> tuple[Task, list[tuple[float, Run]]]:
    """Return the data of a seed, and ridge and run of one depth and start without L2, and continued with L2.

    At depth 9 the origin is a local minimum of the loss with L2 that attracts networks with small initial weights. L2
    therefore starts once the data are fitted.
    """
    task = s_shapes(s.samples, seed=seed, n_test=s.samples, heights="normal")
    net = mlp(task, depth, s.width, init="he", seed=seed)
    if start == PYTORCH:
        start_as_pytorch(net, seed)
    stages = ((0.0, s.steps[s.depths.index(depth)], Adam(3e-3, "cosine")), (s.ridge, s.steps_ridge, "kfac-lbfgs"))
    found: list[tuple[float, Run]] = []
    for ridge, steps, optimizer in stages:
        out = folder / f"depth-{depth}-{start.lower()}-{seed}{'-l2' if ridge else ''}"
        run = train(net, task, ridge=ridge, steps=steps, optimizer=optimizer, out=out, progress=progress)
        net = cast(MLP, run.network(0))
        found.append((ridge, run))
    return task, found


def classifiers(s: Settings, seed: int, depth: int, start: str, folder: Path, progress: bool) -> list[Classifier]:
    """Return the network of one seed, depth and start without L2, and the one that continues from it with L2."""
    task, runs = trained(s, seed, depth, start, folder, progress)
    found: list[Classifier] = []
    before = cast(MLP, runs[0][1].network(0))
    for ridge, run in runs:
        net = cast(MLP, run.network(0))
        same = agreement(before, net, task) if ridge else 1.0
        found.append(look(net, task, run.summary.isel(member=0), s, seed=seed, start=start, ridge=ridge, same=same))
    return found


def look(net: MLP, task: Task, last: Any, settings: Settings, **about: Any) -> Classifier:
    """Return the measurements of one network in ``far`` times the data's bounding box; ``last`` is its summary."""
    times, far = settings.times, settings.far
    center, half = box(task)
    bounds = torch.stack([center - far * half, center + far * half], 1)
    regions = tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], bounds, max_regions=1_000_000)
    reach = np.sort(((regions.points - center).abs() / half).amax(1).numpy())
    spread = _spread(net, task.x)
    weights = torch.linalg.svdvals(net.weights[net.depth // 2].detach().double())
    row = {
        "correct, training": _accuracy(net, task.x, task.y),
        "correct, test": float("nan") if task.x_test is None else _accuracy(net, task.x_test, task.y_test),
        "cross-entropy": float(last.cost),
        "||theta||^2": float(last.parameter_norm),
        **{f"tripoints, reach {r:g}": int((reach <= r).sum()) for r in (1.0, times, far)},
        "reach of the first": float(reach[0]) if len(reach) else "",
        "smallest distance to a sample": float(torch.cdist(regions.points, task.x.double()).min())
        if len(reach)
        else "",
        "regions": len(regions.cells),
        **{f"s_{i}": float(value) for i, value in enumerate(weights[:3], 1)},
        "closest to a line": float(np.min(spread)),
    }
    return Classifier(depth=net.depth, task=task, regions=regions, reach=reach, spread=spread, row=row, **about)


def agreement(first: MLP, second: MLP, task: Task, grid: int = 300) -> float:
    """Return the fraction of a grid on the data's bounding box on which two networks predict the same class."""
    center, half = box(task)
    steps = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid * 2 - 1
    x = (center + half * torch.cartesian_prod(steps, steps)).to(task.x.dtype)
    with torch.no_grad():
        return float((first(x).argmax(1) == second(x).argmax(1)).double().mean())


def box(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the center of the data's bounding box and half its sides."""
    low, high = task.x.double().amin(0), task.x.double().amax(0)
    return (low + high) / 2, (high - low) / 2


def _accuracy(net: MLP, x: torch.Tensor, y: torch.Tensor | None) -> float:
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


def _spread(net: MLP, x: torch.Tensor) -> np.ndarray:
    ratios = []
    with torch.no_grad():
        for layer in net.layers[:-1]:
            x = layer(x).relu()
            values = torch.linalg.svdvals((x - x.mean(0)).double())
            ratios.append(float(values[1] / values[0]) if values[0] > 0 else float("nan"))
    return np.array(ratios)
