import math

import numpy as np
import pytest

from bnrank.theory.cost.expansion import expand

DEPTHS = np.arange(4, 21)


def linear(singular_values, depths):
    """T2: L times the sum of s^(2/L)."""
    return sum(depths * s ** (2 / depths) for s in singular_values)


def coefficients(singular_values):
    """T3: rank, 2 log|A|_+ and half of ||log_+ A^T A||_F^2."""
    logs = np.log(singular_values)
    return len(logs), 2 * logs.sum(), 0.5 * ((2 * logs) ** 2).sum()


def noisy(depths, seed, sigma, truth=(2, 1.5, 3)):
    noise = sigma * np.random.default_rng(seed).normal(size=len(depths))
    return truth[0] * depths + truth[1] + truth[2] / depths + noise


@pytest.mark.parametrize("values", [[2.0, 0.5], [1.5, 1.2], [3.0, 1.0, 0.4], [0.2]])
@pytest.mark.parametrize("first", [6, 12, 24])
def test_the_coefficients_of_linear_maps_are_recovered_as_far_as_the_next_term_allows(values, first):
    depths = first * np.arange(1, 7)
    found = expand(depths, linear(values, depths))
    truth = coefficients(values)
    third = sum(abs(2 * math.log(s)) ** 3 for s in values) / 6  # of c / L^2
    assert abs(found.R0 - truth[0]) < third / first**3
    assert abs(found.R1 - truth[1]) < 6 * third / first**2
    assert abs(found.R2 - truth[2]) < 12 * third / first
    for value, (low, high) in zip(truth, (found.R0_interval, found.R1_interval, found.R2_interval), strict=True):
        assert low - 1e-9 <= value <= high + 1e-9
    assert (found.rank, found.unique, found.fits) == (len(values), True, True)
    assert found.predict(1000) == pytest.approx(linear(values, 1000), rel=2e-3)
    assert found.residual <= third / first**2


def test_a_misfit_that_is_significant_but_does_not_matter_is_no_misfit():
    found = expand(DEPTHS, linear([2.0, 0.5], DEPTHS))
    assert found.p_value < 0.01
    assert (found.fits, found.rank) == (True, 2)


def test_norms_on_the_curve_give_it_back():
    found = expand(DEPTHS, noisy(DEPTHS, 0, 0.0))
    np.testing.assert_allclose((found.R0, found.R1, found.R2), (2, 1.5, 3), atol=1e-9)
    assert (found.fits, found.p_value, found.residual) == (True, 1.0, pytest.approx(0, abs=1e-12))
    assert found.predict(7) == pytest.approx(14 + 1.5 + 3 / 7)
    np.testing.assert_allclose(found.predict([5, 50]), [10 + 1.5 + 0.6, 100 + 1.5 + 0.06])
    zero = expand([2, 3, 4, 5], [0.0, 0.0, 0.0, 0.0])
    assert (zero.R0, zero.rank, zero.fits) == (0.0, 0, True)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("sigma", [None, 0.2])
def test_intervals_cover_planted_coefficients_and_good_norms_are_hardly_ever_refused(repeats, sigma):
    depths, trials, truth = np.repeat(np.arange(3, 13), repeats), 500, (2, -3, 4)
    covered, refused = np.zeros(3), 0
    for seed in range(trials):
        found = expand(depths, noisy(depths, seed, 0.2, truth), sigma=sigma)
        intervals = (found.R0_interval, found.R1_interval, found.R2_interval)
        covered += [low <= value <= high for value, (low, high) in zip(truth, intervals, strict=True)]
        refused += found.fits is False
    assert np.all(np.abs(covered / trials - 0.95) < 0.03)  # three standard errors
    assert refused / trials < 0.03


def test_the_intervals_are_those_of_ordinary_least_squares():
    y = noisy(DEPTHS, 3, 0.1)
    found = expand(DEPTHS, y)
    X = np.stack([DEPTHS, np.ones(len(DEPTHS)), 1 / DEPTHS], 1)
    estimate, (squares,), *_ = np.linalg.lstsq(X, y, rcond=None)
    error = np.sqrt(squares / 14 * np.linalg.inv(X.T @ X)[0, 0])
    np.testing.assert_allclose((found.R0, found.R1, found.R2), estimate, rtol=1e-9)
    assert found.R0_interval == pytest.approx((estimate[0] - 2.1447867 * error, estimate[0] + 2.1447867 * error))
    assert found.residual == pytest.approx(np.sqrt(squares / 17))


