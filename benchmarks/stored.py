"""Results that the pages show: read from the folders of finished runs, merged by group, and kept in ``docs/results``.

A stored file has a line per run, with command, date, machine and the groups that are of this run, and a line per row.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.about import command, machine

__all__ = ["Row", "Stored", "Subject", "keep", "origin", "read", "runs", "writer"]

Row = dict[str, Any]
Stored = tuple[list[Row], list[Row]]  # runs, rows


@dataclass(frozen=True)
class Subject:
    """How the results of a subject are kept.

    Attributes
    ----------
    group : callable
        The group of a row, such as a network or a seed. A run replaces the groups that it has, and leaves the others,
        so that all rows of a group are of one run.
    rows : callable
        The rows to keep of the lines that a run has written.
    place : callable
        The sort key of a row.
    """

    group: Callable[[Row], Any]
    rows: Callable[[list[Row]], list[Row]]
    place: Callable[[Row], Any]


def writer(folder: Path | None, name: str, module: str) -> Callable[[Row], None]:
    """Begin a run in ``folder/<name>.jsonl``, behind those that are there; return a function that appends a row.

    Without a folder nothing is written.
    """

    def append(row: Row) -> None:
        if folder is not None:
            with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, default=float, ensure_ascii=False) + "\n")

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        today = datetime.datetime.now(datetime.UTC).date()
        append({"command": command(module), "date": str(today), "machine": machine()})
    return append


def runs(folder: Path, name: str) -> list[tuple[Row, list[Row]]]:
    """Return the runs of a subject in a folder, the earliest first: command, date and machine; and the lines written.

    Runs of `writer` have these in the file. Those of ``benchmarks.against`` have a page, written when a run ends, whose
    title has the words of the command and whose third line names the machine. Those of ``benchmarks`` are in
    ``results.json``, under the name of "speed".
    """
    path, page = folder / f"{name}.jsonl", folder / f"{name}.md"
    if name == "speed" and (measured := folder / "results.json").exists():
        times = json.loads(measured.read_text(encoding="utf-8"))
        return [({"command": times["command"], "date": _day(measured), "machine": times["about"]}, times["rows"])]
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    starts = [number for number, line in enumerate(lines) if "command" in line]
    if starts:
        ends = [*starts[1:], len(lines)]
        return [(lines[start], lines[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]
    if not page.exists():
        return []
    title, _, head = page.read_text(encoding="utf-8").splitlines()[:3]
    words, measured_on = title.partition(": ")[2].split(" "), head.partition(". ")[0]
    return [({"command": command("benchmarks.against", words), "date": _day(path), "machine": measured_on}, lines)]


def _day(path: Path) -> str:
    return str(datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date())


def keep(results: Path, name: str, subject: Subject, about: Row, lines: list[Row]) -> Path:
    """Keep the rows of a run; groups that it does not have stay as they are, with their own run. Return the file."""
    rows = subject.rows(lines)
    groups = _groups(subject, rows)
    path, abouts = results / f"{name}.jsonl", []
    if path.exists():
        older, others = read(results, name)
        others = [row for row in others if subject.group(row) not in groups]
        left = _groups(subject, others)
        abouts = [one | {"groups": [group for group in one["groups"] if group in left]} for one in older]
        rows = others + rows
    abouts = [one for one in [*abouts, about | {"groups": groups}] if one["groups"]]
    results.mkdir(parents=True, exist_ok=True)
    text = [json.dumps(line) for line in (*abouts, *sorted(rows, key=subject.place))]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def _groups(subject: Subject, rows: Sequence[Row]) -> list[Any]:
    return list(dict.fromkeys(subject.group(row) for row in rows))


def read(results: Path, name: str) -> Stored:
    """Return the runs and the rows of a subject; figures are a file each."""
    if name == "figures":
        rows = [json.loads(path.read_text(encoding="utf-8")) for path in (results / "figures").glob("*.json")]
        dates = sorted({row["date"] for row in rows})
        about = {"command": "bnrank reproduce all", "date": " to ".join(dict.fromkeys((dates[0], dates[-1])))}
        return [about | {"machine": "; ".join(sorted({row["machine"] for row in rows}))}], rows
    text = (results / f"{name}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if "command" in line], [line for line in lines if "command" not in line]


def origin(abouts: Sequence[Row]) -> str:
    """Return a line per run: command, date and machine, and its groups where there are several runs."""
    lines = []
    for about in abouts:
        which = f" ({_words(about['groups'])})" if len(abouts) > 1 else ""
        lines.append(f"`{about['command']}`{which}, {about['date']}: {about['machine']}.")
    return "\n".join(lines)


def _words(groups: Sequence[Any]) -> str:
    """Return the names of groups; seeds that follow each other as a range."""
    if len(groups) > 2 and all(isinstance(group, int) for group in groups):
        first, last = min(groups), max(groups)
        if last - first + 1 == len(groups):
            return f"{first} to {last}"
    return "; ".join(str(group) for group in groups)
