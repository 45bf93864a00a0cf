"""Memory that is free inside the process, given back to the operating system."""

import ctypes
from typing import Any

__all__ = ["give_back"]

try:
    _trim: Any = ctypes.CDLL(None).malloc_trim
except (AttributeError, OSError, TypeError):  # no glibc
    _trim = None


def give_back() -> None:
    """Return free memory of the C library's heap to the operating system, where it can be asked to.

    After many tensors of different sizes, glibc keeps what was freed between those in use, and the resident memory of a
    process grows to a multiple of what it uses. Elsewhere nothing happens.
    """
    if _trim is not None:
        _trim(0)
