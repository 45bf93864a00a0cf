"""What tuning keeps, and how much of the tolerance each segment may spend."""

import copy
import math

import pytest
import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Timing, reduction
from bnrank.discovery.compression.judging import Judge, tuned
from bnrank.discovery.compression.parts import Segment
from bnrank.discovery.compression.stages import Cut, Step
from helpers import normal


def made(*parts):
    """Return the parts as one network in float64, with weights of a fixed draw."""
    net = nn.Sequential(*parts).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=i) / p[0].numel() ** 0.5)
    return net


class Recorded(Judge):
    """A judge that remembers what it said."""

    def __init__(self, *given):
        super().__init__(*given)
        self.said = []

    def __call__(self, parts):
        self.said.append(super().__call__(parts))
        return self.said[-1]


def judged(noise, away=0.0, samples=(10, 40)):
    """Return a judge of outputs with noise where fits are made, and parts that are ``away`` from those without."""
    net = made(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3))
    x, kept = normal(samples[0], 4), normal(samples[1], 4, seed=1)
    parts = tuple(copy.deepcopy(net))
    with torch.no_grad():
        y, y_kept = net(x) + noise * normal(samples[0], 3, seed=2), net(kept)
        for i, part in enumerate(parts[::2]):
            part.weight += away * normal(*part.weight.shape, seed=3 + i)
    rest = lambda value: [value]  # noqa: E731
    return Recorded((x, rest, [y]), (kept, rest, [y_kept]), [torch.cat([y, y_kept])]), parts


def test_tuning_returns_the_best_and_not_the_last():
    """10 samples with noise and 163 parameters: after a while the fit gets worse on the others."""
    judge, parts = judged(noise=0.3, away=0.2)
    before = copy.deepcopy(parts)
    found, change = tuned(judge, parts, 200)
    said = list(judge.said)
    assert said.index(min(said)) not in (0, len(said) - 1)
    assert min(said) < 0.95 * said[-1]
    assert change == min(said) == judge(found)
    assert all(torch.equal(p.weight, q.weight) for p, q in zip(parts[::2], before[::2], strict=True))


def test_tuning_with_nothing_to_gain_returns_what_it_was_given():
    judge, parts = judged(noise=0.0)
    found, change = tuned(judge, parts, 30)
    assert found is parts
    assert change == 0.0


@pytest.mark.parametrize("after", [0.08, 0.09])
def test_a_tuning_that_does_not_lower_the_change_is_not_kept(after, monkeypatch):
    """A cut at a larger tolerance that is within the limit already, and a tuning that leaves it or makes it worse."""
    net, small, other = (made(nn.Linear(4, k), nn.Linear(k, 4)) for k in (3, 2, 1))
    wide = Cut(tuple(net), (Step("factor", "", "", 0.05),), 0.9, 0.05)
    narrow = Cut(tuple(small), (Step("narrow", "", "", 0.08),), 0.5, 0.08)
    monkeypatch.setattr(reduction, "cut_down", lambda judge, parts, name, tol: wide if tol <= 0.1 else narrow)
    monkeypatch.setattr(reduction, "tuned", lambda judge, parts, steps: (tuple(other), after))
    judge, _ = judged(0.0)
    found = reduction._cut(judge, Segment("", tuple(net)), 0.1, 5)
    assert found.parts == tuple(small)
    assert (found.change, [step.kind for step in found.steps]) == (0.08, ["narrow"])


class Three(nn.Module):
    """60, 9 and 31 parameters."""

    def __init__(self):
        super().__init__()
        self.first = made(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 1, bias=False))
        self.second = made(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))
        self.third = made(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))

    def forward(self, x):
        return self.third(torch.sin(self.second(torch.sin(self.first(x)))))


def test_the_squared_change_may_grow_to_the_share_of_the_parameters_looked_at(monkeypatch):
    limits, cut = {}, reduction._cut

    def recorded(judge, segment, limit, tune):
        limits[segment.name] = limit
        return cut(judge, segment, limit, tune)

    monkeypatch.setattr(reduction, "_cut", recorded)
    found = compress(Three().double(), normal(60, 4), tol=0.2, timing=Timing(repeats=1, batch_size=8))
    spent = 0.85 * 0.2
    assert limits == pytest.approx(
        {"first": math.sqrt(0.60) * spent, "second": math.sqrt(0.69) * spent, "third": spent}
    )
    assert all(step.change <= limits[step.where.split(",")[0]] for step in found.steps)
