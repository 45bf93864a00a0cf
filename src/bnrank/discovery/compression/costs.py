"""The cost of a network: parameters, multiply-adds, layers and latency."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.compression.chain import convolution
from bnrank.networks.functional import example

__all__ = ["Counts", "Latency", "cheapest", "cost", "counts", "latency", "multiply_adds", "parameters", "share"]

_COUNTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Latency:
    """Wall time of a forward pass, in seconds.

    Attributes
    ----------
    median : float
        Over the repeats.
    low, high : float
        First and third quartile.
    batch : int
        Samples per pass.
    repeats : int
        Number of timed rounds; a round is the mean over enough passes to last a millisecond.
    threads : int
        Of torch.
    device, dtype : str
        Where, and in which precision.
    least : float
        Over the repeats: what other work on the machine disturbs least.
    """

    median: float
    low: float
    high: float
    batch: int
    repeats: int
    threads: int
    device: str
    dtype: str
    least: float


def parameters(net: nn.Module) -> int:
    """Count the entries of all parameters, those used twice once.

    Examples
    --------
    >>> parameters(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    26
    """
    return sum(p.numel() for p in net.parameters())


def multiply_adds(net: nn.Module, x: Tensor) -> int:
    """Count the multiply-adds of linear and convolutional layers for one sample; biases and the rest not counted.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; layers that run more than once count as often. What other modules do inside, and what is written
        with functions, does not count.
    x : Tensor
        Samples, (N, ...), of which the first is run through it.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 5))
    >>> multiply_adds(net, torch.ones(1, 1, 4, 4))
    448
    """
    count = 0

    def note(layer: Any, given: Any, out: Tensor) -> None:
        nonlocal count
        entries = out[0].numel() if out.ndim > 1 else out.numel()
        count += entries * layer.weight[0].numel()

    layers = {sub for sub in net.modules() if isinstance(sub, _COUNTED)}
    handles = [layer.register_forward_hook(note) for layer in layers]
    modes = [(sub, sub.training) for sub in net.modules()]
    try:
        net.eval()
        with torch.no_grad():
            net(x[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
        for sub, mode in modes:
            sub.training = mode
    return count


def latency(modules: Sequence[nn.Module], x: Tensor, *, batch: int = 256, repeats: int = 25) -> tuple[Latency, ...]:
    """Time forward passes of several modules on the same batch, in turns, so that a busy machine slows all alike.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        They are copied, put in eval mode and run without gradients in their own precision and on their own device.
    x : Tensor
        Samples, (N, ...); repeated or cut to ``batch`` of them.
    batch : int
        Samples per pass.
    repeats : int
        Rounds. In every round each module runs for about a millisecond at least.

    Returns
    -------
    tuple of Latency
        One per module.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> slow, fast = latency([nn.Linear(2000, 2000), nn.Linear(2000, 2)], torch.ones(1, 2000), batch=64, repeats=5)
    >>> slow.median > fast.median, slow.batch
    (True, 64)
    """
    batch, repeats = validation.integer(batch, "batch"), validation.integer(repeats, "repeats")
    x = example(modules[0], x)
    rows = torch.arange(batch) % len(x)
    runners = []
    for module in modules:
        first = next(module.parameters(), None)
        given = x[rows]
        if first is not None:
            given = given.to(first.device, first.dtype if given.is_floating_point() else given.dtype)
        runners.append((copy.deepcopy(module).eval(), given))
    times = np.empty((len(runners), repeats))
    with torch.no_grad():
        passes = [max(1, int(1e-3 / max(_seconds(net, given, 3), 1e-7))) for net, given in runners]
        for round_ in range(repeats):
            for i, (net, given) in enumerate(runners):
                times[i, round_] = _seconds(net, given, passes[i])
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75], axis=1)
    return tuple(
        Latency(
            float(median[i]),
            float(low[i]),
            float(high[i]),
            batch,
            repeats,
            torch.get_num_threads(),
            str(given.device),
            str(given.dtype).removeprefix("torch."),
            float(times[i].min()),
        )
        for i, (_, given) in enumerate(runners)
    )


def _seconds(net: nn.Module, x: Tensor, passes: int) -> float:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    start = time.perf_counter()
    for _ in range(passes):
        net(x)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return (time.perf_counter() - start) / passes


Counts = tuple[int, int, int]


def counts(parts: Sequence[nn.Module], x: Tensor) -> Counts:
    """Return the numbers of parameters, multiply-adds per sample, and linear parts."""
    layers = sum(isinstance(part, nn.Linear) or convolution(part) for part in parts)
    return sum(parameters(part) for part in parts), multiply_adds(nn.Sequential(*parts), x), layers


def share(some: Sequence[float], whole: Counts) -> float:
    """Return the mean of three shares in those of the whole: parameters, multiply-adds, linear parts.

    The last stands for the time that a layer takes however small it is.

    Examples
    --------
    >>> share((50, 20, 1), (100, 80, 4))
    0.3333333333333333
    """
    return sum(a / max(b, 1) for a, b in zip(some, whole, strict=True)) / 3


def cost(parts: Sequence[nn.Module], x: Tensor, whole: Counts) -> float:
    """Return the :func:`share` of parts in the whole."""
    return share(counts(parts, x), whole)


def cheapest(prices: Tensor, tails: Tensor, threshold: float) -> int:
    """Return the place of the least price + (tail / threshold)^2.

    With one threshold for all layers an error is spent where it saves most: at the optimum of the sum of prices for a
    given sum of squared tails all layers have the same rate of exchange, threshold^2.

    Parameters
    ----------
    prices, tails : Tensor
        (n,): for every size that a layer can be cut to, what is left of the cost and the change that it makes.
    threshold : float
        The change that is worth all of the cost.

    Examples
    --------
    >>> import torch
    >>> tails = torch.tensor([1.0, 0.1, 0.0])
    >>> [cheapest(torch.tensor([0.1, 0.2, 0.3]), tails, t) for t in (0.1, 1.0, 10.0)]
    [2, 1, 0]
    """
    return int((prices.to(tails) + (tails / threshold).square()).argmin())
