"""Estimators with the interface of scikit-learn: the components through which y depends on x, and their number."""

from bnrank._core.store import Stored
from bnrank.discovery.estimators import summary
from bnrank.discovery.estimators.autoencoder import BottleneckAutoencoder
from bnrank.discovery.estimators.base import BottleneckEstimator, NothingFoundWarning
from bnrank.discovery.estimators.counts import Trial
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.estimators.supervised import BottleneckClassifier, BottleneckRegressor

__all__ = [
    "BottleneckAutoencoder",
    "BottleneckClassifier",
    "BottleneckEstimator",
    "BottleneckRegressor",
    "NothingFoundWarning",
    "Summary",
    "Trial",
    "open_estimator",
]


def open_estimator(stored: Stored) -> BottleneckEstimator:
    """Return the fitted estimator in a file of kind "estimator".

    Raises
    ------
    ValueError
        If the file holds no such estimator, or is damaged.
    """
    return summary.opened(stored, [BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder])
