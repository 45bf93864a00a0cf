"""T50, and T14, at real minima: where they hold, where they do not apply, and planted violations."""

import pytest
import torch

import bnrank
from bnrank.theory import STATEMENTS
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED
from helpers import network, normal

T50 = next(s for s in STATEMENTS if s.id == "T50")
AT_MINIMA = [s for s in STATEMENTS if s.id in ("T14", "T50")]


@pytest.fixture(scope="module")
def trained():
    """A trained network, the same finished, the task and the ridge."""
    task = bnrank.tasks.low_rank_map(n=25, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=1)
    run = bnrank.train(bnrank.MLP([3, 5, 5, 3]), task, ridge=5e-3, steps=300, seed=1, progress=False)
    done = bnrank.finish(run.network(0), task, 5e-3, births=False, progress=False)
    return run.network(0), done.network, task, 5e-3


def test_they_hold_at_a_finished_point_on_kinks_to_one_part_in_a_million(trained):
    _, finished, task, ridge = trained
    facts = Facts(finished, task.x, task.y, ridge)
    assert facts.subgradient is not None
    assert len(facts.subgradient.slopes) > 0
    assert facts.subgradient.plain.relative_gradient > 1e-2  # with PyTorch's derivatives it is not stationary
    assert facts.stationarity <= 1e-8
    for statement in AT_MINIMA:
        verdict = statement(facts)
        assert verdict.status == HOLDS
        assert abs(verdict.slack) <= 1e-6 * max(verdict.left, 1)
        assert not verdict.vacuous
    # A subset of the samples is checked elsewhere; the gradient is that of all of them.
    assert T50(Facts(finished, task.x, task.y, ridge, max_samples=5)).left == T50(facts).left


def test_they_do_not_apply_before(trained):
    plain, _, task, ridge = trained
    for statement in AT_MINIMA:
        verdict = statement(Facts(plain, task.x, task.y, ridge))
        assert verdict.status == NOT_APPLICABLE
        assert "stationary point" in verdict.reason


def test_a_point_near_a_minimum_differs_by_what_its_gradient_allows(trained):
    _, finished, task, ridge = trained
    weights = [w.detach() for w in finished.weights]
    weights[-1] = weights[-1] * (1 + 1e-5)  # the kinks stay where they are
    near = bnrank.networks.from_layers(weights, [b.detach() for b in finished.biases])
    verdict = T50(Facts(near, task.x, task.y, ridge))
    assert verdict.status == INCONCLUSIVE
    assert 1e-6 < verdict.left < 1e-2


def test_other_weights_that_claim_to_be_stationary_are_found_out():
    facts = Facts(network([3, 5, 2]), normal(8, 3, seed=1), normal(8, 2, seed=2), 0.1)
    assert T50(facts).status == NOT_APPLICABLE
    verdict = T50(facts.altered(stationarity=1e-9, gradient_norm=1e-9))
    assert verdict.status == VIOLATED
    assert "layer" in verdict.note


def test_cross_entropy_without_biases():
    x, y = normal(12, 3, seed=1), torch.arange(12) % 2
    data = bnrank.Task(x, y, loss="cross_entropy", classes=3)  # a class that does not occur
    done = bnrank.finish(bnrank.MLP([3, 5, 3], bias=False, seed=0), data, 0.02, births=False, progress=False)
    facts = Facts(done.network, x, y, 0.02)
    assert facts.stationarity <= 1e-8
    for statement in AT_MINIMA:
        assert statement(facts).status == HOLDS


def test_what_it_needs():
    net, x, y = network([3, 5, 2]), normal(8, 3, seed=1), normal(8, 2, seed=2)
    assert "a ridge > 0" in T50(Facts(net, x, y)).reason
    assert "targets" in T50(Facts(net, x, None, 0.1)).reason
    assert T50(Facts(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.GELU()), x, y, 0.1)).status == NOT_APPLICABLE
    zero = bnrank.networks.from_layers([torch.zeros(4, 3), torch.zeros(2, 4)])
    verdict = T50(Facts(zero, x, y, 0.1))
    assert verdict.status == HOLDS
    assert verdict.vacuous


def test_with_too_many_kinks_the_gradient_is_that_of_pytorch():
    net = bnrank.networks.from_layers([torch.zeros(200, 3), torch.ones(2, 200)])  # all preactivations are 0
    facts = Facts(net, normal(8, 3, seed=1), normal(8, 2, seed=2), 0.1)
    assert facts.subgradient is None
    assert 0 < facts.stationarity <= 1 + 1e-12
    assert "preactivations" in T50(facts).reason
