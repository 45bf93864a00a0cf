"""``python -m benchmarks.against [subject ...] [--quick] [--only CASE ...] [--seeds FIRST END] [--out FOLDER] ...``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from benchmarks.about import machine
from benchmarks.against import trials
from bnrank.training.sweeping.engines import NAMED, named_engine

SUBJECTS = (
    "counting",
    "directions",
    "physics",
    "films",
    "compression",
    "compression_cut",
    "prediction",
)


def chosen(only: Sequence[str] | None, seeds: Sequence[int] | None, cell: dict[str, Any]) -> bool:
    """Return whether a cell is of one of the cases and of a seed in the range; None stands for all."""
    named = only is None or any(value in only for value in cell.values())
    return named and (seeds is None or seeds[0] <= cell["seed"] < seeds[1])


def selection(arguments: argparse.Namespace, cells: Iterable[dict[str, Any]]) -> list[str]:
    """Return the words of a command that select cells: of a quick run, of some cases, of some seeds.

    Cases and seeds are left out where cells of other calls are stored, too.
    """
    words = ["--quick"] if arguments.quick else []
    if not all(chosen(arguments.only, arguments.seeds, cell) for cell in cells):
        return words
    if arguments.only is not None:
        words += ["--only", *map(shlex.quote, arguments.only)]
    return words if arguments.seeds is None else [*words, "--seeds", *map(str, arguments.seeds)]


def main() -> None:
    """Measure the subjects asked for on one thread, print their tables, and write them."""
    parser = argparse.ArgumentParser("python -m benchmarks.against", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"from {', '.join(SUBJECTS)}; all without it")
    parser.add_argument("--quick", action="store_true", help="few cells and seeds, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("against"), help="folder of results; what is there is kept")
    parser.add_argument("--minutes", type=float, help="of each subject: after them no further cell is begun")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cells of these cases, as the tables name them")
    parser.add_argument(
        "--seeds", type=int, nargs=2, metavar=("FIRST", "END"), help="cells of these seeds, without END"
    )
    parser.add_argument("--executor", help=f"that measures several cells at once: {NAMED}")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.subjects if name not in SUBJECTS]:
        parser.error(f"unknown subject {unknown[0]!r}, expected some of {', '.join(SUBJECTS)}")

    executor = None if arguments.executor is None else named_engine(arguments.executor)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for name in arguments.subjects or SUBJECTS:
            places = arguments.out, arguments.quick, arguments.minutes
            text = trials.run(name, *places, executor=executor, chosen=partial(chosen, arguments.only, arguments.seeds))
            cells = [line["cell"] for line in trials.stored(arguments.out / f"{name}.jsonl").values()]
            words = [name, *selection(arguments, cells)]
            text = f"# bnrank against others: {' '.join(words)}\n\n{machine()}. {text}\n"
            (arguments.out / f"{name}.md").write_text(text, encoding="utf-8")
            print(text)


if __name__ == "__main__":
    main()
