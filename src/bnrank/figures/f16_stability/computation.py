"""Fits of the identity with bottleneck rank 1 and k: their curvature, and gradient descent started at them."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from bnrank import constructions, cost
from bnrank.figures.harness.ahead import ahead, kept
from bnrank.figures.harness.intervals import interval, slopes
from bnrank.measures import ntk
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.stability import growth_bound, sharpness_bound
from bnrank.theory.tours import shortest_path_bounds
from bnrank.training import GradientDescent, train

PLANTED, BUILT, SHORTENED = "planted, rank k", "built, rank 1", "shortened, rank 1"

RECORD = 5  # steps of descent between recorded losses


@dataclass(frozen=True)
class Settings:
    """Settings of F16.

    ``dims`` are the values of k; every (k, N, L, seed) with N of ``samples`` and L of ``depths`` has its fits measured
    and descended from. ``shortened`` are the N whose rank-one fits are also shortened, at the first depth, by runs of
    ``shortening`` steps. Descent takes ``steps`` of size ``c`` / L, after a perturbation of relative size
    ``perturbation``.
    """

    dims: tuple[int, ...] = (2, 3)
    samples: tuple[int, ...] = (4, 10, 20, 40, 80)
    shortened: tuple[int, ...] = (10,)
    depths: tuple[int, ...] = (10, 20)
    shortening: int = 100
    c: float = 0.25
    perturbation: float = 1e-8
    steps: int = 100
    n_seeds: int = 5
    seed: int = 0


def measure(settings: Settings, folder: Path, progress: bool = False) -> pd.DataFrame:
    """Return one row per fit: its size, curvature and NTK, and what gradient descent does from it."""
    s = settings
    parts = [(k, seed, n) for k in s.dims for seed in range(s.seed, s.seed + s.n_seeds) for n in s.samples]
    calls = [partial(kept, folder / "k-{}-seed-{}-n-{}.json".format(*part), partial(_rows, s, *part)) for part in parts]
    ahead(calls, progress)
    return pd.DataFrame([row for call in calls for row in call()])


def _rows(s: Settings, k: int, seed: int, n: int) -> list[dict[str, object]]:
    """Return the rows of the fits of N points."""
    x = torch.as_tensor(np.random.default_rng([seed, k]).random((max(s.samples), k)))[:n]
    path, rows = _path(x), []
    for depth in s.depths:
        for kind, net in _fits(x, depth, s):
            about = {"kind": kind, "k": k, "N": n, "L": depth, "seed": seed, "TSP": path}
            rows.append(about | read(net, x, kind) | descend(net, x, s, seed))
    return rows


def _fits(x: Tensor, depth: int, settings: Settings) -> Iterable[tuple[str, MLP]]:
    """Yield the fits of the points with their kinds."""
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    yield PLANTED, from_layers([eye] * depth, [torch.zeros_like(eye[0])] * depth)
    built = constructions.line_interpolant(x, x, depth)
    yield BUILT, built
    if len(x) in settings.shortened and depth == settings.depths[0]:
        yield (
            SHORTENED,
            cost.shorten(built, x, x, steps=settings.shortening, polish=min(settings.shortening, 100)).network,
        )


def _path(x: Tensor) -> float:
    """Return the length of the shortest path through the points: exact, or the middle of its bounds."""
    found = shortest_path_bounds(x)
    return math.sqrt(found.lower * found.upper)


def read(net: MLP, x: Tensor, kind: str) -> dict[str, float]:
    """Return c1, sharpness, NTK traces, T26's bound and the error of a fit f(x_i) = x_i; see `rows`."""
    depth, rank = net.depth, x.shape[1] if kind == PLANTED else 1
    with torch.no_grad():
        error = float((net(x) - x).abs().max())
        norm = sum(float(p.square().sum()) for p in net.parameters())
    traces = ntk.trace(net, x)
    found = None if rank > 1 else growth_bound(net, x)
    return {
        "error": error,
        "c1": norm - rank * depth,
        "sharpness": sharpness_bound(net, x).curvature,
        "mean trace": float(traces.mean()),
        "largest trace": float(traces.max()) if found is None else found.measured,
        "bound": math.nan if found is None else found.bound,
    }


def descend(net: MLP, x: Tensor, settings: Settings, seed: int) -> dict[str, float]:
    """Return what gradient descent of step c / L does from a slightly perturbed fit.

    ``rise`` is the largest loss over the first one, ``end`` the last loss; both are infinite where the loss overflows.
    """
    step = settings.c / net.depth
    run = train(
        perturbed(net, settings.perturbation, seed), (x, x), ridge=0.0, steps=settings.steps, record=RECORD,
        optimizer=GradientDescent(step), dtype=torch.float64, progress=False,
    )  # fmt: skip
    losses = run.history["cost"].values[0]
    if str(run.summary["status"].values[0]) == "diverged":
        return {"rise": math.inf, "end": math.inf}
    return {"rise": float(losses.max() / losses[0]), "end": float(losses[-1])}


def perturbed(net: MLP, size: float, seed: int) -> MLP:
    """Return the network with a Gaussian displacement of all parameters, of norm size ||theta||."""
    net, rng = copy.deepcopy(net), np.random.default_rng([seed, 1])
    parameters = list(net.parameters())
    moves = [torch.as_tensor(rng.normal(size=tuple(p.shape))) for p in parameters]
    with torch.no_grad():
        norm, length = (math.sqrt(sum(float(v.square().sum()) for v in values)) for values in (parameters, moves))
        for p, move in zip(parameters, moves, strict=True):
            p.add_(move, alpha=size * norm / length)
    return net


@dataclass(frozen=True)
class Exponent:
    """The exponent of a quantity in N: mean over seeds of fitted slopes, with its 95 percent interval (Student's t)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def exponent(rows: pd.DataFrame, logarithm: "pd.Series[float]") -> Exponent:
    """Return the exponent in N of a quantity, given by its logarithm for each row."""
    table = pd.DataFrame({"seed": rows["seed"], "N": rows["N"], "y": logarithm}).pivot(
        index="seed", columns="N", values="y"
    )
    return Exponent(*interval(slopes(np.log(table.columns.to_numpy(float)), table.to_numpy())))


def exponents(rows: pd.DataFrame) -> dict[str, Exponent]:
    """Return the exponents in N of the quantities of T26 for rows of one kind, k and depth."""
    log = {name: np.log(rows[name]) for name in ("TSP", "sharpness", "mean trace", "largest trace")}
    return {
        "TSP^4": exponent(rows, 4 * log["TSP"]),
        "sharpness": exponent(rows, log["sharpness"]),
        "mean trace": exponent(rows, log["mean trace"]),
        "largest trace": exponent(rows, log["largest trace"]),
        "largest trace e^c1 / L": exponent(rows, log["largest trace"] + rows["c1"] - np.log(rows["L"])),
        "e^c1": exponent(rows, rows["c1"]),
    }
