"""What gradient flow conserves: found for any feedforward module (T42 to T49)."""

from bnrank.theory.invariants.conserved import Conserved
from bnrank.theory.invariants.finding import Findings, find
from bnrank.theory.invariants.monitor import Monitor
from bnrank.theory.invariants.patterns import Pair
from bnrank.theory.invariants.tail import Tail, tail

__all__ = ["Conserved", "Findings", "Monitor", "Pair", "Tail", "find", "tail"]
