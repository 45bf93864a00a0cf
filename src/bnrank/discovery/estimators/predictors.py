"""The estimators of a target: regressor and classifier."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from bnrank._core import validation
from bnrank._core.store import Stored
from bnrank.discovery.columns import columns_of, expect_columns, texts
from bnrank.discovery.estimators import summary
from bnrank.discovery.estimators.autoencoder import BottleneckAutoencoder
from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.estimators.closed_forms import formulas_of
from bnrank.discovery.estimators.outliers import cleaned
from bnrank.discovery.estimators.progress import voice
from bnrank.discovery.estimators.tables import (
    Data,
    checked_by_scikit,
    in_memory,
    refuse_tables_by_name,
    scaling_of,
)
from bnrank.discovery.estimators.weights import uneven
from bnrank.discovery.symbolic import Formulas

NO_TARGET = "this estimator requires y to be passed, but the target y is None"


@dataclass(eq=False, repr=False, kw_only=True)
class BottleneckRegressor(RegressorMixin, MultiOutputMixin, BottleneckEstimator):
    r"""Regression y = h(g(x)) through as few components g(x) in R^k as the table supports, and their number.

    A deep network trained with a ridge finds the smallest inner dimension by itself: at depth L the loss
    (1/N) sum_i ||f(x_i) - y_i||^2 + lambda ||theta||^2 is about min_k lambda L k + C_k (T17b), and the middle layers of
    a minimum have rank k (T12, T27). Networks are trained on a path of ridges lambda; each is then truncated to every k
    (T5), and the count is the smallest k, over all ridges, whose loss on held-out rows is within one standard error of
    the best. A linear map, and the mean, are preferred where no network predicts better.

    Parameters
    ----------
    n_components : int or "auto"
        k, at most the number of inputs or outputs. "auto" detects up to 25 components; the rank of a linear map has no
        limit. A given number is undetermined, from 0, if held-out rows are predicted no better than by the mean.
    ridges : sequence of float or "auto"
        The path of lambda, in a scale in which ||x|| has root mean square 3 and ||y|| 2; "auto" starts with 0.03, 0.01,
        0.003 and adds ridges while the best one is at an end.
    depth, width, n_networks, steps : int or "auto"
        L, the hidden width, networks per ridge on all rows, and evaluations of the loss per network; "auto" is 12,
        twice the number of columns (16 to 64), 2, and two per row up to 500. For tables of fewer than 100 rows the
        values are smaller, and below 30 rows only linear maps are fitted.
    rtol : float
        Fraction of the held-out loss explained by all components that fewer components may leave unexplained. With many
        rows and little noise every difference is significant, even the half percent that a network gains from lower
        curvature through an unneeded dimension. Not used for the rank of linear maps.
    outputs : {"auto", "jointly", "each"}
        How outputs are scaled: all by one number, or each by its own spread. "auto" is "jointly" unless their spreads
        differ by more than a factor of 10.
    random_state : int, RandomState or None
        Random seed of folds and initial weights. The same seed gives bitwise identical results.
    progress : bool or "auto"
        Whether to show progress on stderr; "auto": where that is a terminal.
    cv : "auto", int, splitter or pairs of indices
        Rows that are held out: the number of folds ("auto": 2 or 3), or a splitter of scikit-learn, which receives the
        ``groups`` of ``fit``, or its splits. A splitter decides alone: no blocks are formed.
    robust : bool
        Whether gross outliers and heavy tails are looked for. Rows with values far from all others of their column,
        which the other side of the table does not explain, are left out of the fit (single values are replaced where
        these are more than a tenth of the rows), and outputs with tails as heavy as Cauchy noise are shortened.
        Predictions are of all rows, in the units of the table.
    n_jobs : int or None
        Processes that share the trainings, as in scikit-learn: None is 1 unless a context of joblib says otherwise, -1
        as many as there are cores. The results are the same bits. Below 100 rows that differ, and inside a worker of
        joblib, it is always 1. A process needs about 0.4 GB of memory, and the first fit waits seconds for its start.
    executor : concurrent.futures.Executor, dask.distributed.Client or function, optional
        What shares the trainings in place of ``n_jobs``, as in `bnrank.sweep`; the results are the same bits. It is
        neither saved nor copied by ``sklearn.base.clone``, which passes it on.

    Attributes
    ----------
    n_components_ : int
        The count, or the requested number. 0 where nothing was found.
    n_components_interval_ : tuple of int
        Smallest and largest count over resamples of the held-out rows and over the networks within one standard error
        of the best.
    undetermined_ : bool
        Whether fewer than half of the networks within one standard error of the best (over folds, seeds and depths)
        have the count, or a linear map and a network predict equally well with different counts, or fewer than ten rows
        differ or fewer than ten groups are given, or (where inputs are repeated with different outputs) the count is
        smaller when all rows of an input are held out together, or (where consecutive rows depend on each other) the
        outputs of other rows are predicted as well.
    reason_ : str
        The evidence for the count.
    state_dimension_ : int
        The local dimension of the set of states z = g(x) on the rows
        (:func:`bnrank.discovery.dimension.local_dimension` of the coordinates), at most ``n_components_``. On a closed
        curve, two coordinates are needed and the dimension is 1.
    state_dimension_interval_, state_undetermined_, state_reason_
        Smallest and largest value for the networks within one standard error of the best, whether it is undetermined,
        and the evidence.
    stability_ : tuple of Trial
        All networks: ridge, depth, seed, fold, count.
    held_out_, held_out_error_ : ndarray
        Held-out loss with k = 0, 1, ... components, and its standard error.
    model_ : {"network", "linear", "constant"}
        The kind of function.
    encoder_, decoder_ : MLP
        g and h, in original units.
    network_, module_ : MLP
        h o g as one network, in the scale of training and in original units; layer ``bottleneck_layer_`` has rank k.
    spectrum_ : ndarray
        Standard deviations of the bottleneck representation before truncation.
    sensitivity_ : ndarray
        (k, d_in), rms of dz_j/dx_i times the standard deviation of x_i.
    influence_ : ndarray
        (k,), rms derivative of the outputs in each coordinate.
    n_input_directions_, n_input_directions_interval_, input_directions_undetermined_, input_directions_reason_
        Number of linear combinations of the inputs that y depends on, by the same rule, with its uncertainty: the
        result where y is one output or two classes.
    input_directions_ : ndarray
        (n_input_directions_, d_in): the combinations w . x, one per row, in units of the inputs; uncorrelated and of
        variance 1 on the rows of the fit, most important first, the largest weight (per standard deviation of its
        input) positive. Only their span is determined by the data.
    input_spectrum_ : ndarray
        (d_in,), rms derivative of y along every direction, for inputs of covariance 1.
    input_held_out_, input_held_out_error_ : ndarray
        Held-out loss with 0, 1, ... combinations of the inputs, and its standard error.
    outliers_ : ndarray
        The rows that were left out or in which a value was replaced or shortened, from 0, ascending.
    notes_ : tuple of str
        Remarks on the table, such as the number of these rows, and on the limits of what can be concluded.
    partial_, weighted_ : bool
        Whether the fit was interrupted, and whether rows had different weights.
    input_columns_, output_columns_ : pandas.Index
        The names of the columns of X and y: text, integers or the levels of a MultiIndex, as given; x0, ... and y0, ...
        for arrays. A DataFrame whose integers or levels differ from these, or come in another order, is refused.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range, or the table has missing, infinite or categorical entries (named).

    Warns
    -----
    NothingFoundWarning
        If no function predicts held-out rows better than the mean, or y is constant.

    Notes
    -----
    After ``set_output(transform="pandas")``, ``transform`` returns a DataFrame, as in scikit-learn, and so do
    ``predict`` and ``inverse_transform``, which in scikit-learn's own estimators return arrays: with the names of y
    and the index of X. A y of one column gives a DataFrame of one column. The configuration of scikit-learn for all
    estimators (``transform_output``) concerns ``transform`` only.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 6))
    >>> y = x[:, :2] @ np.array([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])
    >>> fitted = BottleneckRegressor().fit(x, y)
    >>> fitted.n_components_, fitted.model_, fitted.transform(x).shape
    (2, 'linear', (200, 2))
    """

    outputs: str = "auto"

    def fit(self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, out: Any = None) -> Self:
        """Fit to inputs (N, d_in) and outputs (N, d_out) or (N,).

        ``sample_weight``, (N,), weights the losses of the rows, in training and where they are held out, and all means
        and variances. Weights are at least 0, and only their ratios matter; a row of weight 0 counts as absent.
        Standard errors are those of weighted means. The search for outliers, the tests for dependent rows and the state
        dimension do not use weights.

        ``groups``, (N,), are held out together where rows of a group depend on each other (subjects, plates, batches).
        Without it, blocks of consecutive rows are, if inputs and outputs both correlate with those of the row before.

        ``out`` is a folder that keeps every trained network: a fit that was interrupted or killed resumes when it is
        called again with the same arguments; ``random_state`` must be an integer. Ctrl-C raises KeyboardInterrupt;
        where the cross-validation had a result, the estimator is fitted to it, with ``partial_`` True, and says that
        it is undetermined, a partial result.
        """
        x = self._begin(X)
        validation.choice(self.outputs, "outputs", ["auto", "jointly", "each"])
        weights = self._weights(sample_weight, len(x))
        validation.expect(y is not None, "y", "None", f"outputs; {NO_TARGET}")
        y = in_memory(y, "y")
        with checked_by_scikit("y"):
            refuse_tables_by_name(y, "y")
            values = check_array(y, ensure_2d=False, allow_nd=True, dtype=np.float64, input_name="y")
            validation.expect(values.ndim in (1, 2), "y", f"shape {values.shape}", "(N, d_out) or (N,)")
            check_consistent_length(x, values)
        self._one_dimensional = values.ndim == 1
        table = values.reshape(len(x), -1)
        self.output_columns_ = columns_of(y, "y", table.shape[1])
        wanted = self._wanted(x.shape[1], table.shape[1], f"{table.shape[1]} output(s)")
        clean = self._cleaned(x, table, weights=weights)
        rows, used = clean.kept, clean.x[clean.kept]
        own = None if weights is None else uneven(weights[rows])
        scale = scaling_of(used, clean.y[rows], self.outputs, weights=own)
        data = self._dependent(Data(scale.x(clean.x), scale.y(clean.y), weights=weights), groups, rows)
        with self._keeping(out):
            self._learn(used, scale, data, wanted)
        self.notes_ += clean.notes
        predicted, names = self._outputs_of(x), texts(self.output_columns_, "y")
        score = float(r2_score(clean.y[rows], predicted[rows], sample_weight=own))
        self._summarize(x, values, self._shape(predicted), score, names, weights)
        return self

    def predict(self, X: Any) -> Any:
        """Return the predictions h(g(x)), shape (N, d_out), or (N,) where y was; a DataFrame under ``set_output``."""
        return self._framed(self._shape(self._outputs(X)), X)

    def inverse_transform(self, Z: Any) -> Any:
        """Return the outputs h(z) of coordinates z, (N, n_components_): values of y, not of x; as ``predict``."""
        return self._framed(self._shape(self._decode(Z)), Z)

    def formulas(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        *,
        engine: Any = "gplearn",
        max_outputs: int = 10,
        progress: bool | str = "auto",
    ) -> Formulas:
        """Return formulas for the components in the inputs, and for the outputs in the components.

        A quarter of the rows is held out. A copy of the estimator, with the same count, depth and ridge, is fitted to
        the others. Its weights and the formulas have not seen the held-out rows; the count, depth, ridge, kind of model
        and outliers were determined with all rows. For the held-out rows, R^2 is given
        beside that of a linear least-squares formula and of the network. Among the formulas that an engine of symbolic
        regression proposes, a constant and a linear formula, the simplest is chosen that predicts other rows as well
        as the best, within a standard error of the difference. A formula that predicts the held-out rows no better
        than a constant (by two standard errors) has the verdict "none".

        Components are determined up to invertible maps only. A formula for one is searched up to a monotone function,
        and takes its place if it explains 90 percent of it. If the model is linear, its formulas are written
        down, without a search. With one output, components are linear combinations of the inputs
        (``input_directions_``), or left out where a formula in the inputs is simpler and predicts as well.

        Parameters
        ----------
        X, y : array-like
            The table of the fit, or another one with the same columns. Rows with gross outliers are left out,
            also those of which ``fit`` replaces single values.
        groups : array-like, optional
            What is held out together, (N,), as in ``fit``.
        engine : {"gplearn", "operon"} or regressor
            The package for symbolic regression (the extras ``formulas`` and ``operon``), or a regressor of gplearn,
            Operon or PySR, which is cloned. Both names try +, -, *, /, sin, and square root and logarithm of absolute
            values, in formulas of at most 20 operations, variables and constants.
        max_outputs : int
            Outputs that are searched: those of which the network explains the largest shares of the variance.
        progress : bool or "auto"
            As in the constructor.

        Raises
        ------
        ImportError
            If the package of the engine is not installed.
        TypeError, ValueError
            If ``engine`` is neither, or the table does not fit, or has fewer than 20 rows without gross outliers
            or fewer than 8 independent rows or groups, or rows were weighted.

        Examples
        --------
        >>> x = np.random.default_rng(0).normal(size=(120, 3))
        >>> y = x[:, [0]] + 2 * x[:, [1]] + [[1.0, 5.0]]
        >>> formulas = BottleneckRegressor().fit(x, y).formulas(x, y)
        >>> formulas.to_frame()[["name", "verdict", "r2"]]
          name verdict   r2
        0   z1  linear  1.0
        1   y0  linear  1.0
        2   y1  linear  1.0
        """
        x = self._inputs(X)
        expected = "an estimator fitted without: formulas do not weight rows"
        validation.expect(not self.weighted_, "sample_weight", "weights in fit", expected)
        validation.expect(y is not None, "y", "None", "outputs, as in fit")
        y = in_memory(y, "y")
        with checked_by_scikit("y"):
            refuse_tables_by_name(y, "y")
            table = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y").reshape(len(y), -1)
            check_consistent_length(x, table)
        number = len(self.output_columns_)
        validation.expect(table.shape[1] == number, "y", f"{table.shape[1]} columns", f"{number}, as in fit")
        expect_columns(y, "y", self.output_columns_)
        units = None if groups is None else self._units(Data(x, table), groups)
        kept = cleaned(x, table).as_given if self.robust else np.ones(len(x), dtype=bool)
        with voice(progress) as tell:
            options = {"engine": engine, "max_outputs": max_outputs, "tell": tell}
            return formulas_of(self, x, table, kept, units, options)

    def _shape(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.ravel() if self._one_dimensional else outputs


class BottleneckClassifier(ClassifierMixin, BottleneckEstimator):
    """Classification softmax(h(g(x))) through as few components g(x) in R^k as the table supports.

    Like :class:`BottleneckRegressor`, with the mean cross-entropy instead of the squared error. Only differences of
    logits matter, so that C classes have at most C - 1 components, and two classes always 1.

    Parameters
    ----------
    n_components, ridges, depth, width, n_networks, steps, rtol, random_state, progress, cv, robust, n_jobs, executor
        As in :class:`BottleneckRegressor`.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in the order of the columns of ``predict_proba``.
    input_columns_, output_columns_
        As in :class:`BottleneckRegressor`; under ``set_output``, ``predict`` returns a DataFrame, and probabilities and
        logits remain arrays, which the scorers of scikit-learn index.
    n_components_, n_components_interval_, undetermined_, reason_, stability_, held_out_, held_out_error_, model_
    encoder_, decoder_, network_, module_, spectrum_, sensitivity_, influence_, outliers_, notes_
    weighted_, state_dimension_, state_dimension_interval_, state_undetermined_, state_reason_
    n_input_directions_, n_input_directions_interval_, input_directions_undetermined_, input_directions_reason_
    input_directions_, input_spectrum_, input_held_out_, input_held_out_error_
        As in :class:`BottleneckRegressor`; losses are cross-entropies, ``decoder_`` and ``module_`` give logits.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range, or the table has missing, infinite or categorical entries (named).

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(90, 3))
    >>> fitted = BottleneckClassifier().fit(x, np.where(x[:, 0] > 0, "right", "left"))
    >>> fitted.n_components_, fitted.predict([[2.0, 0, 0], [-2.0, 0, 0]]).tolist()
    (1, ['right', 'left'])
    """

    def fit(self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, out: Any = None) -> Self:
        """Fit to inputs (N, d_in) and classes (N,); other arguments as in :class:`BottleneckRegressor`."""
        x = self._begin(X)
        weights = self._weights(sample_weight, len(x))
        there = np.ones(len(x), dtype=bool) if weights is None else weights > 0
        validation.expect(y is not None, "y", "None", f"classes; {NO_TARGET}")
        y = in_memory(y, "y")
        with checked_by_scikit("y"):
            missing = int(pd.isna(np.asarray(y, dtype=object).ravel()).sum())
            validation.expect(not missing, "y", f"missing values (NaN) ({missing} of {len(x)} rows)", "a class each")
            labels = column_or_1d(y, warn=True)
            check_consistent_length(x, labels)
            check_classification_targets(labels)
            self.classes_ = np.unique(labels[there])
            numbers = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        self.output_columns_ = columns_of(y, "y", 1)
        count = len(self.classes_)
        validation.expect(count > 1, "y", f"1 class, {str(self.classes_[0])!r}: y is constant", "at least 2 classes")
        wanted = self._wanted(x.shape[1], count - 1, f"{count} classes")
        clean = self._cleaned(x, np.zeros((len(x), 0)), np.eye(count)[numbers], weights)
        rows, used = clean.kept, clean.x[clean.kept]
        own = None if weights is None else uneven(weights[rows])
        scale = scaling_of(used, None, classes=count, weights=own)
        data = self._dependent(Data(scale.x(clean.x), numbers, count, weights=weights), groups, rows)
        with self._keeping(out):
            self._learn(used, scale, data, wanted)
        self.notes_ += clean.notes
        predicted = self.classes_[self._outputs_of(x).argmax(axis=1)]
        score = float(np.average((predicted == labels)[rows], weights=own))
        self._summarize(x, labels, predicted, score, [str(c) for c in self.classes_], weights)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits, (N, C); for two classes their difference, (N,)."""
        logits = self._outputs(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (N, C)."""
        return softmax(self._outputs(X), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities, (N, C)."""
        return log_softmax(self._outputs(X), axis=1)

    def predict(self, X: Any) -> Any:
        """Return the most probable class of every row, (N,); a DataFrame of one column under ``set_output``."""
        places = self._outputs(X).argmax(axis=1)
        return self._framed(self.classes_[places], X)


def open_estimator(stored: Stored) -> BottleneckEstimator:
    """Return the fitted estimator in a file of kind "estimator".

    Raises
    ------
    ValueError
        If the file contains no such estimator, or is corrupted.
    """
    return summary.opened(stored, [BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder])
