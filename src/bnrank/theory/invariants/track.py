"""What a monitor keeps of one network while it is trained."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, svds
from torch import Tensor

from bnrank.measures.signs import SignTrace
from bnrank.theory.invariants.drift import Ledger
from bnrank.theory.invariants.linear_tail import Bound, Constants, Tail
from bnrank.theory.invariants.squares import Array

__all__ = ["Track"]

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
        Least steps between rows with matrices, signs and the tail; 0 for none.
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
    epsilon: float = 0.0  # of the coarsest dtype of a parameter that enters

    @property
    def step(self) -> int | None:
        """The step of the last row."""
        return self.steps[-1] if self.steps else None

    def is_wide(self, step: int, *, last: bool = False) -> bool:
        """Say whether a row at this step has matrices, signs and the tail."""
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
                tail = self._look_at_tail(parameters, bool(np.isfinite(measured[0]).all())) if len(self.tail) else None
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
            self.ratios.append(tail[0])
            self.alignments.append(tail[1])
            self.bounds.append(tail[2])

    def _look_at_tail(self, parameters: Mapping[str, Tensor], finite: bool) -> tuple[Any, Any, Any]:
        """Measure ratios, alignments and T48's sides; a training that has diverged goes on and is recorded as NaN."""
        try:
            if not finite:
                raise torch.linalg.LinAlgError
            if self.start is None:
                self.start = self.tail.constants(parameters)
            bounds = self.tail.bounds(parameters, self.start)
            ratios = tuple(b.left / b.frobenius if b.frobenius else math.nan for b in bounds)
            return ratios, self._alignments(parameters), bounds
        except torch.linalg.LinAlgError:
            unknown = (math.nan,) * len(self.tail)
            return unknown, unknown[1:], None

    def _alignments(self, parameters: Mapping[str, Tensor]) -> tuple[float, ...]:
        """Return |<v_{j+1}, u_j>| of the first singular vectors of neighboring layers, without what bounds it."""
        pairs = itertools.pairwise(self.tail.layers)
        return tuple(
            abs(float(_first(layer.written(parameters)) @ _first(following.read(parameters).T)))
            for layer, following in pairs
        )

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


def _first(matrix: Tensor) -> Array:
    """Return the first left singular vector; of a large matrix by Lanczos' method, which needs products alone."""
    array = matrix.cpu().numpy()
    if min(array.shape) > LARGE:
        with contextlib.suppress(ArpackError):
            start = np.random.default_rng(0).standard_normal(min(array.shape))
            found: Array = svds(array, k=1, v0=start, return_singular_vectors="u")[0][:, 0]
            return found
    return np.asarray(torch.linalg.svd(matrix, full_matrices=False)[0][:, 0].cpu())
