"""Checkpoints and interruption of long computations.

A checkpoint is verified before it is used. The one before it is kept, and used where the last one is damaged.
"""

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from bnrank._core import store
from bnrank._core.files import StorageError
from bnrank._core.sources import DamagedError
from bnrank._core.store import Stored
from bnrank.training.settings import Settings


def save_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], kind: str, settings: Settings
) -> bool:
    """Write a checkpoint together with its settings; return whether the one before, if undamaged, was kept.

    Raises
    ------
    ValueError
        If the folder is full or cannot be written to; the previous checkpoint is kept.
    """
    keep = store.is_whole(path)
    try:
        about = {"settings": asdict(settings), **about}
        store.save(path, tensors, about, kind, previous=previous(path) if keep else None)
    except ValueError as error:
        text = f"{str(path.parent)!r}: {error}; the one before, if any, is untouched"
        raise StorageError(f"out: cannot write a checkpoint to {text}") from error
    return keep


def previous(path: Path) -> Path:
    """Return the path of the checkpoint before the last one."""
    return path.with_suffix(f".previous{path.suffix}")


def discard_checkpoints(path: Path) -> None:
    """Remove the last checkpoint and the one before."""
    for each in (path, previous(path)):
        each.unlink(missing_ok=True)


def load_checkpoint(
    path: Path, kind: str, settings: Settings, complete: Callable[[Stored], object] = lambda stored: None
) -> Stored | None:
    """Return the last undamaged checkpoint, from which a computation with these settings can continue, or None.

    A warning names each damaged one. ``complete`` reads what belongs to a checkpoint and raises a `DamagedError` if
    that is damaged.

    Raises
    ------
    ValueError
        If the checkpoint is of another kind or has other settings.
    """
    damaged: list[str] = []
    for place in (path, previous(path)):
        if not place.exists():
            continue
        try:
            stored = store.read(place, name="out")
        except ValueError as error:
            damaged.append(str(error))
            continue
        if stored.kind != kind:
            raise refused(place, f"it holds {f'a {stored.kind}' if stored.kind else 'tensors of another program'}")
        _check_settings(stored, settings)
        try:
            complete(stored)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        _warn(damaged, f"going on from the checkpoint before, {str(place)!r}")
        return stored
    _warn(damaged, "no undamaged checkpoint is left: starting over")
    return None


def check_settings(path: Path, kind: str, settings: Settings) -> None:
    """Raise if a stored result of this kind has other settings; a file that is missing or damaged has none."""
    try:
        stored = store.load(path, kind, name="out")
    except ValueError:
        return
    _check_settings(stored, settings)


def _check_settings(stored: Stored, settings: Settings) -> None:
    """Raise if a checkpoint has other settings."""
    try:
        before = stored.about["settings"]
        if not isinstance(before, dict) or before.keys() != asdict(settings).keys():
            raise ValueError("its settings are not those of this version")
        differences = settings.differences(before)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise refused(stored.path, error) from error
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise ValueError(
            f"out: {str(stored.path.parent)!r} holds a {stored.kind} with other settings "
            f"({'; '.join(differences[:3])}{more}); "
            "give another folder, or resume=False (on the command line --fresh) to overwrite it"
        )


def _warn(damaged: list[str], what: str) -> None:
    if damaged:
        warnings.warn(f"{'; '.join(damaged)}; {what}", stacklevel=5)


def refused(path: Path, error: object) -> ValueError:
    """Return the error for a checkpoint that cannot be used."""
    return ValueError(
        f"out: {str(path)!r} is no checkpoint of this computation ({error}); move it away, or use resume=False to "
        "start over"
    )


@contextlib.contextmanager
def interruptions() -> Iterator[threading.Event]:
    """Yield a flag that the first Ctrl-C sets, so that the current step finishes; a second Ctrl-C raises.

    On exit, if the flag is set, a previous handler other than Python's default is called too, so that the caller can
    stop as well. Only the main thread receives Ctrl-C: elsewhere, and where a handler that Python cannot restore is
    installed, the flag is never set.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
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
