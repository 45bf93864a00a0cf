"""Part of F9: the duration of a saddle with one neuron per layer, against the scale of the small weights."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from scipy.optimize import minimize
from torch import Tensor

from bnrank.figures.harness.claims import Claim, below, between
from bnrank.figures.harness.drawing import color, label, panels
from bnrank.networks import MLP, from_layers
from bnrank.tasks import Task
from bnrank.theory.escape import join_rate
from bnrank.training import Limits, Record, Solver
from bnrank.training.gradient_flow import flow

SAMPLES, COMPONENTS, WIDTH, NORM = 200, 10, 20, 3.0
STEP = 0.4  # of Euler's method
SHARE = 0.1  # the escape from the saddle is where s_2 / s_1 of W_1 reaches this value


@dataclass(frozen=True)
class Chain:
    """A saddle of the mean-square cost with one neuron per layer.

    Attributes
    ----------
    weights : list of Tensor
        W_1 (1, d_in), ..., W_L (d_out, 1), of equal norm.
    x, y : Tensor
        The data.
    cost, gradient : float
        C and the largest entry of grad C there.
    """

    weights: list[Tensor]
    x: Tensor
    y: Tensor
    cost: float
    gradient: float


@dataclass(frozen=True)
class Exits:
    """Exits from a saddle, for some scales of the small weights.

    Attributes
    ----------
    kappa : float
        The growth rate of a new neuron (:func:`bnrank.escape.join_rate`).
    scales, times, rates : tuple of float
        Standard deviations of the small weights; times at which s_2 / s_1 of W_1 is 0.1; growth rates of s_2 before.
    curves : list of (times, s_2 / s_1)
        Of W_1, per scale.
    deeper : float
        Largest s_2 of a layer after the first at an exit, over its initial value.
    """

    kappa: float
    scales: tuple[float, ...]
    times: tuple[float, ...]
    rates: tuple[float, ...]
    curves: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    deeper: float

    @property
    def slope(self) -> float:
        """Time of exit per unit of log(1/scale), by least squares."""
        return float(np.polyfit(np.log(1 / np.array(self.scales)), self.times, 1)[0])


def chain(task: Task, depth: int, seed: int = 0) -> Chain:
    """Return a saddle with one neuron per layer, on the first ten principal components of a few digits.

    Such a network is v sigma(w . x) with the norms of w and v spread over its layers; its saddle minimizes this cost.
    """
    x, labels = task.x[:SAMPLES].double(), task.y[:SAMPLES]
    x = x - x.mean(0)
    x = x @ torch.linalg.svd(x, full_matrices=False)[2][:COMPONENTS].T
    x = x * (NORM / x.square().sum(1).mean().sqrt())
    y = torch.nn.functional.one_hot(labels, task.d_out).double()
    features = x.shape[1]

    def cost(point: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        w, v = torch.from_numpy(point).split([features, task.d_out])
        z = x @ w
        error = z.relu()[:, None] * v - y
        delta = 2 * error / len(x)
        gradient = torch.cat([x.T @ ((delta @ v) * (z > 0)), delta.T @ z.relu()])
        return float(error.square().sum()) / len(x), gradient.numpy()

    draw: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    options = {"maxiter": 3000, "maxfun": 6000, "maxcor": 30, "ftol": 1e-16, "gtol": 1e-9}
    starts = [torch.randn(features + task.d_out, **draw).numpy() * 0.3 for _ in range(8)]
    found = [minimize(cost, start, jac=True, method="L-BFGS-B", options=options) for start in starts]
    best = min(found, key=lambda result: result.fun)
    w, v = torch.from_numpy(best.x).split([features, task.d_out])
    size = float(w.norm() * v.norm()) ** (1 / depth)
    inner = [torch.full((1, 1), size, dtype=torch.float64) for _ in range(depth - 2)]
    weights = [(size * w / w.norm())[None], *inner, (size * v / v.norm())[:, None]]
    return Chain(weights, x, y, float(best.fun), float(np.abs(best.jac).max()))


def surrounded(saddle: Chain, scale: float, width: int = WIDTH, seed: int = 0) -> MLP:
    """Return a network of the given width: the chain, and N(0, scale^2) in all other weights."""
    generator = torch.Generator().manual_seed(seed)
    depth = len(saddle.weights)
    widths = [saddle.x.shape[1], *[width] * (depth - 1), saddle.y.shape[1]]
    shapes = [(n_out, n_in) for n_in, n_out in itertools.pairwise(widths)]
    weights = [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    for full, own in zip(weights, saddle.weights, strict=True):
        full[: own.shape[0], : own.shape[1]] = own
    return from_layers(weights, slope=0.0)


def measure(task: Task, depth: int, scales: Sequence[float]) -> Exits:
    """Return the exits from the saddle, one flow per scale of the small weights."""
    saddle = chain(task, depth)
    kappa = join_rate(from_layers(saddle.weights), "mse", saddle.x, saddle.y, layers=[1], seed=0).kappa
    times, rates, curves, deeper = [], [], [], 0.0
    for scale in scales:
        net, time = surrounded(saddle, scale, seed=1), math.log(1 / scale) / kappa
        solver = Solver("euler", step=STEP)
        record = Record(every=20, top_k=2)
        limits = Limits(max_networks=2)
        run = flow(net, (saddle.x, saddle.y), time, solver=solver, record=record, limits=limits)
        values = run.history["weight_singular_values"].values[0]
        second, first = values[:, 0, 1], values[:, 0, 0]
        share = second / first
        row = int(np.argmax(share > SHARE)) if (share > SHARE).any() else len(share) - 1
        times.append(float(run.times[row]) if share[row] > SHARE else math.inf)
        growing = (second > 4 * second[0]) & (share < SHARE) & (np.arange(len(share)) < row)
        fitted = np.polyfit(run.times[growing], np.log(second[growing]), 1)[0] if growing.sum() > 3 else math.nan
        rates.append(float(fitted))
        curves.append((run.times[: row + 60], share[: row + 60]))
        deeper = max(deeper, float((values[row, 1:, 1] / values[0, 1:, 1]).max()))
    return Exits(kappa, tuple(scales), tuple(times), tuple(rates), curves, deeper)


def claims(exits: Exits) -> tuple[Claim, ...]:
    """Return the claims that compare times and rates with log(1/scale) / kappa."""
    name = "exit from a one-neuron saddle by joins: time per log(1/scale), times kappa"
    rate = exits.rates[-1]
    return (
        between(name, exits.slope * exits.kappa, 0.9, 1.1),
        between("growth rate of s_2(W_1) before the exit, over kappa", rate / exits.kappa, 0.9, 1.1),
        below("at that exit deeper layers have no second one: growth of s_2 in layers 2 to L", exits.deeper, 2),
    )


def draw(exits: Exits) -> Picture:
    """Draw s_2 / s_1 of W_1 over time for every scale, and the times of exit against the scale."""
    picture, ((left, right),) = panels(1, 2, (10.5, 3.8))
    for i, (scale, (times, share)) in enumerate(zip(exits.scales, exits.curves, strict=True)):
        left.plot(times, share, color=color(i), label=f"{scale:.0e}")
    left.axhline(SHARE, color="0.5", linewidth=1, linestyle="--")
    title = "New neurons join in the first layer"
    label(left, "time since the start at the saddle", "s₂ / s₁ of W₁", title, log="y", legend="best")
    left.get_legend().set_title("small weights")
    log = np.log(1 / np.array(exits.scales))
    right.plot(log, exits.times, "o", color=color(0), label=f"observed: slope {exits.slope:.4g}")
    middle = float(np.mean(np.array(exits.times) - log / exits.kappa))
    right.plot(log, middle + log / exits.kappa, color=color(1), label=f"slope 1/κ = {1 / exits.kappa:.4g}")
    title = "The plateau lasts log(1/scale) / κ"
    label(right, "log(1 / scale of the small weights)", "time of exit", title, legend="best")
    return picture
