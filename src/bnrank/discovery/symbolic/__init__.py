"""Formulas for coordinates and outputs, by symbolic regression."""

from bnrank.discovery.symbolic.result import Formula, Formulas

__all__ = ["Formula", "Formulas"]
