"""Gross outliers and heavy tails: what is far, what is explained, what is fitted in its place, and what stays."""

import numpy as np
import pytest
from scipy.stats import f as fisher

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators.outliers import _is_shifted, cleaned
from bnrank.discovery.estimators.tails import TENTH, beyond_gap, far, scores, tail

from .tables import QUICK, linear_table

DRAWS = {
    "normal": lambda g, size: g.normal(size=size),
    "uniform": lambda g, size: g.uniform(size=size),
    "lognormal": lambda g, size: np.exp(g.normal(size=size)),
    "exponential": lambda g, size: g.exponential(size=size),
    "t": lambda g, size: g.standard_t(3, size=size),
    "counts": lambda g, size: g.poisson(30, size=size).astype(float),
    "small counts": lambda g, size: g.poisson(4, size=size).astype(float),
    "doses": lambda g, size: 10 ** g.integers(0, 10, size=size).astype(float),
    "rare indicators": lambda g, size: (g.random(size) < 0.01).astype(float),
    "many zeros": lambda g, size: g.poisson(5, size=size) * (g.random(size) < 0.6),
    "sparse": lambda g, size: g.normal(size=size) * (g.random(size) < 0.05),
}


def plane(n=200, seed=0, noise=0.1):
    x, y = linear_table(2, noise, n, seed)
    return x, y, np.random.default_rng(seed + 1)


@pytest.mark.parametrize("kind", DRAWS)
def test_columns_without_outliers_have_none(kind):
    found = [far(DRAWS[kind](np.random.default_rng(seed), (300, 5))).any() for seed in range(20)]
    assert sum(found) <= 1


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "counts"])
@pytest.mark.parametrize("share", [0.003, 0.05])
def test_planted_values_are_far(kind, share):
    generator = np.random.default_rng(3)
    table = DRAWS[kind](generator, (300, 5))
    planted = generator.random(table.shape) < share
    table[planted] = table.mean() + 60 * table.std() * generator.choice([-1, 1], size=int(planted.sum()))
    np.testing.assert_array_equal(far(table), planted)


def test_scores_are_those_of_each_side():
    """Against a loop over values."""
    table = np.random.default_rng(0).exponential(size=(50, 3))
    low, middle, high = (np.quantile(table, q, axis=0) for q in (0.25, 0.5, 0.75))
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            side = high[j] - middle[j] if value > middle[j] else middle[j] - low[j]
            assert scores(table)[i, j] == pytest.approx((value - middle[j]) / side * 0.6744898)


def test_the_gap_is_that_of_a_loop_over_all_gaps():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        folded = np.abs(generator.standard_t(3, size=120))
        folded[:4] += generator.uniform(5, 60, size=4)
        order = np.sort(folded)[::-1]
        expected = 0
        for m in range(1, 13):
            spacings = [(j + 1) * np.log(order[j] / order[j + 1]) for j in range(m - 1, m + 24)]
            level = fisher.sf(spacings[0] / np.mean(spacings[1:]), 2, 48)
            if level < 0.05 / 12 and order[m - 1] >= 5:
                expected = m
        found = beyond_gap(folded, 0.0, 0.05)
        assert found.sum() == expected
        assert not expected or folded[found].min() > folded[~found].max()


def test_the_tail_index_is_that_of_a_power_law():
    draws = np.random.default_rng(0).pareto(1.5, size=(4000, 5)) + 1
    assert np.mean([1 / tail(column)[1] for column in draws.T]) == pytest.approx(1.5, rel=0.05)


def test_no_gap_is_found_in_power_laws():
    """The smallest index, for which the rule is exact: at most one false alarm in twenty, by its level."""
    columns = np.random.default_rng(1).pareto(1.0, size=(200, 300)).T + 1
    assert np.mean([beyond_gap(column, 0.0, 0.05).any() for column in columns]) <= 0.08


