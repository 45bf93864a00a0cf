"""Progress bars: one at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_shown = threading.Lock()  # held while a bar is shown


@contextlib.contextmanager
def bar(progress: bool, text: str, total: float, *, counted: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that updates a progress bar, given the completed amount and a description.

    The function does nothing if ``progress`` is False, or if another bar is shown: a terminal has room for one. With
    ``counted`` the bar shows progress as "k/n" and the remaining time, otherwise only the elapsed time.
    """
    if not progress or not _shown.acquire(blocking=False):
        yield lambda done, text: None
        return
    try:
        with _terminal(counted) as terminal:
            number = terminal.add_task(text, total=total)
            yield lambda done, text: terminal.update(number, completed=done, description=text)
    finally:
        _shown.release()


def _terminal(counted: bool) -> Progress:
    """Return the bar of a terminal."""
    from bnrank._core import terminal as shows

    columns = [shows.MofNCompleteColumn(), shows.TimeRemainingColumn()] if counted else [shows.TimeElapsedColumn()]
    return shows.Progress(shows.TextColumn("{task.description}"), shows.BarColumn(), *columns)
