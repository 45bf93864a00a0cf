"""F14: its claims on planted lines, networks and families, what it computes against plain formulas, and a tiny run."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bnrank.figures.f14_geodesics import computation as geodesics
from bnrank.figures.f14_geodesics import figure as f14
from bnrank.figures.f14_geodesics.computation import Family, Line, Trained
from bnrank.figures.f14_geodesics.kernels import angle, factors
from bnrank.networks import MLP
from bnrank.tasks import low_rank_map
from bnrank.theory.constructions import diverging_geodesic, linear
from helpers import failing

STEPS = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))


def line(title, **changes):
    planted = {"rank": 4, "logs": np.zeros((5, 4)), "bent": 1e-12, "distances": STEPS, "mixed": 0.3, "norm": 30.0}
    return Line(title, **{**planted, "kernels": (), **changes})


def bowed(by):
    """Distances of a path whose third kernel lies ``by`` further from both neighbors."""
    d = STEPS.copy()
    d[2, 1] = d[1, 2] = d[2, 3] = d[3, 2] = 1 + by
    return d


def all_lines(**changes):
    """Planted: everything as it must be, with changes of one line by its first word."""
    held = {
        "optimal (T8)": {},
        "completely positive (T7)": {"bent": 0.2, "distances": bowed(0.1), "mixed": 1e-15, "norm": 30.5},
        "trained with a ridge": {},
        "optimal (T8), rank 2": {"norm": 20.0},
        "trained with a ridge, rank 2": {"norm": 20.0},
    }
    return [line(title, **(planted | changes.get(title, {}))) for title, planted in held.items()]


@pytest.mark.parametrize(
    ("title", "change", "fails"),
    [
        ("optimal (T8)", {}, []),
        ("optimal (T8)", {"bent": 2e-8}, [0]),
        ("optimal (T8), rank 2", {"bent": math.nan}, [0]),
        ("optimal (T8), rank 2", {"distances": bowed(1e-7)}, [1]),
        ("trained with a ridge", {"bent": 2e-8}, [2]),
        ("trained with a ridge, rank 2", {"bent": 2e-8}, [2]),
        ("trained with a ridge", {"distances": bowed(1e-7)}, [3]),
        ("trained with a ridge, rank 2", {"distances": bowed(math.inf)}, [3]),
        ("completely positive (T7)", {"mixed": 1e-7}, [4]),
        ("completely positive (T7)", {"distances": STEPS}, [5]),
        ("completely positive (T7)", {"norm": 30.0}, [6]),
        ("optimal (T8)", {"norm": 31.0}, [6]),
    ],
)
def test_claims_on_lines(title, change, fails):
    assert failing(f14.line_claims(all_lines(**{title: change}))) == fails


def network(depth, angles):
    """Plant a network: a step at either end, equal ones between, and kernels turned by 1 / L."""
    ends, inside = angles
    steps = np.full(depth, inside)
    steps[[0, -1]] = ends
    values = np.tile([1.0, 0.5, 0.005], (depth + 1, 1))
    planted = []
    for _ in range(depth + 1):
        phi = 1 / depth
        planted.append(torch.tensor([[math.cos(phi)], [math.sin(phi)]], dtype=torch.float64))
    held = tuple(planted)
    return Trained(depth, 1.0, 0.1, 2.0 * depth, held, steps, steps, values, np.full(depth, 0.01))


def test_claims_on_trained_networks_hold():
    """Middle steps go like 1/L, the steps at the ends do not change."""
    found = [network(12, (0.5, 0.04)), network(24, (0.5, 0.02)), network(48, (0.5, 0.01))]
    assert failing(f14.trained_claims(found)) == []


def steps(first, last, spike=0.0):
    """Plant 48 steps: one at each end, 0.01 between, and one in the middle larger by ``spike``."""
    inside = np.full(48, 0.01)
    inside[[0, 20, -1]] = first, 0.01 + spike, last
    return inside


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"values": np.tile([1.0, 0.5, 0.03], (49, 1))}, [0]),
        ({"values": np.where(np.arange(49)[:, None] == 32, [1.0, 0.5, 0.03], [1.0, 0.5, 1e-5])}, [0]),
        ({"values": np.where(np.arange(49)[:, None] == 33, [1.0, 0.5, 0.03], [1.0, 0.5, 1e-5])}, []),
        ({"bent": np.where(np.arange(48) == 16, 0.06, 0.0)}, [1]),
        ({"bent": np.where(np.arange(48) == 15, 0.06, 0.0)}, []),
        ({"bent": np.where(np.arange(48) == 16, math.nan, 0.0)}, [1]),
        ({"angles": np.full(48, 0.5)}, [2, 3, 4]),
        ({"angles": steps(0.5, 0.5, spike=0.02)}, []),
        ({"angles": steps(0.5, 0.06)}, [3, 4]),
        ({"angles": steps(0.06, 0.5)}, [3, 4]),
        ({"angles": steps(0.5, 0.2)}, [4]),
        ({"angles": steps(0.2, 0.5)}, [4]),
        ({"angles": steps(0.3, 0.5)}, []),
    ],
)
def test_claims_on_trained_networks_fail_where_they_should(change, fails):
    found = [network(12, (0.5, 0.04)), network(24, (0.5, 0.02)), network(48, (0.5, 0.01))]
    found[-1] = dataclasses.replace(found[-1], **change)
    assert failing(f14.trained_claims(found)) == fails


DEPTHS = np.array([10, 100, 316, 1000, 3162, 10_000])


def spread_excess(gamma):
    u = (DEPTHS - 2) * DEPTHS**-gamma
    return 12.0 * DEPTHS ** (1 - 2 * gamma) + 2 * np.exp(-u) + np.exp(-2 * u)


def spread(gamma, **changes):
    """Plant a family as T31 says it is; the kernels a constant factor off."""
    u = (DEPTHS - 2) * DEPTHS**-gamma
    excess = spread_excess(gamma)
    planted = {"gamma": gamma, "stretch": u, "excess": excess, "growth": DEPTHS ** (1 - gamma) - 0.3}
    return planted_family(planted | changes)


def calm(**changes):
    u = np.full(len(DEPTHS), 1.0)
    excess = 12 / DEPTHS + 2 * np.exp(-1) + np.exp(-2)
    return planted_family({"gamma": math.nan, "stretch": u, "excess": excess, "growth": u - 0.3} | changes)


def planted_family(planted):
    floors = planted["excess"] - 0.1
    rest = {"title": "planted", "depths": DEPTHS, "errors": 1e-16 * DEPTHS, "floors": floors, "courses": ()}
    return Family(**(rest | planted))


@pytest.mark.parametrize(
    ("change", "calmer", "fails"),
    [
        ({}, {}, []),
        ({"excess": spread_excess(0.75) * np.where(DEPTHS < 1000, 2, 1)}, {}, []),
        ({"growth": DEPTHS**0.25 * np.where(DEPTHS < 1000, 2, 1)}, {}, []),
        ({"errors": 3e-16 * DEPTHS}, {}, [0]),
        ({}, {"errors": np.full(6, math.nan)}, [0]),
        ({"excess": np.array([9, 1, 2, 0.5, 0.1, 0.01])}, {}, [1, 2, 3]),
        ({"excess": 12.0 * DEPTHS**-0.45}, {}, [2, 3]),
        ({"growth": 1.05 * DEPTHS**0.25}, {}, [4]),
        ({"growth": np.log(DEPTHS)}, {}, [4]),
        ({}, {"growth": np.log(DEPTHS)}, [5]),
        ({}, {"excess": 12.0 / DEPTHS}, [6]),
        ({"floors": np.array([math.nan, 12, math.nan, 0, 0, 0])}, {}, [7]),
    ],
)
def test_claims_on_families(change, calmer, fails):
    found = [spread(0.6), spread(0.75, **change), spread(0.9), calm(**calmer)]
    if "floors" not in change:
        found = [dataclasses.replace(f, floors=f.excess - 0.1) for f in found]
    assert failing(f14.diverging_claims(found)) == fails


def test_gammas_whose_kink_still_costs_are_left_out_by_name():
    """At gamma = 0.9 and L = 10,000, 2 e^-u is twenty times 12 L eps^2."""
    claims = f14.diverging_claims([spread(0.6), spread(0.75), spread(0.9), calm()])
    assert "(gamma 0.6, 0.75)" in claims[2].name
    claims = f14.diverging_claims([spread(0.9), calm()])
    assert "(gamma none)" in claims[2].name
    assert failing(claims) == [2]


def test_lines_are_read_from_any_linear_network():
    """Two layers of a rotation and a scaling, by hand: A_1^T A_1 = diag(4, 1), A^T A = diag(16, 9)."""
    net = linear(torch.eye(2, dtype=torch.float64), 2)
    with torch.no_grad():
        net.weights[0].copy_(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        net.weights[1].copy_(torch.tensor([[3.0, 0.0], [0.0, 2.0]]))
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = geodesics.read_line("by hand", net, x)
    log = math.log
    np.testing.assert_allclose(found.logs, [[0, 0], [log(4), 0], [log(16), log(9)]], atol=1e-12)
    assert found.bent == pytest.approx(log(3) / math.hypot(log(16), log(9)))
    assert found.distances[0, 2] == pytest.approx(math.hypot(log(16), log(9)))
    assert found.length == pytest.approx((log(4) + math.hypot(log(4), log(9))) / math.hypot(log(16), log(9)))
    off = [abs(d / found.distances[0, 2] - 0.5) for d in (log(4), math.hypot(log(4), log(9)))]
    assert found.off == pytest.approx(max(off))
    assert found.norm == pytest.approx(5 + 13)
    k = [(x * torch.tensor(s, dtype=torch.float64)) @ x.T / 7 for s in ([1, 1], [4, 1], [16, 9])]
    assert found.mixed == pytest.approx(float((k[1] - (k[0] + k[2]) / 2).norm() / k[2].norm()))


def test_families_against_the_formula_of_the_norm():
    found = geodesics.family("any", (10, 64), 0.75, None, 10)
    eps, u = 64**-0.75, 62 * 64**-0.75
    norm = 6 + 2 * math.exp(-u) + math.exp(-2 * u) + 62 * (2 * math.cosh(2 * eps) + math.cosh(4 * eps))
    assert found.excess[1] == pytest.approx(norm - 192, rel=1e-9)
    assert found.stretch[1] == pytest.approx(u)
    assert 0 < found.excess[0] - found.floors[0] < found.excess[0]
    assert math.isnan(found.floors[1])
    x = torch.rand(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norms = [float(torch.linalg.matrix_norm(f, 2)) for f in factors(diverging_geodesic(64), x)]
    expected = [2 * math.log(norm / norms[0]) for norm in norms]
    np.testing.assert_allclose(found.courses[1], expected, atol=1e-9)
    assert found.growth[1] == pytest.approx(expected[32])
    bounded = geodesics.family("any", (10, 64), math.nan, 2.0, 0)
    np.testing.assert_allclose(bounded.stretch, 2)


def test_the_cheapest_stretch_is_a_stationary_point_of_the_norm():
    """And no network of the family costs less."""
    depths = (100, 10_000)
    u, least = geodesics.cheapest_stretch(depths)
    for depth, at, excess in zip(depths, u, least, strict=True):
        eps = at / (depth - 2)
        slope = 4 * math.sinh(2 * eps) + 4 * math.sinh(4 * eps) - 2 * math.exp(-at) - 2 * math.exp(-2 * at)
        assert abs(slope) < 1e-3 * math.exp(-at)
        near = geodesics.family("any", (depth,), math.nan, float(at), 0) if depth == 100 else None
        assert near is None or near.excess[0] == pytest.approx(excess, rel=1e-9)
    assert least[0] < geodesics.family("any", (100,), 0.75, None, 0).excess[0]
    assert 1 < u[0] < u[1] < math.log(1e4)


def test_kernels_of_two_depths_are_compared_at_the_same_ratio():
    one, other = network(3, (1, 1)), network(6, (1, 1))
    turned = [torch.tensor([[math.cos(t)], [math.sin(t)]], dtype=torch.float64) for t in np.linspace(0, 1, 7)]
    one = dataclasses.replace(one, kernels=tuple(turned[:4]))
    other = dataclasses.replace(other, kernels=tuple(turned))
    expected = [angle(turned[i], turned[2 * i]) for i in range(4)]
    np.testing.assert_allclose(geodesics.apart(one, other), expected)


TINY = {
    "linear_depth": 3,
    "linear_width": 4,
    "linear_ridge": 1e-2,
    "linear_steps": 60,
    "samples": 40,
    "depths": (4, 8),
    "width": 10,
    "ridge": 1e-3,
    "gain": 30.0,
    "steps": (30, 10),
    "members": 2,
    "seed": 0,
    "diverging_depths": (10, 32, 100),
    "gammas": (0.6, 0.75),
    "stretches": (1.0, 2.0),
    "floor_depth": 32,
}


def test_a_tiny_run(tmp_path):
    assert set(TINY) == set(vars(f14.FIGURE.settings["quick"]))
    outcome = f14.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 7 + 5 + 8
    certain = [0, 1, 4, 5, 6, 12, 13, 17, 19]  # true at any size
    assert [i for i in certain if not outcome.claims[i].passed] == []
    assert [len(section.rows) for section in outcome.sections] == [5, 4, 5, 12]
    assert all(section.text for section in outcome.sections)
    assert "He's for the width times 30^(1/L)" in outcome.sections[1].text
    assert "from 2 separate draws, keeping the one with the lowest loss;" in outcome.sections[1].text
    assert [row["after training"] for row in outcome.sections[2].rows] == [c.measured for c in outcome.claims[7:12]]
    assert set(outcome.pictures) == {"linear", "trained", "diverging"}


def untrained(tmp_path, seed):
    """Return networks of three depths after 0 steps: as they were drawn."""
    settings = geodesics.Settings(samples=60, depths=(12, 24, 48), steps=(0, 0, 0), members=1, seed=seed)
    return geodesics.trained(tmp_path / str(seed), False, settings)


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_claims_on_networks_that_were_not_trained_fail(tmp_path, seed):
    """Rank, nonlinearity, the middle's share of the path and the jumps at its ends are what training has to make."""
    found = untrained(tmp_path, seed)
    assert failing(f14.trained_claims(found)) == [0, 1, 2, 3, 4]
    rows = f14.change_rows(found)
    assert [row["would hold"] for row in rows] == [row["holds"] for row in rows]
    assert [row["before training"] for row in rows] == [row["after training"] for row in rows]