def test_far_rows_are_left_out_and_named():
    x, y, generator = plane()
    bad = generator.choice(200, 8, replace=False)
    y[bad] = generator.normal(size=(8, 6)) * 100
    plain = BottleneckRegressor(**QUICK, robust=False).fit(x, y)
    fitted = BottleneckRegressor(**QUICK).fit(x, y)
    assert plain.score(np.delete(x, bad, 0), np.delete(y, bad, 0)) < 0.9
    assert (fitted.n_components_, fitted.undetermined_) == (2, False)
    assert set(fitted.outliers_) == set(bad)
    assert f"left out as gross outliers: 8 rows ({min(bad)}, " in " ".join(fitted.notes_)
    assert fitted.score(np.delete(x, bad, 0), np.delete(y, bad, 0)) > 0.95
    assert fitted.summary().score > 0.95
    assert fitted.summary().rows == 200


def test_single_values_are_replaced_from_their_side_of_the_table():
    x, y, generator = plane(300, noise=0.05)
    wrong = generator.random(y.shape) < 0.05
    bad = np.where(wrong, 500.0 * generator.choice([-1, 1], size=y.shape), y)
    found = cleaned(x, bad)
    assert found.kept.all()
    np.testing.assert_array_equal(found.rows, np.flatnonzero(wrong.any(axis=1)))
    np.testing.assert_array_equal(found.y[~wrong], y[~wrong])
    assert np.abs(found.y - y)[wrong].mean() < 0.3 * y.std()
    other = cleaned(generator.permutation(x), bad)
    np.testing.assert_array_equal(other.y, found.y)
    np.testing.assert_array_equal(found.x, x)
    assert "replaced" in found.notes[0]


def test_replacing_values_makes_no_relation():
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(200, 5)), generator.normal(size=(200, 4))
    for table in (x, y):
        wrong = generator.random(table.shape) < 0.05
        table[wrong] *= 300
    with pytest.warns(UserWarning, match="nothing was found"):
        assert BottleneckRegressor(**QUICK).fit(x, y).n_components_ == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_outliers_in_x_are_found(seed):
    x, y, generator = plane(seed=seed)
    bad = generator.choice(200, 10, replace=False)
    x[bad, 0] *= 1000
    found = cleaned(x, y).rows
    assert set(found) <= set(bad)
    assert len(found) >= 9


def test_outliers_in_x_do_not_change_the_count():
    x, y, generator = plane(seed=1)
    x[generator.choice(200, 10, replace=False), 0] *= 1000
    assert BottleneckRegressor(**QUICK).fit(x, y).n_components_ == 2


@pytest.mark.parametrize("how", ["class", "plane"])
def test_what_the_other_side_explains_stays(how):
    x, y, generator = plane(300)
    rows = np.arange(12)
    if how == "class":
        x[rows] += 40
        y[rows] += generator.normal(size=6) * 40
        assert far(x)[rows].any(axis=1).all()
        assert far(y)[rows].any(axis=1).all()
        assert len(cleaned(x, y).rows) <= 1
        x[rows] -= 40
        np.testing.assert_array_equal(cleaned(x, y).rows, rows)
    else:
        w = generator.normal(size=(8, 8))
        x[3] *= 100
        y = x @ w + 0.01 * generator.normal(size=x.shape)
        assert far(y)[3].any()
        assert len(cleaned(x, y).rows) == 0
        y[3] *= -1
        np.testing.assert_array_equal(cleaned(x, y).rows, [3])


def test_codes_are_never_explained():
    x, y, generator = plane(300)
    x, y, rows = x[:, :2], y[:, :2], np.arange(25)
    x[rows, 0], y[rows, 0] = -999 + generator.normal(size=(2, 25))
    assert len(cleaned(x, y).rows) <= 2
    x[rows, 0], y[rows, 0] = -999, -999
    np.testing.assert_array_equal(cleaned(x, y).rows, rows)


