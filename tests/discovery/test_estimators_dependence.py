"""Rows that depend on each other: blocks, groups, and tables in which only the order of the rows connects x and y."""

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GroupKFold, RepeatedKFold, ShuffleSplit, TimeSeriesSplit, cross_val_score

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators import dependence, learning
from bnrank.discovery.estimators.counts import Count
from bnrank.discovery.estimators.learning import rows_of
from bnrank.discovery.estimators.linear_maps import best_linear, linear_map
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data, apart

QUICK = {"depth": 4, "width": 12, "ridges": [1e-2], "steps": 60, "n_networks": 1, "progress": False}


def autoregressive(rng, rows, columns, coefficient):
    z = rng.normal(size=(rows + 200, columns))
    for t in range(1, len(z)):
        z[t] += coefficient * z[t - 1]
    return z[200:]


def seasonal(rng, rows, columns):
    t = np.arange(rows)[:, None]
    return np.sin(2 * np.pi * (t / 12 + rng.random(columns))) + 0.5 * rng.normal(size=(rows, columns))


def drift(rng, rows, columns):
    return np.linspace(0, 3, rows)[:, None] * rng.uniform(1, 2, columns) + rng.normal(size=(rows, columns))


UNRELATED = {
    "random walks": lambda rng, n, d: rng.normal(size=(n, d)).cumsum(axis=0),
    "AR(0.6)": lambda rng, n, d: autoregressive(rng, n, d, 0.6),
    "AR(0.95)": lambda rng, n, d: autoregressive(rng, n, d, 0.95),
    "seasons": seasonal,
    "drifts": drift,
}


@pytest.mark.parametrize("kind", UNRELATED)
@pytest.mark.parametrize("seed", range(4))
def test_unrelated_series_are_misaligned_without_loss(kind, seed):
    rng = np.random.default_rng(seed)
    x, y = (UNRELATED[kind](rng, 300, 3) for _ in range(2))
    found = dependence.consecutive(x, y)
    assert found is not None
    assert dependence.misaligned(x, y, found.blocks, 2 * found.gap) > dependence.CHANCE


@pytest.mark.parametrize("kind", ["AR(0.6)", "AR(0.95)"])
@pytest.mark.parametrize("seed", range(3))
def test_real_relations_of_dependent_rows_are_aligned(kind, seed):
    rng = np.random.default_rng(seed)
    x = UNRELATED[kind](rng, 300, 3)
    y = np.tanh(x / x.std(axis=0) @ rng.normal(size=(3, 2))) + 0.3 * rng.normal(size=(300, 2))
    found = dependence.consecutive(x, y)
    assert dependence.misaligned(x, y, found.blocks, 2 * found.gap) <= dependence.CHANCE


def test_independent_or_sorted_rows_are_left_alone():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(300, 2))
    walk = rng.normal(size=(300, 2)).cumsum(axis=0)
    levels = np.stack([np.repeat(np.arange(30), 10), np.tile(np.arange(10), 30)], axis=1).astype(float)
    by_output, by_input = np.argsort(y[:, 0]), np.argsort(x[:, 1])
    for inputs, outputs in (
        (x, y),
        (x[by_output], y[by_output]),
        (-x[by_output], -y[by_output]),
        (x[by_input], y[by_input]),
        (levels, levels**2),
        (x, walk),  # inputs of other rows say nothing
        (walk, y),
        (walk[:20], walk[:20]),
        (np.ones((300, 2)), walk),
    ):
        assert dependence.consecutive(inputs, outputs) is None
    clock = np.arange(300.0)[:, None]
    assert dependence.consecutive(np.hstack([clock, walk]), walk[:, ::-1]) is not None  # a clock beside a walk


def test_blocks_are_consecutive_and_about_as_long_as_the_memory():
    rng = np.random.default_rng(1)
    for coefficient, shortest, longest in ((0.3, 2, 8), (0.95, 10, 50), (1.0, 50, 50)):
        z = autoregressive(rng, 600, 4, coefficient)
        found = dependence.consecutive(z[:, :2], z[:, 2:])
        sizes = np.bincount(found.blocks)
        assert (np.diff(found.blocks) >= 0).all()
        assert shortest <= sizes[0] <= longest
        assert len(sizes) >= dependence.BLOCKS
        assert found.gap == sizes[0] // 2


