"""Estimators with the interface of scikit-learn: the components through which y depends on x, and their number."""

from bnrank.discovery.estimators.autoencoder import BottleneckAutoencoder
from bnrank.discovery.estimators.base import BottleneckEstimator, NothingFoundWarning
from bnrank.discovery.estimators.counts import Trial
from bnrank.discovery.estimators.predictors import (
    BottleneckClassifier,
    BottleneckRegressor,
    open_estimator,
)
from bnrank.discovery.estimators.summary import Summary

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
