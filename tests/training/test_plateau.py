"""Normalized gradient descent leaves the saddle at the origin in about as many steps from any scale (T35)."""

import numpy as np
import torch

import bnrank
from bnrank.training import GradientDescent


def steps_to_escape(init, schedule, lr, steps):
    """Return the first recorded step at which a tenth of the loss is gone, or None."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=3, rank=2, seed=0)
    net = bnrank.MLP([4, 12, 12, 12, 4], bias=False, init=init)
    run = bnrank.train(
        net,
        task,
        steps=steps,
        seed=0,
        optimizer=GradientDescent(lr=lr, schedule=schedule),
        dtype=torch.float64,
        record=5,
        progress=False,
    )
    below = np.flatnonzero(run.history.loss.values[0] < 0.9 * run.history.loss.values[0, 0])
    return int(run.history.step[below[0]]) if len(below) else None


def test_the_plateau_grows_like_the_logarithm_of_the_scale_and_not_like_a_power():
    waits = [steps_to_escape(init, "normalized", 0.02, 1500) for init in (1e-1, 1e-2, 1e-3)]
    assert None not in waits
    per_decade = np.log(10) / 0.02  # steps in which the norm can grow tenfold
    assert waits[1] - waits[0] <= 1.5 * per_decade
    assert waits[2] - waits[1] <= 1.5 * per_decade


def test_constant_steps_do_not_leave_it_in_the_same_time():
    assert steps_to_escape(1e-1, "constant", 0.02, 1500) is not None
    assert steps_to_escape(1e-2, "constant", 0.02, 1500) is None
