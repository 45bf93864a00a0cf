"""Verdicts on data and functions of low dimension: domains, kernels, symmetries (T9, T16, T17)."""

import dataclasses

import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory import constructions, domains, kernels
from bnrank.theory.facts import Facts
from bnrank.theory.statements import symmetry
from bnrank.theory.statements.symmetry import symmetric_under
from bnrank.theory.verdicts import statements_in
from helpers import normal

DOUBLE = torch.float64
STATEMENTS = statements_in(symmetry)
BY_NAME = {s.name: s for s in STATEMENTS}
IDENTITY = BY_NAME["networks that are the identity on the data"]
KERNEL = BY_NAME["kernel ridge regression on the data overestimates the rank"]
TRANSLATIONS = BY_NAME["rank and symmetry: translations"]
DENOISING = BY_NAME["autoencoders of the rank of the data project onto them"]


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
    assert found[KERNEL.name] == "holds"
    assert (found[TRANSLATIONS.name] == "holds") is (widths[1] < widths[0])


def test_the_kernel_asks_for_no_chain():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    found = all_statuses(Facts(conv, normal(5, 1, 4, 4), normal(5, 2), 1e-3))
    assert found.pop(KERNEL.name) == "holds"
    assert set(found.values()) == {"not applicable"}
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    facts = Facts(embedding, torch.tensor([0, 1, 2, 3]), normal(4, 2), 1e-3)
    assert set(all_statuses(facts).values()) == {"not applicable"}


@pytest.mark.parametrize("n", [1, 6])
def test_degenerate_networks_and_single_samples(n):
    for net in (
        from_layers([torch.zeros(3, 2), torch.zeros(2, 3)]),
        from_layers([-torch.ones(3, 2), torch.ones(2, 3)], [-9 * torch.ones(3), torch.ones(2)]),  # dead
        bnrank.MLP([2, 4, 2]).float(),
    ):
        assert "violated" not in all_statuses(Facts(net, normal(n, 2), normal(n, 2, seed=1), 1e-3)).values()
        assert "violated" not in all_statuses(Facts(net, normal(n, 2).float(), None, None, rtol=0.0)).values()


# T9 ------------------------------------------------------------------------------------------------------------------


def test_a_network_that_is_the_identity_on_the_data(monkeypatch):
    x = torch.rand(20, 3, dtype=DOUBLE)
    facts = Facts(constructions.identity(3, 6), x)
    found = IDENTITY(facts)
    assert (found.status, found.left, found.right) == ("holds", 18, 18)
    assert found.assumptions == ("f(x) = x on X", "X is completely positive")
    assert IDENTITY(facts.altered(parameter_norm=18 * 0.999)).status == "violated"
    dearer = from_layers([2 * torch.eye(3), torch.eye(3) / 2])
    assert (IDENTITY(Facts(dearer, x)).left, IDENTITY(Facts(dearer, x)).right) == (6, 12.75)
    whole = domains.completely_positive
    monkeypatch.setattr(domains, "completely_positive", lambda x, seed: dataclasses.replace(whole(x), isometry=None))
    assert IDENTITY(facts).status == "inconclusive"
    wrong = dataclasses.replace(whole(x), isometry=torch.eye(3, dtype=DOUBLE) * 1.1)
    monkeypatch.setattr(domains, "completely_positive", lambda x, seed: wrong)
    assert "misses the identity" in IDENTITY(facts).reason


def test_the_identity_on_a_plane_costs_its_dimension():
    turned = torch.linalg.qr(normal(4, 2))[0]
    x = torch.rand(12, 2, dtype=DOUBLE) @ turned.T
    facts = Facts(from_layers([turned.T, torch.eye(2), turned]), x)
    assert IDENTITY(facts).status == "holds"
    assert (IDENTITY(facts).left, IDENTITY(facts).right) == (pytest.approx(6, rel=1e-12), pytest.approx(6, rel=1e-12))
    nearly = Facts(from_layers([turned.T, (1 - 1e-8) * torch.eye(2, dtype=DOUBLE), turned]), x)  # of a norm below k L
    assert IDENTITY(nearly).status == "holds"
    assert IDENTITY(nearly).right < 6


def test_networks_that_are_not_the_identity_are_told_apart():
    x = torch.rand(8, 3, dtype=DOUBLE)
    other = IDENTITY(Facts(bnrank.MLP([3, 4, 4, 3]), x))
    assert other.reason.startswith("f(x) = x on the samples, not all 0: ||f(x) - x|| =")
    assert IDENTITY(Facts(bnrank.MLP([3, 4, 2]), x)).reason.startswith("f(x) = x on the samples: 2 outputs")
    assert IDENTITY(Facts(bnrank.MLP([3, 4, 3], bias=False), 0 * x)).status == "not applicable"
    points = IDENTITY(Facts(constructions.line_interpolant(x, x, 5), x))  # through the samples, of rank one
    assert points.reason.startswith("Jf is the identity on span X at a sample: ||Jf U - U|| =")
    linear = from_layers([torch.eye(3), torch.eye(3)], slope=1.0)
    negative = IDENTITY(Facts(linear, x - 0.5))
    assert "completely positive: points" in negative.reason


# T16 -----------------------------------------------------------------------------------------------------------------


def test_kernels(monkeypatch):
    x, net = normal(30, 3), bnrank.MLP([3, 1, 2], seed=0)
    facts = Facts(net, x, net(x.float()).detach() + 0.1 * normal(30, 2))
    found = KERNEL(facts)
    assert (found.status, found.left, found.right) == ("holds", 2, 2)
    assert "about the data alone: the network, which plays no part, has rank 1" in found.note
    low = KERNEL(Facts(net, x, normal(30, 1) @ torch.ones(1, 2, dtype=DOUBLE)))
    assert low.reason == "noise in y, so that Y has rank min(rank X, d_out): rank 1 of 2"
    assert KERNEL(Facts(net, x[:1], normal(1, 2))).reason == "there are at least two samples"
    assert KERNEL(Facts(net, x)).reason == "targets y are given"
    plane = Facts(bnrank.MLP([5, 4, 4]), normal(9, 2) @ normal(2, 5, seed=1), normal(9, 4, seed=2))
    assert (KERNEL(plane).status, KERNEL(plane).left, KERNEL(plane).right) == ("holds", 2, 2)
    for x in (torch.full((3, 2), 0.1), torch.full((3, 2), 1e100, dtype=DOUBLE), torch.full((3, 2), 1e8)):
        same = KERNEL(Facts(bnrank.MLP([2, 4, 2], seed=0), x, normal(3, 2)))
        assert same.status == "holds"
        assert same.left == 0 if same.vacuous else "off their affine span" in same.note
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

    def low_outside(x, y, *, points, **options):
        ranks = whole(x, y, points=points, **options)
        return dataclasses.replace(ranks, ranks=ranks.ranks.clamp(max=ranks.x_rank))

    monkeypatch.setattr(kernels, "jacobian_ranks", low_outside)
    assert "off their affine span" in KERNEL(plane).note
    assert (KERNEL(plane).status, KERNEL(plane).left, KERNEL(plane).right) == ("violated", 3, 2)


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
    sloppy = symmetric_under([diagonal], invariance_rtol=0.05)(Facts(bent, x))
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
