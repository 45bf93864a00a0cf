"""Grids of runs: grouped into ensembles, trained in parallel, stored, resumed."""

from __future__ import annotations

import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bnrank._core import validation
from bnrank.networks import MLP
from bnrank.tasks import Task
from bnrank.tasks.task import as_task
from bnrank.training.options import Record, Stop, given
from bnrank.training.settings import OPTIMIZERS, TrainSettings, starting_points
from bnrank.training.sweeping.driver import run_all
from bnrank.training.sweeping.engines import engine
from bnrank.training.sweeping.folder import SweepFolder, planned
from bnrank.training.sweeping.groups import Group, encoded, grouped, store_task
from bnrank.training.trainer import train

if TYPE_CHECKING:
    import xarray as xr

MAX_PROCESSES = 1024
OPTIONS = [name for name in inspect.signature(train).parameters if name not in ("net", "task", "out", "progress")]
OPTIONS.append("checkpoint_every")
SCALARS = ("loss", "cost", "parameter_norm", "gradient_norm", "balance_residual", "steps", "bottleneck_rank", "seconds")


def sweep(
    task: Task | tuple[Any, ...],
    *,
    depths: Sequence[int],
    ridges: Sequence[float] = (1e-3,),
    seeds: Sequence[int] = (0,),
    grid: Mapping[str, Any] | None = None,
    executor: Any = None,
    processes: int | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
    **options: Any,
) -> xr.Dataset:
    """Return the results of MLPs trained for every depth, ridge and seed, and every width and sample size of a grid.

    Networks that differ only in ridge and seed are trained in groups of up to 16. Networks whose results are already in
    ``out`` are not trained again, whatever grid they were part of, except failed ones, which are retried. The folder is
    the truth: a group whose process is killed is trained by another, from its last checkpoint, and after three such
    deaths its networks are trained one by one, so that only one that ends its process fails. In a script, call this
    below ``if __name__ == "__main__":``, because workers are new interpreters, or use ``processes=1``.

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
    executor : concurrent.futures.Executor, dask.distributed.Client or function, optional
        Executor that trains the groups, each with one thread of PyTorch in its processes; they must reach the folder
        under the same path. A group is submitted again until its rows are in the folder. A function returns an
        executor, which is shut down in the end, and another one when that broke, as pools do when a process is killed.
        Default: processes of
        this machine that divide PyTorch's threads among them, are replaced when they are killed, and end when this
        process does.
    processes : int, optional
        Number of these processes. Default: the number of threads, at most one per group. 1 trains in this process.
    out : path, optional
        Folder for the results; see `bnrank.training.Sweep`, which opens it while the sweep runs, and afterwards. A
        killed sweep resumes from the checkpoints in it. Sweeps that run at the same time with the same folder share
        the work: what one of them trains is waited for by the others, after they have trained the rest.
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
        ``balance_residual``, ``steps``, ``bottleneck_rank`` (NaN if there is none), ``status``, ``error`` (empty unless
        status is "failed"), ``seconds`` (wall time of the group) and ``worker`` (host and process).
        ``weight_singular_values`` has the additional dimensions (layer, index) and is NaN where a network has no such
        layer. The attribute ``ran`` is the number of networks that were trained; the others were found in ``out``.

    Raises
    ------
    TypeError, ValueError
        If an argument of the grid is invalid, or the folder cannot be written to (finished networks are kept), holds
        something else, or was begun with another version of bnrank or torch. Other errors are stored in the result.

    Warns
    -----
    UserWarning
        If a stored row is damaged; its network is trained again.

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
    executor = engine(executor)
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
    every = options.get("checkpoint_every")
    with tempfile.TemporaryDirectory() as temporary:
        folder = SweepFolder.create(temporary if out is None else out)
        digest = store_task(folder.path, task)
        groups: list[Group] = []
        for depth, width, size in itertools.product(axes["depth"], axes["width"], axes["size"]):
            settings = {"task": digest, "size": size, "depth": depth, "width": width, "network": network}
            settings |= {"device": str(device), "checkpoint_every": every}
            for own, pairs in _by_rate(options, list(itertools.product(axes["ridge"], axes["seed"]))):
                place = {"depth": depth, "width": width, "size": size}
                members = [(ridge, seed, place | {"ridge": ridge, "seed": seed}) for ridge, seed in pairs]
                groups += grouped(settings | {"options": own}, members)
        cells = {tuple(member.point[name] for name in axes): member.key for g in groups for member in g.members}
        ran = run_all(folder, planned(folder, groups), executor, processes, progress)
        return _assemble(folder, task, axes, cells, ran)


def _by_rate(
    options: Mapping[str, Any], pairs: list[tuple[float, int]]
) -> list[tuple[dict[str, Any], list[tuple[float, int]]]]:
    """Return options as plain values with the ridges and seeds that have them: one entry for each step size."""
    plain = {name: value for name, value in options.items() if name != "checkpoint_every"}
    optimizer = plain.get("optimizer")
    rates = getattr(optimizer, "lr", None)
    found: dict[Any, list[tuple[float, int]]] = {}
    for i, pair in enumerate(pairs):
        found.setdefault(rates[i] if isinstance(rates, tuple) else None, []).append(pair)
    return [
        (
            {
                name: encoded(replace(value, lr=rate) if name == "optimizer" and rate is not None else value, name)
                for name, value in plain.items()
            },
            own,
        )
        for rate, own in found.items()
    ]


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


def _assemble(
    folder: SweepFolder, task: Task, axes: dict[str, list[Any]], cells: dict[Any, str], ran: int
) -> xr.Dataset:
    """Return the rows of a full grid as one dataset."""
    import xarray as xr

    folder.refresh()
    shape, names, layers = tuple(len(values) for values in axes.values()), tuple(axes), max(axes["depth"])
    rows = {place: folder.rows[key] for place, key in cells.items() if key in folder.rows}
    lines = [line for row in rows.values() for line in row.get("weight_singular_values", ())]
    indices = max(map(len, lines), default=1)
    data: dict[str, np.ndarray[Any, Any]] = {name: np.full(shape, np.nan) for name in SCALARS}
    data |= {name: np.full(shape, "", dtype=object) for name in ("status", "error", "worker")}
    spectra = np.full((*shape, layers, indices), np.nan)
    places = [{value: i for i, value in enumerate(values)} for values in axes.values()]
    for place, row in rows.items():
        where = tuple(index[value] for index, value in zip(places, place, strict=True))
        for name in data.keys() & row.keys():
            data[name][where] = np.nan if row[name] is None else row[name]
        for layer, line in enumerate(row.get("weight_singular_values", ())):
            spectra[where][layer, : len(line)] = line
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
