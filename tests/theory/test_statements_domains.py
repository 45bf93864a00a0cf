import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers, make
from bnrank.theory.constructions import cross, identity
from bnrank.theory.facts import Facts
from bnrank.theory.statements import domains
from bnrank.theory.tangents import tangent_change_at
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED
from helpers import norm, normal

TANGENTS, INSERTION = domains._tangents, domains._insertion


def random_facts(seed=0, slope=0.0, bias=True, widths=(3, 5, 4, 2), scale=1.0):
    net = make(list(widths), slope, bias, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(scale * normal(*p.shape, seed=seed + i))
    return Facts(net, normal(8, widths[0], seed=seed))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3, -0.5, 1.0]),
    st.booleans(),
    st.sampled_from([(3, 5, 4, 2), (2, 4, 1), (4, 2), (2, 3, 3, 3, 3, 2)]),
    st.sampled_from([0.1, 0.6, 1.0, 5.0]),
)
def test_they_hold_on_random_networks_or_do_not_apply(seed, slope, bias, widths, scale):
    facts = random_facts(seed, slope, bias, widths, scale)
    assert TANGENTS(facts).status in (HOLDS, NOT_APPLICABLE)
    assert INSERTION(facts).status in (HOLDS, NOT_APPLICABLE)


def sides_by_hand(facts, i, j, k):
    """Both sides of T11 for two samples, with the Jacobians of the layers by autograd."""
    weights, norms = facts.weights, facts.parameter_norm
    total = sum(float((b**2).sum()) for b in facts.biases)
    directions = []
    for row in (i, j):
        x = facts.x[row]
        jacobian = torch.autograd.functional.jacobian(facts.chain, x)
        _, s, v = torch.linalg.svd(jacobian)
        norms -= float(s[:k].log().sum())
        directions.append((x, v[:k].T))
    for layer, weight in enumerate(weights, 1):
        before, after = [], []
        for x, d in directions:

            def hidden(z, layer=layer):
                for w, b in zip(weights[: layer - 1], facts.biases, strict=False):
                    z = nn.functional.leaky_relu(w @ z + b, facts.slope)
                return z

            image = torch.autograd.functional.jacobian(hidden, x) @ d
            before.append(image)
            after.append(weight @ image)
        angles = [
            torch.linalg.svdvals(torch.linalg.qr(a)[0].T @ torch.linalg.qr(b)[0]).clamp(max=1).acos()
            for a, b in (before, after)
        ]
        forward = float((2 / (1 + angles[0].cos())).log().sum())
        backward = float((1 + angles[1].sin()).log().sum())
        total += max(forward, backward)
    return total, norms - k * len(weights)


@pytest.mark.parametrize("k", [1, 2])
def test_sides_are_those_of_the_formula(k):
    facts = random_facts(3)
    rows = [0, 2]
    change = tangent_change_at(facts, rows, k)
    left = float(change.costs[0].sum()) + sum(float((b**2).sum()) for b in facts.biases)
    right = facts.parameter_norm - k * facts.depth - sum(facts.log_volume(r, k) for r in rows)
    assert (left, right) == pytest.approx(sides_by_hand(facts, *rows, k), rel=1e-6)


