"""Jacobians and the NTK of a network, sample by sample, where they are affordable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import heap, linalg
from bnrank._core.deadline import Deadline
from bnrank.measures import kinks, ntk
from bnrank.measures.jacobian import KINK_RTOL, Jacobian
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.inputs import Inputs, Samples

RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
BLOCKS = 10  # of samples, after each of which the time is looked at
MAX_PASSES = 4000  # samples x d_out where outputs are differentiated one by one: some ten seconds
MAX_NTK_WORK = 2 * 10**10  # samples x d_out x parameters, for modules other than MLP


class SampleMeasures:
    """Jacobians and the NTK sample by sample, NaN where they are undefined or too expensive, with the reasons.

    Parameters
    ----------
    net : nn.Module
        The network.
    x : Tensor or Inputs
        The samples that are measured.
    d_out : int
        Outputs per sample.
    dtype : torch.dtype
        Precision of the passes.
    numbers : ndarray
        Which samples of the data they are, for notes.
    parts : sequence of str
        From "jacobian" and "ntk".
    deadline : Deadline, optional
        The time that may be used.

    Attributes
    ----------
    jacobian_singular_values : Tensor
        (N, K).
    log_pseudo_determinant, ntk_trace : Tensor
        (N,).
    skipped, notes : list of dict
        What is not measured, and remarks.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Samples,
        d_out: int,
        dtype: torch.dtype,
        numbers: np.ndarray,
        parts: Sequence[str],
        deadline: Deadline | None = None,
    ) -> None:
        deadline = deadline or Deadline()
        self.kind, self.n = type(net).__name__, len(x)
        self.skipped: list[dict[str, str]] = []
        self.notes: list[dict[str, str]] = []
        self.jacobian_singular_values = torch.full((self.n, 1), math.nan, dtype=torch.float64)
        self.log_pseudo_determinant = self.jacobian_singular_values[:, 0]
        self.ntk_trace = self.jacobian_singular_values[:, 0]
        d_in, closed, traced = x[0].numel(), is_plain_mlp(unwrap(net)), False
        name = "jacobian_singular_values"
        if isinstance(x, Inputs):
            told = "x is several tensors, or (time, N, ...)"
            advice = {"jacobian": "f is differentiated in one tensor (N, ...)", "ntk": "wrap net in a module of one"}
            measures = {"jacobian": name, "ntk": "ntk_trace"}
            for part in parts:
                self._skip(f"{measures[part]}: {told}; {advice[part]}")
            return
        if "jacobian" not in parts:
            pass
        elif not x.is_floating_point():
            self._skip(f"{name}: x has integers, so f cannot be differentiated in x")
        elif self._affordable(name, self.n * d_in * d_out * min(d_in, d_out), MAX_JACOBIAN_WORK):
            try:
                traced = self._jacobians(net, x, dtype, numbers, closed and "ntk" in parts, deadline)
            except ValueError as error:  # not differentiable, or samples not independent
                self._skip(f"{name}: {error}")
        parameters = sum(p.numel() for p in net.parameters())
        heap.give_back()
        if (
            "ntk" in parts
            and not traced
            and (closed or self._affordable("ntk_trace", self.n * d_out * parameters, MAX_NTK_WORK))
            and self._passable(net, d_out)
        ):
            try:
                found = [ntk.trace(net, part, dtype=dtype).cpu() for part in self._blocks(x, "ntk_trace", deadline)]
                if found:
                    self.ntk_trace = self._filled(torch.cat(found))
            except ValueError as error:
                self._skip(f"ntk_trace: {error}")

    def _jacobians(
        self, net: nn.Module, x: Tensor, dtype: torch.dtype, numbers: np.ndarray, traced: bool, deadline: Deadline
    ) -> bool:
        """Measure Jacobians, with the NTK if ``traced``, which one pass computes both; return whether it was."""
        name, found = "jacobian_singular_values", []
        for part in self._blocks(x, name, deadline):
            jacobian = Jacobian(net, part, dtype=dtype, kink_rtol=None)
            trace = jacobian.ntk_trace.cpu() if traced else None
            found.append((jacobian.singular_values.cpu(), trace, jacobian.near_kinks().cpu()))
        if not found:
            return False
        values = torch.cat([row[0] for row in found])
        self.jacobian_singular_values = self._filled(values)
        self.log_pseudo_determinant = self._filled(linalg.log_pseudo_determinant(values, rtol=RTOL))
        if traced:
            self.ntk_trace = self._filled(torch.cat([row[1] for row in found if row[1] is not None]))
        note = kinks.describe(torch.cat([row[2] for row in found]), KINK_RTOL, numbers)
        self.notes += [{"name": name, "note": note}] if note else []
        return traced

    def _blocks(self, x: Tensor, name: str, deadline: Deadline) -> Iterator[Tensor]:
        """Iterate over all samples, or over some after others until the time is over."""
        size = max(1, self.n // BLOCKS) if deadline.is_set else self.n
        for start in range(0, self.n, size):
            if deadline.over():
                self._skip(f"{name}: {deadline.cut(start, self.n)}")
                return
            yield x[start : start + size]

    def _filled(self, values: Tensor) -> Tensor:
        """Return values with NaN for the samples that were not reached."""
        rest = values.new_full((self.n - len(values), *values.shape[1:]), math.nan)
        return torch.cat([values, rest])

    def _skip(self, reason: str) -> None:
        self.skipped.append({"name": "", "type": self.kind, "reason": reason})

    def _passable(self, net: nn.Module, d_out: int) -> bool:
        """Return whether the outputs of recurrent layers, which are differentiated one by one, are few enough."""
        passes = self.n * d_out
        if passes <= MAX_PASSES or not any(isinstance(part, nn.RNNBase) for part in net.modules()):
            return True
        most = MAX_PASSES // d_out
        hint = f"max_jacobian_samples={most} stays below it" if most else "one sample exceeds it"
        text = f"{passes} backward passes, one per output, since it has recurrent layers; the limit is {MAX_PASSES}"
        self._skip(f"ntk_trace: {text}; {hint}")
        return False

    def _affordable(self, what: str, work: int, limit: int) -> bool:
        if work > limit:
            most = limit // (work // self.n)
            hint = f"max_jacobian_samples={most} stays below it" if most else "one sample exceeds it"
            self._skip(f"{what}: {self.n} samples are {work:.1e} operations, the limit is {limit:.0e}; {hint}")
        return work <= limit
