"""Two networks, layer by layer: weights, their difference, and representations."""

from bnrank.measures.comparing.result import Comparison

__all__ = ["Comparison"]
