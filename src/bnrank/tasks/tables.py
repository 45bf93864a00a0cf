"""Tasks from the user's own tables."""

from __future__ import annotations

import csv
import math
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bnrank._core import validation
from bnrank.tasks.task import LOSSES, MissingDataError, Task

__all__ = ["load_table"]

ARRAYS = ("x", "y", "x_test", "y_test")
INTEGER = re.compile(r"[+-]?\d+")


def load_table(path: str | Path, targets: str | Sequence[str] | None = None, loss: str | None = None) -> Task:
    r"""Load a task from a file: .npz with arrays x and y, or .csv with a header and the names of the target columns.

    Parameters
    ----------
    path : str or Path
        An .npz file with arrays ``x`` (N, d_in) and ``y`` (N, d_out), and ``x_test`` and ``y_test`` if wanted (others
        are left alone, pickled objects are refused); or a .csv file, UTF-8, separated by commas, with one row of
        column names, all cells numbers. An array x or y of shape (N,) is taken as (N, 1).
    targets : str or sequence of str, optional
        The columns of a .csv that make up y, in this order; all others make up x. Not for .npz.
    loss : "mse", "cross_entropy" or "logistic", optional
        By default "cross_entropy" if y is one column or a one-dimensional array of integers (class numbers counted
        from 0), else "mse". Say "mse" for a count or any other integer that is a quantity, and "logistic" for labels
        -1 and 1.

    Returns
    -------
    Task
        x float32, y float32 or, for "cross_entropy", int64; named after the file.

    Raises
    ------
    MissingDataError
        If there is no such file.
    TypeError
        If arrays are not of numbers.
    ValueError
        If the file is damaged or of another kind, arrays or columns are missing (what is there is named), a row is
        too short or too long, a cell is not a number, data are NaN or infinite, or labels are not 0, 1, 2, ....

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trees.csv"
    ...     _ = path.write_text("height,girth,volume\n70,8.3,10.3\n65,8.6,10.3\n")
    ...     task = bnrank.tasks.load_table(path, targets="volume")
    >>> task.name, task.loss, task.x.shape, task.y.shape
    ('trees', 'mse', torch.Size([2, 2]), torch.Size([2, 1]))
    """
    path = Path(path)
    if loss is not None:
        validation.choice(loss, "loss", LOSSES)
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise ValueError(f"path: got {path.name!r}, expected a file name ending in .npz or .csv")
    if not path.is_file():
        raise MissingDataError(f"path: got {str(path)!r}, expected an existing file")
    names = [targets] if isinstance(targets, str) else list(targets or [])
    arrays = readers[path.suffix.lower()](path, names)

    y = arrays["y"]
    loss = loss or ("cross_entropy" if y.ndim == 1 and y.dtype.kind in "iu" else "mse")
    outputs, classes = [name for name in ("y", "y_test") if name in arrays], None
    if loss == "cross_entropy":
        arrays |= {name: _labels(arrays[name], name) for name in outputs}
        classes = 1 + max(int(arrays[name].max(initial=0)) for name in outputs)
        if classes > max(len(y), 2):
            raise ValueError(
                f"y: got labels up to {classes - 1} in {len(y)} samples, expected classes counted from 0; "
                "for a quantity, pass loss='mse'"
            )
    whole = outputs if loss == "cross_entropy" else []
    data = {name: torch.from_numpy(a if name in whole else _float32(a)) for name, a in arrays.items()}
    settings = {"path": str(path), "targets": names, "loss": loss}
    return Task(
        data["x"], data["y"], data.get("x_test"), data.get("y_test"), loss, path.stem, classes, settings=settings
    )


def _read_npz(path: Path, targets: list[str]) -> dict[str, np.ndarray]:
    if targets:
        raise ValueError(f"targets: got {targets}, expected none for .npz, where the array y holds the targets")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"path: got {path.name!r}, which is no .npz archive or a damaged one")
    arrays: dict[str, np.ndarray] = {}
    with np.load(path, allow_pickle=False) as archive:
        for required in ("x", "y"):
            if required not in archive.files:
                there = ", ".join(archive.files) or "nothing"
                raise ValueError(f"{path.name}: got arrays {there}, expected x and y; {required} is missing")
        for name in (name for name in ARRAYS if name in archive.files):
            try:
                arrays[name] = archive[name]
            except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(
                    f"{name}: got unreadable data in {path.name} ({error}), expected plain numbers; "
                    "arrays of Python objects are refused"
                ) from error
            if arrays[name].dtype.kind not in "biuf":
                raise TypeError(f"{name}: got dtype {arrays[name].dtype} in {path.name}, expected real numbers")
    return arrays


def _read_csv(path: Path, targets: list[str]) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"path: got {path.name!r}, which is no CSV file in UTF-8 ({error})") from error
    if len(rows) < 2:
        raise ValueError(f"{path.name}: got {len(rows)} rows, expected column names and at least one row of numbers")
    header = [name.strip() for name in rows[0][1]]
    columns = ", ".join(header)
    if len(set(header)) < len(header):
        raise ValueError(f"{path.name}: got columns {columns}, expected different names")
    if not targets:
        raise ValueError(f"targets: got none, expected the names of the columns that make up y, among {columns}")
    if len(set(targets)) < len(targets):
        raise ValueError(f"targets: got {targets}, expected each column once")
    for name in targets:
        if name not in header:
            raise ValueError(
                f"targets: got {name!r}, expected columns of {path.name}, which has {columns}"
                f"{validation.suggest(name, header)}"
            )
    if len(targets) == len(header):
        raise ValueError(f"targets: got every column of {path.name}, expected at least one to be left for x")
    values = np.array([_row(row, header, f"{path.name}, line {line}") for line, row in rows[1:]])
    where = [header.index(name) for name in targets]
    y = values[:, where]
    if len(where) == 1 and all(INTEGER.fullmatch(row[where[0]].strip()) for _, row in rows[1:]):
        y = y[:, 0].astype(np.int64)
    return {"x": np.delete(values, where, axis=1), "y": y}


def _row(row: list[str], header: list[str], where: str) -> list[float]:
    """Return the numbers of one row."""
    if len(row) != len(header):
        raise ValueError(f"{where}: got {len(row)} cells, expected {len(header)} as in the header")
    numbers = []
    for name, cell in zip(header, row, strict=True):
        try:
            numbers.append(float(cell))
        except ValueError:
            raise ValueError(f"{where}, column {name!r}: got {cell!r}, expected a number") from None
        if not math.isfinite(numbers[-1]):
            raise ValueError(f"{where}, column {name!r}: got {cell!r}, expected a finite number")
    return numbers


def _labels(values: np.ndarray, name: str) -> np.ndarray:
    """Return class numbers as int64, shape (N,); (N, 1) and whole floats will do."""
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1 or not np.isfinite(flat).all() or (flat != np.floor(flat)).any():
        raise ValueError(f"{name}: got {validation.describe(values)}, expected one whole number per sample")
    return flat.astype(np.int64)


def _float32(values: np.ndarray) -> np.ndarray:
    """Return numbers as float32, (N,) as (N, 1); what is too large becomes infinite and is refused by Task."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return values[:, None] if values.ndim == 1 else values
