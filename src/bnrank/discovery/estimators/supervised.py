"""Regressor and classifier with as few components as the table supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from bnrank._core import validation
from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.estimators.path import Data
from bnrank.discovery.estimators.tables import names_of, refuse_tables_by_name, scaling

__all__ = ["BottleneckClassifier", "BottleneckRegressor"]


class BottleneckRegressor(RegressorMixin, MultiOutputMixin, BottleneckEstimator):
    r"""Fit y = h(g(x)) with as few numbers g(x) in R^k as the table supports, and say how many that is.

    A deep network trained with a ridge finds the smallest inner dimension by itself: the loss
    (1/N) sum_i ||f(x_i) - y_i||^2 + lambda ||theta||^2 is at depth L about min_k lambda L k + C_k (T17b), and at a
    minimum its middle layers carry k numbers (T12, T27). Networks are trained on a path of ridges lambda; each is
    then cut to every k (T5), and the count is the least k, over all ridges, whose loss on held-out rows is within one
    standard error of the best. A linear map, and the mean, are preferred where no network predicts better.

    Parameters
    ----------
    n_components : int or "auto"
        k. A number larger than the number of inputs or outputs is refused: no function needs it. "auto" counts to 25
        at most, the rank of a linear map as far as it goes.
    ridges : sequence of float or "auto"
        The path of lambda, in a scale in which ||x|| has root mean square 3 and ||y|| 2; "auto" begins with
        0.03, 0.01, 0.003 and goes on while the best one is at the end.
    depth, width, seeds, steps : int or "auto"
        L, the hidden width, networks per ridge on all rows, and evaluations of the loss per network; "auto" is 12,
        twice the number of columns (16 to 64), 2 and two per row up to 500. Tables of fewer than 100 rows get less,
        and below 30 only linear maps are fitted.
    tolerance : float
        Share of what all components explain on held-out rows that fewer may fall short of: with many rows and little
        noise everything is significant, also the half percent that a network gains by bending less through a
        dimension too many. Linear maps are counted without it.
    outputs : {"auto", "jointly", "each"}
        How outputs are scaled: all by one number, or each by its own spread. "auto" is "jointly" unless their spreads
        differ by more than a factor of 10.
    random_state : int, RandomState or None
        Seed of folds and initial weights. The same seed gives the same bits.
    progress : bool or "auto"
        Whether to say on stderr what is being done; "auto" where that is a terminal.

    Attributes
    ----------
    n_components_ : int
        The count, or the number asked for. 0 where nothing was found.
    n_components_interval_ : tuple of int
        Least and largest count that resamples of the held-out rows, and the networks in the running, give.
    undetermined_ : bool
        Whether fewer than half of the networks in the running (within one standard error of the best, over folds, seeds
        and depths) have the count, or a linear map and a network predict equally well with different counts, or fewer
        than ten rows differ, or (where inputs are repeated with other outputs) the count is smaller when all rows of an
        input are held out together.
    reason_ : str
        What the count rests on.
    stability_ : tuple of Trial
        Every network: ridge, depth, seed, fold, count.
    held_out_, held_out_error_ : ndarray
        Held-out loss with k = 0, 1, ... components, and its standard error.
    model_ : {"network", "linear", "constant"}
        What kind of function it is.
    encoder_, decoder_ : MLP
        g and h, in original units.
    network_, module_ : MLP
        h o g as one network, in the scale of training and in original units; layer ``bottleneck_layer_`` has rank k.
    spectrum_ : ndarray
        Standard deviations of the bottleneck representation before it was cut.
    sensitivity_ : ndarray
        (k, d_in), how much each coordinate moves with each input.
    influence_ : ndarray
        (k,), how much the outputs move with each coordinate.
    n_input_directions_, input_spectrum_
        On how many linear combinations of the inputs y depends, by the same rule: what can be said where y is one
        number. The spectrum is in inputs of covariance 1.
    notes_ : tuple of str
        What was left out or cannot be said.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range, or the table has missing, infinite or categorical entries (named).

    Warns
    -----
    NothingFoundWarning
        If no function predicts held-out rows better than the mean.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 6))
    >>> y = x[:, :2] @ np.array([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])
    >>> fitted = BottleneckRegressor().fit(x, y)
    >>> fitted.n_components_, fitted.model_, fitted.transform(x).shape
    (2, 'linear', (200, 2))
    """

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        ridges: Sequence[float] | str = "auto",
        depth: int | str = "auto",
        width: int | str = "auto",
        seeds: int | str = "auto",
        steps: int | str = "auto",
        tolerance: float = 0.01,
        outputs: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        progress: bool | str = "auto",
    ) -> None:
        super().__init__(
            n_components,
            ridges=ridges,
            depth=depth,
            width=width,
            seeds=seeds,
            steps=steps,
            tolerance=tolerance,
            random_state=random_state,
            progress=progress,
        )
        self.outputs = outputs

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs (N, d_in) and outputs (N, d_out) or (N,)."""
        x = self._begin(X)
        validation.choice(self.outputs, "outputs", ["auto", "jointly", "each"])
        values = _read_outputs(y)
        check_consistent_length(x, values)
        self._one_dimensional = values.ndim == 1
        table = values.reshape(len(x), -1)
        wanted = self._wanted(x.shape[1], table.shape[1], f"{table.shape[1]} output(s)")
        scale = scaling(x, table, self.outputs)
        self._learn(x, scale, Data(scale.x(x), scale.y(table)), wanted)
        predicted, names = self._shape(self._outputs_of(x)), names_of(y, "y", table.shape[1])
        self._summarize(x, values, predicted, float(r2_score(values, predicted)), names)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions h(g(x)), shape (N, d_out), or (N,) where y was."""
        return self._shape(self._outputs(X))

    def inverse_transform(self, Z: Any) -> np.ndarray:
        """Return the outputs h(z) of coordinates z, (N, n_components_): what y would be there (not x)."""
        return self._shape(self._decode(Z))

    def _shape(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.ravel() if self._one_dimensional else outputs


def _read_outputs(y: Any) -> np.ndarray:
    if y is None:
        raise ValueError(
            "y: got None, expected outputs; this estimator requires y to be passed, but the target y is None"
        )
    refuse_tables_by_name(y, "y")
    values = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
    if values.ndim not in (1, 2):
        raise ValueError(f"y: got shape {values.shape}, expected (N, d_out) or (N,)")
    return values


class BottleneckClassifier(ClassifierMixin, BottleneckEstimator):
    """Fit class probabilities softmax(h(g(x))) with as few numbers g(x) in R^k as the table supports.

    As :class:`BottleneckRegressor`, with the mean cross-entropy in place of the squared error. Only differences of
    logits matter, so that C classes have at most C - 1 components, and two classes always 1.

    Parameters
    ----------
    n_components, ridges, depth, width, seeds, steps, tolerance, random_state, progress
        As of :class:`BottleneckRegressor`.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in the order of the columns of ``predict_proba``.
    n_components_, n_components_interval_, undetermined_, reason_, stability_, held_out_, held_out_error_, model_
    encoder_, decoder_, network_, module_, spectrum_, sensitivity_, influence_, n_input_directions_, notes_
        As of :class:`BottleneckRegressor`; losses are cross-entropies, ``decoder_`` and ``module_`` give logits.

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

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs (N, d_in) and classes (N,)."""
        x = self._begin(X)
        if y is None:
            raise ValueError(
                "y: got None, expected classes; this estimator requires y to be passed, but the target y is None"
            )
        if len(missing := np.flatnonzero(_missing(y))):
            raise ValueError(f"y: got missing values (NaN) ({len(missing)} of {len(x)} rows), expected a class each")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(x, labels)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"y: got 1 class, {str(self.classes_[0])!r}, expected at least 2 classes")
        wanted = self._wanted(x.shape[1], count - 1, f"{count} classes")
        scale = scaling(x, None, classes=count)
        self._learn(x, scale, Data(scale.x(x), numbers, count), wanted)
        predicted = self.classes_[self._outputs_of(x).argmax(axis=1)]
        self._summarize(
            x, labels, predicted, float(np.mean(predicted == labels)), [str(name) for name in self.classes_]
        )
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the logits, (N, C); for two classes their difference, (N,)."""
        logits = self._outputs(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, (N, C)."""
        logits = self._outputs(X)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities, (N, C)."""
        logits = self._outputs(X)
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of every row, (N,)."""
        logits = self._outputs(X)
        return self.classes_[logits.argmax(axis=1)]


def _missing(y: Any) -> np.ndarray:
    """Return which labels are None or not equal to themselves."""
    entries = np.asarray(y, dtype=object).ravel()
    return np.array([entry is None or bool(entry != entry) for entry in entries])
