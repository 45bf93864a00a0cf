"""What is kept of what was tried: deep or shallow, linear or not, which rows are looked at, and how sure it is."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bnrank.discovery import BottleneckAutoencoder, BottleneckRegressor
from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.bottleneck import truncate
from bnrank.discovery.estimators.budget import budget_for
from bnrank.discovery.estimators.counts import Count, standard_error
from bnrank.discovery.estimators.cuts import losses_of
from bnrank.discovery.estimators.learning import Evidence, count_from, investigate, learn, rows_of
from bnrank.discovery.estimators.linear_maps import best_linear
from bnrank.discovery.estimators.path import Fit, Path, folds_of
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data
from bnrank.networks import MLP

from .tables import QUICK

NOISE = np.tile([1.0, -1.0], 60)
ERROR = 1 / np.sqrt(120)  # its standard error


def noise_table(n=120, seed=0):
    generator = np.random.default_rng(seed)
    return Data(generator.normal(size=(n, 3)), 3 * generator.normal(size=(n, 2)))


def pretend(monkeypatch, losses):
    """Have networks of each depth these held-out losses at 1 and 2 dimensions; return the depths that were tried."""
    tried = []

    def explore(data, splits, groups, level, plan, rival=None, first=()):
        tried.append(plan.depth)
        path = Path(data, splits, groups)
        path.errors[0.01] = np.vstack([level, *(loss + NOISE for loss in losses[plan.depth])])
        return path

    monkeypatch.setattr(learning, "explore", explore)
    monkeypatch.setattr(learning, "of_folds", lambda *arguments, **named: [])
    return tried


@pytest.mark.parametrize(("gain", "depth"), [(0.0, 12), (1.9 * ERROR, 12), (2.1 * ERROR, 4)])
def test_shallow_networks_are_kept_where_they_are_better_by_two_standard_errors(monkeypatch, gain, depth):
    tried = pretend(monkeypatch, {12: [2.0, 2.0], 4: [2.0 - gain, 2.0 - gain]})
    found = investigate(noise_table(), budget_for(200, 3, 2, 2))
    assert (found.kind, found.number, found.plan.depth) == ("network", 1, depth)
    assert tried == [12, 4]
    kept, other = (2.0, 2.0 - gain) if depth == 12 else (2.0 - gain, 2.0)
    assert found.path.errors[0.01][1].mean() == pytest.approx(kept)
    assert found.rival.errors[0.01][1].mean() == pytest.approx(other)


def test_no_shallow_networks_are_tried_where_the_depth_is_given(monkeypatch):
    tried = pretend(monkeypatch, {12: [2.0, 2.0], 4: [0.0, 0.0]})
    assert investigate(noise_table(), replace(budget_for(200, 3, 2, 2), shallow=0)).plan.depth == 12
    assert tried == [12]


@pytest.mark.parametrize(("wanted", "depth"), [(None, 12), (1, 4), (2, 12)])
def test_depths_are_compared_at_the_dimensions_wanted(monkeypatch, wanted, depth):
    pretend(monkeypatch, {12: [4.0, 2.0], 4: [2.0, 2.0]})
    found = investigate(noise_table(), budget_for(200, 3, 2, 2), wanted)
    assert (found.number, found.plan.depth) == (wanted or 2, depth)


def test_two_products_of_inputs_are_counted_by_shallow_networks_and_the_summary_says_so():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 8))
    z = np.stack([x[:, 0] * x[:, 1], x[:, 2] * x[:, 3]], axis=1)
    y = z @ generator.normal(size=(2, 6)) + 0.5 * generator.normal(size=(400, 6))
    found = BottleneckRegressor().fit(x[:200], y[:200])
    assert (found.n_components_, found.n_components_interval_, found.undetermined_) == (2, (2, 2), False)
    assert found.score(x[200:], y[200:]) > 0.5
    assert {trial.depth for trial in found.stability_} == {4, 8, 12}
    assert {trial.depth for trial in found.stability_ if trial.considered} == {4, 8}
    assert "networks (* within one standard error of the best; depth 4 kept, chosen by held-out rows)" in str(
        found.summary()
    )


def test_the_summary_says_nothing_of_a_choice_where_the_depth_was_given(bent):
    text = str(BottleneckRegressor(2, **QUICK).fit(*bent).summary())
    assert "networks (* within one standard error of the best; depth 6 kept)" in text


def small_fit(data, seed, ridge=0.01, fold=None, held_out=1.0):
    """An untrained network as if it had been trained, with this loss on a held-out fold."""
    net = MLP([3, 8, 8, 2], seed=seed, dtype=torch.float64)
    cut = replace(truncate(net, torch.from_numpy(data.x), data.bound), errors=np.full((3, 4), held_out))
    return Fit(ridge, 4, seed, fold, net, 1.0, None, cut)


@pytest.mark.parametrize(("worse", "replaced"), [(0.9, False), (1.1, True)])
def test_final_networks_worse_than_those_of_the_folds_by_a_standard_error_are_replaced(monkeypatch, worse, replaced):
    data = noise_table()
    final = small_fit(data, 1)
    whole = losses_of(final.network, data).mean()
    path = Path(data, Splits.of(folds_of(data.groups, 3, 0)), data.groups)
    path.errors[0.01] = np.vstack([50 + NOISE, *[whole - worse * ERROR + NOISE] * 2])
    path.errors[0.1] = path.errors[0.01] + 9
    best = small_fit(data, 2, fold=1, held_out=2.0)
    path.fits = [
        small_fit(data, 3, fold=0, held_out=3.0),
        best,
        small_fit(data, 4, ridge=0.1, fold=0, held_out=1.0),
        small_fit(data, 5, fold=2, held_out=4.0),
    ]
    monkeypatch.setattr(learning, "_final_fits", lambda *arguments: [final])
    trained, went_on = MLP([3, 8, 8, 2], seed=9, dtype=torch.float64), []
    monkeypatch.setattr(learning, "_on_all_rows", lambda net, rows, ridge: went_on.append((net, ridge)) or trained)
    linear = best_linear(data.x, data.y, path.splits, 2)
    plan = replace(budget_for(60, 3, 2, 2), steps=2)
    model = learn(data, Evidence("network", 2, linear, path, None, np.arange(120), plan))
    assert went_on == ([(best.network, 0.01)] if replaced else [])
    assert model.whole is (trained if replaced else final.network)


def weak_component(gain):
    """Linear maps for y = (2 x_0, gain x_1) and noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4))
    y = x[:, :2] * [2.0, gain] + 0.5 * generator.normal(size=(200, 2))
    return best_linear(x, y, Splits.of(np.arange(200) % 3), 2)


