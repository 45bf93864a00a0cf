"""F1 (Jacot2023a, Figure 1): spectra of a deep network trained on a task of rank 4."""

from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from bnrank.figures.harness.claims import Claim, at_least, below, between
from bnrank.figures.harness.figure import Figure, Outcome, middle
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.measures import profile
from bnrank.reporting import Section, plots
from bnrank.tasks import bottleneck_spectra_map


@dataclass(frozen=True)
class Settings:
    """Settings of F1: rank of the task, depth and width of the networks, number of members, training steps."""

    rank: int = 4
    depth: int = 13
    width: int = 100
    members: int = 2
    steps: int = 1500


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train on F1's data with the ridge 0.05 / L and profile the member with the lowest loss."""
    s, task = settings, bottleneck_spectra_map(rank=settings.rank)
    run = train_recorded(
        mlp(task, s.depth, s.width), task, folder, progress,
        ridge=0.05 / s.depth, steps=s.steps, members=s.members, seed=0, records=50,
    )  # fmt: skip
    best = int(run.summary.loss.argmin("member"))
    measured = profile(run.network(best), task.x, task.y)
    text = f"Member {best} of {s.members}: loss {float(run.summary.loss[best]):.4f}."
    section = Section("Spectra of the member with the lowest loss", text=text, profile=measured, history=run.history)
    picture = {"bottleneck-spectra": plots.bottleneck_spectra(measured)[0].figure}
    caption = "The ten largest singular values of activations and weights, and how nonlinear each layer is"
    captions = {"bottleneck-spectra": f"{caption}; shaded: the bottleneck"}
    return Outcome(claims=claims(measured, s.rank), sections=(section,), pictures=picture, captions=captions)


def claims(measured: xr.Dataset, rank: int) -> tuple[Claim, ...]:
    """Return the claims of Figure 1 on the profile of one network."""
    depth = measured.sizes["layer"]
    center = measured.weight_singular_values.sel(layer=depth // 2 + 1)
    smallest = float(center.sel(index=rank))
    gap = smallest / max(float(center.sel(index=rank + 1)), 1e-12)
    bent = float(measured.nonlinearity.sel(layer=list(middle(depth))).max())
    share = float(measured.parameter_norm.sum()) / depth
    return (
        at_least(f"rank {rank} in the middle: s_{rank} / s_{rank + 1} at layer {depth // 2 + 1}", gap, 20),
        between(f"s_{rank} there is near 1", smallest, 0.5, 2),
        below("largest nonlinearity ratio in the middle third", bent, 0.05),
        between("||theta||^2 / L (the source prints about 6, without the scale of y)", share, 4, 9),
    )


FIGURE = Figure(
    "F1",
    "bottleneck-spectra",
    "A deep network keeps as many dimensions in the middle as its task has",
    "Jacot2023a, Figure 1",
    "rank k in the middle layers, linear there; ||theta||^2 / L near 6",
    {"quick": Settings(), "paper": Settings(members=8, steps=10_000)},
    make,
    gigabytes={"quick": 0.6, "paper": 0.9},
)
