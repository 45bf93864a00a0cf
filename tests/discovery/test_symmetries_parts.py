"""The parts of the search for symmetries: gaps, brackets, blocks, coordinates, and networks that have learned."""

import itertools
import math

import numpy as np
import pytest
import torch

import bnrank
from bnrank.discovery.symmetry_search import algebra, fields, spectrum, symmetries
from bnrank.discovery.symmetry_search.algebra import echelon, rotation_blocks
from bnrank.discovery.symmetry_search.domain import read_domain
from bnrank.discovery.symmetry_search.evidence import along_flows, change
from bnrank.discovery.symmetry_search.fields import whitened
from bnrank.discovery.symmetry_search.problem import Problem, Sample, module_of
from bnrank.discovery.symmetry_search.words import combination, field_text
from bnrank.tasks import Task
from helpers import normal

from .functions import DOUBLE


def turns(n, places, dimension):
    """so(n) on the given coordinates, as fields about 0."""
    found = []
    for i, j in itertools.combinations(places[:n], 2):
        field = torch.zeros(dimension, dimension + 1, dtype=DOUBLE)
        field[i, j], field[j, i] = 1.0, -1.0
        found.append(field)
    return torch.stack(found)


def test_whitened_coordinates_of_any_units():
    x = normal(50, 4) @ normal(4, 4, seed=1) * torch.tensor([1.0, 1e6, 1e-5, 1.0])
    where = whitened(x)
    z = where.of(x)
    torch.testing.assert_close(z.T @ z / 50, torch.eye(4, dtype=DOUBLE))
    torch.testing.assert_close(where.mean + z @ where.out.T, x)
    field = normal(1, 4, 5, seed=2)
    written = where.to_x(field)
    torch.testing.assert_close(where.from_x(written), field)
    moved = x @ written[0, :, :-1].T + written[0, :, -1]
    inside = z @ field[0, :, :-1].T + field[0, :, -1]
    torch.testing.assert_close(moved, inside @ where.out.T)


def test_coordinates_of_a_quotient_do_not_see_what_is_divided_out():
    x = normal(60, 4) @ normal(4, 4, seed=3)
    where = whitened(x)
    ignored = where.into @ torch.eye(4, dtype=DOUBLE)[:, 2:3]
    inner = where.without(ignored / ignored.norm())
    assert inner.dimension == 3
    assert inner.into[:, 2].abs().max() < 1e-12  # functions on the quotient
    assert inner.out[2].abs().max() < 1e-12  # fields are written without x3
    torch.testing.assert_close(inner.into @ inner.out, torch.eye(3, dtype=DOUBLE))


def test_affine_fields_are_orthonormal_over_the_data():
    x = normal(80, 3) @ normal(3, 3, seed=4) + 1
    where = whitened(x)
    family = fields.affine(3)
    eye = torch.eye(3, dtype=DOUBLE).expand(80, 3, 3)
    values = family.rows(eye, x, where.of(x))
    gram = torch.einsum("nip,niq->pq", values, values) / 80
    torch.testing.assert_close(gram, torch.eye(12, dtype=DOUBLE))


def test_given_fields_that_leave_the_span_are_combined():
    x = torch.nn.functional.pad(normal(60, 2), (0, 1))  # in the plane of the first two of three
    family = fields.read_family(fields.rotations(3), whitened(x), x)
    assert len(family) == 1
    free = fields.read_family([lambda x, a=a: x @ a.T for a in fields.rotations(3)], whitened(x), x)
    assert len(free) == 1
    assert free.weights[0, 1:].abs().max() < 1e-9
    leaving = torch.zeros(3, 3, dtype=DOUBLE)
    leaving[0, 1] = leaving[2, 0] = 1.0  # along the plane, and out of it
    with pytest.raises(ValueError, match="leave its affine span"):
        fields.read_family([leaving], whitened(x), x)


