"""Data from files: tables and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import sources, validation
from bnrank.tasks.archives import ARRAYS, read_arrays
from bnrank.tasks.cells import Cells, read_cells, shown
from bnrank.tasks.images import digits, mnist
from bnrank.tasks.latent_maps import bottleneck_spectra_map, low_rank_map
from bnrank.tasks.losses import LOSSES
from bnrank.tasks.shapes import s_shapes
from bnrank.tasks.task import MissingDataError, Task

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


@dataclass(frozen=True)
class Table:
    r"""Inputs and outputs, with names of columns.

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
    groups : ndarray or None
        The group of each row as text, (N,), which is no input.
    group : str or None
        The name of its column.
    weights : ndarray or None
        The weight of each row, (N,), which is no input.
    weight : str or None
        The name of its column.

    Examples
    --------
    >>> import pathlib, tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "trees.csv")
    ...     size = path.write_text("height,girth,volume\n70,8.3,10.3\n65,8.6,10.3\n")
    ...     table = bnrank.tasks.read_table(path, targets="volume")
    >>> table.x.shape, table.targets, table.y.tolist(), table.rows.tolist()
    ((2, 2), ('volume',), [[10.3], [10.3]], [0, 1])
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
    groups: np.ndarray | None = None
    group: str | None = None
    weights: np.ndarray | None = None
    weight: str | None = None

    @property
    def inputs(self) -> pd.DataFrame:
        """X as a DataFrame, (N, d_in), indexed by the row of the file."""
        return self._frame(self.x, self.columns)

    @property
    def outputs(self) -> pd.DataFrame | None:
        """Y as a DataFrame, (N, d_out), indexed by the row of the file."""
        return None if self.y is None else self._frame(self.y, self.targets)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The different texts of y and y_test, sorted; None where y has numbers or is not there."""
        if self.y is None or self.y.dtype.kind != "U":
            return None
        parts = [part for part in (self.y, self.y_test) if part is not None]
        return tuple(np.unique(np.concatenate(parts)).tolist())

    def with_class_indices(self) -> Table:
        """Return the table with texts of y and y_test replaced by their places in :attr:`class_names`."""
        names = self.class_names
        if names is None:
            return self
        places = {
            name: np.searchsorted(names, getattr(self, name))
            for name in ("y", "y_test")
            if getattr(self, name) is not None
        }
        return replace(self, **places)

    def _frame(self, values: np.ndarray, names: Sequence[str]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(values.reshape(len(values), -1), self.rows, list(names))


def load_table(
    path: str | Path,
    targets: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    drop_missing: bool = False,
    loss: str | None = None,
    *,
    sep: str | None = None,
    decimal: str = ".",
    one_hot: bool = False,
) -> Task:
    r"""Return a task from a file: .npz with arrays x and y, or .csv with a header and the names of the target columns.

    Parameters
    ----------
    path : str or Path
        An .npz file with arrays ``x`` (N, ...) and ``y`` (N, d_out), and optionally ``x_test`` and ``y_test`` (other
        arrays are ignored, pickled objects are refused);
        or a .csv file, UTF-8, with one row of column names, whose first column is left out if it has no name (the names
        of the rows, as R and pandas write them); or a name in ``bnrank.tasks.NAMED``. An array of shape (N,) is read as
        (N, 1).
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
    sep : ",", ";", "|" or "\t", optional
        What separates the cells of a .csv; by default a comma, or a semicolon where ``decimal`` is a comma.
    decimal : "." or ","
        The decimal mark of the numbers of a .csv.
    one_hot : bool
        Replace columns of x with text by a column of 0 and 1 for each different text, "column=text"; one column for
        two texts. A column of which some cells are numbers ("1", "2", "5+") is one of texts.

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
        validation.choice(loss, "loss", tuple(LOSSES))
    if str(path) in NAMED and not (targets or ignore or loss):
        return NAMED[str(path)]()
    table = read_table(path, targets, ignore, drop_missing=drop_missing, sep=sep, decimal=decimal, one_hot=one_hot)
    expected = "'cross_entropy' for classes given as text"
    validation.expect(table.class_names is None or loss in (None, "cross_entropy"), "loss", f"{loss!r}", expected)
    names, table = table.class_names, table.with_class_indices()
    arrays: dict[str, Any] = {name: getattr(table, name) for name in ARRAYS if getattr(table, name) is not None}
    outputs, y, classes = [name for name in ("y", "y_test") if name in arrays], arrays["y"], None
    loss = loss or ("cross_entropy" if y.ndim == 1 and y.dtype.kind in "iu" else "mse")
    labels: dict[str, Any] = {}
    if loss == "cross_entropy":
        labels = {name: _labels(arrays.pop(name), name) for name in outputs}
        classes = 1 + max(int(part.max(initial=0)) for part in labels.values())
        found = f"labels up to {classes - 1} in {len(y)} samples"
        expected = "classes counted from 0; for a quantity, pass loss='mse'"
        validation.expect(classes <= max(len(y), 2) or names is not None, "y", found, expected)
    data = {name: float32(part) for name, part in arrays.items()} | labels
    return Task(**data, loss=loss, name=table.name, classes=classes, settings=settings, class_names=names)


