"""What F9 and F10 share: a flow from small weights past its saddles, and what is read off its spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from bnrank.figures.harness.figure import Claim
from bnrank.measures import plateaus
from bnrank.measures.plateaus import Plateau
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import Task
from bnrank.theory.escape import FirstEscape, first_escape, output_gradient
from bnrank.training import Limits, Record, SkipPlateau, Solver
from bnrank.training.gradient_flow import Flow, Row, flow

__all__ = ["Part", "claims", "clearness", "descend", "grown", "ratio", "rows", "second_exit", "stages"]

GROWN = 2.0  # times the largest initial singular value of its layer
SECOND = 0.5  # of s_1, which s_2 of the deep layers reaches when the second escape is over
DEEP = 3  # the first of the deep layers
LOW = 0.6  # the loss of a batch at which a flow is not followed on
PAPER_WIDTH, PAPER_BATCH = 1000, 32  # of the source
PREDICTED = 2000  # samples that the speed of the first escape is measured on
NEGLIGIBLE = 1e-3  # ||grad C(Y) - G|| / ||G|| up to which the loss near the origin is taken to be homogeneous


def descend(
    task: Task,
    depth: int,
    folder: Path,
    progress: bool,
    *,
    width: int,
    init: float,
    seed: int,
    time: float,
    step: float,
    batch_size: int,
    records: int = 600,
) -> Flow:
    """Follow the flow of a bias-free network with weights N(0, init^2) for ``time`` after the skipped plateau.

    Euler steps in float32 on mini-batches; where there is a GPU, on it, and with the source's batches of 32 at the
    source's width. The plateau at the origin is skipped: its
    direction and norm are integrated apart (T35), until the outputs change the gradient by a thousandth.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and width >= PAPER_WIDTH:
        batch_size = PAPER_BATCH
    every = max(1, math.ceil(time / step / records))
    wide = width > 128
    return flow(
        MLP([task.d_in, *[width] * (depth - 1), task.d_out], bias=False, init=init, seed=seed).to(device),
        (task.x, task.y, "cross_entropy"),
        solver=Solver("euler", step=step, batch_size=min(batch_size, task.n), seed=seed),
        plateau=SkipPlateau(handover_rtol=NEGLIGIBLE, t_after=time),
        dtype=torch.float32,
        record=Record(every=every, spectra_every=every * (12 if wide else 1)),
        limits=Limits(stop=_low, max_networks=2),
        out=folder,
        progress=progress,
    )


def _low(row: Row) -> bool:
    """Say whether the loss is far below the second saddle."""
    return row.loss < LOW


def stages(history: xr.Dataset) -> tuple[Plateau, ...]:
    """Return the plateaus of the loss over the time of the flow, counted from where the skipped plateau ends."""
    time = history["time_since_handover"].values[0]
    return plateaus.find(time, history["loss"].values[0], history["gradient_norm"].values[0], least=0.05, smooth=9)


def _known(history: xr.Dataset) -> np.ndarray[Any, Any]:
    """Return the rows that have singular values."""
    return np.flatnonzero(np.isfinite(history["weight_singular_values"].values[0]).any(axis=(1, 2)))


def _spectra(history: xr.Dataset, row: int) -> np.ndarray[Any, Any]:
    """Return the singular values, (layer, index), in the row nearest to the one given that has them."""
    known = _known(history)
    return np.asarray(history["weight_singular_values"].values[0, known[np.abs(known - row).argmin()]])


def grown(history: xr.Dataset, row: int) -> tuple[int, ...]:
    """Return per layer how many singular values are above twice the largest it, or a layer from 2 on, had at first.

    A rank for networks whose small weights are not small enough for a share of s_1 to tell.
    """
    first = _spectra(history, 0)[:, 0]
    bulk = np.maximum(first, first[1:].max())
    return tuple(int(n) for n in (_spectra(history, row) > GROWN * bulk[:, None]).sum(axis=1))