def test_brackets_of_a_subalgebra_stay_inside():
    family = fields.affine(5)
    inside = turns(4, range(4), 5).flatten(1) / 2**0.5
    assert fields.bracket_defect(family, inside) < 1e-12
    assert fields.bracket_defect(family, inside[:-1]) > 0.3
    random = torch.linalg.qr(normal(30, 6))[0].T
    assert fields.bracket_defect(family, random) == pytest.approx(math.sqrt(1 - 6 / 30), abs=0.1)
    assert math.isnan(fields.bracket_defect(fields.constant(3), torch.eye(3, dtype=DOUBLE)))


@pytest.mark.parametrize("sizes", [(3,), (2,), (2, 2), (2, 3), (3, 3), (2, 2, 2)])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_blocks_of_rotations(sizes, noise):
    q = sum(sizes) + 1
    turn = torch.linalg.qr(normal(q, q, seed=5))[0]
    parts, start = [], 0
    for n in sizes:
        parts.append(turns(n, range(start, start + n), q)[..., :-1])
        start += n
    planted = turn @ torch.cat(parts) @ turn.T
    mixed = torch.einsum("ab,bij->aij", normal(len(planted), len(planted), seed=6), planted)
    error = normal(*mixed.shape, seed=7) * noise
    blocks = rotation_blocks(mixed + (error - error.transpose(1, 2)) / 2, exact=noise == 0)
    assert sorted(block.shape[1] for block in blocks) == sorted(sizes)
    for block in blocks:
        share = (turn.T @ block).square().sum(1)
        assert ((share < 0.1) | (share > 0.9)).all()


def test_one_turn_of_two_planes_is_no_block():
    both = turns(2, (0, 1), 4) + turns(2, (2, 3), 4)
    assert rotation_blocks(both[..., :-1], exact=True) == []


def test_an_invariant_metric():
    root = normal(3, 3, seed=8) + 2 * torch.eye(3)
    matrices = torch.linalg.inv(root) @ turns(3, range(3), 3)[..., :-1] @ root
    found = algebra.invariant_metric(matrices, torch.eye(3, dtype=DOUBLE), 1e-6)
    expected = root.T @ root
    torch.testing.assert_close(found / found.norm(), expected / expected.norm())
    boost = torch.zeros(1, 2, 2, dtype=DOUBLE)
    boost[0, 0, 1] = boost[0, 1, 0] = 1.0
    assert algebra.invariant_metric(boost, torch.eye(2, dtype=DOUBLE), 1e-6) is None


def gap_of(values, rtol=None, q=3, order=None):
    family = fields.affine(q)
    s = torch.cat([torch.as_tensor(values, dtype=DOUBLE), torch.linspace(0.3, 2, len(family) - len(values))])
    first = turns(3, range(3), 3).flatten(1) / 2**0.5
    rest = torch.linalg.svd(first)[2][len(first) :]
    vectors = torch.cat([first, rest])
    return spectrum.find_gap(s.double(), vectors if order is None else vectors[order], family, rtol)


def test_gaps():
    found = gap_of([0.03, 0.031, 0.033])  # a learned so(3)
    assert (found.count, found.exact) == (3, False)
    assert found.ratio == pytest.approx(0.3 / 0.033)
    assert found.defect < 1e-9
    assert gap_of([1e-15, 2e-16, 3e-15]).exact
    assert gap_of([0.03, 0.031, 0.033], rtol=0.0).count == 0
    assert "is above" in gap_of([0.21, 0.22, 0.23]).reason
    assert "no gap" in gap_of([0.2 * 1.1 ** (i - 8) for i in range(12)]).reason
    assert "does not stand out" in gap_of([0.01, 0.03, 0.09]).reason
    not_closed = gap_of([0.03, 0.031, 0.033], order=[3, 4, 5, 0, 1, 2, *range(6, 12)])
    assert (not_closed.count, "not closed under brackets" in not_closed.reason) == (0, True)
    assert gap_of([0.04]).count == 0  # one field: a ratio below 10 is not enough
    assert gap_of([0.04], rtol=0.04).count == 1
    assert gap_of([0.02]).count == 1


