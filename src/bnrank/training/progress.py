"""Progress bars, and interruption by Ctrl-C between steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that the current step is finished; a second one raises.

    At the end the signal is passed on to a previous handler other than Python's own: a caller with more to stop than
    this run.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handle(number: int, frame: object) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)
    if flag.is_set() and callable(before) and before is not signal.default_int_handler:
        before(signal.SIGINT, None)


@contextlib.contextmanager
def bar(progress: bool, text: str, total: float, *, counted: bool = True) -> Iterator[Callable[[float, str], None]]:
    """Give a function of the part done and a description that updates a progress bar, or does nothing.

    ``counted`` shows the part done as "k/n" with the remaining time, else the elapsed time alone.
    """
    if not progress:
        yield lambda done, text: None
        return
    from rich import progress as rich

    columns = [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()] if counted else [rich.TimeElapsedColumn()]
    with rich.Progress(rich.TextColumn("{task.description}"), rich.BarColumn(), *columns) as shown:
        number = shown.add_task(text, total=total)
        yield lambda done, text: shown.update(number, completed=done, description=text)
