"""No verdict says "holds" where the statement could not have failed: `check` on random networks of all kinds."""

import collections
import itertools
import math
import random
import sys

import pytest
import torch

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory import verdicts
from bnrank.theory.facts import Facts
from bnrank.theory.invariants.patterns import Pair
from bnrank.theory.registry import STATEMENTS
from bnrank.theory.verdicts import Sides, closest, triviality
from helpers import normal

DOUBLE = torch.float64
SIGNED = {  # the right side may be negative, or the left side is a deviation that a right side of 0 limits
    ("T3", "expansion of the cost of a linear map"),
    ("T11", "hidden domains are nearly planar"),
    ("T17", "autoencoders of the rank of the data project onto them"),
    ("T21", "weights near partial isometries"),
    ("T38", "deep layers of the fastest escape direction"),
    ("T38", "inputs near rank one"),
    ("T38", "near rank one at a layer, near rank one after it"),
    ("T39", "the deeper network ends in rank one"),
}
RANKS = {"T5", "T6", "T17", "T18"}
KINDS = ("usual", "integers", "scaled", "one layer scaled", "zero", "zero layer", "dead", "rank one", "isometries")
PLACES = ("usual", "positive", "equal", "zero", "huge", "tiny")


def drawn(seed):
    """Return a random network with arguments for check, and how it was drawn."""
    choose, draw = random.Random(seed), torch.Generator().manual_seed(seed)
    depth, widest = choose.choice([1, 2, 2, 3, 4, 6, 12]), choose.choice([1, 2, 3, 5])
    widths = [
        choose.randint(1, 3),
        *(choose.choice([1, widest, widest]) for _ in range(depth - 1)),
        choose.randint(1, 3),
    ]
    kind, place, slope = choose.choice(KINDS), choose.choice(PLACES), choose.choice([0.0, 0.0, 0.3, -0.5, 1.0])

    def random_matrix(*shape):
        return torch.randn(*shape, generator=draw, dtype=DOUBLE)

    weights = [random_matrix(b, a) * math.sqrt(2 / a) for a, b in itertools.pairwise(widths)]
    biases = [choose.choice([0.0, 0.1, 1.0]) * random_matrix(len(w)) for w in weights] if choose.random() < 0.5 else []
    one, factor = choose.randrange(depth), 10.0 ** choose.choice([-160, -30, -3, 3, 30, 160])
    for i, w in enumerate(weights):
        if kind == "integers":
            weights[i] = w.round()
        elif kind == "scaled" or (kind == "one layer scaled" and i == one):
            weights[i] = w * factor
        elif kind == "zero" or (kind == "zero layer" and i == one):
            weights[i] = 0 * w
        elif kind == "dead" and i == 0:
            weights[i] = -w.abs()
        elif kind == "rank one" and i == one:
            weights[i] = torch.outer(w[:, 0], w[0])
        elif kind == "isometries":
            u, _, v = torch.linalg.svd(w, full_matrices=False)
            weights[i] = u @ v
    x = random_matrix(choose.choice([1, 2, 5, 9]), widths[0])
    sizes = {"huge": 10.0 ** choose.choice([6, 120]), "tiny": 10.0 ** choose.choice([-6, -120]), "zero": 0.0}
    x = x.abs() if place == "positive" or kind == "dead" else x[:1].repeat(len(x), 1) if place == "equal" else x
    x = x * sizes.get(place, 1.0)
    net, y = from_layers(weights, biases, slope), None
    if choose.random() < 0.7:
        y = random_matrix(len(x), widths[-1])
        fit = net(x).detach()
        y = fit if choose.random() < 0.4 and bool(fit.isfinite().all()) else y
    return net, x, y, None if y is None else choose.choice([None, 1e-6, 1e-3, 1.0]), (seed, kind, place, widths, slope)


