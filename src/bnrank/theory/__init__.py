"""What should hold: ranks, representation costs, and statements that return verdicts."""

from bnrank.theory import cost, escape, invariants, kernels, rank, stability, structure, symmetry
from bnrank.theory.facts import Facts
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
    "Inconclusive",
    "NotApplicable",
    "Sides",
    "Statement",
    "Verdict",
    "Verdicts",
    "assume",
    "assuming",
    "check",
    "cost",
    "escape",
    "invariants",
    "kernels",
    "rank",
    "stability",
    "statement",
    "structure",
    "symmetry",
]