def test_rows_next_to_a_held_out_block_are_not_used_for_training():
    x = np.arange(12.0)[:, None]
    folds = np.repeat([0, 1, 2], 4)
    splits = Splits.of(folds, gap=2)
    known, held_out = apart(Data(x, x), splits.known[1], splits.out[1])
    assert known.x.ravel().tolist() == [0, 1, 10, 11]
    assert held_out.x.ravel().tolist() == [4, 5, 6, 7]
    spoiled = np.where((np.arange(12) == 3)[:, None], 1e6, x)  # beside the second fold, in the first one
    errors = [best_linear(x, y, splits, 1).errors[1, 4:8] for y in (x, spoiled)]
    np.testing.assert_array_equal(*errors)
    assert learning._gap(folds, 2) == 2
    assert learning._gap(np.arange(12) % 3, 2) == 0  # nothing would be left


def test_a_count_of_unrelated_walks_is_undetermined_and_one_of_related_walks_is_not():
    rng = np.random.default_rng(0)
    walks = rng.normal(size=(240, 6)).cumsum(axis=0)
    count = Count(2, (2, 3), 1.0, False, "found")
    found = dependence.consecutive(walks[:, :3], walks[:, 3:])
    data = Data(walks[:, :3], walks[:, 3:], units=found.blocks, gap=found.gap)
    doubted = learning.by_order(count, data)
    assert (doubted.number, doubted.interval, doubted.undetermined) == (2, (0, 3), True)
    assert "order of rows" in doubted.reason
    assert learning.by_order(count, Data(data.x, data.x[:, :2] ** 2, units=found.blocks, gap=found.gap)) is count
    assert learning.by_order(count, Data(data.x, data.y)) is count


def test_repeated_inputs_in_a_row_are_no_dependence():
    rng = np.random.default_rng(9)
    x = np.repeat(rng.normal(size=(40, 3)), 4, axis=0)
    y = x[:, :2] + 0.1 * rng.normal(size=(160, 2))
    assert dependence.consecutive(x, y) is not None
    assert not any("blocks" in note for note in BottleneckRegressor(**QUICK).fit(x, y).notes_)


def test_groups_are_held_out_together():
    """Two unrelated tables that are the same for all rows of a subject."""
    rng = np.random.default_rng(2)
    order = rng.permutation(300)
    subject = np.repeat(np.arange(30), 10)[order]
    x, y = (rng.normal(size=(30, 3))[subject] + 0.1 * rng.normal(size=(300, 3)) for _ in range(2))
    assert BottleneckRegressor(**QUICK).fit(x, y).n_components_ > 0  # copies of a subject predict each other
    with pytest.warns(UserWarning, match="nothing was found"):
        fitted = BottleneckRegressor(**QUICK).fit(x, y, groups=[f"subject {i}" for i in subject])
    assert fitted.n_components_ == 0
    assert "30 groups" in fitted.notes_[0]


def test_few_groups_leave_a_count_undetermined():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 3))
    y = x @ rng.normal(size=(3, 2))
    fitted = BottleneckRegressor(**QUICK).fit(x, y, groups=np.arange(120) % 6)
    assert fitted.undetermined_
    assert "only 6 groups" in fitted.reason_
    assert not BottleneckRegressor(**QUICK).fit(x, y, groups=np.arange(120) % 12).undetermined_


@pytest.mark.parametrize("kind", [BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder])
def test_all_estimators_take_groups_and_find_blocks(kind):
    rng = np.random.default_rng(4)
    x = autoregressive(rng, 150, 4, 0.9)
    y = (x[:, 0] > 0).astype(int) if kind is BottleneckClassifier else x[:, :2]
    assert "blocks of" in " ".join(kind(**QUICK).fit(x, y).notes_)
    assert "15 groups" in " ".join(kind(**QUICK).fit(x, y, groups=np.arange(150) // 10).notes_)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.zeros(40), "groups: got 1 group, expected at least 2"),
        (np.arange(39), r"groups: got shape \(39,\), expected \(40,\)"),
        (np.r_[np.nan, np.arange(39)], "groups: got missing values"),
        ("abc", "groups: "),
    ],
)
def test_unfitting_groups_are_refused(groups, message):
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ValueError, match=message):
        BottleneckRegressor(**QUICK).fit(x, x, groups=groups)


