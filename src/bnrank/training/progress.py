"""What a user sees of a run, and how it is stopped, while it goes on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bnrank.training.settings import TrainSettings

__all__ = ["bar", "interruptions"]


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that the step under way is finished; a second one raises.

    In the end the signal is handed on to whoever handled it before, where that is not Python itself: a caller with more
    to stop than this run.
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
def bar(progress: bool, settings: TrainSettings, step: int) -> Iterator[Callable[[int, float], None]]:
    """Show a progress bar with the least loss, or nothing."""
    if not progress:
        yield lambda step, loss: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns) as bar:
        text = f"training {settings.members} x {settings.network.split('(')[0]}"
        number = bar.add_task(text, total=settings.steps, completed=step)
        yield lambda step, loss: bar.update(number, completed=step, description=f"{text}, least loss {loss:.4g}")
