"""Ctrl-C while a figure is made."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

__all__ = ["ctrl_c"]


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt in the end, if Ctrl-C was pressed inside and taken there for something else.

    Training ends at Ctrl-C as if all were well and returns what it has; claims must not be measured on that. A handler
    is put in place, to which whoever replaces it meanwhile can pass the signal on. Does nothing but in the main thread,
    or where Ctrl-C is ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    ours, theirs = socket.socketpair()  # where the interpreter writes the number of every signal, whoever handles it
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        told = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, _interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            signal.set_wakeup_fd(told)
            with contextlib.suppress(BlockingIOError):
                if signal.SIGINT in ours.recv(4096):
                    raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
