"""Statements about the features of layers at a stationary point (T50)."""

import math
from collections.abc import Iterator

import numpy as np

from bnrank.theory.convergence import of_evaluation, sides
from bnrank.theory.facts import Facts
from bnrank.theory.statements.representation import STATIONARY
from bnrank.theory.verdicts import NotApplicable, Sides, assume, statement

MATCHED = 1e-6  # largest relative error of features at a stationary point


@statement(
    "T50",
    "features at convergence",
    "||W_l^T W_l - F_l||_F / (||W_l^T W_l||_F + ||F_l||_F) = 0, F_l = -(1/(2 lambda N)) sum_i g_i a_i^T, "
    "a_i the layer's input, g_i the gradient of C_i by it",
    source="BoixAdsera2026, from stationarity",
)
def _features(facts: Facts) -> Iterator[Sides]:
    penalty, chain = facts.penalty, facts.chain
    facts.data_loss  # noqa: B018  (raises without targets)
    found = facts.subgradient
    if found is None:
        raise NotApplicable("few preactivations are 0")
    ratio = facts.stationarity
    large = f"relative gradient {ratio:.2g}, more than {STATIONARY:g}"
    assume(ratio <= STATIONARY, "the network is a stationary point of C + lambda ||theta||^2", large)
    problem = facts.problem
    layers = problem.layers(chain)
    at = found.evaluation(problem, layers)
    both = of_evaluation(at, ratio)
    for number, (error, layer) in enumerate(zip(both.errors.tolist(), layers, strict=True)):
        _, _, size = sides(at, number)
        # the difference is W_l^T (grad C + 2 lambda [W_l, b_l]) / (2 lambda)
        largest = float(np.linalg.norm(layer[:, : len(both.features[number])], 2)) if layer.size else 0.0
        explained = largest * facts.gradient_norm / (2 * penalty * size) if size > 0 else 0.0
        correlation = both.correlations[number]
        shown = "" if math.isnan(correlation) else f"; correlation with the gradient outer product {correlation:.4f}"
        note = f"layer {number + 1}, the furthest of {len(layers)}; the gradient allows {explained:.2g}{shown}"
        assumptions = (f"stationary: {ratio:.1e} <= {STATIONARY:g}", f"lambda = {penalty:g}")
        empty = "all terms are 0" if size == 0 else ""
        yield Sides(error, 0.0, "=", MATCHED, 1.0, assumptions, note, explained, vacuous=empty)
