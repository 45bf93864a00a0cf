"""Running figures one after another: requirements, reuse of stored outcomes, and failures that stop no other figure."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bnrank import tasks
from bnrank._core.files import discard_partial, prepare_folder
from bnrank.figures.harness import gallery, store
from bnrank.figures.harness.figure import Figure, Outcome, describe

GB = 1e9
DATA: Mapping[str, Callable[[], object]] = {"mnist": lambda: tasks.mnist(n=1, n_test=0)}
"""Data set -> its loader, whose error says what to download and where to put it."""
VERSION_1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("", "memory.max", "memory.current", "inactive_file")
"""Folder, files of the limit and the usage, and name of the file cache, of control groups."""


def run_all(
    figures: Sequence[Figure],
    shown: Sequence[Figure],
    folder: Path,
    scale: str,
    progress: bool,
    resume: bool,
    on_start: Callable[[Figure], Any] | None = None,
    on_end: Callable[[Figure, Outcome], Any] | None = None,
) -> list[Outcome]:
    """Run figures or open their stored outcomes, and keep the page of all that are ``shown`` up to date.

    Figures that cannot run are reported before the first one starts.
    """
    prepare_folder(folder)
    discard_partial(folder, store.ABANDONED)
    data: dict[str, str] = {}
    refused: dict[str, str] = {}
    failed: dict[str, Outcome] = {}
    done: dict[str, Outcome] = {}
    write = partial(gallery.write, folder, scale, shown, refused, failed)

    def stored(figure: Figure) -> Outcome | None:
        own = folder / figure.name
        refused.pop(figure.name, None)
        why = store.refusal(own, figure.stamp(scale), resume)
        if not why and resume:
            with contextlib.suppress(ValueError):  # none, or a damaged one: run again
                outcome = Outcome.open(own)
                if not outcome.error:
                    return outcome
        why = why or lacking(figure, scale, data)
        if not why:
            return None
        refused[figure.name] = why
        return Outcome(figure.label, settings={"scale": scale}, error=why)

    for figure in figures:
        stored(figure)
    write()
    for figure in sorted(figures, key=lambda one: one.name not in refused):
        outcome = stored(figure)  # again: the figures before may have used up memory or disk space
        if outcome is None:
            if on_start is not None:
                on_start(figure)
            try:
                outcome = _run(figure, folder, scale, progress, resume)
            except KeyboardInterrupt:
                write()
                raise
            if outcome.error:
                failed[figure.name] = outcome
        write()
        done[figure.name] = outcome
        if on_end is not None:
            on_end(figure, outcome)
    return [done[figure.name] for figure in figures]


def _run(figure: Figure, folder: Path, scale: str, progress: bool, resume: bool) -> Outcome:
    """Run a figure and return its outcome as stored, or one that says why nothing could be stored."""
    try:
        figure.run(scale, folder, progress, resume)
        return Outcome.open(folder / figure.name)
    except Exception as problem:
        if store.is_full(problem):
            raise
        why = str(problem) if isinstance(problem.__cause__, OSError) else describe(problem)
        return Outcome(figure.label, settings={"scale": scale}, error=why)


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
                DATA[name]()
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
    path = top / "proc/self/cgroup"
    for line in path.read_text().splitlines() if path.exists() else ():
        number, controllers, name = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        place, limit, usage, cache = VERSION_2 if number == "0" else VERSION_1
        inner = Path(name.lstrip("/"))
        for parent in (inner, *inner.parents):  # limits of parents hold too; a container may see only the root
            group = top / "sys/fs/cgroup" / place / parent
            with contextlib.suppress(OSError, ValueError):
                maximum, used = (group / limit).read_text().strip(), float((group / usage).read_text())
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                if maximum != "max":
                    yield float(maximum) - used + float(stat.get(cache, 0))
