"""Compression with fine-tuning as in ``compression_tuned``, bnrank with ``zeros=True``; zeros stay zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.against.compression import Contest
from benchmarks.against.compression_cases import CASES
from benchmarks.against.compression_tables import tables
from benchmarks.against.compression_tuned import cells

__all__ = ["cells", "measure", "tables"]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train or load the network of a cell, compress it in all ways, and fine-tune."""
    trained = CASES[cell["case"]].trained(cell["seed"])
    return Contest(replace(trained, labels=None)).results_fine_tuned("zeros")