@pytest.mark.parametrize(("dimension", "k", "seed"), [(2, 1, 0), (3, 1, 1), (4, 2, 2), (5, 2, 3)])
def test_the_cost_of_a_layer_is_the_minimum_over_its_weight(dimension, k, seed):
    bases = [torch.linalg.qr(normal(dimension, k, seed=s))[0] for s in (seed, seed + 10)]
    cosines = torch.linalg.svdvals(bases[0].T @ bases[1])
    forward = float((2 / (1 + cosines)).log().sum())
    backward = float((1 + (1 - cosines**2).sqrt()).log().sum())

    def least(cost):
        weight = normal(dimension, dimension, seed=seed + 20).requires_grad_()
        optimizer = torch.optim.LBFGS([weight], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            value = cost(weight)
            value.backward()
            return value

        optimizer.step(closure)
        return float(cost(weight.detach()))

    def volumes(matrix):
        return sum(0.5 * torch.logdet(b.T @ matrix.T @ matrix @ b) for b in bases)

    assert least(lambda w: (w * w).sum() - k - volumes(w)) == pytest.approx(forward, abs=1e-4)
    found = least(lambda w: (w * w).sum() - k + volumes(torch.linalg.inv(w)))
    assert found == pytest.approx(backward, abs=1e-4)


def bent(angle):
    """A network of depth 3 from the line to a curve of R^2 that bends by an angle at t = 1, of unit speed."""
    direction = torch.tensor([[1.0, 0.0], [math.cos(angle) - 1, math.sin(angle)]], dtype=torch.float64)
    first, second = torch.ones(1, 1), torch.ones(2, 1)
    weights = [first.double(), second.double(), direction.T.contiguous()]
    return from_layers(weights, [torch.zeros(1).double(), torch.tensor([0.0, -1.0]).double(), torch.zeros(2).double()])


@pytest.mark.parametrize("degrees", [10, 45, 90])
def test_a_bend_costs_at_the_output(degrees):
    facts = Facts(bent(math.radians(degrees)), torch.tensor([[0.5], [1.5]], dtype=torch.float64))
    verdict = TANGENTS(facts)
    assert verdict.status == HOLDS
    hidden = math.log(2 / (1 + math.sqrt(0.5)))  # from (1, 0) to (1, 1), after layer 2
    phi = math.radians(degrees)
    assert verdict.left == pytest.approx(max(math.log1p(math.sin(phi)), hidden) + 1)  # and the bias of layer 2
    assert f"{degrees} at the output" in verdict.note
    # it fails for a network that claims less
    assert TANGENTS(facts.altered(parameter_norm=3 + verdict.left - 0.01)).status == VIOLATED


def test_linear_networks_have_equal_tangent_spaces():
    verdict = TANGENTS(random_facts(1, slope=1.0, bias=False))
    assert verdict.status == HOLDS
    assert verdict.left == pytest.approx(0, abs=1e-6)


def test_tangents_need_two_samples_of_rank_one():
    net = bnrank.MLP([2, 4, 2], dtype=torch.float64)
    assert TANGENTS(Facts(net, normal(1, 2))).status == NOT_APPLICABLE
    zero = from_layers([torch.zeros(2, 2), torch.zeros(2, 2)])
    assert TANGENTS(Facts(zero, normal(4, 2))).status == NOT_APPLICABLE


def test_a_layer_is_inserted_at_the_narrowest_representation():
    weights = [normal(6, 4).abs(), normal(2, 6, seed=1).abs(), normal(5, 2, seed=2).abs(), normal(3, 5, seed=3)]
    facts = Facts(from_layers(weights), normal(20, 4, seed=4).abs())
    verdict = INSERTION(facts)
    assert verdict.label == "holds (vacuous)"  # linear algebra, whatever the theorem says
    assert (verdict.left, verdict.right) == pytest.approx((facts.parameter_norm + 2,) * 2)
    assert "4, 2, 2" in verdict.note
    assert INSERTION(facts.altered(parameter_norm=facts.parameter_norm - 0.1)).status == VIOLATED


def test_hidden_domains_with_opposite_points_are_refused():
    net = from_layers([torch.eye(2), torch.eye(2)], slope=0.5)
    facts = Facts(net, torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.3, 1.0]]))
    verdict = INSERTION(facts)
    assert verdict.status == NOT_APPLICABLE
    assert "a_1(X): points 0 and 1 have a negative inner product" in verdict.reason


def test_undecided_positivity_is_inconclusive(monkeypatch):
    unknown = domains.domains.CompletePositivity("inconclusive", "no isometry was found", 2)
    monkeypatch.setattr(domains.domains, "completely_positive", lambda x, seed: unknown)
    verdict = INSERTION(random_facts())
    assert verdict.status == INCONCLUSIVE
    assert "no isometry was found" in verdict.reason


def test_identities_and_the_cross():
    x = normal(30, 3).abs()
    facts = Facts(identity(3, 5), x)
    assert TANGENTS(facts).left == pytest.approx(0, abs=1e-9)
    assert TANGENTS(facts).right == pytest.approx(0, abs=1e-9)  # k L exactly
    assert (INSERTION(facts).left, INSERTION(facts).right) == pytest.approx((18, 18))
    crossed = Facts(cross(), normal(40, 2))
    assert TANGENTS(crossed).status == HOLDS  # rank 1, tangent spaces at right angles
    assert "90" in TANGENTS(crossed).note
    assert crossed.parameter_norm == pytest.approx(norm(cross()))


def test_check_has_both():
    found = bnrank.check(bnrank.MLP([3, 8, 8, 2], seed=0), normal(20, 3), only=["T9", "T11"])
    assert {TANGENTS.name, INSERTION.name} <= {v.name for v in found}
    assert found.ok
