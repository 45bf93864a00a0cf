"""Tracing beside other threads: what these compute, their modes and random numbers are those they have alone."""

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from bnrank.networks.graph import trace
from helpers import normal
from networks.graph_modules import Of, seeded


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def noisy(m, x):
    return m.b(Doubled.apply(nn.Dropout(0.5)(m.a(x)) + torch.randn(4)) + nn.ReLU()(x @ torch.rand(3, 4).double()))


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def foreign(rounds, modules):
    """Return what a thread that knows nothing of bnrank computes, from the global random generators."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    results = []
    for _ in range(rounds):
        for module in modules:
            x = torch.rand(3, 4, requires_grad=True)
            y = module(Doubled.apply(x)) + torch.from_numpy(np.random.rand(4)).float()  # noqa: NPY002
            y.sum().backward()
            results += [y.detach(), x.grad]
    return results


@pytest.mark.usefixtures("quick_switches")
def test_other_threads_are_as_alone():
    modules = [nn.Dropout(0.5), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.ReLU()), nn.LayerNorm(4)]
    alone, beside, stop, count = foreign(60, modules), [], threading.Event(), []
    net = seeded(lambda: Of(noisy, a=nn.Linear(3, 4), b=nn.Linear(4, 2)))
    plain = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).train()
    expected = [str(trace(net, normal(2, 3))), str(trace(plain, normal(2, 3)))]

    def traces():
        while not stop.is_set():
            count.append([str(trace(net, normal(2, 3))), str(trace(plain, normal(2, 3)))] == expected)

    def work():
        beside.extend(foreign(60, modules))
        stop.set()

    threads = [threading.Thread(target=target) for target in (traces, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count
    assert all(count)
    assert all(module.training for module in [*modules, plain])
    assert len(alone) == len(beside)
    assert all(torch.equal(a, b) for a, b in zip(alone, beside, strict=True))
