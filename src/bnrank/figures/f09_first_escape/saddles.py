"""Common parts of F9 and F10: a flow from small weights past its saddles, and measurements of its spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from bnrank.figures.harness.claims import Claim, above, below, between, is_true
from bnrank.figures.harness.training import mlp
from bnrank.reporting import Section, plots
from bnrank.tasks import Task, handwritten_digits
from bnrank.theory.escape import FirstEscape, first_escape, output_gradient
from bnrank.training import Limits, Record, SkipPlateau, Solver, plateaus
from bnrank.training.gradient_flow import Flow, flow
from bnrank.training.plateaus import Plateau

GROWN = 2.0  # times the largest initial singular value of its layer
SECOND = 0.5  # s_2 / s_1 of the deep layers at which the second escape is over
DEEP = 3  # the first of the deep layers, unless given
LOW = 0.6  # a flow ends at this loss of a batch, far below the second saddle
LEVELS = 100  # of the loss, for the concentration of time
RECORDS, APART = 600, 15  # rows of a flow, and most steps between them
SPECTRA = 500  # steps between rows with singular values, for wide networks
NETWORKS = 32  # stored with a flow
PREDICTED = 2000  # samples for the speed of the first escape
NEGLIGIBLE = 1e-3  # ||grad C(Y) - G|| / ||G|| below which the loss near the origin counts as homogeneous


@dataclass(frozen=True)
class Descent:
    """A flow from small weights.

    Attributes
    ----------
    init : float
        Standard deviation of the initial weights.
    time : float
        End of the flow, from the end of the skipped plateau.
    step, batch_size, norm_power : float, int, float
        Steps are step / ||theta||^norm_power, on mini-batches.
    plateau_batch_size : int, optional
        Mini-batch size on the skipped plateau, in whose few long steps small batches do not average out.
    max_steps : int, optional
        Limit on the number of steps.
    """

    init: float
    time: float
    step: float
    batch_size: int
    norm_power: float = 0.0
    plateau_batch_size: int | None = None
    max_steps: int | None = None

    @property
    def most(self) -> int:
        """The largest number of steps after the skipped plateau."""
        return self.max_steps or math.ceil(self.time / self.step)


def descend(task: Task, depth: int, width: int, descent: Descent, folder: Path, progress: bool, seed: int = 0) -> Flow:
    """Return the flow of a bias-free network with weights N(0, init^2).

    Euler steps in float32 on mini-batches, on a GPU if there is one. The plateau at the origin is skipped: direction
    and norm are integrated separately (T35), until the outputs change the gradient by a thousandth. With
    ``norm_power`` steps are as long as the rule says, whatever their length relative to the weights.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    d, every = descent, max(1, min(math.ceil(descent.most / RECORDS), APART))
    solver = Solver(
        "euler",
        step=d.step,
        norm_power=d.norm_power,
        max_relative_step=1e9 if d.norm_power else None,
        batch_size=min(d.batch_size, task.n),
        seed=seed,
    )
    batches = None if d.plateau_batch_size is None else min(d.plateau_batch_size, task.n)
    return flow(
        mlp(task, depth, width, bias=False, init=descent.init, seed=seed).to(device),
        (task.x, task.y, "cross_entropy"),
        solver=solver,
        plateau=SkipPlateau(handover_rtol=NEGLIGIBLE, t_after=d.time, batch_size=batches),
        dtype=torch.float32,
        record=Record(every=every, spectra_every=every * (math.ceil(SPECTRA / every) if width > 128 else 1)),
        limits=Limits(stop=lambda row: row.loss < LOW or row.step >= d.most, max_networks=NETWORKS),
        out=folder,
        progress=progress,
    )


def descend_digits(images: int | None, depth: int, width: int, descent: Descent, folder: Path, seed: int) -> Flow:
    """Return `descend` on handwritten digits, without a progress bar."""
    return descend(handwritten_digits(images), depth, width, descent, folder, False, seed=seed)


def stages(history: xr.Dataset) -> tuple[Plateau, ...]:
    """Return the plateaus of the loss over the time of the flow, counted from where the skipped plateau ends."""
    time = history["time_since_handover"].values[0]
    return plateaus.find(time, history["loss"].values[0], history["gradient_norm"].values[0], min_drop=0.05, window=9)


def _known(history: xr.Dataset) -> np.ndarray[Any, Any]:
    """Return the rows that have singular values."""
    return np.flatnonzero(np.isfinite(history["weight_singular_values"].values[0]).any(axis=(1, 2)))


def _spectra(history: xr.Dataset, row: int) -> np.ndarray[Any, Any]:
    """Return the singular values, (layer, index), in the nearest row that has them."""
    known = _known(history)
    return np.asarray(history["weight_singular_values"].values[0, known[np.abs(known - row).argmin()]])


