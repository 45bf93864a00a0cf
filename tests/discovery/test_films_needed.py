"""The interval of the coordinates that films need: shares against a slow version, and the rule case by case."""

import numpy as np
import pytest
from scipy.stats import norm

from bnrank.discovery.films.needed import RTOL, Tried, interval_of, standard_errors, tried


def entry(k, *excess, margin=0.02):
    return Tried(k, 0.1, np.array(excess), np.full(len(excess), margin))


def test_shares_and_errors_are_those_written_out():
    rng = np.random.default_rng(0)
    errors, whole, of_mean = rng.exponential(size=(2, 40)), rng.exponential(size=40), 5 * rng.exponential(size=40)
    unit = np.repeat(np.arange(10) + 3, 4)
    found = tried(4, errors, whole, of_mean, unit)
    assert found.left == pytest.approx(errors[0].sum() / of_mean.sum())
    allowed = whole.sum() / of_mean.sum()
    allowed += RTOL * (1 - allowed)
    for seed in range(2):
        assert found.excess[seed] == pytest.approx(errors[seed].sum() / of_mean.sum() - allowed)
        films = []
        for number in np.unique(unit):
            rows = unit == number
            films.append((errors[seed] - whole - RTOL * (of_mean - whole))[rows].sum())
        error = np.std(films, ddof=1) * np.sqrt(10) / of_mean.sum()
        assert found.margin[seed] == pytest.approx(standard_errors(10) * error)


def test_the_error_is_that_of_draws_of_the_films():
    rng = np.random.default_rng(1)
    unit = np.repeat(np.arange(400), 5)
    draw = np.repeat(rng.normal(size=(200, 400)), 5, axis=1)  # windows of a film are alike
    found = [tried(1, row[None], np.zeros(2000), np.ones(2000), unit) for row in draw]
    spread = np.std([f.excess[0] for f in found])
    assert np.mean([f.margin[0] for f in found]) == pytest.approx(2 * spread, rel=0.15)


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_few_films_are_beyond_the_margin_as_rarely_as_many(groups):
    gain = np.random.default_rng(groups).normal(size=(20_000, groups))
    beyond = gain.mean(axis=1) > standard_errors(groups) * gain.std(axis=1, ddof=1) / np.sqrt(groups)
    assert beyond.mean() == pytest.approx(norm.sf(2), abs=0.004)


def test_one_film_has_no_error_to_judge_by():
    found = tried(2, np.zeros((1, 5)), np.zeros(5), np.ones(5), np.zeros(5, dtype=int))
    assert found.enough
    assert not found.certain


@pytest.mark.parametrize(
    ("found", "state_low", "expected"),
    [
        ([], 0, (0, 16)),  # nothing was found
        ([entry(1, 0.3, 0.3), entry(2, -0.1, -0.1)], 1, (2, 2)),  # one is not enough, two are, in every network
        ([entry(2, -0.1, -0.1)], 2, (2, 2)),
        ([entry(2, -0.1, -0.1)], 1, (1, 2)),  # one was not tried, and the state dimension may be 1
        ([entry(2, 0.3, 0.3), entry(3, -0.1, -0.1)], 1, (3, 3)),  # two are not enough, so that one is not
        ([entry(2, -0.1, 0.3), entry(3, -0.1, -0.1)], 2, (2, 3)),  # one of two networks needs three
        ([entry(2, 0.3, -0.1), entry(3, -0.1, -0.1)], 2, (2, 3)),
        ([entry(2, 0.018), entry(3, -0.1)], 2, (2, 3)),  # within the standard errors
        ([entry(2, -0.018), entry(3, -0.1)], 2, (2, 3)),
        ([entry(2, 0.3), entry(3, 0.2)], 2, (4, 16)),  # none suffices
    ],
)
def test_intervals(found, state_low, expected):
    assert interval_of(found, state_low, 16) == expected
