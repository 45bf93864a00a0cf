import math

import numpy as np
import pytest
import torch

from bnrank.theory.cost import linear, linear_corrections, subadditivity
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED
from helpers import normal

DEPTHS = [4, 6, 8, 12, 16, 24]
NAMES = ["costs at finite depth", "R0 of the whole", "R1 is subadditive", "R2 is not negative", "R2 is subadditive"]


def costs(r0, r1, r2, noise=0.0, seed=0, depths=DEPTHS):
    L = np.array(depths, dtype=float)
    return L * r0 + r1 + r2 / L + noise * np.random.default_rng(seed).normal(size=len(L))


def statuses(*terms, rule="composition", **kwargs):
    found = subadditivity(DEPTHS, *(costs(*t) for t in terms), rule=rule, **kwargs)
    assert [v.name for v in found] == NAMES
    return [v.status for v in found]


@pytest.mark.parametrize("seed", range(5))
def test_linear_maps_satisfy_every_statement(seed):
    h, g = (torch.eye(3) + 0.3 * normal(3, 3, seed=s) for s in (seed, seed + 10))
    found = subadditivity(DEPTHS, *([linear(a, L) for L in DEPTHS] for a in (h, g, h @ g)), atol=0.02)
    assert [v.status for v in found] == [HOLDS] * 5
    exact = [linear_corrections(a) for a in (h, g, h @ g)]
    assert found[2].left == pytest.approx(exact[2].R1, abs=0.02)
    assert found[2].slack == pytest.approx(0, abs=0.02)  # |det hg| = |det h| |det g|
    assert found[4].right == pytest.approx(sum(math.sqrt(e.R2) for e in exact[:2]), abs=0.5)


def test_planted_costs_that_violate_a_statement():
    one = (1, 0.5, 1.0)
    assert statuses(one, one, (1, 0.9, 1.0)) == [HOLDS, HOLDS, HOLDS, HOLDS, NOT_APPLICABLE]
    assert statuses(one, one, (1, 2.0, 1.0))[:3] == [VIOLATED, HOLDS, VIOLATED]
    assert statuses(one, one, (2, 0.5, 1.0))[:3] == [VIOLATED, VIOLATED, NOT_APPLICABLE]  # R0 above both: T6
    assert statuses(one, (2, 0.5, 1.0), one)[1:] == [NOT_APPLICABLE] * 4  # R0 differs between the parts
    assert statuses(one, one, (1, 0.9, -1.0))[3] == VIOLATED
    # where R1 is additive: (1 + 1)^2 = 4 bounds R2
    assert statuses(one, one, (1, 1.0, 3.9), atol=0.01)[4] == HOLDS
    assert statuses(one, one, (1, 1.0, 4.4), atol=0.01)[4] == VIOLATED


def test_sums():
    one, two = (1, 0.5, 1.0), (2, 0.3, 2.0)
    three = (3, 0.8, 2.9)
    assert statuses(one, two, three, rule="addition", atol=0.01) == [HOLDS] * 5
    assert statuses(one, two, (3, 1.2, 2.9), rule="addition")[2] == VIOLATED
    assert statuses(one, two, (3, 0.8, 3.4), rule="addition", atol=0.01)[4] == VIOLATED
    assert statuses(one, two, (2, 0.8, 2.9), rule="addition")[1:3] == [NOT_APPLICABLE, NOT_APPLICABLE]
    assert statuses(one, two, (4, 0.8, 2.9), rule="addition")[1] == VIOLATED


def test_noise_widens_the_interval_until_the_verdict_is_inconclusive():
    parts = [costs(1, 0.5, 1.0, 0.05, seed) for seed in (1, 2)]
    found = subadditivity(DEPTHS, *parts, costs(1, 1.0, 1.0, 0.05, 3))
    assert found[1].status == HOLDS
    assert found[2].status == INCONCLUSIVE
    assert "right - left is in [" in found[2].reason
    clear = subadditivity(DEPTHS, *parts, costs(1, -1.0, 1.0, 0.05, 3))
    assert clear[2].status == HOLDS
    few = subadditivity(DEPTHS[:3], *(costs(1, 0.5, 1.0, depths=DEPTHS[:3]) for _ in range(3)))
    assert [v.status for v in few][1:] == [INCONCLUSIVE] * 4  # three depths say nothing about a misfit