def grown(history: xr.Dataset, row: int) -> tuple[int, ...]:
    """Return per layer the number of singular values above twice the largest initial one of it and of layers from 2 on.

    A rank for networks whose small weights are too large for a threshold relative to s_1.
    """
    first = _spectra(history, 0)[:, 0]
    bulk = np.maximum(first, first[1:].max())
    return tuple(int(n) for n in (_spectra(history, row) > GROWN * bulk[:, None]).sum(axis=1))


def ratio(history: xr.Dataset, row: int) -> np.ndarray[Any, Any]:
    """Return s_2 / s_1 per layer."""
    values = _spectra(history, row)
    return np.asarray(values[:, 1] / values[:, 0])


def second_exit(history: xr.Dataset, after: int, deep: int = DEEP) -> int | None:
    """Return the first row after ``after`` in which s_2 > s_1 / 2 in layers ``deep`` to L - 1; or None."""
    for row in _known(history):
        if row > after and (ratio(history, row)[deep - 1 : -1] > SECOND).all():
            return int(row)
    return None


def _steps_per_drop(history: xr.Dataset, levels: int, drop: float) -> np.ndarray[Any, Any] | None:
    """Return the numbers of steps that the loss takes for equal drops, in order; None if it has not fallen far enough.

    The loss, made non-increasing by isotonic regression, falls from (1 - ``drop``) times its value at the hand-over,
    which leaves out the plateau at the origin, to its last value.
    """
    from sklearn.isotonic import isotonic_regression  # here, as it takes a second to import

    after = history["time_since_handover"].values[0] >= 0
    steps, loss = history["step"].values[after].astype(float), history["loss"].values[0, after]
    falling = isotonic_regression(loss, increasing=False)
    edges = np.linspace((1 - drop) * falling[0], falling[-1], levels + 1)
    if not edges[0] > edges[-1]:
        return None
    return np.asarray(np.diff(np.interp(-edges, -falling, steps)))


def concentration(history: xr.Dataset, levels: int = LEVELS, drop: float = 0.05) -> float:
    """Return the Gini coefficient of the numbers of steps that the loss takes for equal drops.

    Of the numbers d_i in n drops it is sum |d_i - d_j| / (2 n^2 mean d): 0 if the loss falls along a line, near 1 if
    nearly all time passes at few levels, as in a staircase. NaN if the loss has not fallen by 5 percent.
    """
    steps = _steps_per_drop(history, levels, drop)
    if steps is None:
        return math.nan
    ranks = 2 * np.arange(1, levels + 1) - levels - 1
    return float(ranks @ np.sort(steps) / (levels * steps.sum()))


def longest_stay(history: xr.Dataset, share: float = 0.05, levels: int = 1000, drop: float = 0.05) -> float:
    """Return the largest share of the steps that the loss spends in an interval of ``share`` times its range.

    This is Levy's concentration function of the loss at ``share``, without the plateau at the origin: ``share`` if the
    loss falls along a line, near 1 on one long plateau. NaN if the loss has not fallen by 5 percent.
    """
    steps = _steps_per_drop(history, levels, drop)
    if steps is None:
        return math.nan
    passed, width = np.concatenate([[0.0], np.cumsum(steps)]), round(share * levels)
    return float((passed[width:] - passed[:-width]).max() / passed[-1])


def claims(history: xr.Dataset, found: Sequence[Plateau], second: bool = True, deep: int = DEEP) -> tuple[Claim, ...]:
    """Return the claims on a flow after its first and its second escape, for layers from ``deep`` on.

    The first three are measured in the middle of the second plateau, or in the last row if the flow ends before it.
    """
    depth = history.sizes["layer"]
    if not found or not found[0].left or (second and len(found) < 2):
        name = "plateaus of the loss: the saddle at the origin is left for another one"
        return (is_true(name, False, len(found), "2 or more"),)
    row = _on(found[1]) if len(found) > 1 else history.sizes["step"] - 1
    ratios = ratio(history, row)
    largest = float(ratios[deep - 1 :].max())
    first = f"after the first escape one singular value has grown in layers {deep} to {depth}"
    result = (
        _ranks(first, history, row, 1, deep, depth),
        below(f"s_2 / s_1 there, largest of layers {deep} to {depth}", largest, 0.3),
        above("more so in deep layers: s_2 / s_1 of layer 1, less that", float(ratios[0] - largest), 0),
    )
    if not second:
        return result
    out = second_exit(history, row, deep)
    name = f"when s_2 is half of s_1 in layers {deep} to {depth - 1}, two have grown in each, not three"
    if out is None:
        return (*result, is_true(name, False, "no second escape in this time", "2 in each of them"))
    values = _spectra(history, out)
    time = float(history["time_since_handover"].values[0, out])
    third = float((values[deep - 1 : -1, 2] / values[deep - 1 : -1, 1]).max())
    at_end = "the second escape comes at the end of the second plateau: its time over the plateau's end"
    return (
        *result,
        _ranks(name, history, out, 2, deep, depth - 1),
        below("s_3 / s_2 there, largest of these layers", third, 0.5),
        between(at_end, time / found[1].end, 0.8, 1.25, given=found[1].left),
    )


