"""Requirements of a figure: memory and data sets."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bnrank import tasks
from bnrank._core import validation
from bnrank.figures.harness.figure import Figure

GB = 1e9
DATA: Mapping[str, Callable[[], object]] = {"mnist": lambda: tasks.mnist(n=1, n_test=0)}
"""Data set -> its loader, whose error says what to download and where to put it."""
VERSION_1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("", "memory.max", "memory.current", "inactive_file")
"""Folder, files of the limit and the usage, and name of the file cache, of control groups."""


def unscaled(figure: Figure, scale: str) -> str:
    """Return why a figure cannot be run at a scale for which it has no settings; empty if it has some."""
    scales = " and ".join(figure.settings) or "none"
    return "" if scale in figure.settings else f"no settings for scale {scale}; the figure has those for {scales}"


def lacking(figure: Figure, scale: str, known: dict[str, str]) -> str:
    """Return which requirement of a figure at a scale is not met; empty if all are.

    ``known`` caches why a data set is missing.
    """
    needed, available = figure.gigabytes.get(scale), memory()
    if needed is not None and available is not None and available < needed:
        return f"not enough memory: scale {scale} needs {needed:.3g} GB, and {available:.3g} GB are available"
    for name in figure.data.get(scale, ()):
        if name not in known:
            known[name] = ""
            try:
                DATA[validation.choice(name, "data", list(DATA))]()
            except (ValueError, OSError) as error:
                known[name] = str(error)
        if known[name]:
            return f"data that scale {scale} needs: {known[name]}"
    return ""


def memory(root: str | os.PathLike[str] = "/") -> float | None:
    """Return the memory available to this process in GB, including what it already uses; None if unknown.

    The minimum of the kernel's available memory, what the control groups of the process leave (versions 1 and 2; cached
    files count as free), and what the limit on addresses (``ulimit -v``) leaves. Without /proc, all memory of the
    machine counts as available. ``root`` is the parent of /proc and /sys.
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

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        left += [float(limit - mapped)] if limit != resource.RLIM_INFINITY else []
    return (min(left) + held) / GB if left else None


def _left(top: Path) -> Iterator[float]:
    """Yield the bytes left by each control group of this process that has a limit."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (top / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        place, limit, usage, cache = VERSION_2 if number == "0" else VERSION_1
        inner = Path(name.lstrip("/"))
        for parent in (inner, *inner.parents):  # limits of parents hold too; a container may see only the root
            group = top / "sys/fs/cgroup" / place / parent
            with contextlib.suppress(OSError, ValueError):
                maximum = (group / limit).read_text().strip()
                used = float((group / usage).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                if maximum != "max":
                    yield float(maximum) - used + float(stat.get(cache, 0))
