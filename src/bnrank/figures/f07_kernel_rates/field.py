"""The control of F7 in which no small dimension is hidden: an isotropic Gaussian random field on the inputs."""

import math
from dataclasses import replace

import torch

from bnrank.tasks import Task
from bnrank.tasks.task import normal, streams

WAVES = 2048  # number of random frequencies; the covariance is that of the kernel up to 1 / sqrt(2 * WAVES)


def random_field(task: Task, alpha: int, length: float, seed: int) -> Task:
    """Return the task with its outputs replaced by independent random fields of prescribed decay.

    y_j(x) = sum_m a_jm cos(w_m . x) + b_jm sin(w_m . x) with Gaussian a, b: a Gaussian field of covariance
    k(||x - x'||) / d_out, where k is the Matern kernel of smoothness alpha / 2 and this length scale. The power at
    frequency w decays as ||w||^{-alpha - d_in}, the law of the slides (Jacot2023c). The field has no preferred
    direction and no inner map, and kernel regression with its own kernel is its best predictor.
    """
    for_waves, for_amplitudes = streams(seed, 2)
    mixing = normal(for_waves, WAVES, alpha).square().mean(1, keepdim=True).sqrt()
    waves = normal(for_waves, WAVES, task.d_in) / (mixing * length)
    amplitudes = normal(for_amplitudes, 2 * WAVES, task.d_out) / math.sqrt(WAVES * task.d_out)

    def values(x: torch.Tensor) -> torch.Tensor:
        angles = x.double() @ waves.T
        return (torch.cat([angles.cos(), angles.sin()], 1) @ amplitudes).to(x.dtype)

    y_test = None if task.x_test is None else values(task.x_test)
    settings = {**task.settings, "alpha": alpha, "length": length, "field": seed}
    return replace(task, y=values(task.x), y_test=y_test, truth=None, name="random_field", settings=settings)
