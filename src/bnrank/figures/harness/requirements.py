"""What a figure needs before it starts: memory and data sets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bnrank import tasks
from bnrank.figures.harness.figure import Figure

__all__ = ["DATA", "lacking", "memory"]

GB = 1e9
DATA: Mapping[str, Callable[[], object]] = {"mnist": lambda: tasks.mnist(n=1, n_test=0)}
"""Data set -> what loads it, from this machine or from the network, or raises what to fetch and where to put it."""


def lacking(figure: Figure, scale: str, known: dict[str, str] | None = None) -> str:
    """Say what a figure needs at a scale and cannot have; empty if nothing.

    ``known`` keeps why a data set cannot be had, so that it is looked for once.
    """
    needed, there = figure.gigabytes.get(scale), memory()
    if needed is not None and there is not None and there < needed:
        return f"not enough memory: scale {scale} needs {needed:.3g} GB, and there are {there:.3g} GB"
    known = {} if known is None else known
    for name in figure.data.get(scale, ()):
        if name not in known:
            known[name] = _absence(name)
        if known[name]:
            return f"data that scale {scale} needs: {known[name]}"
    return ""


def _absence(name: str) -> str:
    """Say why a data set cannot be had; empty if it can."""
    try:
        DATA[name]()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def memory(root: str | os.PathLike[str] = "/") -> float | None:
    """Return how many GB this process can have, those it has included; None where that cannot be told.

    The least of what the kernel says is available, what the control groups of the process leave (version 1 and 2;
    files kept in memory count as free there, as they do for the kernel), and what the limit on its addresses
    (``ulimit -v``) leaves. Where there is no /proc, what the machine has counts as available. ``root`` is where /proc
    and /sys are.
    """
    top = Path(root)
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        mapped, held = (int(pages) * page for pages in (top / "proc/self/statm").read_text().split()[:2])
        entries = dict(line.split(":", 1) for line in (top / "proc/meminfo").read_text().splitlines())
        left = [float(entries["MemAvailable"].split()[0]) * 1024, *_left(top)]
    except (OSError, KeyError, ValueError, IndexError, AttributeError):
        mapped = held = 0
        left = []
        with contextlib.suppress(OSError, ValueError, AttributeError):
            left.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    with contextlib.suppress(ImportError):
        import resource  # not on every system

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        left += [float(most - mapped)] if most != resource.RLIM_INFINITY else []
    return (min(left) + held) / GB if left else None


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
