"""The control of F7 in which no small dimension is hidden: an isotropic Gaussian random field on the inputs."""

from dataclasses import replace

import torch
from sklearn.gaussian_process.kernels import Matern

from bnrank.tasks import Task
from bnrank.tasks.task import normal, streams

CHILD = 1  # of the seed, so that the field is independent of a task with the same seed


def field_kernel(alpha: float, length: float) -> Matern:
    """Return the kernel of a random field whose power at frequency w decays as ||w||^{-alpha - d_in}."""
    return Matern(length, nu=alpha / 2)


def random_field(task: Task, alpha: float, length: float, seed: int) -> Task:
    """Return the task with its outputs replaced by independent Gaussian random fields of prescribed decay.

    The d_out outputs are independent, with mean 0 and covariance k(||x - x'||) / d_out at all training and test samples
    together, where k is the Matern kernel of smoothness alpha / 2 and this length scale: a Cholesky factor of its
    matrix in float64, without jitter, times independent normal numbers. The power at frequency w decays as
    ||w||^{-alpha - d_in}, the law of the slides (Jacot2023c). The field has no preferred direction and no inner map.
    Conditional on training samples, its mean is kernel regression with its own kernel. The inputs must be distinct.
    """
    points = task.x if task.x_test is None else torch.cat([task.x, task.x_test])
    factor = torch.linalg.cholesky(torch.from_numpy(field_kernel(alpha, length)(points.double().numpy())))
    (generator,) = streams(seed, 1, CHILD)
    values = factor @ normal(generator, len(points), task.d_out) / task.d_out**0.5
    y, y_test = values.to(task.x.dtype).split([task.n, len(points) - task.n])
    settings = {**task.settings, "alpha": alpha, "length": length, "field": seed}
    y_test = None if task.x_test is None else y_test
    return replace(task, y=y, y_test=y_test, truth=None, name="random_field", settings=settings)
