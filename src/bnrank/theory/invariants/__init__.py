"""Conserved quantities of gradient flow, for any feedforward module (T42 to T49)."""

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.finding import Findings, find
from bnrank.theory.invariants.linear_tail import Tail, tail
from bnrank.theory.invariants.monitor import Monitor
from bnrank.theory.invariants.patterns import Pair

__all__ = ["Conserved", "Findings", "Monitor", "Pair", "Tail", "find", "tail"]