MISFITS = {
    "quadratic": DEPTHS**2,
    "a little quadratic": 2 * DEPTHS + 0.03 * DEPTHS**2,
    "power 1.5": DEPTHS**1.5,
    "L log L": DEPTHS * np.log(DEPTHS),
    "two ranks by turns": np.where(DEPTHS % 2, 2 * DEPTHS + 1, DEPTHS + 4),
    "one of another rank": np.where(DEPTHS == 18, DEPTHS + 4, 2 * DEPTHS + 1),
    "collapse to zero": np.where(DEPTHS > 12, 0, 2 * DEPTHS + 1),
    "collapse to rank one": np.where(DEPTHS > 12, DEPTHS + 3, 2 * DEPTHS + 1),
    "the better of two ranks": np.minimum(2 * DEPTHS + 1, DEPTHS + 13),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("repeats", [1, 3])
def test_what_is_no_expansion_is_refused(name, noise, repeats):
    depths, norms = np.repeat(DEPTHS, repeats), np.repeat(MISFITS[name], repeats)
    norms = norms + noise * np.random.default_rng(0).normal(size=len(norms))
    assert expand(depths, norms).fits is False
    if noise:
        found = expand(depths, norms, sigma=noise)
        assert found.fits is False
        assert found.p_value < 1e-6


def test_a_mixture_at_every_depth_is_refused_although_the_scatter_would_explain_it():
    g = np.random.default_rng(0)
    depths = np.repeat(DEPTHS, 4)
    norms = np.where(g.random(len(depths)) < 0.5, 2 * depths + 1, depths + 4)
    found = expand(depths, norms + 0.1 * g.normal(size=len(depths)))
    assert found.fits is False
    assert "more than L / 4" in found.reason


def test_one_wrong_norm_at_a_small_depth_is_seen():
    norms = noisy(DEPTHS, 0, 0.0)
    norms[1] += 2.0
    found = expand(DEPTHS, norms)
    assert found.fits is False
    assert "the norm at depth 5 is off" in found.reason


def test_sigma_decides_what_a_misfit_is():
    depths = np.array([3, 4, 5, 6, 8, 10])
    norms = linear([4.0, 0.3], depths)
    assert expand(depths, norms, sigma=1.0).fits is True
    assert expand(depths, norms, sigma=1e-4).fits is False
    wide, narrow = (expand(depths, norms, sigma=s).R0_interval for s in (2.0, 1.0))
    assert wide[1] - wide[0] == pytest.approx(2 * (narrow[1] - narrow[0]))
    assert expand(depths, norms, sigma=10.0).unique is False  # several integers


def test_too_few_or_too_noisy_norms_say_nothing():
    three = expand([3, 5, 8], [7.0, 11.0, 17.0])
    assert (three.fits, three.R0_interval, three.unique) == (None, (-math.inf, math.inf), False)
    assert math.isnan(three.p_value)
    assert expand([3, 5, 8] * 3, [7.0, 11.0, 17.0] * 3).fits is None
    four = [3, 4, 5, 6]
    assert expand(four, linear([2.0], np.array(four))).fits is None
    assert expand(four, linear([2.0], np.array(four)), sigma=0.1).fits is True
    assert expand(four * 2, noisy(np.array(four * 2), 0, 0.01)).fits is True
    kink = expand([4, 6, 8, 12, 16, 24], [9, 13, 17, 23.7, 27.7, 35.7])
    assert (kink.fits, kink.p_value > 0.01) == (None, True)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="depths: got 2 different ones"):
        expand([3, 4, 4], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="got 3 and 2 numbers"):
        expand([3, 4, 5], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"depths: got 2\.5"):
        expand([2.5, 3, 4], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="norms: got NaN"):
        expand([2, 3, 4], [1.0, math.nan, 3.0])
    with pytest.raises(TypeError, match="norms: got"):
        expand([2, 3, 4], ["a", "b", "c"])
    with pytest.raises(ValueError, match="sigma: got 0"):
        expand([2, 3, 4], [1.0, 2.0, 3.0], sigma=0.0)
    with pytest.raises(ValueError, match="depth: got"):
        expand(DEPTHS, DEPTHS).predict([0, 3])
