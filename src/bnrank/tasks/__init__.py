"""Where data come from: maps of known rank, shapes in the plane, handwritten digits, the user's own tables.

Everything returns a :class:`Task`, on which the other rooms work.
"""

from bnrank.tasks.images import digits, handwritten_digits, mnist, parse_idx, two_digits
from bnrank.tasks.low_rank import ShallowReLU, bottleneck_spectra_map, low_rank_map
from bnrank.tasks.separable import separable
from bnrank.tasks.shapes import circle, inverted_s, s_shapes
from bnrank.tasks.tables import load_table
from bnrank.tasks.task import MissingDataError, Task, Truth

__all__ = [
    "MissingDataError",
    "ShallowReLU",
    "Task",
    "Truth",
    "bottleneck_spectra_map",
    "circle",
    "digits",
    "handwritten_digits",
    "inverted_s",
    "load_table",
    "low_rank_map",
    "mnist",
    "parse_idx",
    "s_shapes",
    "separable",
    "two_digits",
]
