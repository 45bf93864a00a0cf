"""``python -m benchmarks [subject ...] [--quick] [--device NAME] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import absolute
from benchmarks.about import command, machine
from benchmarks.rows import Row

SUBJECTS = (
    "ensemble",
    "jax_peer",
    "machine",
    "recording",
    "monitor",
    "watch",
    "optimizer",
    "memory",
    "jacobian",
    "balancing",
    "escape",
    "escape_flow",
    "damage",
    "fits",
    "sweep",
)
HEADINGS = ("what", "against", "result", "spread", "best", "target", "verdict", "note")
WIDTH = 180  # characters of the table where the output is not a terminal
STYLES = {"met": "green", "missed": "bold red", "reported": "dim", "skipped": "yellow"}


def main() -> None:
    """Measure the subjects asked for, print one table, and write it if asked to."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"from {', '.join(SUBJECTS)}; all without it")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter runs, under 3 minutes")
    parser.add_argument("--device", help="absolute times on this device, such as cuda, in place of the subjects")
    parser.add_argument("--out", type=Path, help="folder for results.md and results.json")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.subjects if name not in SUBJECTS]:
        parser.error(f"unknown subject {unknown[0]!r}, expected some of {', '.join(SUBJECTS)}")
    if arguments.device and arguments.subjects:
        parser.error("--device: measures its own list and takes no subjects")
    try:
        measured = absolute.checked(arguments.device) if arguments.device else None
    except ValueError as error:
        parser.error(str(error))
    names = ("absolute",) if measured else arguments.subjects or SUBJECTS

    console, began = Console(), time.perf_counter()
    rows: list[Row] = []
    with contextlib.suppress(KeyboardInterrupt), console.status("") as status:  # Ctrl-C: the table so far
        for name in names:
            status.update(f"measuring {name}")
            start = time.perf_counter()
            module = importlib.import_module(f"benchmarks.{name}")
            for row in module.measure(arguments.quick, *([measured] if measured else [])):
                rows.append(row)
                status.update(f"measuring {name}: {row.name} done")
            console.log(f"{name}: {time.perf_counter() - start:.0f} s")
    minutes = (time.perf_counter() - began) / 60
    where = f"{absolute.named(measured)}; " if measured else ""
    about = f"{machine()}; {where}{'quick, ' if arguments.quick else ''}{minutes:.1f} minutes"
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(table(rows, about))
    if arguments.out:
        write(rows, about, arguments.out)


def table(rows: list[Row], about: str) -> Table:
    """Lay the rows out for a terminal; ratios above 1 mean that bnrank is faster."""
    result = Table(title="bnrank benchmarks", caption=about, title_justify="left", caption_justify="left")
    for heading in HEADINGS:
        result.add_column(heading, justify="right" if heading in ("result", "spread", "best", "target") else "left")
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        last = following is None or following.subject != row.subject
        style = STYLES[row.verdict]
        cells = row.cells()
        cells[6] = f"[{style}]{cells[6]}[/]"
        result.add_row(*cells, end_section=last)
    return result


def write(rows: list[Row], about: str, folder: Path) -> None:
    """Write the table as Markdown and the numbers as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [about, "", "| " + " | ".join(HEADINGS) + " |", "| " + " | ".join("---" for _ in HEADINGS) + " |"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    (folder / "results.md").write_text("\n".join(lines) + "\n")
    numbers = {
        "command": command("benchmarks"),
        "about": about,
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }
    (folder / "results.json").write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
