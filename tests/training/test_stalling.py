"""Members without further progress stop: when, alone or in company, after a resume, and not near a saddle."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bnrank
from bnrank.training.quasi_newton import LBFGS

TASK = bnrank.tasks.low_rank_map(n=40, d_in=3, d_out=3, latent=2, rank=1, width=8, seed=1)
NET = bnrank.LinearNetwork([3, 5, 5, 5, 3])


STEPS = 6000  # a network stops at 500 to 2,500 of them, which differ from processor to processor


def train(ridges, seeds, steps=STEPS, **more):
    options = {"ridge": ridges, "seed": seeds, "steps": steps, "record": 50, "progress": False} | more
    return bnrank.train(NET, TASK, **options)


@pytest.fixture(scope="module")
def run():
    return train([3e-3, 3e-2, 3e-3], [0, 1, 2])


def test_in_float32_they_stop_soon_after_the_loss_is_that_of_the_minimum(run):
    assert set(run.summary.status.values) == {"stalled"}
    assert run.summary.steps.values.max() <= STEPS / 2
    precise = train([3e-3, 3e-2, 3e-3], [0, 1, 2], dtype=torch.float64)
    np.testing.assert_allclose(run.summary.loss, precise.summary.loss, rtol=1e-5)


def test_in_float64_the_gradient_is_at_rounding_level():
    task = bnrank.Task(TASK.x.double(), TASK.y.double())
    run = bnrank.train(
        torch.nn.Linear(3, 3), task, ridge=0.1, steps=3000, optimizer="lbfgs", dtype=torch.float64, progress=False
    )
    assert run.summary.status.values.tolist() == ["stalled"]
    assert run.summary.steps.values[0] <= 600
    assert run.summary.gradient_norm.values[0] <= 1e-13


def test_when_a_member_stops_does_not_depend_on_its_company(run):
    for i, (ridge, seed) in enumerate([(3e-3, 0), (3e-2, 1), (3e-3, 2)]):
        alone = train([ridge], [seed])
        assert torch.equal(alone.parameters[0], run.parameters[i])
        for name in ("status", "steps", "loss"):
            assert alone.summary[name].values[0] == run.summary[name].values[i]


def test_a_run_that_is_made_longer_stops_where_it_would_have(run, tmp_path):
    for steps in (*sorted(run.summary.steps.values - 75), STEPS):  # while a member makes no more progress
        longer = train([3e-3, 3e-2, 3e-3], [0, 1, 2], int(steps), out=tmp_path)
    assert torch.equal(longer.parameters, run.parameters)
    assert longer.summary.steps.values.tolist() == run.summary.steps.values.tolist()


def walk(factor, steps=800):
    """The search after walking from a saddle, by a factor per evaluation; the loss is 1 up to rounding all along."""
    like = torch.full((1, 1), 1e-6)
    objective = SimpleNamespace(theta=like, size=1)
    search = LBFGS(objective, torch.zeros(1, dtype=torch.float64)).searches[0]
    theta = like[0].clone()
    for _ in range(steps):
        search.started = False  # every point is accepted, in place of a line search
        search.advance(theta, 1.0, -theta)
        if search.stalled:
            break
        theta = theta * factor
    return search


def test_leaving_a_saddle_is_progress_although_the_loss_is_the_same():
    assert not walk(1.02).stalled  # the gradient grows tenfold in 116 evaluations
    assert walk(1.001).stalled  # in 2,300
    assert walk(1.0).stalled
    assert not walk(0.999).stalled  # it falls by a tenth in 105