def _ranks(name: str, history: xr.Dataset, row: int, rank: int, first: int, last: int) -> Claim:
    """Return the claim that in a row all layers from ``first`` to ``last`` have grown one rank."""
    ranks = grown(history, row)
    expected = f"{rank} in each of them (all layers are listed)"
    return is_true(name, set(ranks[first - 1 : last]) == {rank}, ", ".join(map(str, ranks)), expected)


def _on(plateau: Plateau) -> int:
    """Return the middle row of a plateau that is left, or the first row of one that is not."""
    return (plateau.begin_row + plateau.end_row) // 2 if plateau.left else plateau.begin_row


def rows(history: xr.Dataset, found: Sequence[Plateau], deep: int = DEEP) -> list[dict[str, object]]:
    """Return a table row per plateau, and one for the second escape of the deep layers."""

    def row(what: str, start: float, end: float, loss: float, at: int) -> dict[str, object]:
        ranks = ", ".join(map(str, grown(history, at)))
        ratios = ", ".join(f"{r:.2f}" for r in ratio(history, at))
        spectra = {"singular values grown, per layer": ranks, "s_2 / s_1, per layer": ratios}
        return {"what": what, "from": start, "to": end, "loss": loss, **spectra}

    table = [row(f"plateau {p.number}", p.start, p.end, p.loss, _on(p)) for p in found]
    out = second_exit(history, _on(found[1]), deep) if len(found) > 1 else None
    if out is not None:
        time, loss = (float(history[name].values[0, out]) for name in ("time_since_handover", "loss"))
        table.append(row("s_2 is half of s_1", time, time, loss, out))
    return table


@dataclass(frozen=True)
class Part:
    """A flow, its plateaus, and their claims, table and picture."""

    title: str
    flow: Flow
    found: tuple[Plateau, ...]
    first: FirstEscape | None = None
    deep: int = DEEP

    @classmethod
    def of(cls, flow: Flow, task: Task, title: str, predict: bool = False, deep: int = DEEP) -> Part:
        """Return a flow with its plateaus and, if requested, its first escape as predicted at the hand-over."""
        found, first = stages(flow.history), None
        if predict and flow.handover is not None and found and found[0].left and found[0].end > 0:
            y = task.y[:PREDICTED]
            g = output_gradient("cross_entropy", y, task.d_out)
            first = first_escape(flow, task.x[:PREDICTED], g, rank=1, end=found[0].end)
        return cls(title, flow, found, first, deep)

    def claims(self, second: bool = True) -> tuple[Claim, ...]:
        """Return the claims on the flow; see `claims`."""
        result = claims(self.flow.history, self.found, second, self.deep)
        if self.first is None:
            return result
        name = "time from the hand-over to the first escape, predicted by T37 for its chain of rank one over observed"
        return (*result, between(name, self.first.predicted / self.first.observed, 0.8, 1.25))

    def section(self) -> Section:
        """Return the plateaus as a table, with the skipped time and the number of steps."""
        flow = self.flow
        text = f"{self.flow.steps} steps in {self.flow.seconds:.0f} s."
        steps = self.flow.history.step
        if flow.handover is not None:
            skipped = f"The plateau at the origin is skipped up to t = {flow.handover.time:.4g}"
            if flow.handover.skipped_steps:
                skipped += f", which would take {flow.handover.skipped_steps:,.0f} steps"
            text += f" {skipped}; times below count from there."
        if self.found and self.found[0].left:
            over = f" and is over at step {int(steps[self.found[1].begin_row])}" if self.found[1:] else ""
            text += f" The first escape begins at step {int(steps[self.found[0].end_row])}{over}."
        return Section(self.title, text=text, rows=rows(flow.history, self.found, self.deep), history=flow.history)

    def picture(self) -> Any:
        """Draw loss and spectra with the plateaus and both escapes."""
        marks = {}
        if self.found and self.found[0].left:
            marks["first escape"] = self.found[0].end_row
            out = second_exit(self.flow.history, _on(self.found[1]), self.deep) if len(self.found) > 1 else None
            if out is not None:
                marks["s₂ is half of s₁ in the deep layers"] = out
        axes = plots.plateaus(self.flow.history, found=self.found, marks=marks)
        axes[0].set_title(self.title, fontsize=11, pad=14)
        axes[0].set_ylabel("loss")
        return axes[0].figure