def test_linear_maps_are_compared_row_by_row():
    fit = weak_component(0.2)
    means = fit.errors.mean(axis=1)
    assert means[1] - means[2] < standard_error(fit.errors[2])  # nothing to see for losses one by one
    assert fit.rank == 2


def test_resamples_of_linear_maps_are_compared_row_by_row():
    fit = weak_component(0.33)
    found = Evidence("linear", 2, fit, None, None, np.arange(200), budget_for(20, 4, 2, 2))
    assert learning.counts.resampled(fit.errors, 0.0) == (1, 2)
    assert count_from(found, 2).interval == (2, 2)


@pytest.mark.parametrize(("gain", "high"), [(1.5, 1), (-5.0, 0)])
def test_what_is_too_weak_to_be_found_shows_in_the_interval(gain, high):
    shared = np.repeat([6.0, -6.0], 60)  # which nothing is to be seen of in pairs
    errors = np.vstack([50 + shared, 50 + shared - gain * ERROR + NOISE])
    plan, linear = budget_for(20, 2, 1, 1), SimpleNamespace(errors=errors)
    count = count_from(Evidence("constant", 0, linear, None, None, np.arange(120), plan), 1)
    assert (count.number, count.interval, count.undetermined) == (0, (0, high), False)


@pytest.mark.parametrize(("gain", "high"), [(1.5, 1), (-5.0, 0)])
def test_what_networks_almost_find_shows_in_the_interval_too(gain, high):
    level = 50 + NOISE
    errors = np.vstack([level, level[::-1] - gain * ERROR])
    path, linear = SimpleNamespace(by_number=errors, rtol=0.0), SimpleNamespace(errors=errors[[0, 0]])
    found = Evidence("constant", 0, linear, path, None, np.arange(120), budget_for(120, 2, 1, 1))
    assert count_from(found, 1).interval == (0, high)


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
def test_the_interval_of_an_autoencoder_that_found_nothing_is_that_of_its_halves(monkeypatch):
    count = Count(0, (0, 2), float("nan"), False, "nothing")
    monkeypatch.setattr(learning, "count_from", lambda *arguments: count)
    found = BottleneckAutoencoder().fit(np.random.default_rng(0).normal(size=(20, 6)))
    assert (found.n_components_, found.n_components_interval_) == (0, (0, 2))


def test_rows_that_are_looked_at_are_drawn_among_those_that_differ():
    generator = np.random.default_rng(0)
    x = np.zeros((5000, 3))
    x[3000:3060] = generator.normal(size=(60, 3))
    assert rows_of(Data(x, x), 0).tolist() == [0, *range(3000, 3060)]
    x = generator.normal(size=(5000, 3))
    drawn = np.sort(np.random.default_rng(7).permutation(5000)[:4000])  # without copies, of all
    assert np.array_equal(rows_of(Data(x, x), 7), drawn)
    assert np.array_equal(rows_of(Data(x[:4000], x[:4000]), 7), np.arange(4000))


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
def test_few_rows_that_differ_among_very_many_are_all_used(monkeypatch):
    monkeypatch.setattr(learning, "MAX_ROWS", 400)
    generator = np.random.default_rng(1)
    x, y = np.zeros((10_000, 3)), np.zeros((10_000, 2))
    x[:60] = generator.normal(size=(60, 3))
    y[:60] = x[:60, :2]
    found = BottleneckRegressor().fit(x, y)
    assert (found.n_components_, found.model_, len(found.held_out_)) == (2, "linear", 3)
    assert len(BottleneckRegressor(**QUICK).fit(x, np.abs(y)).stability_) == 3  # networks of three folds
