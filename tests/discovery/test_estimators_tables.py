"""What users bring: units, copies, constant and missing entries, names, parameters out of range."""

import signal
import threading

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators.budget import budget_for
from bnrank.discovery.estimators.tables import Data

from .tables import QUICK, linear_table


def test_units_of_inputs_do_not_matter_and_units_of_outputs_only_by_their_differences(bent):
    x, y = bent
    units = np.array([1e6, 1.0, 1e-6, 10.0, 1.0, 1e3])
    plain = BottleneckRegressor(2, **QUICK).fit(x, y)
    scaled = BottleneckRegressor(2, **QUICK).fit(x * units, 1e3 * y)
    assert np.allclose(scaled.predict(x * units) / 1e3, plain.predict(x), atol=0.05)


def test_outputs_of_wildly_different_scales_all_count():
    x, y = linear_table(3)
    factors = np.array([1e-6, 1.0, 1e6, 1.0, 1e3, 1.0])
    found = BottleneckRegressor().fit(x, y * factors)
    assert found.n_components_ == 3
    assert np.all(np.square(found.predict(x) - y * factors).mean(axis=0) < 1e-6 * np.square(y * factors).mean(axis=0))
    assert any("spreads of the outputs differ by a factor of" in note for note in found.notes_)
    jointly = BottleneckRegressor(outputs="jointly", **QUICK).fit(x, y * factors)
    assert not any("spreads" in note for note in jointly.notes_)
    assert jointly.n_components_ == 1  # the third output drowns the others


def test_more_components_than_outputs_are_refused_with_the_way_out():
    x, y = linear_table(2)
    with pytest.raises(ValueError, match=r"n_components: got 7, expected at most 6.*n_input_directions_"):
        BottleneckRegressor(7).fit(x, y)
    with pytest.raises(ValueError, match="at most 8, the number of inputs"):
        BottleneckRegressor(9).fit(x, np.hstack([y, y]))
    with pytest.raises(ValueError, match=r"at most 2: .*3 classes"):
        BottleneckClassifier(3).fit(x, np.arange(150) % 3)


def test_constant_columns_and_copies_are_noted_and_do_no_harm():
    x, y = linear_table(2)
    wide, tall = np.hstack([x, np.full((150, 1), 7.0)]), np.hstack([y, np.full((150, 1), -3.0)])
    found = BottleneckRegressor().fit(np.vstack([wide, wide[:10]]), np.vstack([tall, tall[:10]]))
    assert found.n_components_ == 2
    assert any("constant inputs left out: x8" in note for note in found.notes_)
    assert any("10 of 160 rows repeat" in note for note in found.notes_)
    assert np.allclose(found.predict(wide)[:, -1], -3.0)


def test_what_a_table_deserves_is_decided_by_the_rows_that_differ(bent):
    x, y = bent
    found = BottleneckRegressor().fit(np.repeat(x[:20], 15, axis=0), np.repeat(y[:20], 15, axis=0))
    assert found.stability_ == ()
    assert any("280 of 300 rows repeat" in note for note in found.notes_)
    assert any("fewer than 30 rows that differ" in note for note in found.notes_)


def test_copies_of_noise_are_still_noise():
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(40, 5)), generator.normal(size=(40, 3))
    with pytest.warns(NothingFoundWarning):  # a copy that is held out would be predicted from the one that is not
        found = BottleneckRegressor(**QUICK).fit(np.vstack([x] * 4), np.vstack([y] * 4))
    assert found.n_components_ == 0


def test_steps_are_by_rows_that_differ_where_ridges_are_given():
    x = np.random.default_rng(0).normal(size=(20, 3))
    many = Data(np.repeat(x, 15, axis=0), np.repeat(x, 15, axis=0))
    assert BottleneckRegressor(ridges=[0.01])._plan(Data(x, x), 0, print).steps == 40
    assert BottleneckRegressor(ridges=[0.01])._plan(many, 0, print).steps == 40


def test_fewer_rows_than_columns():
    generator = np.random.default_rng(7)
    x = generator.normal(size=(40, 2)) @ generator.normal(size=(2, 60))
    found = BottleneckRegressor(**QUICK).fit(x, x[:, :5])
    assert found.n_components_ == 2
    assert any("40 rows for 60 inputs" in note for note in found.notes_)


