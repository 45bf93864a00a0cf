"""What a monitor keeps of one network while it is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bnrank.measures.signs import SignTrace
from bnrank.theory.invariants.drift import Ledger
from bnrank.theory.invariants.squares import Array
from bnrank.theory.invariants.tail import Bound, Constants, Tail

__all__ = ["Track"]


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
        Least steps between rows with matrices, signs and the tail, at first a third of the steps so far; 0 for none.
    """

    ledger: Ledger
    matrices: Ledger
    tail: Tail
    matrices_every: int
    signs: SignTrace = field(default_factory=SignTrace)
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    wide: list[int] = field(default_factory=list)
    ratios: list[tuple[float, ...]] = field(default_factory=list)
    alignments: list[tuple[float, ...]] = field(default_factory=list)
    bounds: list[tuple[Bound, ...] | None] = field(default_factory=list)
    start: Constants | None = None

    @property
    def step(self) -> int | None:
        """The step of the last row."""
        return self.steps[-1] if self.steps else None

    def is_wide(self, step: int, *, last: bool = False) -> bool:
        """Say whether a row at this step has matrices, signs and the tail."""
        if not self.wide or not self.matrices_every:
            return bool(self.matrices_every)
        since = step - self.steps[self.wide[-1]]
        return since >= min(self.matrices_every, max(1, step // 3)) or (last and since > 0)

    def add(
        self,
        step: int,
        time: float,
        parameters: Mapping[str, Tensor],
        *,
        last: bool = False,
        copies: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add a row; the parameters that enter a quantity are written to ``copies`` where there are any."""
        wide, number = self.is_wide(step, last=last), len(self.steps)
        self.steps.append(step)
        self.times.append(time)
        with np.errstate(all="ignore"):  # of a training that diverges
            self.ledger.add(number, step, time, *self.ledger.forms.measure(parameters, copies))
            if wide:
                self.matrices.add(number, step, time, *self.matrices.forms.measure(parameters))
        if not wide:
            return
        self.wide.append(number)
        self.signs.look(parameters, step=step, time=time)
        if len(self.tail):
            self._look_at_tail(parameters, bool(np.isfinite(self.ledger.last).all()))

    def _look_at_tail(self, parameters: Mapping[str, Tensor], finite: bool) -> None:
        """Measure T48's sides; a training that has diverged goes on and is recorded as NaN."""
        try:
            if not finite:
                raise torch.linalg.LinAlgError
            if self.start is None:
                self.start = self.tail.constants(parameters)
            ratios = self.tail.ratios(parameters)
            alignments = tuple(a.value for a in self.tail.alignments(parameters, self.start))
            bounds: tuple[Bound, ...] | None = self.tail.bounds(parameters, self.start)
        except torch.linalg.LinAlgError:
            ratios = (math.nan,) * len(self.tail)
            alignments, bounds = ratios[1:], None
        self.ratios.append(ratios)
        self.alignments.append(alignments)
        self.bounds.append(bounds)

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
