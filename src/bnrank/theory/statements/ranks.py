"""Statements about the ranks of the network function, and the singular values of convolutions (T5, T6, T18, T28)."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank._core.sampling import evenly_spaced
from bnrank.measures import regions
from bnrank.measures.convolution import circular_singular_values, conv_singular_values
from bnrank.networks.reading import read
from bnrank.theory.facts import Facts
from bnrank.theory.rank_bounds import rank
from bnrank.theory.statements.samples import FEW, ROWS, smooth
from bnrank.theory.verdicts import NotApplicable, Sides, assume, assuming, statement

MAX_REGIONS = 5000
SMALL = 4, 24  # largest numbers of inputs and hidden neurons to enumerate regions; no limit on neurons for 2 inputs
MAX_WORK = 2 * 10**10  # largest number of operations for the singular values of one convolution
MIN_RTOL = 1e-9  # lower limit of rtol: smaller singular values may be rounding errors
CIRCULAR = "Jacot2023c, circular convolutional networks"


@statement(
    "T5",
    "Jacobian rank below bottleneck rank",
    "max_i rank Jf(x_i) <= k, f = h o g through R^k everywhere",
    source="Jacot2023a proposition 1 and theorem 1",
)
def _bracket(facts: Facts) -> Sides:
    assume(facts.x.is_floating_point(), "f can be differentiated in x", f"x has dtype {facts.x.dtype}")
    with assuming("f can be differentiated in x, sample by sample"):
        rows = evenly_spaced(len(facts.x), ROWS)
        found = rank(facts.net, facts.x[rows], facts.rtol, domain="everywhere")
    counts = linalg.rank(facts.jacobian_values, max(facts.rtol, MIN_RTOL), _rounding(facts))
    note = (
        f"rank of the Jacobian at sample {int(counts.argmax())}; f is cut at the {found.place} after {found.layer} "
        f"layer(s) and is h o g to {found.relative_error:.1e} on the data"
    )
    return Sides(float(counts.max()), float(found.upper), rtol=0.0, note=note, most=facts.largest_rank)


@statement(
    "T6",
    "rank of a composition",
    "rank Jf <= min(rank J a_l, rank J(a_l -> f))",
    source="Jacot2023a, properties of a rank",
)
def _chain(facts: Facts) -> Iterator[Sides]:
    assume(facts.depth > 1, "there is a hidden layer", "depth 1")
    for sample in smooth(facts, FEW):
        values, path = facts.jacobian_values[sample.row], sample.path
        floor = max(max(facts.rtol, MIN_RTOL) * float(values[0]), 10 * path.noise)
        left = float((values > floor).sum())
        for layer, pair in enumerate(zip(path.forward, path.backward, strict=False), start=1):
            # s_j(AB) <= s_1(A) s_j(B): if s_j(AB) > floor, then s_j(B) > floor / s_1(A)
            before, after = (torch.linalg.svdvals(matrix) for matrix in pair)
            for name, values, other in (("J a_l", before, after), ("J(a_l -> f)", after, before)):
                right = float((values > (1 - 1e-6) * floor / max(float(other[0]), 1e-300)).sum())
                yield Sides(left, right, rtol=0.0, note=sample.note(f"layer {layer}, {name}"), most=facts.largest_rank)


@statement(
    "T18",
    "Rank_J is the largest rank among the linear regions",
    "max_i rank Jf(x_i) <= max over regions of rank Jf",
    source="Jacot2023a definition 1",
)
def _regions(facts: Facts) -> Sides:
    x = facts.x.flatten(1)
    inputs, hidden = x.shape[1], sum(facts.chain.widths[1:-1])
    assume(
        inputs <= 2 or (inputs <= SMALL[0] and hidden <= SMALL[1]),
        f"so small that all regions can be enumerated: 2 inputs, or {SMALL[0]} with {SMALL[1]} hidden neurons",
        f"{inputs} inputs and {hidden} hidden neurons",
    )
    low, high = x.min(0).values, x.max(0).values
    margin = 1e-3 * (high - low) + 1e-3 * (1 + x.abs().max())
    box = torch.stack([low - margin, high + margin], 1).cpu()
    with np.errstate(over="ignore"):  # enumerate reports values beyond the range of floats
        found = regions.enumerate(facts.net, box, rtol=facts.rtol, max_regions=MAX_REGIONS)
    assume(found.complete, f"at most {MAX_REGIONS} regions in the box around the data", "there are more")
    counts = linalg.rank(facts.jacobian_values, (1 + 1e-6) * max(facts.rtol, MIN_RTOL), _rounding(facts))
    inside = counts[~facts.near_kinks]
    assume(len(inside) > 0, "some sample is off the kinks", "all are on kinks")
    note = f"{len(found)} regions in the box around the data, {len(inside)} samples off the kinks"
    return Sides(float(inside.max()), float(found.rank), rtol=0.0, note=note, most=facts.largest_rank)


@statement(
    "T28",
    "energy of a circular convolution",
    "sum_{w,i} s_{w,i}^2 = n^2 ||K||_F^2 (with stride: output positions for n^2)",
    source=CIRCULAR,
)
def _energy(facts: Facts) -> Iterator[Sides]:
    for layer, values in _circular(facts):
        positions = math.prod(layer.output_shape[1:])
        right = positions * float((layer.weight.detach().double() ** 2).sum())
        yield Sides(float((values**2).sum()), right, "=", note=f"layer {layer.name!r}, {positions} positions")


@statement("T28", "frequencies w and -w", "s_{w,i} = s_{-w,i}", source=CIRCULAR)
def _frequencies(facts: Facts) -> list[Sides]:
    found = []
    for layer, _ in _circular(facts):
        conv, n = layer.module, layer.input_shape[1:]
        if conv.groups > 1 or any(s > 1 for s in conv.stride):
            continue
        table = conv_singular_values(layer.weight, n, dilation=conv.dilation)
        for w in itertools.islice(itertools.product(*(range(1, size) for size in n)), 8):
            direct = _at_frequency(layer.weight, [-v for v in w], n, conv.dilation)
            off = int((table[w] - direct).abs().argmax())
            note = f"layer {layer.name!r}, frequency {w}, value {off + 1}"
            found.append(Sides(float(table[w][off]), float(direct[off]), "=", 1e-9, float(direct[0]), note=note))
    assume(len(found) > 0, "there is a circular convolution without stride or groups on images larger than 1")
    return found


def _rounding(facts: Facts) -> float:
    """Return 10 times the largest rounding error of Jf at the samples checked; 0 if f is not a chain."""
    try:
        return max(10 * sample.path.noise for sample in smooth(facts))
    except NotApplicable:
        return 0.0


def _circular(facts: Facts) -> list[tuple[Any, Tensor]]:
    """Return the circular convolutions whose images are at least as large as the kernel, with all singular values."""
    found, why = [], "no convolutional layer"
    for layer in read(facts.net, facts.x).layers:
        if not layer.is_plain or not layer.is_convolution or layer.input_shape is None:
            continue
        conv: Any = layer.module
        n = layer.input_shape[1:]
        work = math.prod(n) * math.prod(layer.weight.shape[:2]) * min(layer.weight.shape[:2])
        if any(d * (k - 1) >= size for d, k, size in zip(conv.dilation, conv.kernel_size, n, strict=True)):
            why = f"layer {layer.name!r} has a kernel larger than its images"
        elif work > MAX_WORK:
            why = f"layer {layer.name!r} would take {work:.0e} operations"
        else:
            values, note = circular_singular_values(layer)
            if values is not None and not note:
                found.append((layer, values))
            else:
                why = f"layer {layer.name!r}: {note}"
    assume(len(found) > 0, "there is a convolution with circular padding", why)
    return found


def _at_frequency(kernel: Tensor, w: list[int], n: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Return the singular values of sum_t K_t exp(-2 pi i w.t / n), tap by tap."""
    total = torch.zeros(kernel.shape[:2], dtype=torch.complex128)
    taps = kernel.detach().cpu().to(torch.complex128).flatten(2)
    for i, tap in enumerate(itertools.product(*map(range, kernel.shape[2:]))):
        phase = sum(a * b * d / size for a, b, d, size in zip(w, tap, dilation, n, strict=True))
        total += complex(math.cos(2 * math.pi * phase), -math.sin(2 * math.pi * phase)) * taps[:, :, i]
    return torch.linalg.svdvals(total)
