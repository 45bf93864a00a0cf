"""Jacobians and the NTK of a network, sample by sample, where they are affordable."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from bnrank._core import heap, linalg
from bnrank._core.deadline import Deadline
from bnrank.measures import kinks
from bnrank.measures.derivatives import derivatives
from bnrank.measures.kinks import KINK_RTOL
from bnrank.networks.functional import unwrap
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import Reading

VARIABLES = {"jacobian": "jacobian_singular_values", "ntk": "ntk_trace"}  # by the parts that they belong to
RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
MAX_PASS_WORK = 10**10  # samples x d_out x the work of a backward pass, by default: some seconds
PER_ENTRY = 8.0  # a number that an operation writes, in the time of an arithmetic operation of a matrix product
PER_LAYER = 2e4  # the nodes of a layer in the graph of automatic differentiation: some 10 microseconds
BLOCKS = 10  # of samples, after each of which the time is looked at


def of_samples(
    net: nn.Module,
    x: Samples,
    chosen: Tensor,
    d_out: int,
    parts: Collection[str],
    dtype: torch.dtype,
    deadline: Deadline,
) -> tuple[dict[str, Tensor], list[str], list[dict[str, str]]]:
    """Return what is measured at the first of the chosen samples in the time that there is, by variable.

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

    Returns
    -------
    tuple
        The variables, why some are missing, or cut off, and notes.
    """
    heap.give_back()
    x = x[chosen.to(x.device)]
    reasons = {part: _undefined(part, x, d_out) for part in VARIABLES if part in parts}
    measured: dict[str, Tensor] = {}
    near: list[Tensor] = []
    if isinstance(x, Tensor) and not all(reasons.values()):
        found = derivatives(unwrap(net), x, dtype)

        def spectra(rows: Tensor) -> Tensor:
            near.append(found.near_kinks(rows, KINK_RTOL))
            return found.spectra(rows)

        for part, measure in (("jacobian", spectra), ("ntk", found.traces)):
            if reasons.get(part) == "":
                blocks, reasons[part] = _in_blocks(x, measure, deadline)
                measured |= {VARIABLES[part]: torch.cat(blocks).cpu()} if blocks else {}
    if "jacobian_singular_values" in measured:
        determinants = linalg.log_pseudo_determinant(measured["jacobian_singular_values"], rtol=RTOL)
        measured["log_pseudo_determinant"] = determinants
    missing = [f"{VARIABLES[part]}: {reason}" for part, reason in reasons.items() if reason]
    notes = []
    if measured and any(bool(mask.any()) for mask in near):
        note = kinks.describe(torch.cat(near).cpu(), KINK_RTOL, chosen.numpy())
        notes = [{"name": "jacobian_singular_values", "note": note}]
    return measured, missing, notes


def _in_blocks(x: Tensor, measure: Callable[[Tensor], Tensor], deadline: Deadline) -> tuple[list[Tensor], str]:
    """Return what is measured of the samples, or of the first ones until the time is over, and why of no others."""
    size = max(1, len(x) // BLOCKS) if deadline.is_set else len(x)
    blocks: list[Tensor] = []
    for start in range(0, len(x), size):
        if deadline.over():
            return blocks, deadline.cut(start, len(x))
        try:
            blocks.append(measure(x[start : start + size]))
        except ValueError as error:  # not differentiable, or samples not independent
            return [], str(error)
    return blocks, ""


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
