"""Jacobians and the NTK of a network, sample by sample, where they are affordable."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bnrank._core import linalg
from bnrank._core.deadline import Deadline
from bnrank.measures import kinks, ntk
from bnrank.measures.jacobian import KINK_RTOL, Jacobian
from bnrank.measures.products import Products
from bnrank.networks.functional import Functional, is_plain_mlp, unwrap
from bnrank.networks.inputs import Inputs, Samples

RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
MAX_PASS_WORK = 10**10  # samples x d_out x the work of a backward pass, by default: some seconds
PER_ENTRY = 8.0  # a number that an operation writes, in the time of an arithmetic operation of a matrix product
PER_NODE = 1e4  # a node of the graph of automatic differentiation in a pass of its own: some 5 microseconds
BLOCKS = 10  # of samples, after each of which the time is looked at


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
    parts : sequence of str
        From "jacobian" and "ntk".
    numbers : ndarray
        Which samples of the data they are, for notes.
    dtype : torch.dtype
        Precision of the passes.
    limited : bool
        Whether both are left out where the backward passes need more than some seconds.
    deadline : Deadline
        The time that may be used.

    Attributes
    ----------
    jacobian_singular_values : Tensor
        (N, K).
    log_pseudo_determinant, ntk_trace : Tensor
        (N,).
    reasons : list of str
        Why some are not measured.
    notes : list of dict
        Remarks.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Samples,
        d_out: int,
        parts: Sequence[str],
        *,
        numbers: np.ndarray,
        dtype: torch.dtype,
        limited: bool,
        deadline: Deadline,
    ) -> None:
        self.reasons: list[str] = []
        self.notes: list[dict[str, str]] = []
        self.jacobian_singular_values = torch.full((len(x), 1), math.nan, dtype=torch.float64)
        self.log_pseudo_determinant = self.ntk_trace = self.jacobian_singular_values[:, 0]
        if limited and parts and not is_plain_mlp(unwrap(net)) and (reason := too_expensive(net, x, d_out, dtype)):
            self.reasons.append(reason)
            return

        def jacobian(rows: Samples) -> tuple[Tensor, Tensor]:
            measured = Jacobian(net, rows, dtype=dtype, kink_rtol=None)
            return measured.singular_values.cpu(), measured.near_kinks().cpu()

        if "jacobian" in parts:
            measured = self._measured("jacobian_singular_values", x, jacobian, deadline, _undefined(x, d_out))
            if measured is not None:
                values, near = measured
                self.jacobian_singular_values = _filled(values, len(x))
                self.log_pseudo_determinant = _filled(linalg.log_pseudo_determinant(values, rtol=RTOL), len(x))
                note = kinks.describe(near, KINK_RTOL, numbers)
                self.notes += [{"name": "jacobian_singular_values", "note": note}] if note else []
        if "ntk" in parts:
            several = "x is several tensors, or (time, N, ...); wrap net in a module of one"
            reason = several if isinstance(x, Inputs) else ""
            trace = self._measured(
                "ntk_trace", x, lambda rows: (ntk.trace(net, rows, dtype=dtype).cpu(),), deadline, reason
            )
            self.ntk_trace = self.ntk_trace if trace is None else _filled(trace[0], len(x))

    def _measured(
        self,
        name: str,
        x: Samples,
        measure: Callable[[Samples], tuple[Tensor, ...]],
        deadline: Deadline,
        reason: str,
    ) -> list[Tensor] | None:
        """Return what is measured of the samples, or of the first ones until the time is over; None and the reason."""
        size = max(1, len(x) // BLOCKS) if deadline.is_set else len(x)
        rows = []
        for start in range(0, 0 if reason else len(x), size):
            if deadline.over():
                reason = deadline.cut(start, len(x))
                break
            try:
                rows.append(measure(x[start : start + size]))
            except ValueError as error:  # not differentiable, or samples not independent
                reason, rows = str(error), []
                break
        self.reasons += [f"{name}: {reason}"] if reason else []
        return [torch.cat(column) for column in zip(*rows, strict=True)] if rows else None


def _filled(values: Tensor, count: int) -> Tensor:
    """Return values with NaN for the samples that were not reached."""
    rest = values.new_full((count - len(values), *values.shape[1:]), math.nan)
    return torch.cat([values, rest])


def _undefined(x: Samples, d_out: int) -> str:
    """Return why Jacobians of d_out outputs are not defined, or too expensive, or ""."""
    if isinstance(x, Inputs):
        return "x is several tensors, or (time, N, ...); f is differentiated in one tensor (N, ...)"
    if not x.is_floating_point():
        return "x has integers, so f cannot be differentiated in x"
    d_in = x[0].numel()
    each = d_in * d_out * min(d_in, d_out)
    if len(x) * each <= MAX_JACOBIAN_WORK:
        return ""
    text = f"{len(x)} samples are {len(x) * each:.1e} operations, the limit is {MAX_JACOBIAN_WORK:.0e}"
    return text + _hint(each, MAX_JACOBIAN_WORK)


def _hint(each: float, limit: float) -> str:
    return f", max_jacobian_samples={int(limit // each)} stays below it" if each <= limit else ""


# Backward passes, counted rather than timed: the same on every machine ------------------------------------------------


def too_expensive(net: nn.Module, x: Samples, d_out: int, dtype: torch.dtype = torch.float64) -> str:
    """Return why the backward passes of all outputs at all samples are too expensive, or "".

    The work of a pass is counted in a forward at the first sample, in arithmetic operations of a matrix product. Passes
    run together, but for operations that torch cannot batch.
    """
    passes, alone = len(x) * d_out, math.inf
    each = float(sum(p.numel() for p in net.parameters()))
    if passes * each <= MAX_PASS_WORK:
        if isinstance(x, Inputs):  # not differentiated
            return ""
        try:
            each, alone = pass_work(net, x, dtype)
            is_between = passes * each <= MAX_PASS_WORK < passes * alone
            each = alone if is_between and not runs_together(net, x, dtype) else each
        except ValueError:  # not differentiable, which the measures say
            return ""
    if passes * each <= MAX_PASS_WORK:
        return ""
    text = f"{passes * each:.1e} operations, by default the limit is {MAX_PASS_WORK:.0e}"
    hint = _hint(d_out * alone, MAX_PASS_WORK)
    return f'Jacobians and the NTK: {text}; what=("jacobian", "ntk", ...) computes them{hint}'


def pass_work(net: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """Return the work of one backward pass where all passes run as one, and where each runs by itself.

    Examples
    --------
    >>> pass_work(nn.Linear(100, 50), torch.ones(1, 100))[0]            # 2 * 50 * 100 + 8 * (100 + 50), with x
    11200.0
    """
    function = Functional(net, dtype)
    for parameter in function.parameters.values():
        parameter.requires_grad_(parameter.is_floating_point())
    with torch.enable_grad(), _Counter() as counter:
        out = function(x[:1])
    nodes, ahead = set[Any](), [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            ahead += [after for after, _ in node.next_functions]
    together = counter.arithmetic + PER_ENTRY * counter.entries
    return together, together + PER_NODE * len(nodes)


def runs_together(net: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64) -> bool:
    """Return whether the backward passes of many outputs and samples run as one in torch, in ``dtype``.

    Examples
    --------
    >>> x = torch.ones(1, 4, 2)
    >>> runs_together(nn.Linear(2, 3), x), runs_together(nn.LSTM(2, 3, batch_first=True), x)
    (True, False)
    """
    return Products(Functional(net, dtype), x[:1], None).is_vectorized()


class _Counter(TorchDispatchMode):
    """Counts the entries that operations write, and the arithmetic of matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        self.entries, self.arithmetic = 0.0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it; views write nothing."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            self.entries += sum(value.numel() for value in tree_leaves(out) if isinstance(value, Tensor))
            formula = flop_registry.get(func.overloadpacket)
            self.arithmetic += 0 if formula is None else formula(*args, **kwargs, out_val=out)
        return out
