"""Where the measurements of a watch are written while a training goes on."""

from __future__ import annotations

import csv
import importlib
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrank._core import files, validation
from bnrank._core.sources import as_path
from bnrank._core.sources import read as read_bytes
from bnrank.training.watching.quantities import QUANTITIES
from bnrank.training.watching.records import Measured, Record, dataset

if TYPE_CHECKING:
    import xarray as xr

KEYS = ("step", "layer")


class Writer:
    """Receives every measurement of a watch; the base class of all writers, and of your own for any other logger.

    Only :meth:`write` has to be defined. Where it raises, the writer is left out with a warning, and training goes on.

    Examples
    --------
    >>> import bnrank, torch
    >>> class Printer(bnrank.training.Writer):
    ...     def write(self, measured):
    ...         print(measured.step, f"{measured.flat()['operator_norm/weight']:.3f}")
    >>> net = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(net.weight)
    >>> with bnrank.watch(net, writers=Printer()) as watch:
    ...     measured = watch.step()
    1 1.000
    """

    def begin(self, layers: Sequence[str], columns: Sequence[str]) -> None:
        """Prepare for measurements, before the first one.

        Parameters
        ----------
        layers : sequence of str
            Names of the layers.
        columns : sequence of str
            Names of the quantities of each layer.
        """

    def write(self, measured: Measured) -> None:
        """Write one measurement.

        Parameters
        ----------
        measured : Measured
            The step and its quantities; ``measured.flat()`` is the dictionary that loggers take.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left and release what is held."""