def test_bad_tables_are_refused_by_name():
    x, y = linear_table(2)
    holes = x.copy()
    holes[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"X: got missing values \(NaN\) in column 2 \(1 of 150 rows\)"):
        BottleneckRegressor().fit(holes, y)
    with pytest.raises(ValueError, match=r"y: got missing values \(NaN\) in column 2"):
        BottleneckRegressor().fit(x, np.where(np.isnan(holes[:, :6]), np.nan, y))
    words = x.astype(object)
    words[:, 1] = "red"
    with pytest.raises(ValueError, match=r"X: got text or categories in column 1.*OneHotEncoder"):
        BottleneckRegressor().fit(words, y)
    holes[4, 1] = np.inf
    with pytest.raises(ValueError, match=r"infinite .* in column 1 \(1 of 150 rows\)"):
        BottleneckRegressor().fit(np.nan_to_num(holes, nan=0.0, posinf=np.inf), y)
    with pytest.raises(ValueError, match=r"y: got missing values \(NaN\) \(1 of 150 rows\)"):
        BottleneckRegressor().fit(x, holes[:, 2])
    with pytest.raises(ValueError, match=r"y: got missing values \(NaN\) \(1 of 150 rows\), expected a class each"):
        BottleneckClassifier().fit(x, [None] + ["a"] * 149)
    with pytest.raises(ValueError, match=r"X: got missing values \(NaN\) in column 1 \(1 of 2 rows\)"):
        BottleneckRegressor().fit([[1.0, np.nan], [2.0, 3.0]], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"got 1 row\(s\) that differ, expected at least 2"):
        BottleneckRegressor().fit(np.ones((150, 3)), y)


def test_data_frames_are_known_by_the_names_of_their_columns():
    pandas = pytest.importorskip("pandas")
    x, y = linear_table(2, n=29)
    inputs, outputs = pandas.DataFrame(x, columns=list("abcdefgh")), pandas.DataFrame(y, columns=list("uvwxyz"))
    found = BottleneckRegressor().fit(inputs, outputs)
    assert found.summary().inputs == tuple("abcdefgh")
    assert found.summary().output_names == tuple("uvwxyz")
    assert BottleneckRegressor().fit(inputs, outputs["w"]).summary().output_names == ("w",)
    assert BottleneckRegressor().fit(x, y).summary().output_names == ("y0", "y1", "y2", "y3", "y4", "y5")
    for column, message in [
        (["red", "blue", "red"] * 9 + ["red"] * 2, "text or categories in column color"),
        (pandas.Categorical(["red"] * 29), "text or categories in column color"),
        (pandas.date_range("2020-01-01", periods=29), "dates or times in column color"),
        ([1.0, None] + [2.0] * 27, r"missing values \(NaN\) in column color \(1 of 29 rows\)"),
        (
            pandas.array([1, None] + [2] * 27, dtype="Int64"),
            r"missing values \(NaN\) in column color \(1 of 29 rows\)",
        ),
    ]:
        with pytest.raises(ValueError, match=f"X: got {message}"):
            BottleneckRegressor().fit(inputs.assign(color=column), outputs)
    assert BottleneckRegressor().fit(inputs.assign(flag=pandas.array([1, 2] * 14 + [3], dtype="Int64")), outputs)


def test_a_fit_that_fails_leaves_nothing_of_an_earlier_one():
    x, y = linear_table(2, n=29)
    found = BottleneckRegressor().fit(x, y)
    with pytest.raises(ValueError, match="n_components"):
        found.set_params(n_components=7).fit(x[:, :7], y)
    with pytest.raises(NotFittedError):
        found.predict(x)
    assert not hasattr(found, "n_components_")


def test_ctrl_c_ends_a_fit(bent):
    """A training returns what it has so far when it is interrupted; a fit must not go on with that."""
    found = BottleneckRegressor(1, **QUICK).fit(*bent)
    found.set_params(n_components="auto", steps=100_000)
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        found.fit(*bent)
    with pytest.raises(NotFittedError):
        found.predict(bent[0])


def test_progress_is_told_where_it_is_asked_for(capsys):
    x, y = linear_table(2, n=29)
    BottleneckRegressor().fit(x, y)
    assert capsys.readouterr() == ("", "")
    BottleneckRegressor(progress=True).fit(x, y)
    assert capsys.readouterr().err == "fitting: linear maps\n"


def test_components_that_do_not_vary_are_told():
    x, y = linear_table(2, n=29)
    found = BottleneckRegressor(3).fit(x, y)
    assert any("1 of the 3 components do not vary" in note for note in found.notes_)


