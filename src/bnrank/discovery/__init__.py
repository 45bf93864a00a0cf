"""Latent variables of a table, symmetries of a function, and networks compressed to their bottleneck."""

from bnrank.discovery.adapters import RankPattern
from bnrank.discovery.compression import Certificate, Compressed, Timing
from bnrank.discovery.estimators import (
    BottleneckAutoencoder,
    BottleneckClassifier,
    BottleneckRegressor,
    NothingFoundWarning,
    Summary,
    Trial,
)
from bnrank.discovery.films import FilmSummary, StateVariables
from bnrank.discovery.power_products import DimensionlessGroups, PowerProduct, dimensionless_groups
from bnrank.discovery.symbolic import Formula, Formulas
from bnrank.discovery.symmetry_search import symmetries

__all__ = [
    "BottleneckAutoencoder",
    "BottleneckClassifier",
    "BottleneckRegressor",
    "Certificate",
    "Compressed",
    "DimensionlessGroups",
    "FilmSummary",
    "Formula",
    "Formulas",
    "NothingFoundWarning",
    "PowerProduct",
    "RankPattern",
    "StateVariables",
    "Summary",
    "Timing",
    "Trial",
    "dimensionless_groups",
    "symmetries",
]
