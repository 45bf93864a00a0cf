"""Weights of rows: zero is absent, whole numbers are repeats, and only ratios matter."""

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bnrank.discovery import BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators.bottleneck import InputDirections, coordinates_of, project, sensitivity, truncate
from bnrank.discovery.estimators.counts import Count, by_group, standard_error
from bnrank.discovery.estimators.directions import sufficient_number
from bnrank.discovery.estimators.learning import few_rows, sample_of
from bnrank.discovery.estimators.linear_maps import best_linear, linear_map
from bnrank.discovery.estimators.path import Path
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data, apart, scaling_of
from bnrank.discovery.estimators.weights import effective, weights_of
from bnrank.networks import MLP

COUNTS = ("n_components_", "n_components_interval_", "undetermined_", "model_", "n_input_directions_")
QUICK = {"ridges": [0.01], "steps": 1, "depth": 2, "n_networks": 1}
LOSSES = ("held_out_", "held_out_error_", "input_held_out_", "influence_", "sensitivity_", "spectrum_")


def table(rows=80, seed=0, noise=0.3):
    """Rank 2, five inputs and four outputs, linear."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 5)) + 1
    return x, x[:, :2] @ [[1, 0, 1, 0.5], [0, 1, -1, 1]] + noise * generator.normal(size=(rows, 4))


def times_of(rows, seed=1):
    times = np.random.default_rng(seed).integers(0, 4, rows)
    times[:4] = 0, 1, 2, 7
    return times


def assert_same_fit(one, other, x, rtol=0.0):
    for name in COUNTS:
        assert getattr(one, name) == getattr(other, name), name
    for name in LOSSES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=rtol, err_msg=name)
    np.testing.assert_allclose(one.predict(x), other.predict(x), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(one.transform(x), other.transform(x), rtol=rtol, atol=rtol)
    assert one.summary_.score == pytest.approx(other.summary_.score, rel=max(rtol, 1e-15))


# Whole fits


@pytest.mark.parametrize("ones", [False, True])
def test_a_row_of_weight_zero_is_as_if_absent(ones):
    x, y = table()
    y[7] = 1000.0  # an outlier
    weights = times_of(80).astype(float)
    weights = (weights > 0).astype(float) if ones else weights
    weights[7] = 1.0
    there = weights > 0
    found = BottleneckRegressor().fit(x, y, sample_weight=weights)
    alone = BottleneckRegressor().fit(x[there], y[there], sample_weight=None if ones else weights[there])
    assert_same_fit(found, alone, x)
    assert found.outliers_.tolist() == [7]
    assert alone.outliers_.tolist() == [int(there[:7].sum())]
    assert found.summary_.rows == there.sum()
    assert f"{80 - there.sum()} of 80 rows have weight 0, and are not used" in found.notes_


def test_a_row_of_next_to_no_weight_is_as_if_absent():
    x, y = table()
    x = np.column_stack([x, np.arange(80) >= 70])  # an indicator of these rows
    weights = np.where(np.arange(80) < 70, 1.0, 1e-40)
    found = BottleneckRegressor(**QUICK).fit(x, y, sample_weight=weights)
    alone = BottleneckRegressor(**QUICK).fit(x[:70], y[:70])
    assert found.input_scale_[-1] == 0
    assert_same_fit(found, alone, x)


def test_rows_that_decide_count_by_their_weights():
    x, y = table()
    splits = Splits.of(np.arange(80) % 2)
    weights = np.where(np.arange(80) < 4, 1.0, 1e-3)
    equal, uneven = (Path(Data(x, y, weights=w), splits, np.arange(80) // 2) for w in (None, weights))
    assert equal.independent(splits.out[0]) == 40
    assert uneven.independent(splits.out[0]) == pytest.approx(2.038**2 / (2 + 38e-6))
    assert uneven.independent(np.arange(80) < 4) == 2


class Recorded(KFold):
    """Folds that record the classes they are given."""

    def split(self, X, y=None, groups=None):
        self.given = y.copy()
        return super().split(X, y, groups)


def test_a_splitter_sees_the_classes_of_rows_of_weight_zero():
    x, _ = table(60)
    labels = np.where(x[:, 0] > 1, "a", "b")
    weights = np.where(np.arange(60) % 3, 1.0, 0.0)
    folds = Recorded(3)
    BottleneckClassifier(cv=folds, **QUICK).fit(x, labels, sample_weight=weights)
    assert np.array_equal(folds.given, (labels == "b").astype(int))


def test_a_row_of_weight_zero_is_absent_from_networks_groups_and_blocks():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 2))
    y, weights = np.abs(x), times_of(60).astype(float)
    there, groups = weights > 0, np.arange(60) // 3
    options = {"steps": 40, "ridges": [0.003], "depth": 4, "n_networks": 1}
    found = BottleneckRegressor(**options).fit(x, y, groups, sample_weight=weights)
    alone = BottleneckRegressor(**options).fit(x[there], y[there], groups[there], sample_weight=weights[there])
    assert found.model_ == "network"
    assert_same_fit(found, alone, x)
    walks = generator.normal(size=(240, 3)).cumsum(axis=0)
    weights = times_of(240).astype(float)
    there = weights > 0
    found, alone = (
        BottleneckRegressor(steps=1).fit(walks[rows, :2], walks[rows, 2:], sample_weight=weights[rows])
        for rows in (slice(None), there)
    )
    assert found.notes_[0] == alone.notes_[0]  # the same blocks
    assert_same_fit(found, alone, walks[:, :2])


def test_a_class_of_weight_zero_is_no_class():
    x, _ = table(60)
    labels = np.where(x[:, 0] > 1, "a", "b")
    labels[50:] = "c"
    weights = np.append(times_of(50), np.zeros(10))
    found = BottleneckClassifier().fit(x, labels, sample_weight=weights)
    there = weights > 0
    alone = BottleneckClassifier().fit(x[there], labels[there], sample_weight=weights[there])
    assert found.classes_.tolist() == ["a", "b"]
    assert np.array_equal(found.predict_proba(x), alone.predict_proba(x))


def test_whole_weights_are_repeated_rows():
    x, y = table(50)
    times = times_of(50)
    weighted = BottleneckRegressor(**QUICK).fit(x, y, sample_weight=times / 5)
    repeated = BottleneckRegressor(**QUICK).fit(np.repeat(x, times, 0), np.repeat(y, times, 0))
    plain = BottleneckRegressor(**QUICK).fit(x, y)
    assert weighted.model_ == "linear"
    assert_same_fit(weighted, repeated, x, rtol=1e-8)
    assert np.abs(plain.predict(x) - weighted.predict(x)).max() > 0.01


def test_whole_weights_are_repeated_rows_for_networks():
    """Few steps of Adam, whose trajectory does not depend on the number of rows, except for rounding."""
    generator = np.random.default_rng(3)
    x, times = generator.normal(size=(90, 2)), times_of(90)
    y, options = np.abs(x), {"steps": 80, "ridges": [0.003, 0.001], "depth": 3, "n_networks": 1}
    weighted = BottleneckRegressor(**options).fit(x, y, sample_weight=times)
    repeated = BottleneckRegressor(**options).fit(np.repeat(x, times, 0), np.repeat(y, times, 0))
    assert weighted.model_ == repeated.model_ == "network"
    for name in ("held_out_", "held_out_error_", "input_held_out_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-2)
    for one, other in zip(weighted.stability_, repeated.stability_, strict=True):
        assert (one.count, one.directions, one.considered) == (other.count, other.directions, other.considered)
        assert (one.held_out, one.loss) == pytest.approx((other.held_out, other.loss), rel=1e-3, nan_ok=True)
    assert np.square(weighted.predict(x) - repeated.predict(x)).mean() < 0.02 * y.var()


def test_only_ratios_of_weights_matter():
    x, y = table(60)
    weights = np.random.default_rng(0).uniform(0.5, 2, 60)
    first, *others = (BottleneckRegressor().fit(x, y, sample_weight=w) for w in (weights, 4 * weights, weights / 3e200))
    assert_same_fit(first, others[0], x)
    assert_same_fit(first, others[1], x, rtol=1e-9)
    equal = BottleneckRegressor().fit(x, y, sample_weight=np.full(60, 0.3))
    assert_same_fit(equal, BottleneckRegressor().fit(x, y), x)


def test_weights_select_one_of_two_populations():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(240, 4))
    one, three = generator.normal(size=(4, 1)) @ generator.normal(size=(1, 3)), generator.normal(size=(4, 3))
    first = np.arange(240) < 120
    y = np.where(first[:, None], x @ one, x @ three) + 0.05 * generator.normal(size=(240, 3))
    for rows, b, number in ((first, one, 1), (~first, three, 3)):
        found = BottleneckRegressor(ridges=[0.01], steps=20).fit(x, y, sample_weight=np.where(rows, 1.0, 1e-4))
        assert (found.n_components_, found.undetermined_) == (number, False)
        assert np.abs(found.predict(x) - x @ b).max() < 0.1
    both = BottleneckRegressor(ridges=[0.01], steps=20).fit(x, y)
    assert np.abs(both.predict(x) - x @ three).max() > 1


def test_weights_by_the_inverse_variance_of_the_noise_predict_clean_data_better():
    generator = np.random.default_rng(0)
    errors = []
    for seed in range(3):
        x, clean = table(100, seed, noise=0.0)
        spread = np.exp(generator.normal(size=100))[:, None]
        y = clean + spread * generator.normal(size=clean.shape)
        found = [
            BottleneckRegressor(2, robust=False, **QUICK).fit(x, y, sample_weight=w) for w in (None, spread[:, 0] ** -2)
        ]
        errors.append([np.square(each.predict(x) - clean).mean() for each in found])
    plain, weighted = np.transpose(errors)
    assert (weighted < 0.5 * plain).all()


def test_weights_of_classes_and_scores():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3))
    by_first, by_second = (x[:, j] > 0 for j in (0, 1))
    first = np.arange(200) < 100
    labels = np.where(first, by_first, by_second).astype(int)
    for rows, truth in ((first, by_first), (~first, by_second)):
        weights = np.where(rows, 1.0, 1e-3)
        found = BottleneckClassifier(ridges=[0.01], steps=20).fit(x, labels, sample_weight=weights)
        assert np.mean(found.predict(x) == truth) > 0.93
        right = found.predict(x) == labels
        assert found.score(x, labels, weights) == pytest.approx(weights @ right / weights.sum())
        assert found.summary_.score == pytest.approx(weights @ right / weights.sum())


def test_the_score_is_weighted():
    x, y = table(60)
    weights = times_of(60).astype(float)
    found = BottleneckRegressor(**QUICK).fit(x, y, sample_weight=weights)
    assert found.summary_.score == pytest.approx(r2_score(y, found.predict(x), sample_weight=weights))
    assert found.score(x, y, weights) == pytest.approx(found.summary_.score)


def test_the_components_have_weighted_mean_0_and_covariance_1():
    x, y = table(60)
    weights = times_of(60).astype(float)
    z = BottleneckRegressor(2, **QUICK).fit(x, y, sample_weight=weights).transform(x)
    assert np.average(z, axis=0, weights=weights) == pytest.approx([0, 0], abs=1e-9)
    assert (z.T * weights) @ z / weights.sum() == pytest.approx(np.eye(2), abs=1e-9)


def test_networks_find_the_number_with_uneven_weights():
    generator = np.random.default_rng(100)
    x = generator.normal(size=(150, 5))
    z = np.tanh(2 * x[:, :2] @ generator.normal(size=(2, 2)))
    y = z @ generator.normal(size=(2, 4)) + 0.05 * generator.normal(size=(150, 4))
    found = BottleneckRegressor(depth=4, n_networks=1).fit(x, y, sample_weight=generator.uniform(0.5, 2, 150))
    assert (found.model_, found.n_components_) == ("network", 2)


def test_weights_and_groups_are_routed_as_by_scikit_learn():
    x, y = table(60)
    weights, groups = times_of(60).astype(float), np.arange(60) // 4
    estimator = BottleneckRegressor(2, **QUICK)
    folds = KFold(3)
    expected = [
        r2_score(
            y[out],
            BottleneckRegressor(2, **QUICK).fit(x[on], y[on], sample_weight=weights[on]).predict(x[out]),
        )
        for on, out in folds.split(x)
    ]
    assert cross_val_score(estimator, x, y, cv=folds, params={"sample_weight": weights}) == pytest.approx(expected)
    with config_context(enable_metadata_routing=True):
        routed = BottleneckRegressor(**QUICK).set_fit_request(sample_weight=True, groups=True)
        routed.set_score_request(sample_weight=True)
        pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), routed)
        pipeline.set_score_request(sample_weight=True)  # scikit-learn 1.6 asks for it
        search = GridSearchCV(pipeline, {"bottleneckregressor__n_components": [1, 2]}, cv=GroupKFold(2))
        search.fit(x, y, sample_weight=weights, groups=groups)
        assert search.best_params_ == {"bottleneckregressor__n_components": 2}
        assert "weighted" in str(search.best_estimator_[-1].summary())


def test_a_splitter_receives_all_rows():
    x, y = table(40)
    weights = np.append(np.zeros(10), np.ones(30))
    pairs = [(np.arange(20, 40), np.arange(20)), (np.arange(20), np.arange(20, 40))]
    inner = [(np.arange(10, 30), np.arange(10)), (np.arange(10), np.arange(10, 30))]
    found = BottleneckRegressor(cv=pairs, **QUICK).fit(x, y, sample_weight=weights)
    assert_same_fit(found, BottleneckRegressor(cv=inner, **QUICK).fit(x[10:], y[10:]), x)


@pytest.mark.parametrize("kind", [BottleneckRegressor, BottleneckClassifier])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(19), r"^sample_weight: got shape \(19,\), expected \(20,\), one weight for each row"),
        (np.ones((20, 1)), r"^sample_weight: got shape \(20, 1\), expected \(20,\)"),
        (2.0, "^sample_weight: got shape"),
        (
            np.append(np.ones(18), [-1, -2]),
            r"^sample_weight: got negative weights \(2 of 20 rows\), expected at least 0",
        ),
        (np.append(np.ones(19), np.nan), "^sample_weight: .*NaN"),
        (np.append(np.ones(19), np.inf), "^sample_weight: .*infinity"),
        (np.zeros(20), "^sample_weight: got zeros only, expected weights above 0 in at least 2 rows"),
        (np.append(np.zeros(19), 1), "^sample_weight: got a weight above 0 in 1 row, expected in at least 2 rows"),
        (["heavy"] * 20, "^sample_weight: "),
    ],
)
def test_bad_weights(kind, weights, message):
    x, _ = table(20)
    estimator = kind()
    with pytest.raises(ValueError, match=message):
        estimator.fit(x, (x[:, 0] > 1).astype(int), sample_weight=weights)
    assert not hasattr(estimator, "n_components_")


def test_formulas_of_weighted_rows_are_refused():
    x, y = table(60)
    found = BottleneckRegressor(**QUICK).fit(x, y, sample_weight=times_of(60))
    assert found.weighted_
    with pytest.raises(ValueError, match=r"^sample_weight: got weights in fit, expected an estimator fitted"):
        found.formulas(x, y)
    assert not found.fit(x, y, sample_weight=np.full(60, 3)).weighted_


def test_few_effective_rows_leave_the_count_undetermined():
    x, y = table(60)
    weights = np.append(np.ones(8), np.full(52, 1e-6))
    found = BottleneckRegressor(**QUICK).fit(x, y, sample_weight=weights)
    assert found.undetermined_
    assert "with these weights the rows count as only 8.0, expected at least 10" in found.reason_
    count, groups = Count(1, (1, 1), 1.0, False, ""), np.arange(60) // 5
    data = Data(x, y, units=groups, weights=np.where(groups < 3, 1.0, 1e-9))
    assert "the groups count as only 3.0" in few_rows(count, data).reason
    assert not few_rows(count, Data(x, y, units=groups)).undetermined


# Parts


def test_entries_by_group_are_those_of_repeated_rows():
    generator = np.random.default_rng(0)
    errors, groups, times = generator.normal(size=(3, 40)), generator.permutation(40) // 3, times_of(40)
    groups = np.unique(groups[times > 0], return_inverse=True)[1]
    errors, times = errors[:, times > 0], times[times > 0]
    made = by_group(errors, groups, times / 7)
    np.testing.assert_allclose(made, by_group(np.repeat(errors, times, 1), np.repeat(groups, times)), rtol=1e-12)
    np.testing.assert_allclose(made.mean(axis=1), np.average(errors, axis=1, weights=times))
    np.testing.assert_allclose(made[0] - made[1], by_group(errors[0] - errors[1], groups, times))


def test_the_standard_error_is_that_of_many_draws():
    """Losses of one variance, whatever the weights: sigma over the root of the effective number of rows."""
    generator = np.random.default_rng(0)
    weights, rows = np.exp(generator.normal(size=400)), np.arange(400)
    draws = generator.normal(2.0, 3.0, size=(3000, 400))
    means = np.average(draws, axis=1, weights=weights)
    expected = 3.0 / np.sqrt(effective(weights, rows))
    found = [standard_error(by_group(draw, rows, weights)) for draw in draws[:200]]
    assert means.std() == pytest.approx(expected, rel=0.05)
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(expected, rel=0.05)
    assert effective(np.full(400, 0.1), rows) == pytest.approx(400)


@pytest.mark.parametrize("classes", [0, 3])
def test_linear_maps_with_whole_weights_are_those_of_repeated_rows(classes):
    x, y = table(60)
    y = (x[:, 0] + 0.3 * y[:, 0] > 1).astype(int) + (x[:, 1] > 1) if classes else y
    times = times_of(60)
    map_ = linear_map(x, y, 0.01, classes, times * 0.1)
    other = linear_map(np.repeat(x, times, 0), np.repeat(y, times, 0), 0.01, classes)
    for rank in range(3):
        values, expected = (each.network(rank)(torch.from_numpy(x)).detach().numpy() for each in (map_, other))
        np.testing.assert_allclose(values, expected, atol=1e-3 if classes else 1e-9)
    np.testing.assert_allclose(map_.losses(x, y, 2, classes), other.losses(x, y, 2, classes), atol=2e-3)


def test_held_out_losses_of_linear_maps_are_weighted():
    """A ridge and a rank for the heavy rows, by an obvious loop."""
    x, y = table(60, noise=1.0)
    weights, folds = times_of(60) + 0.5, np.arange(60) % 3
    found = best_linear(x, y, Splits.of(folds), 3, weights=weights)
    losses = np.zeros((4, 60))
    for fold in range(3):
        out = folds == fold
        map_ = linear_map(x[~out], y[~out], found.ridge, weights=weights[~out])
        losses[:, out] = map_.losses(x[out], y[out], 3)
    np.testing.assert_allclose(found.errors.mean(axis=1), losses @ weights / weights.sum())


def test_a_missing_class_counts_as_a_row_of_mean_weight():
    labels, weights = np.array([0, 0, 0, 2]), np.array([1.0, 1.0, 2.0, 4.0])
    constant = linear_map(np.zeros((4, 1)), labels, 1.0, 3, weights).constant
    assert np.exp(constant) == pytest.approx(np.array([2, 1, 2]) / 5)


def test_weighted_least_squares_of_scikit_learn():
    x, y = table(40)
    weights = times_of(40) + 0.1
    made = linear_map(x, y, 1e-12, weights=weights).network(4)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(made, LinearRegression().fit(x, y, weights).predict(x), atol=1e-8)


def test_scaling_and_held_out_means_are_those_of_repeated_rows():
    x, y = table(40)
    times = times_of(40)
    for outputs in ("jointly", "each"):
        made = scaling_of(x, y, outputs, weights=times * 1.0)
        other = scaling_of(np.repeat(x, times, 0), np.repeat(y, times, 0), outputs)
        for name in ("x_mean", "x_factor", "y_mean", "y_factor"):
            np.testing.assert_allclose(getattr(made, name), getattr(other, name), rtol=1e-12)
    known = np.arange(40) < 30
    _, held_out = apart(Data(x, y, weights=times + 0.5), known, ~known)
    mean = np.average(y[known], axis=0, weights=times[known] + 0.5)
    np.testing.assert_allclose(held_out.y, y[~known] - mean)


def test_cuts_and_coordinates_of_networks_are_those_of_repeated_rows():
    x, times = torch.from_numpy(table(60)[0]), times_of(60)
    weights, often = times * 0.3, x.repeat_interleave(torch.from_numpy(times), 0)
    net = MLP([5, 9, 9, 4], seed=0, dtype=torch.float64)
    made, other = truncate(net, x, 4, row_weights=weights), truncate(net, often, 4)
    assert made.layers == other.layers
    np.testing.assert_allclose(made.change, other.change, rtol=1e-9, atol=1e-12)
    assert np.abs(truncate(net, x, 4).change / made.change - 1)[:4].max() > 0.05
    for one, two in (
        (project(net, x, 2, 2, weights), project(net, often, 2, 2)),
        (coordinates_of(net, x, 2, 2, weights).encoder, coordinates_of(net, often, 2, 2).encoder),
        (coordinates_of(net, x, 2, 2, weights).decoder, coordinates_of(net, often, 2, 2).decoder),
    ):
        given = x[:, : one.widths[0]]
        assert torch.allclose(one(given), two(given), atol=1e-9)
    spread = torch.ones(5, dtype=torch.float64)
    np.testing.assert_allclose(sensitivity(net, x, spread, weights), sensitivity(net, often, spread))
    found, expected = InputDirections(net, x, weights), InputDirections(net, often)
    np.testing.assert_allclose(found.spectrum, expected.spectrum)
    assert torch.allclose(found.project(x, 2), expected.project(x, 2))
    for negligible in (0.01, 0.1, 1.0):
        assert sufficient_number(net, x, negligible, 0, weights) == sufficient_number(net, often, negligible)


def test_many_rows_are_sampled_in_proportion_to_weights():
    x = np.arange(20_000.0)[:, None]
    heavy = x[:, 0] < 2000
    data = Data(x, np.zeros((20_000, 1)), weights=np.where(heavy, 1.0, 1e-3))
    rows, some = sample_of(data, 0)
    share = 18 / 2018
    assert some.weights is None or some.weights.sum() == 4000
    light = (np.ones(len(rows)) if some.weights is None else some.weights)[rows >= 2000].sum()
    assert light == pytest.approx(4000 * share, abs=2)
    assert heavy[rows].sum() == 2000  # each is drawn about twice
    copies = Data(np.repeat(x[:3000], 2, 0), np.zeros((6000, 1)), weights=np.tile([0.5, 1.5], 3000))
    rows, some = sample_of(copies, 0)
    assert len(rows) == 3000
    assert some.weights.sum() == 4000  # the sum of a group is 2 in all
    assert set(some.weights) == {1, 2}


def test_gradients_and_cuts_of_many_rows_follow_the_weights():
    """Only a tenth of the rows, of positive inputs, has any weight to speak of."""
    x = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    heavy = np.arange(3000) % 10 == 3
    x[~heavy] *= -1
    net = MLP([2, 30, 30, 2], seed=1, dtype=torch.float64)
    weights, few = np.where(heavy, 1.0, 1e-9), x[heavy]
    expected = InputDirections(net, few).spectrum
    assert InputDirections(net, x, weights).spectrum == pytest.approx(expected, rel=0.03)
    assert np.abs(InputDirections(net, x).spectrum / expected - 1).max() > 0.2
    change = truncate(net, few, 2).change
    assert truncate(net, x, 2, row_weights=weights).change[:2] == pytest.approx(change[:2], rel=0.05)
    assert np.abs(truncate(net, x, 2).change[:2] / change[:2] - 1).max() > 0.2


def test_weights_are_normalized():
    assert weights_of(np.array([0.0, 1e-200, 3e-200]), 3).tolist() == [0.0, 0.5, 1.5]
    assert weights_of(np.full(3, 1e308), 3) is None
    assert weights_of(None, 3) is None
