"""Loops of training and of measuring, at two lengths: what the host reads of the device must not grow with them."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import bnrank
from bnrank import training
from fuzz.calls import quiet
from fuzz.made import circle, cnn, mlp, normal

from . import moving, pretended

LENGTHS = 4, 12

Loop = Callable[[int, torch.device], Any]


def _train(make: Callable[[], nn.Module], **options: Any) -> Loop:
    def loop(length: int, to: torch.device) -> Any:
        task = bnrank.Task(normal(6, 3), normal(6, 2, seed=1))
        settings = {"ridge": 1e-3, "record": 10**6, "progress": False} | options
        return bnrank.train(make().to(to), task, steps=length, **settings)

    return loop


def _measure(function: Callable[..., Any], **options: Any) -> Loop:
    return lambda length, to: function(mlp().to(to), normal(length, 3).to(to), **options)


def _accumulate(length: int, to: torch.device) -> Any:
    total = bnrank.spectra.Accumulator()
    for i in range(length):
        total.add(normal(4, 3, seed=i).to(to))
    return total


def _flow(length: int, to: torch.device) -> Any:
    task = bnrank.Task(normal(6, 3), normal(6, 2, seed=1))
    return bnrank.flow(mlp().to(to), task, 0.01 * length, solver=training.Solver("euler", step=0.01), progress=False)


def _find(length: int, to: torch.device) -> Any:
    return bnrank.escape.find(circle().x.to(to), -circle().y.to(to), 3, 4, starts=2, steps=length)


LOOPS: dict[str, Loop] = {
    "train an MLP with Adam": _train(mlp, optimizer="adam"),
    "train an MLP with Adam, mini-batches": _train(mlp, optimizer="adam", batch_size=3),
    "train any module with Adam": _train(moving.general, optimizer="adam"),
    "train any module with Adam, mini-batches": _train(moving.general, optimizer="adam", batch_size=3),
    "train with gradient descent": _train(mlp, optimizer=training.GradientDescent(0.01)),
    "train with normalized gradient descent": _train(
        mlp, optimizer=training.GradientDescent(0.01, schedule="normalized")
    ),
    "train with L-BFGS": _train(mlp, optimizer="lbfgs"),
    "flow": _flow,
    "find escape directions": _find,
    "NTK trace": _measure(bnrank.ntk.trace, chunk_size=2),
    "NTK of the samples": _measure(bnrank.ntk.gram),
    "Jacobian": _measure(lambda *a: bnrank.Jacobian(*a, chunk_size=2).singular_values),
    "Jacobian of any module": lambda length, to: (
        bnrank.Jacobian(moving.general().to(to), normal(length, 3).to(to), chunk_size=2).singular_values
    ),
    "profile": _measure(bnrank.profile),
    "profile of a convolutional network": lambda length, to: bnrank.profile(cnn().to(to), normal(length, 1, 6).to(to)),
    "accumulate spectra": _accumulate,
}
"""Loops by name, each of a length on a device."""

READ = {
    "train with normalized gradient descent": "a step is divided by the norm of the gradient, a number per member",
    "train with L-BFGS": "the line search branches on the loss and the slope of every member",
    "Jacobian": "chunk by chunk, kinks are looked for at the samples near one alone",
    "Jacobian of any module": "chunk by chunk, kinks are looked for at the samples near one alone",
    "accumulate spectra": "every piece is checked to be finite before it is added",
    "flow": "a step is accepted, and the flow handed over, by its error and the norms of parameters and gradient",
}
"""Loops in which the host reads the device at every step, with the reason."""


def copied(name: str) -> list[int]:
    """Return how often the host reads the device in a loop, at both lengths."""
    counts = []
    with warnings.catch_warnings(), quiet(), moving.device() as to:
        warnings.simplefilter("ignore")
        for length in LENGTHS:
            before = pretended.copies
            LOOPS[name](length, to)
            counts.append(pretended.copies - before)
    return counts
