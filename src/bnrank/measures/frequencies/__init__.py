"""Convolutions frequency by frequency: singular values, ranks, kept frequencies (T28, F6)."""

from bnrank.measures.frequencies.values import (
    Grid,
    Kept,
    KeptFrequency,
    grid,
    kept,
    label,
    rank,
    weight_singular_values,
)

__all__ = ["Grid", "Kept", "KeptFrequency", "grid", "kept", "label", "rank", "weight_singular_values"]
