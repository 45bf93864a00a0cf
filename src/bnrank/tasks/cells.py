"""The cells of .csv files: their lines, numbers, texts and gaps."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from bnrank._core import validation

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
SEPARATORS = (",", ";", "|", "\t")
DECIMALS = (".", ",")
MAX_COLUMNS = 100_000
"""Columns of a .csv file."""
MAX_LINE = 1 << 21
"""Characters of a row of a .csv file."""
MAX_LEVELS = 100
"""Different texts in a column that becomes columns of 0 and 1."""
MAX_SHOWN = 8  # columns named in an error


@dataclass(frozen=True)
class Cells:
    """The columns of a .csv file.

    Attributes
    ----------
    name : str
        The name of the file, for errors.
    frame : DataFrame
        One column of numbers, of True and False, or of texts for each of the file; NaN where cells are missing.
    lines : list of int
        The line on which each row ends.
    decimal : "." or ","
        The decimal mark.
    """

    name: str
    frame: pd.DataFrame
    lines: list[int]
    decimal: str

    @property
    def header(self) -> list[str]:
        """Names of the columns."""
        return list(self.frame.columns)

    def check_names(self, option: str, names: Sequence[str]) -> None:
        """Raise ValueError unless all names are columns."""
        for name in names:
            if name not in self.header:
                there = f"{self.name}, which has {shown(self.header)}{validation.suggest(name, self.header)}"
                raise ValueError(f"{option}: got {name!r}, expected columns of {there}")

    def is_number(self, column: str) -> bool:
        """Return whether a column has numbers, not texts or True and False."""
        return self.frame[column].dtype.kind in "iuf"

    def is_text(self, column: str) -> bool:
        """Return whether a column has texts, not numbers or True and False."""
        return self.frame[column].dtype.kind not in "biuf" and not self._is_bool(column)

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Return columns as float64, (N, columns); True and False are 1 and 0.

        Raises
        ------
        ValueError
            If a column has text.
        """
        if wrong := [name for name in columns if self.is_text(name)]:
            cell, line, advice = self._first_wrong(wrong[0])
            if not advice:
                advice = "leave columns out with ignore, or turn texts into columns of 0 and 1 with one_hot"
            got = f"got text in column {shown(wrong)}, expected numbers (line {line}: {cell!r})"
            raise ValueError(f"{self.name}: {got}; {advice}")
        return self.frame[list(columns)].astype(np.float64).to_numpy()

    def texts(self, column: str, *, mixed: bool = False) -> np.ndarray:
        """Return a column as text, (N,), "" where cells are missing.

        Raises
        ------
        ValueError
            If some cells are texts and some are numbers, unless such ``mixed`` columns are allowed; if all cells are
            numbers, some with the other decimal mark.
        """
        if self.is_text(column) and not (mixed and self._has_words(column)):
            cell, line, advice = self._first_wrong(column)
            if advice or self._numeric(column).any():
                expected = advice or "expected numbers only, or text only for classes and categories"
                raise ValueError(f"{self.name}, line {line}, column {column!r}: got {cell!r} among numbers, {expected}")
        return self.raw(column)

    def raw(self, column: str) -> np.ndarray:
        """Return the cells of a column that was read as text, (N,), "" where they are missing."""
        return self.frame[column].map(str, na_action="ignore").fillna("").to_numpy(np.str_)

    def levels(self, column: str) -> list[str]:
        """Return the different texts of a column, sorted.

        Raises
        ------
        ValueError
            If there are too many for categories.
        """
        found = np.unique(self.texts(column, mixed=True))
        found = found[found != ""]
        limit = min(MAX_LEVELS, max(len(self.frame) // 2, 2))
        got = f"{len(found)} different texts in column {column} of {len(self.frame)} rows"
        if self._numeric(column).any():
            got += " ({!r} on line {} among numbers)".format(*self._first_wrong(column)[:2])
        expected = f"at most {limit} for one_hot; ignore leaves a column out"
        validation.expect(len(found) <= limit, self.name, got, expected)
        return list(map(str, found))

    def _is_bool(self, column: str) -> bool:
        values = self.frame[column]
        return values.dtype.kind == "b" or (values.dtype == object and values.dropna().map(type).eq(bool).all())

    def _numeric(self, column: str) -> pd.Series:
        """Return which cells of a column of texts are numbers."""
        return _as_numbers(self.frame[column], self.decimal).notna()

    def _has_words(self, column: str) -> bool:
        """Return whether some cells of a column of texts are numbers with neither decimal mark."""
        values = self.frame[column]
        return not (values.isna() | self._numeric(column) | values.map(self._has_other_mark)).all()

    def _first_wrong(self, column: str) -> tuple[str, int, str]:
        """Return the first cell with the other decimal mark, or else that is no number, its line, and advice or ""."""
        values, others = self.frame[column], self.frame[column].map(self._has_other_mark)
        wrong = others if others.any() else ~self._numeric(column) & values.notna()
        row = int(wrong.to_numpy(dtype=bool).argmax())
        advice = f"expected the decimal mark {self.decimal!r} (option decimal)" if others.any() else ""
        return str(values.iloc[row]), self.lines[row], advice

    def _has_other_mark(self, cell: object) -> bool:
        """Return whether a cell is a number with the other decimal mark; "01.02" is a code or a date."""
        other = "," if self.decimal == "." else "."
        return re.fullmatch(rf"[+-]?(0|[1-9]\d*)?\{other}\d+([eE][+-]?\d+)?", str(cell)) is not None


def read_cells(path: Path, sep: str | None = None, decimal: str = ".", texts: Sequence[str] = ()) -> Cells:
    r"""Return the columns of a .csv file; a first column without a name has the names of the rows, and is left out.

    Parameters
    ----------
    path : Path
        The file, UTF-8, with one row of column names.
    sep : {",", ";", "|", "\t"}, optional
        What separates cells; by default a comma, or a semicolon where the decimal mark is a comma.
    decimal : {".", ","}
        The decimal mark of numbers.
    texts : sequence of str
        Names of columns whose cells are kept as they are written: "1.10" is not "1.1", and "7" not "7.0".

    Raises
    ------
    ValueError
        If the file is corrupted, rows are too short or too long, or names of columns are missing or equal.
    """
    import pandas as pd

    decimal = validation.choice(decimal, "decimal", DECIMALS)
    given = validation.optional(validation.choice, sep, "sep", SEPARATORS)
    sep = given or ("," if decimal == "." else ";")
    header, lines = _check_rows(path, sep)
    hint = "" if given else _other_separator(header, sep)
    validation.expect(not hint, path.name, f"one column, {header[0][:80]!r}", f"several{hint}")
    frame = pd.read_csv(
        path,
        sep=sep,
        decimal=decimal,
        names=header,
        header=0,
        index_col=False,
        dtype={name: object for name in texts if name in header},
        encoding="utf-8-sig",
        skipinitialspace=True,
        keep_default_na=False,
        na_values=list(MISSING),
        low_memory=False,
    )
    if header[0] == "":
        frame = frame.iloc[:, 1:].copy()
    for name in frame.columns:
        if frame[name].dtype.kind not in "biuf":
            bare = frame[name].map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
            blank = bare.isin(MISSING) & bare.notna()
            frame[name] = bare.mask(blank)
            if blank.any() and name not in texts:  # spaces may have hidden that all others are numbers
                numbers = _as_numbers(frame[name], decimal)
                frame[name] = numbers if numbers.notna().eq(frame[name].notna()).all() else frame[name]
    return Cells(path.name, frame, lines, decimal)


def _as_numbers(column: pd.Series, decimal: str) -> pd.Series:
    """Return the numbers among texts, NaN for all others."""
    import pandas as pd

    if decimal == ",":
        column = column.map(lambda cell: "" if "." in str(cell) else str(cell).replace(",", "."), na_action="ignore")
    return pd.to_numeric(column, errors="coerce")


def _check_rows(path: Path, sep: str) -> tuple[list[str], list[int]]:
    """Return the names of the columns and the line on which each row ends; refuse rows of other lengths."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _Lines(file, path.name)
            reader = csv.reader(rows, strict=True, skipinitialspace=True, delimiter=sep)
            header = [name.strip() for name in next(reader, [])]
            expected = f"at most {MAX_COLUMNS:,}"
            validation.expect(len(header) <= MAX_COLUMNS, path.name, f"{len(header):,} columns", expected)
            lines = []
            rows.length = 0
            for row in reader:
                rows.length = 0
                if not row:
                    continue
                lines.append(reader.line_num)
                if len(row) != len(header):
                    where = f"{path.name}, line {reader.line_num}"
                    hint = _other_separator(header, sep)
                    raise ValueError(f"{where}: got {len(row)} cells, expected {len(header)} as in the header{hint}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"path: got {path.name!r}, which is no CSV file in UTF-8 ({error})") from error
    expected = "column names and at least one row"
    validation.expect(lines, path.name, f"{int(bool(header))} rows", expected)
    named = len(set(header)) == len(header) > header.count("") and all(header[1:])
    validation.expect(named, path.name, f"columns {shown(header)}", "different names for all")
    return header, lines


def _other_separator(header: Sequence[str], sep: str) -> str:
    """Return a hint where a header of one column has another separator in it."""
    found = [other for other in SEPARATORS if other != sep and len(header) == 1 and other in header[0]]
    return f"; its cells are separated by {max(found, key=header[0].count)!r} (option sep)" if found else ""


class _Lines:
    """Iterator over the lines of a file; ``length`` counts the characters of the current row, which may span lines."""

    def __init__(self, file: TextIO, name: str) -> None:
        self.file, self.name, self.length = file, name, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.file.readline(MAX_LINE + 1)
        self.length += len(line)
        if self.length > MAX_LINE:  # texts for every line take longer than reading it
            expected = f"at most {MAX_LINE:,} characters"
            validation.expect(False, self.name, f"a row of more than {MAX_LINE:,} characters", expected)
        if not line:
            raise StopIteration
        return line


def shown(names: Sequence[str]) -> str:
    """Return names separated by commas, the first few of many.

    Examples
    --------
    >>> shown(["a", "b"])
    'a, b'
    """
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
