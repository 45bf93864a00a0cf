"""F1 (Jacot2023a, Figure 1): spectra of a deep network trained on a task of rank 4."""

from __future__ import annotations

from pathlib import Path

import xarray as xr

from bnrank.figures.harness.figure import Claim, Figure, Outcome, middle
from bnrank.measures import profile
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import bottleneck_spectra_map
from bnrank.training import train

__all__ = ["FIGURE", "claims", "make"]


def make(folder: Path, progress: bool, *, rank: int, depth: int, width: int, members: int, steps: int) -> Outcome:
    """Train on F1's data with the ridge 0.05 / L and look at the member of least loss."""
    task = bottleneck_spectra_map(rank=rank)
    net = MLP([task.d_in, *[width] * (depth - 1), task.d_out])
    run = train(
        net,
        task,
        ridge=0.05 / depth,
        steps=steps,
        members=members,
        seed=0,
        record=max(1, steps // 50),
        out=folder,
        progress=progress,
    )
    best = int(run.summary.loss.argmin("member"))
    measured = profile(run.network(best), task.x, task.y)
    axes = plots.bottleneck_spectra(measured)
    section = Section(
        "Spectra of the member of least loss",
        text=f"Member {best} of {members}: loss {float(run.summary.loss[best]):.4f}.",
        profile=measured,
        history=run.history,
    )
    picture = {"bottleneck-spectra": axes[0].figure}
    caption = "The ten largest singular values of activations and weights, and how nonlinear each layer is"
    captions = {"bottleneck-spectra": f"{caption}; shaded: the bottleneck"}
    return Outcome("F1", claims(measured, rank), (section,), picture, captions=captions)


def claims(measured: xr.Dataset, rank: int) -> tuple[Claim, ...]:
    """Measure what Figure 1 shows on the profile of one network."""
    depth = measured.sizes["layer"]
    center = measured.weight_singular_values.sel(layer=depth // 2 + 1)
    gap = float(center.sel(index=rank) / max(float(center.sel(index=rank + 1)), 1e-12))
    bent = float(measured.nonlinearity.sel(layer=list(middle(depth))).max())
    share = float(measured.parameter_norm.sum()) / depth
    least = float(center.sel(index=rank))
    return (
        Claim(f"rank {rank} in the middle: s_{rank} / s_{rank + 1} at layer {depth // 2 + 1}", gap >= 20, gap, ">= 20"),
        Claim(f"s_{rank} there is near 1", 0.5 <= least <= 2, least, "0.5 to 2"),
        Claim("nonlinearity ratio in the middle third, largest", bent < 0.05, bent, "< 0.05"),
        Claim("||theta||^2 / L (the source prints about 6, without the scale of y)", 4 <= share <= 9, share, "4 to 9"),
    )


FIGURE = Figure(
    "F1",
    "bottleneck-spectra",
    "A deep network keeps as many dimensions in the middle as its task has",
    "Jacot2023a, Figure 1",
    "rank k in the middle layers, linear there; ||theta||^2 / L near 6",
    {
        "quick": {"rank": 4, "depth": 13, "width": 100, "members": 2, "steps": 1500},
        "paper": {"rank": 4, "depth": 13, "width": 100, "members": 8, "steps": 10_000},
    },
    make,
    gigabytes={"quick": 0.6, "paper": 0.9},
)
