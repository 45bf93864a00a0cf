"""Measures of networks."""

import importlib
from typing import TYPE_CHECKING, Any

from bnrank.measures import usage
from bnrank.measures.comparing import Comparison
from bnrank.measures.jacobian import JacobianRank
from bnrank.measures.kinks import KinkWarning
from bnrank.measures.profiles import describe, profile

if TYPE_CHECKING:
    from bnrank.measures.convergence import FeatureConvergence, feature_convergence

__all__ = [
    "Comparison",
    "FeatureConvergence",
    "JacobianRank",
    "KinkWarning",
    "describe",
    "feature_convergence",
    "profile",
    "usage",
]

_LATER = {  # imported on first use, with SciPy's optimizers
    **dict.fromkeys(("FeatureConvergence", "feature_convergence"), "convergence"),
}


def __getattr__(name: str) -> Any:
    """Import a module of this package on first use."""
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
