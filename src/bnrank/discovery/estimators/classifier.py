"""How many numbers carry x to the classes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.estimators.path import Data
from bnrank.discovery.estimators.scaling import scaling

__all__ = ["BottleneckClassifier"]


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
