"""Statements about the hidden representations of the samples as domains (T9, T11)."""

import math
from collections.abc import Iterator

import torch

from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory import domains
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import smooth
from bnrank.theory.tangents import tangent_change_at
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, assume, statement

POINTS = 8  # number of samples of which all pairs are compared
LAYERS = 3  # number of narrowest hidden layers of which complete positivity is decided
WITNESS = 1e-6  # largest change of the outputs by the inserted layer, relative to the largest output


@statement(
    "T11",
    "hidden domains are nearly planar",
    "sum_l max{sum_i log(2/(1 + cos t_{l-1,i})), sum_i log(1 + sin t'_{l,i})} + sum_l ||b_l||^2 <= "
    "||theta||^2 - k L - log |Jf(x)|_+ - log |Jf(y)|_+, t and t' angles between tangent spaces at x and y",
    source="Jacot2023b proposition 5 and its proof, at finite depth, for every layer",
)
def _tangents(facts: Facts) -> Iterator[Sides]:
    samples = list(smooth(facts, POINTS))
    ranks = [sample.path.rank(facts.rtol) for sample in samples]
    tight = [int((sample.path.decomposition[1] > math.exp(-facts.depth / 2)).sum()) for sample in samples]
    biases = sum(float((b * b).sum()) for b in facts.biases)
    found = False
    reduced = sorted(filter(None, map(min, ranks, tight)))
    for k in sorted({k for k in (*ranks[:1], *sorted(ranks)[-2:], *reduced[:1], *reduced[-2:]) if k}):
        kept = [sample for sample, rank in zip(samples, ranks, strict=True) if rank >= k]
        if len(kept) < 2:
            continue
        found = True
        rows = [sample.row for sample in kept]
        change = tangent_change_at(facts, rows, k)
        volumes = [facts.log_volume(row, k) for row in rows]
        errors = [sample.path.volume_error(k) for sample in kept]
        for (i, j), costs, angles in zip(change.pairs.tolist(), change.costs, change.angles, strict=True):
            left = float(costs.sum()) + biases
            right = facts.parameter_norm - k * facts.depth - volumes[i] - volumes[j]
            scale = facts.parameter_norm + k * facts.depth + abs(volumes[i]) + abs(volumes[j])
            tolerance = 1e-9 + (1 + facts.depth) * (errors[i] + errors[j]) / scale
            degrees = torch.rad2deg(angles)
            note = (
                f"samples {rows[i]} and {rows[j]}, k = {k}; tangent spaces change by {float(degrees.min()):.3g} to "
                f"{float(degrees.max()):.3g} degrees in a layer, by {float(degrees[-1]):.3g} at the output; "
                f"{len(rows)} samples"
            )
            # without any change, the statement is T7
            yield Sides(left, right, "<=", tolerance, scale, ("slope in [-1, 1]",), note, least=-math.inf)
    assume(found, "Jf has rank at least 1 at two samples off the kinks", f"ranks {ranks[:8]}")


@statement(
    "T9",
    "one more layer costs the dimension of a hidden domain",
    "||theta'||^2 <= ||theta||^2 + dim span a_l(X), theta' with the identity on a_l(X) inserted, f unchanged on X",
    source="Jacot2023b proposition 5 for the hidden representations, which section 3.3 calls for",
)
def _insertion(facts: Facts) -> Sides:
    assume(facts.depth > 1, "there is a hidden layer", "depth 1")
    hidden = facts.inputs[1:]
    if not all(bool(a.isfinite().all()) for a in hidden):
        raise Inconclusive("the representations are beyond the range of floats")
    spans = [domains.planarity(a, 1e-10).k for a in hidden]
    about = f"dimensions of the spans of a_1(X), ..., a_{facts.depth - 1}(X): {', '.join(map(str, spans))}"
    refused = []
    for i in sorted(range(len(spans)), key=spans.__getitem__)[:LAYERS]:
        if spans[i] == 0:
            raise NotApplicable("some hidden domain is not 0", f"a_{i + 1}(X) = 0")
        found = domains.completely_positive(hidden[i], seed=facts.seed)
        if found.isometry is None:
            refused.append((found.status, f"a_{i + 1}(X): {found.reason}"))
            continue
        net = _with_identity(facts, i + 1, found.isometry.to(hidden[i]))
        with torch.no_grad():
            miss = float((net(facts.x.flatten(1)) - facts.outputs).abs().max())
        size = float(facts.outputs.abs().max())
        if not miss <= WITNESS * size:
            raise Inconclusive(f"the inserted layer changes an output by {miss:.2g}, where the largest is {size:.2g}")
        norm = sum(float((p.detach() ** 2).sum()) for p in net.parameters())
        note = f"layer {i + 1}, {found.reason}; {about}; largest rank of Jf {facts.rank}; outputs change by {miss:.1e}"
        assumptions = (f"a_{i + 1}(X) is completely positive",)
        right = facts.parameter_norm + spans[i]
        return Sides(norm, right, "<=", 1e-9, 1.0, assumptions, note, most=right)  # ||W O^T|| <= ||W||: no theorem
    reasons = "; ".join(reason for _, reason in refused)
    if any(status != "no" for status, _ in refused):
        raise Inconclusive(f"whether a hidden domain is completely positive: {reasons}")
    raise NotApplicable("the narrowest hidden domains are completely positive", reasons)


def _with_identity(facts: Facts, layer: int, isometry: torch.Tensor) -> MLP:
    """Return the network with the layer O after a_l, and W_{l+1} O^T for W_{l+1}; O a_l(X) >= 0."""
    weights = [*facts.weights[:layer], isometry, facts.weights[layer] @ isometry.T, *facts.weights[layer + 1 :]]
    biases = facts.biases and [*facts.biases[:layer], isometry.new_zeros(len(isometry)), *facts.biases[layer:]]
    return from_layers(weights, biases, facts.slope)