def test_heavy_tails_are_shortened_unless_explained():
    generator = np.random.default_rng(5)
    x = generator.normal(size=(300, 4))
    noise = generator.standard_cauchy(size=(300, 2))
    found = cleaned(x, noise)
    assert "heavy tails of y" in " ".join(found.notes)
    assert np.abs(scores(noise)).max() > 20
    assert np.abs(found.y - np.median(noise, axis=0)).max() < 10
    same = np.abs(scores(noise)) <= 4
    np.testing.assert_array_equal(found.y[same & found.kept[:, None]], noise[same & found.kept[:, None]])
    growth = np.exp(4 * x[:, :2] + 0.1 * generator.normal(size=(300, 2)))
    assert len(cleaned(x, growth).rows) == 0


def test_copies_of_rows_are_no_evidence():
    x, y, _ = plane(25)
    y[3] = 1e4
    once, often = cleaned(x, y), cleaned(np.tile(x, (20, 1)), np.tile(y, (20, 1)))
    np.testing.assert_array_equal(once.rows, [3])
    np.testing.assert_array_equal(often.rows, 3 + 25 * np.arange(20))
    np.testing.assert_array_equal(often.kept, np.tile(once.kept, 20))
    assert not len(cleaned(np.tile(x[:19], (20, 1)), np.tile(y[:19], (20, 1))).rows)


def test_fewer_than_20_rows_remain_as_they_are():
    x = np.arange(19.0)[:, None] ** 1.5
    y = x.copy()
    y[4] = 1e6
    assert not len(cleaned(x, y).rows)
    assert len(cleaned(np.vstack([x, x + 0.5]), np.vstack([y, x])).rows)


def test_no_more_than_a_tenth_of_a_column_is_far():
    column = np.random.default_rng(6).normal(size=(200, 1))
    for number in (int(TENTH * 200), int(TENTH * 200) + 5):
        table = column.copy()
        table[:number] += 1000 * np.random.default_rng(7).uniform(1, 2, size=(number, 1))
        assert far(table).sum() == (number if number == 20 else 0)


def test_a_classifier_leaves_out_inputs_and_keeps_rare_classes():
    generator = np.random.default_rng(8)
    x = generator.normal(size=(200, 3))
    y = (x[:, 0] > 0).astype(int)
    typos = np.arange(0, 200, 20)
    bad = x.copy()
    bad[typos, 0] = -1000 * generator.uniform(1, 2, size=10) * np.sign(x[typos, 0])
    fitted = BottleneckClassifier(**QUICK).fit(bad, y)
    np.testing.assert_array_equal(fitted.outliers_, typos)
    assert fitted.score(x, y) > 0.9
    rare = x.copy()
    rare[:2], y[:2] = 1000, 2
    fitted = BottleneckClassifier(**QUICK).fit(rare, y)
    assert not len(fitted.outliers_)


def test_an_autoencoder_leaves_out_rows():
    generator = np.random.default_rng(9)
    x = generator.normal(size=(150, 2)) @ generator.normal(size=(2, 8)) + 0.05 * generator.normal(size=(150, 8))
    bad = x.copy()
    rows = np.sort(generator.choice(150, 6, replace=False))
    bad[rows] = generator.normal(size=(6, 8)) * 100
    fitted = BottleneckAutoencoder(**QUICK).fit(bad)
    np.testing.assert_array_equal(fitted.outliers_, rows)
    assert fitted.n_components_ == 2
    assert fitted.score(x) > 0.98


def test_groups_and_splits_lose_the_rows():
    x, y, _ = plane()
    y[:10] = np.random.default_rng(0).normal(size=(10, 6)) * 100
    groups = np.arange(200) // 10
    fitted = BottleneckRegressor(**QUICK).fit(x, y, groups=groups)
    assert fitted.n_components_ == 2
    assert "rows of a group were held out together: 19 groups" in fitted.notes_
    pairs = [(np.flatnonzero(groups % 3 != fold), np.flatnonzero(groups % 3 == fold)) for fold in range(3)]
    assert BottleneckRegressor(**QUICK, cv=pairs).fit(x, y).n_components_ == 2