def read_table(
    path: str | Path,
    targets: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    *,
    outputs: bool | None = True,
    drop_missing: bool = False,
    min_rows: int = 1,
    sep: str | None = None,
    decimal: str = ".",
    one_hot: bool = False,
    groups: str | None = None,
    weights: str | None = None,
) -> Table:
    r"""Return the contents of a .csv, an .npz or a named task, with names of columns.

    Parameters
    ----------
    path, targets, ignore, drop_missing, sep, decimal, one_hot
        As in `load_table`.
    outputs : bool or None
        Whether y is required; None takes it where there is one. False leaves it out; targets are still excluded from x.
    min_rows : int
        Minimum number of complete rows.
    groups : str, optional
        The column of a .csv that says which rows depend on each other (subjects, plates, batches). It is not an input,
        and its cells are texts: "1.10" and "1.1" are two groups.
    weights : str, optional
        The column of a .csv with the weights of the rows. It is not an input.

    Raises
    ------
    MissingDataError, TypeError, ValueError
        As `load_table`.

    Examples
    --------
    >>> import pathlib, tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "trees.csv")
    ...     size = path.write_text("height,girth,volume\n70,8.3,10.3\n65,8.6,10.3\n")
    ...     bnrank.tasks.read_table(path, targets="volume").columns
    ('height', 'girth')
    """
    targets, ignore = _listed(targets, "targets"), _listed(ignore, "ignore")
    outputs = validation.optional(validation.flag, outputs, "outputs")
    drop_missing = validation.flag(drop_missing, "drop_missing")
    one_hot, min_rows = validation.flag(one_hot, "one_hot"), validation.integer(min_rows, "min_rows", 0)
    given_apart = {"groups": groups, "weights": weights}
    aside = {option: validation.text(column, option) for option, column in given_apart.items() if column is not None}
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
            cells = read_cells(path, sep, decimal, [] if groups is None else [aside["groups"]])
            required = bool(targets) if outputs is None else outputs
            table, levels = _from_cells(cells, path.stem, targets, ignore, aside, required, one_hot)
            return _one_hot(_complete(table, path.name, drop_missing, min_rows), levels)
    expected = f"none for {path}, whose arrays are x and y"
    given = [*targets, *ignore]
    validation.expect(not given, "targets, ignore", ", ".join(given), expected)
    for option, value in (("sep", sep), ("decimal", decimal if decimal != "." else None), *given_apart.items()):
        validation.expect(value is None, option, repr(value), expected)
    validation.expect(not one_hot, "one_hot", "True", expected)
    if named:
        task = NAMED[str(path)]()
        parts = {name: getattr(task, name) for name in ARRAYS}
        name, arrays = task.name, {name: part.numpy() for name, part in parts.items() if part is not None}
    else:
        name, arrays = path.stem, read_arrays(path, bool(outputs))
    x, y = arrays["x"], None if outputs is False else arrays.get("y")
    if y is not None and len(x) != len(y):
        raise ValueError(f"x, y: got {len(x)} and {len(y)} samples, expected the same number in both")
    columns = tuple(f"x{i}" for i in range(x[:1].size))
    outs = tuple(f"y{i}" for i in range(y[:1].size)) if y is not None else ()
    tests = arrays.get("x_test"), None if outputs is False else arrays.get("y_test")
    table = Table(name, x, y, columns, outs, np.arange(len(x)), 0, *tests)
    return _complete(table, name if named else str(path), drop_missing, min_rows)


