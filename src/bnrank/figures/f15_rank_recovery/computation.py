"""The computation of F15: losses of networks of rank one, of the planted rank, and from the usual start."""

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import nn

from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.measures.spectra import weight_singular_values
from bnrank.tasks import Task
from bnrank.theory import constructions, cost
from bnrank.training import Run

COUNTED = 0.1  # smallest singular value that counts, relative to the largest one of the layer


@dataclass(frozen=True)
class Settings:
    """Settings of F15.

    ``ranks`` of the true functions, numbers of samples ``sizes``, two or more ``depths`` of networks from
    constructions, ``depth`` and ``width`` of those from the usual start, draws of the samples ``seeds``, the ridge, the
    steps from constructions and from the usual start, and the numbers of samples ``bound_sizes`` for T13's bound.
    """

    ranks: tuple[int, ...] = (2,)
    sizes: tuple[int, ...] = (10, 20, 40, 80)
    depths: tuple[int, ...] = (16, 24, 80)
    depth: int = 24
    width: int = 20
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    ridge: float = 1e-5
    steps: int = 500
    usual_steps: int = 1000
    bound_sizes: tuple[int, ...] = (40, 160, 640)


def samples(n: int, rank: int, seed: int) -> Task:
    """Return the task y = x for n samples, uniform on [0, 1]^rank: a function of this rank."""
    x = torch.from_numpy(np.random.default_rng([seed, n, rank]).uniform(size=(n, rank)))
    return Task(x, x, truth=None)


def trials(settings: Settings, folder: Path, progress: bool) -> xr.Dataset:
    """Return losses over the ridge, C / lambda + ||theta||^2, and bottleneck ranks of all trained networks.

    Over (rank, size, seed, depth): ``line`` and ``planted``, trained from the rank-one interpolant and from the
    identity of least norm. Over (rank, size, seed): ``usual`` and ``usual_rank``, from the usual initialization at the
    depth ``depth``. Over (rank, bound_size, seed): ``bound``,
    2 log(TSP / diam), with the certified lower bound on the path.
    """
    s = settings
    sizes = {"rank": len(s.ranks), "size": len(s.sizes), "seed": len(s.seeds), "depth": len(s.depths)}
    data = xr.Dataset(coords={"rank": list(s.ranks), "size": list(s.sizes), "seed": list(s.seeds)})
    data = data.assign_coords(depth=list(s.depths), bound_size=list(s.bound_sizes))
    for name in ("line", "planted"):
        data[name] = (tuple(sizes), np.full(tuple(sizes.values()), np.nan))
    for name in ("usual", "usual_rank"):
        data[name] = (("rank", "size", "seed"), np.full(tuple(sizes.values())[:3], np.nan))
    places = list(itertools.product(s.ranks, s.sizes, s.seeds))
    ahead([partial(trained, s, *place, folder, False) for place in places], progress)
    for rank, n, seed in places:
        runs, usual = trained(s, rank, n, seed, folder, progress)
        place = {"rank": rank, "size": n, "seed": seed}
        for (name, depth), run in runs.items():
            data[name].loc[{**place, "depth": depth}] = float(run.summary.loss[0]) / s.ridge
        data.usual.loc[place] = float(usual.summary.loss[0]) / s.ridge
        data.usual_rank.loc[place] = bottleneck_rank(usual.network(0))
    slopes = [
        [[cost.tsp_bound(*pair(n, rank, seed), 2).slope for seed in s.seeds] for n in s.bound_sizes] for rank in s.ranks
    ]
    data["bound"] = (("rank", "bound_size", "seed"), 2 * np.log(slopes))
    return data


def trained(
    s: Settings, rank: int, n: int, seed: int, folder: Path, progress: bool
) -> tuple[dict[tuple[str, int], Run], Run]:
    """Return the runs on n samples of a rank, from constructions by name and depth, and from the usual start."""
    task, into, runs = samples(n, rank, seed), folder / f"rank-{rank}" / f"n-{n}" / f"seed-{seed}", {}
    for depth in s.depths:
        starts = {
            "line": constructions.line_interpolant(task.x, task.y, depth, seed),
            "planted": constructions.identity(rank, depth),
        }
        for name, net in starts.items():
            runs[name, depth] = train_recorded(
                net, task, into / f"{name}-{depth}", progress, steps=s.steps, ridge=s.ridge,
                optimizer="kfac-lbfgs", dtype=torch.float64,
            )  # fmt: skip
    usual = train_recorded(
        mlp(task, s.depth, s.width), task, into / "usual", progress, steps=s.usual_steps, ridge=s.ridge, seed=seed,
    )  # fmt: skip
    return runs, usual


def pair(n: int, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and y of `samples`."""
    task = samples(n, rank, seed)
    return task.x, task.y


def bottleneck_rank(net: nn.Module) -> int:
    """Return the smallest number of singular values above a tenth of the largest, over the layers."""
    return min(int((s > COUNTED * s[0]).sum()) for s in weight_singular_values(net).values())


def crossings(data: xr.Dataset) -> xr.DataArray:
    """Return the depth at which the losses found from both constructions are equal, (rank, size, seed).

    From this depth on at most, rank one is cheaper: other fits of rank one may have a lower norm.

    The difference of the losses is interpolated linearly between the two depths nearest to it, or extrapolated from the
    last two; NaN if it does not fall with the depth there.
    """
    depths = data.depth.values.astype(float)
    gap = (data.line - data.planted).transpose(..., "depth").values
    found = np.full(gap.shape[:-1], np.nan)
    for place in np.ndindex(found.shape):
        here = gap[place]
        i = min(max(int(np.searchsorted(-here, 0.0)) - 1, 0), len(depths) - 2)
        slope = (here[i + 1] - here[i]) / (depths[i + 1] - depths[i])
        if slope < 0:
            found[place] = depths[i] - here[i] / slope
    return xr.DataArray(found, coords={name: data[name] for name in ("rank", "size", "seed")})
