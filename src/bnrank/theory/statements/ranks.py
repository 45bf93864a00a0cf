"""Statements about the ranks of the network function (T5, T6, T18)."""

from __future__ import annotations

import torch
from torch import Tensor

from bnrank.measures import regions
from bnrank.theory import rank
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import FEW, ROWS, evenly, looked, sample_paths
from bnrank.theory.verdicts import NotApplicable, Sides, Statement, statement

__all__ = ["STATEMENTS"]

MAX_REGIONS = 5000
SMALL = 4, 24  # inputs and hidden neurons of the networks whose regions are enumerated, unless there are 2 inputs
LEAST = 1e-9  # a singular value below this times the largest is not counted, whatever rtol: it may be rounding


@statement(
    "T5",
    "Jacobian rank below bottleneck rank",
    "max_i rank Jf(x_i) <= k, f = h o g through R^k everywhere",
    source="Jacot2023a proposition 1 and theorem 1",
)
def _bracket(facts: Facts) -> Sides:
    if not facts.x.is_floating_point():
        raise NotApplicable("f can be differentiated in x", f"x has dtype {facts.x.dtype}")
    try:
        values = facts.jacobian_values
        found = rank.bracket(facts.net, facts.x[evenly(len(facts.x), ROWS)], facts.rtol, domain="everywhere")
    except ValueError as error:
        raise NotApplicable("f can be differentiated in x, sample by sample", str(error)) from error
    floors = _floors(facts) * torch.ones(len(values), dtype=values.dtype, device=values.device)
    counts = (values > torch.maximum(floors, max(facts.rtol, LEAST) * values[:, 0])[:, None]).sum(1)
    note = (
        f"rank of the Jacobian at sample {int(counts.argmax())}; f is cut at the {found.place} after {found.layer} "
        f"layer(s) and is h o g to {found.relative_error:.1e} on the data"
    )
    return Sides(float(counts.max()), float(found.upper), tolerance=0.0, note=note)


@statement(
    "T6",
    "rank of a composition",
    "rank Jf <= min(rank J a_l, rank J(a_l -> f))",
    source="Jacot2023a, properties of a rank",
)
def _chain(facts: Facts) -> Sides:
    if facts.depth == 1:
        raise NotApplicable("there is a hidden layer", "depth 1")
    found = []
    for row, path in sample_paths(facts, FEW):
        values = facts.jacobian_values[row]
        floor = max(max(facts.rtol, LEAST) * float(values[0]), 10 * path.noise)
        left = int((values > floor).sum())
        for i, (forward, backward) in enumerate(zip(path.forward, path.backward, strict=False), start=1):
            # s_j(AB) <= s_1(A) s_j(B): what counts in the product counts in each factor above floor / norm of the other
            halves = [torch.linalg.svdvals(m) for m in (forward, backward)]
            for here, half, other in zip(("J a_l", "J(a_l -> f)"), halves, halves[::-1], strict=True):
                limit = (1 - 1e-6) * floor / max(float(other[0]), 1e-300)
                note = f"sample {row}, layer {i}, {here}; {looked(facts, FEW)}"
                found.append(Sides(float(left), float((half > limit).sum()), tolerance=0.0, note=note))
    return min(found, key=lambda sides: sides.right - sides.left)


@statement(
    "T18",
    "Rank_J is the largest rank among the linear regions",
    "max_i rank Jf(x_i) <= max over regions of rank Jf",
    source="Jacot2023a definition 1",
)
def _regions(facts: Facts) -> Sides:
    x = facts.x.flatten(1)
    inputs, hidden = x.shape[1], sum(facts.chain.widths[1:-1])
    if inputs > 2 and (inputs > SMALL[0] or hidden > SMALL[1]):
        raise NotApplicable(
            f"so small that all regions can be enumerated: 2 inputs, or {SMALL[0]} with {SMALL[1]} hidden neurons",
            f"{inputs} inputs and {hidden} hidden neurons",
        )
    low, high = x.min(0).values, x.max(0).values
    margin = 1e-3 * (high - low) + 1e-3 * (1 + x.abs().max())
    box = torch.stack([low - margin, high + margin], 1).cpu()
    found = regions.enumerate(facts.net, box, rtol=facts.rtol, limit=MAX_REGIONS)
    if not found.complete:
        raise NotApplicable(f"at most {MAX_REGIONS} regions in the box around the data", "there are more")
    values = facts.jacobian_values
    floors = _floors(facts) * torch.ones(len(values), dtype=values.dtype, device=values.device)
    counts = (values > torch.maximum(floors, (1 + 1e-6) * max(facts.rtol, LEAST) * values[:, 0])[:, None]).sum(1)
    inside = ~facts.near_kinks
    if not bool(inside.any()):
        raise NotApplicable("some sample is off the kinks", "all are on kinks")
    note = f"{len(found)} regions in the box around the data, {int(inside.sum())} samples off the kinks"
    return Sides(float(counts[inside].max()), float(found.rank), tolerance=0.0, note=note)


STATEMENTS: tuple[Statement, ...] = (_bracket, _chain, _regions)


def _floors(facts: Facts) -> Tensor:
    """Return 10 times the rounding error of Jf, the largest at the samples looked at; 0 where f is no chain."""
    try:
        return torch.tensor(max(10 * path.noise for _, path in sample_paths(facts, ROWS)), dtype=torch.float64)
    except NotApplicable:
        return torch.tensor(0.0, dtype=torch.float64)
