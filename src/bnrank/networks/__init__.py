"""What is trained or brought in."""

from bnrank.networks import constructions
from bnrank.networks.chain import as_mlp
from bnrank.networks.files import load, load_module, save
from bnrank.networks.mlp import MLP, LinearNetwork, from_layers
from bnrank.networks.reading import Captured, Layer, Reading, Skipped, capture, read

__all__ = [
    "MLP",
    "Captured",
    "Layer",
    "LinearNetwork",
    "Reading",
    "Skipped",
    "as_mlp",
    "capture",
    "constructions",
    "from_layers",
    "load",
    "load_module",
    "read",
    "save",
]
