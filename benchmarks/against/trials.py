"""Measuring cell by cell, each stored when it is done, and intervals over seeds."""

from __future__ import annotations

import functools
import importlib
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from bnrank.training.ensemble import Workers
from bnrank.training.sweeping.engines import engine, run_calls

__all__ = [
    "Interval",
    "Kept",
    "append",
    "attempt",
    "by_system",
    "failures",
    "flat",
    "interval",
    "key",
    "markdown",
    "reduced",
    "run",
    "seeds",
    "stored",
    "wilson",
]

RESAMPLES = 4000
DIGITS = 6  # of numbers that are kept for the pages
NORMAL = 1.959964  # two-sided 95 percent

Result = dict[str, Any]


class Interval(NamedTuple):
    """An estimate, the ends of its 95 percent interval (nan where one value gives none), and how many values."""

    estimate: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        """Write ``estimate [low, high]``, each number in the format given (".3g" if none)."""
        spec = spec or ".3g"
        if not self.n:
            return "–"
        ends = f" [{self.low:{spec}}, {self.high:{spec}}]" if np.isfinite([self.low, self.high]).all() else ""
        return f"{self.estimate:{spec}}{ends}"


class Kept(NamedTuple):
    """What the pages keep of the cells of a subject: fields of the results of methods.

    Attributes
    ----------
    fields : tuple of str
        Names of the numbers; a reason in ``failed`` is always kept.
    methods : tuple of str
        Names of the methods.
    group : str or None
        Field of the cells: cells in which it is the same are of one run. None: all cells are.
    """

    fields: tuple[str, ...]
    methods: tuple[str, ...]
    group: str | None = None


def reduced(lines: Sequence[Result], kept: Kept) -> list[Result]:
    """Return cell and results of every line with some methods and fields only, the last line of a cell measured twice.

    Examples
    --------
    >>> line = {"cell": {"seed": 0}, "results": [{"method": "a", "error": 1 / 3, "more": 1}, {"method": "b"}]}
    >>> reduced([line], Kept(("error",), ("a",)))
    [{'cell': {'seed': 0}, 'results': [{'method': 'a', 'error': 0.333333}]}]
    """

    def short(value: Any) -> Any:
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    names = {"method", "failed", *kept.fields}
    return [
        {
            "cell": line["cell"],
            "results": [
                {name: short(value) for name, value in result.items() if name in names}
                for result in line["results"]
                if result["method"] in kept.methods
            ],
        }
        for line in {key(line["cell"]): line for line in lines}.values()
    ]


def flat(lines: Sequence[Result]) -> list[Result]:
    """Return one dictionary per cell and method, with the entries of both."""
    return [{**line["cell"], **result} for line in lines for result in line["results"]]


def by_system(results: Sequence[Result], names: Iterable[str]) -> dict[tuple[str, float], list[Result]]:
    """Return the results of every system and noise that was measured, in the order of the names."""
    rows = [(name, noise) for name in names for noise in sorted({r["noise"] for r in results})]
    chosen = {row: [r for r in results if (r["system"], r["noise"]) == row] for row in rows}
    return {row: some for row, some in chosen.items() if some}


def seeds(cases: Iterable[Sequence[Result]]) -> str:
    """Return how many seeds the cases of a table have, in words; cases without results are left out.

    Examples
    --------
    >>> seeds([[{"seed": 0}, {"seed": 1}], [{"seed": 0}], []])
    '1 to 2 seeds'
    """
    numbers = [len({result["seed"] for result in results}) for results in cases if results]
    few, many = min(numbers), max(numbers)
    return f"{few if few == many else f'{few} to {many}'} seed{'s' * (many > 1)}"


def failures(results: Sequence[Result]) -> str:
    """Return which methods failed how often and why; nothing where none did."""
    told = Counter((r["method"], r["failed"]) for r in results if "failed" in r)
    of = Counter(r["method"] for r in results)
    reasons = [f"{method} in {n} of {of[method]} cells ({why})" for (method, why), n in told.items()]
    return f"Failed: {'; '.join(reasons)}." if reasons else ""