def empty(verdict, widths):
    """Return whether a verdict that is said to hold compares nothing; written without the rule of the library."""
    if not (math.isfinite(verdict.left) and math.isfinite(verdict.right)):
        return True
    if verdict.relation == "=":
        return False
    if verdict.left <= sys.float_info.min and (verdict.id, verdict.name) not in SIGNED:
        return True
    return verdict.id in RANKS and (verdict.id, verdict.name) not in SIGNED and verdict.right >= min(widths)


def found_empty(seeds):
    """Return the verdicts that hold and say nothing, and the numbers of verdicts by label."""
    wrong, labels = [], collections.Counter()
    for seed in seeds:
        net, x, y, ridge, about = drawn(seed)
        for verdict in bnrank.check(net, x, y, ridge):
            labels[verdict.label] += 1
            if verdict.label == "holds" and empty(verdict, net.widths):
                wrong.append((*about, str(verdict)))
    return wrong, labels


@pytest.mark.filterwarnings("ignore::UserWarning")  # of outputs beyond the range of floats
def test_nothing_that_holds_is_empty(monkeypatch):
    wrong, labels = found_empty(range(12))
    assert not wrong
    assert labels["violated"] == 0
    assert labels["holds"] > 60
    assert labels["holds (vacuous)"] > 60
    monkeypatch.setattr(verdicts, "triviality", lambda sides: sides.vacuous)  # without the rule
    assert len(found_empty(range(4))[0]) > 20


def test_rates_along_a_gradient_that_is_zero_say_nothing():
    net = from_layers([-torch.ones(4, 2), torch.ones(3, 4)])  # dead on these samples
    found = bnrank.check(net, normal(5, 2).abs(), normal(5, 3), only=["T44", "T45", "T46", "T47", "T49"])
    assert {v.label for v in found if v.status == "holds"} == {"holds (vacuous)"}
    assert found["T44"].vacuous == "all terms are 0"
    alive = bnrank.check(bnrank.MLP([2, 4, 3], seed=0), normal(5, 2), normal(5, 3), only="T44")
    assert alive["T44"].label == "holds"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("size", [1e80, 1e160, 1e-80, 1e-160])
@pytest.mark.parametrize("widths", [[1, 1, 2, 2, 1, 1, 1], [1, 8, 8, 8, 3], [3, 1, 3]])
def test_values_beyond_the_range_of_floats_neither_stop_check_nor_violate(size, widths):
    net = bnrank.MLP(widths, bias=False, seed=0).double()
    with torch.no_grad():
        for weight in net.weights:
            weight.mul_(size)
    x, y = normal(5, widths[0]), normal(5, widths[-1], seed=1)
    for targets, ridge in ((y, 1.0), (None, None)):
        assert bnrank.check(net, x, targets, ridge).ok


def by_name(name):
    return next(s for s in STATEMENTS if s.name == name)


def test_bounds_beyond_what_the_layers_can_reach_say_nothing():
    """T22 and T23: e^{c1 / k} for norms far above k L."""
    representations, dimensions = by_name("bounded representations"), by_name("representations near k dimensions")
    for factor, label in ((1.0, "holds"), (6.0, "holds (vacuous)")):
        first = [torch.diag(torch.tensor([factor, 0.1], dtype=DOUBLE))] * 4
        facts = Facts(from_layers([*first, torch.tensor([[factor, 0.0]])], slope=1.0), normal(6, 2))
        assert representations(facts).label == dimensions(facts).label == label
        if factor > 1:
            assert "the left side is at most" in representations(facts).vacuous
            assert "the left side is at most" in dimensions(facts).vacuous


def test_an_interpolant_that_costs_more_than_the_layers_can_reach_says_nothing():
    """T12 and the second T17b: steep targets need a large C_N."""
    cost, second = by_name("cost of rank-one interpolation"), by_name("second singular value of cheap fits")
    steep = Facts(bnrank.MLP([2, 9, 9, 9, 2], seed=0), 1e-9 * normal(5, 2), normal(5, 2, seed=1), 1.0)
    for statement in (cost, second):
        assert statement(steep).label == "holds (vacuous)"
        assert "the left side is at most" in statement(steep).vacuous
    weights, x = [torch.diag(torch.tensor([1.0, 0.1], dtype=DOUBLE))] * 4, normal(5, 2).abs()
    net = from_layers(weights)
    cheap = from_layers([1.2 * weights[0], weights[1] / 1.2, *weights[2:]])  # stands for an interpolant of rank one
    facts = Facts(net, x, net(x).detach(), 1.0).altered(interpolant=cheap)
    assert [statement(facts).label for statement in (cost, second)] == ["holds"] * 2


