"""Ensembles: parameters of the members as rows, their mini-batches, and the threads that share the work."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from bnrank._core import linalg
from bnrank._core.shared import Shared
from bnrank.networks.replicas import copied

ALIGNMENT = 64  # bytes; BLAS products depend on memory alignment in their last bits, so it is the same in all runs
PIECE = 1 << 18  # number of entries converted to float64 at a time
TINY = 1e-12  # norm of a piece in float32 below which squares may have underflowed


def aligned(x: Tensor) -> Tensor:
    """Return a tensor aligned in memory, so that matrix products are bitwise identical in every run."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def split(rows: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return views of flat parameters, shape (..., size), as one tensor per shape, each (..., *shape)."""
    pieces = rows.split([math.prod(shape) for shape in shapes], dim=-1)
    return [piece.view((*rows.shape[:-1], *shape)) for piece, shape in zip(pieces, shapes, strict=True)]


def squared_norm(row: Tensor) -> Tensor:
    """Return the sum of squares, accumulated in float64; the row is converted to float64 in pieces."""
    if len(row) <= PIECE:
        return torch.linalg.vector_norm(row, dtype=torch.float64).square()
    pieces = [torch.linalg.vector_norm(piece, dtype=torch.float64).square() for piece in row.split(PIECE)]
    return torch.stack(pieces).sum()


def norm(row: Tensor) -> float:
    """Return the Euclidean norm, accumulated in float64; for float32, blockwise in float32, which is 7x faster."""
    if row.dtype == torch.float32:
        pieces = torch.stack([torch.linalg.vector_norm(piece) for piece in row.split(PIECE)])
        if bool((pieces > TINY).all()):  # no square has underflowed
            return float(torch.linalg.vector_norm(pieces.double()))
    return float(squared_norm(row).sqrt())


def scaled_step(step: float, radius: float, power: float) -> float:
    """Return step / radius^power; 0 at radius 0, and infinite where it is beyond the range of floats."""
    return linalg.exp(math.log(step) - power * math.log(radius)) if step > 0 and radius > 0 else 0.0


def in_range(divided: float, step: float, theta: Tensor, power: float) -> float:
    """Return a step size step / ||theta||^power; raises ValueError where it exceeds the range of the type of theta."""
    most = torch.finfo(theta.dtype).max
    if divided > most:
        raise ValueError(
            f"norm_power: got {power:g}, for which the step {step:g} / ||theta||^{power:g} is above {most:.2g} at "
            f"||theta|| = {norm(theta):.3g}, expected a step in the range of {theta.dtype}: use larger initial "
            "weights, or skip the plateau with bnrank.flow and SkipPlateau"
        )
    return divided


