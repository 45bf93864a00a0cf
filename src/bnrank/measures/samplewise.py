"""Jacobians and the NTK of a network, sample by sample, where they are affordable."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import heap, linalg
from bnrank._core.deadline import Deadline
from bnrank.measures import kinks, ntk
from bnrank.measures.jacobian import KINK_RTOL, Jacobian
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import Reading

RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
MAX_PASS_WORK = 10**10  # samples x d_out x the work of a backward pass, by default: some seconds
PER_ENTRY = 8.0  # a number that an operation writes, in the time of an arithmetic operation of a matrix product
PER_LAYER = 2e4  # the nodes of a layer in the graph of automatic differentiation: some 10 microseconds
BLOCKS = 10  # of samples, after each of which the time is looked at


@dataclass
class SampleMeasures:
    """Jacobians and the NTK sample by sample, NaN where they are undefined or too expensive.

    Attributes
    ----------
    jacobian_singular_values : Tensor
        (N, K).
    log_pseudo_determinant, ntk_trace : Tensor
        (N,).
    numbers : ndarray
        Which samples of the data they are.
    reasons : list of str
        Why some are not measured.
    notes : list of dict
        Remarks.
    """

    jacobian_singular_values: Tensor
    log_pseudo_determinant: Tensor
    ntk_trace: Tensor
    numbers: np.ndarray
    reasons: list[str] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)


def of_samples(
    net: nn.Module,
    x: Samples,
    chosen: Tensor,
    d_out: int,
    parts: Collection[str],
    dtype: torch.dtype,
    deadline: Deadline,
) -> SampleMeasures:
    """Return Jacobians and the NTK at some samples, in the time that there is.

    Parameters
    ----------
    net, x : nn.Module, Tensor or Inputs
        The network and all samples.
    chosen : Tensor
        Which samples are measured.
    d_out : int
        Outputs per sample.
    parts : collection of str
        Those of "jacobian" and "ntk" that are measured.
    dtype : torch.dtype
        Precision of the passes.
    deadline : Deadline
        The time that may be used.
    """
    heap.give_back()
    x, unknown = x[chosen.to(x.device)], torch.full((len(chosen), 1), math.nan, dtype=torch.float64)
    found = SampleMeasures(unknown, unknown[:, 0], unknown[:, 0], chosen.numpy())

    def jacobian(rows: Any) -> tuple[Tensor, Tensor]:
        measured = Jacobian(net, rows, dtype=dtype, kink_rtol=None)
        return measured.singular_values.cpu(), measured.near_kinks().cpu()

    def trace(rows: Any) -> tuple[Tensor]:
        return (ntk.trace(net, rows, dtype=dtype).cpu(),)

    for name, part, measure in (("jacobian_singular_values", "jacobian", jacobian), ("ntk_trace", "ntk", trace)):
        if part not in parts:
            continue
        blocks, reason = _in_blocks(x, measure, deadline, _undefined(part, x, d_out))
        found.reasons += [f"{name}: {reason}"] if reason else []
        if blocks:
            values, *near = map(torch.cat, zip(*blocks, strict=True))
            rest = values.new_full((len(x) - len(values), *values.shape[1:]), math.nan)
            setattr(found, name, torch.cat([values, rest]))
            note = kinks.describe(near[0], KINK_RTOL, found.numbers) if near else ""
            found.notes += [{"name": name, "note": note}] if note else []
        if part == "jacobian":
            determinants = linalg.log_pseudo_determinant(found.jacobian_singular_values, rtol=RTOL)
            is_known = torch.isfinite(found.jacobian_singular_values[:, 0])
            found.log_pseudo_determinant = torch.where(is_known, determinants, math.nan)
    return found


def _in_blocks(
    x: Samples, measure: Callable[[Any], tuple[Tensor, ...]], deadline: Deadline, reason: str
) -> tuple[list[tuple[Tensor, ...]], str]:
    """Return what is measured of the samples, or of the first ones until the time is over, and why of no others."""
    size = max(1, len(x) // BLOCKS) if deadline.is_set else len(x)
    blocks: list[tuple[Tensor, ...]] = []
    for start in range(0, 0 if reason else len(x), size):
        if deadline.over():
            return blocks, deadline.cut(start, len(x))
        try:
            blocks.append(measure(x[start : start + size]))
        except ValueError as error:  # not differentiable, or samples not independent
            return [], str(error)
    return blocks, reason


def _undefined(part: str, x: Samples, d_out: int) -> str:
    """Return why Jacobians or the NTK of d_out outputs are not defined, or Jacobians too expensive, or ""."""
    if isinstance(x, Inputs):
        return "x is several tensors, or (time, N, ...); wrap net in a module of one tensor (N, ...)"
    if part == "ntk":
        return ""
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


def too_expensive(reading: Reading, samples: int, d_out: int) -> str:
    """Return why the backward passes of all outputs at all samples are too expensive, or "".

    Their work is counted, not timed: the same on every machine.
    """
    each = d_out * pass_work(reading)
    if samples * each <= MAX_PASS_WORK:
        return ""
    text = f"{samples * each:.1e} operations, by default the limit is {MAX_PASS_WORK:.0e}"
    computes = f'what=("jacobian", "ntk", ...) computes them{_hint(each, MAX_PASS_WORK)}'
    return f"Jacobians and the NTK: {text}; {computes}"


def pass_work(reading: Reading) -> float:
    """Return the work of one output's backward pass at one sample, in arithmetic operations of a matrix product.

    It is that of the layers: a weight acts once at every position of the layer's output.

    Examples
    --------
    >>> from bnrank.networks import read
    >>> pass_work(read(nn.Linear(100, 50), torch.ones(2, 100)))         # 2 * 100 * 50 + 8 * 50 + 20,000
    30400.0
    """
    work = 0.0
    for layer in reading.weights:
        outputs, rows = math.prod(layer.output_shape or (1,)), layer.matrix.size[0] * layer.matrix.groups
        products = 0.0 if layer.kind == "embedding" else math.prod(layer.matrix.shape) * max(1.0, outputs / rows)
        work += 2 * products + PER_ENTRY * outputs + PER_LAYER
    return work