def test_directions_that_matter_only_together_are_not_ignored():
    weights = torch.full((9,), 0.02, dtype=DOUBLE)

    class Sum(torch.nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], (x[:, 1:] ** 2 @ weights)], 1)

    found = symmetries(Sum(), normal(800, 10), rtol=0.03, finite=False)
    assert found.translations.gap.count == 9  # each changes f by little
    assert (found.translations.status, len(found.translations.vectors)) == ("undetermined", 0)  # one may be ignored
    assert "shuffling" in found.translations.reason
    assert found.interval == (36, 36)
    assert found.dimension == 36  # rotations of the nine
    assert found.status == "approximate"  # f is known up to an error
    assert found.pieces[0].in_model == "exact"


def test_words():
    assert combination(torch.tensor([1.0, -0.5, 1e-5]), ["a", "b", "c"]) == "a - 0.5 b"
    assert combination(torch.zeros(2), ["a", "b"]) == "0"
    many = combination(torch.arange(1.0, 10.0), [f"x{i}" for i in range(9)])
    assert many.endswith("+ 3 more")
    assert field_text(torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]), ["a", "b"]) == "da = -b, db = -1"
    tall = torch.tensor([[0.0, 1e-6, 0.0], [1e6, 0.0, 0.0]])  # a of size 1, b of size 1e6
    assert field_text(tall, ["a", "b"], torch.tensor([1.0, 1e6])) == "da = 1e-06 b, db = 1e+06 a"
    rows = normal(2, 5)
    found = echelon(rows)
    assert torch.linalg.matrix_rank(torch.cat([rows, found])) == 2
    assert (found == 1).sum() == 2


def learned(function, d, seed=0):
    x = normal(900, d, seed=seed)
    y = function(x)
    task = Task(x[:600].float(), y[:600].float(), x[600:].float(), y[600:].float(), name="learned")
    net = bnrank.MLP([d, *[40] * 5, y.shape[1]], seed=seed)
    run = bnrank.train(net, task, ridge=1e-4, steps=1200, members=2, seed=seed, progress=False)
    return [run.network(i) for i in range(2)], task


def test_networks_that_learned_a_rotation():
    networks, task = learned(lambda x: torch.stack([x[:, :3].norm(dim=1), x[:, 3]], 1), 4)
    found = symmetries(networks[0], task.x, held_out=(task.x_test, task.y_test))
    assert (found.dimension, found.status) == (3, "approximate"), found.summary()
    assert found.residual < 0.2
    assert "change f by" in found.reason
    lying = symmetries(networks[0], task.x, rtol=1e-3, finite=False)
    assert (lying.dimension, lying.status) == (0, "none")
    assert found.pieces[0].kind == "rotation"
    assert found.quotient_dimension == 2
    truth = torch.eye(4, dtype=DOUBLE)[:, :3]
    assert torch.linalg.svdvals(truth.T @ torch.linalg.qr(found.pieces[0].space)[0]).min() > 0.99
    together = symmetries(networks, task.x, held_out=task.x_test, finite=False)
    assert together.dimension == 3
    assert together.residual < found.residual  # less noise
    strict = symmetries(networks[0], task.x, rtol=0.0, finite=False)
    assert (strict.dimension, strict.status) == (0, "none")


def test_networks_that_learned_no_symmetry():
    networks, task = learned(lambda x: torch.sin(x) + 0.5 * x * x.roll(1, 1), 4, seed=3)
    found = symmetries(networks[0], task.x, held_out=(task.x_test, task.y_test))
    assert found.dimension == 0
    assert symmetries(networks, task.x, held_out=task.x_test, finite=False).dimension == 0


def test_networks_that_learned_boosts():
    networks, task = learned(lambda x: torch.stack([x[:, 0] ** 2 - x[:, 1] ** 2 - x[:, 2] ** 2], 1), 3, seed=5)
    found = symmetries(networks, task.x, held_out=(task.x_test, task.y_test), finite=False)
    assert (found.dimension, found.status) == (3, "approximate"), found.summary()
    assert found.pieces[0].text.startswith("rotation in the plane (x2, x3)")
    assert found.orbit_dimension is None
    # carried along a boost, samples leave the data, where the networks are wrong: that says nothing about f
    field = torch.zeros(3, 4, dtype=DOUBLE)
    field[0, 1] = field[1, 0] = 1.5
    module, x = module_of(networks), task.x_test.double()
    assert change(module, x, field, whitened(task.x.double())) < 0.5 * change(module, x, field)


