"""F9 (Bantzis2025, Figures 1 and 3): handwritten digits from small weights, past the first saddle."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import xarray as xr

from bnrank.figures.base import Claim, Figure, Outcome
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import handwritten_digits
from bnrank.training import train

__all__ = ["FIGURE", "claims", "escape", "make"]

DEPTH = 6


def make(
    folder: Path,
    progress: bool,
    *,
    images: int | None,
    width: int,
    init: float,
    members: int,
    steps: int,
    batch_size: int | None,
) -> Outcome:
    """Train a bias-free network of depth 6 by normalised gradient descent, and look at it after the first escape.

    Every step is half a percent of the length of theta. This is gradient flow in another time, in which the plateau
    does not grow as the weights shrink; the source waited it out with the step 10 / ||theta||^4.
    """
    task = handwritten_digits(images)
    net = MLP([task.d_in, *[width] * (DEPTH - 1), task.d_out], bias=False, init=init)
    run = train(
        net,
        task,
        steps=steps,
        optimizer="gd",
        lr=0.005,
        schedule="normalised",
        members=members,
        seed=0,
        batch_size=batch_size,
        record_every=max(1, steps // 200),
        out=folder,
        progress=progress,
    )
    where = escape(run.history.loss.values[0])
    text = (
        f"{task.name}, {task.n} images. The first escape of member 0 is over at step {int(run.history.step[where])}."
        if where is not None
        else f"{task.name}, {task.n} images. Member 0 has not left the first saddle."
    )
    axes = plots.plateaus(run.history)
    section = Section("Loss and spectra over the steps", text=text, history=run.history)
    return Outcome("F9", claims(run.history), (section,), {"plateaus": np.ravel(axes)[0].figure}, {"data": task.name})


def escape(loss: np.ndarray, share: float = 0.1) -> int | None:
    """Return the row at which the first fall of the loss is over, None if there was none.

    The fall begins where a twentieth of the first value is lost, and is over where the loss falls at less than
    ``share`` of the fastest rate seen so far.
    """
    loss = loss[np.isfinite(loss)]
    if len(loss) < 3:
        return None
    rate = -np.diff(loss)
    begun = np.flatnonzero(loss < 0.95 * loss[0])
    for row in range(int(begun[0]) if len(begun) else len(loss), len(rate)):
        if rate[row] < share * rate[: row + 1].max():
            return row
    return None


def claims(history: xr.Dataset) -> tuple[Claim, ...]:
    """Measure what the figures show, on the member in which it is seen least."""
    deep, first, waits, levels = [], [], [], []
    for member in range(history.sizes["member"]):
        loss = history.loss.values[member]
        row = escape(loss)
        if row is None:
            return (Claim("every member leaves the first saddle", False, f"member {member} does not", "all do"),)
        values = history.weight_singular_values.isel(member=member, step=row)
        ratio = (values.sel(index=2) / values.sel(index=1)).values
        deep.append(float(ratio[3:6].max()))
        first.append(float(ratio[0] - ratio[5]))
        waiting = loss[: row + 1] > 0.99 * math.log(10)
        waits.append(float(waiting.mean()))
        levels.append(float(np.ptp(loss[: row + 1][waiting])) if waiting.any() else math.inf)
    return (
        Claim(
            "share of the steps until the escape is over with the loss within 1 percent of log 10",
            min(waits) > 0.1 and max(levels) < 0.05,
            min(waits),
            "> 0.1, without rising above it",
        ),
        Claim("s_2 / s_1 after the first escape, largest of layers 4 to 6", max(deep) < 0.1, max(deep), "< 0.1"),
        Claim("more so in deep layers: s_2 / s_1 of layer 1 less that of layer 6", min(first) > 0, min(first), "> 0"),
    )


FIGURE = Figure(
    "F9",
    "first-escape",
    "Leaving the saddle at the origin, every deep layer becomes rank one",
    "Bantzis2025, Figures 1 and 3",
    "a plateau of the loss; then one dominant singular value per layer, more so in deep layers",
    {
        "quick": {"images": 1000, "width": 50, "init": 5e-3, "members": 2, "steps": 1000, "batch_size": None},
        "paper": {"images": None, "width": 1000, "init": 1e-3, "members": 1, "steps": 2500, "batch_size": 1000},
    },
    make,
)
