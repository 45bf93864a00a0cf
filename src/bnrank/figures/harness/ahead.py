"""Trainings of a figure on an engine, ahead of the computation that opens their results in the figure's folder.

The folder is the truth: a training stores its result there, whether an engine or the figure itself runs it, and a
figure that was interrupted or lost a worker goes on from what is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnrank._core import checksums
from bnrank._core.files import write_atomically
from bnrank._core.progress import bar
from bnrank.figures.harness import store
from bnrank.figures.harness.figure import ctrl_c
from bnrank.training.ensemble import Workers
from bnrank.training.sweeping.engines import engaged_engine, run_calls


def ahead(calls: Sequence[Callable[[], object]], progress: bool = False) -> None:
    """Run calls on the engine of `bnrank.figures.reproduce`, if there is one; without any, do nothing.

    Each call stores what it computes, so that the same call returns it afterwards without computing it again. It must
    be possible to pickle it: a `functools.partial` of a function of a module, with the folder among its arguments.

    Raises
    ------
    RuntimeError
        If a call was lost three times, or the executor takes no work.
    Exception
        That a call raised.

    Examples
    --------
    >>> ahead([functools.partial(print, "without an engine, nothing is run ahead")])
    """
    engine = engaged_engine()
    if engine is None or not calls:
        return
    ended = 0
    text = "training on the executor"
    with bar(progress, text, len(calls)) as show:

        def done(number: int, result: None) -> None:
            nonlocal ended
            ended += 1
            show(ended, text)

        run_calls([functools.partial(_stored, call) for call in calls], engine, done)


def _stored(call: Callable[[], object]) -> None:
    """Run a call with one thread; its result is in the folder."""
    with ctrl_c(), Workers(1):
        call()


def kept(path: Path, call: Callable[[], Any]) -> Any:
    """Return the result of a call, of plain values, from a file; if it is missing or damaged, from the call.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = kept(Path(folder) / "sum.json", lambda: {"sum": 1.5, "end": float("inf")})
    ...     kept(Path(folder) / "sum.json", lambda: 1 / 0) == first
    True
    """
    try:
        return store.read_sealed(path)["result"]
    except (OSError, ValueError, KeyError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, checksums.sealed(store.plain({"result": call()})))
    return store.read_sealed(path)["result"]
