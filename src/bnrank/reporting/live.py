"""A page of a running sweep, rewritten at intervals."""

import os
import time
from pathlib import Path

from bnrank._core import validation
from bnrank.reporting.charts.sweeps import RUNNING, WAITING
from bnrank.reporting.page import report
from bnrank.training import Sweep
from bnrank.training.sweeping.folder import SweepFolder


def follow(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    every: float = 10.0,
    max_minutes: float | None = None,
    title: str | None = None,
) -> Path:
    """Write a page of a sweep, and again at intervals until nothing is left; return its path.

    The page shows progress, the time that is left, heat maps of what is known, and failures. A browser that has it open
    loads it again at the same intervals.

    Parameters
    ----------
    folder : path
        The folder of a sweep.
    path : path
        The file to write.
    every : float
        Seconds between two versions, at least 1.
    max_minutes : float, optional
        When to end although networks are left. 0 writes the page once. Default: never.
    title : str, optional
        The page's title.

    Raises
    ------
    TypeError, ValueError
        If it is not the folder of a sweep, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> settings = {"ridges": [1e-3, 1e-2], "grid": {"width": [8]}, "steps": 3, "processes": 1, "progress": False}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = bnrank.sweep(task, depths=[2, 3], out=folder + "/sweep", **settings)
    ...     bnrank.reporting.follow(folder + "/sweep", folder + "/page.html").name
    'page.html'
    """
    every = validation.number(every, "every", 1.0)
    limit = validation.optional(validation.number, max_minutes, "max_minutes", 0.0)
    until = float("inf") if limit is None else time.monotonic() + 60 * limit
    folder = SweepFolder.open(folder, "folder").path
    while True:
        sweep = Sweep.open(folder)
        left = any(row["status"] in (WAITING, RUNNING) for row in sweep.rows)
        goes_on = left and time.monotonic() < until
        written = report(sweep, path, title=title, refresh=round(every) if goes_on else None)
        if not goes_on:
            return written
        time.sleep(every)
