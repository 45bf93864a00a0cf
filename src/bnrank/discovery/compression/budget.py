"""The time that a compression may take, and its progress."""

import contextlib
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar

from bnrank._core import validation
from bnrank._core.terminal import BarColumn, Console, Progress, TextColumn, TimeElapsedColumn


class Budget:
    """What is left of the time, and where a search says what it tries.

    Parameters
    ----------
    seconds : float, optional
        From now on; default: no limit.
    bar : rich.progress.Progress, optional
        Shows the number of trials.
    start : float, optional
        When the time began, see :func:`now`; default: now.
    """

    def __init__(self, seconds: float | None = None, bar: Progress | None = None, start: float | None = None) -> None:
        self._end = None if seconds is None else (now() if start is None else start) + seconds
        self._bar = bar
        self._task = None if bar is None else bar.add_task("compressing", total=None)
        self.stopped = False
        """Whether something was not tried for lack of time."""

    @property
    def over(self) -> bool:
        """Whether no time is left; what is asked is then left out by the search."""
        if self._end is not None and time.monotonic() >= self._end:
            self.stopped = True
        return self.stopped

    def trial(self, text: str) -> None:
        """Tell that one more outcome is tried."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=f"compressing: {text}")


def now() -> float:
    """Return the time in seconds, on a clock that never goes back."""
    return time.monotonic()


_CURRENT: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget:
    """Return the budget of the compression that is under way; one without limit where there is none."""
    return _CURRENT.get() or Budget()


@contextlib.contextmanager
def budget(max_minutes: float | None, progress: bool, start: float) -> Iterator[Budget]:
    """Set the budget of the search inside, which began at ``start``; a bar on a terminal if ``progress``."""
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        bar = None
        if validation.flag(progress, "progress") and console.is_terminal and sys.stderr.isatty():
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} tried")
            bar = stack.enter_context(Progress(*columns, TimeElapsedColumn(), console=console, transient=True))
        made = Budget(None if max_minutes is None else 60 * max_minutes, bar, start)
        stack.callback(_CURRENT.reset, _CURRENT.set(made))
        yield made
