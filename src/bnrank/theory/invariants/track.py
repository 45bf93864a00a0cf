"""The rows that a monitor records of one network, as a dataset and as a table."""

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from bnrank._core import text
from bnrank.measures.signs import SignTrace
from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.drift import Ledger
from bnrank.theory.invariants.linear_tail import Bound, Constants, Tail
from bnrank.theory.invariants.squares import Array

LARGE = 64  # sides from which a matrix is large


@dataclass
class Track:
    """Rows of one member: drifts, signs and directions, and the linear tail's ratios, alignments and bounds.

    Attributes
    ----------
    ledger, matrices : Ledger
        Of the quantities measured at every row, and of the matrices.
    tail : Tail
        Without layers if there is none.
    matrices_every : int
        Minimal number of steps between rows with matrices, signs and the tail; 0 for none.
    """

    ledger: Ledger
    matrices: Ledger
    tail: Tail
    matrices_every: int
    signs: SignTrace = field(default_factory=SignTrace)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)
    measured: list[Array] = field(default_factory=list)  # ratio, alignment, operator and bound of the tail's layers
    bounds: list[tuple[Bound, ...]] = field(default_factory=list)
    start: Constants | None = None
    epsilon: float = 0.0  # of the coarsest dtype of a parameter that enters

    @property
    def step(self) -> int | None:
        """The step of the last row."""
        return self.steps[-1] if self.steps else None

    def is_wide(self, step: int, *, last: bool = False) -> bool:
        """Return whether a row at this step has matrices, signs and the tail."""
        if not self.wide or not self.matrices_every:
            return bool(self.matrices_every)
        since = step - self.steps[self.wide[-1]]
        return since >= self.matrices_every or (last and since > 0)

    def add(
        self,
        step: int,
        time: float,
        parameters: Mapping[str, Tensor],
        *,
        last: bool = False,
        copies: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a row, once all of it is measured; the parameters that enter a quantity are written to ``copies``."""
        wide, number = self.is_wide(step, last=last), len(self.steps)
        matrices, tail = None, None
        with np.errstate(all="ignore"):  # of a training that diverges
            measured = self.ledger.forms.measure(parameters, copies)
            if wide:
                matrices = self.matrices.forms.measure(parameters)
                tail = self._measure_tail(parameters, bool(np.isfinite(measured[0]).all()))
                self.signs.look(parameters, step=step, time=time)
            self.ledger.add(number, step, time, *measured)
            if matrices is not None:
                self.matrices.add(number, step, time, *matrices)
        entering = (*self.ledger.forms.parameters, *self.matrices.forms.parameters)
        self.epsilon = max([self.epsilon, *(torch.finfo(parameters[name].dtype).eps for name in entering)])
        self.steps.append(step)
        self.times.append(time)
        if wide:
            self.wide.append(number)
        if tail is not None:
            self.measured.append(tail[0])
            self.bounds.append(tail[1])

    def _measure_tail(self, parameters: Mapping[str, Tensor], finite: bool) -> tuple[Array, tuple[Bound, ...]]:
        """Return ratios, alignments and the sides of T48, (4, layers), and the bounds; NaN where training diverged."""
        try:
            if not finite:
                raise torch.linalg.LinAlgError
            if self.start is None:
                self.start = self.tail.constants(parameters)
            bounds = self.tail.bounds(parameters, self.start)
            ratios = [b.left / b.frobenius if b.frobenius else math.nan for b in bounds]
            found = [ratios, self._alignments(parameters), [b.left for b in bounds], [b.right for b in bounds]]
            return np.array(found), bounds
        except torch.linalg.LinAlgError:
            return np.full((4, len(self.tail)), math.nan), ()

    def _alignments(self, parameters: Mapping[str, Tensor]) -> list[float]:
        """Return |<v_{j+1}, u_j>| of the first singular vectors of neighboring layers; NaN for the last layer."""
        found = [
            abs(float(_first(layer.written(parameters)) @ _first(following.read(parameters).T)))
            for layer, following in itertools.pairwise(self.tail.layers)
        ]
        return [*found, math.nan][: len(self.tail)]

    def open(self) -> tuple[Ledger, ...]:
        """Return the ledgers that have a row at the last step."""
        wide = bool(self.wide) and self.wide[-1] == len(self.steps) - 1
        return (self.ledger, self.matrices) if wide else (self.ledger,)

    def series(self) -> dict[str, Array]:
        """Return all measures of quantities, (rows, quantities), NaN where a row does not have them."""
        rows, ledgers = len(self.steps), (self.ledger, self.matrices)
        counts = [len(ledger.forms.sizes) for ledger in ledgers]
        found = {name: np.full((rows, sum(counts)), math.nan) for name in Ledger.NAMES}
        for ledger, columns in zip(ledgers, (slice(0, counts[0]), slice(counts[0], None)), strict=True):
            with np.errstate(all="ignore"):
                measured = ledger.rows
            for number, measures in measured.items():
                for name, values in measures.items():
                    found[name][number, columns] = values
        return found

    def columns(self) -> dict[str, Array]:
        """Return all variables of the dataset, (rows, ...), NaN where a row does not have them."""
        rows, layers = len(self.steps), len(self.tail)
        found = {"step": np.array(self.steps, dtype=float), "time": np.array(self.times, dtype=float), **self.series()}
        tail = np.array(self.measured).reshape(len(self.wide), 4, layers)
        wide: dict[str, tuple[Any, tuple[int, ...]]] = {
            "sign_changes": (self.signs.changed, (len(self.signs.names),)),
            "turned_from_last": (self.signs.from_last, ()),
            "turned_from_first": (self.signs.from_first, ()),
            **{name: (tail[:, i], (layers,)) for i, name in enumerate(("ratio", "alignment", "operator", "bound"))},
        }
        for name, (values, shape) in wide.items():
            found[name] = np.full((rows, *shape), math.nan)
            found[name][self.wide] = np.array(values, dtype=float).reshape(len(self.wide), *shape)
        return found

    def latest(self) -> dict[str, Array]:
        """Return every measure of a quantity at the last row that has it, (quantities,)."""
        series = self.series()
        known = ~np.isnan(series["relative"])
        last = np.where(known.any(0), known.shape[0] - 1 - known[::-1].argmax(0), 0)
        return {name: values[last, np.arange(values.shape[1])] for name, values in series.items()}


def _first(matrix: Tensor) -> Array:
    """Return the first left singular vector; of a large matrix by Lanczos' method, which needs products alone."""
    from scipy.sparse.linalg import ArpackError, svds

    array = matrix.cpu().numpy()
    if min(array.shape) > LARGE:
        with contextlib.suppress(ArpackError):
            start = np.random.default_rng(0).standard_normal(min(array.shape))
            found: Array = svds(array, k=1, v0=start, return_singular_vectors="u")[0][:, 0]
            return found
    return np.asarray(torch.linalg.svd(matrix, full_matrices=False)[0][:, 0].cpu())


VARIABLES = {  # name -> dimension, units, long name
    "value": ("quantity", "theta^2", "||Q||"),
    "drift": ("quantity", "theta^2", "||Q - Q at the first row||"),
    "relative": ("quantity", "1", "drift over ||in + out||, the larger of now and at the first row"),
    "by_step": ("quantity", "theta^2", "component along the drift of what the size of the steps explains"),
    "by_decay": ("quantity", "theta^2", "component along the drift of what weight decay explains"),
    "rest": ("quantity", "theta^2", "component along the drift of the rest"),
    "norm_by_step": ("quantity", "theta^2", "norm of what the size of the steps explains"),
    "norm_by_decay": ("quantity", "theta^2", "norm of what weight decay explains"),
    "norm_rest": ("quantity", "theta^2", "norm of the rest"),
    "sign_changes": ("parameter", "1", "fraction of signs that differ from those of the previous row that has them"),
    "turned_from_last": ("", "1", "1 - cos of the angle of theta to that of the previous row that has it"),
    "turned_from_first": ("", "1", "1 - cos of the angle of theta to that of the first row"),
    "ratio": ("layer", "1", "||W||_op^2 / ||W||_F^2"),
    "alignment": ("layer", "1", "|<v, u>| of the first singular vectors, with the next layer"),
    "operator": ("layer", "theta^2", "||W||_op^2"),
    "bound": ("layer", "theta^2", "lower bound of ||W||_op^2 by T48 from the first row's constants"),
}
SHARES = {"by step size": "by_step", "by weight decay": "by_decay", "rest": "rest"}


def dataset(
    tracks: Mapping[int, Track], quantities: Sequence[Conserved], tail: Tail, attrs: dict[str, Any]
) -> xr.Dataset:
    """Return all rows over (member, row, ...)."""
    columns = [track.columns() for track in tracks.values()]
    rows = max(len(found["step"]) for found in columns)

    def stacked(name: str) -> Array:
        result = np.full((len(columns), rows, *columns[0][name].shape[1:]), math.nan)
        for member, found in zip(result, columns, strict=True):
            member[: len(found[name])] = found[name]
        return result

    steps = stacked("step")
    about_steps = {"units": "1", "long_name": "steps taken, -1 where a member has no such row"}
    about_time = {"units": "t", "long_name": "sum of the step sizes, or time of the flow"}
    return xr.Dataset(
        {
            name: (("member", "row", *([dim] if dim else [])), stacked(name), {"units": units, "long_name": long})
            for name, (dim, units, long) in VARIABLES.items()
        },
        coords={
            "member": list(tracks),
            "row": np.arange(rows),
            "quantity": np.array([q.name for q in quantities], dtype=str),
            "kind": ("quantity", np.array([q.kind for q in quantities], dtype=str)),
            "statement": ("quantity", np.array([", ".join(q.ids) for q in quantities], dtype=str)),
            "parameter": np.array(next(iter(tracks.values())).signs.names, dtype=str),
            "layer": np.array(tail.names, dtype=str),
            "step": (("member", "row"), np.where(np.isnan(steps), -1, steps).astype(np.int64), about_steps),
            "time": (("member", "row"), stacked("time"), about_time),
        },
        attrs=attrs,
    )


def table(tracks: Mapping[int, Track], quantities: Sequence[Conserved], about: Mapping[str, Any]) -> str:
    """Return the last rows as a table with remarks; of several members, the one with the largest drift."""
    most = {m: float(np.nanmax(track.latest()["relative"], initial=0.0)) for m, track in tracks.items()}
    member = max(most, key=lambda m: most[m])
    track = tracks[member]
    latest = track.latest()
    which = f" of member {member}, which drifts most of {len(tracks)}" if len(tracks) > 1 else ""
    clock = "" if math.isnan(track.times[-1]) else f", time {track.times[-1]:.4g}"
    lines = [f"{about['module']}{which}: {len(track.steps)} rows, step {track.steps[-1]}{clock}"]
    rows = []
    for i, q in enumerate(quantities):
        drift = latest["drift"][i]
        row = {"conserved quantity": q.name, "relative drift": f"{latest['relative'][i]:.2e}"}
        shares = {name: _share(latest[key][i], drift) for name, key in SHARES.items()}
        rows.append(row | shares)
    lines.append(text.render(rows))
    if track.measured and len(track.tail):
        ratios = ", ".join(f"{n} {r:.4f}" for n, r in zip(track.tail.names, track.measured[-1][0], strict=True))
        lines.append(f"||W||_op^2 / ||W||_F^2 of the linear tail: {ratios}")
    if len(track.signs) > 1:
        counts = sum(f * n for f, n in zip(track.signs.changed[-1], track.signs.sizes, strict=True))
        share = counts / max(1, sum(track.signs.sizes))
        before = track.signs.steps[-2]
        turned = track.signs.from_last[-1]
        lines.append(f"since step {before}: {share:.2%} of the signs changed, theta turned by 1 - cos = {turned:.1e}")
    if about["notes"]:
        lines.append(f"note: {about['notes']}")
    return "\n".join(lines)


def _share(part: float, drift: float) -> str:
    if math.isnan(part):
        return "n/a"
    return f"{part / drift:.1%}".replace("-0.0%", "0.0%") if drift > 0 else "-"
