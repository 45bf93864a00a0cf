"""Finishing the members of a run, one after another, in the folder of the run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrank._core import sources, store
from bnrank.measures.second_order import Evaluation, Problem
from bnrank.networks.chain import as_mlp
from bnrank.tasks.task import Task
from bnrank.training.ensemble import filled
from bnrank.training.finishing.files import pack, unpack
from bnrank.training.finishing.finisher import Finished, described, searched
from bnrank.training.finishing.search import OUT_OF_TIME
from bnrank.training.finishing.stages import SEARCH, Stages
from bnrank.training.history import Run
from bnrank.training.options import Finish

KIND = "finished networks"
SAME = 1e-12  # relative difference of the losses before of one member

Members = tuple[Finished | None, ...]


def finished_run(run: Run, task: Task, options: Finish, path: Path | None = None, progress: bool = True) -> Run:
    """Return the run with its members finished, except those that diverged or were interrupted.

    Parameters
    ----------
    run : Run
        A trained ensemble of MLPs.
    task : Task
        Data and loss.
    options : Finish
        How far.
    path : Path, optional
        A file that holds the members finished so far. Those that began at the same network are not finished again;
        those that ran out of time go on, and so does the search of one that was interrupted.
    progress : bool
        Show a progress bar per member.
    """
    known = _known(path, run.members)
    members: list[Finished | None] = [None] * run.members
    each = zip(run.parameters, run.settings.ridge, run.summary["status"].values.tolist(), strict=True)
    for number, (row, ridge, status) in enumerate(each):
        if status in ("diverged", "interrupted"):
            continue
        start, done = filled(run.net, row), known[number]
        problem = Problem.of(as_mlp(start), task, ridge)
        before = Evaluation(problem, problem.layers(as_mlp(start))).loss
        if done is not None and (not math.isclose(done.loss_before, before, rel_tol=SAME) or _beyond(done, options)):
            done = None
        if done is None or not _complete(done, options):
            new = _finished(start if done is None else done.network, problem, options, path, progress=progress)
            if done is not None:
                seconds, born = done.seconds + new.seconds, done.born + new.born
                new = replace(new, loss_before=done.loss_before, seconds=seconds, born=born)
            done = new
        members[number] = done
        if path is not None:
            write_members(path, tuple(members[: number + 1]) + known[number + 1 :])
    parameters = run.parameters.double()
    for row, done in zip(parameters, members, strict=True):
        if done is not None:
            row.copy_(torch.cat([p.detach().flatten() for p in done.network.parameters()]))
    summary = run.summary.assign(_columns(members))
    return replace(run, parameters=parameters, finished=tuple(members), summary=summary)


def _finished(net: nn.Module, problem: Problem, options: Finish, path: Path | None, *, progress: bool) -> Finished:
    """Return a finished network; a search for it that was interrupted goes on from the file next to ``path``."""
    chain = as_mlp(net)
    problem.refuse_infinite(problem.layers(chain))
    settings = {"ridge": problem.ridge, "rtol": options.rtol, "births": options.births, "seed": 0}
    stages = Stages(None if path is None else path.with_name(SEARCH), described(problem, chain, settings))
    with contextlib.suppress(ValueError):  # damaged
        stages.read()
    found = searched(chain, problem, settings, options.max_minutes, stages, progress=progress)
    stages.discard()
    return found


def _beyond(done: Finished, options: Finish) -> bool:
    """Return whether neurons were added that the options exclude."""
    return done.born > 0 and not options.births


def _complete(done: Finished, options: Finish) -> bool:
    """Return whether there is nothing left to do by the options."""
    at = done.stationarity
    full = list(at.live) == done.network.widths[1:-1]
    searched = not options.births or full or len(at.births) > 0
    return at.residual <= options.rtol and OUT_OF_TIME not in done.reason and searched


def _columns(members: Sequence[Finished | None]) -> dict[str, Any]:
    """Return the certificates as variables of a summary, over member."""
    numbers = {
        "finished_loss": ("C + lambda ||theta||^2", "regularized loss of the finished network"),
        "stationarity": ("1", "relative norm of its least subgradient"),
    }
    found = [(np.nan, np.nan) if m is None else (m.loss, m.stationarity.residual) for m in members]
    columns: dict[str, Any] = {
        name: ("member", [row[i] for row in found], {"units": units, "long_name": text})
        for i, (name, (units, text)) in enumerate(numbers.items())
    }
    columns["kind"] = "member", ["not finished" if m is None else m.kind for m in members]
    columns["reason"] = "member", ["" if m is None else m.reason for m in members]
    return columns


def write_members(path: Path, members: Members) -> Path:
    """Write the finished members of a run to a file."""
    tensors: dict[str, Any] = {}
    about: list[dict[str, Any] | None] = []
    for number, finished in enumerate(members):
        own, values = ({}, None) if finished is None else pack(finished)
        about.append(values)
        tensors |= {f"{number}/{name}": value for name, value in own.items()}
    return store.save(path, tensors, {"members": about}, KIND)


def read_members(path: Path, data: bytes | None = None) -> Members:
    """Return the finished members of a run from a file, or its contents; None for those that were not finished.

    Raises
    ------
    ValueError
        If the file is missing or damaged.
    """
    stored = store.read(path, name="out", data=data)
    try:
        about, members = stored.about["members"], []
        for number, values in enumerate(about):
            start = f"{number}/"
            own = {name.removeprefix(start): v for name, v in stored.tensors.items() if name.startswith(start)}
            members.append(None if values is None else unpack(own, values, path))
        return tuple(members)
    except (KeyError, AttributeError, TypeError) as error:
        raise sources.DamagedError(f"out: {str(path)!r} is damaged: {error}") from error


def _known(path: Path | None, members: int) -> Members:
    """Return the finished members in a file of so many; None for each where it is missing, damaged or of others."""
    if path is not None and path.exists():
        try:
            found = read_members(path)
        except ValueError:
            found = ()
        if len(found) == members:
            return found
    return (None,) * members
