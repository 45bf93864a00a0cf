"""Engines: executors, clients of Dask, and functions that make one anew when it broke; and calls that run on them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import torch

from bnrank._core import validation
from bnrank._core.locks import InUseError
from bnrank._core.processes import Pool
from bnrank._version import __version__

EXPECTED = "a concurrent.futures.Executor, a dask.distributed.Client, or a function that returns one"
NAMED = "a number of processes, the address of a scheduler of Dask (tcp://HOST:PORT), or its file (.json)"
MAX_PROCESSES = 1024
ATTEMPTS = 2  # how often a call, or an executor, is tried again
POLL = 0.5  # seconds before a call is submitted again whose folder another process holds
Engine = Executor | Callable[[], Executor]
T = TypeVar("T")
_ENGINE: ContextVar[Engine | None] = ContextVar("engine", default=None)


def engine(executor: Any) -> Engine | None:
    """Return an executor, that of a client of Dask included, or a function that makes one; None without any.

    Raises
    ------
    TypeError
        If it is something else.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(1) as threads:
    ...     engine(threads) is threads, engine(lambda: threads)() is threads
    (True, True)
    """
    if executor is None:
        return None
    found = _ready(executor)
    if found is not None:
        return found
    validation.expect(callable(executor), "executor", executor, EXPECTED, TypeError)

    def make() -> Executor:
        made = executor()
        found = _ready(made)
        got = f"a function that returned {validation.describe(made)}"
        validation.expect(found is not None, "executor", got, EXPECTED, TypeError)
        assert found is not None
        return found

    return make


def named_engine(text: str) -> Engine:
    """Return the engine that a text names: processes of this machine, or a scheduler of Dask.

    Raises
    ------
    ValueError
        If it is neither, Dask is not installed, or no scheduler answers.

    Examples
    --------
    >>> callable(named_engine("2"))
    True
    """
    validation.expect(isinstance(text, str), "executor", text, NAMED, TypeError)
    if text.isdecimal():
        return functools.partial(Pool, validation.integer(int(text), "executor", 1, MAX_PROCESSES))
    file = text.endswith(".json")
    validation.expect(file or "://" in text, "executor", repr(text), NAMED)
    validation.expect(not file or Path(text).is_file(), "executor", f"{text!r}, which is no file", NAMED)
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(f"executor: got {text!r}, which needs Dask: pip install 'bnrank[dask]'") from error
    try:
        connect: Any = Client
        client = connect(scheduler_file=text) if file else connect(text)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"executor: got {text!r}, expected a scheduler of Dask that answers ({error})") from error
    found = _ready(client)
    assert found is not None
    return found


@contextlib.contextmanager
def engaged(executor: Any) -> Iterator[None]:
    """Let what is called inside, in this thread, find an engine by `engaged_engine`; None for none."""
    before = _ENGINE.set(engine(executor))
    try:
        yield
    finally:
        _ENGINE.reset(before)


def engaged_engine() -> Engine | None:
    """Return the engine of the innermost `engaged`.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(1) as threads, engaged(threads):
    ...     engaged_engine() is threads
    True
    >>> engaged_engine() is None
    True
    """
    return _ENGINE.get()


def run_calls(calls: Sequence[Callable[[], T]], engine: Engine, done: Callable[[int, T], object]) -> None:
    """Run calls on an executor; ``done`` gets the number and the result of each when it ends.

    A call whose future fails, as when its process dies, is submitted again, twice; a failure of an executor that broke,
    and took all calls along, counts only until another call has ended. A call that finds its folder in use by another
    process (one that was given up and still works, for instance) is submitted again until it is free.

    Raises
    ------
    RuntimeError
        If a call was lost three times, the executor takes no work, or a worker has other versions of bnrank or torch.
    Exception
        That a call raised.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> found = {}
    >>> with ThreadPoolExecutor(2) as threads:
    ...     run_calls([lambda: 1, lambda: 4], threads, found.__setitem__)
    >>> sorted(found.items())
    [(0, 1), (1, 4)]
    """
    make = engine if callable(engine) and not hasattr(engine, "submit") else None
    executor: Any = engine if make is None else make()
    left = set(range(len(calls)))
    failures, broken = Counter[int](), Counter[int]()
    futures: dict[Future[Any], int] = {}
    try:
        while left:
            for number in sorted(left - set(futures.values())):
                try:
                    future = executor.submit(_judged, calls[number], _versions())
                except Exception as error:
                    broken[-1] += 1
                    if make is None or broken[-1] > ATTEMPTS:
                        raise RuntimeError(f"executor: it takes no work: {type(error).__name__}: {error}") from error
                    executor.shutdown(wait=False)
                    executor = make()
                    break
                futures[future] = number
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                number, lost = futures.pop(future), error_of(future)
                if lost is not None:
                    count = broken if isinstance(lost, BrokenExecutor) else failures
                    count[number] += 1
                    if count[number] > ATTEMPTS:
                        raise RuntimeError(f"executor: a training failed {ATTEMPTS + 1} times: {lost!r}") from lost
                    continue
                result, raised = future.result()
                if isinstance(raised, InUseError):
                    time.sleep(POLL)
                elif raised is not None:
                    raise raised
                else:
                    left.remove(number)
                    broken.clear()
                    done(number, result)
    finally:
        for future in futures:
            future.cancel()
        if make is not None:
            executor.shutdown(wait=False)


def _versions() -> dict[str, str]:
    return {"bnrank": __version__, "torch": str(torch.__version__)}


def _judged(call: Callable[[], T], versions: dict[str, str]) -> tuple[T | None, Exception | None]:
    """Return the result of a call, or the error that it raised, which no other attempt would mend."""
    if versions != (own := _versions()):
        return None, RuntimeError(f"executor: a worker has {own}, expected {versions} as here")
    try:
        with engaged(None):
            return call(), None
    except KeyboardInterrupt:
        raise RuntimeError("a worker was interrupted") from None
    except Exception as error:
        return None, error


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the error of a future that has ended, also of a cancelled one.

    Examples
    --------
    >>> future = Future()
    >>> future.cancel(), error_of(future)
    (True, CancelledError())
    """
    try:
        return future.exception()
    except CancelledError as error:
        return error


def _ready(executor: Any) -> Executor | None:
    """Return an executor, also that of a client of Dask, or anything else that submits; None if it is none."""
    if isinstance(executor, Executor):
        return executor
    of_client = getattr(executor, "get_executor", None)
    if callable(of_client) and not isinstance(executor, type):
        found: Executor = of_client(pure=False)  # the same call again is another attempt
        return found
    return None
