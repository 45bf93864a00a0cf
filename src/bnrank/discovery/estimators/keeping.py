"""Trainings of a fit: kept in a folder, from which an interrupted fit resumes."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from torch import nn

from bnrank import training
from bnrank._core import identity
from bnrank._core.files import prepare_folder
from bnrank.discovery.estimators.progress import current
from bnrank.tasks import Task
from bnrank.training import Run

_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextlib.contextmanager
def kept(out: str | os.PathLike[str] | None) -> Iterator[None]:
    """Let :func:`train` keep every training in a folder of its own below ``out``; None for no folder."""
    before = _FOLDER.set(None if out is None else prepare_folder(out))
    try:
        yield
    finally:
        _FOLDER.reset(before)


def folder_of_trainings() -> Path | None:
    """Return the folder in which :func:`train` keeps trainings; None for no folder."""
    return _FOLDER.get()


def train(net: nn.Module, task: Task, **options: Any) -> Run:
    """Return the run of `bnrank.train`, or the one with the same arguments that is kept; resume one that is unfinished.

    The folder of a training is named by a hash of its arguments, so that a fit finds its own among those of others.
    """
    folder = folder_of_trainings()
    if folder is not None:
        data = [values for values in (task.x, task.y, task.weights) if values is not None]
        state = [(name, value) for name, value in net.state_dict().items()]
        options["out"] = folder / identity.digest(*data, task.loss, state, sorted(options.items()))[:16]
    run = training.train(net, task, **options)
    current().advance(run.members * run.settings.steps * sum(p.ndim > 1 for p in net.parameters()))
    return run
