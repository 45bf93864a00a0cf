"""Measures of networks."""

import importlib
from typing import Any

from bnrank.measures import usage
from bnrank.measures.comparing import Comparison
from bnrank.measures.jacobian import JacobianRank
from bnrank.measures.kinks import KinkWarning
from bnrank.measures.profiles import describe, profile

__all__ = [
    "Comparison",
    "JacobianRank",
    "KinkWarning",
    "describe",
    "profile",
    "usage",
]


def __getattr__(name: str) -> Any:
    """Import a module of this package on first use."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
