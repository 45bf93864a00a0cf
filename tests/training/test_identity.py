"""Stored runs, flows and sweeps are reused only for the call that produced them."""

import functools

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank._core import identity
from bnrank.tasks import Task
from bnrank.training import Adam, Run, Save
from training.common import flat, random_task

TASK = random_task()
PAUSED = {"steps": 3, "progress": False, "optimizer": Adam()}


def sequential(activation=nn.ReLU, seed=0, frozen=None, scale=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2)).double()
    if frozen is not None:
        net[0].weight.requires_grad_(False).fill_(frozen)
    if scale is not None:
        net.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
    return net


def bent(power):
    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.layer(x) ** power

    return Bent()


def squares():
    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.layer(x).abs()

    return Bent()


OTHERS = {
    "activation": (sequential(), sequential(nn.Tanh), r"net\.1: stored ReLU, now Tanh"),
    "frozen weights": (
        sequential(frozen=0.1),
        sequential(frozen=0.2),
        r"net\.0\.weight: stored frozen float64 \(4, 3\)",
    ),
    "frozen or trained": (sequential(), sequential(frozen=0.2), r"net\.0\.weight: stored trained .*now frozen"),
    "buffer": (sequential(scale=1.0), sequential(scale=2.0), r"net\.scale: stored buffer float64 \(\)"),
    "closure": (bent(2), bent(3), r"net \(Bent\.forward\) \(power\): stored 2, now 3"),
    "forward": (bent(2), squares(), r"net \(Bent\.forward\) \(code\): stored SHA-256"),
    "initial weights": (sequential(seed=0), sequential(seed=1), "initial parameters: stored"),
}


@pytest.mark.parametrize("compute", ["train", "flow"])
@pytest.mark.parametrize("case", OTHERS)
def test_results_of_another_network_are_refused(compute, case, tmp_path):
    one, other, message = OTHERS[case]
    if compute == "train":
        run = functools.partial(bnrank.train, task=TASK, dtype=torch.float64, out=tmp_path, **PAUSED)
    else:
        run = functools.partial(bnrank.flow, task=TASK, t_end=0.01, out=tmp_path, progress=False)
    first = run(one)
    with pytest.raises(ValueError, match=rf"out: .*holds a \w+ with other settings \({message}"):
        run(other)
    again = run(one)
    assert np.array_equal(first.history.loss, again.history.loss)


def weighted(factor):
    return lambda out, y: factor * ((out - y) ** 2).sum(1).mean()


def test_results_of_another_loss_are_refused(tmp_path):
    run = functools.partial(bnrank.flow, sequential(), t_end=0.01, out=tmp_path, progress=False)
    first = run(task=(TASK.x, TASK.y, weighted(1.0)))
    with pytest.raises(ValueError, match=r"loss \(factor\): stored 1.0, now 2.0"):
        run(task=(TASK.x, TASK.y, weighted(2.0)))
    with pytest.raises(ValueError, match=r"loss: stored function <lambda>, now 'mse'"):
        run(task=(TASK.x, TASK.y, "mse"))
    again = run(task=(TASK.x, TASK.y, weighted(1.0)))
    assert np.array_equal(first.loss, again.loss)


def test_results_for_other_data_are_refused_however_little_they_differ(tmp_path):
    x = TASK.x.clone()
    x[7, 1] = torch.nextafter(x[7, 1], torch.tensor(9.0, dtype=x.dtype))
    run = functools.partial(bnrank.train, sequential(), dtype=torch.float64, out=tmp_path, **PAUSED)
    run(TASK)
    with pytest.raises(ValueError, match=r"other settings \(x: stored float64 \(40, 3\)"):
        run(Task(x, TASK.y))
    run(Task(TASK.x, TASK.y, name="the same data, read from elsewhere", settings={"path": "b.csv"}))


def test_an_ensemble_has_one_architecture():
    for nets in ([sequential(), sequential(nn.Tanh, 1)], [sequential(scale=1.0), sequential(seed=1, scale=2.0)]):
        with pytest.raises(ValueError, match=r"net: members 0 and 1 .*differ in more than .*: net\."):
            bnrank.train(nets, TASK, **PAUSED)
    with pytest.raises(ValueError, match=r"net\.0\.weight: member 0 has frozen .*, member 1 frozen"):
        bnrank.train(lambda seed: sequential(seed=seed, frozen=0.1 * seed), TASK, members=2, **PAUSED)


def test_a_part_that_cannot_be_identified_needs_a_version(tmp_path):
    net = sequential()
    net.source = iter([1])
    with pytest.raises(TypeError, match=r"net: got net.source = builtins.list_iterator.*tag="):
        bnrank.train(net, TASK, out=tmp_path, **PAUSED)
    assert not list(tmp_path.iterdir())
    unsaved = bnrank.train(net, TASK, **PAUSED)
    with pytest.raises(TypeError, match=r"net\.source"):
        unsaved.save(tmp_path)
    unsaved.save(tmp_path / "b", tag="v1")
    bnrank.train(net, TASK, out=Save(tmp_path / "a", tag="v1"), **PAUSED)
    with pytest.raises(ValueError, match=r"tag: stored 'v1', now 'v2'"):
        bnrank.train(net, TASK, out=Save(tmp_path / "a", tag="v2"), **PAUSED)
    with pytest.raises(TypeError, match="tag: got 2"):
        Save(tmp_path, tag=2)


def test_an_opened_run_needs_its_own_architecture(tmp_path):
    run = bnrank.train(sequential(), TASK, out=tmp_path, **PAUSED)
    with pytest.raises(ValueError, match=r"net: got another network \(net\.1: stored ReLU, now Tanh\)"):
        Run.open(tmp_path, sequential(nn.Tanh))
    with pytest.raises(ValueError, match=r"net\.1: stored ReLU, now Tanh"):
        bnrank.load(tmp_path, sequential(nn.Tanh))
    opened = Run.open(tmp_path, sequential(seed=5))  # its values do not matter
    assert torch.equal(flat(opened.network()), flat(run.network()))


def test_sweeps_tell_settings_apart_that_print_alike(tmp_path):
    rates = [torch.full((2,), 3e-3, dtype=torch.float64) + shift for shift in (0.0, 1e-9)]
    assert str(rates[0]) == str(rates[1])
    settings = {"depths": [2], "seeds": [0, 1], "grid": {"width": [3]}, "processes": 1, "progress": False, "steps": 3}
    first, again = (bnrank.sweep(TASK, **settings, out=tmp_path, optimizer=Adam(lr=rates[0].clone())) for _ in range(2))
    assert [first.ran, again.ran] == [2, 0]
    assert np.array_equal(first.loss, again.loss)
    with pytest.raises(ValueError, match="another step size"):
        bnrank.sweep(TASK, **settings, out=tmp_path, optimizer=Adam(lr=rates[1]))
    assert not np.array_equal(first.loss, bnrank.sweep(TASK, **settings, optimizer=Adam(lr=rates[1])).loss)


def test_results_of_another_version_of_the_format_are_refused(tmp_path, monkeypatch):
    bnrank.train(sequential(), TASK, out=tmp_path, **PAUSED)
    monkeypatch.setattr(identity, "FORMAT", identity.FORMAT + 1)
    with pytest.raises(ValueError, match="format"):
        bnrank.train(sequential(), TASK, out=tmp_path, **PAUSED)
