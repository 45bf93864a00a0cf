"""Statements about the representation cost (T1 to T4, T7, T8, T10, T14, T17b)."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.measures import balance
from bnrank.theory.cost.bounds import two_point
from bnrank.theory.cost.bracketing import bracket
from bnrank.theory.cost.closed_forms import linear, linear_corrections, remainder_bound
from bnrank.theory.cost.search import rounded
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import counted_values
from bnrank.theory.verdicts import Sides, assume, statement

CHAIN = ("a chain of linear layers with one activation, its slope in (-1, 1) or 1",)
LINEAR = ("a linear network",)
STATIONARY = 1e-2  # largest ||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||) for which T14 applies
BALANCED = 1e-6  # tolerance of in = out, relative to the larger side or the average
ALIGNED = 1e-6  # tolerance of sum_l R1(W_l) = R1 of the product


@statement(
    "T1",
    "representation cost",
    "lower <= ||theta'||^2 <= ||theta||^2, lower <= R(f; Omega, L) from the Jacobian, theta' pruned and balanced",
    source="Jacot2023a section 3; Jacot2023b section 2",
)
def _cost(facts: Facts) -> list[Sides]:
    chain, x = facts.chain, facts.x.flatten(1)
    found = bracket(chain, x, rtol=facts.rtol, starts=64, rounds=3, max_regions=500, seed=facts.seed)
    note = (
        f"{found.lower:.6g} <= R(f; Omega, {found.depth}) <= {found.upper:.6g} ({found.how}), Omega the bounding box "
        f"of the samples; lower bound from {found.lower.evaluated} points"
    )
    pairs = ((float(found.lower), found.upper), (found.upper, facts.parameter_norm))
    return [Sides(left, right, assumptions=CHAIN, note=note) for left, right in pairs]


@statement(
    "T2",
    "cost of a linear map",
    "L sum_i s_i(A)^{2/L} <= ||theta||^2, A = W_L ... W_1",
    source="Jacot2023b section 3 (Dai, Karzand, Srebro 2021)",
)
def _linear_cost(facts: Facts) -> Sides:
    product = _product(facts)
    note = f"rank A = {linear_corrections(product, 0.0).R0}, L = {facts.depth}"
    return Sides(linear(product, facts.depth, rtol=0.0), facts.parameter_norm, assumptions=LINEAR, note=note)


@statement(
    "T3",
    "expansion of the cost of a linear map",
    "|R(A; L) - (L R0 + R1 + R2/L)| <= sum_i |u_i|^3 e^{max(u_i, 0)/L} / (6 L^2), u_i = 2 log s_i(A)",
    source="Jacot2023b section 3",
)
def _expansion(facts: Facts) -> Sides:
    product, depth = _product(facts), facts.depth
    r0, r1, r2 = linear_corrections(product, 0.0)
    cost = depth * float(linalg.schatten(facts.jacobian_values[0][:r0], depth, 0.0))
    remainder = abs(cost - (depth * r0 + r1 + r2 / depth))
    note = f"R = {cost:.6g}, R0 = {r0}, R1 = {r1:.6g}, R2 = {r2:.6g}, L = {depth}"
    bound, empty = remainder_bound(product, depth, rtol=0.0), "" if r0 else "A = 0"
    return Sides(remainder, bound, "<=", 1e-8, cost, LINEAR, note, vacuous=empty, least=-math.inf)


@statement(
    "T4",
    "Jacobian bound",
    "L sum_k s_k(Jf(x))^{2/L} <= ||theta||^2",
    source="Jacot2023a section 3; Jacot2023b theorem 3",
)
def _jacobian_bound(facts: Facts) -> Sides:
    depth = facts.depth
    i = int(linalg.schatten(facts.jacobian_values, depth, facts.rtol).argmax())
    values = counted_values(facts, i)
    left = depth * float(linalg.schatten(values, depth, 0.0))
    note = _where(facts, i, f"rank {len(values)}")
    return Sides(left, facts.parameter_norm, assumptions=CHAIN, note=note)


@statement(
    "T7",
    "pseudo-determinant bound",
    "j L + 2 sum_{i <= j} log s_i(Jf(x)) <= ||theta||^2 for every j <= k = rank Jf(x); at j = k, k L + 2 log |Jf(x)|_+",
    source="Jacot2023b theorem 3, at finite depth",
)
def _pseudo_determinant_bound(facts: Facts) -> Sides:
    depth, counted = facts.depth, facts.counted_values
    i = int((depth + 2 * counted.log()).clamp(min=0).sum(1).argmax())
    sums = (depth + 2 * counted_values(facts, i).log()).cumsum(0)
    j = int(sums.argmax()) if len(sums) else 0
    left = float(sums[j]) if len(sums) else 0.0
    note = _where(facts, i, f"j = {j + 1} of {len(sums)}" if len(sums) else "Jf = 0")
    return Sides(left, facts.parameter_norm, scale=float(sums.abs().sum()), assumptions=CHAIN, note=note)


@statement(
    "T8",
    "second correction of a product",
    "R2(A)^{1/2} <= sum_l R2(W_l)^{1/2}, R2 = (1/2) ||log_+ A^T A||_F^2, A = W_L ... W_1",
    source="Jacot2023b proposition 4, for linear maps",
)
def _second_correction(facts: Facts) -> Sides:
    product = linear_corrections(_product(facts), 0.0)
    factors = [linear_corrections(weight, facts.rtol) for weight in facts.weights]
    ranks = [factor.R0 for factor in factors]
    assume(set(ranks) == {product.R0}, "layers have the rank of the product (equal R0)", f"ranks {ranks}, {product.R0}")
    scale = max(1.0, *(math.sqrt(2 * factor.R0 * factor.R2) for factor in factors))  # at least 2 sum_i |log s_i|
    gap = abs(sum(factor.R1 for factor in factors) - product.R1)
    assume(gap <= ALIGNED * scale, "R1 of the layers adds up to R1 of the product", f"they differ by {gap:.2g}")
    left, right = math.sqrt(product.R2), sum(math.sqrt(factor.R2) for factor in factors)
    # log s(A) is majorized by the sum of log s(W_l) and of the logs of cosines, which add up to -gap / 2
    tolerance = (gap / math.sqrt(2) + 1e-9 * scale) / max(left, right, scale)
    note = f"R2 of the product {product.R2:.6g}; rank {product.R0} in {len(ranks)} layers"
    return Sides(left, right, "<=", tolerance, scale, (*LINEAR, "equal R0", f"R1 adds up to {gap:.1e}"), note)


@statement(
    "T10",
    "two-point bound",
    "(L/2) (||Jf(x)||_{2/L}^{2/L} + ||Jf(y)||_{2/L}^{2/L}) + C^{-2} ||Jf(x) - Jf(y)||_* <= ||theta||^2",
    source="Jacot2023b proposition 13, corrected (E5)",
)
def _two_points(facts: Facts) -> Sides:
    assume(facts.chain.slope == 0, "the activation is ReLU", f"slope {facts.chain.slope:g}")
    found = two_point(facts.chain, facts.x.flatten(1), max_pairs=300, seed=facts.seed)
    note = (
        f"samples {found.pair[0]} and {found.pair[1]}, the best of {found.pairs} pairs; C = {found.constant:.6g}, "
        f"nuclear norm {found.difference:.6g}"
    )
    return Sides(float(found), facts.parameter_norm, assumptions=("a ReLU chain", "C >= 1"), note=note)


@statement(
    "T14",
    "balance of layers",
    "||W_l||_F^2 + ||b_l||^2 = ||W_{l+1}||_F^2",
    source="Jacot2023a appendix; Jacot2023b section 4",
)
def _balanced_layers(facts: Facts) -> Iterator[Sides]:
    return _balance(facts, layers=True)


@statement(
    "T14",
    "balance of neurons",
    "||W_l[i,:]||^2 + b_l[i]^2 = ||W_{l+1}[:,i]||^2",
    source="Jacot2023a appendix; Jacot2023b section 4",
)
def _balanced_neurons(facts: Facts) -> Iterator[Sides]:
    return _balance(facts, layers=False)


@statement(
    "T17b",
    "bound on every singular value",
    "s_k(Jf(x)) <= (||theta||^2 / (k L))^{L/2} for every k",
    source="Jacot2023a theorem 2 and section 4, for every k: follows from T4",
)
def _singular_value_bound(facts: Facts) -> Sides:
    depth, counted = facts.depth, facts.counted_values
    k = torch.arange(1, counted.shape[1] + 1).to(counted)
    bounds = (facts.parameter_norm / (k * depth)) ** (depth / 2)
    i = int((k * counted ** (2 / depth)).argmax()) // counted.shape[1]
    kept = counted_values(facts, i)
    if not len(kept):
        return Sides(0.0, float(bounds[0]), assumptions=CHAIN, note=_where(facts, i, "Jf = 0"))
    j = int((k[: len(kept)] * kept ** (2 / depth)).argmax())
    note = _where(facts, i, f"k = {j + 1} of {len(kept)}")
    return Sides(float(kept[j]), float(bounds[j]), assumptions=CHAIN, note=note)


def _where(facts: Facts, sample: int, detail: str) -> str:
    return f"sample {sample}, the closest of {len(facts.jacobian_values)}; {detail}; L = {facts.depth}"


def _product(facts: Facts) -> Tensor:
    """Return a diagonal matrix with lower bounds on the singular values of W_L ... W_1; for linear networks only."""
    assume(facts.chain.slope == 1, "the network is linear (slope 1)", f"slope {facts.chain.slope:g}")
    product = facts.weights[0]
    for weight in facts.weights[1:]:
        product = weight @ product
    _, error, _ = rounded(facts.chain, facts.x[0].flatten())
    return torch.diag(linalg.counted((torch.linalg.svdvals(product) - error).clamp(min=0.0), facts.rtol))


def _balance(facts: Facts, *, layers: bool) -> Iterator[Sides]:
    """Yield squared norms of incoming and outgoing weights; a non-zero gradient explains part of their difference."""
    # factors e^t in and e^-t out preserve f: <grad, direction> = 2 lambda (in - out), ||direction||^2 = in + out
    assume(facts.depth > 1, "there are hidden neurons", "the network has one layer")
    norms = balance.norms(facts.weights, facts.biases)
    incoming, outgoing = (torch.cat([v.sum()[None] if layers else v for v in side]) for side in norms)
    neurons = [f"layer {layer}, neuron {i}" for layer, v in enumerate(norms[0], 1) for i in range(len(v))]
    names = [f"layer {layer}" for layer in range(1, facts.depth)] if layers else neurons
    penalty, ratio = facts.penalty, facts.stationarity
    large = f"||gradient|| / (||grad C|| + ||2 lambda theta||) = {ratio:.2g}, more than {STATIONARY:g}"
    assume(ratio <= STATIONARY, "the network is a stationary point of C + lambda ||theta||^2", large)
    assumptions = (f"stationary: {ratio:.1e} <= {STATIONARY:g}", f"lambda = {penalty:g}")
    total = incoming + outgoing
    allowed = facts.gradient_norm * total.sqrt() / (2 * penalty) + 1e-9 * total
    average = float(total.mean()) / 2
    for name, *sides in zip(names, incoming.tolist(), outgoing.tolist(), allowed.tolist(), strict=True):
        left, right, explained = sides
        note = f"{name}, the furthest of {len(names)}; the gradient allows a difference of {explained:.2g}"
        yield Sides(left, right, "=", BALANCED, average, assumptions, note, explained)
