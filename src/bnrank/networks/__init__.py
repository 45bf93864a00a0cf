"""What is trained or brought in."""

from bnrank.networks.files import load, load_module, save
from bnrank.networks.mlp import MLP
from bnrank.networks.reading import Captured, Layer, Reading, Skipped, capture, read

__all__ = ["MLP", "Captured", "Layer", "Reading", "Skipped", "capture", "load", "load_module", "read", "save"]
