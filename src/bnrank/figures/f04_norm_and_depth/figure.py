"""F4 (Jacot2023b, Figure 1): parameter norm and middle rank against depth."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from bnrank.figures.harness.claims import Claim, at_least, is_true, near
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section, plots
from bnrank.tasks import low_rank_map
from bnrank.training import sweep

RIDGE = 1e-3
THRESHOLD = 0.1  # smallest singular value that counts; largest training cost of a fitted network


@dataclass(frozen=True)
class Settings:
    """Settings of F4: depths, width and initialization of the networks, number of seeds, training steps."""

    depths: tuple[int, ...] = (6, 10, 14, 18, 22, 26, 30, 40, 100)
    width: int = 50
    init: str | float = "he"
    seeds: int = 2
    steps: int = 1200


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train networks of many depths on F4's data with a few seeds each."""
    s = settings
    runs = sweep(
        low_rank_map(),
        depths=list(s.depths),
        ridges=[RIDGE],
        steps=s.steps,
        seeds=list(range(s.seeds)),
        grid={"width": [s.width], "init": s.init},
        record=max(1, s.steps // 20),
        out=folder,
        progress=progress,
    ).squeeze(["width", "size", "ridge"])
    flat = runs.stack(run=("depth", "seed"))
    broken = flat.error.values[flat.status.values == "failed"]
    if broken.size:
        raise RuntimeError(f"{broken.size} of {flat.sizes['run']} networks were not trained: {broken[0]}")
    norms = plots.norm_versus_depth(
        flat.depth.values, flat.parameter_norm.values, middle_ranks(flat), flat.cost.values, cost_threshold=THRESHOLD
    )
    chosen = np.linspace(0, len(s.depths) - 1, min(4, len(s.depths))).round().astype(int)
    values = runs.weight_singular_values.sel(seed=0).isel(depth=chosen).transpose("depth", ...)
    spectra = {f"depth {int(v.depth)}, seed 0": v.dropna("layer", how="all").values for v in values}
    pictures = {"norm-versus-depth": norms.figure, "weight-spectra": plots.weight_spectra(spectra)[0].figure}
    captions = {
        "norm-versus-depth": "The norm of the weights against depth, one point per run",
        "weight-spectra": "The ten largest singular values of every layer, at four depths",
    }
    sections = (Section("All runs", rows=rows(flat)),)
    return Outcome(claims=claims(flat), sections=sections, pictures=pictures, captions=captions)


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


def claims(flat: xr.Dataset) -> tuple[Claim, ...]:
    """Return the claims of Figure 1 on all runs, over (run,) with coordinates depth and seed."""
    depth, norm, rank = flat.depth.values, flat.parameter_norm.values, middle_ranks(flat)
    two = (rank == 2) & (flat.cost.values < THRESHOLD)
    depths = np.unique(depth)
    ranges = [list(g) for clean, g in groupby(depths, lambda d: bool(two[depth == d].all())) if clean]
    inside = max(ranges, key=len, default=[])
    among = f"all runs have it from depth {inside[0]} to {inside[-1]}" if inside else "at no depth do all runs have it"
    use = two & np.isin(depth, inside)
    slope = float(np.polyfit(depth[use], norm[use], 1)[0]) if len(inside) >= 2 else float("nan")
    collapsed = [int(d) for d in depths if (rank[depth == d] == 0).all() and (not inside or d > inside[-1])]
    at = f"all runs at depths {collapsed}" if collapsed else "at no depth have all runs collapsed"
    return (
        at_least("rank 2 in the middle, fitted: number of successive depths", len(inside), 3, shown=among),
        near("slope of ||theta||^2 in L there", slope, 2, 0.2),
        is_true("collapse to zero at larger depths", collapsed, at, "one depth or more"),
    )


def gigabytes(settings: Settings) -> float:
    """Return the peak memory: a process per thread, each with the networks of one depth.

    Half a GB for a process, and 200 bytes per weight: 20 vectors of L-BFGS, Adam's, and the factors of the metric.
    """
    workers = min(torch.get_num_threads(), len(settings.depths))
    weights = [settings.seeds * settings.width**2 * depth for depth in sorted(settings.depths)[-workers:]]
    return 0.5 * (1 + workers) + 2e-7 * sum(weights)


QUICK = Settings()
PAPER = Settings((*range(3, 31), 35, 40, 50, 60, 80, 100), width=100, seeds=4, steps=5000)

FIGURE = Figure(
    "F4",
    "norm-and-depth",
    "The norm grows with depth by the rank per layer, until training collapses",
    "Jacot2023b, Figure 1",
    "ranges of depth with a common rank, the norm affine in L with that slope; collapse at large depth",
    {"quick": QUICK, "paper": PAPER},
    make,
    gigabytes={"quick": gigabytes(QUICK), "paper": gigabytes(PAPER)},
)