def _from_cells(
    cells: Cells,
    name: str,
    targets: list[str],
    ignore: list[str],
    aside: dict[str, str],
    outputs: bool,
    one_hot: bool,
) -> tuple[Table, dict[str, list[str]]]:
    """Return the table of a .csv file, and the texts of its columns of categories, of which x has the places."""
    cells.check_names("targets", targets)
    cells.check_names("ignore", ignore)
    for option, column in aside.items():
        cells.check_names(option, [column])
    taken = [*targets, *ignore, *aside.values()]
    expected = (
        f"the columns of {cells.name} that make up y, among {shown(cells.header)}; only an autoencoder needs none"
    )
    validation.expect(targets or not outputs, "targets", "none", expected)
    left_out = set(taken)
    validation.expect(
        len(left_out) == len(taken), ", ".join(["targets", "ignore", *aside]), shown(taken), "each column once"
    )
    columns = [name for name in cells.header if name not in left_out]
    validation.expect(columns, "targets", f"every column of {cells.name}", "at least one to be left for x")
    levels = {column: cells.levels(column) for column in columns if one_hot and cells.is_text(column)}
    classes = outputs and len(targets) == 1 and not cells.is_number(targets[0])
    plain = [column for column in columns if column not in levels]
    numbers = dict(zip(plain, cells.numbers(plain + (targets if outputs and not classes else [])).T, strict=False))
    places = {column: _places(cells.texts(column, mixed=True), known) for column, known in levels.items()}
    x, y = np.stack([(numbers | places)[column] for column in columns], axis=1), None
    if classes:
        y = cells.texts(targets[0])
    elif outputs:
        whole = len(targets) == 1 and cells.frame[targets[0]].dtype.kind in "iu"
        y = cells.frame[targets[0]].to_numpy() if whole else cells.numbers(targets)
    group, weight = aside.get("groups"), aside.get("weights")
    units = None if group is None else cells.raw(group)
    weights = None if weight is None else cells.numbers([weight])[:, 0]
    outs = tuple(targets) if outputs else ()
    table = Table(name, x, y, tuple(columns), outs, np.arange(len(x)), groups=units, group=group)
    return replace(table, weights=weights, weight=weight), levels


def _places(texts: np.ndarray, levels: list[str]) -> np.ndarray:
    """Return the place of every text among sorted ones, NaN for ""."""
    return np.where(texts == "", np.nan, np.searchsorted(levels, texts))


def _one_hot(table: Table, levels: dict[str, list[str]]) -> Table:
    """Return a table with columns of 0 and 1 for the categories that occur; one column for two categories."""
    if not levels:
        return table
    names: list[str] = []
    parts: list[np.ndarray] = []
    for column, values in zip(table.columns, table.x.T, strict=True):
        if column not in levels:
            names.append(column)
            parts.append(values)
            continue
        there = np.unique(values).astype(int)
        for place in there[1:] if len(there) == 2 else there:
            names.append(f"{column}={levels[column][place]}")
            parts.append((values == place).astype(np.float64))
    validation.expect(len(set(names)) == len(names), table.name, f"columns {shown(names)}", "different names for all")
    return replace(table, x=np.stack(parts, axis=1), columns=tuple(names))


def _complete(table: Table, file: str, drop_missing: bool, min_rows: int) -> Table:
    """Return a table without missing entries, or name the columns that have some."""
    y, groups, weights = table.y, table.groups, table.weights
    names = [*table.columns, *table.targets, *(name for name in (table.group, table.weight) if name is not None)]
    gaps = np.hstack([_gaps(values) for values in (table.x, y, groups, weights) if values is not None])
    gone = np.asarray(gaps.any(axis=1))
    if gone.any() and not drop_missing:
        counts = zip(names, gaps.sum(0), strict=True)
        found = [f"{name} ({count} of {len(gone)} rows)" for name, count in counts if count]
        raise ValueError(
            f"{file}: got missing or infinite values in column {shown(found)}, expected none; "
            "drop_missing leaves these rows out, ignore leaves columns out"
        )
    kept = ~gone
    found_rows = f"{kept.sum()} row(s){' that are complete' if gone.any() else ''}"
    validation.expect(kept.sum() >= min_rows, file, found_rows, f"at least {min_rows} (min_rows)")
    if kept.all():
        return table
    if y is not None:
        y = y[kept]
        if gaps[:, len(table.columns) :][:, : len(table.targets)].any() and y.dtype.kind == "f" and (y % 1 == 0).all():
            y = y.astype(np.int64)  # missing values had made them floating point
            y = y[:, 0] if len(table.targets) == 1 else y
    groups, weights = (None if values is None else values[kept] for values in (groups, weights))
    table = replace(table, groups=groups, weights=weights)
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


def float32(values: np.ndarray) -> np.ndarray:
    """Return numbers as float32, (N,) as (N, 1); overflow becomes infinite and is refused by Task."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return values[:, None] if values.ndim == 1 else values


def _listed(names: str | Sequence[str] | None, name: str) -> list[str]:
    if names is None or isinstance(names, str):
        return [names] if names else []
    return [validation.text(entry, f"{name}[{i}]") for i, entry in enumerate(validation.sequence(names, name))]
