"""Data from files: tables and arrays."""

from __future__ import annotations

import csv
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from bnrank._core import sources, validation
from bnrank.tasks.images import digits, mnist
from bnrank.tasks.latent_maps import bottleneck_spectra_map, low_rank_map
from bnrank.tasks.shapes import s_shapes
from bnrank.tasks.task import LOSSES, MissingDataError, Task

if TYPE_CHECKING:
    import pandas as pd

NAMED: dict[str, Callable[..., Task]] = {
    "low-rank": low_rank_map,
    "bottleneck-spectra": bottleneck_spectra_map,
    "s-shapes": s_shapes,
    "digits": digits,
    "mnist": mnist,
}
"""Tasks that are available by name on the command line."""

_UNREADABLE = (
    *(ValueError, KeyError, EOFError, OSError, NotImplementedError, RuntimeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError),
)
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "?")
ARRAYS = ("x", "y", "x_test", "y_test")
MAX_COLUMNS = 100_000
"""Columns of a .csv file."""
MAX_LINE = 1 << 21
"""Characters of a row of a .csv file."""
MAX_SHOWN = 8  # columns named in an error


@dataclass(frozen=True)
class Table:
    """Inputs and outputs, with names of columns.

    Attributes
    ----------
    name : str
        The file's name without its ending.
    x : ndarray
        Numbers, (N, ...).
    y : ndarray or None
        Numbers, (N, ...), or one column of classes as text, (N,); None where there is none.
    columns, targets : tuple of str
        Names of the columns of x and of y; "x0", "x1", ... and "y0", ... for arrays, flattened.
    rows : ndarray
        The index of each row in the file, from 0.
    dropped : int
        Number of rows dropped because of missing values.
    x_test, y_test : ndarray or None
        Test data, for arrays.
    """

    name: str
    x: np.ndarray
    y: np.ndarray | None
    columns: tuple[str, ...]
    targets: tuple[str, ...]
    rows: np.ndarray
    dropped: int = 0
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None

    @property
    def inputs(self) -> pd.DataFrame:
        """X as a DataFrame, (N, d_in), indexed by the row of the file."""
        return self._frame(self.x, self.columns)

    @property
    def outputs(self) -> pd.DataFrame | None:
        """Y as a DataFrame, (N, d_out), indexed by the row of the file."""
        return None if self.y is None else self._frame(self.y, self.targets)

    def _frame(self, values: np.ndarray, names: Sequence[str]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(values.reshape(len(values), -1), self.rows, list(names))


def load_table(
    path: str | Path,
    targets: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    drop_missing: bool = False,
    loss: str | None = None,
) -> Task:
    r"""Return a task from a file: .npz with arrays x and y, or .csv with a header and the names of the target columns.

    Parameters
    ----------
    path : str or Path
        An .npz file with arrays ``x`` (N, ...) and ``y`` (N, d_out), and optionally ``x_test`` and ``y_test`` (other
        arrays are ignored, pickled objects are refused); or a .csv file, UTF-8, separated by commas, with one row of
        column names; or a name in ``bnrank.tasks.NAMED``. An array of shape (N,) is read as (N, 1).
    targets : str or sequence of str, optional
        The columns of a .csv that make up y, in this order; all others but ``ignore`` make up x.
    ignore : str or sequence of str
        Columns of a .csv to exclude.
    drop_missing : bool
        Drop rows with missing or infinite values.
    loss : "mse", "cross_entropy" or "logistic", optional
        By default "cross_entropy" if y is one column or a one-dimensional array of classes, as text (in a .csv also
        True and False, in any case) or as integers counted from 0, else "mse". Pass "mse" for counts and other integer
        quantities, and "logistic" for labels -1 and 1.

    Returns
    -------
    Task
        x float32, y float32 or, for "cross_entropy", int64 (text: places in ``class_names``); named after the file.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    TypeError
        If arrays are not numbers.
    ValueError
        If the file is corrupted or of another type, arrays or columns are missing, a row is too short or too long,
        columns of x contain text, values are missing or infinite (the columns are named), or labels are not 0, 1, ....

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
    path = sources.as_path(path, "path")
    targets, ignore = _listed(targets, "targets"), _listed(ignore, "ignore")
    settings = {**locals(), "path": str(path)}
    if loss is not None:
        validation.choice(loss, "loss", LOSSES)
    if str(path) in NAMED and not (targets or ignore or loss):
        return NAMED[str(path)]()
    table = read_table(path, targets, ignore, drop_missing=drop_missing)
    arrays: dict[str, Any] = {name: getattr(table, name) for name in ARRAYS if getattr(table, name) is not None}
    outputs, y = [name for name in ("y", "y_test") if name in arrays], arrays["y"]
    names = classes = None
    if y.dtype.kind == "U":
        expected = "'cross_entropy' for classes given as text"
        validation.expect(loss in (None, "cross_entropy"), "loss", f"{loss!r}", expected)
        names = tuple(np.unique(np.concatenate([arrays[name] for name in outputs])).tolist())
        arrays |= {name: np.searchsorted(names, arrays[name]) for name in outputs}
    loss = loss or ("cross_entropy" if y.ndim == 1 and y.dtype.kind in "iuU" else "mse")
    labels: dict[str, Any] = {}
    if loss == "cross_entropy":
        labels = {name: _labels(arrays.pop(name), name) for name in outputs}
        classes = 1 + max(int(part.max(initial=0)) for part in labels.values())
        found = f"labels up to {classes - 1} in {len(y)} samples"
        expected = "classes counted from 0; for a quantity, pass loss='mse'"
        validation.expect(classes <= max(len(y), 2) or names is not None, "y", found, expected)
    data = {name: _float32(part) for name, part in arrays.items()} | labels
    return Task(**data, loss=loss, name=table.name, classes=classes, settings=settings, class_names=names)


def read_table(
    path: str | Path,
    targets: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    *,
    outputs: bool = True,
    drop_missing: bool = False,
    min_rows: int = 1,
) -> Table:
    """Return the contents of a .csv, an .npz or a named task, with names of columns.

    Parameters
    ----------
    path, targets, ignore, drop_missing
        As in `load_table`.
    outputs : bool
        Whether y is required; if not, targets are still excluded from x.
    min_rows : int
        Minimum number of complete rows.

    Raises
    ------
    MissingDataError, TypeError, ValueError
        As `load_table`.
    """
    targets, ignore = _listed(targets, "targets"), _listed(ignore, "ignore")
    outputs, drop_missing = validation.flag(outputs, "outputs"), validation.flag(drop_missing, "drop_missing")
    min_rows = validation.integer(min_rows, "min_rows", 0)
    path = sources.as_path(path, "path")
    named = str(path) in NAMED
    if not named:
        kind = path.suffix.lower()
        hint = f", or one of {', '.join(NAMED)}{validation.suggest(path.name, NAMED)}"
        expected = f"a file name ending in .npz or .csv{'' if kind else hint}"
        validation.expect(kind in (".npz", ".csv"), "path", f"{path.name!r}", expected)
        if not path.is_file():  # folders, pipes and devices included
            raise MissingDataError(f"path: got {str(path)!r}, expected an existing file")
        if kind == ".csv":
            return _complete(_read_csv(path, targets, ignore, outputs), path.name, drop_missing, min_rows)
    expected = f"none for {path}, whose arrays are x and y"
    validation.expect(not (targets or ignore), "targets, ignore", ", ".join([*targets, *ignore]), expected)
    if named:
        task = NAMED[str(path)]()
        parts = {name: getattr(task, name) for name in ARRAYS}
        name, arrays = task.name, {name: part.numpy() for name, part in parts.items() if part is not None}
    else:
        name, arrays = path.stem, _read_npz(path, outputs)
    x, y = arrays["x"], arrays["y"] if outputs else None
    if y is not None and len(x) != len(y):
        raise ValueError(f"x, y: got {len(x)} and {len(y)} samples, expected the same number in both")
    columns = tuple(f"x{i}" for i in range(x[:1].size))
    outs = tuple(f"y{i}" for i in range(y[:1].size)) if y is not None else ()
    tests = arrays.get("x_test"), arrays.get("y_test") if outputs else None
    table = Table(name, x, y, columns, outs, np.arange(len(x)), 0, *tests)
    return _complete(table, name if named else str(path), drop_missing, min_rows)


def _read_npz(path: Path, outputs: bool) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"path: got {path.name!r}, which is no .npz archive or a damaged one")
    try:
        archive = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise ValueError(f"path: got {path.name!r}, which is no .npz archive or a damaged one ({error})") from error
    arrays: dict[str, np.ndarray] = {}
    with archive:
        room = sources.may_expand_to(path.stat().st_size)
        for required in ("x", "y") if outputs else ("x",):
            found = f"arrays {', '.join(archive.files) or 'nothing'}"
            validation.expect(required in archive.files, path.name, found, f"x and y; {required} is missing")
        for name in (name for name in ARRAYS if name in archive.files):
            try:
                room = _room(archive, name, room)
                array = archive[name]
            except _UNREADABLE as error:
                raise ValueError(
                    f"{name}: got unreadable data in {path.name} ({error}), expected plain numbers; "
                    "arrays of Python objects are refused"
                ) from error
            found = f"dtype {array.dtype} in {path.name}"
            kinds = "biufUS" if name.startswith("y") else "biuf"
            validation.expect(array.dtype.kind in kinds, name, found, "real numbers", TypeError)
            validation.expect(array.ndim != 0, name, f"one number in {path.name}", "one row per sample")
            arrays[name] = array.astype(np.str_) if array.dtype.kind == "S" else array
    return arrays


def _room(archive: np.lib.npyio.NpzFile, name: str, room: int) -> int:
    """Return how many more bytes an archive may expand to after an array, which is checked before it is read."""
    assert archive.zip is not None
    stored = archive.zip.getinfo(f"{name}.npy")  # no more bytes than it says are ever read
    validation.expect(stored.file_size <= room, "size", f"{stored.file_size:,} bytes", f"at most {room:,}")
    known = stored.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    validation.expect(known, "compression", f"{stored.compress_type}", "none or deflate")
    with archive.zip.open(stored) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        size = stored.file_size - file.tell()
    found = dtype.itemsize * math.prod(shape)
    validation.expect(dtype.hasobject or found == size, "shape", f"{shape} of {dtype}", f"{size:,} bytes of data")
    return room - stored.file_size


def _read_csv(path: Path, targets: list[str], ignore: list[str], outputs: bool) -> Table:
    import pandas as pd

    header, lines = _check_rows(path)
    for option, names in (("targets", targets), ("ignore", ignore)):
        for name in names:
            if name not in header:
                there = f"{path.name}, which has {_shown(header)}{validation.suggest(name, header)}"
                raise ValueError(f"{option}: got {name!r}, expected columns of {there}")
    expected = f"the columns of {path.name} that make up y, among {_shown(header)}; only an autoencoder needs none"
    validation.expect(targets or not outputs, "targets", "none", expected)
    taken = [*targets, *ignore]
    left_out = set(taken)
    validation.expect(len(left_out) == len(taken), "targets, ignore", _shown(taken), "each column once")
    columns = [name for name in header if name not in left_out]
    validation.expect(columns, "targets", f"every column of {path.name}", "at least one to be left for x")
    frame = pd.read_csv(
        path,
        encoding="utf-8-sig",
        skipinitialspace=True,
        keep_default_na=False,
        na_values=list(MISSING),
        low_memory=False,
    )
    frame.columns = pd.Index(header)
    for name in columns + (targets if len(targets) > 1 else []):
        if frame[name].dtype == object and frame[name].dropna().map(type).eq(bool).all():
            frame[name] = frame[name].astype(np.float64)  # True and False with gaps
    kinds = {name: frame[name].dtype.kind for name in header}
    classes = outputs and len(targets) == 1 and kinds[targets[0]] not in "iuf"
    numeric = columns + (targets if outputs and not classes else [])
    wrong = [name for name in header if kinds[name] not in "biuf" and name in numeric]
    if wrong:
        row, cell = _first_text(frame[wrong[0]])
        raise ValueError(
            f"{path.name}: got text in column {_shown(wrong)}, expected numbers (line {lines[row]}: {cell!r}); leave "
            "columns out with ignore, or write categories as columns of 0 and 1"
        )
    x, y = frame[columns].to_numpy(np.float64), None
    if classes:
        column = frame[targets[0]].map(str, na_action="ignore")  # True and False are text, not 1 and 0
        if pd.to_numeric(column, errors="coerce").notna().any():
            row, cell = _first_text(column)
            where = f"{path.name}, line {lines[row]}, column {targets[0]!r}"
            raise ValueError(f"{where}: got {cell!r} among numbers, expected numbers only, or text only for classes")
        y = column.fillna("").to_numpy(np.str_)
    elif outputs:
        whole = len(targets) == 1 and kinds[targets[0]] in "iu"
        y = frame[targets[0]].to_numpy() if whole else frame[targets].to_numpy(np.float64)
    return Table(path.stem, x, y, tuple(columns), tuple(targets) if outputs else (), np.arange(len(x)))


def _first_text(column: pd.Series) -> tuple[int, str]:
    """Return row and text of the first cell that is not a number."""
    import pandas as pd

    wrong = pd.to_numeric(column, errors="coerce").isna() & column.notna()
    row = int(wrong.to_numpy().argmax())
    return row, str(column.iloc[row])


def _check_rows(path: Path) -> tuple[list[str], list[int]]:
    """Return the names of the columns and the line on which each row ends; refuse rows of other lengths."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _Lines(file, path.name)
            reader = csv.reader(rows, strict=True, skipinitialspace=True)
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
                    raise ValueError(f"{where}: got {len(row)} cells, expected {len(header)} as in the header")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"path: got {path.name!r}, which is no CSV file in UTF-8 ({error})") from error
    expected = "column names and at least one row"
    validation.expect(lines, path.name, f"{int(bool(header))} rows", expected)
    named = len(set(header)) == len(header) and all(header)
    validation.expect(named, path.name, f"columns {_shown(header)}", "different names for all")
    return header, lines


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


