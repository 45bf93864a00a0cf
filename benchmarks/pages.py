"""Tables of the documentation, made from stored results: ``python -m benchmarks.pages [--store FOLDER ...] [--check]``.

A benchmark with ``--out FOLDER`` measures; ``--store FOLDER`` keeps what the pages show of it in ``docs/results``: of
``python -m benchmarks.against``, ``python -m benchmarks.minima``, ``python -m benchmarks.to_minima`` and ``python -m
benchmarks`` (speed), and of the folder ``reproduction/quick`` of ``bnrank reproduce all`` (the gallery). The tables are
then written into the pages, between marks that name the kind of table and the subjects. ``--check`` only says which
pages differ.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from types import ModuleType

from benchmarks import __main__ as speed
from benchmarks import continuation, gallery, landscape, minima, stored, to_minima
from benchmarks.against import (
    compression_shown,
    counting,
    counting_tables,
    directions,
    films,
    physics,
    prediction,
    trials,
)
from benchmarks.rows import Row as Measured
from benchmarks.rows import Spread
from benchmarks.stored import Row, Subject
from bnrank.figures import FIGURES

__all__ = ["rewritten", "store"]

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
MARK = re.compile(r"(<!-- results: ([\w ]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def _against(module: ModuleType) -> Subject:
    """Return how cells of a comparison are kept: in the order in which the benchmark has them, unknown ones last."""
    kept: trials.Kept = module.KEPT

    @functools.cache
    def order() -> dict[str, int]:
        return {trials.key(cell): number for number, cell in enumerate(module.cells(False))}

    return Subject(
        group=lambda row: "all" if kept.group is None else row["cell"][kept.group],
        rows=functools.partial(trials.reduced, kept=kept),
        place=lambda row: order().get(trials.key(row["cell"]), len(order())),
    )


def _place_of_speed(row: Row) -> int:
    return [*speed.SUBJECTS, row["subject"]].index(row["subject"])


COMPRESSION = Subject(itemgetter("network"), compression_shown.condensed, compression_shown.place)
SEEDS = Subject(itemgetter("seed"), list, itemgetter("seed"))
SUBJECTS = {
    "compression_cut": COMPRESSION,
    "speed": Subject(itemgetter("subject"), list, _place_of_speed),
    "counting": _against(counting),
    "directions": _against(directions),
    "prediction": _against(prediction),
    "physics": _against(physics),
    "films": _against(films),
    "minima": SEEDS,
    "minima_landscape": SEEDS,
    "minima_F1": Subject(itemgetter("depth"), list, itemgetter("depth")),
    "minima_F4": Subject(itemgetter("depth"), list, itemgetter("depth")),
    "minima_expansion": Subject(itemgetter("seed"), list, itemgetter("seed", "depth")),
    "minima_optimizers": SEEDS,
}


def store(folder: Path, results: Path = RESULTS) -> list[Path]:
    """Keep what the pages show of finished runs in a folder, with date, machine and versions; return the files.

    Rows of groups (networks, systems, seeds) that a run does not have stay as they are, with their own date.
    """
    written = [
        stored.keep(results, name, subject, about, lines)
        for name, subject in SUBJECTS.items()
        for about, lines in stored.runs(folder, name)
        if lines
    ]
    written += gallery.store(folder, results / "figures")
    if not written:
        raise ValueError(f"--store: {str(folder)!r} has no results of {', '.join(SUBJECTS)}, and no figures")
    return list(dict.fromkeys(written))


def rewritten(text: str, results: Path = RESULTS) -> str:
    """Return a page with its tables made anew from stored results; a mark names the kind of table and the subjects."""

    def table(match: re.Match[str]) -> str:
        kind, *subjects = match[2].split()
        found = {subject: stored.read(results, subject) for subject in subjects}
        origins = "\n".join(stored.origin(abouts) for abouts, _ in found.values())
        return f"{match[1]}{TABLES[kind]({name: rows for name, (_, rows) in found.items()})}\n\n{origins}\n{match[3]}"

    return MARK.sub(table, text)


def _speed(rows: Sequence[Row]) -> str:
    """Return a row per measured number, with its target."""
    lines = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("verdict", "value")}
        value = Spread(**row["value"]) if row["value"] else None
        lines.append([row["subject"], *Measured(value=value, **fields).cells()])
    return trials.markdown(["subject", *speed.HEADINGS], lines)


def _figures(rows: Sequence[Row]) -> str:
    """Return a row per figure."""
    lines = []
    for figure in FIGURES:
        row = next((row for row in rows if row["figure"] == figure.label), None)
        result = ["not stored", "–"]
        if row is not None:
            passed = sum(bool(claim["passed"]) for claim in row["claims"])
            result = [f"{passed} of {len(row['claims'])}", f"{row['seconds']:,.0f}"]
        lines.append([figure.id, figure.name, *result])
    return trials.markdown(["figure", "name", "claims reproduced", "seconds"], lines)


Table = Callable[[Mapping[str, Sequence[Row]]], str]


def _of_rows(table: Callable[[Sequence[Row]], str]) -> Table:
    """Return a table of the rows of one subject."""
    return lambda found: table([row for rows in found.values() for row in rows])


def _of_cells(table: Callable[[Sequence[Row]], str]) -> Table:
    """Return a table of the results of all methods on the cells of one subject."""
    return _of_rows(lambda rows: table(trials.flat(rows)))


TABLES: dict[str, Table] = {
    "each": compression_shown.each,
    "short": compression_shown.short,
    "speed": _of_rows(_speed),
    "figures": _of_rows(_figures),
    "correct": _of_cells(counting_tables.correct),
    "errors": _of_cells(counting_tables.errors),
    "recovery": _of_cells(counting_tables.recovery),
    "angles": _of_cells(directions.shown),
    "scores": _of_cells(prediction.shown),
    "counts": _of_cells(physics.counts),
    "own": _of_cells(physics.own),
    "draws": _of_cells(films.shown),
    "problems": _of_rows(minima.problems),
    "depths": _of_rows(minima.depths),
    "landscape": _of_rows(landscape.shown),
    "expansion": _of_rows(continuation.shown),
    "optimizers": _of_rows(to_minima.shown),
    "statements": _of_rows(continuation.judged),
}


def main() -> None:
    """Store results, write the pages, or check them."""
    parser = argparse.ArgumentParser("python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--store", type=Path, nargs="+", metavar="FOLDER", help="of results to keep in docs/results")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a page differs")
    arguments = parser.parse_args()
    for folder in arguments.store or []:
        print(*store(folder), sep="\n")
    differing = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            differing.append(page.name)
            if not arguments.check:
                page.write_text(new, encoding="utf-8")
    if differing:
        print(f"{'not as stored' if arguments.check else 'written'}: {', '.join(differing)}")
    sys.exit(bool(differing) and arguments.check)


if __name__ == "__main__":
    main()
