import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, NothingFoundWarning

LONG = (
    "check_classifiers_train",
    "check_regressors_train",
    "check_regressor_data_not_an_array",
    "check_positive_only_tag_during_fit",
)  # fits of 50 rows and more
QUICK = {"steps": 60, "ridges": [0.03, 0.01], "depth": 4, "n_networks": 1}  # for these
SHORTEST = QUICK | {"steps": 10, "ridges": [0.03]}  # for others, which check the interface


EXPECTED = {
    "BottleneckClassifier": {
        "check_sample_weight_equivalence_on_dense_data": "the ridge of a logistic regression is 1 / (C N), as in "
        "scikit-learn; weights have no scale, so that N is the number of rows, not the sum of the weights"
    }
}


def checks(*estimators):
    for estimator in estimators:
        failing = EXPECTED.get(type(estimator).__name__, {})
        for instance, check in estimator_checks_generator(estimator, mark="skip"):
            name = check.func.__name__
            instance = instance.set_params(**(QUICK if name in LONG else SHORTEST))
            marks = [pytest.mark.slow] if name in LONG else []
            marks += [pytest.mark.xfail(reason=failing[name], strict=True)] if name in failing else []
            yield pytest.param(instance, check, marks=marks, id=f"{type(estimator).__name__}-{name}")


@pytest.mark.parametrize(
    ("estimator", "check"), checks(BottleneckRegressor(), BottleneckClassifier(), BottleneckAutoencoder())
)
def test_sklearn_compatible(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingFoundWarning)
        check(estimator)


@pytest.fixture
def table():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 4))
    return x, x[:, :2] @ generator.normal(size=(2, 3)) + 0.1 * generator.normal(size=(80, 3))


def test_in_a_pipeline_and_a_grid_search(table):
    x, y = table
    pipeline = make_pipeline(StandardScaler(), BottleneckRegressor())
    search = GridSearchCV(pipeline, {"bottleneckregressor__n_components": [1, 2]}, cv=2).fit(x, y)
    assert search.best_params_ == {"bottleneckregressor__n_components": 2}
    assert search.best_estimator_.transform(x).shape == (80, 2)
    assert list(search.best_estimator_.get_feature_names_out()) == ["bottleneckregressor0", "bottleneckregressor1"]


def test_a_clone_is_unfitted_and_has_the_parameters(table):
    fitted = BottleneckRegressor(2, ridges=[0.01], outputs="each").fit(*table)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "n_components_")
    assert np.array_equal(copy.fit(*table).predict(table[0]), fitted.predict(table[0]))  # the same seed, the same bits
