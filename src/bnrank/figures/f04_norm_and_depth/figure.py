"""F4 (Jacot2023b, Figure 1): parameter norm and middle rank against depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.reporting import Section, plots
from bnrank.tasks import low_rank_map
from bnrank.training import sweep

__all__ = ["FIGURE", "claims", "gigabytes", "make", "middle_ranks", "rows"]

RIDGE = 1e-3
THRESHOLD = 0.1  # of a singular value that counts, and of a training cost that counts as fitted


def make(
    folder: Path, progress: bool, *, depths: Sequence[int], width: int, init: str | float, seeds: int, steps: int
) -> Outcome:
    """Train networks of many depths on F4's data, a few seeds each."""
    task = low_rank_map()
    runs = sweep(
        task,
        depths=list(depths),
        ridges=[RIDGE],
        steps=steps,
        seeds=list(range(seeds)),
        grid={"width": [width], "init": init},
        record=max(1, steps // 20),
        out=folder,
        progress=progress,
    )
    flat = runs.squeeze(["width", "size", "ridge"]).stack(run=("depth", "seed"))
    broken = flat.error.values[flat.status.values == "failed"]
    if broken.size:
        raise RuntimeError(f"{broken.size} of {flat.sizes['run']} networks were not trained: {broken[0]}")
    ranks = middle_ranks(flat)
    norms = plots.norm_versus_depth(
        flat.depth.values, flat.parameter_norm.values, ranks, flat.cost.values, cost_threshold=THRESHOLD
    )
    chosen = [list(depths)[i] for i in np.linspace(0, len(depths) - 1, min(4, len(depths))).round().astype(int)]
    spectra = {
        f"depth {depth}, seed 0": runs.weight_singular_values.squeeze(["width", "size", "ridge"])
        .sel(depth=depth, seed=0)
        .dropna("layer", how="all")
        .values
        for depth in dict.fromkeys(chosen)
    }
    trials = plots.weight_spectra(spectra)
    section = Section("All runs", rows=rows(flat))
    pictures = {"norm-versus-depth": norms.figure, "weight-spectra": trials[0].figure}
    captions = {
        "norm-versus-depth": "The norm of the weights against depth, one point per run",
        "weight-spectra": "The ten largest singular values of every layer, at four depths",
    }
    return Outcome("F4", claims(flat), (section,), pictures, captions=captions)


def middle_ranks(flat: xr.Dataset) -> np.ndarray:
    """Return the number of singular values of W_{L/2} above 0.1 for every run, NaN where a run failed."""
    layer = xr.DataArray(flat.depth.values // 2 - 1, dims="run")
    values = flat.weight_singular_values.isel(layer=layer).transpose("run", "index").values
    return np.where(np.isnan(values).all(axis=1), np.nan, (values > THRESHOLD).sum(axis=1))


def rows(flat: xr.Dataset) -> list[dict[str, object]]:
    """Return one table row per run."""
    return [
        {
            "depth": int(depth),
            "seed": int(seed),
            "rank in the middle": rank,
            "||theta||^2": float(norm),
            "cost": float(cost),
            "status": str(status),
        }
        for depth, seed, rank, norm, cost, status in zip(
            flat.depth.values,
            flat.seed.values,
            middle_ranks(flat),
            flat.parameter_norm.values,
            flat.cost.values,
            flat.status.values,
            strict=True,
        )
    ]


def claims(flat: xr.Dataset) -> tuple[Claim, ...]:
    """Measure what Figure 1 shows on all runs, over (run,) with coordinates depth and seed."""
    depth, norm, cost = flat.depth.values, flat.parameter_norm.values, flat.cost.values
    rank = middle_ranks(flat)
    two = (rank == 2) & (cost < THRESHOLD)
    depths = np.unique(depth)
    clean = np.array([two[depth == d].all() for d in depths])
    start, length = _longest(clean)
    inside = depths[start : start + length]
    among = f"all runs have it from depth {inside[0]} to {inside[-1]}" if length else "at no depth do all runs have it"
    slope = float("nan")
    if length >= 2:
        use = two & np.isin(depth, inside)
        slope = float(np.polyfit(depth[use], norm[use], 1)[0])
    collapsed = [int(d) for d in depths if (rank[depth == d] == 0).all() and (not length or d > inside[-1])]
    return (
        Claim("rank 2 in the middle, fitted, over a range of depths", length >= 3, among, "three depths or more"),
        Claim("slope of ||theta||^2 in L there", abs(slope - 2) <= 0.2, slope, "2, within 10 percent"),
        Claim(
            "collapse to zero at larger depths",
            bool(collapsed),
            f"all runs at depths {collapsed}" if collapsed else "at no depth have all runs collapsed",
            "one depth or more",
        ),
    )


def _longest(flags: np.ndarray) -> tuple[int, int]:
    """Return start and length of the longest run of true entries."""
    best, start = (0, 0), 0
    for i, flag in enumerate(flags):
        if not flag:
            start = i + 1
        elif i + 1 - start > best[1]:
            best = (start, i + 1 - start)
    return best


def gigabytes(*, depths: Sequence[int], width: int, seeds: int, **_: object) -> float:
    """Return the memory at the peak: a process per thread, each with the networks of one depth.

    Half a GB for a process, and 200 bytes per weight: 20 vectors of L-BFGS, Adam's, and the factors of the metric.
    """
    workers = min(torch.get_num_threads(), len(depths))
    return 0.5 * (1 + workers) + sum(2e-7 * seeds * width**2 * depth for depth in sorted(depths)[-workers:])


SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {
        "depths": [6, 10, 14, 18, 22, 26, 30, 40, 100],
        "width": 50,
        "init": "he",
        "seeds": 2,
        "steps": 1200,
    },
    "paper": {
        "depths": [*range(3, 31), 35, 40, 50, 60, 80, 100],
        "width": 100,
        "init": "he",
        "seeds": 4,
        "steps": 5000,
    },
}

FIGURE = Figure(
    "F4",
    "norm-and-depth",
    "The norm grows with depth by the rank per layer, until training collapses",
    "Jacot2023b, Figure 1",
    "ranges of depth with a common rank, the norm affine in L with that slope; collapse at large depth",
    SETTINGS,
    make,
    gigabytes={scale: gigabytes(**settings) for scale, settings in SETTINGS.items()},
)
