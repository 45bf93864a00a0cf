"""What is measured: numbers only, no claims."""

from bnrank.measures import (
    balance,
    bottleneck,
    denoising,
    dependence,
    frequencies,
    jacobian,
    nonlinearity,
    ntk,
    orbits,
    regions,
    representations,
    signs,
    spectra,
    stable_signs,
)
from bnrank.measures.profile import describe, profile

__all__ = [
    "balance",
    "bottleneck",
    "denoising",
    "dependence",
    "describe",
    "frequencies",
    "jacobian",
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
