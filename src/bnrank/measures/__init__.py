"""What is measured: numbers only, no claims."""

from bnrank.measures import (
    balance,
    bottleneck,
    denoising,
    dependence,
    frequencies,
    nonlinearity,
    ntk,
    orbits,
    regions,
    representations,
    signs,
    spectra,
    stable_signs,
)
from bnrank.measures.jacobian import Jacobian, JacobianRank
from bnrank.measures.kinks import KinkWarning
from bnrank.measures.profile import describe, profile

__all__ = [
    "Jacobian",
    "JacobianRank",
    "KinkWarning",
    "balance",
    "bottleneck",
    "denoising",
    "dependence",
    "describe",
    "frequencies",
    "nonlinearity",
    "ntk",
    "orbits",
    "profile",
    "regions",
    "representations",
    "signs",
    "spectra",
    "stable_signs",
]
