"""F4 (Jacot2023b, Figure 1): parameter norm and middle rank against depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import cast

import numpy as np
import torch
import xarray as xr
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray

from bnrank.figures.harness.claims import Claim, at_least, at_most, is_true
from bnrank.figures.harness.drawing import GRAY, color, label, panels
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.intervals import interval, slopes
from bnrank.reporting import Section, plots
from bnrank.tasks import low_rank_map
from bnrank.theory import cost
from bnrank.training import sweep
from bnrank.training.sweeping.engines import engaged_engine

RIDGE = 1e-3
RANK = 2  # of the source's data
WITHIN = 0.25  # largest distance of an interval of slopes from the rank
BENDS = {2: 0.025, 4: 0.0125}  # largest bend, by rank of the data; a square root has 0.034 and 0.023 over their depths
Array = NDArray[np.float64]
THRESHOLD = 0.1  # smallest singular value that counts; largest training cost of a fitted network


@dataclass(frozen=True)
class Settings:
    """Settings of F4.

    Attributes
    ----------
    depths : tuple of int
        Depths of the networks on the source's data, of rank 2.
    others : tuple of (int, tuple of int)
        Ranks of further data, drawn alike, and depths of the networks on them.
    y_norm_squared : float
        Mean of ||y||^2 of all data.
    seeds : tuple of int
        Seeds of the networks; the data are those of seed 0.
    width, init, steps
        Of the networks and their training.
    """

    depths: tuple[int, ...] = (4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 40, 100)
    others: tuple[tuple[int, tuple[int, ...]], ...] = (
        (1, (14, 16, 18, 20, 22)),
        (3, (14, 16, 18, 20, 22)),
        (4, (8, 10, 12, 14, 16)),
    )
    y_norm_squared: float = 1.0
    width: int = 50
    init: str | float = "he"
    seeds: tuple[int, ...] = (5, 6, 7, 8, 9)
    steps: int = 1000


@dataclass(frozen=True)
class Range:
    """Successive depths at which all runs have the same rank in the middle and are fitted.

    Attributes
    ----------
    rank : int
        The rank.
    depths : tuple of int
        The depths.
    slope, low, high : float
        Of ||theta||^2 in L: mean over seeds of least-squares slopes, and its 95 percent interval. NaN for one depth.
    bend : float
        Largest deviation of the mean norm over seeds from its least-squares line, relative to the change of this line
        over the range. NaN for less than three depths.
    expansion : Expansion or None
        Least-squares fit of L R0 + R1 + R2 / L to all runs. None for less than four depths.
    """

    rank: int
    depths: tuple[int, ...]
    slope: float
    low: float
    high: float
    bend: float = np.nan
    expansion: cost.Expansion | None = None

    def __str__(self) -> str:
        """Return slope and interval."""
        return f"{self.slope:.2f} ({self.low:.2f} to {self.high:.2f}), depths {self.depths[0]} to {self.depths[-1]}"

    def expanded(self) -> str:
        """Return R0 of the expansion with its interval, and why it describes the norms or does not."""
        if (of := self.expansion) is None:
            return "less than four depths"
        return f"R0 = {of.R0:.2f} ({of.R0_interval[0]:.2f} to {of.R0_interval[1]:.2f}); {of.reason}"


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train networks of many depths with a few seeds each, on F4's data and on data of other ranks."""
    s = settings
    runs = {RANK: _trained(s, RANK, s.depths, folder, progress)}
    runs |= {rank: _trained(s, rank, depths, folder, progress) for rank, depths in s.others}
    flat = {rank: grid.stack(run=("depth", "seed")) for rank, grid in runs.items()}
    found = {rank: ranges(of) for rank, of in flat.items()}
    chosen = list(ends(found[RANK]) or s.depths[:: max(1, len(s.depths) - 1)])
    values = runs[RANK].weight_singular_values.sel(seed=s.seeds[0], depth=chosen).transpose("depth", ...)
    spectra = {f"depth {int(v.depth)}, seed {s.seeds[0]}": v.dropna("layer", how="all").values for v in values}
    pictures = {"norm-versus-depth": _picture(flat[RANK])}
    pictures |= {"slopes": draw_slopes(found), "weight-spectra": plots.weight_spectra(spectra)[0].figure}
    pictures |= {f"norm-versus-depth-rank-{rank}": _picture(flat[rank]) for rank, _ in s.others}
    lines = (
        "Lines are least squares over all runs of a rank. Depths beyond those of fitted runs are named in the corner."
    )
    captions = {
        "norm-versus-depth": f"The norm of the weights against depth, one point per run. {lines}",
        "slopes": "Slope of the norm in each range of depths in which all runs have the same rank, with its 95 percent "
        "interval; dashed: the rank. Orange: a rank other than that of the data.",
        "weight-spectra": "The ten largest singular values of every layer, at the ends of the longest ranges.",
    } | {f"norm-versus-depth-rank-{rank}": f"The same on data of rank {rank}. {lines}" for rank, _ in s.others}
    sections = (
        Section("Ranges of constant rank", rows=[row for rank, of in found.items() for row in range_rows(rank, of)]),
        *(Section(f"All runs on data of rank {rank}", rows=rows(of)) for rank, of in flat.items()),
    )
    made = (*claims(flat[RANK]), *(claim for rank, _ in s.others for claim in own_rank(rank, found[rank])))
    return Outcome(claims=made, sections=sections, pictures=pictures, captions=captions)


