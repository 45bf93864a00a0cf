"""Tables of the user's own, with names of columns, text for classes, and what is missing said by name."""

from __future__ import annotations

import csv
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bnrank._core import validation
from bnrank.cli.arguments import TASKS, table_path
from bnrank.tasks import MissingDataError

__all__ = ["Table", "as_table", "read_arrays", "read_table"]

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
SHOWN = 8  # columns named in an error, at most


@dataclass(frozen=True)
class Table:
    """Inputs, outputs, and what the table is called.

    Attributes
    ----------
    name : str
        Of the file.
    x : DataFrame
        (N, d_in); rows keep the number they have in the file, from 0, where others were left out.
    y : DataFrame or None
        (N, d_out), or one column of classes; None where there is none.
    dropped : int
        Rows left out, as something was missing in them.
    """

    name: str
    x: pd.DataFrame
    y: pd.DataFrame | None
    dropped: int


def read_table(
    data: str, targets: list[str], ignored: list[str], *, with_outputs: bool = True, drop_missing: bool = False
) -> Table:
    """Read a table: a .csv with names of columns, an .npz with x and y, or a task of bnrank.

    Parameters
    ----------
    data : str
        The file, or the name of the task.
    targets : list of str
        The columns of a .csv that make up y; all others but ``ignored`` make up x.
    ignored : list of str
        Columns of a .csv that are in neither.
    with_outputs : bool
        Whether y is wanted; without it targets are left out of x all the same.
    drop_missing : bool
        Whether to leave out rows in which something is missing or infinite.

    Raises
    ------
    MissingDataError
        If there is no such file.
    TypeError, ValueError
        If the file is damaged, columns or arrays are not there, entries are missing (named by column), or there are
        fewer than two rows.
    """
    if data in TASKS or table_path(data).suffix.lower() == ".npz":
        if targets or ignored:
            raise ValueError(f"targets, ignore: got columns, expected none for {data}, whose arrays are x and y")
        name, arrays = read_arrays(data)
        if with_outputs and "y" not in arrays:
            raise ValueError(f"{data}: got no array y, expected x and y; for x alone pass --kind autoencoder")
        x = as_table(arrays["x"], "x")
        y = as_table(arrays["y"], "y") if with_outputs else None
        if y is not None and len(y) != len(x):
            raise ValueError(f"{data}: got {len(x)} rows of x and {len(y)} of y, expected as many")
    else:
        path = table_path(data)
        name, frame = path.stem, _read_csv(path)
        x, y = _split(frame, path.name, targets, ignored, with_outputs)
    text = [str(column) for column, kind in x.dtypes.items() if kind.kind not in "biuf"]
    if text:
        raise ValueError(
            f"{data}: got text in column {_listed(text)}, expected numbers; --ignore leaves columns out, or write "
            "categories as columns of 0 and 1"
        )
    return _complete(data, name, x, y, drop_missing)


def read_arrays(data: str) -> tuple[str, dict[str, np.ndarray]]:
    """Return the name and the arrays of an .npz file with x (and y, x_test, y_test if there), or of a task.

    Raises
    ------
    MissingDataError, TypeError, ValueError
        If there is no such file, it is damaged, has no x, or holds Python objects.
    """
    names = ("x", "y", "x_test", "y_test")
    if data in TASKS:
        task = TASKS[data]()
        parts = {name: getattr(task, name) for name in names}
        return task.name, {name: part.numpy() for name, part in parts.items() if part is not None}
    path = _existing(table_path(data), ".npz")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names if name in archive.files}
            there = ", ".join(archive.files) or "nothing"
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"data: got {path.name!r}, which is no .npz archive of plain arrays or a damaged one ({error})"
        ) from error
    if "x" not in arrays:
        raise ValueError(f"{path.name}: got arrays {there}, expected x (N, d_in)")
    for key, values in arrays.items():
        if values.dtype.kind not in ("biufUS" if key.startswith("y") else "biuf"):
            raise TypeError(f"{key}: got dtype {values.dtype} in {path.name}, expected real numbers")
        if values.ndim == 0:
            raise ValueError(f"{key}: got one number in {path.name}, expected one row per sample")
    return path.stem, arrays


