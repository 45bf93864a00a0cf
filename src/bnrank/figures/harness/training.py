"""Networks of one width, trained and stored for figures, and their errors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnrank.networks import MLP
from bnrank.tasks import Task
from bnrank.tasks.task import uniform
from bnrank.training import Run, train

Nets = nn.Module | Sequence[nn.Module] | Callable[..., nn.Module]
"""A network, one per member, or a function of the seed that returns one."""


def mlp(task: Task, depth: int, width: int, **options: Any) -> MLP:
    """Return an MLP of one hidden width with the inputs and outputs of a task."""
    return MLP([task.d_in, *[width] * (depth - 1), task.d_out], **options)


def start_as_pytorch(net: MLP, seed: int) -> MLP:
    """Redraw all parameters in place as `torch.nn.Linear` does, uniform within 1 / sqrt(inputs); return the network."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight, bias in zip(net.weights, net.biases, strict=True):
            bound = weight.shape[1] ** -0.5
            for parameter in (weight, bias):
                parameter.copy_(bound * (2 * uniform(generator, *parameter.shape) - 1))
    return net


def train_recorded(
    net: Nets, task: Task, folder: Path, progress: bool, *, steps: int, records: int = 20, **options: Any
) -> Run:
    """Train a network and store it in a folder, with about ``records`` recorded rows; resumes a stored run."""
    every = max(1, steps // records)
    return train(net, task, steps=steps, record=every, out=folder, progress=progress, **options)


def relative_error(predicted: Tensor | NDArray[np.float64], y: Tensor) -> float:
    """Return sum ||f(x_i) - y_i||^2 over sum ||y_i - mean||^2: 0 for a perfect fit, 1 for the mean of y."""
    wanted = y.double()
    apart = torch.as_tensor(predicted, dtype=torch.float64) - wanted
    return float(apart.square().sum() / (wanted - wanted.mean(0)).square().sum())


def held_out(task: Task) -> tuple[Tensor, Tensor]:
    """Return the test samples of a task.

    Raises
    ------
    ValueError
        If it has none.
    """
    if task.x_test is None or task.y_test is None:
        raise ValueError("task: got no test samples, expected some")
    return task.x_test, task.y_test