def filled(net: nn.Module, row: Tensor) -> nn.Module:
    """Return a copy of a network with these flat parameters, shape (size,), in their precision and on their device."""
    net = copied(net).to(row.device, row.dtype)
    trained = [p for p in net.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, piece in zip(trained, split(row, [tuple(p.shape) for p in trained]), strict=True):
            parameter.copy_(piece)
    return net


class Objective(ABC):
    """C(f_theta) and its gradient for every member of an ensemble.

    Attributes
    ----------
    theta, gradient : Tensor
        Parameters and dC/dtheta, shape (members, size). Each row concatenates the trained parameters of one member.
        Write into ``theta``, call :meth:`evaluate`, then read ``gradient``.
    cost : Tensor
        C of every member at the last evaluation, shape (members,), float64.

    Parameters
    ----------
    net : nn.Module
        Architecture; the values of its trained parameters are not used.
    x, y : Tensor
        Data shared by all members, on the device and in the precision of training.
    loss : str
        "mse", "cross_entropy" or "logistic".
    members : int
        Number of members.
    workers : Workers
        Threads that share the work.
    weights : Tensor, optional
        Weights of the samples, (N,), of mean 1.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        loss: str,
        members: int,
        workers: Workers,
        weights: Tensor | None = None,
    ) -> None:
        self.weights = weights
        self.x, self.y, self.loss, self.members, self.workers = x, y, loss, members, workers
        self.shapes = [tuple(p.shape) for p in net.parameters() if p.requires_grad]
        self.size = sum(math.prod(shape) for shape in self.shapes)
        self.theta = x.new_zeros(members, self.size)
        self.gradient = torch.zeros_like(self.theta)
        self.cost = x.new_zeros(members, dtype=torch.float64)

    @abstractmethod
    def evaluate(self, batch: Tensor | None = None) -> Tensor:
        """Return the cost at ``theta``, shape (members,), float64, and compute the gradient.

        ``batch`` holds sample indices, shape (members, B). Default: all samples.
        """


class BatchOrder:
    """Sample indices of every member's mini-batch at a given step, reshuffled every epoch.

    An incomplete last batch of an epoch is dropped. The order depends only on the member's seed and the epoch. A member
    therefore uses the same batches alone and in an ensemble, and a resumed run is identical to an uninterrupted one.

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
        """Return the sample indices of step ``step``, shape (members, batch_size)."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = torch.stack([self._permutation(seed, epoch) for seed in self.seeds])
            self._epoch = epoch
        return self._order[:, position * self.batch_size : (position + 1) * self.batch_size]

    def keep(self, members: list[int]) -> BatchOrder:
        """Return the batch order restricted to some of the members."""
        return BatchOrder([self.seeds[i] for i in members], self.n, self.batch_size)

    def _permutation(self, seed: int, epoch: int) -> Tensor:
        digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randperm(self.n, generator=generator)


class _OneThread:
    """One thread for the BLAS of NumPy and SciPy, a setting of the process.

    PyTorch's number of threads is a setting of the calling thread, which new threads inherit. Libraries are loaded with
    modules: they are looked up again, in milliseconds, only after an import.
    """

    def __init__(self) -> None:
        self.shared = Shared(lambda: self)
        self.pytorch = 1  # PyTorch's number of threads when the first `Workers` began
        self.local = threading.local()  # .depth: how many `Workers` of this thread are at work
        self.modules = 0  # how many were imported when the libraries were looked up

    def __enter__(self) -> None:
        self.pytorch = torch.get_num_threads()
        if self.modules != len(sys.modules):
            self.modules, self.libraries = len(sys.modules), ThreadpoolController()
        self.limits = self.libraries.limit(limits=1, user_api="blas")

    def __exit__(self, *error: object) -> None:
        self.limits.restore_original_limits()

    @property
    def depth(self) -> int:
        """How many `Workers` of this thread are at work."""
        return getattr(self.local, "depth", 0)

    def available(self) -> int:
        """Return PyTorch's number of threads, without the limit that a new thread inherits from one that trains."""
        others = self.shared.users
        own = torch.get_num_threads()
        return self.pytorch if own == 1 and (others or self.shared.users) and not self.depth else own

    def count(self, by: int) -> None:
        """Count one more or one less of the `Workers` of this thread."""
        self.local.depth = self.depth + by


_ONE_THREAD = _OneThread()


class Workers:
    """A pool of threads, with multithreading inside libraries disabled.

    If a library splits a matrix product among threads, its last bits may depend on the split. Here one thread computes
    each product and each sum, and the work is split over members and blocks of samples, so results do not depend on the
    number of threads. On exit PyTorch's number of threads is restored, and that of BLAS, which belongs to the process,
    as soon as no other thread needs it.

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
        self.threads = threads or _ONE_THREAD.available()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Workers:
        self._before = _ONE_THREAD.available()
        _ONE_THREAD.shared.__enter__()
        _ONE_THREAD.count(1)
        torch.set_num_threads(1)
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(self.threads - 1, initializer=_limit_thread)
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        torch.set_num_threads(self._before)
        _ONE_THREAD.count(-1)
        _ONE_THREAD.shared.__exit__()

    @contextlib.contextmanager
    def all_threads(self) -> Iterator[None]:
        """Let PyTorch use all threads inside the context, for work that the workers do not share."""
        torch.set_num_threads(self._before)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def share(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Run all tasks and wait for them; an error in a task is raised here."""
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


def _limit_thread() -> None:
    """Limit a thread of a pool."""
    _ONE_THREAD.count(1)
    torch.set_num_threads(1)
