"""What is measured: numbers only, no claims."""

from bnrank.measures import (
    balance,
    bottleneck,
    frequencies,
    jacobian,
    nonlinearity,
    ntk,
    regions,
    signs,
    spectra,
    stable_signs,
)
from bnrank.measures.profile import describe, profile

__all__ = [
    "balance",
    "bottleneck",
    "describe",
    "frequencies",
    "jacobian",
    "nonlinearity",
    "ntk",
    "profile",
    "regions",
    "signs",
    "spectra",
    "stable_signs",
]
