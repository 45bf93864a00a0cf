"""Compression without fine-tuning, on larger kinds of networks: the cells of ``compression`` that take a quarter hour.

The measurement and the tables are those of ``compression``; bnrank has three values of ``tol``, six where there are
classes, the others 32 strengths.
"""

from __future__ import annotations

from typing import Any

from benchmarks.against.compression import Contest
from benchmarks.against.compression_cases import CASES
from benchmarks.against.compression_tables import tables

__all__ = ["cells", "measure", "tables"]

KINDS = ("MNIST, MLP", "silero-vad", "BERT", "MNIST, CNN", "ViT")
SEEDS, QUICK_SEEDS = range(2, 12), range(2, 3)


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return seed by seed the kinds of networks; quick: one seed."""
    seeds = QUICK_SEEDS if quick else SEEDS
    return [{"seed": seed, "tuned": CASES[name].tuned, "case": name} for seed in seeds for name in KINDS]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train or load the network of a cell and compress it in all ways, without fine-tuning."""
    trained = CASES[cell["case"]].trained(cell["seed"])
    return Contest(trained, tuning=False).results(False)
