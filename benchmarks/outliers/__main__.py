"""Counts of tables with outliers: ``python -m benchmarks.outliers [--tables N] [--seed S] [--kinds KIND ...]``.

Two parts: tables without outliers, which must remain as they are, and planted tables with 5 percent outliers. A planted
table is stored as soon as it is measured; the same command resumes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.about import machine
from benchmarks.against.trials import append, key, stored
from benchmarks.dependence.workers import measured
from benchmarks.outliers import judging
from benchmarks.outliers.tables import KINDS


def main(words: list[str] | None = None) -> None:
    """Measure the tables that are not stored yet, and print a row per kind."""
    parser = argparse.ArgumentParser("python -m benchmarks.outliers", description=__doc__)
    parser.add_argument("--tables", type=int, default=30, help="planted tables, with outliers of the kinds by turns")
    parser.add_argument("--clean", type=int, default=100, help="tables without outliers, of each kind; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of the tables")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], metavar="KIND", help=f"of outliers: {', '.join(KINDS)}")
    parser.add_argument("--both", action="store_true", help="also with robust=False")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after them no further table is begun")
    parser.add_argument("--out", type=Path, default=Path("outliers.jsonl"), help="file of results, a line per table")
    given = parser.parse_args(words)
    if unknown := [name for name in given.kinds if name not in KINDS]:
        parser.error(f"unknown kind {unknown[0]!r}, expected some of {', '.join(KINDS)}")
    if given.workers < 1 or given.tables < 0 or given.clean < 0:
        parser.error("--workers, --tables and --clean: expected positive numbers")

    cells = []
    for number in range(given.tables):
        cell = {"number": number, "seed": given.seed, "robust": True}
        plain, far = (cell | {"kind": kind} for kind in ("none", given.kinds[number % len(given.kinds)]))
        cells += [plain, far, *([far | {"robust": False}] if given.both else [])]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = stored(given.out)
    todo = [cell for cell in cells if key(cell) not in done]
    for cell, result in measured(todo, given.workers, 60 * given.minutes, judging.measure):
        done[key(cell)] = line = {"cell": cell, "result": result}
        append(given.out, line)
        print(f"{cell}: {result['count']} for {result['truth']}, {result['seconds']:.1f} s", flush=True)
    there = [done[key(cell)] for cell in cells if key(cell) in done]
    print(f"\n# Counts with outliers\n\n{machine()}. {len(there)} of {len(cells)} fits, seed {given.seed}.\n")
    print(judging.report([line["cell"] | line["result"] for line in there]))
    if given.clean:
        print(f"\n## Tables without outliers\n\n{judging.count(given.clean, given.seed)}")


if __name__ == "__main__":
    main()
