"""Verdicts on fits of rank one (T12, T13, T15, T17b, T26)."""

import math

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory import stability, tours
from bnrank.theory.constructions import line_interpolant
from bnrank.theory.facts import Facts
from bnrank.theory.statements import interpolation, symmetry
from bnrank.theory.statements.interpolation import stable_at
from bnrank.theory.verdicts import statements_in
from helpers import normal

DOUBLE = torch.float64
STATEMENTS = statements_in(interpolation)
BY_NAME = {s.name: s for s in STATEMENTS}
COST = BY_NAME["cost of rank-one interpolation"]
SECOND = BY_NAME["second singular value of cheap fits"]
NORM = BY_NAME["norm of rank-one functions"]
SLOPE = BY_NAME["slope of rank-one functions"]
LAYER = BY_NAME["an almost rank-one layer (reported, not judged)"]
GROWTH = BY_NAME["the NTK of rank-one functions grows"]


@pytest.fixture(scope="module")
def trained():
    """A network trained on a few points, until it costs less than a rank-one interpolant."""
    task = bnrank.tasks.low_rank_map(n=12, d_in=3, d_out=3, latent=2, rank=1, width=8, n_test=4, seed=0)
    run = bnrank.train(
        bnrank.MLP([3, 12, 12, 12, 3], seed=0), task, ridge=3e-3, steps=1500, optimizer="lbfgs", progress=False
    )
    return run.network(0), task


def all_statuses(facts):
    return {s.name: s(facts).status for s in STATEMENTS}


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [[4, 6, 6, 3], [4, 3, 1, 5, 4], [1, 3, 1], [3, 3]])
def test_nothing_is_violated_on_random_networks(slope, bias, widths):
    net = bnrank.networks.mlp.make(widths, slope=slope, bias=bias, seed=1)
    with torch.no_grad():
        for i, b in enumerate(net.biases):
            b.copy_(normal(len(b), seed=i))
    x = normal(15, widths[0])
    found = all_statuses(Facts(net, x, normal(15, widths[-1], seed=2), 1e-3))
    assert "violated" not in found.values()
    narrow = 1 in widths
    assert (found[NORM.name] == found[SLOPE.name] == found[GROWTH.name] == "holds") is narrow
    assert (found[NORM.name] == "not applicable") is not narrow


def test_nothing_is_violated_on_a_trained_network(trained):
    net, task = trained
    facts = Facts(net, task.x, task.y, 3e-3)
    found = all_statuses(facts)
    assert "violated" not in found.values()
    assert found[COST.name] == found[SECOND.name] == "holds"
    assert found[LAYER.name] == "inconclusive"
    assert "at most that of the interpolant" in COST(facts).assumptions[0]


def test_unusual_networks_are_not_applicable():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    facts = Facts(conv, normal(5, 1, 4, 4), normal(5, 2), 1e-3)
    found = all_statuses(facts)
    assert set(found.values()) == {"not applicable"}
    assert "chain of linear layers" in NORM(facts).reason
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    facts = Facts(embedding, torch.tensor([0, 1, 2, 3]), normal(4, 2), 1e-3)
    assert set(all_statuses(facts).values()) == {"not applicable"}


@pytest.mark.parametrize(
    "net",
    [
        from_layers([torch.zeros(3, 2), torch.zeros(2, 3)]),
        from_layers([torch.zeros(3, 2), torch.zeros(2, 3)], [torch.ones(3), torch.ones(2)]),
        from_layers([-torch.ones(3, 2), torch.ones(2, 3)], [-9 * torch.ones(3), torch.ones(2)]),  # dead
        bnrank.MLP([2, 4, 2]).float(),
    ],
)
@pytest.mark.parametrize("n", [1, 6])
def test_degenerate_networks_and_single_samples(net, n):
    found = all_statuses(Facts(net, normal(n, 2), normal(n, 2, seed=1), 1e-3))
    assert "violated" not in found.values()
    found = all_statuses(Facts(net, normal(n, 2).float(), None, None, rtol=0.0))
    assert "violated" not in found.values()


# T12, T17b -----------------------------------------------------------------------------------------------------------