def test_cross_validation_of_scikit_learn_passes_groups():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(90, 3))
    y = x[:, :2] + 0.1 * rng.normal(size=(90, 2))
    seen = []

    class Watched(BottleneckRegressor):
        def fit(self, X, y, groups=None):
            seen.append(groups)
            return super().fit(X, y, groups)

    groups = np.arange(90) // 6
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = Watched(**QUICK).set_fit_request(groups=True)
        scores = cross_val_score(estimator, x, y, cv=GroupKFold(3), params={"groups": groups})
    assert scores.min() > 0.9
    assert sorted(len(np.unique(part)) for part in seen) == [10, 10, 10]


def test_losses_are_means_over_the_splits_that_hold_a_row_out():
    """Against a loop: each row's loss by every split that holds it out."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 3))
    y = x @ rng.normal(size=(3, 2)) + rng.normal(size=(40, 2))
    pairs = [*RepeatedKFold(n_splits=4, n_repeats=2, random_state=0).split(x), (np.arange(10), np.arange(30, 35))]
    found = best_linear(x, y, Splits.from_pairs(pairs, 40), 2)
    expected = np.zeros((3, 40))
    for row in range(40):
        losses = []
        for known, out in pairs:
            if row in out:
                map_ = linear_map(x[np.sort(known)], y[np.sort(known)], found.ridge)
                losses.append(map_.losses(x[[row]], y[[row]], 2)[:, 0])
        expected[:, row] = np.mean(losses, axis=0)
    np.testing.assert_allclose(found.errors, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "cv",
    [5, RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), ShuffleSplit(4, random_state=0), TimeSeriesSplit(4)],
)
def test_any_splitter_decides_what_is_held_out(cv):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(120, 4))
    y = x[:, :2] @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(120, 3))
    fitted = BottleneckRegressor(**QUICK, cv=cv).fit(x, y)
    folds = {trial.fold for trial in fitted.stability_} - {None}
    assert len(folds) == (cv if isinstance(cv, int) else cv.get_n_splits())
    assert fitted.n_components_ == 2
    assert BottleneckClassifier(**QUICK, cv=cv).fit(x, y[:, 0] > 0).score(x, y[:, 0] > 0) > 0.9


def test_a_splitter_receives_groups():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(60, 3))
    seen = []

    class Watched(GroupKFold):
        def split(self, X, y=None, groups=None):
            seen.append(groups)
            return super().split(X, y, groups)

    BottleneckRegressor(**QUICK, cv=Watched(3)).fit(x, x[:, :2], groups=np.arange(60) // 5)
    np.testing.assert_array_equal(seen[0], np.arange(60) // 5)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        ("blocks", "cv: got 'blocks', expected 'auto', a number of folds"),
        (1, "cv: got 1, expected"),
        (3.5, "cv: "),
        ([], "cv: got no split, expected at least one"),
        (
            [(np.array([0]), np.array([1]))],
            "cv: got 1 training rows and 1 held-out ones in split 0",
        ),
        ([(np.arange(30), np.arange(29, 40))], "cv: got 1 rows that train and are held out in split 0"),
        ([(np.arange(30), np.arange(30, 41))], "cv: index 40 is out of bounds"),
        (GroupKFold(3), "cv: The 'groups' parameter should not be None"),
    ],
)
def test_unfitting_splits_are_refused(cv, message):
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ValueError, match=message):
        BottleneckRegressor(**QUICK, cv=cv).fit(x, x)


def test_splits_that_hold_out_none_of_the_rows_used_are_refused_by_name():
    rows = np.random.default_rng(0).permutation(np.arange(5000))
    used = set(rows_of(Data(np.arange(5000.0)[:, None], np.zeros((5000, 1))), 0).tolist())
    left = [row for row in rows if row not in used]
    x = np.arange(5000.0)[:, None]
    with pytest.raises(ValueError, match=r"cv: got no split .* among the 4000 used \(of 5000\), expected at least one"):
        BottleneckRegressor(cv=[(rows[:100], left[:10])]).fit(x, x)
