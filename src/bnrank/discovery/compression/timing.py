"""Latency of modules, with subnormal values set to 0; and how many there are, and what they cost."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import devices, validation
from bnrank._core.results import Printed
from bnrank.networks.functional import example
from bnrank.networks.replicas import copied

_BITS = {
    torch.float64: (torch.int64, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF),
    torch.float32: (torch.int32, 0x7F800000, 0x007FFFFF),
    torch.float16: (torch.int16, 0x7C00, 0x03FF),
    torch.bfloat16: (torch.int16, 0x7F80, 0x007F),
}
"""For each precision the integers of its size, and the bits of exponent and fraction."""


@dataclass(frozen=True)
class Timing:
    """How the latency of a network is measured.

    Attributes
    ----------
    batch_size : int
        Samples per pass.
    repeats : int
        Rounds. In every round each network runs for at least about a millisecond.

    Raises
    ------
    TypeError, ValueError
        If one is not a positive whole number.

    Examples
    --------
    >>> Timing(repeats=3)
    Timing(batch_size=256, repeats=3)
    """

    batch_size: int = 256
    repeats: int = 25

    def __post_init__(self) -> None:
        validation.integer(self.batch_size, "batch_size")
        validation.integer(self.repeats, "repeats")


@dataclass(frozen=True)
class Latency:
    """Wall time of a forward pass, in seconds.

    Attributes
    ----------
    median : float
        Over the repeats.
    low, high : float
        First and third quartile.
    batch_size : int
        Samples per pass.
    repeats : int
        Number of timed rounds; each is the mean over enough passes to last a millisecond.
    threads : int
        Threads of torch.
    device, dtype : str
        Device and precision.
    minimum : float
        Over the repeats; least affected by other processes.
    """

    median: float
    low: float
    high: float
    batch_size: int
    repeats: int
    threads: int
    device: str
    dtype: str
    minimum: float


@dataclass(frozen=True)
class Subnormals(Printed):
    """The nonzero parameters and buffers below the smallest normal number of their precision.

    On many processors operations on such values take about a hundred times as long. Setting them to 0 changes outputs
    by less than rounding does.

    Attributes
    ----------
    count : int
        Number of subnormal entries.
    entries : int
        Number of all floating-point entries of parameters and buffers.
    speedup : float
        Minimum latency with these entries over that with them, and subnormal values in between, set to 0; measured only
        if ``count`` is positive, else 1.

    Examples
    --------
    >>> print(Subnormals(count=300, entries=1000, speedup=7.8))
    300 of 1,000 weights (30 %) are subnormal; setting them to 0 alone makes a pass 7.8 times as fast
    """

    count: int
    entries: int
    speedup: float = 1.0

    @property
    def share(self) -> float:
        """Fraction of the entries that are subnormal."""
        return self.count / max(self.entries, 1)

    def __str__(self) -> str:
        what = f"{self.count:,} of {self.entries:,} weights ({100 * self.share:.3g} %) are subnormal"
        return f"{what}; setting them to 0 alone makes a pass {self.speedup:.3g} times as fast"


def is_subnormal(values: Tensor) -> Tensor:
    """Return which entries are nonzero and smaller than the smallest normal number of their precision.

    Examples
    --------
    >>> is_subnormal(torch.tensor([0.0, 1e-40, -1e-44, 1e-37])).tolist()
    [False, True, True, False]
    """
    if values.dtype not in _BITS:
        return torch.zeros_like(values, dtype=torch.bool)
    whole, exponent, fraction = _BITS[values.dtype]
    bits = values.detach().contiguous().view(whole)  # not the values: arithmetic may take subnormal ones for 0
    return ((bits & exponent) == 0) & ((bits & fraction) != 0)


def without_subnormals(net: nn.Module) -> nn.Module:
    """Set subnormal entries of parameters and buffers to 0, in place; return the module."""
    with torch.no_grad():
        for tensor in chain(net.parameters(), net.buffers()):
            found = is_subnormal(tensor)
            if bool(found.any()):
                tensor[found] = 0
    return net


def subnormals(net: nn.Module, x: Tensor, *, batch_size: int = 256, repeats: int = 25) -> Subnormals:
    """Return the number of subnormal weights of a module, and the speedup from setting them to 0.

    Parameters
    ----------
    net : torch.nn.Module
        Not modified; run in eval mode if it has subnormal weights.
    x : Tensor
        Samples, (N, ...); repeated or cut to ``batch_size``.
    batch_size, repeats : int
        As in :func:`latency`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> net = nn.Linear(4, 2)
    >>> with torch.no_grad():
    ...     net.weight[0] = 1e-40
    >>> found = subnormals(net, torch.ones(8, 4), batch_size=8, repeats=3)
    >>> found.count, found.entries
    (4, 10)
    """
    tensors = [t for t in chain(net.parameters(), net.buffers()) if t.is_floating_point()]
    count = sum(int(is_subnormal(t).sum()) for t in tensors)
    entries = sum(t.numel() for t in tensors)
    if not count:
        return Subnormals(0, entries)
    as_is, zeroed = _timed([net, net], x, batch_size, repeats, zeroed=(False, True))
    return Subnormals(count, entries, float(as_is.min() / zeroed.min()))


def latency(nets: Sequence[nn.Module], x: Tensor, *, batch_size: int = 256, repeats: int = 25) -> tuple[Latency, ...]:
    """Return the latency of several modules on the same batch, with interleaved timing.

    Subnormal values, which slow down passes up to a hundredfold, are set to 0 in weights, inputs and in between.

    Parameters
    ----------
    nets : sequence of torch.nn.Module
        They are copied, put in eval mode and run without gradients in their own precision and on their own device.
    x : Tensor
        Samples, (N, ...); repeated or cut to ``batch_size``.
    batch_size : int
        Samples per pass.
    repeats : int
        Rounds. In every round each module runs for at least about a millisecond.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> slow, fast = latency([nn.Linear(2000, 2000), nn.Linear(2000, 2)], torch.ones(1, 2000), batch_size=64, repeats=5)
    >>> slow.median > fast.median, slow.batch_size
    (True, 64)
    """
    batch_size, repeats = validation.integer(batch_size, "batch_size"), validation.integer(repeats, "repeats")
    times = _timed(nets, x, batch_size, repeats, zeroed=(True,) * len(nets))
    kinds = [like(net, example(net, x[:1])) for net in nets]
    return tuple(
        Latency(
            median=float(np.median(own)),
            low=float(np.quantile(own, 0.25)),
            high=float(np.quantile(own, 0.75)),
            batch_size=batch_size,
            repeats=repeats,
            threads=torch.get_num_threads(),
            device=str(given.device),
            dtype=str(given.dtype).removeprefix("torch."),
            minimum=float(own.min()),
        )
        for own, given in zip(times, kinds, strict=True)
    )


def _timed(
    nets: Sequence[nn.Module], x: Tensor, batch_size: int, repeats: int, zeroed: Sequence[bool]
) -> list[np.ndarray]:
    """Return the seconds per pass in every round, for each module; ``zeroed``: without subnormal values."""
    x = example(nets[0], x)
    batch = x[torch.arange(batch_size) % len(x)]
    runners = []
    for net, without in zip(nets, zeroed, strict=True):
        own, given = copied(net).eval(), like(net, batch)
        if without:
            without_subnormals(own)
            given = torch.where(is_subnormal(given), torch.zeros_like(given), given)
        runners.append((own, given, without))
    times = np.empty((len(runners), repeats))
    with torch.no_grad():
        passes = []
        for net, given, without in runners:
            with flushed(without):
                passes.append(max(1, int(1e-3 / max(_seconds(net, given, 3), 1e-7))))
        for round_ in range(repeats):
            for i, (net, given, without) in enumerate(runners):
                with flushed(without):
                    times[i, round_] = _seconds(net, given, passes[i])
    return list(times)


@contextmanager
def flushed(flush: bool) -> Iterator[None]:
    """Compute with subnormal values set to 0 in this thread, or not; the setting before is restored."""
    before = flushing()
    torch.set_flush_denormal(flush)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def flushing() -> bool:
    """Return whether this thread sets subnormal results to 0."""
    tiny = torch.full((1,), torch.finfo(torch.float64).tiny, dtype=torch.float64)
    return bool((tiny * 0.5 == 0).all())


def like(net: nn.Module, x: Tensor) -> Tensor:
    """Return x on the module's device and, unless it holds integers, in its precision."""
    first = next(net.parameters(), None)
    if first is None:
        return x
    return x.to(first.device, first.dtype.to_real() if x.is_floating_point() else x.dtype)


def _seconds(net: nn.Module, x: Tensor, passes: int) -> float:
    devices.synchronize(x.device)
    start = time.perf_counter()
    for _ in range(passes):
        net(x)
    devices.synchronize(x.device)
    return (time.perf_counter() - start) / passes
