"""Jacobians and the NTK of a network, sample by sample, where they are affordable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from bnrank._core import linalg
from bnrank.measures import kinks, ntk
from bnrank.measures.jacobian import KINK_RTOL, Jacobian
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.inputs import Inputs, Samples

RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
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
    ) -> None:
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
                jacobian = Jacobian(net, x, dtype=dtype, kink_rtol=None)
                if closed and "ntk" in parts:  # first, since one pass computes both
                    self.ntk_trace, traced = jacobian.ntk_trace.cpu(), True
                self.jacobian_singular_values = jacobian.singular_values.cpu()
                self.log_pseudo_determinant = linalg.log_pseudo_determinant(self.jacobian_singular_values, rtol=RTOL)
                note = kinks.describe(jacobian.near_kinks().cpu(), KINK_RTOL, numbers)
                self.notes += [{"name": name, "note": note}] if note else []
            except ValueError as error:  # not differentiable, or samples not independent
                self._skip(f"{name}: {error}")
        parameters = sum(p.numel() for p in net.parameters())
        if (
            "ntk" in parts
            and not traced
            and (closed or self._affordable("ntk_trace", self.n * d_out * parameters, MAX_NTK_WORK))
        ):
            try:
                self.ntk_trace = ntk.trace(net, x, dtype=dtype).cpu()
            except ValueError as error:
                self._skip(f"ntk_trace: {error}")

    def _skip(self, reason: str) -> None:
        self.skipped.append({"name": "", "type": self.kind, "reason": reason})

    def _affordable(self, what: str, work: int, limit: int) -> bool:
        if work > limit:
            most = limit // (work // self.n)
            hint = f"max_jacobian_samples={most} stays below it" if most else "one sample exceeds it"
            self._skip(f"{what}: {self.n} samples are {work:.1e} operations, the limit is {limit:.0e}; {hint}")
        return work <= limit
