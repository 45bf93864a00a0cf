"""The transformations that leave a function alone: planted groups, found exactly."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
import oracles
from bnrank.discovery.symmetry_search import rotations, symmetries
from bnrank.tasks import matrix_factorization, rank_one_factorization
from bnrank.tasks.factorizations import RankOneFactorization
from helpers import normal

from .functions import DOUBLE, Function, columns


def span_cosines(found, truth):
    """Cosines of the principal angles between the spans of two lists of fields."""
    first, second = (torch.linalg.qr(torch.as_tensor(f).flatten(1).T)[0] for f in (found, truth))
    return torch.linalg.svdvals(first.T @ second)


def costs(d, seed=0, error=None):
    descent = rank_one_factorization(d, 0.03, 0.0, seed)
    if error is not None:
        descent = RankOneFactorization(descent.w, descent.across, error, descent.lr)
    return Function(lambda v: descent.cost(descent.trajectory(v, 20)[:, 1:])), descent


def about_axis(w):
    """All rotations about w: u v^T - v u^T for u, v orthogonal to it."""
    across = torch.linalg.svd(w[None])[2][1:]
    pairs = itertools.combinations(across, 2)
    return [torch.outer(u, v) - torch.outer(v, u) for u, v in pairs]


@pytest.mark.parametrize("d", [3, 6, 10])
def test_rotations_about_w(d):
    module, descent = costs(d)
    found = symmetries(module, matrix_factorization(600, d).x, finite=d == 6)
    assert (found.dimension, found.status) == ((d - 1) * (d - 2) // 2, "exact")
    assert found.interval == (found.dimension, found.dimension)
    assert found.residual < 1e-12
    truth = torch.stack([torch.cat([a, torch.zeros(d, 1, dtype=DOUBLE)], 1) for a in about_axis(descent.w)])
    assert span_cosines(found.generators, truth).min() > 1 - 1e-10
    (piece,) = found.pieces
    assert piece.kind == "rotation"
    assert (piece.space.T @ descent.w).abs().max() < 1e-6
    assert (found.orbit_dimension, found.quotient_dimension, found.rank) == (d - 2, 2, 2)
    if d == 6:
        assert "about the axis" in piece.text
        held = {test.text for test in found.held if test.verdict == "exact"}
        assert "x -> -x" in held
        assert any(text.startswith("reflection of the axis") for text in held)
        assert "x1 -> -x1" not in held


def test_nothing_where_there_is_no_symmetry():
    turn = torch.linalg.qr(normal(6, 6, seed=5))[0]
    module, _ = costs(6, error=turn @ torch.diag(torch.linspace(-1, 1, 6, dtype=DOUBLE)) @ turn.T)
    found = symmetries(module, matrix_factorization(600, 6).x, rtol=0.0)
    assert (found.dimension, found.status, found.pieces) == (0, "none", ())
    assert found.quotient_dimension == 6
    assert [test.text for test in found.held] == ["x -> -x"]  # its cost is even
    random = bnrank.MLP([5, 40, 40, 5], seed=3)
    assert symmetries(random, normal(800, 5), finite=False).status == "none"


CASES = {
    "sphere": (lambda x: columns(x[:, :3].norm(dim=1), x[:, 3]), 3, ["all rotations of (x1, x2, x3), through 0"], 2),
    "two planes": (
        lambda x: columns(x[:, :2].norm(dim=1), x[:, 2:].norm(dim=1)),
        2,
        ["rotation in the plane (x1, x2), through 0", "rotation in the plane (x3, x4), through 0"],
        2,
    ),
    "off the origin": (
        lambda x: columns((x[:, :2] - 0.5).square().sum(1), x[:, 2], x[:, 3]),
        1,
        ["rotation in the plane (x1, x2), through x1 = 0.5, x2 = 0.5"],
        3,
    ),
    "axis": (
        lambda x: columns(0.6 * x[:, 0] + 0.8 * x[:, 1], x.square().sum(1)),
        3,
        ["all rotations about the axis 0.6 x1 + 0.8 x2, through 0"],
        2,
    ),
    "one angle in two planes": (
        lambda x: columns(x[:, :2].square().sum(1), x[:, 2:].square().sum(1), (x[:, :2] * x[:, 2:]).sum(1)),
        1,
        ["rotations, Euclidean lengths kept, about 0: dx1 = -x2, dx2 = x1, dx3 = -x4, dx4 = x3"],
        3,
    ),
    "scale": (lambda x: x / x.norm(dim=1, keepdim=True), 1, ["scaling of x1 by e^{t}, x2 by e^{t}, x3"], 3),
    "squeeze": (
        lambda x: columns(x[:, 0] * x[:, 1], x[:, 2], x[:, 3]),
        1,
        ["scaling of x1 by e^{t}, x2 by e^{-t} about 0"],
        3,
    ),
    "shear": (lambda x: columns(x[:, 1] - x[:, 0] ** 2 / 2, x[:, 2], x[:, 3]), 1, ["dx1 = 1, dx2 = x1"], 3),
    "boosts": (
        lambda x: columns(x[:, 0] ** 2 - x[:, 1] ** 2 - x[:, 2] ** 2, x[:, 3]),
        3,
        ["rotation in the plane (x2, x3)", "dx1 = x2, dx2 = x1", "dx1 = x3, dx3 = x1"],
        2,
    ),
    "ignored": (
        lambda x: columns(x[:, 0] ** 3 + x[:, 1], x[:, 0] * x[:, 1] ** 2),
        2,
        ["translation along x3, x4"],
        2,
    ),
    "everything ignored but one": (lambda x: x[:, :1].sin(), 3, ["translation along x2, x3, x4"], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_planted_groups(name):
    function, dimension, texts, quotient = CASES[name]
    found = symmetries(Function(function), normal(400, 4), finite=False)
    assert (found.dimension, found.status) == (dimension, "exact")
    assert len(found.pieces) == len(texts)
    for text in texts:
        assert any(piece.text.startswith(text) for piece in found.pieces), found.summary()
    assert found.quotient_dimension == quotient
    assert found.rank <= quotient
    assert found.residual < 1e-10
    moved = found.moved(normal(20, 4, seed=1), 0, 0.3)
    before, after = (function(x) for x in (normal(20, 4, seed=1), moved))
    assert (moved - normal(20, 4, seed=1)).abs().max() > 0.1
    assert (after - before).abs().max() < 1e-9 * before.abs().max()


def test_generators_against_slow_jacobians():
    module = Function(lambda x: columns(x[:, :3].norm(dim=1), x[:, 3]))
    x = normal(50, 4)
    found = symmetries(module, x, finite=False)
    jacobian = oracles.input_jacobian(module, x)
    for field in found.generators:
        for sample, here in zip(x, jacobian, strict=True):
            assert (here @ (field[:, :-1] @ sample + field[:, -1])).norm() < 1e-12


def test_singular_values_against_the_definition():
    module, x = bnrank.MLP([3, 20, 4], seed=1), normal(30, 3)
    found = symmetries(module, x, finite=False)
    centered = x - x.mean(0)
    values, turn = torch.linalg.eigh(centered.T @ centered / len(x))
    out = turn * values.sqrt()
    jacobian = oracles.input_jacobian(module, x) @ out
    z = centered @ torch.linalg.inv(out).T
    rows, sizes = [], jacobian.square().sum((1, 2)).mean().sqrt()
    for j, k in itertools.product(range(3), range(4)):
        field = torch.zeros(30, 3, dtype=DOUBLE)
        field[:, j] = z[:, k] if k < 3 else 1.0
        assert abs(float(field.square().sum(1).mean()) - 1) < 1e-12  # so that rms ||v|| = 1
        rows.append(torch.einsum("nmq,nq->nm", jacobian, field).flatten() / 30**0.5)
    slow = torch.linalg.svdvals(torch.stack(rows, 1)).flip(0) * 3**0.5 / sizes
    torch.testing.assert_close(found.values, slow, rtol=1e-8, atol=1e-8)


@settings(max_examples=6, derandomize=True, deadline=None)
@given(seed=st.integers(0, 1000))
def test_affine_changes_of_x_change_no_number(seed):
    matrix, shift = normal(4, 4, seed=seed) + 2 * torch.eye(4), normal(4, seed=seed + 1)
    function = lambda x: columns(x[:, :3].norm(dim=1), x[:, 3])  # noqa: E731
    x = normal(200, 4)
    changed = Function(lambda u: function(u @ torch.linalg.inv(matrix).T - shift))
    one = symmetries(Function(function), x, finite=False, resamples=2)
    two = symmetries(changed, (x + shift) @ matrix.T, finite=False, resamples=2)
    torch.testing.assert_close(one.values, two.values, rtol=1e-6, atol=1e-9)
    assert (one.dimension, one.status) == (two.dimension, two.status) == (3, "exact")
    assert [piece.kind for piece in two.pieces] == ["rotation"]
    assert two.pieces[0].metric == "ellipsoid"
    assert two.quotient_dimension == one.quotient_dimension == 2


def test_units_of_columns_change_no_name():
    units = torch.tensor([1.0, 1000.0, 0.01, 1.0], dtype=DOUBLE)
    module = Function(lambda u: columns((u / units)[:, :3].square().sum(1), u[:, 3]))
    found = symmetries(module, normal(400, 4) * units, finite=False, names=["a", "b", "c", "d"])
    assert found.dimension == 3
    assert found.pieces[0].text.startswith("all rotations of (a, b, c) (of an ellipsoid, semi-axes 1 : 1e+03 : 0.01)")


def test_the_kernel_of_a_first_layer():
    net = bnrank.MLP([6, 4, 30, 5], slope=0.2, seed=0)
    found = symmetries(net, normal(400, 6), finite=False)
    assert [piece.kind for piece in found.pieces] == ["translation"]
    assert (found.dimension, found.quotient_dimension, found.rank) == (2, 4, 4)
    weight = net.weights[0].detach().double()
    assert (weight @ found.generators[..., -1].T).abs().max() < 1e-9


def test_data_in_a_subspace():
    basis = normal(2, 4, seed=1)
    x = normal(300, 2) @ basis + normal(4, seed=2)
    found = symmetries(Function(lambda x: x.square().sum(1, keepdim=True)), x, finite=False)
    assert (found.domain_dimension, found.left_out.shape[1]) == (2, 2)
    assert (basis @ found.left_out).abs().max() < 1e-9
    assert (found.dimension, found.status, found.quotient_dimension) == (1, "exact", 1)
    assert "span 2 of 4" in found.summary()
    moved = found.moved(x, 0, 1.0)
    assert ((moved - x) @ found.left_out).abs().max() < 1e-9
    torch.testing.assert_close(moved.square().sum(1), x.square().sum(1))


def test_constant_and_copied_columns_say_nothing():
    x = normal(300, 3)
    x = torch.cat([x, torch.full((300, 1), 7.0, dtype=DOUBLE), x[:, :1]], 1)
    found = symmetries(Function(lambda x: columns(x[:, :2].norm(dim=1), x[:, 2])), x, finite=False)
    assert (found.domain_dimension, found.dimension) == (3, 1)


def test_given_fields():
    module = Function(lambda x: x[:, :3].square().sum(1, keepdim=True))
    among = symmetries(module, normal(200, 4), fields=rotations(4), finite=False)
    assert (among.dimension, among.pieces[0].kind, len(among.values)) == (3, "rotation", 6)
    turn = lambda x: columns(-x[:, 1], x[:, 0], 0 * x[:, 0], 0 * x[:, 0])  # noqa: E731
    free = symmetries(module, normal(200, 4), fields=[turn, lambda x: x**2], finite=False)
    assert (free.dimension, free.status, free.orbit_dimension) == (1, "exact", 1)
    assert free.pieces[0].text in ("fields[0]", "-fields[0]")
    quadratic = Function(lambda x: (x[:, :1] + x[:, 1:2] ** 3) ** 2)
    cubic = lambda x: columns(-3 * x[:, 1] ** 2, torch.ones(len(x), dtype=DOUBLE))  # noqa: E731
    assert symmetries(quadratic, normal(200, 2), fields=[cubic, lambda x: x], finite=False).dimension == 1


def test_few_samples_are_not_enough():
    net = bnrank.MLP([6, 40, 1], seed=0)
    found = symmetries(net, normal(20, 6), finite=False)  # 20 equations for 42 fields
    assert found.status == "undetermined"
    assert found.dimension == 0
    assert "too few samples" in found.reason


def test_flips_and_swaps():
    module = Function(lambda x: columns(x[:, 0] ** 2 + x[:, 1] ** 2, x[:, 2] * x[:, 3], x[:, 4]))
    found = symmetries(module, normal(500, 5), names=list("abcde"))
    held = {test.text for test in found.held}
    assert {"a -> -a", "b -> -b", "c, d -> -c, -d", "a <-> b", "c <-> d"} <= held
    assert not {"c -> -c", "e -> -e", "x -> -x", "a <-> c"} & held
    assert "a, b -> -a, -b" not in {test.text for test in found.finite}  # follows from two others
    change = next(test for test in found.finite if test.text == "e -> -e").change
    x = normal(500, 5)
    images = x * torch.tensor([1.0, 1, 1, 1, -1])
    pairs = module(x)[:, None] - module(x)[None]
    slow = (module(images) - module(x)).square().sum(1).mean().sqrt() / pairs.square().sum(2).mean().sqrt()
    assert abs(change - float(slow)) < 1e-9


def test_images_off_the_data_are_marked():
    x = normal(400, 2) * 0.1 + 5.0
    found = symmetries(Function(lambda x: columns(x[:, 0] ** 2, x[:, 1])), x)
    flip = next(test for test in found.finite if test.text == "x1 -> -x1")
    assert (flip.verdict, flip.change) == ("off the data", 0.0)
    swap = symmetries(Function(lambda x: columns(x[:, 0] ** 2, x[:, 1])), x, maps=[torch.eye(2)]).finite[-1]
    assert (swap.kind, swap.verdict) == ("given", "exact")


def test_an_estimator_and_several_networks():
    class Estimator:
        def as_module(self):
            return Function(lambda x: x.square().sum(1, keepdim=True))

    assert symmetries(Estimator(), normal(100, 3), finite=False).dimension == 3
    members = [Function(lambda x, s=s: x.square().sum(1, keepdim=True) + s * x[:, :1] ** 3) for s in (0.01, -0.01)]
    found = symmetries(members, normal(100, 3), finite=False)
    assert found.dimension == 3
    assert 0.01 < found.rtol < 0.04  # how much they disagree
    flat = [Function(lambda x, member=member: member(x)[:, 0]) for member in members]  # outputs (N,)
    assert symmetries(flat, normal(100, 3), finite=False, resamples=0).rtol == found.rtol
    assert symmetries(members[0], normal(100, 3), rtol=0.0, finite=False).dimension == 1  # about the first axis


def test_the_same_seed_gives_the_same():
    net, x = bnrank.MLP([3, 20, 4], seed=1), normal(100, 3)
    state = torch.random.get_rng_state()
    first, second = (symmetries(net, x, seed=4, finite=False) for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert np.array_equal(first.fields.counts, second.fields.counts)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"net": "net"}, TypeError, "net: got 'net'"),
        ({"net": [nn.ReLU(), 3]}, TypeError, "net: got 3"),
        ({"x": torch.ones(10)}, ValueError, "x: got shape"),
        ({"x": torch.ones(10, 3)}, ValueError, "x: got 10 samples that are all the same"),
        ({"net": Function(lambda x: 0 * x)}, ValueError, "constant near x"),
        ({"names": ["a"]}, ValueError, "names: got 1, expected one per column, 3"),
        ({"names": "abc"}, TypeError, "names: got 'abc'"),
        ({"fields": "affin"}, ValueError, "did you mean 'affine'"),
        ({"fields": 3}, TypeError, "fields: got 3"),
        ({"fields": [torch.ones(2, 2)]}, ValueError, r"fields\[0\]: got shapes"),
        ({"fields": [torch.zeros(3, 3)]}, ValueError, "fields: got only fields that vanish"),
        ({"fields": [lambda x: x[:, :1]]}, ValueError, r"fields\[0\]: returned"),
        ({"maps": [torch.ones(2, 2)]}, ValueError, r"maps\[0\]: got shapes"),
        ({"y": torch.ones(10, 3)}, ValueError, "y: got 10 rows, expected one per sample, 40"),
        ({"y": torch.ones(40, 2)}, ValueError, "y: got shape"),
        ({"held_out": (None, torch.ones(40, 3))}, ValueError, "held_out: got targets without samples"),
        ({"rtol": -1.0}, ValueError, "rtol: got -1"),
        ({"resamples": 1.5}, TypeError, "resamples: got 1.5"),
        ({"x": normal(70, 60), "net": bnrank.MLP([60, 80, 3])}, ValueError, "fields: got 3660 fields"),
    ],
)
def test_bad_arguments(arguments, error, words):
    settled = {"net": nn.Tanh(), "x": normal(40, 3)} | arguments
    with pytest.raises(error, match=words):
        symmetries(settled.pop("net"), settled.pop("x"), **settled)
