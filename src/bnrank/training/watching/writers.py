"""A file to which the measurements of a watch are appended while a training goes on."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from bnrank._core import files, validation
from bnrank._core.sources import as_path
from bnrank._core.sources import read as read_bytes
from bnrank.training.watching.quantities import LONG_NAMES, QUANTITIES
from bnrank.training.watching.records import Measured, Record, dataset

KEYS = ("step", "layer")


class CSVWriter:
    """Append measurements to a CSV file: one line per step and layer; half a line at its end is removed.

    The lines of a measurement reach the disk before training goes on.

    Parameters
    ----------
    path : path
        The file; its folder must exist.
    columns : sequence of str
        The quantities; a file that is there must have the same ones.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self.path, self.columns = files.checked_path(path, "writers", ".csv"), list(columns)
        header = ",".join([*KEYS, *columns]).encode()
        with files.writing("writers", self.path), self.path.open("a+b") as file:
            file.seek(0)
            data = file.read()
            length = data.rfind(b"\n") + 1
            fits = data.startswith(header + b"\n") if length else header.startswith(data)
            got = f"{str(self.path)!r} with other columns"
            validation.expect(fits, "writers", got, "a new file, or one of a watch with the same columns")
            file.truncate(length)
        if not length:
            self._append([[*KEYS, *columns]])

    def __call__(self, measured: Measured) -> None:
        """Append the lines of one measurement."""
        rows = measured.rows.items()
        self._append(
            [[measured.step, layer, *(row.get(name, math.nan) for name in self.columns)] for layer, row in rows]
        )

    def _append(self, rows: Sequence[Sequence[object]]) -> None:
        lines = io.StringIO(newline="")
        csv.writer(lines, lineterminator="\n").writerows(rows)
        with files.writing("writers", self.path), self.path.open("ab") as file:
            file.write(lines.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())


def writer_of(writer: Any, what: Sequence[str]) -> Callable[[Measured], object]:
    """Return what takes every measurement: a function as it is, and for a path what appends to the CSV file there."""
    if isinstance(writer, str | os.PathLike):
        return CSVWriter(writer, [name for part in what for name in QUANTITIES[part]])
    expected = "a path of a CSV file, or a function of a measurement"
    validation.expect(callable(writer), "writers", writer, expected, TypeError)
    return writer


def read_csv(path: str | os.PathLike[str]) -> Record:
    """Return the measurements in a CSV file of :func:`bnrank.watch`; an unfinished last line is left out.

    Where steps start again, since a training was resumed or another one wrote into the file, the later lines count: the
    measurements before them that are of the same or of later steps are left out. ``.notes`` says so.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Record
        ``.history`` over (step, layer), ``.plot()``, ``.to_frame()``.

    Raises
    ------
    TypeError, ValueError
        If the file is missing or was not written by a watch.

    Examples
    --------
    >>> import tempfile, bnrank, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with bnrank.watch(torch.nn.Linear(3, 2), writers=f"{folder}/watch.csv") as watch:
    ...         measured = watch.step()
    ...     bnrank.training.read_csv(f"{folder}/watch.csv").history.step.values.tolist()
    [1]
    """
    import pandas as pd

    path = as_path(path, "path")
    data = read_bytes(path, "path")
    try:
        whole = io.BytesIO(data[: data.rfind(b"\n") + 1])
        lines = pd.read_csv(whole, dtype={"layer": str}, float_precision="round_trip")
        if tuple(lines.columns[:2]) != KEYS or not set(lines.columns[2:]) <= set(LONG_NAMES):
            raise ValueError(f"columns {list(lines.columns)}")
        lines = lines.astype({"step": int, **dict.fromkeys(lines.columns[2:], float)})
    except ValueError as error:
        raise ValueError(f"path: got {str(path)!r} ({error}), expected a CSV file of bnrank.watch") from error
    last = lines[lines["step"] <= lines["step"][::-1].cummin()[::-1]].drop_duplicates(list(KEYS), keep="last")
    notes = [f"left out: {len(lines) - len(last)} lines of steps that the file has again"] * (len(last) < len(lines))
    steps: dict[int, dict[str, dict[str, float]]] = {}
    for (step, layer), row in zip(last[list(KEYS)].to_numpy(), last.iloc[:, 2:].to_dict("records"), strict=True):
        steps.setdefault(step, {})[layer] = row
    what = [part for part, names in QUANTITIES.items() if set(names) & set(lines.columns)]
    measured = [Measured(step, rows) for step, rows in steps.items()]
    history = dataset(measured, list(last["layer"].unique()), what, {"title": path.name, "notes": "\n".join(notes)})
    return Record(history.drop_vars(["singular_values", "index"], errors="ignore"))
