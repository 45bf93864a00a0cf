"""What should hold: ranks, representation costs, and statements that return verdicts."""

from bnrank.theory import cost, escape, invariants, kernels, rank, stability, structure, symmetry
from bnrank.theory.facts import Facts
from bnrank.theory.registry import STATEMENTS, check
from bnrank.theory.verdicts import Verdict, Verdicts

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
