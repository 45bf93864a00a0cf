"""What a run says of itself: its members, with the bottleneck rank of each, and the course of the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core.content import Curves, Part, Table
from bnrank.measures import bottlenecks

if TYPE_CHECKING:
    import xarray as xr


SHOWN = ["seed", "ridge", "status", "steps", "loss", "cost", "parameter_norm"]
OF_FINISHED = ["finished_loss", "stationarity", "kind"]


def of_run(run: Any) -> list[Part]:
    """Return the content of a run: a title, the curves of the loss, and a row per member."""
    found = run.summary.variables
    columns: dict[str, Any] = {name: run.summary[name].values for name in [*SHOWN, *OF_FINISHED] if name in found}
    ranks = last_ranks(run.history)
    if any(rank is not None for rank in ranks):
        columns["bottleneck rank"] = ranks
    rows = [{"member": i} | {name: values[i] for name, values in columns.items()} for i in range(run.members)]
    title = f"{run.members} x {type(run.net).__name__}, {run.settings.optimizer}, {run.seconds:.3g} s"
    step, loss = run.history["step"].values, run.history["loss"].values
    about = f"loss{' of the members' if run.members > 1 else ''} from step {step[0]} to {step[-1]}" if len(step) else ""
    return [title, Curves(about, step.tolist(), loss.tolist()), Table("Members at the last recorded step", rows)]


def last_ranks(history: xr.Dataset) -> list[int | None]:
    """Return the bottleneck rank of each member at the last step with singular values; None where undetermined."""
    members = history.sizes["member"]
    values = history.get("weight_singular_values")
    if values is None or not values.sizes["layer"] or not values.sizes["index"]:
        return [None] * members
    found: list[int | None] = []
    for own in values.transpose("member", "step", "layer", "index").values:
        known = np.flatnonzero(np.isfinite(own).any(axis=(1, 2)))
        rank = float(bottlenecks.ranks(own[known[-1]])) if len(known) else math.nan
        found.append(int(rank) if math.isfinite(rank) else None)
    return found
