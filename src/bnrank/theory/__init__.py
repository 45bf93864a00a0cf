"""What should hold: ranks, representation costs, and statements that return verdicts."""

from bnrank.theory import constructions, cost, escape, invariants, kernels, stability, structure, symmetry
from bnrank.theory.convergence import FeatureConvergence, feature_convergence
from bnrank.theory.facts import Facts
from bnrank.theory.neurons.neurons import NeuronGraph, SignTree
from bnrank.theory.rank_bounds import RankBracket
from bnrank.theory.registry import STATEMENTS, check
from bnrank.theory.verdicts import (
    Inconclusive,
    NotApplicable,
    Sides,
    Statement,
    Verdict,
    Verdicts,
    assume,
    assuming,
    statement,
)

__all__ = [
    "STATEMENTS",
    "Facts",
    "FeatureConvergence",
    "Inconclusive",
    "NeuronGraph",
    "NotApplicable",
    "RankBracket",
    "Sides",
    "SignTree",
    "Statement",
    "Verdict",
    "Verdicts",
    "assume",
    "assuming",
    "check",
    "constructions",
    "cost",
    "escape",
    "feature_convergence",
    "invariants",
    "kernels",
    "stability",
    "statement",
    "structure",
    "symmetry",
]
