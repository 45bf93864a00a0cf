"""What users of pandas bring and expect: names of any kind, DataFrames back, a y that is constant."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, get_scorer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bnrank
from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.columns import columns_of, texts

from .tables import linear_table

LEVELS = pd.MultiIndex.from_product([["sepal", "petal"], [1, 2, 3]], names=["part", "size"])


@pytest.fixture(scope="module")
def frames():
    """Inputs named by integers (wavelengths), outputs by two levels, rows by text."""
    x, y = linear_table(2, n=29)
    rows = [f"leaf {i}" for i in range(29)]
    return pd.DataFrame(x, rows, [400 + 10 * i for i in range(8)]), pd.DataFrame(y, rows, LEVELS)


def test_predictions_are_data_frames_named_as_y_where_set_output_asks(frames):
    x, y = frames
    found = BottleneckRegressor().fit(x, y)
    plain = found.predict(x), found.transform(x), found.inverse_transform(found.transform(x))
    assert [type(values) for values in plain] == [np.ndarray] * 3
    found.set_output(transform="pandas")
    z = found.transform(x)
    for values, expected in ((found.predict(x), plain[0]), (found.inverse_transform(z), plain[2])):
        pd.testing.assert_frame_equal(values, pd.DataFrame(expected, x.index, y.columns))
    assert np.abs(y - found.predict(x)).to_numpy().max() < 1e-3  # pandas aligns the two by names
    assert z.columns.tolist() == ["bottleneckregressor0", "bottleneckregressor1"]
    assert z.index.equals(x.index)
    assert found.predict(x.to_numpy()).columns.equals(y.columns)
    assert found.score(x, y) > 0.999
    assert isinstance(found.set_output(transform="default").predict(x), np.ndarray)


def test_one_column_of_y_gives_one_column_which_ensembles_of_scikit_learn_take(frames):
    x, y = frames[0], frames[1]["sepal"][1]
    found = BottleneckRegressor().set_output(transform="pandas").fit(x, y.rename("length"))
    assert found.predict(x).columns.tolist() == ["length"]
    assert BottleneckRegressor().set_output(transform="pandas").fit(x, y.to_numpy()).predict(x).columns.tolist() == [
        "y0"
    ]
    for whole in (
        make_pipeline(StandardScaler(), BottleneckRegressor()).set_output(transform="pandas"),
        TransformedTargetRegressor(found, transformer=StandardScaler()),
        StackingRegressor([("bottleneck", found)], LinearRegression(), cv="prefit"),
    ):
        assert np.allclose(np.ravel(whole.fit(x, y).predict(x)), y, atol=1e-3)
    assert cross_val_score(BottleneckRegressor(1).set_output(transform="pandas"), x, y, cv=2).min() > 0.9


def test_classes_and_reconstructions_are_data_frames_too(frames):
    x, y = frames[0], pd.Series(np.where(frames[0].iloc[:, 0] > 0, "oak", "elm"), frames[0].index, name="wood")
    found = BottleneckClassifier().set_output(transform="pandas").fit(x, y)
    predicted = found.predict(x)
    assert predicted.columns.tolist() == ["wood"]
    assert (predicted["wood"] == y).mean() == found.score(x, y) == accuracy_score(y, predicted) > 0.8
    assert isinstance(found.predict_proba(x), np.ndarray)
    assert get_scorer("roc_auc")(found, x, y) > 0.9
    again = BottleneckAutoencoder(2).set_output(transform="pandas").fit(x)
    assert again.predict(x).columns.equals(x.columns)
    assert again.inverse_transform(again.transform(x)).columns.equals(x.columns)
    assert again.inverse_transform(again.transform(x)).index.equals(x.index)


def test_integers_and_levels_are_names_wherever_names_are(frames, tmp_path):
    x, y = frames
    found = BottleneckRegressor().fit(x, y)
    assert found.input_columns_.tolist() == x.columns.tolist()
    assert found.output_columns_.equals(LEVELS)
    assert found.output_columns_.names == ["part", "size"]
    summary = found.summary()
    assert summary.inputs[:2] == ("400", "410")
    assert summary.output_names[:2] == ("sepal/1", "sepal/2")
    assert "470 (" in str(summary) or "460 (" in str(summary)
    opened = bnrank.load(found.save(tmp_path / "found.safetensors")).set_output(transform="pandas")
    pd.testing.assert_index_equal(opened.predict(x).columns, LEVELS)
    assert opened.input_columns_.equals(x.columns)
    levels = BottleneckRegressor().fit(y, x)
    assert levels.summary().inputs == ("sepal/1", "sepal/2", "sepal/3", "petal/1", "petal/2", "petal/3")
    components = levels.summary().to_frame("components")
    assert components["sensitivity"].columns.equals(LEVELS)
    assert components["sensitivity"].columns.names == LEVELS.names
    assert np.array_equal(components["component", "influence"].to_numpy().ravel(), levels.influence_)


def test_columns_in_another_order_are_refused_whatever_their_names(frames):
    x, y = frames
    found = BottleneckRegressor().fit(x, y)
    with pytest.raises(ValueError, match=r"X: got column 470 in place 0, expected 400, as in the fit"):
        found.predict(x.iloc[:, ::-1])
    with pytest.raises(ValueError, match=r"X: got column petal/1 in place 0, expected sepal/1"):
        BottleneckRegressor().fit(y, x).transform(y[["petal", "sepal"]])
    unnamed = pd.DataFrame(x.to_numpy())
    assert np.array_equal(found.predict(unnamed), found.predict(x))  # as an array: without names of its own
    counted = BottleneckRegressor().fit(unnamed, y)
    assert counted.summary().inputs == tuple(f"x{i}" for i in range(8))
    with pytest.raises(ValueError, match="X: got column 7 in place 0, expected 0"):
        counted.predict(unnamed.iloc[:, ::-1])


def test_names_that_are_text_only_in_part_are_names(frames):
    x, y = frames
    mixed = pd.concat([x, pd.Series(np.ones(29), x.index, name="still")], axis=1)
    found = BottleneckRegressor().fit(mixed, y)
    assert found.input_columns_.tolist() == mixed.columns.tolist()
    assert "constant inputs left out: still" in found.notes_
    assert np.allclose(found.predict(mixed), y, atol=1e-3)
    with pytest.raises(ValueError, match="X: got column still in place 0, expected 400"):
        found.predict(mixed.iloc[:, ::-1])


def test_other_labels_become_text():
    days = pd.date_range("2024-01-01", periods=2)
    assert columns_of(pd.DataFrame(np.ones((1, 2)), columns=days), "y", 2).tolist() == [
        "2024-01-01 00:00:00",
        "2024-01-02 00:00:00",
    ]
    assert columns_of(pd.Series([1.0], name=("a", 3)), "y", 1).tolist() == [("a", 3)]
    assert texts(columns_of(pd.DataFrame(np.ones((1, 2))), "y", 2), "y") == ["y0", "y1"]


def test_symmetries_name_integers_and_levels_too(frames):
    _, y = frames
    found = BottleneckRegressor().fit(y, y.iloc[:, :1])
    assert bnrank.discovery.symmetries(found, y.to_numpy()).names[:2] == ("sepal/1", "sepal/2")


def test_a_summary_is_one_row_and_its_components_are_rows(frames):
    x, y = frames
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NothingFoundWarning)
        fits = [BottleneckRegressor().fit(x, y), BottleneckRegressor().fit(x, np.ones(29))]
    both = pd.concat([fit.summary().to_frame() for fit in fits], ignore_index=True)
    assert both["n_components"].tolist() == [2, 0]
    assert both[["inputs", "outputs", "rows", "low", "high"]].to_numpy().tolist() == [
        [8, 6, 29, 2, 2],
        [8, 1, 29, 0, 0],
    ]
    assert both["undetermined"].dtype == bool
    assert both["held_out"][0] < 1e-3 < both["held_out_of_mean"][0]
    assert "y is constant" in both["reason"][1]
    components = fits[0].summary().to_frame("components")
    assert components.index.tolist() == [1, 2]
    assert np.array_equal(components["component", "influence"], fits[0].influence_)
    assert np.array_equal(components["sensitivity"][410], fits[0].sensitivity_[:, 1])
    assert len(fits[1].summary().to_frame("components")) == 0
    with pytest.raises(ValueError, match=r"rows: got 'component'.*did you mean 'components'"):
        fits[0].summary().to_frame("component")


def test_a_constant_y_is_said_to_be_constant(frames):
    x, y = frames
    third = 1 / 3 * np.ones(29)
    with pytest.warns(NothingFoundWarning, match="y is constant"):
        found = BottleneckRegressor().fit(x, third)
    assert (found.n_components_, found.n_components_interval_, found.undetermined_) == (0, (0, 0), False)
    assert found.reason_ == "nothing was found: y is constant"
    assert np.array_equal(found.predict(x), third)
    table = pd.concat([y, pd.DataFrame({("still", ""): third}, y.index)], axis=1)
    found = BottleneckRegressor().fit(x, table)
    assert found.n_components_ == 2
    assert "constant outputs, always predicted exactly: still/" in found.notes_
    assert found.score(x, table) > 0.999  # a mean a last digit away would count as R^2 = 0 there
    with pytest.warns(NothingFoundWarning, match=r"no linear model predicts better than the mean"):
        noise = BottleneckRegressor().fit(x, np.random.default_rng(1).normal(size=29))
    assert "constant" not in noise.reason_
    with pytest.raises(ValueError, match="1 class, 'oak': y is constant, expected at least 2"):
        BottleneckClassifier().fit(x, ["oak"] * 29)
    assert not [note for note in BottleneckAutoencoder(2).fit(x.assign(still=1.0)).notes_ if "outputs" in note]
