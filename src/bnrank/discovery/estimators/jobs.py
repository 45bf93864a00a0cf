"""Independent pieces of a fit: one after the other, or in several processes.

A piece always runs on one thread, so that its bits depend neither on the number of processes nor on that of PyTorch's
threads. (Threads do not make trainings of this size faster: on 500 rows, two take 1.3 times as long as one.)
"""

import contextlib
import functools
import multiprocessing
import numbers
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, TypeVar

import joblib
from joblib.parallel import get_active_backend

from bnrank._core import validation
from bnrank._core.processes import end_with_parent
from bnrank.discovery.estimators.keeping import folder_of_trainings, kept
from bnrank.discovery.estimators.progress import current, voice
from bnrank.training.ensemble import Workers
from bnrank.training.interruption import interruptions
from bnrank.training.sweeping.engines import Engine, engaged_engine, run_calls

T = TypeVar("T")
EXPECTED = "a number of processes, -1 for as many as there are cores, or None for one"
KILLED = (
    "n_jobs: a worker process ended abruptly (it was killed, or the memory was full), expected {} that run to their "
    "end; n_jobs=1 needs the memory of one, and trainings that a folder keeps (out) are not repeated"
)


def processes_for(n_jobs: int | None) -> int:
    """Return the number of processes that ``n_jobs`` stands for, as in scikit-learn.

    None is 1 unless a context of joblib says otherwise, -1 is all cores, -2 all but one. It is 1 inside a worker of
    joblib, and in a context of joblib that asks for threads or for "multiprocessing" (which returns all results at the
    end).

    Examples
    --------
    >>> processes_for(None), processes_for(3)
    (1, 3)
    """
    whole = isinstance(n_jobs, numbers.Integral) and not isinstance(n_jobs, bool)
    validation.expect(n_jobs is None or whole, "n_jobs", n_jobs, EXPECTED, TypeError)
    validation.expect(n_jobs != 0, "n_jobs", "0", EXPECTED)
    backend, _ = get_active_backend(prefer="processes")
    fit = backend.supports_return_generator and not getattr(backend, "uses_threads", False)
    return int(joblib.effective_n_jobs(n_jobs)) if fit else 1


def results_of(calls: Sequence[Callable[[], T]], processes: int) -> list[T]:
    """Return the results of calls, in their order; the first ones start first.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C: no further call starts, and those that run stop as trainings do, with a checkpoint if they are
        kept. After a second one, workers are killed.
    RuntimeError
        If a worker process was killed.
    """
    engine = engaged_engine()
    if engine is not None and processes > 1:
        return _on_engine(calls, engine)
    if processes == 1 or len(calls) < 2:
        with Workers(1):
            return [call() for call in calls]
    results: dict[int, T] = {}
    with interruptions() as interrupted:

        def waiting() -> Iterator[Any]:
            folder = folder_of_trainings()
            for number, call in enumerate(calls):
                if interrupted.is_set():
                    return
                yield joblib.delayed(_attempt)(number, call, folder, os.getpid())

        parallel = joblib.Parallel(
            processes, prefer="processes", pre_dispatch="n_jobs", max_nbytes=None, return_as="generator_unordered"
        )
        try:
            for number, result, work in parallel(waiting()):
                results |= {number: result[0]} if result else {}
                current().advance(work)
        except BrokenExecutor as error:
            if not interrupted.is_set():  # otherwise Ctrl-C came while a worker started
                raise RuntimeError(KILLED.format(f"{processes} processes")) from error
    if len(results) < len(calls):
        raise KeyboardInterrupt
    return [results[number] for number in range(len(calls))]


def _on_engine(calls: Sequence[Callable[[], T]], engine: Engine) -> list[T]:
    """Return the results of calls that an executor runs."""
    results: dict[int, T] = {}

    def done(number: int, found: tuple[T, float]) -> None:
        results[number], work = found
        current().advance(work)

    folder = folder_of_trainings()
    run_calls([functools.partial(_remote, call, folder) for call in calls], engine, done)
    return [results[number] for number in range(len(calls))]


def _remote(call: Callable[[], T], folder: Path | None) -> tuple[T, float]:
    """Return the result of a call and the work that was done."""
    _, result, work = _attempt(0, call, folder, 0)
    if not result:
        raise KeyboardInterrupt
    return result[0], work


def _attempt(number: int, call: Callable[[], T], folder: Path | None, parent: int) -> tuple[int, tuple[T, ...], float]:
    """Return the number of a call, its result, nothing if it was interrupted, and the work that was done."""
    begun = multiprocessing.parent_process()
    if begun is not None and begun.pid == parent:
        _prepare_worker()
    with kept(folder), voice(False) as told, Workers(1):
        result: tuple[T, ...] = ()
        with contextlib.suppress(KeyboardInterrupt):
            result = (call(),)
        return number, result, told.done


@functools.cache
def _prepare_worker() -> None:
    """Let Ctrl-C stop trainings, and not a worker that waits for the next call; end workers with their driver."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
