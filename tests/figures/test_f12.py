"""F12: its claims on planted curves, its closed form, and a tiny run."""

import dataclasses

import numpy as np
import pytest

from bnrank.figures.f12_one_neuron import figure as f12
from bnrank.theory.escape.one_neuron import rank_one_speed

ANGLES = np.linspace(0, 2 * np.pi, 97)


def points():
    position = 2 * np.pi * np.arange(8) / 8
    return np.stack([np.sin(position), np.cos(position)], 1), np.array([[1.0], [-1.0]] * 4)


def by_sample(angle):
    """|sum_i (-1)^i relu(x_i . v)|, sample by sample."""
    x, g = points()
    v = np.stack([np.sin(angle), np.cos(angle)])
    return np.abs(sum(weight * np.maximum(row @ v, 0) for row, (weight,) in zip(x, g, strict=True)))


def passed(**changes):
    best = rank_one_speed(*points())
    planted = {"angle": ANGLES, "measured": by_sample(ANGLES), "at_kinks": np.full(8, f12.BEST), "best": best}
    planted.update({name: change(planted[name]) for name, change in changes.items()})
    return [claim.passed for claim in f12.claims(**planted)]


def one_off(index, by):
    return lambda values: np.where(np.arange(len(values)) == index, values + by, values)


def test_claims_hold_on_the_true_curve():
    assert passed() == [True, True, True]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"measured": one_off(5, 1e-6)}, [False, True, True]),
        ({"measured": one_off(5, -1e-6)}, [False, True, True]),
        ({"angle": lambda angle: angle + 0.01}, [False, True, True]),
        ({"at_kinks": one_off(7, -1e-6)}, [True, False, True]),
        ({"at_kinks": one_off(0, 1e-6)}, [True, False, True]),
        ({"best": lambda best: dataclasses.replace(best, lower=best.lower - 1e-6)}, [True, False, True]),
        ({"best": lambda best: dataclasses.replace(best, exact=False)}, [True, False, True]),
        ({"best": lambda best: dataclasses.replace(best, upper=0.5)}, [True, True, False]),
        ({"measured": one_off(3, 0.5)}, [False, True, False]),
        ({"measured": one_off(3, np.nan)}, [False, True, False]),
    ],
)
def test_claims_fail_where_they_should(changes, expected):
    assert passed(**changes) == expected


def test_the_closed_form_is_the_sum_over_samples():
    angle = np.linspace(-7, 7, 1001)
    np.testing.assert_allclose(f12.closed_form(angle), by_sample(angle), atol=1e-14)


def test_a_tiny_run(tmp_path):
    outcome = f12.make(f12.Settings(angles=9), tmp_path, False)
    assert [claim.passed for claim in outcome.claims] == [True, True, True]
    assert all(row["speed"] == pytest.approx(f12.BEST, abs=1e-12) for row in outcome.sections[0].rows)
    assert len(outcome.sections[0].rows) == 8
    assert list(outcome.pictures) == ["speed-against-angle"]
