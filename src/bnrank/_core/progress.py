"""Progress bars: one at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterator

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
    from bnrank._core import terminal as shows

    columns = [shows.MofNCompleteColumn(), shows.TimeRemainingColumn()] if counted else [shows.TimeElapsedColumn()]
    try:
        with shows.Progress(shows.TextColumn("{task.description}"), shows.BarColumn(), *columns) as shown:
            number = shown.add_task(text, total=total)
            yield lambda done, text: shown.update(number, completed=done, description=text)
    finally:
        _shown.release()