def test_outliers_survive_a_file(tmp_path):
    x, y, _ = plane()
    y[[3, 50]] = 1e4
    fitted = BottleneckRegressor(**QUICK).fit(x, y)
    again = BottleneckRegressor.load(fitted.save(tmp_path / "fitted.safetensors"), x, y)
    assert again.outliers_.tolist() == [3, 50]
    assert again.robust is True


def test_robust_is_checked():
    x, y, _ = plane(40)
    with pytest.raises(TypeError, match="robust: got auto, expected"):
        BottleneckRegressor(**QUICK, robust="auto").fit(x, y)


def treated(g):
    x = np.column_stack([g.normal(size=(200, 3)), np.zeros(200)])
    x[g.permutation(200)[:3], 3] = 1
    return x, x[:, :1] + 50 * x[:, 3:] + 0.1 * g.normal(size=(200, 1))


def regime(g):
    x = g.normal(size=(300, 3))
    return x, x[:, :1] + 20 * ((x[:, 1:2] > 1) & (x[:, 2:] > 1)) + 0.1 * g.normal(size=(300, 1))


def sessions(g):
    x = g.normal(size=(200, 3))
    x[:, 2] = np.r_[np.sort(g.uniform(0, 100, 188)), np.sort(g.uniform(5000, 5010, 12))]
    return x, x[:, :2] @ g.normal(size=(2, 2))


def saturation(g):
    x = g.normal(size=(100, 3))
    x[:, 0] = g.uniform(0, 1, 100)
    x[g.permutation(100)[:4], 0] *= 15
    return x, x[:, :1] / (1 + x[:, :1]) + 0.2 * x[:, 1:2] + 0.02 * g.normal(size=(100, 1))


@pytest.mark.parametrize("draw", [treated, regime, sessions])
def test_rare_causes_and_later_sessions_are_no_outliers(draw):
    changed = [len(cleaned(*draw(np.random.default_rng(seed))).rows) > 0 for seed in range(6)]
    assert sum(changed) <= 1


def test_large_doses_with_one_response_are_no_outliers():
    changed = [len(cleaned(*saturation(np.random.default_rng(seed))).rows) > 0 for seed in range(10)]
    assert sum(changed) <= 3


def test_rows_with_a_response_in_common_are_told_from_random_ones():
    g = np.random.default_rng(0)
    rows, others = np.arange(200) < 4, g.normal(size=(200, 5))
    others[rows, 2] = 2.5 + 0.1 * g.normal(size=4)
    assert _is_shifted(rows, others, 0.003)
    assert _is_shifted(rows, -others, 0.003)
    assert not _is_shifted(np.arange(200) == 1, others, 0.003)  # one row
    others[:2] *= -1  # two to either side
    assert not _is_shifted(rows, others, 0.003)
    drawn = [_is_shifted(g.permutation(rows), g.normal(size=(200, 5)), 0.1) for _ in range(200)]
    assert sum(drawn) <= 37  # 10 percent, and 4 standard deviations


def test_codes_and_values_at_random_rows_are_outliers():
    for seed in range(4):
        g = np.random.default_rng(seed)
        x = g.normal(size=(200, 5))
        y = np.tanh(x @ g.normal(size=(5, 3)))
        rows = np.sort(g.permutation(200)[:10])
        codes, wild = x.copy(), y.copy()
        codes[rows, 2] = -999
        wild[rows] += 60 * g.normal(size=(10, 3))
        assert cleaned(codes, y).rows.tolist() == rows.tolist()
        assert len(cleaned(x, wild).rows) >= 9


def test_groups_of_outliers_only_are_refused_by_name():
    x, y, _ = plane()
    groups = np.zeros(200)
    groups[:8] = 1
    y[:8] = 1e3 + np.arange(8.0)[:, None] ** 2
    with pytest.raises(ValueError, match=r"groups: got 1 group in the 192 rows of weight above 0 that are no outliers"):
        BottleneckRegressor(**QUICK).fit(x, y, groups=groups)
