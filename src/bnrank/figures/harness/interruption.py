"""Ctrl-C while a figure is computed."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C was pressed inside and handled there.

    Training ends regularly at Ctrl-C and returns an unfinished run, on which no claim may be measured. Has an effect
    only in the main thread, and only where Ctrl-C is not ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    ours, theirs = socket.socketpair()  # receives the number of every signal, whichever handler it has
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
