"""What is said of symmetries of models that were learned from data, and of columns with ranges and few values."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.discovery import BottleneckRegressor
from bnrank.discovery.symmetry_search import evidence, logs, search, symmetries
from bnrank.discovery.symmetry_search.domain import read_domain
from bnrank.discovery.symmetry_search.fields import affine
from bnrank.discovery.symmetry_search.pieces import Piece
from bnrank.discovery.symmetry_search.problem import read_problem
from helpers import normal

from .functions import DOUBLE, Function, columns

NAMES = ["density", "velocity", "length", "viscosity"]


def uniform(n, d, seed=0):
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def flags(n, seed=0, share=0.5):
    return (uniform(n, 1, seed + 50) < share).double()


def blurred(function, size):
    """A function with a little that no symmetry leaves alone, as a learned network has."""
    return Function(lambda x: function(x) + size * (7 * x).sin().sum(1, keepdim=True))


# none, and undetermined -----------------------------------------------------------------------------------------------


def test_small_values_without_a_gap_are_not_none():
    second = lambda x: 0.1 * x[:, 1].sin() + 0.05 * (2 * x[:, 2]).sin()  # noqa: E731
    weak = Function(lambda x: columns(x[:, 0].sin() + 0.15 * x[:, 1] ** 2 + 0.2 * x[:, 2] * x[:, 1], second(x)))
    found = symmetries(weak, normal(400, 3), finite=False)
    assert (found.dimension, found.status) == (0, "undetermined"), found.summary()
    assert found.interval[1] >= 1
    assert found.summary().startswith(f"0 to {found.interval[1]} infinitesimal")
    assert "may leave f unchanged" in found.reason
    exact = symmetries(weak, normal(400, 3), finite=False, rtol=0.0)
    assert (exact.status, exact.interval) == ("none", (0, 0))


def test_none_needs_larger_changes_than_the_error():
    x = normal(400, 3)
    module = Function(lambda x: x.sin() + 0.5 * x * x.roll(1, 1))
    precise, noisy = (symmetries(module, x, rtol=rtol, finite=False) for rtol in (0.02, 0.9))
    assert (precise.status, precise.interval) == ("none", (0, 0))
    assert "every field changes f" in precise.reason
    assert (noisy.status, noisy.dimension) == ("undetermined", 0)
    assert noisy.interval[1] >= 1
    smallest = float(precise.fields.values[0])
    assert smallest > 0.2  # scores alone exclude all fields
    weakest = float(precise.reason.split("changes f by ")[1].split()[0])
    assert 1.5 * 0.02 < weakest < 1.5 * 0.9


@pytest.mark.parametrize(
    ("seed", "cubic", "rtol", "status", "words"),
    [
        (1, 0.05, None, "undetermined", "% of resamples find some"),
        (1, 0.05, 0.001, "none", "change f by 0.05"),
        (1, 0.05, 0.2, "approximate", "gap 6.12"),
        (0, 0.3, 0.2, "undetermined", "% of resamples find some"),
        (0, 0.3, 0.001, "none", "every field changes f"),
    ],
)
def test_resamples_that_find_some_leave_it_open_or_it_is_excluded_by_moving(seed, cubic, rtol, status, words):
    module = Function(lambda x: columns(x[:, 0] ** 2 + x[:, 1] ** 2 + cubic * x[:, 0] ** 3, x[:, 2]))
    found = symmetries(module, normal(60, 3, seed=seed), rtol=rtol, finite=False)
    interval = {"undetermined": (0, 1), "none": (0, 0), "approximate": (1, 1)}[status]
    assert (found.status, found.interval, found.dimension) == (status, interval, interval[0])
    assert words in found.reason


def test_what_f_does_off_the_data_does_not_count():
    x = 1 + 3 * uniform(600, 2)  # shuffled along log x1 + log x2, a sample of this square leaves it
    off = lambda x: (x - 4).clamp(min=0).sum(1) + (1 - x).clamp(min=0).sum(1)  # noqa: E731
    module = Function(lambda x: columns(x[:, 0] / x[:, 1] + 0.5 * off(x)))
    found = symmetries(blurred(module, 0.002), x, rtol=0.01, finite=False)
    assert (found.dimension, found.status) == (1, "approximate"), found.reason


# in the model, and in the data ----------------------------------------------------------------------------------------


def test_exact_in_a_model_is_not_exact_in_the_data():
    x = normal(300, 4)
    module = nn.Linear(4, 1).double()  # a fit that ignores three directions exactly
    y = module(x).detach() + 0.1 * normal(300, 1, seed=1) * module(x).detach().std()
    found = symmetries(module, x[:200], held_out=(x[200:], y[200:]))
    assert (found.dimension, found.status) == (3, "approximate")
    assert [(piece.in_model, piece.in_data) for piece in found.pieces] == [("exact", "within the held-out error")]
    assert all(test.in_data == "within the held-out error" for test in found.held)
    text = found.summary()
    assert "in the model f: exact" in text
    assert "in the data: within the held-out error" in text
    worse = x[200:, :1] ** 2 + y[200:] * 0.3  # data that the model does not explain
    poor = symmetries(module, x[:200], held_out=(x[200:], worse))
    assert {piece.in_data for piece in poor.pieces} == {"not shown"}
    alone = symmetries(module, x)
    assert (alone.status, {piece.in_data for piece in alone.pieces}) == ("exact", {"not shown"})
    assert "no data to compare with" in alone.summary()
    given = symmetries(module, x, y=y)
    assert {piece.in_data for piece in given.pieces} == {"within the error on the rows of y"}


def test_changes_are_judged_by_the_error():
    given = read_problem(nn.Tanh(), (normal(20, 2), None, None), 0.1, None, (20, 0, 0))
    said = [evidence.judged(change, given) for change in (0.0, 0.149, 0.151, math.nan)]
    assert said == ["within the given error", "within the given error", "violated", "not shown"]
    large = dataclasses.replace(given, rtol=0.5)
    assert [evidence.judged(change, large) for change in (0.1, 0.8)] == ["not shown", "violated"]
    assert evidence.judged(0.0, dataclasses.replace(given, rtol=None)) == "not shown"


def test_a_piece_is_judged_along_each_of_its_generators():
    x = torch.cat([normal(200, 1), -flags(200, share=0.2), normal(200, 1, seed=2)], 1)
    moves = torch.zeros(2, 3, 4, dtype=DOUBLE)  # translations along x1, and x2, where most samples leave the range
    moves[0, 0, 3] = moves[1, 1, 3] = 1.0
    piece = Piece("translation", "", moves, 0.01, torch.eye(3, 2, dtype=DOUBLE))
    for slope, alone, both in ((0.0, "within the given error", "not shown"), (2.0, "violated", "violated")):
        module = Function(lambda x, slope=slope: columns(slope * x[:, 0] + 3 * x[:, 1] + x[:, 2]))  # f changes with x2
        given = read_problem(module, (x, None, None), 0.1, None, (200, 0, 0))
        assert search._judged(dataclasses.replace(piece, generators=moves[:1]), given).in_data == alone
        assert search._judged(dataclasses.replace(piece, generators=moves[1:]), given).in_data == "not shown"
        assert search._judged(piece, given).in_data == both


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([math.nan] * 4 + [0.01, 0.03, 0.02, 0.01], 0.03),
        ([math.nan] * 5 + [0.01] * 3, math.nan),
        ([math.nan] * 7 + [0.9], 0.9),  # one is enough to see that f changes
        ([math.nan] * 8, math.nan),
    ],
)
def test_fields_are_judged_together_along_half_of_the_combinations(monkeypatch, changes, expected):
    given = read_problem(nn.Tanh(), (normal(50, 2), None, None), 0.1, None, (50, 0, 0))
    sizes = iter(changes)
    monkeypatch.setattr(evidence, "change_along", lambda *_: next(sizes))
    largest, said = evidence._joint(torch.eye(6, dtype=DOUBLE)[:2], affine(2), given.where, given.sample, given)
    assert largest == pytest.approx(expected, nan_ok=True)
    assert ("leave the data" in said) == math.isnan(expected)


def test_the_error_of_a_regressor_is_that_of_its_held_out_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(28, 3))
    y = x[:, :1] + 0.3 * rng.normal(size=(28, 1))
    fitted = BottleneckRegressor(progress=False).fit(x, y)  # linear below 30 rows
    found = symmetries(fitted, x)
    assert found.rtol == pytest.approx(math.sqrt(fitted.held_out_[1] / fitted.held_out_[0]))
    assert (found.error_source, found.learned) == ("held-out error", True)
    assert found.status != "exact"


# ranges and values of columns -----------------------------------------------------------------------------------------


def test_flips_of_positive_and_of_two_valued_columns_are_off_the_data():
    x = torch.cat([flags(400), 0.1 + uniform(400, 1, 1), normal(400, 1)], 1)
    module = Function(lambda x: columns(x[:, 0] ** 2 + x[:, 1] ** 2, x[:, 2].abs()))
    found = symmetries(module, x, names=["flag", "dose", "other"])
    held = {test.text for test in found.held}
    assert "other -> -other" in held
    assert not {text for text in held if "flag" in text or "dose" in text}
    tests = {test.text: test for test in found.finite}
    for text in ("flag -> -flag", "dose -> -dose"):  # f is even in them, but no sample has negative values
        assert (tests[text].change, tests[text].verdict) == (0.0, "off the data")
    assert tests["flag: 0 <-> 1"].verdict == "no"
    rare = torch.cat([flags(400, share=0.05), x[:, 1:]], 1)  # most samples do not move
    assert {test.text for test in symmetries(module, rare, rtol=0.0).held} == {"x3 -> -x3"}


def test_values_that_are_exchanged():
    x = torch.cat([flags(300) + 1, 2 * flags(300, 1) - 1, normal(300, 1)], 1)
    module = Function(lambda x: columns((x[:, 0] - 1.5).abs() + x[:, 2], x[:, 1] ** 2 * x[:, 2] ** 3))
    held = {test.text for test in symmetries(module, x).held}
    assert {"x1: 1 <-> 2", "x2 -> -x2"} <= held
    assert "x1 -> -x1" not in held
    assert not {text for text in held if text.endswith("about the mean")}


def test_columns_of_few_values_are_not_turned_or_scaled():
    x = torch.cat([flags(400), flags(400, 1), normal(400, 2)], 1)
    found = symmetries(Function(lambda x: columns(x[:, :2].square().sum(1), x[:, 2:].norm(dim=1))), x)
    assert found.dimension == 1
    assert [piece.text for piece in found.pieces] == ["rotation in the plane (x3, x4), through 0: 1 generator"]
    free = symmetries(Function(lambda x: columns(x[:, :2].square().sum(1), x[:, 2:].norm(dim=1))), normal(400, 4))
    assert free.dimension == 2
    only = symmetries(Function(lambda x: x[:, :1] * x[:, 1:]), x[:, :2])
    assert (only.dimension, only.status) == (0, "none")
    assert "take few values" in only.reason


def test_ignored_directions_that_lead_nowhere_are_beyond_the_data():
    x = torch.cat([flags(400), normal(400, 1), normal(400, 1, seed=2)], 1)
    steps = symmetries(Function(lambda x: columns(x[:, 1] + x[:, 0])), x, finite=False)  # one up, the other down
    assert (steps.dimension, steps.status, steps.beyond) == (2, "exact", ())
    grid = torch.cat([flags(400), (5 * uniform(400, 1, 1)).floor(), normal(400, 1)], 1)
    halves = symmetries(Function(lambda x: columns(x[:, 1] + 0.5 * x[:, 0], x[:, 2])), grid, finite=False)
    assert (halves.dimension, halves.status, halves.interval) == (0, "none", (0, 0))
    assert [piece.text for piece in halves.beyond] == ["translation along x1 - 0.5 x2"]
    assert "only beyond the data, not counted" in halves.summary()
    unused = symmetries(Function(lambda x: columns(x[:, 1], x[:, 2])), grid, finite=False)
    assert [piece.text for piece in unused.pieces] == ["translation along x1"]


def slow_share(x, images):
    """Among the samples of which a column moves, the share whose image is a value that occurs."""
    shares = []
    for old, new in zip(x.T.tolist(), images.T.tolist(), strict=True):
        moved = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        if moved:
            few = len(set(old)) <= 10
            inside = [b in set(old) if few else min(old) <= b <= max(old) for _, b in moved]
            shares.append(sum(inside) / len(moved))
    return min(shares, default=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_shares_against_a_loop(seed):
    x = torch.cat([flags(90, seed), (4 * uniform(90, 1, seed)).floor(), normal(90, 2, seed=seed)], 1)
    domain = read_domain(x)
    assert domain.stepped == [0, 1]
    for images in (-x, x + 1, 1 - x, x * torch.tensor([1.0, 1, 1, 2]), x[:, [0, 1, 3, 2]], x):
        assert domain.share(x, images) == pytest.approx(slow_share(x, images))


# logarithms -----------------------------------------------------------------------------------------------------------


def reynolds(x):
    number = (x[:, 0] * x[:, 1] * x[:, 2] / x[:, 3]).log()
    return ((0.8 * number).tanh() + 0.3 * number)[:, None]


def test_scalings_of_positive_columns_are_found_where_the_function_is_only_nearly_scaled():
    x = (1.4 * uniform(500, 4) - 0.7).exp()
    module = blurred(reynolds, 0.004)
    for rtol in (None, 0.03):
        found = symmetries(module, x, rtol=rtol, names=NAMES, finite=False)
        assert (found.dimension, found.status) == (3, "approximate"), found.summary()
        assert found.quotient_dimension == 1
        assert [piece.kind for piece in found.pieces] == ["scaling"]
        assert found.generators[..., -1].abs().max() == 0
        powers = found.generators[:, range(4), range(4)] @ torch.tensor([1.0, 1, 1, -1], dtype=DOUBLE)
        assert powers.abs().max() < 1e-9  # rounded: the Reynolds number is exactly kept
    assert "logarithms" in found.reason
    moved = found.moved(x, 0, 0.1)
    torch.testing.assert_close(reynolds(moved), reynolds(x))
    strict = symmetries(module, x, rtol=0.0, names=NAMES, finite=False)
    assert (strict.dimension, strict.status) == (0, "none")


def test_the_search_in_logarithms_against_networks_of_logarithms():
    x = (1.4 * uniform(200, 3) - 0.7).exp()
    net = bnrank.MLP([3, 30, 2], seed=1).double()
    given = read_problem(net, (x, None, None), None, None, (500, 3, 0))
    found = logs.searched(given, [0, 1, 2], 3000)
    inside = symmetries(Function(lambda u: net(u.exp())), x.log(), finite=False)
    torch.testing.assert_close(found.found.values, inside.translations.values, rtol=1e-6, atol=1e-9)


def test_columns_whose_logarithms_are_searched():
    x = torch.cat([uniform(300, 1) + 0.1, flags(300) + 1, normal(300, 1)], 1)
    x = torch.cat([x, 100 + uniform(300, 1, 1), uniform(300, 2, 2) + 1], 1)
    given = read_problem(nn.Tanh(), (x, None, None), None, None, (500, 0, 0))
    none = torch.zeros(6, 0, dtype=DOUBLE)
    assert logs.positive_columns(given, none) == [0, 4, 5]
    ignored = torch.zeros(6, 1, dtype=DOUBLE)
    ignored[4] = 1.0
    assert logs.positive_columns(given, ignored) == [0, 5]
    ignored[5] = 1.0
    assert logs.positive_columns(given, ignored) == []
