"""What several figures measure in the same way."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank.tasks import Task

__all__ = ["held_out", "relative_error"]


def relative_error(predicted: Tensor | NDArray[np.float64], y: Tensor) -> float:
    """Return sum ||f(x_i) - y_i||^2 over sum ||y_i - mean||^2: 0 for a perfect fit, 1 for the mean of y."""
    wanted = y.double()
    apart = torch.as_tensor(predicted, dtype=torch.float64) - wanted
    return float(apart.square().sum() / (wanted - wanted.mean(0)).square().sum())


def held_out(task: Task) -> tuple[Tensor, Tensor]:
    """Return the test samples of a task that has some.

    Raises
    ------
    ValueError
        If it has none.
    """
    if task.x_test is None or task.y_test is None:
        raise ValueError("task: got no test samples, expected some")
    return task.x_test, task.y_test
