"""Jacobians and the NTK of a network at single samples: what they cost, and as many as there is time for."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from bnrank._core.deadline import Deadline
from bnrank.networks.reading import Reading

Measure = Callable[[Tensor], Tensor]  # of samples, with a row for each

VARIABLES = {"jacobian": "jacobian_singular_values", "ntk": "ntk_trace"}  # by the parts that they belong to
SEVERAL = "x is several tensors, or (time, N, ...); wrap net in a module of one tensor (N, ...)"
RTOL = 1e-6  # singular values of a Jacobian above this, relative to its largest, count as non-zero
MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
MAX_PASS_WORK = 10**10  # samples x d_out x the work of a backward pass, by default: some seconds
PER_ENTRY = 8.0  # a number that an operation writes, in the time of an arithmetic operation of a matrix product
PER_LAYER = 2e4  # the nodes of a layer in the graph of automatic differentiation: some 10 microseconds
BLOCKS = 10  # of samples, after each of which the time is looked at


def in_blocks(x: Tensor, measure: Measure, deadline: Deadline, reason: str) -> tuple[list[Tensor], str]:
    """Return what is measured of the samples, or of the first ones until the time is over, and why of no others."""
    size = max(1, len(x) // BLOCKS) if deadline.is_set else len(x)
    blocks: list[Tensor] = []
    for start in range(0, 0 if reason else len(x), size):
        if deadline.over():
            return blocks, deadline.cut(start, len(x))
        try:
            blocks.append(measure(x[start : start + size]))
        except ValueError as error:  # not differentiable, or samples not independent
            return [], str(error)
    return blocks, reason


def undefined(x: Tensor, d_out: int) -> str:
    """Return why Jacobians in x are not defined, or too expensive, or ""."""
    if not x.is_floating_point():
        return "x has integers, so f cannot be differentiated in x"
    d_in = x[0].numel()
    return _beyond(MAX_JACOBIAN_WORK, len(x), d_in * d_out * min(d_in, d_out))


def too_expensive(reading: Reading, samples: int, d_out: int) -> str:
    """Return why the backward passes of all outputs at all samples are too expensive, or "".

    Their work is counted, not timed: the same on every machine.
    """
    text = _beyond(MAX_PASS_WORK, samples, d_out * pass_work(reading))
    return text and f'Jacobians and the NTK: {text}; what=("jacobian", "ntk", ...) computes them in any case'


def _beyond(limit: float, samples: int, each: float) -> str:
    """Return that the work of samples, of which each has so many operations, is beyond a limit, or ""."""
    if samples * each <= limit:
        return ""
    hint = f", max_jacobian_samples={int(limit // each)} stays below it" if each <= limit else ""
    return f"{samples} samples are {samples * each:.1e} operations, the limit is {limit:.0e}{hint}"


def pass_work(reading: Reading) -> float:
    """Return the work of one output's backward pass at one sample, in arithmetic operations of a matrix product.

    It is that of the layers: a weight acts once at every position of the layer's output.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Linear(100, 50)
    >>> pass_work(bnrank.networks.read(net, torch.ones(2, 100)))        # 2 * 100 * 50 + 8 * 50 + 20,000
    30400.0
    """
    work = 0.0
    for layer in reading.weights:
        outputs, rows = math.prod(layer.output_shape or (1,)), layer.matrix.size[0] * layer.matrix.groups
        products = 0.0 if layer.kind == "embedding" else math.prod(layer.matrix.shape) * max(1.0, outputs / rows)
        work += 2 * products + PER_ENTRY * outputs + PER_LAYER
    return work
