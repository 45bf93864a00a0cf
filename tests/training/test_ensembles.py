"""A member of an ensemble has the run it would have alone; seeds, stopping, diverging."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from bnrank import MLP
from bnrank.training.objectives import MLPObjective

from .common import assert_same_run, flat, mlp, random_task, trained

QUIET = {"progress": False, "every": 5, "top_k": 3}
OPTIMIZERS = {
    "adam": {"optimizer": "adam", "lr": [1e-3, 1e-2, 3e-2]},
    "adam in mini-batches": {"optimizer": "adam", "lr": [1e-3, 1e-2, 3e-2], "batch_size": 64},
    "gradient descent": {"optimizer": "gd", "lr": [1e-3, 1e-2, 2e-2], "schedule": "cosine"},
    "normalized": {"optimizer": "gd", "lr": [1e-3, 1e-2, 2e-2], "schedule": "normalized"},
    "lbfgs": {"optimizer": "lbfgs"},
    "kfac-lbfgs": {"optimizer": "kfac-lbfgs"},
}


def solo(arguments, i):
    return {name: value[i] if isinstance(value, list) else value for name, value in arguments.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_member_alone_and_in_an_ensemble(name, loss, dtype):
    task, net = random_task(300, loss=loss), mlp(3, 12, 9, 2, slope=0.1)
    arguments = OPTIMIZERS[name] | {"ridge": [0.0, 1e-3, 0.1], "init": ["he", 0.5, 0.3], "seed": [7, 3, 11]}
    together = trained(net, task, steps=23, dtype=dtype, **arguments, **QUIET)
    for i in range(3):
        assert_same_run(together, trained(net, task, steps=23, dtype=dtype, **solo(arguments, i), **QUIET), [i])


def test_warm_started_members_alone_and_in_an_ensemble():
    task, net = random_task(60), mlp(3, 12, 9, 2)
    together = trained(net, task, steps=230, ridge=[1e-3, 0.1], seed=4, **QUIET)
    assert together.settings.optimizer == "adam+kfac-lbfgs"
    for i, ridge in enumerate([1e-3, 0.1]):
        assert_same_run(together, trained(net, task, steps=230, ridge=ridge, seed=4 + i, **QUIET), [i])


@pytest.mark.parametrize("name", ["adam", "kfac-lbfgs"])
def test_the_number_of_threads_does_not_matter(name):
    task, net = random_task(300), mlp(3, 12, 9, 2)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(trained(net, task, steps=20, members=3, ridge=1e-3, optimizer=name, **QUIET))
    finally:
        torch.set_num_threads(before)
    assert_same_run(*runs)


def test_modules_agree_to_rounding():
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    task, ridges = random_task(60), [0.0, 1e-2, 0.1]
    together = trained(net, task, steps=20, ridge=ridges, optimizer="adam", **QUIET)
    for i, ridge in enumerate(ridges):
        alone = trained(net, task, steps=20, ridge=ridge, optimizer="adam", **QUIET)
        torch.testing.assert_close(together.parameters[i], alone.parameters[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "gd", "kfac-lbfgs"])
def test_net_is_never_changed(optimizer):
    net, task = mlp(3, 8, 2, seed=3), random_task()
    before, rng = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    run = trained(net, task, members=2, steps=5, seed=1, optimizer=optimizer, dtype=torch.float64, **QUIET)
    run.network(0).weights[0].data.fill_(3.0)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert (net.seed, net.init) == (3, "he")
    assert run.net is not net
    assert torch.equal(rng, torch.random.get_rng_state())
    assert not (run.parameters[0] == 3.0).any()


class TestSeeds:
    task = random_task()

    def starts(self, net, **arguments):
        return trained(net, self.task, steps=0, **arguments, **QUIET)

    def test_without_seed_member_0_starts_from_its_own_parameters(self):
        net = mlp(3, 8, 2, seed=3, init=0.7)
        with torch.no_grad():
            net.biases[0].fill_(0.25)
        run = self.starts(net, members=3)
        assert run.settings.seeds == (3, 4, 5)
        assert torch.equal(run.parameters[0], flat(net))
        for i in (1, 2):
            assert torch.equal(run.parameters[i], flat(mlp(3, 8, 2, seed=3 + i, init=0.7)))

    @pytest.mark.parametrize("name", ["ridge", "lr"])
    def test_settings_that_differ_start_from_the_same_parameters(self, name):
        net = mlp(3, 8, 2, seed=3)
        run = self.starts(net, optimizer="adam", **{name: [1e-3, 1e-2, 1e-2]})
        assert all(torch.equal(row, flat(net)) for row in run.parameters)
        alike = self.starts(net, optimizer="adam", **{name: [1e-2, 1e-2]})
        assert not torch.equal(alike.parameters[0], alike.parameters[1])

    def test_with_seed_all_are_drawn_anew(self):
        net = mlp(3, 8, 2, seed=3)
        with torch.no_grad():
            net.weights[0].fill_(0.25)
        run = self.starts(net, members=2, seed=10, ridge=[0.1, 0.2])
        for i in range(2):
            assert torch.equal(run.parameters[i], flat(mlp(3, 8, 2, seed=10 + i)))
        listed = self.starts(net, seed=[10, 11], ridge=[0.1, 0.2])
        assert torch.equal(run.parameters, listed.parameters)

    def test_init_overrides_per_member(self):
        run = self.starts(mlp(3, 8, 2, seed=3), init=["he", 0.5], seed=6)
        assert torch.equal(run.parameters[0], flat(mlp(3, 8, 2, seed=6)))
        assert torch.equal(run.parameters[1], flat(mlp(3, 8, 2, seed=7, init=0.5)))

    def test_a_function_is_called_with_every_seed(self):
        run = self.starts(lambda seed: MLP([3, 8, 2], seed=seed, init=0.1 + seed), members=2, seed=4)
        for i in range(2):
            assert torch.equal(run.parameters[i], flat(mlp(3, 8, 2, seed=4 + i, init=4.1 + i)))

        def module(seed):
            net = nn.Linear(3, 2)
            nn.init.constant_(net.weight, seed)
            return net

        run = self.starts(module, members=3, seed=2)
        assert run.parameters[:, 0].tolist() == [2.0, 3.0, 4.0]

    def test_a_module_starts_from_its_own_parameters(self):
        net = nn.Linear(3, 2)
        run = self.starts(net, ridge=[0.1, 0.2])
        assert all(torch.equal(row, flat(net)) for row in run.parameters)


def some(arguments, keep):
    """The arguments of an ensemble of some of the members."""
    return {name: [value[i] for i in keep] if isinstance(value, list) else value for name, value in arguments.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [None, 64])
def test_a_diverging_member_is_frozen_and_the_others_go_on(dtype, batch_size):
    task, net = random_task(300), mlp(3, 12, 9, 2)
    arguments = {"lr": [1e-2, 1e4, 2e-2, 1e3], "ridge": [1e-3] * 4, "seed": [5, 6, 7, 8], "dtype": dtype}
    arguments |= {"optimizer": "gd", "steps": 40, "batch_size": batch_size, **QUIET}
    run = trained(net, task, **arguments)
    assert run.summary.status.values.tolist() == ["finished", "diverged", "finished", "diverged"]
    assert_same_run(run, trained(net, task, **some(arguments, [0, 2])), [0, 2])
    assert np.isnan(run.history.loss[[1, 3], -1]).all()
    assert np.isfinite(run.history.loss[[0, 2]]).all()
    assert (run.summary.steps[[1, 3]] < 40).all()


def test_a_diverging_member_stops_before_the_next_row(monkeypatch):
    evaluate, sizes = MLPObjective.evaluate, []

    def counted(objective, batch=None):
        sizes.append(objective.members)
        return evaluate(objective, batch)

    monkeypatch.setattr(MLPObjective, "evaluate", counted)
    arguments = {"lr": [1e-2, 1e4], "optimizer": "gd", "steps": 40, "every": 1000, "progress": False}
    run = trained(mlp(3, 12, 9, 2), random_task(100), **arguments)
    assert run.summary.status.values.tolist() == ["finished", "diverged"]
    assert sizes.count(1) > 20


@pytest.mark.parametrize("optimizer", ["adam", "gd", "lbfgs", "kfac-lbfgs", "auto"])
def test_a_start_that_is_not_finite(optimizer):
    task, net = random_task(), mlp(3, 8, 8, 2)
    arguments = {"optimizer": optimizer, "steps": 12, "init": [1e30, 0.5], "seed": [1, 2], **QUIET}
    run = trained(net, task, **arguments)
    assert run.summary.status.values.tolist() == ["diverged", "finished"]
    assert_same_run(run, trained(net, task, **some(arguments, [1])), [1])
    alone = trained(net, task, **some(arguments, [0]))
    assert alone.summary.status.values.tolist() == ["diverged"]


@pytest.mark.parametrize("optimizer", ["adam", "kfac-lbfgs"])
@pytest.mark.parametrize("criteria", [["gradient_norm"], ["balance_residual"], ["gradient_norm", "balance_residual"]])
def test_members_stop_at_their_own_time(optimizer, criteria):
    task, net = random_task(100), mlp(3, 8, 8, 2, seed=1)
    arguments = {"ridge": [1.0, 1e-5, 0.3, 0.1], "seed": [1, 2, 3, 4], "optimizer": optimizer, "steps": 120}
    arguments |= QUIET | {"init": [0.5, "he", 0.4, 0.2]}
    if optimizer == "adam":
        arguments["lr"] = [3e-2, 1e-2, 1e-2, 3e-3]
    free = trained(net, task, **arguments)
    # limits that two members come below, and two do not
    least = {name: np.sort(free.history[name].min("step").values) for name in criteria}
    limits = {name: float(np.sqrt(values[1] * values[2])) for name, values in least.items()}
    run = trained(net, task, **arguments, **limits)
    status = run.summary.status.values.tolist()
    assert len(criteria) == 2 or (status.count("converged") == 2 and set(run.summary.steps.values.tolist()) > {120})
    for i in range(4):
        last = int(run.summary.steps[i])
        before = run.history.isel(member=i).sel(step=slice(0, last))
        met = np.logical_and.reduce([before[name].values < limit for name, limit in limits.items()])
        assert not met[:-1].any()
        assert met[-1] == (status[i] == "converged")
        assert np.isnan(run.history.loss[i].sel(step=slice(last + 1, None))).all()
        np.testing.assert_array_equal(before.loss, free.history.loss[i].sel(step=slice(0, last)))
        assert_same_run(run, trained(net, task, **some(arguments, [i]), **limits), [i])
        shorter = trained(net, task, **some(arguments, [i]) | {"steps": last})
        assert torch.equal(shorter.parameters[0], run.parameters[i])
