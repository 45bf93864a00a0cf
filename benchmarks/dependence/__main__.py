"""Counts of tables with dependent rows: ``python -m benchmarks.dependence [--tables N] [--seed S] [--kinds KIND ...]``.

Two suites: unrelated tables (the truth is 0) and real relations. A table is stored as soon as it is measured; the same
command resumes. To measure another state of the library, give another file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.about import machine
from benchmarks.against.trials import append, key, stored
from benchmarks.dependence import judging
from benchmarks.dependence.tables import KINDS, SUITES, listed
from benchmarks.dependence.workers import measured


def main(words: list[str] | None = None) -> None:
    """Measure the tables that are not stored yet, and print a row per kind."""
    parser = argparse.ArgumentParser("python -m benchmarks.dependence", description=__doc__)
    parser.add_argument("--tables", type=int, default=200, help="of each suite, spread evenly over its kinds")
    parser.add_argument("--seed", type=int, default=0, help="of the tables")
    kinds = "; ".join(f"{name}: {', '.join(suite.kinds)}" for name, suite in SUITES.items())
    parser.add_argument("--kinds", nargs="+", default=[*SUITES], metavar="KIND", help=f"suites or kinds. {kinds}")
    parser.add_argument("--workers", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after them no further table is begun")
    parser.add_argument("--out", type=Path, default=Path("dependence.jsonl"), help="file of results, a line per table")
    chosen = parser.parse_args(words)
    if unknown := [name for name in chosen.kinds if name not in {*SUITES, *KINDS}]:
        parser.error(f"unknown kind {unknown[0]!r}, expected some of {', '.join([*SUITES, *KINDS])}")
    if chosen.workers < 1 or chosen.tables < 1:
        parser.error("--workers and --tables: expected positive numbers")

    wanted = [kind for kind, suite in KINDS.items() if kind in chosen.kinds or suite in chosen.kinds]
    cells = [{"kind": k, "number": i, "seed": chosen.seed} for k, i in listed(chosen.tables, wanted)]
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    done = stored(chosen.out)
    todo = [cell for cell in cells if key(cell) not in done]
    skipped = set()
    for cell, result in measured(todo, chosen.workers, 60 * chosen.minutes, judging.measure):
        if "skipped" in result:
            skipped.add(f"{cell['kind']}: {result['skipped']}")
            continue
        done[key(cell)] = line = {"cell": cell, "result": result}
        append(chosen.out, line)
        found = f"{result.get('count', result.get('failed'))} for {result['truth']}"
        print(f"{cell['kind']} {cell['number']}: {found}, {result['verdict']}, {result['seconds']:.1f} s", flush=True)
    there = [done[key(cell)] for cell in cells if key(cell) in done]
    print(f"\n# Counts with dependent rows\n\n{machine()}. {len(there)} of {len(cells)} tables, seed {chosen.seed}.\n")
    print(judging.report([line["cell"] | line["result"] for line in there]))
    for reason in sorted(skipped):
        print(f"\nSkipped: {reason}.")


if __name__ == "__main__":
    main()
