"""Progress bars: one at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Tell = Callable[[float, str], None]  # takes the completed amount and a description

_shown = threading.Lock()  # held while a bar is shown


def bar(progress: bool, text: str, total: float, *, counted: bool = True) -> AbstractContextManager[Tell]:
    """Return a context with a function that updates a progress bar, given the completed amount and a description.

    The function does nothing if ``progress`` is False, or if another bar is shown: a terminal has room for one. With
    ``counted`` the bar shows progress as "k/n" and the remaining time, otherwise only the elapsed time.
    """
    return _in_terminal(text, total, counted) if progress else nullcontext(_silent)


def _silent(done: float, text: str) -> None:
    """Show nothing."""


@contextmanager
def _in_terminal(text: str, total: float, counted: bool) -> Iterator[Tell]:
    if not _shown.acquire(blocking=False):
        yield _silent
        return
    from bnrank._core import terminal as shows

    columns = [shows.MofNCompleteColumn(), shows.TimeRemainingColumn()] if counted else [shows.TimeElapsedColumn()]
    try:
        with shows.Progress(shows.TextColumn("{task.description}"), shows.BarColumn(), *columns) as shown:
            number = shown.add_task(text, total=total)
            yield lambda done, text: shown.update(number, completed=done, description=text)
    finally:
        _shown.release()
