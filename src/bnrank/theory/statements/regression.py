"""Statements about regularized regression by linear networks (T17b)."""

from bnrank.theory.cost.tradeoff import least_linear_loss, linear_ranks
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import Sides, assume, statement


@statement(
    "T17b",
    "least loss of linear networks",
    "C_0 + sum_i min_s {c (s - m_i)^2 + lambda L s^{2/L}} <= C + lambda ||theta||^2, m_i and C_0 of the least-squares "
    "map, c the smallest nonzero eigenvalue of X^T X / N",
    source="Jacot2023b section 3.1, min over k of lambda L k + C + lambda R1, for linear maps at finite depth",
)
def _linear_loss(facts: Facts) -> Sides:
    y, ridge, depth = facts.targets, facts.penalty, facts.depth
    assume(facts.slope == 1 and not facts.biases, "a linear network without biases", f"slope {facts.slope:g}")
    assume(len(facts.x) == facts.samples, "all samples are checked", f"{len(facts.x)} of {facts.samples}")
    x = facts.x.flatten(1)
    left, right = least_linear_loss(x, y, ridge, depth), facts.data_loss + ridge * facts.parameter_norm
    ranks = linear_ranks(x, y, ridge, depth)
    note = f"rank {facts.rank}; lambda L k + C + lambda R1 is least at k = {ranks}, if X^T X / N = c I; L = {depth}"
    return Sides(left, right, "<=", 1e-9, float((y**2).sum()) / len(y), ("a linear network without biases",), note)