def test_networks_are_as_wide_as_the_components_asked_for():
    x, y = linear_table(2, n=29)
    with pytest.raises(ValueError, match="width: got 3, expected at least 5, the number of components"):
        BottleneckRegressor(5, width=3).fit(x, y)
    wide = np.abs(np.random.default_rng(0).normal(size=(40, 18)))
    plan = BottleneckRegressor(18)._plan(Data(wide, wide), 0, print, 18)
    assert (budget_for(40, 18, 18, 18).width, plan.width) == (16, 18)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_components": "many"}, "n_components: got 'many'"),
        ({"n_components": 0}, "n_components: got 0"),
        ({"ridges": "some"}, "ridges: got 'some'"),
        ({"ridges": []}, "ridges: got none"),
        ({"ridges": [-1.0]}, r"ridges\[0\]: got -1"),
        ({"depth": 1}, "depth: got 1"),
        ({"steps": "all"}, "steps: got 'all'"),
        ({"outputs": "alone"}, "outputs: got 'alone'"),
        ({"progress": "loud"}, "progress: got 'loud'"),
    ],
)
def test_bad_parameters_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        BottleneckRegressor(**arguments).fit(*linear_table(2))


def four_quarters():
    """Labels that are a product of signs and a threshold: two numbers, one of which has a saddle at the origin."""
    x = np.random.default_rng(1).normal(size=(300, 8))
    return x, np.array(["low", "mid", "high", "odd"])[(x[:, 0] * x[:, 1] > 0).astype(int) + 2 * (x[:, 2] > 0.3)]


def test_products_of_inputs_which_deep_networks_miss_are_found_by_shallow_ones():
    x, labels = four_quarters()
    found = BottleneckClassifier(steps=200, width=20).fit(x, labels)
    assert (found.n_components_, found.model_) == (2, "network")
    assert found.score(x, labels) > 0.95
    assert {trial.depth for trial in found.stability_} == {4, 8, 12}
    assert "4 classes" in str(found.summary())
    deep = BottleneckClassifier(steps=200, width=20, depth=12).fit(x, labels)  # the depth asked for and no other
    assert {trial.depth for trial in deep.stability_} <= {12, 16}


def test_final_networks_that_stopped_at_a_saddle_are_replaced_by_one_of_the_folds():
    x, labels = four_quarters()
    found = BottleneckClassifier(steps=300, width=30).fit(x, labels)
    assert found.n_components_ == 2
    assert found.score(x, labels) > 0.9  # 0.56 from the networks trained on all rows


def test_a_count_from_fewer_than_ten_rows_that_differ_is_undetermined():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(4, 5)), generator.normal(size=(4, 3))
    with pytest.warns(NothingFoundWarning):
        found = BottleneckRegressor().fit(x, y)
    assert found.undetermined_
    assert found.n_components_interval_ == (0, 3)
    assert "only 4 rows differ" in found.reason_
    x = generator.normal(size=(10, 2))
    y = x @ generator.normal(size=(2, 3))
    assert "rows differ" not in BottleneckRegressor().fit(x, y).reason_
    found = BottleneckRegressor().fit(x[:9], y[:9])
    assert (found.model_, found.undetermined_, found.n_components_interval_) == ("linear", True, (0, 2))


def test_so_few_rows_are_undetermined_for_networks_and_autoencoders_too():
    x = np.linspace(-1, 1, 9)[:, None]
    found = BottleneckRegressor(ridges=[1e-3], steps=200).fit(x, np.hstack([np.abs(x), 2 * np.abs(x)]))
    assert (found.model_, found.undetermined_, found.n_components_interval_) == ("network", True, (0, 1))
    line = np.random.default_rng(0).normal(size=(8, 1)) @ np.ones((1, 6))
    for table in (line, line[:, :2], line * [1, 0, 0, 0, 0, 0]):  # the second at the bound, in the third one varies
        found, columns = BottleneckAutoencoder().fit(table), table.shape[1]
        assert (found.n_components_, found.undetermined_, found.n_components_interval_) == (1, True, (0, columns))
        assert found.reason_.count("undetermined") == 1


@pytest.mark.parametrize("method", ["fit", "predict", "transform"])
def test_messages_of_scikit_learn_name_the_argument(method):
    x, y = linear_table(2)
    found = BottleneckRegressor().fit(x, y)
    given = (x[0], y) if method == "fit" else (x[0],)
    with pytest.raises(ValueError, match=r"^X: Expected 2D array, got 1D array instead"):
        getattr(found, method)(*given)
    with pytest.raises(ValueError, match=r"^y: Found input variables with inconsistent numbers of samples"):
        found.fit(x, y[:-1])
    with pytest.raises(TypeError, match=r"^X: got a sparse tensor, expected a dense one"):
        BottleneckRegressor().fit(torch.from_numpy(x).to_sparse(), y)


def test_a_tensor_counts_as_the_array_of_its_values():
    x, y = linear_table(2)
    plain = BottleneckRegressor().fit(x, y).transform(x)
    tensors = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    assert np.array_equal(BottleneckRegressor().fit(*tensors).transform(tensors[0]), plain)
