"""Process-wide settings that several threads change and restore."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class Shared:
    """A process-wide setting that is in force while at least one thread is inside the context.

    The first thread that enters makes the setting, the last one that leaves restores what was before. A setting that
    every thread saves and restores by itself stays changed when two threads leave in the order in which they came.

    Parameters
    ----------
    setting : callable
        Returns a context manager that makes the setting and restores what was before.

    Examples
    --------
    >>> import contextlib
    >>> quiet = Shared(lambda: contextlib.nullcontext(print("on")))
    >>> with quiet, quiet:
    ...     pass
    on
    """

    def __init__(self, setting: Callable[[], AbstractContextManager[object]]) -> None:
        self._setting, self._lock = setting, threading.Lock()
        self.users = 0  # number of threads inside
        self._made: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._made is None:
                made = self._setting()
                made.__enter__()
                self._made = made
            self.users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.users -= 1
            if not self.users and self._made is not None:
                made, self._made = self._made, None
                made.__exit__(None, None, None)
