"""Which samples a statement looks at, and the linear maps that a chain applies there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bnrank.theory.facts import Facts
from bnrank.theory.path import Path, paths
from bnrank.theory.verdicts import NotApplicable

__all__ = ["FEW", "ROWS", "evenly", "looked", "sample_paths", "smooth_rows"]

ROWS = 16  # samples looked at where each takes decompositions of every layer
FEW = 4  # samples looked at where each takes a backward pass per output


def evenly(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` evenly spaced numbers below ``count``."""
    return [int(i) for i in torch.linspace(0, count - 1, min(limit, count)).round()]


def smooth_rows(facts: Facts, limit: int = ROWS, *, parameters: bool = False) -> list[int]:
    """Return evenly spaced samples off the kinks, where f is differentiable; NotApplicable if there are none.

    Next to a kink two evaluations of the same Jacobian may take different sides. With ``parameters`` f must be
    differentiable in theta as well.
    """
    beside = facts.near_kinks
    if parameters:
        beside = beside | facts.near_parameter_kinks.to(beside.device)
    rows = (~beside).nonzero()[:, 0].tolist()
    if not rows:
        raise NotApplicable("some sample is off the kinks", f"all {len(facts.x)} are on kinks")
    return [rows[i] for i in evenly(len(rows), limit)]


def looked(facts: Facts, limit: int = ROWS, *, parameters: bool = False) -> str:
    """Say how many samples were looked at."""
    return f"{len(smooth_rows(facts, limit, parameters=parameters))} of {len(facts.x)} samples looked at"


def sample_paths(facts: Facts, limit: int = ROWS, *, parameters: bool = False) -> Iterator[tuple[int, Path]]:
    """Iterate over samples off the kinks with the maps that the chain applies there."""
    rows = smooth_rows(facts, limit, parameters=parameters)
    return zip(rows, paths(facts.weights, facts.slopes, rows), strict=True)
