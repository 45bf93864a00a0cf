"""Grids of runs: grouped into ensembles, trained in parallel, stored, resumed."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bnrank._core import checksums, identity, netcdf, validation
from bnrank._core.files import one_writer, prepare_folder, writing
from bnrank._core.locks import InUseError, StorageError
from bnrank._core.processes import end_with_parent
from bnrank._core.progress import bar
from bnrank._core.sources import DamagedError
from bnrank.networks import MLP
from bnrank.tasks import Task
from bnrank.tasks.task import as_task
from bnrank.training.history import RESULT, last_rows
from bnrank.training.interruption import discard_checkpoints
from bnrank.training.options import Record, Save, Stop, given
from bnrank.training.settings import OPTIMIZERS, TrainSettings, starting_points
from bnrank.training.trainer import CHECKPOINT, train

if TYPE_CHECKING:
    import xarray as xr

MAX_PROCESSES = 1024
LOCK = ".group.lock"  # in the folder of an ensemble that a sweep trains
OPTIONS = [name for name in inspect.signature(train).parameters if name not in ("net", "task", "out", "progress")]
OPTIONS.append("checkpoint_every")
SCALARS = ("loss", "cost", "parameter_norm", "gradient_norm", "balance_residual", "steps")


def sweep(
    task: Task | tuple[Any, ...],
    *,
    depths: Sequence[int],
    ridges: Sequence[float] = (1e-3,),
    seeds: Sequence[int] = (0,),
    grid: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    processes: int | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
    **options: Any,
) -> xr.Dataset:
    """Return the results of MLPs trained for every depth, ridge and seed, and every width and sample size of a grid.

    Runs that differ only in ridge and seed are members of one ensemble, and the ensembles run on an executor. Ensembles
    whose results are already in ``out`` are not run again, except failed ones, which are retried. In a script, call
    this below ``if __name__ == "__main__":``, because the pool starts new interpreters, or use ``processes=1``.

    Parameters
    ----------
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss).
    depths : sequence of int
        Values of the depth L.
    ridges : sequence of float
        Values of lambda.
    seeds : sequence of int
        Seeds of the initial parameters and of the order of mini-batches.
    grid : mapping, optional
        "width": common widths of the hidden layers (default [100]). "size": numbers of training samples, taken from the
        first (default: all). "slope", "bias", "init": one value for all networks, as in `bnrank.MLP`.
    executor : concurrent.futures.Executor, optional
        Executor that runs the ensembles. Default: a pool of processes that divide PyTorch's threads among them, and
        that end when this process does. The threads and the processes of your executor are left to you.
    processes : int, optional
        Size of the pool. Default: the number of threads, at most one per ensemble. 1 runs the ensembles in this
        process.
    out : path, optional
        Folder for the results, with one run folder per ensemble (see `Run.open`), named by the hash of its settings. A
        killed sweep resumes from the checkpoints in it. Sweeps that run at the same time with the same folder share
        the work: an ensemble that one of them trains is waited for by the others, after they have trained the rest.
    device : str
        Device to train on.
    progress : bool
        Show a progress bar.
    **options
        Options of :func:`bnrank.train` (steps, optimizer, batch_size, dtype, record), and ``checkpoint_every`` of
        `Save`.

    Returns
    -------
    xarray.Dataset
        Over (depth, width, size, ridge, seed): ``loss``, ``cost``, ``parameter_norm``, ``gradient_norm``,
        ``balance_residual``, ``steps``, ``status``, ``error`` (empty unless status is "failed") and ``run`` (the run's
        folder in ``out``). ``weight_singular_values`` has the additional dimensions (layer, index) and is NaN where a
        network has no such layer. The attribute ``ran`` is the number of ensembles that were trained; the others were
        found in ``out``.

    Raises
    ------
    TypeError, ValueError
        If an argument of the grid is invalid, or the folder cannot be written to; finished ensembles are kept. Other
        errors inside a run are stored in the result.

    Warns
    -----
    UserWarning
        If a stored result is damaged; its networks are trained again.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=40)
    >>> results = bnrank.sweep(
    ...     task, depths=[2, 3], ridges=[1e-3, 1e-2], grid={"width": [8]}, steps=3, processes=1, progress=False
    ... )
    >>> dict(results.loss.sizes)
    {'depth': 2, 'width': 1, 'size': 1, 'ridge': 2, 'seed': 1}
    """
    mapping = grid is None or isinstance(grid, Mapping)
    validation.expect(mapping, "grid", grid, "a mapping of the names of axes to values", TypeError)
    validation.expect(
        executor is None or isinstance(executor, Executor), "executor", executor, "an Executor", TypeError
    )
    processes = validation.optional(validation.integer, processes, "processes", 1, MAX_PROCESSES)
    task, grid = as_task(task), dict(grid or {})
    axes: dict[str, list[Any]] = {
        "depth": _axis(depths, "depths", 1),
        "width": _axis(grid.pop("width", [100]), "width", 1),
        "size": _axis(grid.pop("size", [task.n]), "size", 2),
        "ridge": _axis(ridges, "ridges", 0.0),
        "seed": _axis(seeds, "seeds", 0),
    }
    largest = max(axes["size"])
    validation.expect(largest <= task.n, "size", f"{largest}", f"at most the number of samples, {task.n}")
    for name in grid:
        validation.choice(name, "grid", ("width", "size", "slope", "bias", "init"))
    network: dict[str, Any] = {
        "slope": validation.slope(grid.get("slope", 0.0)),
        "bias": validation.flag(grid.get("bias", True), "bias"),
    }
    network["init"] = validation.init(grid.get("init", "he"))
    depth, width = max(axes["depth"]), max(axes["width"])
    weights = (depth - 1) * (width**2 + 256) + width * (task.d_in + task.d_out)
    validation.largest_fits(weights, {"depths": depth, "width": width})
    for name in options:
        if name in ("members", "ridge", "seed"):
            raise ValueError(f"options: got {name!r}, which the grid decides; use ridges and seeds")
        if name not in OPTIONS:
            raise TypeError(f"options: got {name!r}, which train does not have{validation.suggest(name, OPTIONS)}")
    if isinstance(options.get("record"), Record) and options["record"].watch is not None:
        raise ValueError("watch: the runs of a grid are trained in parallel; watch one of bnrank.train")
    if isinstance(options.get("optimizer"), str):
        validation.choice(options["optimizer"], "optimizer", OPTIMIZERS)
    _check(options, replace(task, x=task.x[: min(axes["size"])], y=task.y[: min(axes["size"])]), axes, device)
    groups = [
        _Group(depth, width, size, tuple(axes["ridge"]), tuple(axes["seed"]), network, str(device), options)
        for depth, width, size in itertools.product(axes["depth"], axes["width"], axes["size"])
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepare_folder(temporary if out is None else out)
        ran = _run_all(groups, task, folder, executor, processes, progress)
        return _assemble(groups, task, folder, axes, ran)


def _check(options: Mapping[str, Any], task: Task, axes: Mapping[str, list[Any]], device: str | torch.device) -> None:
    """Raise what `bnrank.train` would raise of these options, before any network is trained."""
    try:
        torch.empty(0, device=device)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device: got {validation.describe(device)}, expected a device of this machine: {error}"
        ) from None
    given_options = {"steps": 5000, "record": 100, "optimizer": "auto", "dtype": torch.float32, **options}
    batch_size, optimizer = options.get("batch_size"), given_options["optimizer"]
    ridge, seed = (list(values) for values in zip(*itertools.product(axes["ridge"], axes["seed"]), strict=True))
    net, varied = MLP([task.d_in, 1, task.d_out]), [ridge, getattr(optimizer, "lr", None)]
    start = starting_points(net, task, None, seed, varied, batch_size, given_options["dtype"])
    stop, record = given(Stop, given_options["steps"], "steps"), given(Record, given_options["record"], "record")
    TrainSettings.create(start, task, ridge, stop, optimizer, batch_size, record, None)
    validation.optional(validation.integer, options.get("checkpoint_every"), "checkpoint_every")


@dataclass(frozen=True)
class _Group:
    """Runs that form one ensemble."""

    depth: int
    width: int
    size: int
    ridges: tuple[float, ...]
    seeds: tuple[int, ...]
    network: dict[str, Any]
    device: str
    options: dict[str, Any]

    def path(self, task: Task, folder: Path) -> Path:
        """Return the results folder, named by the hash of everything that determines the results."""
        settings = vars(self) | {"options": sorted(self.options.items())}
        return folder / identity.digest(identity.FORMAT, settings, task.loss, task.x, task.y)[:20]


def _train_group(group: _Group, task: Task, folder: Path, wait: bool = False) -> str:
    """Train one ensemble and store its result in a folder, unless another process does.

    Returns "trained", "stored" if a result is found, or "busy" if another process trains it; with ``wait``, the latter
    is waited for.
    """
    try:
        with writing("out", folder):
            folder.mkdir(exist_ok=True)
        with one_writer(folder, lock=LOCK, wait=wait):
            if _is_done(folder):
                return "stored"
            _train_members(group, task, folder)
            return "trained"
    except InUseError:
        if wait:
            raise
        return "busy"


def _train_members(group: _Group, task: Task, folder: Path) -> None:
    """Train one ensemble, with ridges as the outer loop, and store its result in a folder.

    Errors are stored too, except that the folder cannot be written to.
    """
    pairs = list(itertools.product(group.ridges, group.seeds))
    ridge, seed = [r for r, _ in pairs], [s for _, s in pairs]
    try:
        part = replace(task, x=task.x[: group.size], y=task.y[: group.size])
        net = MLP([task.d_in, *[group.width] * (group.depth - 1), task.d_out], **group.network).to(group.device)
        options = dict(group.options)
        save = Save(folder, checkpoint_every=options.pop("checkpoint_every", None))
        run = train(net, part, ridge=ridge, seed=seed, out=save, progress=False, **options)
        if "interrupted" in run.summary.status.values:
            raise KeyboardInterrupt  # the next sweep resumes from the checkpoint
        spectra = run.history["weight_singular_values"]
        last = spectra.isel(step=last_rows(spectra.notnull().any(["layer", "index"]))).reset_coords(drop=True)
        result = run.summary.assign(weight_singular_values=last, error=("member", [""] * len(pairs)))
    except StorageError:
        raise
    except Exception as error:
        _store_failure(group, folder, error)
        return
    _store(group, folder, result)
    discard_checkpoints(folder / CHECKPOINT)  # large, and no longer needed


def _store_failure(group: _Group, folder: Path, error: BaseException) -> None:
    """Store an error as the result of every member."""
    import xarray as xr

    message = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error, limit=3))}"
    if isinstance(error, BrokenExecutor):
        message = (
            "a worker process was killed or could not start: out of memory, or a script without "
            f"if __name__ == '__main__': around the sweep; processes=1 runs it without workers\n{message}"
        )
    count = len(group.ridges) * len(group.seeds)
    _store(
        group, folder, xr.Dataset({"status": ("member", ["failed"] * count), "error": ("member", [message] * count)})
    )


def _store(group: _Group, folder: Path, result: xr.Dataset) -> None:
    result = result.assign_attrs(group=json.dumps(group.__dict__, default=str), folder=folder.name)
    with writing("out", folder):
        checksums.replace(folder, {RESULT: netcdf.dump(result)}, keep=True)


def _load(folder: Path) -> xr.Dataset:
    """Return the result in the folder of a group.

    Raises
    ------
    DamagedError
        If it is missing, damaged or of another group.
    """
    files = checksums.read(folder, {*checksums.listed(folder), RESULT})  # those of the run, too
    result = netcdf.parse(files[RESULT], folder / RESULT)
    own = result.attrs.get("folder") == folder.name and {"status", "error"} <= set(result.variables)
    if not own:
        raise DamagedError(f"out: {str(folder / RESULT)!r} is damaged: it is not the result of this folder")
    return result


def _run_all(
    groups: list[_Group], task: Task, folder: Path, executor: Executor | None, processes: int | None, progress: bool
) -> int:
    """Run the ensembles whose results are not stored yet, or have failed, and return how many were trained here."""
    waiting = [group for group in groups if not _is_done(group.path(task, folder))]
    waiting.sort(key=lambda group: -group.depth * group.width**2 * group.size)  # longest first
    text = "training ensembles"
    done, ran = len(groups) - len(waiting), 0
    threads = torch.get_num_threads()
    if executor is None:
        processes = min(threads, len(waiting)) if processes is None else processes
    with bar(progress, text, len(groups)) as tell, contextlib.ExitStack() as stack:
        tell(done, text)
        if executor is None and processes is not None and processes > 1:
            context, each = get_context("spawn"), max(1, threads // processes)
            executor = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=(each,))
            stack.callback(executor.shutdown, wait=True, cancel_futures=True)
        for wait in (False, True):  # those that another process trains come last
            busy = []
            for group, result in _results(waiting, task, folder, executor, wait):
                if result == "busy":
                    busy.append(group)
                    continue
                done, ran = done + 1, ran + (result == "trained")
                tell(done, text)
            waiting = busy
    return ran


def _start_worker(threads: int) -> None:
    """Prepare a process of the pool."""
    end_with_parent()
    torch.set_num_threads(threads)


def _results(
    groups: list[_Group], task: Task, folder: Path, executor: Executor | None, wait: bool
) -> Iterator[tuple[_Group, str]]:
    """Yield the ensembles, each with what `_train_group` returns, in the order in which they end."""
    if executor is None:
        for group in groups:
            yield group, _train_group(group, task, group.path(task, folder), wait)
        return
    plain = replace(task, truth=None)  # functions may not be picklable
    futures: dict[Future[str], _Group] = {}
    try:
        for group in groups:
            futures[_submit(executor, group, plain, group.path(plain, folder), wait)] = group
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenExecutor as error:  # a worker was killed or could not start
                yield futures[future], _fail(futures[future], futures[future].path(plain, folder), error)
    finally:
        for future in futures:
            future.cancel()


def _submit(executor: Executor, *arguments: Any) -> Future[str]:
    """Return the future of `_train_group`, with an error if a worker was killed before."""
    try:
        return executor.submit(_train_group, *arguments)
    except BrokenExecutor as error:
        future: Future[str] = Future()
        future.set_exception(error)
        return future


def _fail(group: _Group, folder: Path, error: BaseException) -> str:
    """Store an error that kept an ensemble from being trained, unless another process has trained it."""
    with writing("out", folder):
        folder.mkdir(exist_ok=True)
    with one_writer(folder, lock=LOCK, wait=True):
        if _is_done(folder):
            return "stored"
        _store_failure(group, folder, error)
        return "trained"


def _is_done(folder: Path) -> bool:
    """Return whether a complete, successful result is stored; a damaged one is named in a warning."""
    if not (folder / RESULT).exists():
        return False
    try:
        return "failed" not in _load(folder)["status"].values
    except DamagedError as error:
        if not (folder / LOCK).exists():  # otherwise it is being replaced, or the warning was given before
            warnings.warn(f"{error}; its networks are trained again", stacklevel=4)
        return False


def _assemble(groups: list[_Group], task: Task, folder: Path, axes: dict[str, list[Any]], ran: int) -> xr.Dataset:
    """Return all results as one dataset."""
    import xarray as xr

    shape = tuple(len(values) for values in axes.values())
    names = tuple(axes)
    layers = max(axes["depth"])
    found = [(g, _load(g.path(task, folder))) for g in groups]
    indices = max(result.sizes.get("index", 1) for _, result in found)
    data: dict[str, np.ndarray[Any, Any]] = {name: np.full(shape, np.nan) for name in SCALARS}
    data |= {name: np.full(shape, "", dtype=object) for name in ("status", "error", "run")}
    spectra = np.full((*shape, layers, indices), np.nan)
    for group, result in found:
        where = tuple(axes[name].index(getattr(group, name)) for name in ("depth", "width", "size"))
        data["run"][where] = group.path(task, folder).name
        for name in data.keys() & result.keys():
            data[name][where] = result[name].values.reshape(shape[3:])
        if "weight_singular_values" in result:
            values = result["weight_singular_values"].values
            spectra[where][..., : values.shape[1], : values.shape[2]] = values.reshape(*shape[3:], *values.shape[1:])
    variables: dict[str, Any] = {name: (names, np.array(values.tolist())) for name, values in data.items()}
    variables["weight_singular_values"] = ((*names, "layer", "index"), spectra)
    coords: dict[str, Any] = {**axes, "layer": np.arange(1, layers + 1), "index": np.arange(1, indices + 1)}
    return xr.Dataset(variables, coords, attrs={"task": task.name, "ran": ran})


def _axis(values: Any, name: str, minimum: float) -> list[Any]:
    """Return the distinct values of one axis of the grid: integers, or numbers if ``minimum`` is a float."""
    integers = isinstance(minimum, int)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    listed = isinstance(values, list | tuple | range) and len(values) > 0
    validation.expect(listed, name, validation.describe(values), f"a list of {'integers' if integers else 'numbers'}")
    check: Callable[..., Any] = validation.integer if integers else validation.number
    result = [check(value, f"{name}[{i}]", minimum) for i, value in enumerate(values)]
    validation.expect(len(set(result)) == len(result), name, f"{result}", "every value once")
    return result
