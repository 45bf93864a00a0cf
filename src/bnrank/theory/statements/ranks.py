"""Statements about the ranks of the network function (T5, T6, T18)."""

from collections.abc import Iterator

import numpy as np
import torch

from bnrank._core import linalg
from bnrank._core.sampling import evenly_spaced
from bnrank.measures import regions
from bnrank.theory import rank
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import FEW, ROWS, smooth
from bnrank.theory.verdicts import NotApplicable, Sides, assume, assuming, statement

MAX_REGIONS = 5000
SMALL = 4, 24  # inputs and hidden neurons of the networks whose regions are enumerated, unless there are 2 inputs
MIN_RTOL = 1e-9  # relative size of a singular value that may be rounding, whatever rtol


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
        found = rank.bracket(facts.net, facts.x[rows], facts.rtol, domain="everywhere")
    counts = linalg.rank(facts.jacobian_values, max(facts.rtol, MIN_RTOL), _rounding(facts))
    note = (
        f"rank of the Jacobian at sample {int(counts.argmax())}; f is cut at the {found.place} after {found.layer} "
        f"layer(s) and is h o g to {found.relative_error:.1e} on the data"
    )
    return Sides(float(counts.max()), float(found.upper), rtol=0.0, note=note)


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
            # s_j(AB) <= s_1(A) s_j(B): what counts in the product counts in each factor above floor / norm of the other
            before, after = (torch.linalg.svdvals(matrix) for matrix in pair)
            for name, values, other in (("J a_l", before, after), ("J(a_l -> f)", after, before)):
                right = float((values > (1 - 1e-6) * floor / max(float(other[0]), 1e-300)).sum())
                yield Sides(left, right, rtol=0.0, note=sample.note(f"layer {layer}, {name}"))


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
    with np.errstate(over="ignore"):  # it names values beyond the range of floats itself
        found = regions.enumerate(facts.net, box, rtol=facts.rtol, max_regions=MAX_REGIONS)
    assume(found.complete, f"at most {MAX_REGIONS} regions in the box around the data", "there are more")
    counts = linalg.rank(facts.jacobian_values, (1 + 1e-6) * max(facts.rtol, MIN_RTOL), _rounding(facts))
    inside = counts[~facts.near_kinks]
    assume(len(inside) > 0, "some sample is off the kinks", "all are on kinks")
    note = f"{len(found)} regions in the box around the data, {len(inside)} samples off the kinks"
    return Sides(float(inside.max()), float(found.rank), rtol=0.0, note=note)


def _rounding(facts: Facts) -> float:
    """Return 10 times the rounding error of Jf, the largest at the samples checked; 0 where f is no chain."""
    try:
        return max(10 * sample.path.noise for sample in smooth(facts))
    except NotApplicable:
        return 0.0
