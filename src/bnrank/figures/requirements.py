"""What a figure needs before it starts: memory and data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bnrank import tasks
from bnrank.figures.base import Figure

__all__ = ["DATA", "lacking", "memory"]

GB = 1e9
DATA: Mapping[str, Callable[[], object]] = {"mnist": lambda: tasks.mnist(n=1, n_test=0)}
"""Data set -> what loads it, from this machine or from the network, or raises what to fetch and where to put it."""


def lacking(figure: Figure, scale: str) -> str:
    """Say what a figure needs at a scale and cannot have; empty if nothing."""
    needed, there = figure.gigabytes.get(scale), memory()
    if needed is not None and there is not None and there < needed:
        return f"not enough memory: scale {scale} needs {needed:.3g} GB, and there are {there:.3g} GB"
    for name in figure.data.get(scale, ()):
        try:
            DATA[name]()
        except (ValueError, OSError) as error:
            return f"data that scale {scale} needs: {error}"
    return ""


def memory(root: str | os.PathLike[str] = "/") -> float | None:
    """Return how many GB this process can have, those it has included; None where that cannot be told.

    The least of what the kernel says is available and what the control groups of the process leave (version 1 and 2;
    files kept in memory count as free there, as they do for the kernel). ``root`` is where /proc and /sys are.
    """
    top = Path(root)
    try:
        entries = dict(line.split(":", 1) for line in (top / "proc/meminfo").read_text().splitlines())
        free = float(entries["MemAvailable"].split()[0]) * 1024
        pages = int((top / "proc/self/statm").read_text().split()[1])
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return (min([free, *_left(top)]) + pages * os.sysconf("SC_PAGE_SIZE")) / GB


def _left(top: Path) -> Iterator[float]:
    """Return the bytes that each control group of this process with a limit leaves."""
    try:
        lines = (top / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, names = top / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = top / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):  # a limit of a group above holds too; a container may see the root only
            left = _left_of(base / group, *names)
            if left is not None:
                yield left


def _left_of(group: Path, limit: str, usage: str, cache: str) -> float | None:
    try:
        most, used = (group / limit).read_text().strip(), float((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return None if most == "max" else float(most) - used + float(stat.get(cache, 0))
    except (OSError, ValueError):
        return None
