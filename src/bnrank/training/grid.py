"""Grids of runs: grouped into ensembles, trained in parallel, stored, resumed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch

from bnrank._core import validation
from bnrank.training.sweeping.axes import read_grid
from bnrank.training.sweeping.cells import cells_of, check_options, check_trainable, groups_of
from bnrank.training.sweeping.driver import run_all
from bnrank.training.sweeping.engines import MAX_PROCESSES, engine
from bnrank.training.sweeping.folder import SweepFolder, planned
from bnrank.training.sweeping.makers import Maker
from bnrank.training.sweeping.tabulated import dataset, frame

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@overload
def sweep(task: Any, *, grid: Mapping[str, Any] | None = None, **options: Any) -> xr.Dataset: ...


@overload
def sweep(task: Any, *, grid: Sequence[Mapping[str, Any]], **options: Any) -> pd.DataFrame: ...


def sweep(
    task: Any,
    *,
    depths: Sequence[int] | None = None,
    ridges: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    grid: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    executor: Any = None,
    processes: int | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
    **options: Any,
) -> Any:
    """Return the results of MLPs trained for every setting of a grid, or of a list.

    Networks of one architecture, data and options are trained in groups of up to 16. Networks whose results are already
    in ``out`` are not trained again, whatever grid they were part of, except failed ones, which are retried. The folder
    is the truth: a group whose process is killed is trained by another, from its last checkpoint, and after three such
    deaths its networks are trained one by one, so that only one that ends its process fails. In a script, call this
    below ``if __name__ == "__main__":``, because workers are new interpreters, or use ``processes=1``.

    Parameters
    ----------
    task : Task, tuple or function
        Data and loss: (x, y) for the squared error, or (x, y, loss); with ``Task.weights``, as in `bnrank.train`. Or a
        function that returns these, such as `bnrank.tasks.low_rank_map`, whose arguments are axes, too.
        ``functools.partial`` sets those that are not.
    depths : sequence of int, optional
        Values of the depth L. Give them here or as "depth" of the grid.
    ridges : sequence of float, optional
        Values of lambda. Default: "ridge" of the grid, or [1e-3].
    seeds : sequence of int, optional
        Seeds of the initial parameters and of the order of mini-batches. Default: "seed" of the grid, or [0].
    grid : mapping or list of mappings, optional
        Lists of values by the names of axes, of which every combination is trained: "depth", "ridge", "seed"; "width"
        of the hidden layers (default [100]); "size", the number of training samples, taken from the first (default:
        all); "slope", "bias", "init" as in `bnrank.MLP`; options of `bnrank.train` ("steps", "optimizer", "batch_size",
        "dtype", "record") and the fields of `Adam`, `GradientDescent` and `Stop` ("lr", "schedule", "norm_power",
        "gradient_norm", "balance_residual"); "task.NAME" for an argument of the function that makes the task. One value
        in place of a list is the same for all networks, and no axis of the result (not for the first five). Or a list
        of settings, mappings with one value for each name, such as those of `bnrank.training.sample_settings`: each is
        trained with every combination of ``depths``, ``ridges`` and ``seeds`` that are given.
    executor : concurrent.futures.Executor, dask.distributed.Client or function, optional
        Executor that trains the groups, each with one thread of PyTorch in its processes; they must reach the folder
        under the same path. A group is submitted again until its rows are in the folder. A function returns an
        executor, which is shut down in the end, and another one when that broke, as pools do when a process is killed.
        Default: processes of this machine that divide PyTorch's threads among them, are replaced when they are killed,
        and end when this process does.
    processes : int, optional
        Number of these processes. Default: the number of threads, at most one per group. 1 trains in this process. 0
        only prepares the folder, for workers that ``bnrank sweep --worker FOLDER`` starts on any machine.
    out : path, optional
        Folder for the results; see `bnrank.training.Sweep`, which opens it while the sweep runs, and afterwards. A
        killed sweep resumes from the checkpoints in it. Later calls may add values and axes; what is an axis of
        none of them (data, optimizer, ...) must be the same. Calls that run at the same time share the work: what one
        of them trains is waited for by the others, after they have trained the rest.
    device : str
        Device to train on.
    progress : bool
        Show a progress bar.
    **options
        Options of :func:`bnrank.train` for all networks (steps, optimizer, batch_size, dtype, record), and
        ``checkpoint_every`` of `Save`.

    Returns
    -------
    xarray.Dataset or pandas.DataFrame
        Of a mapping, a dataset over (depth, width, size, ridge, seed) and the other axes of the grid; "size" only if it
        is given, where a function makes the task. Values of an axis that are neither all numbers nor all texts are
        texts. ``loss``, ``cost``, ``parameter_norm``, ``gradient_norm``, ``balance_residual``, ``steps``,
        ``bottleneck_rank`` (NaN if there is none), ``status``, ``error`` (empty unless status is "failed"), ``seconds``
        (wall time of the group) and ``worker`` (host and process). ``weight_singular_values`` has the additional
        dimensions (layer, index) and is NaN where a network has no such layer. Where an axis has the name of a result,
        the result is called ``final_steps``, for instance. Of a list of settings, a table with one row per setting, in
        their order, and the same columns except ``weight_singular_values``. The attribute ``ran`` is the number of
        networks that were trained; the others were found in ``out``.

    Raises
    ------
    TypeError, ValueError
        If an argument or an axis of the grid is invalid or unknown, or does not fit the others, or the folder cannot be
        written to (finished networks are kept), holds something else or a sweep of other data or settings, or was begun
        with another version of bnrank or torch. Other errors are stored in the result.

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
    >>> grid = {"task.rank": [1, 2], "task.n": 40, "depth": [2], "width": [8], "lr": [1e-3, 1e-2]}
    >>> results = bnrank.sweep(
    ...     bnrank.tasks.low_rank_map, grid=grid, optimizer="adam", steps=3, processes=1, progress=False
    ... )
    >>> dict(results.loss.squeeze().sizes)
    {'task.rank': 2, 'lr': 2}
    """
    executor = engine(executor)
    processes = validation.optional(validation.integer, processes, "processes", 0, MAX_PROCESSES)
    prepares = processes == 0
    expected = "a folder, for processes=0, which only prepares it"
    validation.expect(
        not prepares or (out is not None and executor is None), "out, executor", f"{out}, {executor}", expected
    )
    maker = Maker(task)
    sizes = None if maker.task is None else [maker.task.n]
    given = {"depth": depths, "ridge": ridges, "seed": seeds}
    found = read_grid(grid, given, sizes, maker.arguments)
    check_options(options, found)
    cells = cells_of(found, maker, options)
    check_trainable(cells, maker, device)
    with tempfile.TemporaryDirectory() as temporary:
        folder = SweepFolder.create(temporary if out is None else out)
        groups, keys = groups_of(cells, maker, folder.path, device, options.get("checkpoint_every"))
        new = planned(folder, groups)
        ran = 0 if prepares else run_all(folder, new, executor, processes, progress)
        folder.refresh()
        attributes = {"task": maker.name, "ran": ran}
        if found.axes:
            return dataset(folder, found, keys, attributes)
        return frame(folder, [cell.point for cell in cells], keys, attributes)
