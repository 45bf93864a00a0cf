"""Tables with gross outliers: which values no other columns explain, and what is fitted in their place."""

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import mannwhitneyu, rankdata
from sklearn.ensemble import ExtraTreesClassifier, RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from bnrank.discovery.estimators.tails import far, is_heavy, scores

Array = np.ndarray

FEWEST = 20  # different rows; with fewer, no value can be told to be far
LEFT_OUT = 0.1  # share of the rows that are left out; if more rows have outliers, single values are replaced
LIMIT = 4.0  # spreads to which heavy tails are shortened
ABOVE = 0.75  # mean rank of predictions at extreme values, from which these are explained
CHANCE = 0.003  # over all columns with far values; below this probability, their rows are foreseen
CODE = 3  # equal outliers of a column that make a code, such as -999
SHOWN = 10  # rows named
REPLACED = "single gross outliers replaced by values that fit the row"
FOREST_ROWS, TREES = 500, 50
LINEAR_ROWS = 4000
PASSES = 2  # over columns with replaced values
PENALTIES = np.geomspace(1e-4, 1e4, 9)  # of ridge regressions between standardized columns


@dataclass(frozen=True)
class Cleaned:
    """A table as it is fitted.

    Attributes
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out), with other values in place of gross outliers; y has no columns where it is not
        examined.
    kept : ndarray
        Which rows are fitted, (N,), bool.
    changes : dict
        What was changed -> the rows, (N,), bool.
    """

    x: Array
    y: Array
    kept: Array
    changes: dict[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> Array:
        """The rows with a value that was changed or left out, ascending."""
        return np.flatnonzero(np.any([np.zeros(len(self.x), dtype=bool), *self.changes.values()], axis=0))

    @property
    def as_given(self) -> Array:
        """The rows without a gross outlier, neither left out nor with a replaced value, (N,), bool."""
        return self.kept & ~self.changes.get(REPLACED, np.zeros(len(self.x), dtype=bool))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was changed, and the rows."""
        return tuple(f"{text}: {named_rows(rows)}" for text, rows in self.changes.items() if rows.any())

    def within(self, x: Array, y: Array, rows: Array) -> "Cleaned":
        """Return this as the cleaned rows, (N,) bool, of a larger table, whose other rows are not fitted."""
        x, y, kept = x.copy(), y.copy(), np.zeros(len(x), dtype=bool)
        x[rows], y[rows], kept[rows] = self.x, self.y, self.kept
        changes = {text: np.zeros(len(x), dtype=bool) for text in self.changes}
        for text, changed in self.changes.items():
            changes[text][rows] = changed
        return Cleaned(x, y, kept, changes)


def cleaned(x: Array, y: Array, labels: Array | None = None) -> Cleaned:
    """Return a table without gross outliers: rows are left out, or single values are replaced.

    Values far from all others of their column (:func:`~bnrank.discovery.estimators.tails.far`) are outliers unless the
    other side of the table explains them: if at least half of their distance from the median is predicted by a forest,
    each row from trees that were not trained on it (a rare class, far from all others in x and y, is no outlier), or
    by ridge regression on the rows without far values (nor are points far out on a line). They are kept, too, if the
    other side tells which rows have them, though not their values (a rare treatment, a regime), or is larger or
    smaller in all rows with far values than elsewhere (a response that is saturated at large doses). Three or more
    equal outliers of a column are a code, such as -999, and never explained. Inputs that rise or fall from row to row,
    such as times, have no outliers. Classes keep their rows if more than half of them are outliers.

    If at most a tenth of the rows have outliers, these rows are left out of the fit. Otherwise rows with outliers in
    more than half of the inputs, or of the outputs, are left out, and other outliers are replaced by ridge regressions
    on the other inputs, or on the other outputs. Inputs are never used to replace outputs, nor outputs to replace
    inputs, since that would create a relation.

    Heavy tails have no gap. If those of an output are heavier than those of t with 1.25 degrees of freedom (Cauchy
    noise), and predictions from the inputs and the other outputs are hardly larger at its extreme values than
    elsewhere, it is shortened to 4 spreads from the median.

    Parameters
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out); no columns of y if only inputs are examined.
    labels : ndarray, optional
        Classes as numbers, (N, C), which explain inputs in place of y. Without labels and y, other inputs explain them.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> y = x[:, :1] + x[:, 1:]
    >>> y[[3, 8]] = 60
    >>> y[5], x[5] = 35, [20, 15]  # on the plane
    >>> cleaned(x, y).rows.tolist()
    [3, 8]
    """
    given = (x, y) if labels is None else (x, y, labels)
    _, first, copies = np.unique(np.hstack(given), axis=0, return_index=True, return_inverse=True)
    whole = Cleaned(x, y, np.ones(len(x), dtype=bool))
    if len(first) < FEWEST:
        return whole
    order = np.argsort(first)  # copies of a row are no evidence
    first, copies = first[order], np.argsort(order)[copies.reshape(-1)]
    x, y, labels = x[first], y[first], None if labels is None else labels[first]
    away_x, away_y = far(x) & ~_in_order(x), far(y)
    plain = ~(_some(away_x) | _some(away_y))
    out_x = _unexplained(x, away_x, y if labels is None else labels, plain)
    out_y = _unexplained(y, away_y, x, plain)
    if labels is not None:
        own = labels[:, labels.T @ _some(out_x) > 0.5 * labels.sum(axis=0)] > 0
        out_x = out_x & ~_some(own)[:, None]
    wrong = _some(out_x) | _some(out_y)
    kept = ~wrong
    if wrong[copies].sum() > LEFT_OUT * len(copies):
        kept = ~((out_x.mean(axis=1) > 0.5) | (out_y.sum(axis=1) > 0.5 * max(y.shape[1], 1)))
    full = _replaced(y, out_y)
    short = _shortened(x, full, kept)
    changed = _some(short != full)
    if not (wrong | changed).any():
        return whole
    changes = {
        "left out as gross outliers": ~kept[copies],
        REPLACED: (wrong & kept)[copies],
        f"heavy tails of y shortened to {LIMIT:g} spreads": changed[copies],
    }
    return Cleaned(_replaced(x, out_x)[copies], short[copies], kept[copies], changes)


def _some(table: Array) -> Array:
    """Return the rows with some value that holds."""
    return np.array(table.any(axis=1))


def named_rows(rows: Array) -> str:
    """Return the number of rows, given as a mask, and the first of them, as text.

    Examples
    --------
    >>> named_rows(np.array([False, True, True]))
    '2 rows (1, 2)'
    """
    places = np.flatnonzero(rows)
    more = ", ..." if len(places) > SHOWN else ""
    return f"{len(places)} rows ({', '.join(map(str, places[:SHOWN]))}{more})"


def _unexplained(table: Array, away: Array, other: Array, plain: Array) -> Array:
    """Return which of the far values, (N, d), other columns do not explain; these are all others if none are given."""
    columns = np.flatnonzero(away.any(axis=0))
    if not len(columns):
        return away
    found = away.copy()
    middle = np.median(table, axis=0)
    signed = _compressed(scores(table))
    for group in [columns] if other.shape[1] else columns[:, None]:
        inputs = other if other.shape[1] else np.delete(table, group, axis=1)
        if not inputs.shape[1]:
            continue
        half = np.abs(table[:, group] - middle[group]) / 2
        by_line = np.abs(table[:, group] - _linear(inputs, table[:, group], plain)) <= half
        by_trees = np.abs(signed[:, group] - _forest(inputs, signed[:, group], _some(away[:, group]))) <= (
            np.abs(signed[:, group]) / 2
        )
        found[:, group] &= ~(by_line | by_trees)
    for j in columns:
        values, counts = np.unique(table[away[:, j], j], return_counts=True)
        if other.shape[1] and (
            _is_foreseen(found[:, j], other, CHANCE / len(columns))
            or _is_shifted(away[:, j], other, CHANCE / len(columns))
        ):
            found[:, j] = False
        found[:, j] |= away[:, j] & np.isin(table[:, j], values[counts >= CODE])
    return found


def _is_foreseen(rows: Array, inputs: Array, chance: float) -> bool:
    """Return whether other columns tell which rows these are, (N,), better than by chance.

    Every row is judged by trees that were not trained on it; the probability of ranks like theirs, if these rows were
    drawn at random, is compared with ``chance`` (Mann-Whitney). One row alone cannot be foreseen.
    """
    if rows.sum() < 2:
        return False
    used = rows.copy()
    used[np.random.default_rng(0).permutation(np.flatnonzero(~rows))[:FOREST_ROWS]] = True
    trees = ExtraTreesClassifier(TREES, class_weight="balanced", random_state=0)
    parts = StratifiedKFold(min(5, int(rows.sum())), shuffle=True, random_state=0)
    ranks = rankdata(inputs[used], axis=0)
    made = cross_val_predict(trees, ranks, rows[used], cv=parts, method="predict_proba")[:, 1]
    made = made + 1e-9 * np.random.default_rng(1).random(len(made))  # without ties, the test of few rows is exact
    return bool(mannwhitneyu(made[rows[used]], made[~rows[used]], alternative="greater").pvalue < chance)


def _is_shifted(rows: Array, others: Array, chance: float) -> bool:
    """Return whether some other column is larger, or smaller, in these rows, (N,), than elsewhere.

    Rows with a few large doses have the response of a plateau in common, and typing errors have nothing in common.
    Exact for errors at random rows (Mann-Whitney, two-sided, all columns together). One row alone cannot be told.
    """
    if rows.sum() < 2:
        return False
    chances = mannwhitneyu(others[rows], others[~rows], axis=0).pvalue
    return bool(chances.min() * others.shape[1] < chance)


def _in_order(table: Array) -> Array:
    """Return the columns that rise or fall from row to row: times and numbers of rows, (d,), bool."""
    steps = np.diff(table, axis=0)
    return np.array((steps >= 0).all(axis=0) | (steps <= 0).all(axis=0))


def _compressed(signed: Array) -> Array:
    return np.sign(signed) * np.log1p(np.abs(signed))


def _linear(inputs: Array, outputs: Array, plain: Array) -> Array:
    """Return the outputs of every row by ridge regression on the plain rows, (N, d)."""
    if plain.sum() < FEWEST // 2:
        return np.repeat(np.median(outputs, axis=0)[None], len(outputs), axis=0)
    known = np.flatnonzero(plain)
    known = known[:: -(-len(known) // LINEAR_ROWS)]
    mean, spread = inputs[known].mean(axis=0), inputs[known].std(axis=0)
    standard = (inputs - mean) / np.where(spread > 0, spread, 1.0)
    level, scale = outputs[known].mean(axis=0), outputs[known].std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    fit = RidgeCV(PENALTIES).fit(standard[known], (outputs[known] - level) / scale)
    return np.asarray(fit.predict(standard)).reshape(len(outputs), -1) * scale + level


def _forest(inputs: Array, outputs: Array, needed: Array) -> Array:
    """Return the outputs of every row by trees that were not trained on it, (N, d); 0 where all trees were.

    Of a large table, at most 500 of the needed rows and 500 others are used for training.
    """
    generator = np.random.default_rng(0)
    ranks = rankdata(inputs, axis=0)
    used = np.zeros(len(ranks), dtype=bool)
    for rows in (np.flatnonzero(needed), np.flatnonzero(~needed)):
        used[generator.permutation(rows)[:FOREST_ROWS]] = True
    forest = RandomForestRegressor(TREES, min_samples_leaf=2, max_features=1 / 3, random_state=0)
    forest.fit(ranks[used], outputs[used].squeeze(axis=1) if outputs.shape[1] == 1 else outputs[used])
    made, counts = np.zeros(outputs.shape), np.zeros((len(outputs), 1))
    for tree, trained in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        other = np.delete(np.flatnonzero(used), trained)
        made[other] += tree.predict(ranks[other]).reshape(-1, outputs.shape[1])
        counts[other] += 1
    made /= np.maximum(counts, 1)
    if (rest := needed & ~used).any():
        made[rest] = forest.predict(ranks[rest]).reshape(-1, outputs.shape[1])
    return made


def _replaced(table: Array, wrong: Array) -> Array:
    """Return a table with ridge regressions on its other columns in place of wrong values."""
    if not wrong.any():
        return table
    middle = np.array([np.median(column[~bad]) for column, bad in zip(table.T, wrong.T, strict=True)])
    filled = np.where(wrong, middle, table)
    for _ in range(PASSES if table.shape[1] > 1 else 0):
        for j in np.flatnonzero(wrong.any(axis=0)):
            bad = wrong[:, j]
            filled[bad, j] = _linear(np.delete(filled, j, axis=1), filled[:, [j]], ~bad)[bad, 0]
    return filled


def _shortened(x: Array, y: Array, kept: Array) -> Array:
    """Return outputs with shorter tails, where they are heavy and neither x nor other outputs explain them."""
    if not y.shape[1]:
        return y
    short, signed = y.copy(), scores(y[kept])
    target = _compressed(signed)
    for j in np.flatnonzero([is_heavy(column) for column in np.abs(signed).T]):
        extreme = np.abs(signed[:, j]) > LIMIT
        if not extreme.any():
            continue
        inputs = np.hstack([x[kept], np.delete(y[kept], j, axis=1)])
        ranks = rankdata(inputs, axis=0) / len(inputs) - 0.5
        guesses = [
            _forest(inputs, target[:, [j]], extreme)[:, 0],
            cross_val_predict(RidgeCV(PENALTIES), ranks, target[:, j]),
        ]
        place = rankdata(min(guesses, key=lambda guess: float(np.square(guess - target[:, j]).sum()))) / len(inputs)
        if np.where(signed[:, j] > 0, place, 1 - place)[extreme].mean() < ABOVE:
            middle = np.median(y[kept, j])
            factor = LIMIT / np.abs(signed[extreme, j])
            short[np.flatnonzero(kept)[extreme], j] = middle + factor * (y[kept, j][extreme] - middle)
    return short