def test_rank_one_cost_and_second_value(trained):
    net, task = trained
    facts = Facts(net, task.x, task.y, 3e-3)
    found, depth = COST(facts), net.depth
    interpolant = line_interpolant(task.x.double(), task.y.double(), depth)
    norm = sum(float((p.detach() ** 2).sum()) for p in interpolant.parameters())
    assert found.right == pytest.approx(norm, rel=1e-6)
    powers = (facts.jacobian_values ** (2 / depth)).sum(1)
    assert found.left == pytest.approx(depth * float(powers.max()), rel=1e-6)
    assert found.left <= facts.parameter_norm <= found.right
    assert SECOND(facts).right == pytest.approx(norm / (2 * depth), rel=1e-6)
    for statement in (COST, SECOND):
        ratio = statement(facts).right / statement(facts).left
        for beyond, status in ((0.99, "holds"), (1.01, "violated")):
            larger = (beyond * ratio) ** (depth / 2) * facts.jacobian_values
            assert statement(facts.altered(jacobian_values=larger)).status == status
        assert "follows from T4" in statement(facts).note
        assert statement(Facts(net, task.x, None, 3e-3)).reason == "targets y are given"
        assert statement(Facts(net, task.x, task.y)).reason == "a ridge > 0 is given"
        refuted = statement(facts.altered(parameter_norm=2 * norm))
        assert refuted.reason.startswith(
            "wide enough" if max(net.widths) < 11 else "the network costs no more than a rank-one interpolant"
        )
        assert statement(Facts(net, task.x, task.y, 3e-3, max_samples=5)).reason.startswith("all samples are checked")


def test_when_a_rank_one_interpolant_says_nothing():
    x, y = normal(6, 2), normal(6, 2, seed=1)
    shallow = COST(Facts(bnrank.MLP([2, 5, 2]), x, y, 1e-3))
    assert shallow.reason == "depth at least 3: depth 2"
    linear = COST(Facts(bnrank.networks.mlp.LinearNetwork([2, 5, 5, 2]), x, y, 1e-3))
    assert linear.reason == "the network is not linear"
    narrow = COST(Facts(bnrank.MLP([2, 2, 2, 2], init=9.0), x, y, 1e-3))
    assert narrow.reason.startswith("wide enough, hidden widths [1, 5]")
    unfit = COST(Facts(bnrank.MLP([2, 9, 9, 2], init=9.0), x, y, 1e-3))
    assert unfit.reason.startswith(
        "the network costs no more than a rank-one interpolant, as a minimum does: (C + lambda ||theta||^2) / lambda is"
    )
    both = COST(Facts(bnrank.MLP([2, 9, 9, 2]), torch.ones(2, 2), torch.eye(2), 1e-3))
    assert "have equal" not in both.reason
    assert "whose x are equal" in both.reason
    classes = COST(Facts(bnrank.MLP([2, 9, 9, 2]), x, torch.tensor([0, 1, 0, 1, 1, 0]), 1e-3))
    assert classes.reason.startswith("the loss is the mean squared error")
    assert SECOND(Facts(bnrank.MLP([2, 9, 9, 1]), x, y[:, :1], 1e-3)).reason.startswith("there are at least two")


@pytest.mark.filterwarnings("ignore:x. 6 of 7 samples lie within")  # an interpolant has its kinks at the samples
def test_the_interpolant_itself_holds_at_every_depth():
    x, y = normal(7, 3), normal(7, 2, seed=1)
    constants = []
    for depth in (4, 9, 30):
        net = line_interpolant(x, y, depth)
        found = COST(Facts(net, x, y, 1e-2))
        assert found.status == "holds"
        constants.append(found.right - depth)
    assert constants[0] > constants[1] > constants[2] > 0  # C_N falls with the depth


# T13, T26 ------------------------------------------------------------------------------------------------------------


