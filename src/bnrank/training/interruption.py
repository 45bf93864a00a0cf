"""Checkpoints, progress bars and interruption of long computations."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from bnrank._core import store
from bnrank._core.store import Stored
from bnrank.training.settings import Settings


def save_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, settings: Settings
) -> None:
    """Write a checkpoint together with its settings.

    Raises
    ------
    ValueError
        If the folder is full or cannot be written to; the previous checkpoint is kept.
    """
    try:
        store.save(path, tensors, {"settings": asdict(settings), **about}, kind)
    except ValueError as error:
        text = f"{str(path.parent)!r}: {error}; the one before, if any, is untouched"
        raise ValueError(f"out: cannot write a checkpoint to {text}") from error


def load_checkpoint(path: Path, kind: str, settings: Settings) -> Stored | None:
    """Return a checkpoint from which a computation with these settings can continue, or None if there is none.

    Raises
    ------
    ValueError
        If the checkpoint is damaged, of another kind or has other settings.
    """
    if not path.exists():
        return None
    try:
        stored = store.load(path, kind, name="out")
        before = stored.about["settings"]
        if not isinstance(before, dict) or before.keys() != asdict(settings).keys():
            raise ValueError("its settings are not those of this version")
        differences = settings.differences(before)
    except (ValueError, KeyError) as error:
        raise refused(path, error) from error
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(
            f"out: {str(path.parent)!r} holds a {kind} with other settings ({'; '.join(differences[:3])}{more}); "
            "give another folder, or resume=False (on the command line --fresh) to overwrite it"
        )
    return stored


def refused(path: Path, error: Exception) -> ValueError:
    """Return the error for a checkpoint that cannot be used."""
    return ValueError(
        f"out: {str(path)!r} is damaged or no checkpoint ({error}); move it away, or use resume=False to start over"
    )


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Yield a flag that the first Ctrl-C sets, so that the current step finishes; a second Ctrl-C raises.

    On exit, if the flag is set, a previous handler other than Python's default is called too, so that the caller can
    stop as well.
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
    """Yield a function that updates a progress bar, given the completed amount and a description.

    The function does nothing if ``progress`` is False. With ``counted`` the bar shows progress as "k/n" and the
    remaining time, otherwise only the elapsed time.
    """
    if not progress:
        yield lambda done, text: None
        return
    from rich import progress as rich

    columns = [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()] if counted else [rich.TimeElapsedColumn()]
    with rich.Progress(rich.TextColumn("{task.description}"), rich.BarColumn(), *columns) as shown:
        number = shown.add_task(text, total=total)
        yield lambda done, text: shown.update(number, completed=done, description=text)