class CSVWriter(Writer):
    """Append the measurements to a CSV file: one line per step and layer.

    The lines of a measurement are appended whole, in one write, and reach the disk before training goes on. After a
    crash, a file can end in part of a line: :func:`read_csv` leaves it out, and a new writer removes it and goes on.
    The steps of a resumed or of another training are appended, too: :func:`read_csv` tells them from those before.

    Parameters
    ----------
    path : path
        The file; its folder must exist. One that is there must have the same columns.

    Raises
    ------
    TypeError, ValueError
        If the path cannot be written to, or the file has other columns.

    Examples
    --------
    >>> import tempfile, bnrank, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = bnrank.training.CSVWriter(f"{folder}/watch.csv")
    ...     with bnrank.watch(torch.nn.Linear(3, 2), writers=writer) as watch:
    ...         measured = watch.step()
    ...     print(writer.path.read_text()[:22])
    step,layer,stable_rank
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = files.checked_path(path, "path", ".csv")
        self._columns: list[str] = []

    def begin(self, layers: Sequence[str], columns: Sequence[str]) -> None:
        """Write the header, or check that of the file."""
        self._columns = list(columns)
        header = _lines([[*KEYS, *columns]])
        with files.writing("path", self.path):
            if not self.path.exists() or not self.path.stat().st_size:
                self._append(header)
                return
            data = self.path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                first = whole.split(b"\n", 1)[0] + b"\n"
                got = f"{str(self.path)!r} with other columns"
                validation.expect(first == header, "path", got, "a new file, or one of a watch with the same columns")
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
            if not whole:
                self._append(header)

    def write(self, measured: Measured) -> None:
        """Append the lines of one measurement."""
        rows = [
            [measured.step, " ".join(layer.split()), *(_text(row.get(name)) for name in self._columns)]
            for layer, row in measured.rows.items()
        ]
        with files.writing("path", self.path):
            self._append(_lines(rows))

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_csv(path: str | os.PathLike[str]) -> Record:
    """Return the measurements in a file of :class:`CSVWriter`; an unfinished last line is left out.

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
    path = as_path(path, "path")
    data = read_bytes(path, "path")
    whole = data[: data.rfind(b"\n") + 1]
    expected = "a file of CSVWriter"
    try:
        rows = list(csv.reader(io.StringIO(whole.decode("utf-8"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"path: got {str(path)!r} ({error}), expected {expected}") from error
    header = rows[0] if rows else []
    known = [name for part in QUANTITIES.values() for name in part]
    fits = header[:2] == list(KEYS) and all(name in known for name in header[2:])
    validation.expect(fits, "path", f"{str(path)!r} with columns {header}", expected)
    steps: dict[int, dict[str, dict[str, float]]] = {}  # ascending
    notes: list[str] = []
    last = -1
    try:
        for row in rows[1:]:
            step, layer = int(row[0]), row[1]
            values = [math.nan if v == "" else float(v) for v in row[2:]]
            if step < last or layer in steps.get(step, {}):
                notes += _replaced(steps, step)
            steps.setdefault(step, {})[layer] = dict(zip(header[2:], values, strict=True))
            last = step
    except (ValueError, IndexError) as error:
        raise ValueError(f"path: got {str(path)!r} with a damaged line ({error}), expected {expected}") from error
    layers = list(dict.fromkeys(layer for rows_ in steps.values() for layer in rows_))
    what = [part for part, names in QUANTITIES.items() if any(name in header for name in names)]
    measured = [Measured(step, rows_) for step, rows_ in steps.items()]
    found: xr.Dataset = dataset(measured, layers, what, {"title": Path(path).name, "notes": "\n".join(notes)})
    return Record(found.drop_vars("singular_values", errors="ignore").drop_vars("index", errors="ignore"))


def _replaced(steps: dict[int, dict[str, dict[str, float]]], start: int) -> list[str]:
    """Remove the measurements that steps from ``start`` on, written later, replace; return a remark on them."""
    gone = [step for step in steps if step >= start]
    for step in gone:
        del steps[step]
    which = f"step {gone[0]:,}" if len(gone) == 1 else f"steps {gone[0]:,} to {gone[-1]:,}"
    return [f"left out: earlier lines of {which}, since the file goes on with step {start:,}"] if gone else []


class TensorBoardWriter(Writer):
    """Write the measurements as scalars ``quantity/layer`` for TensorBoard.

    Parameters
    ----------
    target : path or SummaryWriter
        A folder for a new ``torch.utils.tensorboard.SummaryWriter``, which is closed with the watch, or one of yours.

    Raises
    ------
    ImportError
        If TensorBoard is not installed.

    Examples
    --------
    Give it a folder, or a ``SummaryWriter``, for which a mock stands here:

    >>> import bnrank, torch, unittest.mock
    >>> writer = bnrank.training.TensorBoardWriter(unittest.mock.Mock())
    >>> with bnrank.watch(torch.nn.Linear(3, 2), writers=writer) as watch:
    ...     measured = watch.step()
    >>> writer.target.add_scalar.call_args_list[0].args[0]
    'stable_rank/weight'
    """

    def __init__(self, target: Any) -> None:
        self._own = isinstance(target, str | os.PathLike)
        if self._own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorBoardWriter needs TensorBoard: pip install tensorboard") from error
            target = SummaryWriter(str(as_path(target, "target")))
        known = callable(getattr(target, "add_scalar", None))
        validation.expect(known, "target", target, "a folder or a SummaryWriter", TypeError)
        self.target = target

    def write(self, measured: Measured) -> None:
        """Write the scalars of one measurement."""
        for name, value in measured.flat().items():
            self.target.add_scalar(name, value, measured.step)
        self.target.flush()

    def close(self) -> None:
        """Close a SummaryWriter made here."""
        if self._own:
            self.target.close()


class WandbWriter(Writer):
    """Log the measurements as ``quantity/layer`` to Weights & Biases.

    Parameters
    ----------
    run : wandb run, optional
        Default: the current one, ``wandb.run``.

    Raises
    ------
    ImportError, ValueError
        If wandb is not installed, or there is no current run.

    Examples
    --------
    Without ``run``, it logs to the current run of wandb; here a mock stands for a run:

    >>> import bnrank, torch, unittest.mock
    >>> writer = bnrank.training.WandbWriter(unittest.mock.Mock())
    >>> with bnrank.watch(torch.nn.Linear(3, 2), writers=writer) as watch:
    ...     measured = watch.step()
    >>> writer.run.log.call_args.args[0]["watch/step"]
    1
    """

    def __init__(self, run: Any = None) -> None:
        if run is None:
            run = _imported("wandb", "WandbWriter").run
            validation.expect(run is not None, "run", "no current run", "wandb.init() before, or a run")
        validation.expect(callable(getattr(run, "log", None)), "run", run, "a run of wandb", TypeError)
        self.run = run

    def write(self, measured: Measured) -> None:
        """Log one measurement, with its step among the values, so that the run's own steps do not matter."""
        self.run.log({**measured.flat(), "watch/step": measured.step})


class MLflowWriter(Writer):
    """Log the measurements as metrics ``quantity/layer`` to the active run of MLflow.

    Parameters
    ----------
    client : module or object with ``log_metrics``, optional
        Default: ``mlflow``.

    Raises
    ------
    ImportError
        If MLflow is not installed.

    Examples
    --------
    Without ``client``, it logs to the active run of MLflow; here a mock stands for ``mlflow``:

    >>> import bnrank, torch, unittest.mock
    >>> writer = bnrank.training.MLflowWriter(unittest.mock.Mock())
    >>> with bnrank.watch(torch.nn.Linear(3, 2), writers=writer) as watch:
    ...     measured = watch.step()
    >>> writer.client.log_metrics.call_args.kwargs
    {'step': 1}
    """

    def __init__(self, client: Any = None) -> None:
        client = _imported("mlflow", "MLflowWriter") if client is None else client
        validation.expect(callable(getattr(client, "log_metrics", None)), "client", client, "mlflow", TypeError)
        self.client = client

    def write(self, measured: Measured) -> None:
        """Log one measurement; characters that MLflow refuses become underscores."""
        values = {"".join(c if c.isalnum() or c in "_-./ " else "_" for c in k): v for k, v in measured.flat().items()}
        self.client.log_metrics(values, step=measured.step)


def _imported(name: str, whose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{whose} needs {name}: pip install {name}") from error


def _text(value: float | None) -> str:
    """Return a number in as many digits as it has; an empty text for NaN."""
    if value is None or math.isnan(value):
        return ""
    return repr(int(value)) if math.isfinite(value) and value == int(value) else repr(float(value))


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode("utf-8")
