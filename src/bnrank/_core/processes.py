"""Processes of a pool."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection


def end_with_parent(before: Callable[[], object] = lambda: None) -> None:
    """End this process within a second once the process that started it has ended, whatever ended it.

    Without this, the workers of a pool finish what they compute, which may take hours. ``before`` is called first.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    number, sentinel = parent.pid, parent.sentinel

    def watch() -> None:
        while os.getppid() == number:
            if sentinel is None:  # in pools that do not start their processes by multiprocessing
                time.sleep(1)
            elif connection.wait([sentinel], timeout=1):
                break
        try:
            before()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def end_gently() -> None:
    """Let SIGTERM, which ends preempted jobs, do what Ctrl-C does."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
