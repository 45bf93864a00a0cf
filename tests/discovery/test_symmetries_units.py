"""Symmetries where columns have different units, near poles, and how they are written."""

import math

import pytest
import torch
from torch import nn

import oracles
from bnrank.discovery.symmetries import fields, symmetries
from bnrank.discovery.symmetries.coordinates import whitened
from bnrank.discovery.symmetries.finding import look
from bnrank.discovery.symmetries.pieces import sparse
from bnrank.discovery.symmetries.problem import read
from bnrank.discovery.symmetries.search import _orbit
from bnrank.discovery.symmetries.wording import combination, point_text

DOUBLE = torch.float64
UNITS = torch.tensor([1e4, 1e-4, 1.0, 1e2, 1e-3, 3.0], dtype=DOUBLE)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def columns(*values):
    return torch.stack(values, 1)


def in_units(function, x, units):
    return Function(lambda u: function(u / units)), x * units


PLANTED = {
    "sphere and squeeze": (lambda x: columns(x[:, :3].norm(dim=1), x[:, 3] * x[:, 4]), 5, 4),
    "Lorentz": (lambda x: columns(x[:, 0] ** 2 - x[:, 1:4].square().sum(1)), 4, 6),
    "difference": (lambda x: columns((x[:, 0] - x[:, 1]).sin(), x[:, 2] ** 3), 3, 1),
    "two planes": (lambda x: columns(x[:, :2].norm(dim=1), x[:, 2:4].norm(dim=1)), 4, 2),
    "helix": (
        lambda x: columns(x[:, 0] * x[:, 2].cos() + x[:, 1] * x[:, 2].sin(), x[:, :2].square().sum(1), x[:, 3]),
        4,
        1,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_units_change_no_answer(name):
    function, d, dimension = PLANTED[name]
    x, units = normal(400, d), UNITS[:d]
    plain = symmetries(Function(function), x, finite=False)
    scaled = symmetries(*in_units(function, x, units), finite=False)
    for found in (plain, scaled):
        assert (found.dimension, found.status) == (dimension, "exact")
    assert (scaled.orbit_dimension, scaled.rank) == (plain.orbit_dimension, plain.rank)
    assert [piece.kind for piece in scaled.pieces] == [piece.kind for piece in plain.pieces]
    # the same span: x -> A x + b is u -> D A D^-1 u + D b
    back = scaled.generators / units[:, None] * torch.cat([units, torch.ones(1)])
    spans = [
        torch.linalg.qr((f / f.flatten(1).norm(dim=1)[:, None, None]).flatten(1).T)[0] for f in (plain.generators, back)
    ]
    assert torch.linalg.svdvals(spans[0].T @ spans[1]).min() > 1 - 1e-9


def test_orbits_of_generators_of_very_different_size():
    units = torch.tensor([1e6, 1e6, 1e-4, 1e-4], dtype=DOUBLE)
    found = symmetries(*in_units(PLANTED["two planes"][0], normal(300, 4), units), finite=False)
    assert (found.orbit_dimension, found.quotient_dimension, found.rank) == (2, 2, 2)


def test_orbits_do_not_depend_on_units():
    x, units = normal(50, 3), torch.tensor([1e8, 1.0, 1.0], dtype=DOUBLE)
    module = Function(lambda u: columns(u[:, 0] / 1e8 - u[:, 1] ** 2 / 2 - u[:, 2] ** 2 / 2))
    shears = torch.zeros(2, 3, 4, dtype=DOUBLE)  # du1 = 1e8 u2, du2 = 1 and du1 = 1e8 u3, du3 = 1
    shears[0, 0, 1] = shears[1, 0, 2] = 1e8
    shears[0, 1, 3] = shears[1, 2, 3] = 1.0
    given = read(module, x * units, (None, None, None), None, None, (50, 2, 0))
    found = look(given.sample, fields.affine(3), None, 2, 0)
    assert _orbit(given, [], shears, found, fields.affine(3)) == 2


def test_a_direction_of_mixed_units_is_written_in_full():
    units = torch.tensor([1e4, 1e-4, 1.0], dtype=DOUBLE)
    found = symmetries(*in_units(PLANTED["difference"][0], normal(300, 3), units), finite=False)
    assert found.pieces[0].text in ("translation along x1 + 1e-08 x2", "translation along 1e+08 x1 + x2")
    assert combination(torch.tensor([1.0, 1e-8]), ["a", "b"]) == "a"
    assert point_text(torch.tensor([0.0, 3e-7]), ["a", "b"]) == "0"
    assert point_text(torch.tensor([0.0, 3e-7]), ["a", "b"], torch.tensor([1.0, 1e-7])) == "a = 0, b = 3e-07"


def test_rotations_beside_boosts_in_any_units():
    found = symmetries(*in_units(PLANTED["Lorentz"][0], normal(400, 4), UNITS[:4]), finite=False)
    rotation, *boosts = found.pieces
    assert rotation.text.startswith("all rotations of (x2, x3, x4) (of an ellipsoid, semi-axes 1 : 1e+04 : 1e+06)")
    assert [piece.text for piece in boosts] == [
        "dx1 = 1e+16 x2, dx2 = x1",
        "dx1 = 1e+08 x3, dx3 = x1",
        "dx1 = 1e+04 x4, dx4 = x1",
    ]


WORDS = {
    "whole exponents": (
        lambda x: columns(x[:, 0] ** 2 / x[:, 1], x[:, 0] ** 3 / x[:, 2]),
        normal(300, 3).exp(),
        ["scaling of x1 by e^{t}, x2 by e^{2 t}, x3 by e^{3 t} about 0"],
    ),
    "no other coordinate of the centre": (
        lambda x: columns((x[:, 0] - 2) ** 2 + (x[:, 1] - 3) ** 2, x[:, 2]),
        normal(300, 3).exp(),
        ["rotation in the plane (x1, x2), through x1 = 2, x2 = 3: 1 generator"],
    ),
    "two points": (
        lambda x: columns((x[:, 0] - x[:, 2]) ** 2 + (x[:, 1] - x[:, 3]) ** 2),
        normal(300, 4),
        [
            "translation along x1 + x3, x2 + x4",
            "rotation in the plane of 0.707 x1 - 0.707 x3, 0.707 x2 - 0.707 x4, through 0: 1 generator",
        ],
    ),
    "all vectors turned alike": (
        lambda x: columns((x[:, :3] * x[:, 3:]).sum(1), x[:, :3].square().sum(1), x[:, 3:].square().sum(1)),
        normal(400, 6),
        [
            "rotations, Euclidean lengths kept, about 0: dx1 = -x2, dx2 = x1, dx4 = -x5, dx5 = x4; "
            "dx1 = -x3, dx3 = x1, dx4 = -x6, dx6 = x4; dx2 = -x3, dx3 = x2, dx5 = -x6, dx6 = x5"
        ],
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_how_they_are_written(name):
    function, x, texts = WORDS[name]
    found = symmetries(Function(function), x, finite=False)
    assert [piece.text for piece in found.pieces] == texts


def test_sparse_bases_span_the_same():
    x = normal(60, 3) * UNITS[:3]
    where = whitened(x)
    given = where.to_x(normal(2, 3, 4, seed=1))
    written = sparse(given, where)
    both = where.standardised(torch.cat([given, written])).flatten(1)
    assert torch.linalg.matrix_rank(both, rtol=1e-9) == 2
    assert (where.standardised(written).abs() < 1e-9).sum() >= 2


def test_lengths_in_a_quotient_are_of_the_shortest_vectors():
    where = whitened(normal(80, 3) @ normal(3, 3, seed=2))
    ignored = torch.linalg.qr(normal(3, 1, seed=3))[0]
    inner = where.without(ignored)
    gone = (where.out @ ignored)[:, 0]
    for lengths in (torch.ones(3, dtype=DOUBLE), where.spread):
        metric = inner.metric(lengths)
        for z in normal(4, 2, seed=4):
            vector = inner.out @ z
            tries = (vector + torch.linspace(-9, 9, 180001, dtype=DOUBLE)[:, None] * gone) / lengths
            assert float(z @ metric @ z) == pytest.approx(float(tries.square().sum(1).min()), rel=1e-6)


POLES = {
    "both signs": (lambda x: columns(x[:, 0] / x[:, 1]), normal(400, 2)),
    "heavy tails": (lambda x: columns(x[:, 0] / x[:, 1], x[:, 2]), normal(400, 3).exp()),
    "a pi group": (lambda x: columns(x[:, 0] * x[:, 1] / x[:, 2] ** 2), normal(400, 3).exp()),
}


@pytest.mark.parametrize("name", POLES)
def test_a_pole_hides_and_invents_nothing(name):
    function, x = POLES[name]
    found = symmetries(Function(function), x, finite=False)
    dimension = 2 if name == "a pi group" else 1
    assert (found.dimension, found.status) == (dimension, "exact"), found.summary()
    assert [piece.kind for piece in found.pieces] == ["scaling"]
    assert found.interval == (dimension, dimension)


def test_long_jacobians_are_cut_to_ten_times_the_median():
    module, x = Function(lambda x: columns(x[:, 0] / x[:, 1])), normal(101, 2)
    found = symmetries(module, x, finite=False)
    centred = x - x.mean(0)
    values, turn = torch.linalg.eigh(centred.T @ centred / len(x))
    out = turn * values.sqrt()
    jacobian = oracles.input_jacobian(module, x) @ out
    lengths = jacobian.norm(dim=(1, 2))
    longest = 10 * sorted(lengths.tolist())[50]
    assert (lengths > longest).sum() > 3
    for i in range(len(x)):
        if lengths[i] > longest:
            jacobian[i] *= longest / lengths[i]
    z = torch.cat([centred @ torch.linalg.inv(out).T, torch.ones(101, 1, dtype=DOUBLE)], 1)
    rows = torch.einsum("nmq,nk->nmqk", jacobian, z).flatten(0, 1).flatten(1)
    slow = torch.linalg.svdvals(rows).flip(0) * math.sqrt(2) / jacobian.square().sum().sqrt()
    torch.testing.assert_close(found.values, slow, rtol=1e-8, atol=1e-8)


def test_the_picture_shows_every_value_and_map():
    found = symmetries(Function(PLANTED["two planes"][0]), normal(200, 4))
    left, right = found.plot()
    drawn = sorted(float(value) for line in left.lines for value in line.get_ydata())
    expected = sorted(max(float(v), 1e-17) for v in torch.cat([found.values, found.translations.values]))
    assert drawn == pytest.approx(expected)
    assert left.get_title() == "2 infinitesimal symmetries (exact)"
    assert len(right.patches) == min(len(found.finite), 30)
    again = found.plot([left, right])
    assert again[0] is left
    assert again[1] is right
    with pytest.raises(ValueError, match="axes: got"):
        found.plot(left)
