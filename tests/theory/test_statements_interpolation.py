"""Verdicts on fits of low rank (T9, T12, T13, T15, T16, T17, T17b, T26)."""

import dataclasses

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.constructions import line_interpolant
from bnrank.networks.mlp import from_layers
from bnrank.theory import domains, kernels, stability, tours
from bnrank.theory.facts import Facts
from bnrank.theory.statements import interpolation
from bnrank.theory.statements.interpolation import STATEMENTS, stable_at, symmetric_under

DOUBLE = torch.float64
BY_NAME = {s.name: s for s in STATEMENTS}
IDENTITY = BY_NAME["the identity on the data costs k L"]
COST = BY_NAME["cost of rank-one interpolation"]
SECOND = BY_NAME["second singular value at a global minimum"]
NORM = BY_NAME["norm of rank-one functions"]
SLOPE = BY_NAME["slope of rank-one functions"]
LAYER = BY_NAME["an almost rank-one layer"]
KERNEL = BY_NAME["kernels overestimate the rank"]
TRANSLATIONS = BY_NAME["rank and symmetry: translations"]
DENOISING = BY_NAME["autoencoders of the rank of the data project onto them"]
GROWTH = BY_NAME["the NTK of rank-one functions grows"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


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
    assert found[KERNEL.name] == "holds"
    assert (found[TRANSLATIONS.name] == "holds") is (widths[1] < widths[0])


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
    assert found.pop(KERNEL.name) == "holds"
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


# T9 ------------------------------------------------------------------------------------------------------------------


def test_identity_on_the_data(monkeypatch):
    net, x = bnrank.MLP([3, 4, 4, 2]), torch.rand(20, 3, dtype=DOUBLE)
    facts = Facts(net, x)
    found = IDENTITY(facts)
    assert found.status == "holds"
    assert (found.left, found.right) == (pytest.approx(9), 9)
    negative = IDENTITY(Facts(net, x - 0.5))
    assert negative.status == "not applicable"
    assert "completely positive: points" in negative.reason
    whole = domains.completely_positive
    monkeypatch.setattr(domains, "completely_positive", lambda x, seed: dataclasses.replace(whole(x), isometry=None))
    assert IDENTITY(facts).status == "inconclusive"
    stretched = dataclasses.replace(whole(x), k=2)
    monkeypatch.setattr(domains, "completely_positive", lambda x, seed: stretched)
    assert IDENTITY(facts).status == "violated"
    wrong = dataclasses.replace(whole(x), isometry=torch.eye(3, dtype=DOUBLE) * 1.1)
    monkeypatch.setattr(domains, "completely_positive", lambda x, seed: wrong)
    assert "misses the identity" in IDENTITY(facts).reason


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
        assert statement(facts.altered(jacobian_values=1e9 * facts.jacobian_values)).status == "violated"
        assert statement(Facts(net, task.x, None, 3e-3)).reason == "targets y are given"
        assert statement(Facts(net, task.x, task.y)).reason == "a ridge > 0 is given"
        refuted = statement(facts.altered(parameter_norm=2 * norm))
        assert refuted.reason.startswith("wide enough" if max(net.widths) < 11 else "the network is a global minimum")
        assert statement(Facts(net, task.x, task.y, 3e-3, max_samples=5)).reason.startswith("all samples are looked at")


def test_when_a_rank_one_interpolant_says_nothing():
    x, y = normal(6, 2), normal(6, 2, seed=1)
    shallow = COST(Facts(bnrank.MLP([2, 5, 2]), x, y, 1e-3))
    assert shallow.reason == "depth at least 3: depth 2"
    linear = COST(Facts(bnrank.networks.mlp.LinearNetwork([2, 5, 5, 2]), x, y, 1e-3))
    assert linear.reason == "the network is not linear"
    narrow = COST(Facts(bnrank.MLP([2, 2, 2, 2], init=9.0), x, y, 1e-3))
    assert narrow.reason.startswith("wide enough, hidden widths [1, 5]")
    unfit = COST(Facts(bnrank.MLP([2, 9, 9, 2], init=9.0), x, y, 1e-3))
    assert unfit.reason.startswith("the network is a global minimum: (C + lambda ||theta||^2) / lambda is")
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
    assert constants == pytest.approx([constants[0]] * 3, rel=1e-6)  # C_N does not depend on the depth


# T13, T26 ------------------------------------------------------------------------------------------------------------


def test_rank_one_statements_on_interpolants(monkeypatch):
    x, y = normal(10, 3), normal(10, 2, seed=1)
    facts = Facts(line_interpolant(x, y, 6), x)
    for statement in (NORM, SLOPE, GROWTH):
        found = statement(facts)
        assert (found.status, found.assumptions) == ("holds", ("a weight has rank one",))
    assert NORM(facts.altered(parameter_norm=0.1)).status == "violated"
    monkeypatch.setattr(tours, "diameter", lambda x: 1e-9)
    assert SLOPE(facts).status == "violated"


def test_growth_is_violated_by_a_wrong_diameter(monkeypatch):
    facts = Facts(from_layers([torch.ones(1, 1)] * 6), torch.linspace(0, 8, 5)[:, None])
    assert GROWTH(facts).status == "holds"
    assert GROWTH(facts).right == pytest.approx(64 * GROWTH(facts).left)
    monkeypatch.setattr(stability, "diameter", lambda x: 0.9)
    assert GROWTH(facts).status == "violated"


def test_nearly_rank_one_weights_are_truncated():
    first = torch.outer(normal(4), normal(3)) + 1e-9 * normal(4, 3)
    net = from_layers([first, normal(2, 4, seed=1)])
    found = NORM(Facts(net, normal(8, 3)))
    assert found.status == "holds"
    assert "less the rest of W_1" in found.note
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
    assert random.reason.startswith("the network is a global minimum: (C + lambda")
    assert LAYER(Facts(bnrank.MLP([3, 3]), task.x, task.y, 3e-3)).reason == "there is a hidden layer: depth 1"
    constant = from_layers([torch.zeros(2, 3), torch.zeros(2, 2), torch.zeros(3, 2)])
    assert LAYER(Facts(constant, task.x, task.y, 1e3)).reason == "the outputs are not constant"


# T16 -----------------------------------------------------------------------------------------------------------------


def test_kernels(monkeypatch):
    x, net = normal(30, 3), bnrank.MLP([3, 1, 2], seed=0)
    facts = Facts(net, x, net(x.float()).detach() + 0.1 * normal(30, 2))
    found = KERNEL(facts)
    assert (found.status, found.left, found.right) == ("holds", 2, 2)
    assert "the network has rank 1" in found.note
    low = KERNEL(Facts(net, x, normal(30, 1) @ torch.ones(1, 2, dtype=DOUBLE)))
    assert low.reason == "noise in y, so that Y has rank min(rank X, d_out): rank 1 of 2"
    assert KERNEL(Facts(net, x[:1], normal(1, 2))).reason == "there are at least two samples"
    assert KERNEL(Facts(net, x)).reason == "targets y are given"
    whole = kernels.jacobian_ranks
    once = []

    def low_at_first(*arguments, **options):
        ranks = whole(*arguments, **options)
        once.append(ranks)
        return ranks if len(once) > 1 else dataclasses.replace(ranks, ranks=ranks.ranks - 1)

    monkeypatch.setattr(kernels, "jacobian_ranks", low_at_first)
    assert KERNEL(facts).reason.startswith("noise in y: the rank is 1, and 2 with noise")
    assert not torch.allclose(once[0].singular_values, once[1].singular_values)

    def low_always(*arguments, **options):
        ranks = whole(*arguments, **options)
        return dataclasses.replace(ranks, ranks=ranks.ranks - 1)

    monkeypatch.setattr(kernels, "jacobian_ranks", low_always)
    assert KERNEL(facts).status == "violated"


# T17 -----------------------------------------------------------------------------------------------------------------


def test_translations():
    facts = Facts(bnrank.MLP([5, 3, 8, 6], seed=0), normal(10, 5))
    found = TRANSLATIONS(facts)
    assert (found.status, found.left, found.right) == ("holds", 3, 3)
    assert TRANSLATIONS(facts.altered(jacobian_values=torch.ones(10, 5))).status == "violated"
    wide = TRANSLATIONS(Facts(bnrank.MLP([3, 8, 3]), normal(4, 3)))
    assert wide.reason == "a symmetry is known: no generators are given, and W_1 has no kernel"


def test_a_given_symmetry():
    net, x = from_layers([torch.tensor([[1.0, 1.0]]), torch.ones(3, 1)]), normal(6, 2)
    diagonal = (torch.zeros(2, 2), torch.tensor([1.0, -1.0]))
    found = symmetric_under([diagonal])(Facts(net, x))
    assert (found.status, found.left, found.right) == ("holds", 1, 1)
    other = symmetric_under([torch.tensor([[0.0, 1.0], [-1.0, 0.0]])])(Facts(net, x))
    assert other.reason.startswith("f is invariant: ||Jf v|| =")
    # a symmetry that f has only to within 0.5 does not bound its rank
    bent = from_layers([torch.tensor([[1.0, 1.0], [0.3, -0.3]]), torch.eye(2)], slope=1.0)
    sloppy = symmetric_under([diagonal], tol=0.05)(Facts(bent, x))
    assert sloppy.status == "not applicable"


def test_autoencoders():
    x = normal(40, 2) @ normal(2, 5, seed=1)
    basis = torch.linalg.svd(x, full_matrices=False)[2][:2]
    net = from_layers([torch.cat([basis, -basis]), torch.cat([basis.T, -basis.T], 1)])  # x -> its projection
    facts = Facts(net, x)
    found = DENOISING(facts)
    assert found.status == "holds"
    assert ", k = 2, ||E|| = " in found.note
    oblique = from_layers([torch.linalg.pinv(x.T @ normal(40, 2, seed=3)), x.T @ normal(40, 2, seed=3)], slope=1.0)
    assert DENOISING(Facts(oblique, x)).status == "holds"
    bad = from_layers([0.5 * torch.eye(5)])
    assert DENOISING(Facts(bad, normal(40, 5))).reason.startswith("the autoencoder gives back its inputs: ||E|| = 0.5")
    lying = Facts(from_layers([0.5 * torch.eye(5)]), normal(40, 5))
    assert DENOISING(lying.altered(outputs=lying.x)).status == "violated"
    assert DENOISING(Facts(bnrank.MLP([3, 5, 2]), normal(4, 3))).reason.startswith("as many outputs as inputs")
    assert DENOISING(Facts(bnrank.MLP([5, 9, 5]), x[:2])).reason.startswith("some region holds more samples")


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
    assert [s.id for s in STATEMENTS] == ["T9", "T12", "T13", "T13", "T15", "T16", "T17", "T17", "T17b", "T26"]
    assert all(s.source and s.formula and s.name for s in STATEMENTS)
    assert interpolation.__doc__
