"""What is trained or brought in."""

from bnrank.networks.mlp import MLP

__all__ = ["MLP"]
