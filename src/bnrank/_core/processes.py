"""Processes of a pool."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection

PATIENCE = 10.0  # seconds for what a process computes to end when it is interrupted


class Pool(ProcessPoolExecutor):
    """New interpreters; what they train stops, with a checkpoint, at shutdown(wait=False) or when this process ends.

    Parameters
    ----------
    processes : int
        Their number.
    """

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self._ours = context.Pipe(duplex=False)  # an event would wait for processes that were killed
        super().__init__(processes, mp_context=context, initializer=_begin, initargs=(theirs,))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Free the processes; with ``wait=False``, cancel and interrupt what is not finished."""
        if not wait:
            self._ours.close()
        super().shutdown(wait, cancel_futures=cancel_futures or not wait)


def _begin(driver: connection.Connection) -> None:
    """Prepare a process of a pool: only its driver gets Ctrl-C, and passes it on."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # trainings have a handler of their own

    def watch() -> None:
        driver.poll(None)  # until it is closed
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="end with pool", daemon=True).start()


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
