"""Why something stays as it is, in words, and that tuning never leaves more."""

import pytest
import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Timing, parameters, reduction, stages
from bnrank.discovery.compression.parts import Segment
from bnrank.discovery.compression.stages import Cut, Step
from helpers import normal

from .functions import judge_of

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def made(*parts):
    """Return the parts as one network in float64, with weights of a fixed draw."""
    net = nn.Sequential(*parts).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / p[0].numel() ** 0.5)
    return net


def convolutions():
    return made(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize(("layers", "words"), [(2, "1 run of layers has too"), (3, "3 runs of layers have too")])
def test_too_many_values_are_said_in_good_grammar(layers, words, monkeypatch):
    monkeypatch.setattr(stages, "MAX_SVD", 0)
    parts = [part for _ in range(layers) for part in (nn.Linear(5, 5), nn.ReLU())][:-1]
    assert words in compress(made(*parts), normal(60, 5), tol=1e-5, **QUICK).reason


def test_it_is_said_why_every_channel_stays_and_the_number_is_right():
    net, x = convolutions(), normal(200, 2, 8)
    found = compress(net, x, tol=1e-4, **QUICK)
    assert all(step.kind != "narrow" for step in found.steps)
    assert "every channel stays: none is linear in others within the 0.00765 percent allowed" in found.reason
    said = float(found.reason.split("by about ")[1].split()[0]) / 100
    assert 0.01 < said < 1
    below = compress(net, x, tol=min(0.9, 3 * said), **QUICK)
    assert any(step.kind in ("narrow", "collapse") for step in below.steps)
    assert compress(net, x, tol=said / 3, **QUICK).reason.count("every channel stays") == 1


def test_neurons_that_can_go_are_not_said_to_stay():
    wide = made(nn.Linear(3, 12), nn.Softplus(), nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 3))
    found = compress(wide, normal(300, 3), tol=0.05, **QUICK)
    assert any(step.kind == "narrow" for step in found.steps)
    assert "stays" not in found.reason


@pytest.mark.parametrize("kept", [1, 3])
def test_neurons_that_were_pruned_are_not_said_to_stay(kept):
    net = made(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 3))
    with torch.no_grad():
        net[0].weight[kept:] = 0
        net[0].bias[kept:] = -1
    found = compress(net, normal(100, 5), tol=1e-9, **QUICK)
    assert f"{15 - kept} dead" in found.steps[0].what
    assert "every neuron stays" not in found.reason
    assert "every remaining neuron stays: " in found.reason
    assert ("each layer keeps at least one" in found.reason) == (kept == 1)


def test_a_network_of_zeros_keeps_one_neuron():
    net = made(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert (
        "every remaining neuron stays: each layer keeps at least one" in compress(net, normal(100, 5), **QUICK).reason
    )


def test_parts_that_mix_units_are_named_as_the_reason():
    mixed = made(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 4))
    assert "every neuron stays: what stands between the layers mixes them" in stages.cut_down(
        judged(mixed), tuple(mixed), "", 1e-9
    ).reason  # fmt: skip


def test_the_change_by_the_nearest_neuron_is_what_its_ranking_says():
    net = made(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 4))
    judge, parts = judged(net), tuple(net)
    ranked = stages.rankings(judge, parts, stages.counts(parts, judge.x))
    nearest = 100 * min(float(ranking.tails[-2]) for ranking in ranked) / judge.scale
    assert f"the output by about {nearest:.3g} percent" in stages.cut_down(judge, parts, "", 1e-9).reason


def judged(net, samples=60):
    x = normal(samples, net[0].in_features)
    with torch.no_grad():
        y = net(x)
    rest = lambda value: value  # noqa: E731
    return judge_of((x[:40], rest, y[:40]), (x[40:], rest, y[40:]), y)


def test_fewer_layers_do_not_make_up_for_more_parameters_when_tuning(monkeypatch):
    """At a larger tolerance a cut may have a lower price by fewer layers, and more parameters."""
    net = made(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 4))
    wide = made(nn.Linear(4, 30), nn.Linear(30, 4))
    small = Cut(tuple(net), (Step("factor", "", "", 0.05),), 0.9, 0.05)
    large = Cut(tuple(wide), (Step("narrow", "", "", 0.15),), 0.5, 0.15)
    monkeypatch.setattr(reduction, "cut_down", lambda judge, parts, name, tol: small if tol <= 0.1 else large)
    monkeypatch.setattr(reduction, "tuned", lambda judge, parts, steps: (parts, 0.01))
    found = reduction._cut(judged(net), Segment("", tuple(net)), 0.1, 5)
    assert parameters(nn.Sequential(*found.parts)) == parameters(net)
    assert [step.kind for step in found.steps] == ["factor", "tune"]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = made(nn.Linear(4, 12), nn.Softplus(), nn.Linear(12, 4))
        self.second = made(nn.Linear(4, 20), nn.Softplus(), nn.Linear(20, 3))

    def forward(self, x):
        return self.second(torch.sin(self.first(x)))


def test_tuning_one_stretch_does_not_keep_the_next_large(monkeypatch):
    net, x, cut = Two().double(), normal(200, 4), reduction._cut
    plain = compress(net, x, tol=0.05, **QUICK)

    def greedy(judge, segment, limit, tune):
        """Where there is tuning, the first segment uses up what the second would need."""
        return cut(judge, segment, 1e-12 if tune and segment.name == "second" else limit, 0)

    monkeypatch.setattr(reduction, "_cut", greedy)
    found = compress(net, x, tol=0.05, tune=5, **QUICK)
    assert "second" in plain.plan
    assert found.certificate.parameters == plain.certificate.parameters
