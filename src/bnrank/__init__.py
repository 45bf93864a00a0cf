"""Measure, train, check and use the bottleneck structure of deep networks."""

from bnrank import networks, tasks
from bnrank.networks import MLP

__version__ = "0.1.0"

__all__ = ["MLP", "__version__", "networks", "tasks"]
