"""What a watcher is shown while networks are trained, and that it changes nothing."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.tasks import Task
from bnrank.training import Record
from training.common import assert_same_run, cost_and_gradient, follow, mlp, random_task, trained


class Notes:
    """A watcher that copies all it is shown."""

    def __init__(self, fail_at=None):
        self.seen, self.fail_at = [], fail_at

    def observe(self, *, step, time, parameters, gradient, lr, ridge, member):
        if step == self.fail_at:
            raise ArithmeticError(f"seen enough at {step}")
        copies = [None if m is None else {name: t.clone() for name, t in m.items()} for m in (parameters, gradient)]
        self.seen.append((step, member, time, lr, ridge, *copies))

    def rows(self):
        return [(step, member) for step, member, *_ in self.seen]


def row_of(named):
    return torch.cat([t.flatten() for t in named.values()])


def module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))


def quiet(net, task, **settings):
    return trained(net, task, **{"steps": 12, "every": 5, "progress": False} | settings)


OPTIMIZERS = {
    "gd": {"optimizer": "gd", "lr": [0.1, 0.05, 0.02]},
    "normalized": {"optimizer": "gd", "lr": [0.01, 0.02, 0.03], "schedule": "normalized"},
    "cosine": {"optimizer": "adam", "schedule": "cosine", "members": 3},
    "lbfgs": {"optimizer": "lbfgs"},
    "kfac-lbfgs": {"optimizer": "kfac-lbfgs"},
    "auto": {"optimizer": "auto"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["mlp", "module"])
def test_a_watcher_sees_every_recorded_row_and_changes_no_bit(name, kind):
    if kind == "module" and name == "kfac-lbfgs":
        pytest.skip("for MLPs only")
    task = random_task()
    net = mlp(3, 4, 2) if kind == "mlp" else module
    settings = {"seed": 3, "ridge": [0.0, 1e-2, 0.1], "dtype": torch.float64, **OPTIMIZERS[name]}
    notes = Notes()
    run = quiet(net, task, watch=notes, **settings)
    assert_same_run(run, quiet(net, task, **settings))
    assert notes.rows() == [(step, member) for step in (0, 5, 10, 12) for member in range(3)]
    names = [n for n, _ in run.network().named_parameters()]
    for step, member, time, lr, ridge, parameters, gradient in notes.seen:
        assert list(parameters) == list(gradient) == names
        point = row_of(parameters)
        assert ridge == settings["ridge"][member]
        _, expected = cost_and_gradient(run.network(member), task, point)
        scale = expected.abs().max() + ridge * point.abs().max()
        assert float((row_of(gradient) - expected).abs().max() / scale) < 1e-12
        history = run.history.sel(member=member, step=step)
        assert float(point.square().sum()) == pytest.approx(float(history.parameter_norm), rel=1e-12)
        assert (time is not None) == (settings["optimizer"] == "gd")
        assert (lr is None) == ("lbfgs" in name)
    for member in range(3):
        last = [entry for entry in notes.seen if entry[1] == member][-1]
        torch.testing.assert_close(row_of(last[5]), run.parameters[member], rtol=0, atol=0)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "normalized"])
def test_time_is_the_sum_of_the_step_sizes_and_steps_are_as_said(schedule):
    task, notes = random_task(), Notes()
    ridge, rates = [0.0, 0.05], [0.02, 0.05]
    quiet(
        mlp(3, 4, 2),
        task,
        optimizer="gd",
        schedule=schedule,
        lr=rates,
        ridge=ridge,
        every=1,
        dtype=torch.float64,
        watch=notes,
    )
    for member in range(2):
        seen = [entry for entry in notes.seen if entry[1] == member]
        times = [entry[2] for entry in seen]
        np.testing.assert_allclose(times, np.append(0, np.cumsum([entry[3] for entry in seen[:-1]])), rtol=1e-13)
        for before, after in itertools.pairwise(seen):
            theta, gradient = row_of(before[5]), row_of(before[6])
            step = before[3] * (gradient + 2 * ridge[member] * theta)
            torch.testing.assert_close(row_of(after[5]), theta - step, rtol=1e-12, atol=1e-14)


def test_members_that_have_stopped_or_diverged_are_not_shown_again():
    task, notes = random_task(), Notes()
    rates, ridge = [1e3, 0.05, 0.1], [0.0, 5.0, 0.0]
    run = quiet(
        mlp(3, 4, 2), task, steps=40, optimizer="gd", lr=rates, ridge=ridge, gradient_norm=0.05, seed=0, watch=notes
    )
    assert run.summary.status.values.tolist() == ["diverged", "converged", "finished"]
    known = np.isfinite(run.history.loss.values)
    expected = [
        (int(step), member) for i, step in enumerate(run.history.step.values) for member in range(3) if known[member, i]
    ]
    assert notes.rows() == expected
    assert len(expected) < known.size
    for step, member, time, *_, parameters, _ in notes.seen:
        assert time == pytest.approx(step * rates[member])
        norm = float(run.history.parameter_norm.sel(step=step)[member])
        assert float(row_of(parameters).double().square().sum()) == pytest.approx(norm, rel=1e-6)


def test_mini_batches_have_a_gradient_at_the_end_only():
    task, notes = random_task(), Notes()
    run = quiet(mlp(3, 4, 2), task, batch_size=8, optimizer="gd", dtype=torch.float64, watch=notes)
    assert [entry[6] is None for entry in notes.seen] == [True, True, True, False]
    _, expected = cost_and_gradient(run.network(), task, run.parameters[0])
    torch.testing.assert_close(row_of(notes.seen[-1][6]), expected)


def test_frozen_parameters_are_not_shown():
    net = mlp(3, 4, 2)
    net.layers[0].weight.requires_grad_(False)
    notes = Notes()
    quiet(net, random_task(), optimizer="adam", watch=notes)
    assert list(notes.seen[0][5]) == ["layers.0.bias", "layers.1.weight", "layers.1.bias"]


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "gd", "ridge": [0.0, 0.1]},
        {"optimizer": "kfac-lbfgs", "ridge": [1e-3, 0.1]},
        {"optimizer": "adam", "members": 2, "batch_size": 16},
    ],
    ids=["gd", "kfac-lbfgs", "mini-batches"],
)
@pytest.mark.parametrize("fail_at", [5, 12])
def test_what_a_watcher_raises_comes_after_a_checkpoint(tmp_path, settings, fail_at):
    task, net = random_task(), mlp(3, 4, 2)
    whole = Notes()
    expected = quiet(net, task, watch=whole, **settings)
    with pytest.raises(ArithmeticError, match=f"seen enough at {fail_at}"):
        quiet(net, task, watch=Notes(fail_at), out=tmp_path, checkpoint_every=1000, **settings)
    notes = Notes()
    run = quiet(net, task, watch=notes, out=tmp_path, **settings)
    assert_same_run(run, expected)
    later = [entry for entry in whole.seen if entry[0] > fail_at]  # earlier rows are not shown again
    assert notes.rows() == [(step, member) for step, member, *_ in later]
    for mine, theirs in zip(notes.seen, later, strict=True):
        assert mine[2:5] == theirs[2:5]
        for name, value in mine[5].items():
            torch.testing.assert_close(value, theirs[5][name], rtol=0, atol=0)
    again = quiet(net, task, out=tmp_path, **settings)  # and without a watcher
    assert_same_run(again, expected)


@pytest.mark.parametrize("watch", [3, "monitor", print, Notes])
def test_no_watcher_is_refused(watch):
    task = random_task()
    with pytest.raises(TypeError, match=r"watch: got .* expected an object with a method observe"):
        quiet(mlp(3, 4, 2), task, watch=watch)
    with pytest.raises(TypeError, match=r"watch: got .* expected an object with a method observe"):
        follow(mlp(3, 4, 2), task, 1.0, watch=watch)


def test_a_watcher_is_described_only_where_it_is_refused():
    class Silent(Notes):
        def __repr__(self):
            raise AssertionError

    watch = Silent()
    assert Record(watch=watch).watch is watch


def test_a_sweep_refuses_a_watcher():
    with pytest.raises(ValueError, match="watch: the runs of a grid"):
        bnrank.sweep(random_task(), depths=[2], steps=1, processes=1, record=Record(watch=Notes()), progress=False)


# gradient flow

FLOWS = {
    "rk45": {},
    "arc": {"time": "arc"},
    "euler": {"method": "euler", "step": 0.01},
    "dop853": {"method": "dop853"},
    "skip": {"skip_plateau": True},
    "skip heun": {"skip_plateau": True, "method": "heun", "dtype": torch.float64},
}


def small(scale=1e-3):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Identity(), nn.Linear(5, 2, bias=False)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(scale)
    return net


@pytest.mark.parametrize("name", FLOWS)
def test_a_watcher_of_a_flow_sees_its_rows_and_changes_no_bit(name):
    task, notes, net = random_task(), Notes(), small()
    settings = {"t_end": 6.0, "every": 3, "max_networks": 1000, **FLOWS[name]}
    result = follow(net, task, watch=notes, **settings)
    plain = follow(net, task, **settings)
    for kept in ("loss", "times", "gradient_norm", "parameter_norm"):
        np.testing.assert_array_equal(getattr(result, kept), getattr(plain, kept))
    assert result.status == "finished"
    assert [entry[2] for entry in notes.seen[:-1]] == result.times[:-1].tolist()
    assert [entry[0] for entry in notes.seen] == result.history.step.values.tolist()
    assert all(entry[1] == 0 and entry[3] is None and entry[4] == 0 for entry in notes.seen)
    negligible = 1e-4 if "skip_plateau" in settings else 0
    for row, kept in zip(result.network_rows, result.networks, strict=True):
        parameters, gradient = notes.seen[row][5:]
        assert list(parameters) == list(gradient) == ["0.weight", "2.weight"]  # the names in the user's network
        point = row_of(parameters)
        torch.testing.assert_close(point, torch.cat([p.detach().flatten() for p in kept.parameters()]))
        _, expected = cost_and_gradient(net, task, point)
        error = float((row_of(gradient) - expected).norm() / expected.norm())
        assert error < 1e-12 + 10 * negligible, row


def test_a_flow_of_mini_batches_has_no_gradient():
    task, notes = random_task(), Notes()
    follow(small(1.0), task, 0.2, method="euler", step=0.05, batch_size=8, watch=notes)
    assert [entry[6] for entry in notes.seen] == [None] * 5


@pytest.mark.parametrize("name", ["rk45", "skip", "euler"])
@pytest.mark.parametrize("fail_at", [6, "last"], ids=str)
def test_a_watcher_that_raises_leaves_a_checkpoint_of_the_flow(tmp_path, name, fail_at):
    task, net = random_task(), small()
    settings = {"t_end": 4.0, "every": 3, **FLOWS[name]}
    whole = Notes()
    expected = follow(net, task, watch=whole, **settings)
    fail_at = whole.seen[-1][0] if fail_at == "last" else fail_at
    with pytest.raises(ArithmeticError, match="seen enough"):
        follow(net, task, watch=Notes(fail_at), out=tmp_path, **settings)
    notes = Notes()
    result = follow(net, task, watch=notes, out=tmp_path, **settings)
    np.testing.assert_array_equal(result.loss, expected.loss)
    np.testing.assert_array_equal(result.times, expected.times)
    later = [step for step in expected.history.step.values if step > fail_at]
    assert [entry[0] for entry in notes.seen][-len(later) or 10**9 :] == later


def test_a_module_with_buffers_is_watched_in_an_ensemble():
    class Scaled(nn.Module):
        def __init__(self, seed):
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            self.matrix = nn.Parameter(torch.randn(2, 3, generator=generator))
            self.register_buffer("scale", torch.tensor(0.5))

        def forward(self, x):
            return self.scale * x @ self.matrix.T

    task: Task = random_task()
    notes = Notes()
    run = quiet(Scaled, task, optimizer="gd", members=2, watch=notes, dtype=torch.float64)
    residual = 0.5 * task.x @ run.parameters[1].view(2, 3).T - task.y
    expected = residual.T @ task.x / len(task.x)  # (2/N) times 1/2
    torch.testing.assert_close(notes.seen[-1][6]["matrix"], expected)
