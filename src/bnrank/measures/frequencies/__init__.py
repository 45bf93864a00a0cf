"""Convolutions and images frequency by frequency: singular values, ranks, kept frequencies, power (T28, F6)."""

from bnrank.measures.frequencies.activations import activation_power, activation_singular_values
from bnrank.measures.frequencies.grid import Grid, grid, label
from bnrank.measures.frequencies.keeping import Kept, KeptFrequency, kept
from bnrank.measures.frequencies.weights import rank, weight_singular_values

__all__ = [
    "Grid",
    "Kept",
    "KeptFrequency",
    "activation_power",
    "activation_singular_values",
    "grid",
    "kept",
    "label",
    "rank",
    "weight_singular_values",
]
