"""Measures of networks."""

import importlib
from typing import TYPE_CHECKING, Any

from bnrank.measures import similarity, usage
from bnrank.measures.bottlenecks import bottleneck
from bnrank.measures.comparing import Comparison
from bnrank.measures.jacobian import Jacobian, JacobianRank
from bnrank.measures.kinks import KinkWarning
from bnrank.measures.profiles import describe, profile

if TYPE_CHECKING:
    from bnrank.measures.critical_points import Stationarity, stationarity

__all__ = [
    "Comparison",
    "Jacobian",
    "JacobianRank",
    "KinkWarning",
    "Stationarity",
    "bottleneck",
    "describe",
    "profile",
    "similarity",
    "stationarity",
    "usage",
]


def __getattr__(name: str) -> Any:
    """Import a module of this package on first use."""
    if name in ("Stationarity", "stationarity"):  # SciPy's optimizers are imported where they are needed
        return getattr(importlib.import_module(f"{__name__}.critical_points"), name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
