"""Compositions y = h(g(x)) with few numbers g(x) between many inputs and many outputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks._random import streams
from bnrank.tasks.task import Task

__all__ = ["block_norms", "composition"]


def block_norms(x: Tensor, inner: int) -> Tensor:
    """Return g(x), (N, inner): the inputs cut into blocks of coordinates, ||block||^2 less its mean over its deviation.

    Mean and standard deviation are those under x ~ N(0, I): (||b||^2 - n_b) / sqrt(2 n_b) for a block of n_b inputs.
    Blocks are as even as can be, longer ones first. g is unchanged under rotations of every block.

    Raises
    ------
    TypeError, ValueError
        If there are fewer inputs than blocks.

    Examples
    --------
    >>> import torch
    >>> block_norms(torch.tensor([[1.0, 1.0, 3.0, 0.0]]), 2)
    tensor([[0.0000, 3.5000]])
    """
    x = validation.samples(x, "x")
    inner = validation.integer(inner, "inner")
    if inner > x.shape[1]:
        raise ValueError(f"inner: got {inner}, expected at most the number of inputs, {x.shape[1]}")
    blocks = x.tensor_split(inner, 1)
    return torch.stack([(b.square().sum(1) - b.shape[1]) / math.sqrt(2 * b.shape[1]) for b in blocks], 1)


def composition(
    n: int = 500,
    d_in: int = 10,
    d_out: int = 10,
    inner: int = 1,
    seed: int = 0,
    *,
    n_test: int = 2000,
    frequency: float = 2.0,
) -> Task:
    """Draw a composition with a small inner dimension that no linear map of the inputs shows (F7; Jacot2023c).

    x ~ N(0, I), z = g(x) as in :func:`block_norms`, y_j = sqrt(2 / d_out) cos(frequency w_j . z + p_j) with w_j from
    N(0, I) and p_j uniform. All inputs matter to the same extent, and within a block every direction looks like every
    other: this is the example of the slides, f(Rx) = f(x) for rotations R, which no function h(Ax) of fewer inputs
    equals. A scalar y would be a function of one number, itself, whatever ``inner``; with d_out > inner the inner
    dimension is ``inner``.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    d_in, d_out : int
        Dimensions of x and y.
    inner : int
        Dimension of z, at most ``d_in``.
    seed : int
        h, training and test inputs come from separate streams of it.
    frequency : float
        How fast h oscillates, > 0, in units of the standard deviation of z.

    Returns
    -------
    Task
        x (n, d_in), y (n, d_out), float32, loss "mse"; no noise.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.composition(n=100, d_in=12, inner=2)
    >>> task.x.shape, task.y.shape
    (torch.Size([100, 12]), torch.Size([100, 10]))
    """
    n, n_test = validation.integer(n, "n"), validation.integer(n_test, "n_test", 0)
    d_in, d_out = validation.integer(d_in, "d_in"), validation.integer(d_out, "d_out")
    inner = validation.integer(inner, "inner")
    if inner > d_in:
        raise ValueError(f"inner: got {inner}, expected at most d_in = {d_in}")
    frequency = validation.number(frequency, "frequency", 0.0, strict=True)
    for_h, train, test = streams(seed, 3)
    w = frequency * torch.randn(d_out, inner, generator=for_h, dtype=torch.float64)
    phases = 2 * math.pi * torch.rand(d_out, generator=for_h, dtype=torch.float64)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, d_in, generator=generator, dtype=torch.float64).float()
        y = math.sqrt(2 / d_out) * torch.cos(block_norms(x.double(), inner) @ w.T + phases)
        return x, y.float()

    settings = {"n": n, "d_in": d_in, "d_out": d_out, "inner": inner, "seed": seed, "n_test": n_test}
    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(*draw(n, train), x_test, y_test, name="composition", settings=settings | {"frequency": frequency})