def _complete(table: Table, file: str, drop_missing: bool, min_rows: int) -> Table:
    """Return a table without missing entries, or name the columns that have some."""
    y, names = table.y, [*table.columns, *table.targets]
    gaps = np.hstack([_gaps(values) for values in (table.x, y) if values is not None])
    gone = np.asarray(gaps.any(axis=1))
    if gone.any() and not drop_missing:
        counts = zip(names, gaps.sum(0), strict=True)
        found = [f"{name} ({count} of {len(gone)} rows)" for name, count in counts if count]
        raise ValueError(
            f"{file}: got missing or infinite values in column {_shown(found)}, expected none; "
            "drop_missing leaves these rows out, ignore leaves columns out"
        )
    kept = ~gone
    found_rows = f"{kept.sum()} row(s){' that are complete' if gone.any() else ''}"
    validation.expect(kept.sum() >= min_rows, file, found_rows, f"at least {min_rows} (min_rows)")
    if kept.all():
        return table
    if y is not None:
        y = y[kept]
        if gaps[:, len(table.columns) :].any() and y.dtype.kind == "f" and (y % 1 == 0).all():
            y = y.astype(np.int64)  # missing values had made them floating point
            y = y[:, 0] if len(table.targets) == 1 else y
    return replace(table, x=table.x[kept], y=y, rows=table.rows[kept], dropped=int(gone.sum()))


def _gaps(values: np.ndarray) -> np.ndarray:
    """Return a mask of missing or infinite entries, (N, columns)."""
    flat = values.reshape(len(values), -1)
    return flat == "" if flat.dtype.kind == "U" else ~np.isfinite(flat) if flat.dtype.kind == "f" else flat != flat


def _labels(values: np.ndarray, name: str) -> np.ndarray:
    """Return class indices as int64, (N,), from integers or whole floats, (N,) or (N, 1)."""
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    whole = flat.ndim == 1 and np.isfinite(flat).all() and (flat == np.floor(flat)).all()
    validation.expect(whole, name, values, "one whole number per sample")
    return flat.astype(np.int64)


def _float32(values: np.ndarray) -> np.ndarray:
    """Return numbers as float32, (N,) as (N, 1); overflow becomes infinite and is refused by Task."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return values[:, None] if values.ndim == 1 else values


def _listed(names: str | Sequence[str] | None, name: str) -> list[str]:
    if names is None or isinstance(names, str):
        return [names] if names else []
    return [validation.text(entry, f"{name}[{i}]") for i, entry in enumerate(validation.sequence(names, name))]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
