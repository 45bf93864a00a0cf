"""Engines of sweeps: executors, clients of Dask, and functions that make one anew when it broke."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from bnrank._core import validation

EXPECTED = "a concurrent.futures.Executor, a dask.distributed.Client, or a function that returns one"
Engine = Executor | Callable[[], Executor]


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