def test_the_interval_covers_the_truth_at_its_level():
    covered, judged = 0, 0
    for seed in range(200):
        noisy = [costs(1, r1, 1.0, 0.05, 3 * seed + i) for i, r1 in enumerate((0.5, 0.25, 0.75))]
        found = subadditivity(DEPTHS, *noisy, sigma=0.05)
        if found[1].status != HOLDS:  # a misfit of p < 0.01, or a wide interval of R0, in one of three
            continue
        judged += 1
        low, high = (float(v) for v in found[2].note.partition("[")[2].partition("]")[0].split(", "))
        covered += low <= 0 <= high
    assert judged > 150
    assert 0.90 <= covered / judged <= 0.99


def test_costs_that_follow_no_expansion_do_not_apply():
    found = subadditivity(DEPTHS, [L * L for L in DEPTHS], costs(1, 0.5, 1.0), costs(1, 0.5, 1.0))
    assert [v.status for v in found][1:] == [NOT_APPLICABLE] * 4
    assert "the costs of the first part follow no expansion" in found[2].reason


def test_costs_at_finite_depth_are_those_of_all_splits():
    first, second, whole = costs(1, 0.0, 1.0), costs(1, 0.0, 2.0), costs(1, 0.0, 1.0)
    found = subadditivity(DEPTHS, first, second, whole)[0]
    at = dict(zip(DEPTHS, range(6), strict=True))
    splits = [(first[at[a]] + second[at[b]] - whole[at[a + b]]) / (a + b) for a in at for b in at if a + b in at]
    assert found.slack / (found.left) == pytest.approx(min(splits), rel=0.2)
    assert found.slack > 0
    assert "of 10" in found.note
    odd = subadditivity([3, 5, 7, 9], *(costs(1, 0.0, 1.0, depths=[3, 5, 7, 9]) for _ in range(3)))[0]
    assert odd.status == NOT_APPLICABLE
    twice = subadditivity([4, 4, 6, 8, 10], *([4.0, 9.0, 6.0, 8.0, 10.0] for _ in range(3)))[0]
    assert twice.status == HOLDS  # the smallest norm at depth 4


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="rule: got 'product'"):
        subadditivity(DEPTHS, *[costs(1, 0, 0)] * 3, rule="product")
    with pytest.raises(ValueError, match="first: got 5 numbers, expected as many as depths, 6"):
        subadditivity(DEPTHS, *[costs(1, 0, 0)[1:]] * 3)
    with pytest.raises(ValueError, match="atol: got -1"):
        subadditivity(DEPTHS, *[costs(1, 0, 0)] * 3, atol=-1)


def test_what_the_networks_of_the_parts_prove_is_vacuous():
    parts = costs(1, 0.5, 1.0), costs(1, 0.5, 1.0)
    proved = {"costs at finite depth", "R1 is subadditive", "R2 is subadditive"}
    found = subadditivity(DEPTHS, *parts, costs(1, 1.0, 3.0), atol=0.01, from_parts=True)
    assert {v.name for v in found if v.label == "holds (vacuous)"} == proved
    assert not any(v.vacuous for v in subadditivity(DEPTHS, *parts, costs(1, 1.0, 3.0), atol=0.01))
    above = subadditivity(DEPTHS, *parts, costs(1, 3.0, 1.0), from_parts=True)
    assert [above[i].label for i in (0, 2)] == ["violated"] * 2  # the search of the whole lost what it was given


@pytest.mark.parametrize("kind", [np.int8, np.float16, np.float32])
def test_sigma_may_be_of_any_type_of_numpy(kind):
    parts = [costs(*terms) for terms in ((1, 2, 3), (1, 1, 1), (1, 2.5, 3))]
    expected, found = (subadditivity(DEPTHS, *parts, sigma=sigma) for sigma in (20.0, kind(20)))
    assert [str(v) for v in found] == [str(v) for v in expected]
