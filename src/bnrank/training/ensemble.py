"""Members of an ensemble: their rows of parameters, their mini-batches, and the threads that share their work."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

ALIGNMENT = 64  # bytes; the last bits of BLAS' products depend on where data begin, which must not differ between runs
PIECE = 1 << 18  # entries that are converted to float64 at a time


def aligned(x: Tensor) -> Tensor:
    """Return data aligned in memory, so that products have the same bits in every run."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def split(rows: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return views of parameters, shape (..., size), as tensors of these shapes, each (..., *shape)."""
    pieces = rows.split([math.prod(shape) for shape in shapes], dim=-1)
    return [piece.view((*rows.shape[:-1], *shape)) for piece, shape in zip(pieces, shapes, strict=True)]


def squared_norm(row: Tensor) -> Tensor:
    """Return the sum of squares, accumulated in float64; only a piece of the row at a time is copied to it."""
    pieces = [torch.linalg.vector_norm(piece, dtype=torch.float64).square() for piece in row.split(PIECE)]
    return torch.stack(pieces).sum()


def filled(net: nn.Module, row: Tensor) -> nn.Module:
    """Return a copy of a network with these parameters, shape (size,), in their precision and on their device."""
    net = copy.deepcopy(net).to(row.device, row.dtype)
    trained = [p for p in net.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, piece in zip(trained, split(row, [tuple(p.shape) for p in trained]), strict=True):
            parameter.copy_(piece)
    return net


class Objective:
    """C(f_theta) and its gradient for every member of an ensemble.

    Attributes
    ----------
    theta, gradient : Tensor
        Parameters and dC/dtheta, shape (members, size): a row per member, the network's trained parameters one after
        another. Write into ``theta``, call :meth:`evaluate`, read ``gradient``.
    cost : Tensor
        C of every member at the last evaluation, shape (members,), float64.

    Parameters
    ----------
    net : nn.Module
        Architecture; its trained parameters are not read.
    x, y : Tensor
        Data shared by all members, on the device and in the precision of the training.
    loss : str
        "mse", "cross_entropy" or "logistic".
    members : int
        Number of members.
    workers : Workers
        Threads to share the work among.
    """

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor, loss: str, members: int, workers: Workers) -> None:
        self.x, self.y, self.loss, self.members, self.workers = x, y, loss, members, workers
        self.shapes = [tuple(p.shape) for p in net.parameters() if p.requires_grad]
        self.size = sum(math.prod(shape) for shape in self.shapes)
        self.theta = x.new_zeros(members, self.size)
        self.gradient = torch.zeros_like(self.theta)
        self.cost = x.new_zeros(members, dtype=torch.float64)

    def evaluate(self, batch: Tensor | None = None) -> Tensor:
        """Compute cost and gradient at ``theta``; return the cost, shape (members,), float64.

        ``batch`` holds sample numbers, shape (members, B). Default: all samples.
        """
        raise NotImplementedError


class BatchOrder:
    """Sample numbers of every member's mini-batch at a given step: epochs in shuffled order, a last short one dropped.

    The order is a function of (member's seed, epoch) alone, so that a member sees the same batches alone and in an
    ensemble, and a resumed run is identical to an uninterrupted one.

    Parameters
    ----------
    seeds : list of int
        One seed per member.
    n : int
        Number of samples.
    batch_size : int
        Samples per batch, at most n.

    Examples
    --------
    >>> order = BatchOrder([0, 1], n=10, batch_size=5)
    >>> sorted(torch.cat([order.at(0)[0], order.at(1)[0]]).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, seeds: list[int], n: int, batch_size: int) -> None:
        self.seeds, self.n, self.batch_size = seeds, n, batch_size
        self.per_epoch = n // batch_size
        self._epoch = -1
        self._order = torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the sample numbers of step ``step``, shape (members, batch_size)."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = torch.stack([self._permutation(seed, epoch) for seed in self.seeds])
            self._epoch = epoch
        return self._order[:, position * self.batch_size : (position + 1) * self.batch_size]

    def keep(self, members: list[int]) -> BatchOrder:
        """Return the order for some of the members."""
        return BatchOrder([self.seeds[i] for i in members], self.n, self.batch_size)

    def _permutation(self, seed: int, epoch: int) -> Tensor:
        digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randperm(self.n, generator=generator)


class Workers:
    """A pool of threads, with multithreading inside libraries switched off.

    How a library splits one matrix product among threads may change its last bits; here each product and each sum is
    done by one thread, and the split is over members and blocks of samples, so that results do not depend on the
    number of threads. PyTorch's and BLAS' own settings are restored on exit.

    Parameters
    ----------
    threads : int, optional
        Number of threads. Default: ``torch.get_num_threads()``.

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

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        self._limits.restore_original_limits()
        torch.set_num_threads(self._before)

    @contextlib.contextmanager
    def all_threads(self) -> Iterator[None]:
        """Let PyTorch use all threads, for work that is not shared among the workers."""
        torch.set_num_threads(self._before)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def share(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run all tasks and return when all are done; an error in one is raised here."""
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