def test_a_change_is_measured_inside_the_data():
    x = normal(300, 2)
    where, module = whitened(x), torch.nn.Identity()
    stretch = torch.zeros(2, 3, dtype=DOUBLE)
    stretch[0, 0] = math.log(1.5)
    images = x * torch.tensor([1.5, 1.0])
    radius = sorted(where.of(x).norm(dim=1).tolist())
    limit = radius[284] + 0.05 * (radius[285] - radius[284])  # 0.95 of the way along 299 intervals: place 284.05
    inside = [i for i in range(300) if where.of(images[i : i + 1]).norm() <= limit]
    assert 200 < len(inside) < 300
    moved = torch.stack([(images[i] - x[i]).square().sum() for i in inside]).mean()
    size = (x[:, None] - x[None]).square().sum(2).mean()
    assert change(module, x, stretch, where) == pytest.approx(float((moved / size).sqrt()))
    assert math.isnan(change(module, x, 20 * stretch, where))


def test_a_field_within_the_error_without_a_clear_gap_is_left_open():
    x = normal(400, 3)
    nearly = lambda x: torch.stack([x[:, 0] ** 2 + x[:, 1] ** 2 + 0.05 * x[:, 0], 0.3 * x[:, 2]], 1)  # noqa: E731

    class Rings(torch.nn.Module):
        def forward(self, x):
            return nearly(x)

    family, where = fields.affine(3), whitened(x)
    turn = torch.zeros(1, 3, 4, dtype=DOUBLE)
    turn[0, 0, 1], turn[0, 1, 0] = 1.0, -1.0
    vector = where.from_x(turn).flatten(1)
    sample = Sample(x, where.of(x), torch.zeros(400, 2, 3, dtype=DOUBLE))
    empty = torch.zeros(0, 12, dtype=DOUBLE)
    nothing = spectrum.Gap(0, 4.0, False, math.nan, 1.5, "does not stand out", 1)
    found = spectrum.Found(nothing, torch.ones(12), empty, np.zeros(3), math.nan, "none", "no gap", vector)

    def tested(rtol):
        return along_flows(
            found,
            family,
            where,
            sample,
            Problem(Rings(), where, sample, sample, rtol, tuple("abc"), 0, 0, read_domain(x)),
        )

    left_open = tested(0.1)
    assert left_open.status == "undetermined"
    assert "moving samples along 1 of the weakest fields changes f by only 0.01" in left_open.reason
    assert left_open.interval == (0, 1)
    assert len(left_open.vectors) == 0
    assert tested(0.001).status == "none"
    assert tested(None).status == "none"


@pytest.mark.parametrize(
    ("error", "verdicts"),
    [
        (None, ["exact", "approximate", "no"]),
        (0.0, ["exact", "no", "no"]),
        (0.02, ["exact", "no", "no"]),
        (0.05, ["exact", "approximate", "no"]),
        (0.2, ["exact", "approximate", "undetermined"]),
    ],
)
def test_what_a_large_error_hides_does_not_count_as_held(error, verdicts):
    class Bent(torch.nn.Module):  # flips of a change nothing, of b a little, of c by more than a tenth
        def forward(self, x):
            return (x[:, 0] ** 2 + 0.05 * x[:, 1] + 0.25 * x[:, 2])[:, None]

    found = symmetries(Bent(), normal(400, 3), rtol=error, names=list("abc"))
    flips = {test.text: test for test in found.finite if test.kind == "sign flip"}
    tests = [flips[f"{name} -> -{name}"] for name in "abc"]
    assert 0.03 < tests[1].change < 0.075
    assert 0.1 < tests[2].change < 0.3
    assert [test.verdict for test in tests] == verdicts
    assert set(found.held) == {test for test in found.finite if test.verdict in ("exact", "approximate")}
    unknown = sum(test.verdict == "undetermined" for test in found.finite)
    assert (f"; {unknown} change f by more than 0.1, but within its error" in found.summary()) == (unknown > 0)
    assert [test.verdict for test in found.finite if test.change > 0.1 and test.verdict == "approximate"] == []
