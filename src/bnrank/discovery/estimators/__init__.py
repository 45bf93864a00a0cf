"""Estimators in scikit-learn's sense: how many numbers carry x to y, and what they are."""

from bnrank.discovery.estimators.autoencoder import BottleneckAutoencoder
from bnrank.discovery.estimators.base import NothingFoundWarning
from bnrank.discovery.estimators.classifier import BottleneckClassifier
from bnrank.discovery.estimators.counting import Trial
from bnrank.discovery.estimators.regressor import BottleneckRegressor
from bnrank.discovery.estimators.summary import Summary

__all__ = [
    "BottleneckAutoencoder",
    "BottleneckClassifier",
    "BottleneckRegressor",
    "NothingFoundWarning",
    "Summary",
    "Trial",
]
