"""Compression without fine-tuning as in ``compression_cut``, bnrank with ``completions=True``."""

from __future__ import annotations

from typing import Any

from benchmarks.against import trials
from benchmarks.against.compression import Contest
from benchmarks.against.compression_cases import CASES
from benchmarks.against.compression_cut import cells
from benchmarks.against.compression_tables import tables

__all__ = ["cells", "measure", "tables"]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train or load the network of a cell and compress it in all ways, without fine-tuning."""
    trained = CASES[cell["case"]].trained(cell["seed"])
    return Contest(trained, tuning=False, name=trials.key(cell)).results(False, completions=True)
