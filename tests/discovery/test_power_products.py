"""Power products of positive inputs: exponents, intervals, fractions, and what is not one."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

from bnrank.discovery import BottleneckRegressor, NothingFoundWarning, dimensionless_groups
from bnrank.discovery.power_products import embedding, exponents
from bnrank.discovery.power_products.exponents import Exponents, Table, fraction_in, normal_form
from bnrank.discovery.power_products.result import products_of
from bnrank.discovery.power_products.rows import fitted_rows

QUICK = BottleneckRegressor(ridges=[0.02], n_networks=1)
FAR = np.append(np.arange(19.0), 1e5)


def positive(rows, names, seed=0):
    values = np.exp(np.random.default_rng(seed).uniform(-1.5, 1.5, (rows, len(names))))
    return pd.DataFrame(values, columns=list(names))


@pytest.fixture(scope="module")
def pipe():
    """A law of one dimensionless group, bent and not monotonic, 2 percent noise."""
    x = positive(200, ["rho", "v", "D", "mu", "T"])
    reynolds = x.rho * x.v * x.D / x.mu
    y = 2 + np.tanh(np.log(reynolds)) + 0.5 * np.exp(-(np.log(reynolds) ** 2))
    return x, y * (1 + 0.02 * np.random.default_rng(1).normal(size=200)), reynolds


@pytest.fixture(scope="module")
def found(pipe):
    return dimensionless_groups(pipe[0], pipe[1], estimator=QUICK)


def test_one_group_with_integer_exponents(found, pipe):
    x, _, reynolds = pipe
    assert found.verdict == "power products"
    assert [str(group) for group in found.groups] in (["rho v D / mu"], ["mu / (rho v D)"])
    assert "y depends on 1 power product of the inputs (interval 1 to 1): rho v D / mu" in str(found)
    assert [factor.name for factor in found.left_out] == ["T"]
    np.testing.assert_allclose(found.values(x)[:, 0], reynolds, rtol=1e-12)
    frame = found.to_frame()
    assert frame.fraction.tolist() == ["1", "1", "1", "-1"]
    assert ((frame.low <= frame.exponent) & (frame.exponent <= frame.high)).all()
    assert (frame.high - frame.low).between(0, 0.2).all()


def test_a_power_law_has_absolute_exponents_and_a_coefficient():
    x = positive(80, "Lgm")
    y = 6.28 * np.sqrt(x.L / x.g) * (1 + 0.02 * np.random.default_rng(1).normal(size=80))
    law = dimensionless_groups(x, y)
    assert str(law.groups[0]) == "L^(1/2) / g^(1/2)"
    assert law.coefficient == pytest.approx(6.28, rel=0.01)
    assert "y is a power law: y = 6.2" in str(law)
    with pytest.raises(ValueError, match=r"X: got g down to -1"):
        law.values(x.assign(g=-1.0))


def test_all_fits_are_to_the_rows_without_outliers():
    x = positive(90, "Lgm", seed=5)
    y = 6.28 * np.sqrt(x.L / x.g) * (1 + 0.02 * np.random.default_rng(1).normal(size=90))
    wrong, bad = y.copy(), x.copy()
    wrong[[3, 50]] = [-999.0, 7000.0]  # the first hides that y is positive
    wrong[70] *= 1e-4  # far in the logarithm only
    bad.loc[20, "g"] = -999.0  # hides that g is positive
    bad.loc[21, "g"] *= 1e5
    found = dimensionless_groups(bad, wrong)
    assert found.outliers == (3, 20, 21, 50, 70)
    assert "left out as gross outliers: 5 rows (3, 20, 21, 50, 70)" in str(found)
    kept = np.setdiff1d(np.arange(90), found.outliers)
    clean = dimensionless_groups(x.iloc[kept], y.iloc[kept], estimator=BottleneckRegressor(robust=False))
    pd.testing.assert_frame_equal(found.to_frame(), clean.to_frame())
    assert (found.coefficient, found.reason) == (clean.coefficient, clean.reason)
    folds = np.arange(90) % 3
    pairs = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(3)]
    split = dimensionless_groups(bad, wrong, groups=np.arange(90) // 2, estimator=BottleneckRegressor(cv=pairs))
    assert split.outliers == found.outliers
    assert str(split.groups[0]) == "L^(1/2) / g^(1/2)"
    with pytest.warns(NothingFoundWarning):
        all_rows = dimensionless_groups(bad, wrong, estimator=BottleneckRegressor(robust=False))
    assert (all_rows.outliers, all_rows.notes, all_rows.coefficient) == ((), (), None)


def test_clean_decades_of_a_power_law_have_no_outliers():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = np.exp(rng.uniform(-5, 5, (200, 3)))
        y = x[:, 0] * x[:, 1] ** 2 / x[:, 2] * np.exp(0.1 * rng.normal(size=200))
        made = fitted_rows(BottleneckRegressor(), x, y, None)
        assert (made.outliers, made.model.robust) == ((), False)


def test_sums_and_noise_have_no_groups():
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 3, (120, 3))
    straight = dimensionless_groups(x, x[:, 0] + 2 * x[:, 1] + 0.02 * rng.normal(size=120), estimator=QUICK)
    assert (straight.verdict, straight.groups) == ("linear combinations", ())
    assert "no power products: y depends on 1 linear combination of the inputs as they are" in str(straight)
    with pytest.warns(NothingFoundWarning, match="dimensionless_groups"):
        noise = dimensionless_groups(x, np.exp(rng.normal(size=120)), estimator=QUICK)
    assert (noise.verdict, noise.groups) == ("nothing found", ())
    signed = dimensionless_groups(x[:60] - 2, x[:60, 0], estimator=QUICK)
    assert (signed.verdict, signed.logarithms, signed.reason) == (
        "linear combinations",
        (),
        "no input that varies is positive",
    )


def test_the_likelihood_is_that_of_a_gaussian():
    rng = np.random.default_rng(0)
    z, y, w = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=(2, 3))
    covariance = np.array([[2.0 * np.exp(-0.5 * np.sum((w @ (a - b)) ** 2)) for a in z] for b in z])
    covariance += (0.3 + 2.0 * embedding.JITTER) * np.eye(7)
    expected = -multivariate_normal(np.zeros(7), covariance).logpdf(y) - 7 / 2 * np.log(2 * np.pi)
    parameters = torch.from_numpy(np.append(w.ravel(), np.log([2.0, 0.3])))
    made = embedding.minus_log_likelihood(parameters, torch.from_numpy(z), torch.from_numpy(y))
    assert float(made) == pytest.approx(expected, rel=1e-9)


def test_half_samples_give_the_standard_error_of_least_squares():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 2)) * [1.0, 0.5]
    y = z @ [1.5, -0.5] + 0.1 * rng.normal(size=400)
    made = exponents.power_law(Table(z, y, np.arange(400), 0))
    width = (made.high - made.low)[0] / 2 / 2.6  # t of 200 degrees of freedom, 99 percent
    np.testing.assert_allclose(width, 0.1 / np.array([1.0, 0.5]) / 20, rtol=0.15)
    copies = np.repeat(np.arange(400), 4)  # rows that are drawn together are no more evidence
    again = exponents.power_law(Table(z[copies], y[copies], copies, 0))
    np.testing.assert_allclose((again.high - again.low)[0], (made.high - made.low)[0], rtol=0.25)


def test_two_products_are_given_in_the_form_with_most_fractions():
    rng = np.random.default_rng(0)
    truth = np.array([[1.0, 1.0, -1.0, 0.0], [0.0, 0.0, 1.0, -2.0]])
    mixed = np.array([[1.0, 0.7], [-0.4, 1.3]]) @ truth
    draws = mixed + 0.01 * rng.normal(size=(24, 2, 4))
    form = exponents._best_form(mixed, draws, np.ones(4))
    assert all(fraction is not None for row in form.rounded for fraction in row)
    for row in form.values:  # in the span of the truth
        assert np.linalg.matrix_rank(np.vstack([truth, row]), tol=1e-9) == 2
    np.testing.assert_allclose(normal_form(mixed, form.pivots)[:, form.pivots], np.eye(2), atol=1e-12)


def test_fractions_and_texts():
    assert fraction_in(0.3, 0.35) == Fraction(1, 3)
    assert fraction_in(-1.52, -1.45) == Fraction(-3, 2)
    assert fraction_in(-0.1, 0.3) is None
    values = np.array([[2 / 3, -1 / 3, 0.0, 0.41]])
    low, high = values - [0.01, 0.01, 0.01, 0.01], values + 0.01
    (absolute,) = products_of(Exponents(values, low, high, ()), "abcd", [True] * 4)
    assert str(absolute) == "a^(2/3) d^0.41 / b^(1/3)"
    (ratio,) = products_of(Exponents(values[:, :3], low[:, :3], high[:, :3], (0,)), "abc", [True] * 3)
    assert str(ratio) == "a^2 / b"
    (turned,) = products_of(Exponents(-values[:, :2], -high[:, :2], -low[:, :2], (0,)), "ab", [True] * 2)
    assert str(turned) == "a^2 / b"
    (mixed,) = products_of(Exponents(values[:, :2], low[:, :2], high[:, :2], ()), "ab", [True, False])
    assert str(mixed) == "a^(2/3) / exp(1/3 b)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "y: got None"),
        ({"y": np.ones((20, 2))}, "y: "),
        ({"y": np.ones(19)}, "y: "),
        ({"X": np.full((20, 2), np.nan)}, "X: got missing values"),
        ({"estimator": 3}, "estimator: got 3"),
        ({"groups": "text"}, "groups: "),
        ({"groups": np.arange(19), "X": np.arange(40.0).reshape(20, 2), "y": FAR}, "groups: got shape"),
        ({"X": pd.DataFrame(np.ones((20, 2)), columns=["a", "a"])}, "unique column names|different names"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        dimensionless_groups(**{"X": np.ones((20, 2)), "y": np.arange(20.0)} | change)
