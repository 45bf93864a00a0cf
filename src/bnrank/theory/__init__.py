"""What should hold: ranks, representation costs, and statements that return verdicts."""

from bnrank.theory import cost, escape, invariants, kernels, rank, stability, structure, symmetry
from bnrank.theory.check import check
from bnrank.theory.facts import Facts
from bnrank.theory.statements import STATEMENTS
from bnrank.theory.verdict import Verdict, Verdicts

__all__ = [
    "STATEMENTS",
    "Facts",
    "Verdict",
    "Verdicts",
    "check",
    "cost",
    "escape",
    "invariants",
    "kernels",
    "rank",
    "stability",
    "structure",
    "symmetry",
]
