"""Symmetries where columns have different units, near poles, and how they are written."""

import math

import pytest
import torch

import oracles
from bnrank.discovery.symmetry_search import fields, symmetries
from bnrank.discovery.symmetry_search.algebra import sparse
from bnrank.discovery.symmetry_search.fields import whitened
from bnrank.discovery.symmetry_search.problem import read_problem, shortened
from bnrank.discovery.symmetry_search.search import _orbit
from bnrank.discovery.symmetry_search.spectrum import find_fields
from bnrank.discovery.symmetry_search.words import combination, point_text
from helpers import normal

from .functions import DOUBLE, Function, columns

UNITS = torch.tensor([1e4, 1e-4, 1.0, 1e2, 1e-3, 3.0], dtype=DOUBLE)


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
    given = read_problem(module, (x * units, None, None), None, None, (50, 2, 0))
    found = find_fields(given.sample, fields.affine(3), given)
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
    "no other coordinate of the center": (
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
    both = fields.in_units(torch.cat([given, written]), where.spread).flatten(1)
    assert torch.linalg.matrix_rank(both, rtol=1e-9) == 2
    assert (fields.in_units(written, where.spread).abs() < 1e-9).sum() >= 2


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


def slow_cap(lengths, share):
    """The largest c with c^2 <= share sum_i min(l_i, c)^2, by bisection."""
    low, high = 0.0, max(lengths)
    for _ in range(200):
        middle = (low + high) / 2
        allowed = middle**2 <= share * sum(min(length, middle) ** 2 for length in lengths)
        low, high = (middle, high) if allowed else (low, middle)
    return high


@pytest.mark.parametrize(("n", "share"), [(101, 5 / 101), (400, 0.02)])
def test_no_jacobian_holds_more_than_its_share(n, share):
    module, x = Function(lambda x: columns(x[:, 0] / x[:, 1])), normal(n, 2)
    found = symmetries(module, x, finite=False)
    centered = x - x.mean(0)
    values, turn = torch.linalg.eigh(centered.T @ centered / len(x))
    out = turn * values.sqrt()
    jacobian = oracles.input_jacobian(module, x) @ out
    lengths = jacobian.norm(dim=(1, 2))
    longest = slow_cap(lengths.tolist(), share)
    assert 3 < (lengths > longest).sum() < 50
    for i in range(len(x)):
        if lengths[i] > longest:
            jacobian[i] *= longest / lengths[i]
    assert float(jacobian.square().sum((1, 2)).max() / jacobian.square().sum()) == pytest.approx(share)
    z = torch.cat([centered @ torch.linalg.inv(out).T, torch.ones(n, 1, dtype=DOUBLE)], 1)
    rows = torch.einsum("nmq,nk->nmqk", jacobian, z).flatten(0, 1).flatten(1)
    slow = torch.linalg.svdvals(rows).flip(0) * math.sqrt(2) / jacobian.square().sum().sqrt()
    torch.testing.assert_close(found.values, slow, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("zeros", [0, 7])
@pytest.mark.parametrize("count", [1, 4, 12, 100, 1000])
def test_the_cut_for_any_number_of_jacobians(count, zeros):
    jacobians = torch.cat([normal(count, 2, 3) * normal(count, 1, 1, seed=1) ** 3 * 1e-100, torch.zeros(zeros, 2, 3)])
    cut = shortened(jacobians) * 1e100
    lengths, after = (jacobians.flatten(1) * 1e100).norm(dim=1), cut.flatten(1).norm(dim=1)
    share = max(0.02, 5 / count)
    longest = slow_cap(lengths.tolist(), share)
    torch.testing.assert_close(after, lengths.clamp(max=longest))
    assert (longest == lengths.max()) == (count <= 5)
    assert torch.equal(shortened(torch.zeros(3, 1, 2)), torch.zeros(3, 1, 2))


@pytest.mark.parametrize("steep", [3, 30])
def test_a_steep_function_keeps_its_symmetries(steep):
    def ring(x):  # with a little that is no symmetry, as networks have
        inside = torch.tanh(steep * (x[:, :2].square().sum(1) - 1.4))
        return columns(inside + 0.01 * (3 * x).sin().sum(1))

    found = symmetries(Function(ring), normal(1500, 4), rtol=0.02, finite=False, resamples=5)
    assert (found.dimension, found.status) == (3, "approximate"), found.summary()
    translation, rotation = found.pieces
    assert (translation.kind, rotation.kind) == ("translation", "rotation")
    turned = torch.linalg.qr(rotation.space)[0]
    assert torch.linalg.svdvals(turned[:2]).min() > 0.99


ELLIPSOIDS = {
    "along the columns": ([[1.0, 0.0], [0.0, 4.0]], "semi-axes 1 : 0.5)"),
    "as long along both columns": ([[1.0, 0.9], [0.9, 1.0]], "squared length x1^2 + 1.8 x1 x2 + x2^2)"),
    "three columns": (
        [[1.0, 0.5, 0.0], [0.5, 2.0, 0.3], [0.0, 0.3, 5.0]],
        "squared length x1^2 + x1 x2 + 2 x2^2 + 0.6 x2 x3 + 5 x3^2)",
    ),
    "very different units": ([[1e-4, 0.5], [0.5, 1e4]], "squared length x1^2 + 1e+04 x1 x2 + 1e+08 x2^2)"),
}


@pytest.mark.parametrize("name", ELLIPSOIDS)
def test_what_is_said_of_an_ellipsoid_is_true_of_it(name):
    form, words = ELLIPSOIDS[name]
    form = torch.tensor(form, dtype=DOUBLE)
    x = normal(300, len(form)) / form.diagonal().sqrt()
    found = symmetries(Function(lambda x: torch.einsum("ni,ij,nj->n", x, form, x)), x, finite=False)
    (piece,) = found.pieces
    assert f"(of an ellipsoid, {words}, through 0" in piece.text
    surface = normal(20, piece.space.shape[1], seed=1)
    surface = surface / surface.norm(dim=1, keepdim=True) @ piece.space.T
    on_it = torch.einsum("ni,ij,nj->n", surface, form, surface)
    torch.testing.assert_close(on_it, on_it[:1].expand(20))  # space maps the unit sphere onto a level set


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


def test_a_summary_lists_twelve_finite_symmetries_and_counts_the_others():
    found = symmetries(Function(lambda x: columns(x[:, 0] ** 3, x[:, 0].exp())), normal(200, 6))
    assert len(found.held) > 12
    text = found.summary()
    assert text.count("(exact, change") == 12
    assert f"and {len(found.held) - 12} more, in .held" in text