def test_the_trace_of_the_ntk_is_at_least_the_number_of_outputs_with_biases():
    """T26: the derivative of f by the last bias is the identity."""
    x, weights = torch.linspace(0, 8, 9, dtype=DOUBLE)[:, None], [torch.full((1, 1), 0.7, dtype=DOUBLE)] * 3
    growth = by_name("the NTK of rank-one functions grows")
    assert growth(Facts(from_layers(weights), x)).label == "holds"
    with_bias = growth(Facts(from_layers(weights, [torch.zeros(1)] * 3), x))
    assert with_bias.left < 1
    assert with_bias.vacuous.endswith("the right side is at least 1")


def test_a_bound_on_a_rank_says_something_below_the_widths():
    low = from_layers([normal(3, 3), torch.outer(normal(3), normal(3, seed=1)), normal(3, 3, seed=2)])
    full = from_layers([normal(3, 3), normal(3, 3, seed=1), normal(3, 3, seed=2)])
    for net, label in ((low, "holds"), (full, "holds (vacuous)")):
        assert bnrank.check(net, normal(9, 3).abs(), only="T5")["T5"].label == label


def test_the_rate_along_one_sample_is_of_low_rank_and_could_be_of_a_higher_one(monkeypatch):
    net, x, y = bnrank.MLP([5, 20, 3], seed=0).double(), normal(6, 5), normal(6, 3, seed=1)
    low_rank = by_name("one sample changes pairs by a matrix of low rank")
    found = low_rank(Facts(net, x, y))
    assert (found.label, found.left, found.right) == ("holds", 4, 4)
    monkeypatch.setattr(Pair, "rate_rank", lambda *_: 3)
    assert low_rank(Facts(net, x, y)).status == "violated"


def test_infinite_and_tiny_sides():
    for sides in (
        Sides(1.0, math.inf),
        Sides(1.0, 1.7976931348623157e308),
        Sides(-math.inf, 1.0, least=-math.inf),
        Sides(1e-310, 5.0),
        Sides(2.0, 5.0, least=2.0),
        Sides(math.inf, math.inf, "="),
        Sides(4.4e-322, 3.7e-320, "="),
        Sides(1e-12, 2e-12, "=", atol=1e-9),
        Sides(-1e-9, 1e-9, "=", atol=2e-9),
    ):
        assert triviality(sides)
    for sides in (
        Sides(1e-300, 5.0),
        Sides(0.0, 0.0, least=-math.inf),
        Sides(2.0, 4.9, most=5.0),
        Sides(1.0, 1.0, "="),
        Sides(1.0, 1.0, "=", atol=1e-9),
        Sides(-0.8e-9, 0.8e-9, "=", atol=1e-9),  # violated, though both are smaller than the tolerance
        Sides(1e-12, 2e-12, "=", atol=1e-9, scale=1.0),
    ):
        assert not triviality(sides)
    beyond = "side is beyond the range of floats"
    assert triviality(Sides(-math.inf, 1.0, least=-math.inf)) == f"the left {beyond}"
    assert triviality(Sides(-1.0, math.inf)) == f"the right {beyond}"


def test_what_can_fail_is_shown_before_what_cannot():
    trivial, telling = Sides(2.0, 2.0, most=2.0), Sides(1.0, 1.9, most=2.0)
    assert closest([trivial, telling]) is telling
    assert closest([telling, Sides(3.0, 2.0, most=2.0)]).left == 3.0  # violated before all
