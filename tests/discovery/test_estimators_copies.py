"""Which rows are evidence of their own: copies, replicates, repeated measurements."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.budget import budget_for
from bnrank.discovery.estimators.counts import Count
from bnrank.discovery.estimators.learning import between_inputs, investigate
from bnrank.discovery.estimators.linear_maps import best_linear
from bnrank.discovery.estimators.tables import Data, groups_of_rows

from .tables import QUICK


def slow_groups(x, y, labels):
    """The definition, by loops over rows."""
    x, y = [tuple(row) for row in x], [tuple(row) for row in y]
    pairs = list(zip(x, y, strict=True))
    repeated = {a for a in x if x.count(a) > 1}
    several = {a for a in repeated if len({v for u, v in pairs if u == a}) > 1}
    elsewhere = sum(any(v == b and u != a for u, v in pairs) for a, b in pairs)
    different = sorted(set(pairs))
    times = math.gcd(*(pairs.count(pair) for pair in different))
    columns = [[*a, *b] for a, b in pairs]
    levels = [[row[j] for row in columns] for j in range(len(columns[0]))]
    agree = math.prod(sum(v == u for v in level for u in level) / len(x) ** 2 for level in levels)
    again = sum(pairs.count(pair) > 1 for pair in pairs) / len(x)
    few = all(len(set(level)) <= len(different) / 2 for level in levels)
    chance = again > 0 and few and 1 - (1 - agree) ** (len(x) - 1) >= again / 2
    if times ** -(len(different) - (0 if chance else len(set(x)))) > 0.01:
        times = 1
    repeated_once = [a for a in repeated if x.count(a) > times]
    if chance or (repeated and (labels or elsewhere > len(x) / 2) and len(several) >= len(repeated_once) / 10):
        if times == 1:
            return list(range(len(x)))
        before = [sum(pairs.count(other) for other in different if other < pair) for pair in pairs]
        return [(before[i] + pairs[:i].count(pair)) // times for i, pair in enumerate(pairs)]
    return [different.index(pair) for pair in pairs]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_groups_of_copies_against_the_definition(n, points, values, labels, whole, times, seed):
    generator = np.random.default_rng(seed)
    x, y = generator.integers(0, points, (n, 1)) / 3, generator.integers(0, values, (n, 1))
    if whole:  # y is a function of x
        y = np.round(np.sin(3 * values * x))
    x, y = np.tile(np.hstack([x // 2, x]), (times, 1)), np.tile(y, (times, 1))
    assert groups_of_rows(x, y[:, 0] if labels else y, labels=labels).tolist() == slow_groups(x, y, labels)


def test_rows_of_few_values_that_coincide_are_no_copies():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (100, 5)).astype(float)
    labels = x[:, 0].astype(int)  # the same at equal inputs
    assert groups_of_rows(x, labels, labels=True).tolist() == list(range(100))
    assert groups_of_rows(x, x[:, :1] + x[:, 1:2]).tolist() == list(range(100))
    tall = groups_of_rows(np.tile(x, (3, 1)), np.tile(labels, 3), labels=True)
    assert np.bincount(tall).tolist() == [3] * 100
    numbers = rng.normal(size=(20, 3))[rng.integers(0, 20, 300)]  # 20 rows of many values, several times each
    assert groups_of_rows(numbers, numbers[:, :1]).max() == 19


def test_a_table_of_yes_and_no_is_predicted():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, (107, 5)).astype(float)
    y = np.where(x[:, 0] * x[:, 1] > 0, "ill", "well")
    found = BottleneckClassifier().fit(x, y)
    assert found.n_components_ == 1
    assert found.score(x, y) > 0.9
    noise = BottleneckClassifier().fit(x, rng.permutation(y))
    assert (noise.n_components_, noise.model_) == (0, "constant")


def test_one_label_in_many_that_disagrees_does_not_make_copies_replicates():
    x, labels = np.tile(np.arange(40.0)[:, None], (4, 1)), np.tile(np.arange(40) % 2, 4)
    labels[0] = 1
    assert groups_of_rows(x, labels, labels=True).max() == 40
    labels[:4] = [1, 0, 1, 0]
    assert groups_of_rows(x, labels, labels=True).max() == 159


def test_copies_of_a_whole_table_of_labels_are_no_replicates():
    generator = np.random.default_rng(0)
    x, labels = generator.integers(0, 3, (60, 4)).astype(float), generator.integers(0, 3, 60)
    assert groups_of_rows(x, labels, labels=True).tolist() == list(range(60))
    tall, five = np.vstack([x] * 5), np.tile(labels, 5)
    groups = groups_of_rows(tall, five, labels=True)
    assert np.bincount(groups).tolist() == [5] * 60
    rows = np.column_stack([tall, five])
    assert all(len(np.unique(rows[groups == group], axis=0)) == 1 for group in range(60))
    assert groups_of_rows(np.vstack([x, tall]), np.r_[labels, 2 - five], labels=True).max() == 359
    x, labels = np.r_[np.arange(100.0), np.tile(np.arange(8.0), 2)][:, None], np.repeat([0, 1], [100, 16])
    assert np.bincount(groups_of_rows(np.tile(x, (5, 1)), np.tile(labels, 5), labels=True)).tolist() == [5] * 116


def test_even_numbers_of_a_small_design_are_chance():
    x = np.repeat([[0.0], [1.0], [2.0]], 10, axis=0)
    labels = np.repeat([0, 1] * 3, [4, 6, 8, 2, 6, 4])
    assert groups_of_rows(x, labels, labels=True).tolist() == list(range(30))


def test_copies_of_replicates_are_still_copies():
    generator = np.random.default_rng(8)
    x, y = np.repeat(generator.normal(size=(10, 3)), 2, axis=0), generator.normal(size=(20, 2))
    data = Data(np.repeat(x, 15, axis=0), np.repeat(y, 15, axis=0))
    assert (len(data.x), data.distinct) == (300, 20)
    assert BottleneckRegressor()._plan(data, 0, print).ridges == ()
    with pytest.warns(NothingFoundWarning):
        found = BottleneckRegressor().fit(data.x, data.y)
    assert any("280 of 300 rows repeat inputs and outputs" in note for note in found.notes_)
    assert any("10 different inputs in 300 rows" in note for note in found.notes_)


def test_two_settings_with_replicates_are_told_apart():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, (400, 1)).astype(float)
    found = BottleneckRegressor(**QUICK).fit(x, 3 * x[:, 0] + 0.1 * generator.normal(size=400))
    assert (found.n_components_, found.model_, found.undetermined_) == (1, "linear", False)
    assert not any("repeat" in note for note in found.notes_)
    assert np.allclose(found.predict([[0.0], [1.0]]), [0, 3], atol=0.05)
    labels = (x[:, 0] > 0) ^ (generator.random(400) < 0.1)
    found = BottleneckClassifier(**QUICK).fit(x, labels)
    assert (found.n_components_, found.undetermined_) == (1, False)
    assert np.allclose(found.predict_proba([[0.0], [1.0]])[:, 1], [0.1, 0.9], atol=0.05)


def test_a_factorial_design_is_counted():
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, (200, 2)).astype(float)
    found = BottleneckRegressor(**QUICK).fit(x, x * [3, 1] + 0.1 * generator.normal(size=(200, 2)))
    assert (found.n_components_, found.model_) == (2, "linear")
    x = generator.integers(-1, 2, (400, 3)).astype(float)
    inner = np.stack([x[:, 0] * x[:, 1], x[:, 2] ** 2], axis=1)
    y = inner @ generator.normal(size=(2, 4)) + 0.1 * generator.normal(size=(400, 4))
    found = BottleneckRegressor(**QUICK).fit(x, y)
    assert (found.n_components_, found.model_) == (2, "network")
    assert any("27 different inputs" in note for note in found.notes_)


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
def test_replicates_of_noise_are_still_noise():
    counts = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        x = generator.integers(0, 3, (120, 3)).astype(float)
        counts.append(BottleneckRegressor(**QUICK).fit(x, generator.normal(size=(120, 3))).n_components_)
        counts.append(BottleneckClassifier(**QUICK).fit(x, generator.integers(3, size=120)).n_components_)
    x = np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 7, axis=0)
    for seed in range(40):  # one standard error in place of two lets 1 of these maps and 3 of the classifiers in
        generator = np.random.default_rng(seed)
        counts.append(BottleneckRegressor().fit(x, generator.normal(size=(28, 2))).n_components_)
        counts.append(BottleneckClassifier().fit(x, generator.permutation(28) % 2).n_components_)
    assert counts == [0] * 86


@pytest.mark.parametrize(("slope", "shown"), [(0.0, False), (1.0, True)])
def test_what_repeated_measurements_show_must_hold_at_inputs_not_learned_from(slope, shown):
    generator = np.random.default_rng(1)
    subjects, noise = generator.normal(size=(50, 5)), generator.normal(size=(50, 2))
    x = np.repeat(subjects, 4, axis=0)
    y = slope * x[:, :2] + (1 - slope) * np.repeat(noise, 4, axis=0) + 0.1 * generator.normal(size=(200, 2))
    found = BottleneckRegressor(**QUICK).fit(x, y)
    assert found.n_components_ == 2
    assert found.undetermined_ != shown
    assert found.n_components_interval_ == ((2, 2) if shown else (0, 2))
    assert ("held at the inputs of the design, not shown between them" in found.reason_) != shown


def test_only_tables_with_replicates_are_looked_at_twice(monkeypatch):
    calls = []
    monkeypatch.setattr(learning, "investigate", lambda *arguments, **named: calls.append(named) or investigated)
    losses = np.random.default_rng(0).uniform(0.9, 1.1, size=(3, 20)) * [[9.0], [1.0], [1.1]]
    linear, path = SimpleNamespace(errors=losses), SimpleNamespace(by_number=losses[:2], partial=False)
    investigated = SimpleNamespace(number=1, errors=losses, linear=linear, path=path)
    count = Count(2, (2, 3), 1.0, False, "all")
    x = np.repeat(np.arange(20.0), 2)[:, None]
    y = np.random.default_rng(0).normal(size=(40, 1))
    plan = budget_for(40, 1, 1, 1)
    copies, distinct = Data(x, x), Data(np.hstack([x, y]), y)
    assert all(between_inputs(count, data, plan) is count for data in (copies, distinct))
    none, one = replace(count, number=0), replace(count, number=1)
    assert between_inputs(none, Data(x, y), plan) is none  # nothing was found
    assert calls == []
    assert between_inputs(one, Data(x, y), plan) is one
    less = between_inputs(count, Data(x, y), plan)
    assert (less.number, less.interval, less.undetermined) == (2, (1, 3), True)
    assert calls == [{"by_input": True}] * 2
    path.by_number = losses * [[1.0], [1.0], [0.8]]  # two are better than one there, too, if not enough to be the count
    assert between_inputs(count, Data(x, y), plan) is count


def test_a_few_replicates_are_not_looked_at_twice(monkeypatch):
    monkeypatch.setattr(learning, "investigate", lambda *arguments, **named: pytest.fail("looked at twice"))
    x = np.arange(40.0)[:, None]
    y, count = np.random.default_rng(0).normal(size=(40, 2)), Count(2, (2, 2), 1.0, False, "all")
    x[1] = x[0]
    assert between_inputs(count, Data(x, y), budget_for(40, 1, 2, 1)) is count


def test_halves_of_the_columns_with_replicates_are_looked_at_twice_and_counts_asked_for_are_not(monkeypatch):
    unsure, seen = Count(1, (0, 1), 1.0, True, "unsure"), []
    monkeypatch.setattr(learning, "between_inputs", lambda *arguments: seen.append(arguments[0]) or unsure)
    x = np.random.default_rng(0).normal(size=(20, 1)) @ np.ones((1, 6))
    assert BottleneckAutoencoder().fit(x).undetermined_
    assert BottleneckRegressor().fit(x, x).undetermined_
    assert len(seen) == 3
    assert not BottleneckRegressor(1).fit(x, x).undetermined_
    assert len(seen) == 3


def test_all_rows_of_an_input_are_in_one_fold_the_second_time(monkeypatch):
    folds = []

    def linear(x, y, splits, *rest):
        folds.append(splits.out.argmax(axis=0))
        return best_linear(x, y, splits, *rest)

    monkeypatch.setattr(learning, "best_linear", linear)
    data = Data(np.repeat(np.arange(2.0), 20)[:, None], np.random.default_rng(0).normal(size=(40, 1)))
    for by_input in (False, True):
        investigate(data, replace(budget_for(40, 1, 1, 1), folds=3, ridges=()), by_input=by_input)
    assert np.bincount(folds[0][:20], minlength=3).min() > 0
    first, second = set(folds[1][:20]), set(folds[1][20:])
    assert len(first) == len(second) == 1
    assert first != second


def test_a_stored_estimator_knows_its_table(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3))
    labels = np.where(x[:, 0] > 0, "right", "left")
    for fitted, y in (
        (BottleneckRegressor().fit(x, x @ np.ones((3, 2))), x @ np.ones((3, 2))),
        (BottleneckClassifier().fit(x, labels), labels),
        (BottleneckAutoencoder().fit(x), None),
    ):
        path = fitted.save(tmp_path / "a.safetensors")
        assert type(fitted).load(path, x, y).summary_.data == fitted.summary_.data
        other = x.copy()
        other[7, 1] = np.nextafter(other[7, 1], 9)
        with pytest.raises(ValueError, match=r"X, y: got another table \(X: stored float64 \(60, 3\), SHA-256"):
            type(fitted).load(path, other, y)
        if y is not None:
            with pytest.raises(ValueError, match=r"X, y: got another table \(y: stored"):
                type(fitted).load(path, x, y[::-1])
