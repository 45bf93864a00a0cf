"""The computation of F2: trained classifiers and their exact class regions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bnrank.measures.regions import ClassRegions, tripoints
from bnrank.networks import MLP
from bnrank.tasks import Task


@dataclass(frozen=True, eq=False)
class Classifier:
    """One trained network and its class regions.

    Attributes
    ----------
    depth, seed : int
        Number of weight layers, and the seed of the start.
    ridge : float
        lambda; 0 without L2.
    accuracy, accuracy_test, cost, norm : float
        Shares of correctly classified samples, the cross-entropy of the training set, ||theta||^2.
    regions : ClassRegions
        The exact class regions.
    reach : ndarray
        Of each tripoint: the smallest multiple of the data's bounding box about its center that contains it.
    nearest : float
        Smallest distance from a tripoint to a sample; infinite without tripoints.
    weights : ndarray
        The three largest singular values of the weight matrix in the middle, W_{floor(L/2) + 1}.
    spread : ndarray
        s_2 / s_1 of the centered activations of each hidden layer on the training set: 0 if they lie on a line.
    """

    depth: int
    ridge: float
    seed: int
    accuracy: float
    accuracy_test: float
    cost: float
    norm: float
    regions: ClassRegions
    reach: np.ndarray
    nearest: float
    weights: np.ndarray
    spread: np.ndarray

    @property
    def kind(self) -> str:
        """Depth and kind of training."""
        return f"depth {self.depth}, {'with' if self.ridge else 'no'} L2"

    def within(self, times: float) -> int:
        """Return the number of tripoints in ``times`` the data's bounding box."""
        return int((self.reach <= times).sum())


def look(
    net: MLP, task: Task, *, ridge: float, seed: int, cost: float, norm: float, far: float, max_regions: int = 1_000_000
) -> Classifier:
    """Return the measurements of one network in ``far`` times the data's bounding box."""
    center, half = _box(task)
    bounds = torch.stack([center - far * half, center + far * half], 1)
    regions = tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], bounds, max_regions=max_regions)
    distances = torch.cdist(regions.points, task.x.double())
    return Classifier(
        depth=net.depth,
        ridge=ridge,
        seed=seed,
        accuracy=_accuracy(net, task.x, task.y),
        accuracy_test=float("nan") if task.x_test is None else _accuracy(net, task.x_test, task.y_test),
        cost=cost,
        norm=norm,
        regions=regions,
        reach=np.sort(((regions.points - center).abs() / half).amax(1).numpy()),
        nearest=float(distances.min()) if len(regions) else float("inf"),
        weights=torch.linalg.svdvals(net.weights[net.depth // 2].detach().double())[:3].numpy(),
        spread=_spread(net, task.x),
    )


def agreement(first: MLP, second: MLP, task: Task, grid: int = 300) -> float:
    """Return the share of the data's bounding box on which two networks predict the same class, on a grid of points."""
    center, half = _box(task)
    steps = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid * 2 - 1
    x = (center + half * torch.cartesian_prod(steps, steps)).to(task.x.dtype)
    with torch.no_grad():
        return float((first(x).argmax(1) == second(x).argmax(1)).double().mean())


def mean_agreement(first: Sequence[MLP], second: Sequence[MLP], task: Task) -> float:
    """Return the mean of `agreement` over pairs of networks."""
    return float(np.mean([agreement(one, other, task) for one, other in zip(first, second, strict=True)]))


def _box(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
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
