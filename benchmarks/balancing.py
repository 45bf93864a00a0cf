"""Balancing neurons: Newton on the logs of the norms against sweeps over the layers, to the same residual."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.rows import Row
from benchmarks.timing import in_turn, seconds
from bnrank.networks import MLP, from_layers
from bnrank.theory.cost import balancing

__all__ = ["measure"]

RESIDUAL = 1e-14
SPREAD = 6.0  # neurons are rescaled by 10^-6 to 10^6
SHAPES = ((13, 100), (40, 30), (60, 10))  # depth and width; the first is F1's
LONGEST = 60.0  # seconds that the sweeps are given
LOOK = 5  # sweeps between looks at the residual


def measure(quick: bool) -> Iterator[Row]:
    """Time both on networks at initialization, with and without biases, their neurons rescaled at random."""
    for depth, width in SHAPES[:2] if quick else SHAPES:
        for bias in (False, True):
            yield _row(depth, width, bias, 1 if quick else 3)


def _row(depth: int, width: int, bias: bool, rounds: int) -> Row:
    net = _network(depth, width, bias)
    found = balancing(net)
    ends: list[tuple[int, float]] = []
    times = in_turn(
        {
            "newton": lambda: seconds(lambda: balancing(net)),
            "sweeps": lambda: seconds(lambda: ends.append(_by_sweeps(net))),
        },
        rounds,
    )
    sweeps, left = ends[-1]
    best = min(t["newton"] for t in times)
    what = f"balance, depth {depth}, width {width}, {'with' if bias else 'no'} biases"
    note = f"{1e3 * best:.0f} ms, {found.newton_steps} steps to {found.residual:.0e}; {sweeps} sweeps to {left:.0e}"
    return Row("balancing", what, "sweeps over the layers", times.ratio("sweeps", "newton"), at_least=1, note=note)


def _network(depth: int, width: int, bias: bool) -> MLP:
    """Return a network at initialization, its biases drawn as well, with every hidden neuron rescaled."""
    g = np.random.default_rng(0)
    net = MLP([width] * (depth + 1), bias=bias, seed=0, dtype=torch.float64)
    weights = [w.detach().numpy() for w in net.weights]
    biases = [g.normal(size=width) for _ in net.biases]
    for l in range(depth - 1):  # noqa: E741
        c = 10 ** g.uniform(-SPREAD, SPREAD, width)
        weights[l] *= c[:, None]
        weights[l + 1] /= c
        if bias:
            biases[l] *= c
    return from_layers([torch.from_numpy(w) for w in weights], [torch.from_numpy(b) for b in biases])


def _by_sweeps(net: MLP) -> tuple[int, float]:
    """Balance one layer after the other until all are, or for as long as there is; return sweeps and residual."""
    squares = [w.detach().numpy() ** 2 for w in net.weights]
    biases = [b.detach().numpy() ** 2 for b in net.biases]
    began, sweeps, left = time.perf_counter(), 0, 1.0
    while left > RESIDUAL and time.perf_counter() - began < LONGEST:
        for _ in range(LOOK):
            for l in range(len(squares) - 1):  # noqa: E741
                c = np.sqrt(squares[l + 1].sum(0) / _incoming(squares, biases, l))
                squares[l] *= c[:, None]
                squares[l + 1] /= c
                if biases:
                    biases[l] *= c
        sweeps += LOOK
        sides = [(_incoming(squares, biases, l), squares[l + 1].sum(0)) for l in range(len(squares) - 1)]  # noqa: E741
        left = sum(np.abs(a - b).sum() for a, b in sides) / sum((a + b).sum() for a, b in sides)
    return sweeps, float(left)


def _incoming(squares: list[np.ndarray], biases: list[np.ndarray], l: int) -> np.ndarray:  # noqa: E741
    return squares[l].sum(1) + (biases[l] if biases else 0.0)
