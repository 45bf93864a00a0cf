"""What a measurement was made with: the machine, the versions, the command."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from bnrank import __version__

__all__ = ["command", "machine"]

PLACES = ("--out", "--picture")  # options whose values only say where something is written


def machine() -> str:
    """Return the processor, its cores, the threads of PyTorch, and the versions of bnrank, PyTorch and Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return (
        f"{model}, {os.cpu_count()} cores, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}, "
        f"bnrank {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    )


def command(module: str, words: Sequence[str] | None = None) -> str:
    """Return the command that runs a module with these words (of this process by default), without ``--out FOLDER``.

    Examples
    --------
    >>> command("benchmarks", ["memory", "--out", "folder/", "--quick", "--picture=a.png"])
    'python -m benchmarks memory --quick'
    """
    kept, rest = [], iter(sys.argv[1:] if words is None else words)
    for word in rest:
        if word in PLACES:
            next(rest, None)
        elif not word.startswith(tuple(f"{place}=" for place in PLACES)):
            kept.append(word)
    return " ".join([f"python -m {module}", *kept])
