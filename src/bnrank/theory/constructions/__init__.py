"""Explicit networks with the function and the norm predicted by the theory (T29 to T33)."""

from bnrank.theory.constructions.composition import add, bottleneck, compose, deepen, identity
from bnrank.theory.constructions.interpolant import line_interpolant
from bnrank.theory.constructions.linear_maps import completely_positive, diagonal, linear
from bnrank.theory.constructions.piecewise import cross, diverging_geodesic, max_of_affine, wavering, with_slope

__all__ = [
    "add",
    "bottleneck",
    "completely_positive",
    "compose",
    "cross",
    "deepen",
    "diagonal",
    "diverging_geodesic",
    "identity",
    "line_interpolant",
    "linear",
    "max_of_affine",
    "wavering",
    "with_slope",
]