def _trained(settings: Settings, rank: int, depths: Sequence[int], folder: Path, progress: bool) -> xr.Dataset:
    """Return the runs on data of a rank, over (depth, seed)."""
    s = settings
    runs = sweep(
        low_rank_map(rank=rank, y_norm_squared=s.y_norm_squared),
        depths=list(depths),
        ridges=[RIDGE],
        steps=s.steps,
        seeds=list(s.seeds),
        grid={"width": [s.width], "init": s.init},
        record=max(1, s.steps // 20),
        executor=engaged_engine(),
        out=folder / f"rank-{rank}",
        progress=progress,
    ).squeeze(["width", "size", "ridge"])
    broken = runs.error.values[runs.status.values == "failed"]
    if broken.size:
        raise RuntimeError(f"{broken.size} of {runs.status.size} networks were not trained: {broken[0]}")
    return runs


def _picture(flat: xr.Dataset) -> Picture:
    """Return the picture of the norm against depth; depths beyond those of fitted runs are named in it instead."""
    depths, norms, costs = flat.depth.values, flat.parameter_norm.values, flat.cost.values
    last = depths[costs < THRESHOLD].max(initial=0)
    shown = (depths <= last) | (last == 0)
    ranks = middle_ranks(flat)[shown]
    ax = plots.norm_versus_depth(depths[shown], norms[shown], ranks, costs[shown], cost_threshold=THRESHOLD)
    beyond = [f"L = {d}: norm {norms[depths == d].max():.2g} at most" for d in np.unique(depths[~shown])]
    ax.text(0.02, 0.97, "\n".join(beyond), transform=ax.transAxes, ha="left", va="top", color="0.35", fontsize=9)
    return cast(Picture, ax.figure)


def draw_slopes(found: Mapping[int, Sequence[Range]]) -> Picture:
    """Draw the slopes of all ranges with their intervals."""
    picture, ((ax,),) = panels(1, 1, (7.2, 4.0))
    shown = [(rank, of) for rank, several in found.items() for of in several if np.isfinite(of.high)]
    for i, (rank, of) in enumerate(shown):
        own = color(0) if of.rank == rank else color(1)
        ends = [[of.slope - of.low], [of.high - of.slope]]
        ax.errorbar([i], [of.slope], yerr=ends, fmt="o", color=own, capsize=4)
        ax.hlines(of.rank, i - 0.35, i + 0.35, color=GRAY, linestyle="--", linewidth=1.2)
    names = [f"rank {of.rank}\ndata {rank}\nL {of.depths[0]} to {of.depths[-1]}" for rank, of in shown]
    ax.set_xticks(range(len(shown)), names)
    label(ax, "range of constant rank", "slope of ‖θ‖² in L", "Slope in each range of constant rank", bottom=0)
    return picture


def middle_ranks(flat: xr.Dataset) -> np.ndarray:
    """Return the number of singular values of W_{L/2} above 0.1 for every run, NaN where a run failed."""
    layer = xr.DataArray(flat.depth.values // 2 - 1, dims="run")
    values = flat.weight_singular_values.isel(layer=layer).transpose("run", "index").values
    return np.where(np.isnan(values).all(axis=1), np.nan, (values > THRESHOLD).sum(axis=1))


def rows(flat: xr.Dataset) -> list[dict[str, object]]:
    """Return one table row per run."""
    table = flat.reset_index("run")[["depth", "seed", "parameter_norm", "cost", "status"]].to_dataframe()
    table.insert(2, "rank in the middle", middle_ranks(flat))
    return list(table.rename(columns={"parameter_norm": "||theta||^2"}).to_dict("records"))


def ranges(flat: xr.Dataset) -> list[Range]:
    """Return the ranges of constant rank among runs over (run,), by depth; rank 0 and unfitted runs end a range."""
    depth, norm, rank = flat.depth.values, flat.parameter_norm.unstack("run"), middle_ranks(flat)
    common = {}
    for d in np.unique(depth):
        here = np.where(flat.cost.values < THRESHOLD, rank, 0)[depth == d]
        common[int(d)] = int(here[0]) if (here == here[0]).all() else 0  # False for NaN
    result = []
    for k, group in groupby(common, common.__getitem__):
        depths = tuple(group)
        if k:
            norms = norm.sel(depth=list(depths)).transpose("seed", "depth").values
            slope = interval(slopes(np.array(depths), norms)) if len(depths) > 1 else (np.nan,) * 3
            runs = np.tile(depths, len(norms)), norms.ravel()
            result.append(
                Range(
                    k, depths, *slope, bend(depths, norms.mean(axis=0)), cost.expand(*runs) if len(depths) > 3 else None
                )
            )
    return result


def bend(depths: Sequence[int], norms: Array) -> float:
    """Return the largest deviation of norms from their line, relative to its change; NaN for less than three depths."""
    if len(depths) < 3:
        return np.nan
    apart = np.array(depths) - np.mean(depths)
    (slope,) = slopes(np.array(depths), norms[None])
    return float(np.abs(norms - norms.mean() - slope * apart).max() / np.abs(slope * (apart[-1] - apart[0])))


def range_rows(rank: int, found: Sequence[Range]) -> list[dict[str, object]]:
    """Return one table row per range."""
    return [
        {
            "rank of the data": rank,
            "rank in the middle": of.rank,
            "depths": f"{of.depths[0]} to {of.depths[-1]}",
            "number of depths": len(of.depths),
            "slope": of.slope,
            "95 percent from": of.low,
            "to": of.high,
            "largest deviation from the line": of.bend,
            "L R0 + R1 + R2 / L": of.expanded(),
        }
        for of in found
    ]


def own_rank(rank: int, found: Sequence[Range]) -> tuple[Claim, ...]:
    """Return the claims on the longest range in which the runs have the rank of the data."""
    inside = longest(rank, found)
    among = f"all runs have it from depth {inside.depths[0]} to {inside.depths[-1]}" if inside else "at no depth"
    on = f"data of rank {rank}: rank {rank} in the middle"
    slope = "slope of ||theta||^2 in L there, 95 percent interval"
    line = "largest deviation of the mean norm from a line there, relative to its change"
    of_slope = (
        at_least(f"{on}, fitted: number of successive depths", len(inside.depths) if inside else 0, 3, shown=among),
        is_true(f"{on}: {slope}", near(inside, rank), str(inside or "no such range"), f"{rank} ± {WITHIN:g}"),
    )
    if rank not in BENDS:  # over few depths, the norm of trained networks bends as much as a square root
        return of_slope
    return (*of_slope, at_most(f"{on}: {line}", inside.bend if inside else np.nan, BENDS[rank]))


def near(of: Range | None, rank: int) -> bool:
    """Return whether the interval of the slope of a range lies within 0.25 of a rank."""
    return of is not None and abs(of.low - rank) <= WITHIN and abs(of.high - rank) <= WITHIN


def longest(rank: int, found: Sequence[Range]) -> Range | None:
    """Return the range of a rank with the most depths."""
    return max((of for of in found if of.rank == rank), key=lambda of: len(of.depths), default=None)


def ends(found: Sequence[Range]) -> tuple[int, ...]:
    """Return first and last depths of the two ranges with the most depths."""
    most = sorted(found, key=lambda of: -len(of.depths))[:2]
    return tuple(sorted({depth for of in most for depth in (of.depths[0], of.depths[-1])}))


def claims(flat: xr.Dataset) -> tuple[Claim, ...]:
    """Return the claims of Figure 1 on all runs, over (run,) with coordinates depth and seed."""
    found, depth, rank = ranges(flat), flat.depth.values, middle_ranks(flat)
    last = inside.depths[-1] if (inside := longest(RANK, found)) else 0
    collapsed = [int(d) for d in np.unique(depth) if (rank[depth == d] == 0).all() and d > last]
    at = f"all runs at depths {collapsed}" if collapsed else "at no depth have all runs collapsed"
    above, on = longest(RANK + 1, found), f"data of rank {RANK}"
    enough, free = above is not None and len(above.depths) >= 3, False
    if inside and (fit := inside.expansion):
        free = bool(fit.fits) and max(abs(end - RANK) for end in fit.R0_interval) <= WITHIN
    seen = {int(d): (rank[depth == d].min(), rank[depth == d].max()) for d in np.unique(depth)}
    rises = [f"{b} after {a}" for a, b in pairwise(seen) if not (seen[a][0] >= seen[b][0] and seen[a][1] >= seen[b][1])]
    return (
        *own_rank(RANK, found),
        is_true(
            f"{on}: rank {RANK} in the middle: L R0 + R1 + R2 / L fits the norms, with R0 free",
            free,
            inside.expanded() if inside else "no such range",
            f"fits, and the interval of R0 lies in {RANK} ± {WITHIN:g}",
        ),
        is_true(
            f"{on}: rank {RANK + 1} in the middle: slope of ||theta||^2 in L there, 95 percent interval",
            enough and near(above, RANK + 1),
            str(above or "no such range"),
            f"{RANK + 1} ± {WITHIN:g}, 3 depths or more",
        ),
        is_true(
            f"{on}: neither the lowest nor the highest rank of the runs rises with the depth",
            not rises,
            f"at depths {', '.join(rises)}" if rises else "at no depth",
            "at no depth",
        ),
        is_true("collapse to zero at larger depths", collapsed, at, "one depth or more"),
    )


def gigabytes(settings: Settings) -> float:
    """Return the peak memory: a process per thread, each with the networks of one depth.

    Half a GB for a process, and 200 bytes per weight: 20 vectors of L-BFGS, Adam's, and the factors of the metric.
    """
    depths = sorted(settings.depths)
    workers = min(torch.get_num_threads(), len(depths))
    weights = [len(settings.seeds) * settings.width**2 * depth for depth in depths[-workers:]]
    return 0.5 * (1 + workers) + 2e-7 * sum(weights)


QUICK = Settings()
PAPER = Settings(
    depths=(*range(3, 21), 22, 24, 26, 28, 30, 100),
    others=((1, (14, 16, 18, 20, 22)), (3, (12, 14, 16, 18, 20, 22)), (4, (8, 10, 12, 14, 16, 18))),
    width=100,
)

FIGURE = Figure(
    "F4",
    "norm-and-depth",
    "The norm grows with depth by the rank per layer, until training collapses",
    "Jacot2023b, Figure 1",
    "ranges of depth with a common rank, the norm affine in L with that slope; collapse at large depth",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": gigabytes(QUICK), "paper": gigabytes(PAPER)},
    version=4,
)