def as_table(values: np.ndarray, letter: str) -> pd.DataFrame:
    """Return an array (N, ...) as a table with columns x0, x1, ...

    Examples
    --------
    >>> as_table(np.zeros((5, 2, 2)), "x").columns.tolist()
    ['x0', 'x1', 'x2', 'x3']
    """
    flat = values.reshape(len(values), -1)
    return pd.DataFrame(flat, columns=[f"{letter}{i}" for i in range(flat.shape[1])])


def _existing(path: Path, *suffixes: str) -> Path:
    if path.suffix.lower() not in suffixes:
        raise ValueError(f"data: got {path.name!r}, expected a file name ending in .npz or .csv")
    if not path.is_file():
        raise MissingDataError(f"data: got {str(path)!r}, expected an existing file")
    return path


def _read_csv(path: Path) -> pd.DataFrame:
    path = _existing(path, ".csv")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, warnings.catch_warnings():
            header = [name.strip() for name in next(csv.reader(file), [])]
            if len(set(header)) < len(header) or not all(header):
                raise ValueError(f"{path.name}: got columns {_listed(header)}, expected different names for all")
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                file,
                header=None,
                names=header,
                index_col=False,
                skipinitialspace=True,
                keep_default_na=False,
                na_values=list(MISSING),
                low_memory=False,
            )
    except (UnicodeDecodeError, csv.Error, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"data: got {path.name!r}, which is no CSV file in UTF-8 separated by commas ({why})"
        ) from None
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path.name}: got no rows, expected names of columns and rows") from None
    return frame


def _split(
    frame: pd.DataFrame, file: str, targets: list[str], ignored: list[str], with_outputs: bool
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    columns = frame.columns.tolist()
    for option, names in (("targets", targets), ("ignore", ignored)):
        for name in names:
            if name not in columns:
                hint = validation.suggest(name, columns)
                raise ValueError(
                    f"{option}: got {name!r}, expected columns of {file}, which has {_listed(columns)}{hint}"
                )
    if with_outputs and not targets:
        raise ValueError(
            f"targets: got none, expected the columns of {file} that make up y, among {_listed(columns)}; "
            "to ask how much the columns have in common, pass --kind autoencoder"
        )
    if len({*targets, *ignored}) < len(targets) + len(ignored):
        raise ValueError(f"targets, ignore: got {_listed([*targets, *ignored])}, expected each column once")
    left = [name for name in columns if name not in {*targets, *ignored}]
    if not left:
        raise ValueError(f"targets: got every column of {file}, expected at least one to be left for x")
    return frame[left], frame[targets] if with_outputs else None


def _complete(data: str, name: str, x: pd.DataFrame, y: pd.DataFrame | None, drop_missing: bool) -> Table:
    """Return a table without missing entries, or say where they are."""
    bad = pd.concat([part.apply(_not_there) for part in (x, y) if part is not None], axis=1)
    rows = bad.any(axis=1)
    if rows.any() and not drop_missing:
        found = [f"{column} ({count} of {len(bad)} rows)" for column, count in bad.sum().items() if count]
        raise ValueError(
            f"{data}: got missing or infinite values in column {_listed(found)}, expected none; "
            "--drop-missing leaves these rows out, --ignore leaves columns out"
        )
    x, y = x[~rows], y[~rows] if y is not None else None
    if len(x) < 2:
        raise ValueError(
            f"{data}: got {len(x)} row(s){' that are complete' if rows.any() else ''}, expected at least 2"
        )
    if y is not None and rows.any():  # a gap had made whole numbers floating-point
        whole = [c for c in y if y[c].dtype.kind == "f" and (y[c] % 1 == 0).all()]
        y = y.astype(dict.fromkeys(whole, np.int64))
    return Table(name, x, y, int(rows.sum()))


def _not_there(column: Any) -> Any:
    if pd.api.types.is_numeric_dtype(column):
        return ~np.isfinite(column.to_numpy(dtype=np.float64))
    return column.isna().to_numpy()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