def wilson(successes: int, n: int) -> Interval:
    """Return a share with Wilson's 95 percent interval, which also holds near 0 and 1 and for small n.

    Examples
    --------
    >>> f"{wilson(9, 10):.2f}"
    '0.90 [0.60, 0.98]'
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes: got {successes} of {n}, expected between 0 and n")
    if not n:
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    share, z2 = successes / n, NORMAL**2
    center = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL / (1 + z2 / n) * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Interval(share, max(0.0, float(center - half)), min(1.0, float(center + half)), n)


def interval(values: Sequence[float], of: Callable[..., Any] = np.mean) -> Interval:
    """Return the mean (or ``of=np.median``) with a 95 percent interval from resampling the values.

    The ends are percentiles of 4,000 resamples, drawn from a fixed seed. One value has no interval.

    Raises
    ------
    ValueError
        If a value is not finite: a method that failed is counted apart, not averaged away.

    Examples
    --------
    >>> found = interval([1.0, 2.0, 3.0, 4.0])
    >>> found.estimate, 1.0 <= found.low < 2.5 < found.high <= 4.0, found.n
    (2.5, True, 4)
    """
    table = np.asarray(values, dtype=float)
    if not np.isfinite(table).all():
        raise ValueError(f"values: got {list(values)}, expected finite numbers")
    if len(table) < 2:
        return Interval(float(table[0]) if len(table) else float("nan"), float("nan"), float("nan"), len(table))
    drawn = table[np.random.default_rng(0).integers(len(table), size=(RESAMPLES, len(table)))]
    low, high = np.quantile(of(drawn, axis=1), [0.025, 0.975])
    return Interval(float(of(table)), float(low), float(high), len(table))


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table.

    Examples
    --------
    >>> print(markdown(["method", "right"], [["bnrank", "0.90"]]))
    | method | right |
    | --- | --- |
    | bnrank | 0.90 |
    """
    for row in rows:
        if len(row) != len(headings):
            raise ValueError(f"rows: got {list(row)}, expected {len(headings)} entries as in {list(headings)}")
    lines = [list(headings), ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(entry).replace("|", "\\|") for entry in line) + " |" for line in lines)


def attempt(method: str, measure: Callable[[], Result]) -> Result:
    """Return what a method gives, with its name; where it is not installed, or raises, that stands in ``failed``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"method": method, **measure()}
    except ImportError as error:
        return {"method": method, "failed": f"not installed ({error.name or error})"}
    except Exception as error:  # a peer may fail in any way, and its row has to say so
        return {"method": method, "failed": f"{type(error).__name__}: {str(error)[:200]}"}


def run(
    subject: str,
    out: Path,
    quick: bool = False,
    minutes: float | None = None,
    package: str = __package__,
    executor: Any = None,
    chosen: Callable[[Result], bool] | None = None,
) -> str:
    """Measure the cells of a subject that are not in ``out/<subject>.jsonl`` yet, and return its tables.

    Only cells for which ``chosen`` is true are measured; the tables show all that are stored. A cell is stored at once
    when it is done. After ``minutes`` no further cell is begun. To measure all again, delete the file. A cell for which
    a package is not installed is named and left for a later run. An executor, as that of `bnrank.sweep`, measures
    several cells at once; one whose worker died is measured again. Wall times among the results are then those of
    workers that share a machine.
    """
    module = importlib.import_module(f"{package}.{subject}")
    out.mkdir(parents=True, exist_ok=True)
    path, cells = out / f"{subject}.jsonl", module.cells(quick)
    done = stored(path)
    began, end = time.perf_counter(), None if minutes is None else time.time() + 60 * minutes
    missing = [cell for cell in cells if key(cell) not in done and (chosen is None or chosen(cell))]

    def keep(number: int, found: tuple[list[Result], float] | None) -> None:
        if found is None:
            return
        cell, (results, seconds) = missing[number], found
        done[key(cell)] = line = {"cell": cell, "results": _checked(cell, results)}
        append(path, line | {"seconds": round(seconds, 3)})
        print(f"{subject}: {len(done)}/{len(cells)} in {time.perf_counter() - began:.0f} s: {key(cell)}", flush=True)

    calls = [functools.partial(_measured, f"{package}.{subject}", cell, end) for cell in missing]
    if executor is not None:
        run_calls(calls, engine(executor), keep)
    else:
        for number, call in enumerate(calls):
            keep(number, call())
    there = [done[key(cell)] for cell in cells if key(cell) in done]
    head = f"{len(there)} of {len(cells)} cells measured" + (" (quick)" if quick else "") + ".\n\n"
    return head + module.tables(flat(there))


def _measured(module: str, cell: Result, end: float | None) -> tuple[list[Result], float] | None:
    """Return the results of a cell and the wall time, on one thread; nothing after ``end`` or without its package."""
    if end is not None and time.time() > end:
        return None
    start = time.perf_counter()
    with threadpool_limits(1), Workers(1):
        measuring = importlib.import_module(module)
        try:
            results = measuring.measure(cell)
        except ModuleNotFoundError as error:
            print(f"not measured: {key(cell)} ({error})", flush=True)
            return None
    return results, time.perf_counter() - start


def stored(path: Path) -> dict[str, Result]:
    """Return the cells stored in a file by their key; a last line that was cut off is removed from the file."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        with path.open("rb+") as file:
            file.truncate(len(whole))
    lines = [json.loads(line) for line in whole.splitlines()]
    return {key(line["cell"]): line for line in lines}


def append(path: Path, line: Result) -> None:
    """Append a cell to a file, and wait until it is on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=float) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _checked(cell: Result, results: list[Result]) -> list[Result]:
    for result in results:
        if "method" not in result or (clash := cell.keys() & result.keys()):
            wrong = f"keys of the cell {sorted(clash)}" if "method" in result else "no method"
            raise ValueError(f"measure: got a result with {wrong}: {result}")
    return json.loads(json.dumps(results, default=float))


def key(cell: Result) -> str:
    """Return the text that identifies a cell."""
    return json.dumps(cell, sort_keys=True)
