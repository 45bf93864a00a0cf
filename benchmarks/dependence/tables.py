"""Tables whose rows depend on each other, drawn from the kind, the number and the seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.dependence import related, unrelated
from benchmarks.dependence.table import Table

__all__ = ["KINDS", "SUITES", "draw", "listed"]


@dataclass(frozen=True)
class Suite:
    """Generators of tables by kind, and the target: the largest share of wrong counts."""

    kinds: dict[str, Callable[[np.random.Generator], Table]]
    at_most: float


SUITES = {"unrelated": Suite(unrelated.KINDS, 0.02), "related": Suite(related.KINDS, 0.10)}
KINDS = {kind: name for name, suite in SUITES.items() for kind in suite.kinds}


def draw(kind: str, number: int, seed: int) -> Table:
    """Return the table with this number of a kind; kind, number and seed determine it."""
    generator = np.random.default_rng([seed, zlib.crc32(kind.encode()), number])
    return SUITES[KINDS[kind]].kinds[kind](generator)


def listed(tables: int, kinds: list[str]) -> list[tuple[str, int]]:
    """Return kind and number of every table, the first of every kind first.

    Each suite has ``tables`` tables, spread evenly over all of its kinds. ``kinds`` selects from these, so that a
    selection measures the tables that the whole benchmark measures.
    """
    chosen = []
    for suite in SUITES.values():
        names = list(suite.kinds)
        chosen += [(names[i % len(names)], i // len(names)) for i in range(tables)]
    return sorted((c for c in chosen if c[0] in kinds), key=lambda c: c[1])