def ratio(history: xr.Dataset, row: int) -> np.ndarray[Any, Any]:
    """Return s_2 / s_1 per layer."""
    values = _spectra(history, row)
    return np.asarray(values[:, 1] / values[:, 0])


def second_exit(history: xr.Dataset, after: int) -> int | None:
    """Return the first row after the given one in which s_2 > s_1 / 2 in layers 3 to L - 1; None if there is none."""
    for row in _known(history):
        if row > after and (ratio(history, row)[DEEP - 1 : -1] > SECOND).all():
            return int(row)
    return None


def clearness(history: xr.Dataset, share: float = 0.05) -> float:
    """Return log10 of the longest time the loss takes for a twentieth of its fall, over the median time of all.

    The fall is that from log 10, less the first and the last twentieth, so that neither the plateau at the origin nor
    the end counts; a level that is not left counts with the time spent there. A straight descent has 0, a plateau in
    between that lasts ten times longer than a usual level 1.
    """
    time, loss = history["time_since_handover"].values[0], history["loss"].values[0]
    time, loss = time[time >= 0], loss[time >= 0]
    smooth = np.convolve(np.pad(loss, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    falling = np.minimum.accumulate(smooth)
    levels = falling[0] * (1 - np.arange(share, 1 - share / 2, share))
    reached = np.array([time[np.argmax(falling <= level)] if falling[-1] <= level else math.nan for level in levels])
    reached = reached[np.isfinite(reached)]
    taken = np.diff(np.append(reached, time[-1]) if len(reached) < len(levels) else reached)
    if len(taken) < 3 or not (taken > 0).any():
        return math.nan
    taken = np.maximum(taken, np.median(np.diff(time)))  # the record does not resolve less
    return float(np.log10(taken.max() / np.median(taken)))


def claims(history: xr.Dataset, found: Sequence[Plateau], second: bool = True) -> tuple[Claim, ...]:
    """Measure on one flow what is seen after its first and its second escape.

    The first three numbers are those in the middle of the second plateau, or of the last row if the flow ends before.
    """
    depth = history.sizes["layer"]
    if not found or not found[0].left or (second and len(found) < 2):
        return (
            Claim("the loss leaves the saddle at the origin and stands still again", False, len(found), "2 or more"),
        )
    row = _on(found[1]) if len(found) > 1 else history.sizes["step"] - 1
    ratios, ranks = ratio(history, row), grown(history, row)
    deep = float(ratios[DEEP - 1 :].max())
    result = [
        Claim(
            f"after the first escape one singular value has grown in layers {DEEP} to {depth}",
            set(ranks[DEEP - 1 :]) == {1},
            ", ".join(map(str, ranks)),
            "1 in each of them (all layers are listed)",
        ),
        Claim(f"s_2 / s_1 there, largest of layers {DEEP} to {depth}", deep < 0.3, deep, "< 0.3"),
        Claim(
            "more so in deep layers: s_2 / s_1 of layer 1, less that",
            float(ratios[0] - deep) > 0,
            float(ratios[0] - deep),
            "> 0",
        ),
    ]
    if not second:
        return tuple(result)
    out = second_exit(history, row)
    name = f"when s_2 is half of s_1 in layers {DEEP} to {depth - 1}, two have grown in each, not three"
    if out is None:
        return (*result, Claim(name, False, "no second escape in this time", "2 in each of them"))
    ranks, values = grown(history, out), _spectra(history, out)
    third = float((values[DEEP - 1 : -1, 2] / values[DEEP - 1 : -1, 1]).max())
    return (
        *result,
        Claim(
            name,
            set(ranks[DEEP - 1 : -1]) == {2},
            ", ".join(map(str, ranks)),
            "2 in each of them (all layers are listed)",
        ),
        Claim("s_3 / s_2 there, largest of these layers", third < 0.5, third, "< 0.5"),
        Claim(
            "the second escape comes at the end of the second plateau: its time over the plateau's end",
            found[1].left and 0.8 < _time(history, out) / found[1].end < 1.25,
            _time(history, out) / found[1].end,
            "between 0.8 and 1.25",
        ),
    )


def _on(plateau: Plateau) -> int:
    """Return the row in the middle of a plateau that is left, the first of one that is not."""
    return (plateau.begin_row + plateau.end_row) // 2 if plateau.left else plateau.begin_row


def _time(history: xr.Dataset, row: int) -> float:
    return float(history["time_since_handover"].values[0, row])


def rows(history: xr.Dataset, found: Sequence[Plateau]) -> list[dict[str, object]]:
    """Return a table row per plateau, and one for the second escape of the deep layers."""
    table = [
        {
            "what": f"plateau {p.number}",
            "from": p.start,
            "to": p.end,
            "loss": p.loss,
            "singular values grown, per layer": ", ".join(map(str, grown(history, _on(p)))),
            "s_2 / s_1, per layer": ", ".join(f"{r:.2f}" for r in ratio(history, _on(p))),
        }
        for p in found
    ]
    out = second_exit(history, _on(found[1])) if len(found) > 1 else None
    if out is not None:
        time = _time(history, out)
        table.append(
            {
                "what": "s_2 is half of s_1",
                "from": time,
                "to": time,
                "loss": float(history["loss"].values[0, out]),
                "singular values grown, per layer": ", ".join(map(str, grown(history, out))),
                "s_2 / s_1, per layer": ", ".join(f"{r:.2f}" for r in ratio(history, out)),
            }
        )
    return table


@dataclass(frozen=True)
class Part:
    """A flow and what is shown of it."""

    title: str
    flow: Flow
    found: tuple[Plateau, ...]
    first: FirstEscape | None = None

    @classmethod
    def of(cls, flow: Flow, task: Task, title: str, predict: bool = False) -> Part:
        """Find the plateaus of a flow; if asked for, predict its first escape from the network at the hand-over."""
        found, first = stages(flow.history), None
        if predict and flow.handover is not None and found and found[0].left and found[0].end > 0:
            y = task.y[:PREDICTED]
            g = output_gradient("cross_entropy", y, task.d_out)
            first = first_escape(flow, task.x[:PREDICTED], g, rank=1, end=found[0].end)
        return cls(title, flow, found, first)

    def claims(self, second: bool = True) -> tuple[Claim, ...]:
        """Measure what must be seen; see `claims`."""
        result = claims(self.flow.history, self.found, second)
        if self.first is None:
            return result
        share = self.first.predicted / self.first.seen
        name = "time from the hand-over to the first escape, predicted by T37 for its chain of rank one, over that seen"
        return (*result, Claim(name, 0.8 < share < 1.25, share, "between 0.8 and 1.25"))

    def section(self) -> Section:
        """Return the plateaus as a table, with what was skipped and how long it took."""
        flow, text = self.flow, f"{self.flow.steps} steps in {self.flow.seconds:.0f} s."
        if flow.handover is not None:
            text += (
                f" The plateau at the origin is skipped up to t = {flow.handover.time:.4g}; times below "
                "count from there."
            )
        if self.found and self.found[0].left:
            begin = int(flow.history["step"][self.found[0].end_row])
            text += f" The first escape begins at step {begin}"
            text += (
                f" and is over at step {int(flow.history['step'][self.found[1].begin_row])}." if self.found[1:] else "."
            )
        return Section(self.title, text=text, rows=rows(flow.history, self.found), history=flow.history)

    def picture(self) -> Any:
        """Draw loss and spectra with the plateaus and both escapes."""
        marks = {}
        if self.found and self.found[0].left:
            marks["first escape"] = self.found[0].end_row
            out = second_exit(self.flow.history, _on(self.found[1])) if len(self.found) > 1 else None
            if out is not None:
                marks["s₂ is half of s₁ in the deep layers"] = out
        axes = plots.plateaus(self.flow.history, found=self.found, marks=marks)
        axes[0].set_title(self.title, fontsize=11, pad=14)
        axes[0].set_ylabel("loss")
        return axes[0].figure
