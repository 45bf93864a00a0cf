"""Convolutions and images frequency by frequency: singular values, ranks, kept frequencies, power (T28, F6)."""

from bnrank.measures.frequencies.modes import Grid, grid, label
from bnrank.measures.frequencies.values import (
    Kept,
    KeptFrequency,
    activation_power,
    activation_singular_values,
    kept,
    rank,
    weight_singular_values,
)

__all__ = ["Grid", "Kept", "KeptFrequency", "activation_power", "activation_singular_values", "grid", "kept", "label"]
__all__ += ["rank", "weight_singular_values"]
