"""Adam and gradient descent against torch.optim, one member after the other; the order of mini-batches."""

import math

import numpy as np
import pytest
import torch

from bnrank.training.ensemble import BatchOrder

from .common import cost_of, flat, mlp, put, random_task, trained

RIDGES, RATES = [0.0, 1e-2, 0.3], [3e-3, 1e-2, 5e-2]


def reference(net, task, optimizer, ridge, lr, steps, batches=None, factor=lambda step: 1.0):
    """The loop anyone would write, in float64."""
    net = put(net, flat(net))
    kind = {"adam": torch.optim.Adam, "gd": torch.optim.SGD}[optimizer]
    optimizer = kind(net.parameters(), lr=lr, weight_decay=2 * ridge)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * factor(step)
        optimizer.zero_grad()
        cost_of(net, task, None if batches is None else batches[step]).backward()
        optimizer.step()
    return flat(net)


@pytest.mark.parametrize("optimizer", ["adam", "gd"])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("batch_size", [None, 16])
def test_against_torch_optim(optimizer, loss, batch_size):
    task = random_task(100, loss=loss)
    net = mlp(3, 8, 8, 2, slope=0.2, seed=5)
    run = trained(
        net,
        task,
        ridge=RIDGES,
        lr=RATES,
        optimizer=optimizer,
        steps=50,
        batch_size=batch_size,
        dtype=torch.float64,
        progress=False,
    )
    for i, (ridge, lr) in enumerate(zip(RIDGES, RATES, strict=True)):
        batches = None
        if batch_size:
            order = BatchOrder([5 + i], 100, batch_size)
            batches = [order.at(step)[0] for step in range(50)]
        expected = reference(net, task, optimizer, ridge, lr, 50, batches)
        torch.testing.assert_close(run.parameters[i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["adam", "gd"])
@pytest.mark.parametrize(
    ("schedule", "factor"),
    [("cosine", lambda step: (1 + math.cos(math.pi * step / 40)) / 2), ("linear", lambda step: 1 - step / 40)],
)
def test_schedules(optimizer, schedule, factor):
    task, net = random_task(), mlp(3, 8, 2, seed=5)
    run = trained(
        net,
        task,
        ridge=1e-2,
        lr=2e-2,
        optimizer=optimizer,
        steps=40,
        schedule=schedule,
        dtype=torch.float64,
        progress=False,
    )
    expected = reference(net, task, optimizer, 1e-2, 2e-2, 40, factor=factor)
    torch.testing.assert_close(run.parameters[0], expected, rtol=1e-10, atol=1e-10)


def test_normalized_steps_are_as_long_as_said():
    task, net = random_task(), mlp(3, 8, 2, seed=5, dtype=torch.float64)
    points = [flat(net)]
    for steps in range(1, 6):
        run = trained(
            net,
            task,
            ridge=1e-2,
            lr=2e-2,
            optimizer="gd",
            schedule="normalized",
            steps=steps,
            dtype=torch.float64,
            progress=False,
        )
        points.append(run.parameters[0])
        change = points[-1] - points[-2]
        assert float(change.norm()) == pytest.approx(0.02 * float(points[-2].norm()), rel=1e-12)


def test_every_epoch_is_a_permutation():
    order = BatchOrder([3, 4], n=20, batch_size=5)
    seen = []
    for epoch in range(6):
        batches = torch.cat([order.at(4 * epoch + k) for k in range(4)], dim=1)
        assert batches.shape == (2, 20)
        for row in batches:
            assert sorted(row.tolist()) == list(range(20))
            seen.append(tuple(row.tolist()))
    assert len(set(seen)) == 12  # no epoch and no member like another


def test_a_short_last_batch_is_dropped():
    order = BatchOrder([0], n=23, batch_size=5)
    epoch = torch.cat([order.at(k)[0] for k in range(4)])
    assert len(set(epoch.tolist())) == 20
    assert order.at(4).shape == (1, 5)


def test_a_member_sees_the_same_batches_alone_and_at_any_step():
    together, alone = BatchOrder([3, 8, 5], n=20, batch_size=6), BatchOrder([8], n=20, batch_size=6)
    rest = together.keep([1, 2])
    for step in (0, 7, 2, 31, 30):
        assert torch.equal(together.at(step)[1], alone.at(step)[0])
        assert torch.equal(together.at(step)[1:], rest.at(step))


def test_recorded_cost_of_mini_batches_is_their_mean():
    task, net = random_task(48), mlp(3, 8, 2, seed=5)
    arguments = {"optimizer": "adam", "batch_size": 8, "lr": 1e-2, "dtype": torch.float64, "progress": False}
    run = trained(net, task, steps=11, every=4, **arguments)
    assert run.history.step.values.tolist() == [0, 4, 8, 11]
    order = BatchOrder([5], 48, 8)
    costs = []
    for step in range(11):
        row = trained(net, task, steps=step, **arguments).parameters[0] if step else flat(net)
        costs.append(float(cost_of(put(net, row), task, order.at(step)[0]).detach()))
    last = float(cost_of(put(net, run.parameters[0]), task).detach())
    expected = [costs[0], np.mean(costs[1:5]), np.mean(costs[5:9]), last]
    np.testing.assert_allclose(run.history.cost[0], expected, rtol=1e-7)
    assert np.isnan(run.history.gradient_norm[0, :-1]).all()
    assert np.isfinite(run.history.gradient_norm[0, -1])