def test_rank_one_statements_on_interpolants(monkeypatch):
    x, y = normal(10, 3), normal(10, 2, seed=1)
    facts = Facts(line_interpolant(x, y, 6), x)
    for statement in (NORM, SLOPE, GROWTH):
        found = statement(facts)
        assert (found.status, found.assumptions) == ("holds", ("a weight has rank one",))
    least, slope, width = NORM(facts).left, SLOPE(facts), tours.diameter(x)
    assert NORM(facts.altered(parameter_norm=1.01 * least)).status == "holds"
    assert NORM(facts.altered(parameter_norm=0.99 * least)).status == "violated"
    for factor, status in ((1.01, "holds"), (0.99, "violated")):
        monkeypatch.setattr(tours, "diameter", lambda x, f=factor: f * width * slope.left / slope.right)
        assert SLOPE(facts.altered()).status == status


def test_check_computes_the_shortest_path_once(monkeypatch):
    whole, once = tours.shortest_path_bounds, []
    monkeypatch.setattr(tours, "shortest_path_bounds", lambda *given, **named: once.append(1) or whole(*given, **named))
    net, x = line_interpolant(normal(6, 3), normal(6, 2, seed=1), 6), normal(6, 3)
    found = bnrank.check(net, x, only=["T13", "T26"])
    assert [v.status for v in found] == ["holds"] * 3
    assert len(once) == 1
    bnrank.check(net, 2 * x, only="T26")  # nothing is kept between calls
    assert len(once) == 2
    assert found["T26"].left == stability.growth_bound(net, x).bound


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_the_tour_is_tight_where_nothing_is_lost(depth):
    net = from_layers([torch.full((1, 1), 2.0)] * depth)  # f(x) = 2^L x on x >= 0, of the least norm, L 2^2
    facts = Facts(net, torch.tensor([[0.0], [1.0], [2.5], [4.0]]))
    assert SLOPE(facts).left == pytest.approx(2**depth, rel=1e-12)
    assert SLOPE(facts).right == pytest.approx(2**depth, rel=1e-12)
    assert NORM(facts).left == pytest.approx(4 * depth, rel=1e-12)
    assert NORM(facts).right == pytest.approx(4 * depth, rel=1e-12)


@pytest.mark.parametrize("offset", [0.0, 300.0, -1e6])
@pytest.mark.parametrize("seed", range(3))
def test_differences_lost_in_the_outputs_are_no_violation(offset, seed):
    """The outputs are a constant plus small differences; the path through them is longer by rounding."""
    net = from_layers(
        [torch.full((1, 1), 0.7, dtype=DOUBLE), torch.full((1, 1), 1e-4, dtype=DOUBLE)],
        [torch.tensor([1.0], dtype=DOUBLE), torch.tensor([offset], dtype=DOUBLE)],
    )
    for x in (torch.tensor([[1e-3], [2.37e-3]], dtype=DOUBLE), 1e-3 * normal(2 + 4 * seed, 1, seed=seed)):
        facts = Facts(net, x)
        assert SLOPE(facts).status == "holds"
        assert SLOPE(facts).left <= 7e-5
        assert NORM(facts).status == GROWTH(facts).status == "holds"
    if abs(offset) < 1e3:
        assert SLOPE(facts).left > 6.99e-5  # little is taken off


def test_noise_below_the_rounding_does_not_count():
    """1e-17 to the power 2/L is not small at L = 40: a network of rank one with outputs that cancel."""
    depth, x = 40, normal(4, 2)
    narrow = from_layers([torch.ones(2, 2, dtype=DOUBLE) / 2] * depth, slope=0.5)
    facts = Facts(narrow, x, torch.zeros(4, 2), 1e-3, rtol=0.0)
    noisy = facts.altered(jacobian_values=torch.tensor([[1.0, 1e-17]], dtype=DOUBLE).expand(4, 2))
    assert (1e-17) ** (2 / depth) > 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpolation, "_interpolation", lambda facts: (float(depth), (), ""))
        assert COST(noisy).left == pytest.approx(depth, rel=1e-9)
        assert SECOND(noisy).left == 0.0


def test_growth_is_violated_by_a_wrong_diameter(monkeypatch):
    facts = Facts(from_layers([torch.ones(1, 1)] * 6), torch.linspace(0, 8, 5)[:, None])
    assert GROWTH(facts).status == "holds"
    assert GROWTH(facts).right == pytest.approx(64 * GROWTH(facts).left)
    for factor, status in ((1.01, "holds"), (0.99, "violated")):
        monkeypatch.setattr(tours, "diameter", lambda x, f=factor: f * 8 / math.sqrt(64))
        assert GROWTH(facts.altered()).status == status


