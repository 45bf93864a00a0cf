"""Dimensionless groups with units."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from bnrank.discovery import BottleneckRegressor, dimensionless_groups
from bnrank.discovery.power_products import units
from bnrank.discovery.power_products.dimensional import expanded, without_units
from bnrank.discovery.power_products.exponents import Exponents
from bnrank.discovery.power_products.result import Factor, PowerProduct, products_of

pint = pytest.importorskip("pint")

QUICK = BottleneckRegressor(ridges=[0.02], n_networks=1)
PIPE = {"rho": "g/cm^3", "v": "m/s", "D": "mm", "mu": "Pa*s", "dp": "kPa"}


def positive(rows, names, seed=0):
    values = np.exp(np.random.default_rng(seed).uniform(-1.5, 1.5, (rows, len(names))))
    return pd.DataFrame(values, columns=list(names))


def dimensions(names):
    return [units.in_base_units(np.ones(1), unit, "units")[1] for unit in names]


@pytest.mark.parametrize("given", [list(PIPE.values()), ["m", "m/s^2", "kg"], ["N", "m^2", "Pa", "J", "s", ""]])
def test_groups_span_what_pint_finds_and_have_no_dimension(given):
    rows = units.pi_groups(dimensions(given))
    named = {f"q{i}": unit for i, unit in enumerate(given)}
    expected = [[group.get(name, 0) for name in named] for group in pint.UnitRegistry().pi_theorem(named)]
    made = np.array(rows, dtype=float).reshape(-1, len(given))
    assert len(made) == len(expected)
    if len(made):
        both = np.vstack([made, np.array(expected, dtype=float)])
        assert np.linalg.matrix_rank(both) == np.linalg.matrix_rank(made) == len(made)
        assert (made == made.round()).all()
        assert np.abs(made).sum() <= np.abs(np.array(expected, dtype=float)).sum()


def test_a_product_with_a_dimension_and_none():
    length, time, mass = dimensions(["m", "s", "kg"])
    assert units.with_dimension([length, time], {"[length]": Fraction(1), "[time]": Fraction(-2)}) == [1, -2]
    assert units.with_dimension([length, time], mass) is None
    assert units.with_dimension([], {}) == []


def test_units_are_converted_before_signs_are_looked_at():
    x = np.array([[-10.0, 1.0], [20.0, 2.0], [30.0, 5.0]])
    made = without_units(units.quantities(x, np.array([1.0, 2.0, 3.0]), "TL", ["degC", "km"], "m"), "TL")
    np.testing.assert_allclose(made.inputs, [[263.15, 1000], [293.15, 2000], [303.15, 5000]])
    assert str(made.scale) == "L"
    np.testing.assert_allclose(np.exp(made.target) if made.use_log else made.target, [1e-3, 1e-3, 6e-4])


def test_the_pendulum_needs_no_fit_of_exponents():
    x = positive(60, "Lgm").assign(g=9.81)
    y = 2 * np.pi * np.sqrt(x.L / 9.81) * (1 + 0.02 * np.random.default_rng(1).normal(size=60))
    found = dimensionless_groups(x, y, units={"L": "m", "g": "m/s^2", "m": "kg"}, y_unit="s", estimator=QUICK)
    assert str(found.groups[0]) == "L^(1/2) / g^(1/2)"
    assert found.coefficient == pytest.approx(2 * np.pi, rel=0.01)
    assert (found.verdict, found.pi, str(found.scale)) == ("power products", (), "L^(1/2) / g^(1/2)")
    hidden = y * np.sqrt(1 + x.m)  # the mass counts, and units forbid it: something is missing
    doubted = dimensionless_groups(x, hidden, units=["m", "m/s^2", "kg"], y_unit="s", estimator=QUICK)
    assert doubted.verdict == "undetermined"
    assert "may be missing" in str(doubted)


def test_values_take_the_units_of_the_fit():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(
        {"T": rng.uniform(-50, 150, 60), "n": rng.uniform(1, 5, 60), "D": rng.uniform(3, 9, 60), "R": 8.314}
    )
    y = 8.314 * x.n * (x["T"] + 273.15) / (x.D / 1000) ** 3 * (1 + 0.01 * rng.normal(size=60))
    given = {"T": "degC", "n": "mol", "D": "mm", "R": "J/(mol*K)"}
    found = dimensionless_groups(x, y, units=given, y_unit="Pa", estimator=QUICK)
    assert {factor.name for group in found.groups for factor in group.factors} == {"T", "n", "D", "R"}
    base = x.assign(T=x["T"] + 273.15, D=x.D / 1000)
    again = dimensionless_groups(base, y, units=given | {"T": "K", "D": "m"}, y_unit="Pa", estimator=QUICK)
    np.testing.assert_allclose(found.values(x), again.values(base), rtol=1e-9)
    np.testing.assert_allclose(found.coefficient * found.values(x)[:, 0], y, rtol=0.05)
    np.testing.assert_allclose(found.values(x.to_numpy()), found.values(x))
    with pytest.raises(ValueError, match="X: got T down to -27, expected above 0"):
        found.values(x.assign(T=-300.15))


def test_a_signed_input_is_divided_by_a_product_with_its_unit():
    rng = np.random.default_rng(2)
    x = pd.DataFrame({"h": rng.normal(size=150), "L": np.exp(rng.normal(size=150))})
    y = x.L * (2 + np.tanh(2 * x.h / x.L)) * (1 + 0.01 * rng.normal(size=150))
    found = dimensionless_groups(1000 * x, y, units=["mm", "mm"], y_unit="m", estimator=QUICK)
    (group,) = found.groups
    assert str(group) == "h / (L)"
    np.testing.assert_allclose(np.log(found.values(1000 * x))[:, 0], x.h / x.L, rtol=1e-9)
    with pytest.raises(ValueError, match="one named L"):
        found.values(x[["h"]])


def test_intervals_of_several_groups_are_those_of_the_sum():
    rng = np.random.default_rng(0)
    bases = {
        "Re": PowerProduct(tuple(Factor(n, p, p, p, Fraction(p)) for n, p in [("v", 1), ("D", 1), ("nu", -1)])),
        "Fr": PowerProduct(tuple(Factor(n, p, p, p, Fraction(p)) for n, p in [("v", 2), ("g", -1), ("D", -1)])),
    }
    values = np.array([[1.0, 0.41]])
    deviations = 0.01 * rng.normal(size=(200, 1, 2))
    deviations[:, 0, 1] -= 0.9 * deviations[:, 0, 0]
    width = 2.6006 * np.sqrt(np.square(deviations).mean(axis=0))
    (product,) = products_of(
        Exponents(values, values - width, values + width, (), deviations), ["Re", "Fr"], [True] * 2
    )
    made = {f.name: f for f in expanded(product, bases).factors}
    matrix = {"v": [1, 2], "D": [1, -1], "nu": [-1, 0], "g": [0, -1]}  # exponents of the inputs in the groups
    for name, powers in matrix.items():
        spread = np.sqrt(np.mean((deviations[:, 0] @ powers) ** 2))
        assert (made[name].high - made[name].low) / 2 == pytest.approx(2.6006 * spread, rel=1e-4)
        assert (made[name].high + made[name].low) / 2 == pytest.approx(np.dot(values[0], powers))


@pytest.mark.parametrize(("value", "parts", "total"), [(0.52, Fraction(1, 2), None), (0.5, None, Fraction(1))])
def test_the_fraction_of_a_sum_is_the_one_in_its_interval(value, parts, total):
    """v has the exponents of v L and of v, whose errors cancel in the sum."""
    bases = {"A": PowerProduct((factor("v", 1), factor("L", 1))), "B": PowerProduct((factor("v", 1),))}
    deviations = 0.02 * np.random.default_rng(0).normal(size=(200, 1)) * [[1.0, -1.0]]
    deviations[:, 1] += 1e-4 * np.random.default_rng(1).normal(size=200)
    made = PowerProduct(tuple(Factor(n, value, 0.4, 0.6, parts) for n in "AB"), deviations)
    v = next(f for f in expanded(made, bases).factors if f.name == "v")
    assert v.value == 2 * value
    assert v.high - v.low < 0.01
    assert v.fraction == total


def factor(name, power):
    return Factor(name, float(power), float(power), float(power), Fraction(power))


def test_two_groups_of_which_one_counts():
    x = positive(120, PIPE)
    base = x.assign(rho=1000 * x.rho, D=x.D / 1000, dp=1000 * x.dp)
    euler = base.dp / (base.rho * base.v**2)
    y = base.v * (1 + np.tanh(0.7 * np.log(euler / 1.0))) * (1 + 0.01 * np.random.default_rng(1).normal(size=120))
    found = dimensionless_groups(x, y, units=PIPE, y_unit="m/s", estimator=QUICK)
    assert len(found.pi) == 2
    assert found.verdict == "power products"
    (group,) = found.groups
    assert {f.name: f.fraction for f in group.factors} in (
        {"dp": 1, "rho": -1, "v": -2},
        {"dp": -1, "rho": 1, "v": 2},
    )
    assert "dimensionless group" in str(found)


def test_without_the_unit_of_y_units_are_not_used():
    x = positive(40, ["n", "T", "V"])
    y = 8.314 * x.n * x["T"] / x.V
    found = dimensionless_groups(x, y, units=["mol", "K", "m^3"], y_unit="Pa")
    assert str(found.groups[0]) == "n T / V"
    assert "no product of powers of the inputs has the unit of y (Pa)" in found.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": {"a": "m"}}, "units: got none for b"),
        ({"units": {"a": "m", "b": "s", "c": "s"}}, "units: got one for c"),
        ({"units": ["m"]}, "units: got 1 units, expected 2"),
        ({"units": ["m", "parsecs per bogon"], "y_unit": "m"}, "units: got 'parsecs per bogon'"),
        ({"units": ["m", 3], "y_unit": "m"}, "units: got 3"),
        ({"units": 7}, "units: got 7"),
        ({"units": ["m", "s"]}, "y_unit: got None"),
        ({"units": ["m", "s"], "y_unit": "bogon"}, "y_unit: got 'bogon'"),
        ({"y_unit": "s"}, "y_unit: got 's' without units"),
        ({"units": ["m", "kg"], "y_unit": "m", "X": pd.DataFrame({"a": [1.0, 2, 3], "b": [-1.0, 2, 3]})}, "b in kg"),
    ],
)
def test_bad_units_are_named(change, message):
    table = {"X": pd.DataFrame({"a": [1.0, 2, 3], "b": [1.0, 2, 5]}), "y": [1.0, 2, 3]}
    with pytest.raises((TypeError, ValueError), match=message):
        dimensionless_groups(**table | change)


@pytest.mark.parametrize("y_unit", ["", "m"])
def test_noise_is_no_power_law(y_unit):
    x = positive(120, "ab")
    noise = np.exp(np.random.default_rng(3).normal(size=120))
    with pytest.warns(UserWarning, match="nothing was found|does not depend|than its mean"):
        found = dimensionless_groups(x, noise, units={"a": "m", "b": "m"}, y_unit=y_unit, estimator=QUICK)
    assert found.verdict == "nothing found"
    assert (found.coefficient, found.groups) == (None, ())


def test_a_signed_output_of_a_hidden_time_is_undetermined():
    rng = np.random.default_rng(4)
    x = pd.DataFrame({"L": rng.uniform(1, 3, 200), "h": rng.uniform(1, 3, 200), "t": rng.uniform(0, 6, 200)})
    y = x.L * np.sin(x.t) + 0.7 * x.h - x.L  # the sine of a time: a frequency of 1 Hz is missing
    found = dimensionless_groups(x, y, units={"L": "m", "h": "m", "t": "s"}, y_unit="m")
    assert found.verdict != "power products"
    assert "may be missing" in found.reason or "does not depend" in found.reason
