"""Networks: built-in classes, files, and one reader of any module."""

from bnrank.networks import graph
from bnrank.networks.chain import Chain, as_mlp, read_chain
from bnrank.networks.convolutional import CircularConvolutional, Convolutional, LinearConvolutional, Window
from bnrank.networks.files import load, load_module, save
from bnrank.networks.mlp import MLP, LinearNetwork, from_layers
from bnrank.networks.reading import Captured, Layer, Listing, Matrix, Reading, capture, listing, read
from bnrank.networks.reasons import Skipped
from bnrank.networks.stack import (
    DiagonalBlock,
    FreeBlock,
    IdentityBlock,
    ResNetDiagonal,
    ResNetFree,
    ResNetIdentity,
    Stack,
)

__all__ = [
    "MLP",
    "Captured",
    "Chain",
    "CircularConvolutional",
    "Convolutional",
    "DiagonalBlock",
    "FreeBlock",
    "IdentityBlock",
    "Layer",
    "LinearConvolutional",
    "LinearNetwork",
    "Listing",
    "Matrix",
    "Reading",
    "ResNetDiagonal",
    "ResNetFree",
    "ResNetIdentity",
    "Skipped",
    "Stack",
    "Window",
    "as_mlp",
    "capture",
    "from_layers",
    "graph",
    "listing",
    "load",
    "load_module",
    "read",
    "read_chain",
    "save",
]
