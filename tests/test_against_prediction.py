"""Prediction beside other methods: the splits, the scores, and tables of what was measured and what failed."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.against import prediction
from benchmarks.against.prediction_tables import KEEL, Split, bundled, regression


def test_a_fifth_of_the_rows_is_held_out_and_all_rows_are_used():
    from sklearn.datasets import load_diabetes

    made = regression("sklearn/diabetes")
    assert (len(made.x), len(made.x_test), made.classes) == (354, 88, 0)
    rows = np.concatenate([np.column_stack([made.x, made.y]), np.column_stack([made.x_test, made.y_test])])
    whole = load_diabetes()
    expected = np.column_stack([whole.data, whole.target])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_classes_are_those_of_the_table():
    made = regression("sklearn/iris")
    assert made.classes == 3
    assert set(made.y) == {0, 1, 2}
    assert "sklearn/iris" in bundled()


def test_a_table_of_keel_is_read_with_its_first_split(tmp_path, monkeypatch):
    folder = tmp_path / "balanced" / "processed"
    folder.mkdir(parents=True)
    parts = {"x_train": [[1, 2], [3, 4]], "y_train": [5, 7], "x_test": [[5, 6]], "y_test": [7]}
    np.savez(
        folder / "toy.npz", **{f"fold{i}-{part}": np.array(value) + i for part, value in parts.items() for i in (0, 1)}
    )
    monkeypatch.setitem(vars(KEEL), "folder", tmp_path)
    assert KEEL.names() == ["balanced/toy"]
    made = KEEL.split("balanced/toy")
    assert made.x.tolist() == [[1, 2], [3, 4]]
    assert (made.y.tolist(), made.y_test.tolist(), made.classes) == ([0, 1], [1], 2)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    y = x[:, :1] + 0.1 * rng.normal(size=(120, 1))
    labels = (x[:, 0] > 0).astype(int)
    splits = {
        "line": Split(x[:80], y[:80], x[80:], y[80:], 0),
        "sides": Split(x[:80], labels[:80], x[80:], labels[80:], 2),
    }

    def absent(split):
        raise ImportError(name="some_package")

    methods = {name: prediction.METHODS[name] for name in ("bnrank", "gradient boosting", "kernel ridge")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "METHODS", methods | {"xRFM": absent})
        patch.setattr(prediction, "regression", splits.__getitem__)
        found = []
        for name in splits:
            cell = {"table": name, "source": "bundled"}
            found += [cell | result for result in prediction.measure(cell)]
        return found, prediction.tables(found)


def test_all_methods_predict_a_line_and_a_side(rows):
    scores = {(row["table"], row["method"]): row["score"] for row in rows[0] if "score" in row}
    assert len(scores) == 6
    assert min(scores.values()) > 0.8
    assert scores["line", "bnrank"] > 0.97


def test_what_is_not_installed_is_said(rows):
    assert "- xRFM on line: not installed (some_package)" in rows[1]
    assert "| bnrank |" in rows[1]
    assert "Classification (accuracy)" in rows[1]


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import accuracy_score, r2_score

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 30, 2))
    assert prediction.score(0.5 * a + 0.1 * b, a, 0) == pytest.approx(
        r2_score(a, 0.5 * a + 0.1 * b, multioutput="variance_weighted")
    )
    assert prediction.score(99 * a, a, 0) == -1
    labels, guesses = rng.integers(3, size=(2, 30))
    assert prediction.score(guesses, labels, 3) == accuracy_score(labels, guesses)