@pytest.mark.parametrize("size", [1e150, 1e-150])
@pytest.mark.parametrize("widths", [[2, 1, 2], [2, 1, 1, 2], [2, 5, 5, 2], [2, 2]])
@pytest.mark.parametrize("what", ["first", "all", "x", "y"])
def test_nothing_crashes_on_values_near_the_ends_of_the_range(size, widths, what):
    net, x, y = bnrank.MLP(widths, seed=0).double(), normal(3, 2), normal(3, widths[-1], seed=1)
    with torch.no_grad():
        for w in net.weights if what == "all" else list(net.weights)[: what == "first"]:
            w.mul_(size)
    facts = Facts(net, x * size if what == "x" else x, y * size if what == "y" else y, 1e-3)
    verdicts = [statement(facts) for statement in (*STATEMENTS, *statements_in(symmetry))]
    assert not [v for v in verdicts if v.status == "violated"]
    assert all(v.reason for v in verdicts if v.status == "inconclusive")
    if what in ("first", "x") and 1 in widths:
        assert NORM(facts).status == "holds"


def test_nearly_rank_one_weights_are_truncated():
    first = torch.outer(normal(4), normal(3)) + 1e-9 * normal(4, 3)
    net = from_layers([first, normal(2, 4, seed=1)])
    found = NORM(Facts(net, normal(8, 3)))
    assert found.status == "holds"
    assert "minus the rest of W_1" in found.note
    assert NORM(Facts(net, normal(8, 3), rtol=1e-12)).status == "not applicable"


def test_a_constant_hidden_dimension():
    net = from_layers([torch.tensor([[1.0, 0.0]]), torch.ones(2, 1)])
    x = torch.cat([torch.ones(5, 1, dtype=DOUBLE), normal(5, 1)], 1)
    assert SLOPE(Facts(net, x)).reason.startswith("the hidden dimension tells samples apart")


# T15 -----------------------------------------------------------------------------------------------------------------


def test_an_almost_rank_one_layer(trained):
    net, task = trained
    facts = Facts(net, task.x, task.y, 3e-3)
    found = LAYER(facts)
    ratios = [float(s[1] / s[0]) for s in map(torch.linalg.svdvals, facts.inputs[1:])]
    assert f"layer {1 + ratios.index(min(ratios))}, {min(ratios):.3g}" in found.reason
    random = LAYER(Facts(bnrank.MLP([3, 12, 12, 12, 3], init=9.0), task.x, task.y, 3e-3))
    assert random.reason.startswith(
        "the network costs no more than a rank-one interpolant, as a minimum does: (C + lambda"
    )
    assert LAYER(Facts(bnrank.MLP([3, 3]), task.x, task.y, 3e-3)).reason == "there is a hidden layer: depth 1"
    constant = from_layers([torch.zeros(2, 3), torch.zeros(2, 2), torch.zeros(3, 2)])
    assert "no constant" in LAYER.formula
    assert LAYER(Facts(constant, task.x, task.y, 1e3)).reason == "the outputs are not constant"


# T26, a step ---------------------------------------------------------------------------------------------------------


def test_a_step():
    net, x = bnrank.MLP([2, 5, 1], seed=0), normal(6, 2)
    facts = Facts(net, x, net(x.float()).detach())
    largest = stability.sharpness_bound(net, x).largest_step
    assert stable_at(0.9 * largest)(facts).status == "holds"
    assert stable_at(1.1 * largest)(facts).status == "violated"
    unfit = stable_at(0.1)(Facts(net, x, normal(6, 1)))
    assert unfit.reason.startswith("the network fits its targets: C =")
    assert stable_at(0.1)(Facts(net, x)).reason == "targets y are given"
    with pytest.raises(ValueError, match="step: got -1"):
        stable_at(-1)


def test_statements_name_their_sources():
    assert [s.id for s in STATEMENTS] == ["T12", "T17b", "T13", "T13", "T15", "T26"]
    assert all(s.source and s.formula and s.name for s in STATEMENTS)
