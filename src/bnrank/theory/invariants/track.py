"""Measurements of one network at the rows that a monitor records."""

import contextlib
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.invariants.conserved import Tensors
from bnrank.theory.invariants.linear_tail import Bound, Constants, Tail
from bnrank.theory.invariants.signs import SignTrace
from bnrank.theory.invariants.squares import Array, Forms

LARGE = 64  # sides from which a matrix is large


@dataclass(frozen=True)
class Increments:
    """The increments of Q due to one step, or per unit of time.

    Attributes
    ----------
    parts : ndarray
        (2, entries): due to the size of the step, and due to weight decay; NaN where it does not apply.
    per_time : bool
        Whether it is per unit of time instead of per step.
    lag : float
        Momentum mu. Then ``late``, a share of the parts, takes effect only after the step: mu ``late`` remains after
        one more step, and so on.
    late : ndarray, optional
        Same shape as ``parts``.
    """

    parts: Array
    per_time: bool = False
    lag: float = 0.0
    late: Array | None = None


class Ledger:
    """Rows of the drift of several quantities since the first row, and of the parts that explain it.

    Between two rows n steps apart, the parts are assumed to change linearly, so the sum over the n steps is
    n s + (s' - s) (n - 1) / 2, with s at the first row and s' at the second; for n = 1 it is s. Pending effects of
    momentum are subtracted. The rest is the drift minus the parts.
    """

    PARTS = ("by_step", "by_decay", "rest")
    NAMES = ("value", "drift", "relative", *PARTS, *(f"norm_{name}" for name in PARTS))

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        size = sum(forms.sizes)
        self.first = self.last = np.zeros(size)
        self.first_scale = self.last_scale = np.zeros(len(forms.sizes))
        self.sums, self.late = np.zeros((2, size)), np.zeros((2, size))  # by step and by decay
        self.row: tuple[int, int, float] | None = None  # number, step and time of the last one
        self.since = (0, 0.0)  # steps and time from the row before to the last one
        self.before: Increments | None = None
        self.now: Increments | None = None
        self._rows: dict[int, Array] = {}

    def add(self, number: int, step: int, time: float, value: Array, scale: Array) -> None:
        """Add a row: Q there, and per quantity the norm of in + out; :meth:`complete` may follow.

        The increments since the previous row are added as if each step contributed as much as the first one.
        """
        self._close()
        self.last, self.last_scale = value, scale
        self.before, self.now = self.now, None
        if self.row is None:
            self.first, self.first_scale = value, scale
        else:
            steps, passed = self.since = (step - self.row[1], time - self.row[2])
            before = self.before or Increments(np.full_like(self.sums, np.nan))
            self.sums += before.parts * (passed if before.per_time else steps)
            self.late *= before.lag**steps
            if before.late is not None:
                self.late += before.late * (before.lag ** np.arange(steps)).sum()
        self.row = (number, step, time)

    def complete(self, increments: Increments) -> None:
        """Add the increments of the step after the last row."""
        before, self.now = self.before, increments
        if before is None:
            return
        steps, time = self.since
        self.sums += (increments.parts - before.parts) / 2 * (time if before.per_time else steps - 1)
        if before.late is not None and increments.late is not None and before.lag:
            weights = before.lag ** np.arange(steps)
            mean = weights @ (1 - np.arange(1, steps + 1) / steps)  # the last step counts in full and is nearly now
            self.late += (increments.late - before.late) * mean

    def vectors(self) -> dict[str, Array]:
        """Return the drift and its `PARTS` at the last row, all entries."""
        drift, parts = self.last - self.first, self.sums - self.late
        by_step, by_decay = np.where(np.isnan(parts), 0.0, parts)
        return {"drift": drift, "by_step": parts[0], "by_decay": parts[1], "rest": drift - (by_step + by_decay)}

    def series(self, rows: int) -> Array:
        """Return all measures, `NAMES`, as (names, rows, quantities); NaN at rows that were not added."""
        self._close()
        found = np.full((len(self.NAMES), rows, len(self.forms.sizes)), np.nan)
        for number, measures in self._rows.items():
            found[:, number] = measures
        return found

    @np.errstate(all="ignore")
    def _close(self) -> None:
        """Measure the last row, whose increments are now known."""
        if self.row is None:
            return
        drift, *each = self.vectors().values()
        parts = np.stack(each)
        sums = self.forms.sums(np.concatenate([[self.last**2, drift**2], parts * drift, parts**2]))
        size, scale = np.sqrt(sums[1]), np.maximum(self.last_scale, self.first_scale)
        relative = np.divide(size, scale, out=np.zeros_like(size), where=scale > 0)
        along = sums[2:5] / np.where(size > 0, size, 1.0)
        self._rows[self.row[0]] = np.stack([np.sqrt(sums[0]), size, relative, *along, *np.sqrt(sums[5:])])


@dataclass
class Track:
    """Rows of one member: drifts, signs and directions, and the linear tail's ratios, alignments and bounds.

    Attributes
    ----------
    ledger, matrices : Ledger
        Ledgers of the quantities measured at every row, and of the matrices.
    tail : Tail
        Without layers if there is none.
    matrices_every : int
        Smallest number of steps between rows with matrices, signs and the tail; 0 for never.
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

    def add(
        self, step: int, time: float, parameters: Tensors, *, last: bool = False, copies: Tensors | None = None
    ) -> None:
        """Add a row, once all of it is measured; the parameters that enter a quantity are written to ``copies``."""
        since = step - self.steps[self.wide[-1]] if self.wide else math.inf
        number = len(self.steps)
        with np.errstate(all="ignore"):  # of a training that diverges
            measured = self.ledger.forms.measure(parameters, copies)
            if self.matrices_every and (since >= self.matrices_every or (last and since > 0)):
                products = self.matrices.forms.measure(parameters)
                tail, bounds = self._measure_tail(parameters, bool(np.isfinite(measured[0]).all()))
                self.signs.look(parameters, step=step, time=time)
                self.matrices.add(number, step, time, *products)
                self.wide.append(number)
                self.measured.append(tail)
                self.bounds.append(bounds)
            self.ledger.add(number, step, time, *measured)
        entering = (*self.ledger.forms.parameters, *self.matrices.forms.parameters)
        self.epsilon = max([self.epsilon, *(torch.finfo(parameters[name].dtype).eps for name in entering)])
        self.steps.append(step)
        self.times.append(time)

    def _measure_tail(self, parameters: Tensors, finite: bool) -> tuple[Array, tuple[Bound, ...]]:
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

    def _alignments(self, parameters: Tensors) -> list[float]:
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
        found = np.concatenate([ledger.series(len(self.steps)) for ledger in (self.ledger, self.matrices)], axis=2)
        return dict(zip(Ledger.NAMES, found, strict=True))

    def columns(self) -> dict[str, Array]:
        """Return all variables of the dataset, (rows, ...), NaN where a row does not have them."""
        tail = np.array(self.measured).reshape(len(self.wide), 4, len(self.tail))
        seldom = {
            "sign_changes": np.reshape(self.signs.changed, (len(self.wide), len(self.signs.names))),
            "turned_from_last": np.array(self.signs.from_last),
            "turned_from_first": np.array(self.signs.from_first),
            **{name: tail[:, i] for i, name in enumerate(("ratio", "alignment", "operator", "bound"))},
        }
        found = {"step": np.array(self.steps, dtype=float), "time": np.array(self.times), **self.series()}
        for name, values in seldom.items():
            found[name] = np.full((len(self.steps), *values.shape[1:]), math.nan)
            found[name][self.wide] = values
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
