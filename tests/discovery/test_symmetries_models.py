"""What symmetries can be looked for of: estimators, pipelines, tables, and modules that do not fit."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, RobustScaler, StandardScaler
from torch import nn

from bnrank.discovery import BottleneckClassifier, BottleneckRegressor, NothingFoundWarning, symmetries
from bnrank.discovery.symmetry_search.problem import module_of, outputs_of

from .functions import DOUBLE, Function

NAMES = ["u", "v", "w", "p"]
UNITS = np.array([1.0, 1.0, 1000.0, 0.01])


def table(n, seed=0, named=True):
    z = np.random.default_rng(seed).standard_normal((n, 4))
    return z, pd.DataFrame(z * UNITS, columns=NAMES) if named else z * UNITS


def rings(z):
    """Functions of (u^2 + v^2)^(1/2) and w: rotations of (u, v), and p ignored."""
    r = np.hypot(z[:, 0], z[:, 1])
    return np.stack([r**2, np.sin(2 * r) + z[:, 2], z[:, 2] * r], 1)


@pytest.fixture(scope="module")
def rings_estimator():
    z, x = table(400)
    settings = {"ridges": (1e-4,), "depth": 6, "width": 40, "n_networks": 1, "steps": 800, "progress": False}
    return BottleneckRegressor(3, **settings).fit(x, rings(z))


def test_a_fitted_regressor(rings_estimator):
    z_test, x_test = table(200, seed=1)
    found = symmetries(rings_estimator, table(400)[1], held_out=(x_test, rings(z_test)), finite=False)
    assert found.names == tuple(NAMES)
    assert (found.dimension, found.status, found.quotient_dimension) == (2, "approximate", 2), found.summary()
    translation, rotation = found.pieces
    assert (translation.kind, translation.text) == ("translation", "translation along p")
    across = translation.generators[0, :, -1].numpy() / UNITS  # in units of the columns
    assert abs(across[3]) > 0.99 * np.linalg.norm(across)
    assert rotation.kind == "rotation"
    turned = np.linalg.qr(rotation.space.numpy() / UNITS[:, None])[0]
    assert np.linalg.svd(turned[:2])[1].min() > 0.95
    moved = found.moved(x_test.to_numpy(copy=True), 1, 1.0).numpy()
    plain = symmetries(rings_estimator, x_test.to_numpy(), finite=False, resamples=0)
    assert plain.names == tuple(NAMES)  # from the estimator
    before, after = rings_estimator.predict(x_test), rings_estimator.predict(pd.DataFrame(moved, columns=NAMES))
    assert np.linalg.norm(after - before) < 0.15 * np.linalg.norm(before - before.mean(0))
    assert np.linalg.norm((moved - x_test.to_numpy()) / UNITS) > 5


def linear(x):
    return x @ np.array([[1.0, 2.0], [-1.0, 0.5], [0.002, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("named", [True, False])
def test_a_pipeline_is_a_function_of_what_goes_into_it(named):
    _, x = table(25, named=named)  # below 30 rows only linear maps are fitted
    y = linear(np.asarray(x))
    pipeline = make_pipeline(StandardScaler(), PCA(), BottleneckRegressor(progress=False)).fit(x, y)
    points = torch.from_numpy(np.array(x))
    module = module_of(pipeline, points)
    np.testing.assert_allclose(outputs_of(module, points).numpy(), pipeline.predict(x), rtol=1e-4, atol=1e-4)
    found = symmetries(pipeline, x, finite=False)
    assert found.names == (tuple(NAMES) if named else ("x0", "x1", "x2", "x3"))
    assert (found.dimension, found.status, found.quotient_dimension, found.rank) == (2, "approximate", 2, 2)
    assert [(piece.in_model, piece.in_data) for piece in found.pieces] == [("exact", "within the held-out error")]
    along = found.generators[..., -1].numpy()
    assert np.abs(linear(along) / np.linalg.norm(along / UNITS, axis=1)[:, None]).max() < 1e-4


def test_steps_that_do_nothing_and_steps_that_are_not_affine():
    _, x = table(25)
    y = linear(x.to_numpy())
    plain = Pipeline([("nothing", "passthrough"), ("last", BottleneckRegressor(progress=False))]).fit(x, y)
    assert symmetries(plain, x, finite=False).dimension == 2
    squares = make_pipeline(PolynomialFeatures(), BottleneckRegressor(progress=False)).fit(x, y)
    with pytest.raises(ValueError, match=r"whose steps before the last \(polynomialfeatures\) are no affine map"):
        symmetries(squares, x)
    with pytest.raises(TypeError, match="net: got StandardScaler"):
        symmetries(make_pipeline(StandardScaler(), StandardScaler()).fit(x), x)


def through(step, x):
    """A pipeline of one step before two outputs that are read off."""

    class Reads:
        def fit(self, x, y=None):
            self.width = x.shape[1]
            return self

        def as_module(self):
            return nn.Linear(self.width, 2)

        def transform(self, x):
            return x

    return Pipeline([("step", step), ("last", Reads())]).fit(x)


class Doubling(TransformerMixin, BaseEstimator):
    """Learns nothing in fit, so that scikit-learn takes it for a step that was not fitted."""

    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return 2 * np.asarray(x)


def test_steps_that_learn_nothing_are_used():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    module = module_of(through(Doubling(), x.numpy()), x)
    np.testing.assert_allclose(outputs_of(module[0], x).numpy(), 2 * x.numpy())


def test_a_bent_column_is_seen_beside_one_of_large_values():
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(1, 5, 200), 1e8 * rng.standard_normal(200)], 1)
    beside = ColumnTransformer([("log", FunctionTransformer(np.log), [0]), ("keep", "passthrough", [1])])
    summed = FunctionTransformer(lambda x: np.log(x[:, :1]) + x[:, 1:])
    for step in (beside, summed):
        with pytest.raises(ValueError, match="are no affine map"):
            module_of(through(step, x), torch.tensor(x))


def test_affine_steps_of_any_size_are_affine():
    x = np.random.default_rng(0).standard_normal((200, 3)) * [1.0, 1e8, 1e-8] + [1e9, 0.0, 1.0]
    x = np.column_stack([x, x[:, 0], np.full(200, 7.0)])
    for step in (StandardScaler(), PCA(), RobustScaler(), make_pipeline(StandardScaler(), PCA(whiten=True))):
        module = module_of(through(step, x), torch.tensor(x))
        np.testing.assert_allclose(
            outputs_of(module[0], torch.tensor(x)).numpy()[:, 0], step.transform(x)[:, 0], atol=1e-5
        )


def test_an_estimator_that_found_nothing():
    _, x = table(25)
    noise = np.random.default_rng(5).standard_normal((25, 2))
    with pytest.warns(NothingFoundWarning):
        nothing = BottleneckRegressor(progress=False).fit(x, noise)
    assert nothing.n_components_ == 0
    with pytest.raises(ValueError, match="constant near x, which every transformation leaves alone"):
        symmetries(nothing, x)


def test_a_fitted_classifier():
    _, x = table(28)
    found = BottleneckClassifier(progress=False).fit(x, np.where(x["u"] + x["v"] > 0, "in", "out"))
    result = symmetries(found, x, finite=False)
    assert (result.dimension, result.status, result.rank, result.quotient_dimension) == (3, "approximate", 1, 1)
    assert [(piece.in_model, piece.in_data) for piece in result.pieces] == [("exact", "not shown")]


def test_tables():
    module = Function(lambda x: x[:, :2].square().sum(1, keepdim=True))
    x = pd.DataFrame(np.random.default_rng(0).standard_normal((100, 3)), columns=["a", 7, "c"])
    assert symmetries(module, x, finite=False).names == ("a", "7", "c")
    assert symmetries(module, x, finite=False, names=["d", "e", "f"]).names == ("d", "e", "f")
    whole = pd.DataFrame(np.random.default_rng(0).integers(-9, 9, (100, 3)))
    assert symmetries(module, whole, held_out=(whole, whole[[0]]), finite=False).rtol > 0
    with pytest.raises(TypeError, match="x: got a DataFrame with columns that are no numbers"):
        symmetries(module, pd.DataFrame({"a": ["b"] * 5, "c": [1.0] * 5}))


def test_outputs_without_a_dimension_of_their_own():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    found = symmetries(Function(lambda x: x.square().sum(1)), x, y=x.square().sum(1))
    assert (found.dimension, found.rtol) == (3, 0.0)
    assert found.held


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"x": torch.full((9, 3), float("nan"))}, ValueError, "x: got NaN or infinite entries in 9 of 9"),
        ({"x": torch.ones(9, 3, dtype=torch.int64)}, TypeError, "x: got dtype torch.int64"),
        ({"x": torch.ones(3, 3)}, ValueError, r"x: got 3 sample\(s\), expected at least 4"),
        ({"net": nn.Linear(5, 2)}, ValueError, "Linear failed on x of shape"),
        ({"net": Function(lambda x: x.detach() ** 2)}, ValueError, "cannot be differentiated in x"),
        ({"net": Function(lambda x: x.round())}, ValueError, "constant near x"),
        ({"net": [nn.Linear(3, 1), nn.Linear(3, 2)]}, ValueError, "outputs of shapes .*, expected one shape"),
        ({"names": ["a", "b", "a"]}, ValueError, "expected a different one for every column"),
        ({"finite": "no"}, TypeError, "finite: got 'no' .*, expected True or False"),
        ({"maps": [torch.full((3, 3), float("nan"))]}, ValueError, r"maps\[0\]: got NaN"),
        ({"maps": torch.eye(3)}, TypeError, "maps: got .*, expected a sequence"),
        ({"held_out": torch.ones(9, 2)}, ValueError, r"held_out: got shape \(9, 2\)"),
    ],
)
def test_what_does_not_fit(arguments, error, words):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    settled = {"net": nn.Tanh(), "x": x} | arguments
    with pytest.raises(error, match=words):
        symmetries(settled.pop("net"), settled.pop("x"), **settled)


def test_data_on_a_plane_and_in_one_column():
    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    plane = torch.cat([x, x.sum(1, keepdim=True) + 1], 1)
    found = symmetries(Function(lambda x: x.square().sum(1, keepdim=True)), plane, finite=False)
    assert (found.domain_dimension, found.dimension, found.quotient_dimension) == (2, 1, 1)
    assert found.pieces[0].text.startswith("rotation in the plane of ")  # two directions of three
    single = symmetries(Function(lambda x: x**2), x[:, :1])
    assert (single.dimension, single.status) == (0, "none")
    assert [test.text for test in single.held] == ["x1 -> -x1"]