def test_every_depth_starts_from_its_own_draw(tmp_path):
    """The start that is shown is the one that was trained: the kept member's, drawn without a look at other depths."""
    found = geodesics.trained(tmp_path, False, geodesics.Settings(**TINY | {"steps": (30, 30)}))
    task = low_rank_map(40)
    for i, net in enumerate(found):
        assert net.loss < net.start.loss
        assert net.start.loss == pytest.approx(net.start.cost + 1e-3 * net.start.norm)
        init = math.sqrt(2 / 10) * 30 ** (1 / net.depth)
        drawn = [MLP([20, *[10] * (net.depth - 1), 20], init=init, seed=2 * i + j) for j in range(2)]
        costs = [float((d(task.x) - task.y).square().sum(1).mean().detach()) for d in drawn]
        best = int(np.argmin(np.abs(np.array(costs) - net.start.cost)))
        assert costs[best] == pytest.approx(net.start.cost, rel=1e-5)
        np.testing.assert_array_equal(factors(drawn[best], task.x)[-1], net.start.kernels[-1])
        assert len(net.angles) == len(net.bures) == len(net.bent) == len(net.start.angles) == net.depth


def test_rows_before_training_stand_beside_those_after(tmp_path):
    found = [network(12, (0.5, 0.04)), network(48, (0.5, 0.01))]
    found = [dataclasses.replace(net, start=network(net.depth, (0.2, 0.2))) for net in found]
    rows = f14.trained_rows(found)
    assert [(row["depth"], row["training"]) for row in rows] == [
        (12, "before"), (12, "after"), (48, "before"), (48, "after")
    ]  # fmt: skip
    assert [row["jumps"] for row in rows] == pytest.approx([1, 12.5, 1, 50])
    assert rows[0]["middle third of the path, angles"] == pytest.approx(1 / 3)
    assert rows[0]["from the shallower one"] is rows[1]["from the shallower one"] is None
    expected = math.acos(math.cos(1 / 12 - 1 / 48) ** 2)  # kernels are u u^T
    assert [row["from the shallower one"] for row in rows[2:]] == pytest.approx([expected] * 2)
    changes = f14.change_rows(found)
    assert [row["would hold"] for row in changes] == ["yes", "yes", "no", "no", "no"]
    assert [row["holds"] for row in changes] == ["yes"] * 5
