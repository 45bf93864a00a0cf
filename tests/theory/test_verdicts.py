"""Verdicts: how two sides become a status."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import bnrank
from bnrank.theory.verdicts import (
    Inconclusive,
    NotApplicable,
    Sides,
    Statement,
    Verdict,
    Verdicts,
    assume,
    assuming,
    statement,
)


def verdict_of(outcome):
    @statement("T0", "a name", "left <= right", source="nowhere")
    def made(facts):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return made(None)


@pytest.mark.parametrize(
    ("sides", "status", "slack"),
    [
        (Sides(1.0, 2.0), "holds", 1.0),
        (Sides(2.0, 2.0), "holds", 0.0),
        (Sides(2.0 + 1e-13, 2.0), "holds", -1e-13),  # equal to rounding
        (Sides(2.0 + 1e-10, 2.0), "inconclusive", -1e-10),
        (Sides(2.0 + 1e-8, 2.0), "violated", -1e-8),
        (Sides(2.1, 2.0, rtol=0.1), "inconclusive", -0.1),
        (Sides(1e-11, 0.0, scale=1.0), "inconclusive", -1e-11),  # what is left of a cancellation
        (Sides(1e-11, 0.0), "violated", -1e-11),
        (Sides(-math.inf, 0.0), "holds", math.inf),
        (Sides(math.inf, 0.0), "violated", -math.inf),
        (Sides(math.inf, math.inf), "holds", 0.0),
        (Sides(math.nan, 0.0), "inconclusive", math.nan),
        (Sides(2.0, 2.0 + 1e-10, "="), "holds", -1e-10),
        (Sides(2.0, 2.1, "="), "violated", -0.1),
        (Sides(2.0, 2.1, "=", rtol=0.05), "holds", -0.1),
        (Sides(0.0, 0.0, "="), "holds", 0.0),
        (Sides(4.4e-322, 3.7e-320, "="), "holds", -3.7e-320),  # subnormal numbers have few digits
        (Sides(4.4e-322, 0.0), "holds", -4.4e-322),
        (Sides(1e-307, 0.0), "violated", -1e-307),
    ],
)
def test_the_status_follows_from_the_sides(sides, status, slack):
    verdict = verdict_of(sides)
    assert verdict.status == status
    assert verdict.slack == pytest.approx(slack, rel=1e-3, nan_ok=True)
    assert (verdict.left, verdict.relation) == (pytest.approx(sides.left, nan_ok=True), sides.relation)


def test_equal_sides_have_slack_zero_without_a_sign():
    assert [str(verdict_of(Sides(2.0, 2.0, relation)).slack) for relation in ("<=", "=")] == ["0.0", "0.0"]


def test_a_bound_that_cannot_fail_is_said_to_be_vacuous():
    found = verdict_of(Sides(0.3, 4.0, vacuous="the bound is 4, of a ratio"))
    assert (found.status, found.label, found.vacuous) == ("holds", "holds (vacuous)", "the bound is 4, of a ratio")
    verdicts = Verdicts((found, verdict_of(Sides(0.3, 0.4))), {})
    assert "holds (vacuous)" in str(verdicts)
    assert "the bound is 4, of a ratio" in str(verdicts)
    assert (len(verdicts.having("holds")), verdicts.counts["holds"]) == (2, 2)
    assert verdicts[1].label == "holds"
    wrong = verdict_of(Sides(5.0, 4.0, vacuous="no ratio is above 1"))
    assert (wrong.label, wrong.vacuous) == ("violated", "")  # a bound that was said to be vacuous, and fails


def test_a_failing_assumption_is_named():
    verdict = verdict_of(NotApplicable("the slope is 0", "it is 0.3"))
    assert (verdict.status, verdict.reason) == ("not applicable", "the slope is 0: it is 0.3")
    assert math.isnan(verdict.left)
    assert verdict_of(Inconclusive("no constant is given")).reason == "no constant is given"


def test_an_unknown_relation_is_refused():
    with pytest.raises(ValueError, match="relation: got '<'"):
        verdict_of(Sides(1.0, 2.0, "<"))


def test_other_errors_are_not_swallowed():
    with pytest.raises(RuntimeError, match="a bug"):
        verdict_of(RuntimeError("a bug"))


def test_verdicts_are_found_by_id_counted_and_printed():
    good = Verdict("T4", "Jacobian bound", "a <= b", "s", "holds", 1.0, 2.0, slack=1.0)
    bad = Verdict("T14", "balance", "a = b", "s", "violated", 1.0, 2.0, "=", -1.0)
    verdicts = Verdicts((good, bad), {"depth": 3})
    assert verdicts["T14"] is bad
    assert verdicts[0] is good
    assert len(verdicts) == 2
    assert verdicts.having("violated") == (bad,)
    assert verdicts.counts == {"holds": 1, "violated": 1, "not applicable": 0, "inconclusive": 0}
    assert not verdicts.ok
    assert Verdicts((good,), {}).ok
    lines = str(verdicts).splitlines()
    assert [line.split()[0] for line in lines] == ["id", "T4", "T14"]
    assert "violated" in lines[2]
    with pytest.raises(KeyError, match="T5: expected one of T14, T4"):
        verdicts["T5"]


def test_reasons_are_given_once_with_the_statements_they_exclude():
    def without(id, reason):
        return Verdict(id, "", "", "s", "not applicable", reason=reason)

    chain, free = "the network is a chain: got GELU", "no hidden value is free: GELU, Dropout"
    two = [without("T44", f"a quantity of a vertex: {free}"), without("T46", f"a quantity of a layer: {free}")]
    good = Verdict("T4", "Jacobian bound", "a <= b", "s", "holds", 1.0, 2.0, slack=1.0)
    verdicts = Verdicts((without("T1", chain), good, *two, without("T1", chain), without("T2", chain)), {})
    assert verdicts.applied == (good,)
    assert {reason: [v.id for v in own] for reason, own in verdicts.unmet().items()} == {
        chain: ["T1", "T1", "T2"],
        free: ["T44", "T46"],
    }
    lines = str(verdicts).splitlines()
    assert lines[1].startswith("T4 ")
    assert lines[2:] == [f"3 of 6 not applicable (T1, T2): {chain}", f"2 of 6 not applicable (T44, T46): {free}"]
    assert len(str(Verdicts(tuple(two), {})).splitlines()) == 1


def test_sides_take_numbers_of_any_kind_and_nothing_else():
    sides = Sides(torch.tensor(1.0), np.float32(2.0), scale=3)
    assert [(type(v), v) for v in (sides.left, sides.right, sides.scale)] == [(float, 1.0), (float, 2.0), (float, 3.0)]
    for value in (Fraction(1, 2), np.array([0.5]), torch.tensor([[0.5]], requires_grad=True), np.longdouble(0.5)):
        assert Sides(0.25, value).right == 0.5
    assert (Sides(np.int64(3), np.array(True)).left, Sides(0.0, torch.tensor(True)).right) == (3.0, 1.0)
    assert math.isnan(Sides(np.nan, 1.0).left)
    wrong = (None, "1", 1j, torch.ones(2), np.ones(3), np.complex128(1j), np.array([1j]), torch.tensor(1j))
    wrong += (np.str_("1"), np.array(["1"]), np.datetime64("2026-01-01"), torch.zeros(1, device="meta"), np.ma.masked)
    for value in wrong:
        with pytest.raises(TypeError, match=r"left: got .*, expected a real number"):
            Sides(value, 2.0)
        with pytest.raises(TypeError, match=r"right: got .*, expected a real number"):
            Sides(1.0, value)
    with pytest.raises(ValueError, match=r"right: got an integer of .* bits, expected a float"):
        Sides(1.0, 10**400)


@pytest.mark.parametrize("wrong", [None, 1.0, (1.0, 2.0), torch.ones(2), [Sides(1.0, 2.0), 3.0]])
def test_a_function_that_returns_something_else_than_sides_is_named(wrong):
    with pytest.raises(TypeError, match=r"sides of T0, a name: got .*, expected bnrank.theory.Sides, or several"):
        verdict_of(wrong)


def test_several_sides_may_be_yielded():
    assert verdict_of(Sides(left, 2.0, note=f"{left}") for left in (1.0, 1.5)).note == "1.5"
    assert verdict_of([]).reason == "there is something to compare"


def test_statements_are_texts_and_a_function():
    with pytest.raises(TypeError, match="formula: got None"):
        statement("T0", "a name", None, source="nowhere")
    with pytest.raises(TypeError, match=r"sides: got 3.*, expected a function of facts"):
        Statement("T0", "a name", "0 = 0", "nowhere", 3)


def test_assumptions_are_conditions_with_a_text():
    assume(np.bool_(True), "order")
    x = torch.tensor([[1.0, -1.0]])
    for true in ((x <= 1).all(), torch.tensor([True]), np.array([[True]]), (x.numpy() <= 1).all()):
        assume(true, "x is at most 1")
    for false in ((x >= 0).all(), torch.tensor([False]), np.array([[False]]), (x.numpy() >= 0).all()):
        with pytest.raises(NotApplicable, match=r"x is not negative: it is -1"):
            assume(false, "x is not negative", "it is -1")
    for wrong in (torch.ones(2), x >= 0, x.numpy() >= 0, torch.ones(1), np.ones(1), torch.ones(0, dtype=torch.bool)):
        with pytest.raises(TypeError, match=r"condition: got .*, expected one bool, such as that of \.all\(\)"):
            assume(wrong, "order")
    with pytest.raises(NotApplicable, match=r"an integer: .*'deep'"), assuming("an integer"):
        int("deep")


OWN = statement("U1", "own", "0 <= ||theta||^2", source="theory")(lambda facts: Sides(0.0, facts.parameter_norm))
OTHER = statement("U2", "other", "||theta||^2 <= 0", source="theory")(lambda facts: Sides(facts.parameter_norm, 0.0))


def test_own_statements_are_checked_like_those_of_the_library():
    net, x = bnrank.MLP([3, 4, 2], seed=0), torch.ones(5, 3)
    verdicts = bnrank.check(net, x, statements=[OWN, OTHER])
    assert [(v.id, v.label) for v in verdicts] == [("U1", "holds (vacuous)"), ("U2", "violated")]
    assert verdicts.about["depth"] == 2
    assert [v.id for v in bnrank.check(net, x, statements=OTHER)] == ["U2"]
    both = (*bnrank.theory.STATEMENTS, OWN)
    assert [v.id for v in bnrank.check(net, x, statements=both, only=["U1", "T4"])] == ["T4", "U1"]
    with pytest.raises(ValueError, match=r"only: got 'T4'.*expected one of 'U1'"):
        bnrank.check(net, x, statements=OWN, only="T4")
    for wrong in ("T4", [lambda facts: Sides(0.0, 1.0)], 4):
        with pytest.raises(
            TypeError, match=r"statements: got .*, expected statements, such as bnrank.theory.STATEMENTS"
        ):
            bnrank.check(net, x, statements=wrong)
