"""What is measured of a network for the statements."""

import math
import re

import pytest
import torch
from torch import nn

import bnrank
import oracles
from bnrank.networks import LinearNetwork
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import NotApplicable

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=GENERATOR)
Y = torch.randn(30, 2, generator=GENERATOR)
LABELS = torch.randint(0, 2, (30,), generator=GENERATOR)
NET = bnrank.MLP([3, 6, 2], seed=1)


def test_what_is_measured_is_what_the_definitions_say():
    facts = Facts(NET, X, Y, 0.1)
    values = torch.linalg.svdvals(oracles.input_jacobian(NET, X))
    torch.testing.assert_close(facts.jacobian_values, values)
    assert facts.rank == 2
    torch.testing.assert_close(facts.log_pseudo_determinants, values.log().sum(1))
    assert facts.parameter_norm == pytest.approx(sum(float((p.detach().double() ** 2).sum()) for p in NET.parameters()))
    assert facts.data_loss == pytest.approx(float(((NET(X) - Y) ** 2).sum(1).mean()), rel=1e-5)
    assert (facts.depth, facts.slope, len(facts.weights), len(facts.biases)) == (2, 0, 2, 2)
    assert [tuple(a.shape) for a in facts.inputs] == [(30, 3), (30, 6)]
    assert facts.slopes[0].unique().tolist() == [0, 1]


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "some biases"])
def test_the_trace_of_the_kernel_of_any_chain_is_that_of_its_parameter_jacobian(bias):
    linear = [nn.Linear(3, 5), nn.Linear(5, 4, bias=bias), nn.Linear(4, 2)]
    net = nn.Sequential(nn.Flatten(), linear[0], nn.LeakyReLU(0.2), linear[1], nn.LeakyReLU(0.2), linear[2]).double()
    x = X.double().view(30, 1, 3)
    traces = []
    for sample in x:
        rows = [torch.autograd.grad(out, net.parameters(), retain_graph=True) for out in net(sample[None])[0].split(1)]
        traces.append(sum(float((g * g).sum()) for row in rows for g in row))
    torch.testing.assert_close(Facts(net, x).ntk_trace, torch.tensor(traces, dtype=torch.float64))


@pytest.mark.parametrize("y", [Y, LABELS], ids=["mse", "cross-entropy"])
def test_the_gradient_of_the_loss_is_the_derivative_of_the_loss(y):
    net = bnrank.MLP([3, 6, 2], seed=1, dtype=torch.float64)

    def loss(module):
        out = module(X.double())
        cost = ((out - y) ** 2).sum(1).mean() if y.is_floating_point() else nn.functional.cross_entropy(out, y)
        return cost + 0.1 * sum((p * p).sum() for p in module.parameters())

    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss(net), list(net.parameters()))])
    facts = Facts(net, X, y, 0.1)
    assert facts.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-10)
    norm = 0.1 * facts.parameter_norm
    assert facts.data_loss + norm == pytest.approx(float(loss(net).detach()), rel=1e-10)
    assert 0 < facts.stationarity < 1


def test_at_a_minimum_the_network_is_stationary():
    net = LinearNetwork([3, 4, 2], bias=True)  # without kinks, so that there is a gradient at the minimum
    run = bnrank.train(net, bnrank.Task(X, Y), ridge=1e-2, steps=600, dtype=torch.float64, progress=False)
    assert Facts(run.network(0), X, Y, 1e-2).stationarity < 1e-6
    assert Facts(run.network(0), X, Y, 2e-2).stationarity > 0.1


def test_of_many_samples_some_are_looked_at_and_the_loss_takes_all():
    facts = Facts(NET, X, Y, 0.1, max_samples=7)
    assert facts.x.shape == (7, 3)
    assert (facts.samples, facts.targets.shape, len(facts.ranks)) == (30, (7, 2), 7)
    torch.testing.assert_close(facts.x[0], X[0].double())
    torch.testing.assert_close(facts.x[-1], X[-1].double())
    assert facts.data_loss == pytest.approx(Facts(NET, X, Y).data_loss)


def test_altered_facts_are_taken_and_the_rest_is_measured_anew():
    facts = Facts(NET, X, Y)
    assert facts.rank == 2
    other = facts.altered(jacobian_values=torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    assert (other.rank, facts.rank) == (1, 2)
    assert float(other.log_pseudo_determinants) == pytest.approx(math.log(3))
    both = other.altered(parameter_norm=0.0)
    assert (both.rank, both.parameter_norm) == (1, 0.0)
    with pytest.raises(ValueError, match="got parameter_nrm"):
        facts.altered(parameter_nrm=0.0)
    with pytest.raises(ValueError, match=r"got x, expected measurements \(others need new Facts\): ") as error:
        facts.altered(x=X)
    assert not re.search(r"\b_", str(error.value))


def test_what_is_missing_is_not_applicable():
    facts = Facts(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), torch.randn(4, 1, 5, 5))
    with pytest.raises(NotApplicable, match=r"chain of linear layers with one activation: got Conv2d \(first at 0\)"):
        facts.depth  # noqa: B018
    with pytest.raises(NotApplicable, match="targets y are given"):
        facts.targets  # noqa: B018
    with pytest.raises(NotApplicable, match="ridge > 0"):
        Facts(NET, X, Y).stationarity  # noqa: B018
    with pytest.raises(NotApplicable, match="mean squared error: y holds class indices"):
        Facts(NET, X, LABELS).targets  # noqa: B018
    assert facts.rank == 17  # of 18 outputs: the two kernels have one common multiple


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"y": Y[:5]}, "y: got 5 samples, expected as many as x has, 30"),
        ({"y": torch.randn(30, 3)}, "y: got 3 columns, expected 2"),
        ({"y": torch.full((30,), 2)}, "y: got .*expected class indices"),
        ({"y": Y, "ridge": -1.0}, "ridge: got -1"),
        ({"x": X[:, :2]}, "x: got shape"),
        ({"max_samples": 0}, "max_samples: got 0"),
        ({"rtol": float("nan")}, "rtol: got nan"),
    ],
)
def test_bad_arguments_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        Facts(NET, **{"x": X, **options})


def test_classes_at_several_positions_are_refused():
    with pytest.raises(
        ValueError, match=r"y: got one class per sample for outputs of shape \(30, 2, 2\), expected outputs"
    ):
        Facts(nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2))), torch.ones(30, 3), LABELS)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(bad):
    net = bnrank.MLP([3, 6, 2])
    with torch.no_grad():
        net.weights[1][0, 0] = bad
    with pytest.raises(ValueError, match=r"net: got NaN or infinite entries in layers\.1\.weight"):
        Facts(net, X)
