"""Threads that share out the work of one step, and give the same bits whatever their number."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType

import torch
from threadpoolctl import threadpool_limits

__all__ = ["Workers"]


class Workers:
    """A few threads, each of which computes by itself, with libraries told not to add threads of their own.

    How a library splits one matrix product among threads may change its last bits; here each product and each sum is
    done by one thread, and the split is over members and blocks of samples, so that results do not depend on the
    number of threads. PyTorch's and BLAS' own settings are restored on exit.

    Parameters
    ----------
    threads : int, optional
        Number of threads; ``torch.get_num_threads()`` without it.

    Examples
    --------
    >>> done = []
    >>> with Workers(2) as workers:
    ...     workers.share([lambda i=i: done.append(i) for i in range(4)])
    >>> sorted(done)
    [0, 1, 2, 3]
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        self._before = torch.get_num_threads()
        self._limits = threadpool_limits(limits=1, user_api="blas")
        torch.set_num_threads(1)
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(self.threads - 1, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        self._limits.restore_original_limits()
        torch.set_num_threads(self._before)

    @contextlib.contextmanager
    def all_threads(self) -> Iterator[None]:
        """Let PyTorch use all threads by itself meanwhile, for work that is not shared out here."""
        torch.set_num_threads(self._before)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def share(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run all tasks, each once, and return when the last one is done; an error in one is raised here."""
        if self._pool is None or len(tasks) < 2:
            for task in tasks:
                task()
            return
        lock, queue = threading.Lock(), iter(tasks)

        def work() -> None:
            while True:
                with lock:
                    task = next(queue, None)
                if task is None:
                    return
                task()

        helpers = [self._pool.submit(work) for _ in range(min(self.threads, len(tasks)) - 1)]
        try:
            work()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()
