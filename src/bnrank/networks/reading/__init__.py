"""One reading of a network: the matrices that it holds, and what enters and leaves each when it runs.

``matrices.py`` lists the matrices of a module, a state dict or a file; ``recording.py`` observes a run on a replica of
the module; ``layers.py`` joins both to the reading that measures use.
"""

from bnrank.networks.reading.capturing import (
    Captured,
    Taker,
    UnobservedError,
    capture,
    check_read,
    leaving_out,
    named,
    stream,
)
from bnrank.networks.reading.layers import Layer, Reading, read, read_function, read_or
from bnrank.networks.reading.matrices import Listing, Matrix, Other, blocks, listed, listing

__all__ = [
    "Captured",
    "Layer",
    "Listing",
    "Matrix",
    "Other",
    "Reading",
    "Taker",
    "UnobservedError",
    "blocks",
    "capture",
    "check_read",
    "leaving_out",
    "listed",
    "listing",
    "named",
    "read",
    "read_function",
    "read_or",
    "stream",
]
