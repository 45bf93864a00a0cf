"""Fitting the estimator to a table, the verdict, and the tables of verdicts."""

from __future__ import annotations

import inspect
import statistics
import time
import warnings
from typing import Any

from benchmarks.against.trials import markdown, wilson
from benchmarks.dependence.table import Table
from benchmarks.dependence.tables import KINDS, SUITES, draw

__all__ = ["judge", "measure", "report", "verdict"]

Result = dict[str, Any]
PREAMBLE = """\
Counts of tables whose rows depend on each other. Flagged: `undetermined_`, whatever the count. Right: the count is the
truth, and not flagged. Wrong: another count, not flagged, or an error. Seconds are processor time of a fit on one
thread, median and largest."""


def verdict(truth: int, count: int, undetermined: bool) -> str:
    """Return "flagged" for an undetermined count, else "right" for the truth and "wrong" for another count."""
    if undetermined:
        return "flagged"
    return "right" if count == truth else "wrong"


def judge(table: Table, seed: int = 0) -> Result:
    """Return what `bnrank.discovery.BottleneckRegressor`, as it comes, finds on a table, and the verdict.

    ``groups`` are passed where the table has some and ``fit`` takes them.
    """
    from bnrank.discovery import BottleneckRegressor

    regressor = BottleneckRegressor(progress=False, random_state=seed)
    given = table.groups is not None and "groups" in inspect.signature(regressor.fit).parameters
    options = {"groups": table.groups} if given else {}
    result: Result = {"truth": table.truth, "groups": given, "shape": [*table.x.shape, table.y.shape[1]]}
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = regressor.fit(table.x, table.y, **options)
    except Exception as error:  # a table that cannot be fitted is a wrong answer, and its row says why
        result |= {"verdict": "wrong", "failed": f"{type(error).__name__}: {str(error)[:200]}"}
    else:
        count, undetermined = int(fitted.n_components_), bool(fitted.undetermined_)
        held_out = [float(fitted.held_out_[k]) for k in (0, count)]
        result |= {
            "verdict": verdict(table.truth, count, undetermined),
            "count": count,
            "undetermined": undetermined,
            "interval": [int(end) for end in fitted.n_components_interval_],
            "r2": 1 - held_out[1] / held_out[0],
            "model": fitted.model_,
            "reason": fitted.reason_,
        }
    return result | {"seconds": time.process_time() - began}


def measure(cell: Result) -> Result:
    """Draw the table of a cell (kind, number and seed) and judge the fit; where the kind needs a package, say so."""
    try:
        table = draw(cell["kind"], cell["number"], cell["seed"])
    except ImportError as error:
        return {"skipped": f"not installed ({error.name or error})"}
    return judge(table, cell["seed"])


def report(results: list[Result]) -> str:
    """Return a table per suite, a row per kind and their sum, from results together with their cells."""
    parts = [PREAMBLE]
    for name, suite in SUITES.items():
        chosen = [r for r in results if KINDS[r["kind"]] == name]
        if not chosen:
            continue
        rows = [_row(kind, own) for kind in suite.kinds if (own := [r for r in chosen if r["kind"] == kind])]
        headings = ["kind", "tables", "right", "flagged", "wrong", "share wrong", "count (truth)", "seconds"]
        parts += [f"## {name}", markdown(headings, [*rows, [*_row("all", chosen)[:6], "", _seconds(chosen)]])]
        wrong = sum(r["verdict"] == "wrong" for r in chosen)
        met = "met" if wrong <= suite.at_most * len(chosen) else "missed"
        parts.append(f"Target: at most {suite.at_most:.0%} wrong. {wrong} of {len(chosen)}: {met}.")
    if failed := [r for r in results if "failed" in r]:
        cells = [[r["kind"], r["number"], r["failed"]] for r in failed]
        parts += ["## Errors", markdown(["kind", "number", "error"], cells)]
    return "\n\n".join(parts)


def _row(kind: str, results: list[Result]) -> list[str]:
    """Return a row; undetermined counts carry a question mark, errors are an x."""
    numbers = [sum(r["verdict"] == v for r in results) for v in ("right", "flagged", "wrong")]
    found = [f"{r.get('count', 'x')}{'?' * r.get('undetermined', False)} ({r['truth']})" for r in results]
    counts = ", ".join(f"{found.count(f)} × {f}" for f in sorted(set(found)))
    share = f"{wilson(numbers[2], len(results)):.2f}"
    return [kind, str(len(results)), *map(str, numbers), share, counts, _seconds(results)]


def _seconds(results: list[Result]) -> str:
    times = [r["seconds"] for r in results]
    return f"{statistics.median(times):.3g}, {max(times):.3g}"
