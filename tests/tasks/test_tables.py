"""The user's own tables."""

import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank._core import validation
from bnrank.tasks import MissingDataError, load_table, read_table

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))


def npz(folder, **arrays):
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def table(folder, text):
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return path


# ---- .npz


def test_npz(tmp_path):
    task = load_table(npz(tmp_path, x=X, y=Y, x_test=X[:2], y_test=Y[:2], other=np.zeros(3)))
    assert torch.equal(task.x, torch.tensor(X, dtype=torch.float32))
    assert torch.equal(task.y, torch.tensor(Y, dtype=torch.float32))
    assert torch.equal(task.x_test, task.x[:2])
    assert torch.equal(task.y_test, task.y[:2])
    assert (task.name, task.loss) == ("data", "mse")
    assert torch.equal(load_table(**task.settings | {"targets": None}).x, task.x)


def test_outputs_that_are_taken_where_they_are(tmp_path):
    both, alone = npz(tmp_path, x=X, y=Y), tmp_path / "x.npz"
    np.savez(alone, x=X, y_test=Y)
    assert np.array_equal(read_table(both, outputs=None).y, Y)
    assert read_table(both, outputs=False).y is None
    assert read_table(alone, outputs=None).y is None
    path = table(tmp_path, "a,b,c\n1,2,x\n3,4,y\n")
    assert read_table(path, "c", outputs=None).y.tolist() == ["x", "y"]
    assert read_table(path, ignore="c", outputs=None).y is None
    named = read_table(path, "c", outputs=None)
    assert named.class_names == ("x", "y")
    assert named.with_class_indices().y.tolist() == [0, 1]


def test_npz_shapes_and_types(tmp_path):
    task = load_table(str(npz(tmp_path, x=np.arange(6), y=Y[:, 0])))
    assert task.x.tolist() == [[0], [1], [2], [3], [4], [5]]
    assert task.y.shape == (6, 1)
    assert load_table(npz(tmp_path, x=np.zeros((6, 4, 4), np.uint8), y=Y)).d_in == 16


def test_npz_labels(tmp_path):
    y = np.array([0, 1, 2, 0, 1, 1], np.uint8)
    task = load_table(npz(tmp_path, x=X, y=y, x_test=X[:1], y_test=np.array([3])))
    assert (task.loss, task.classes, task.y.tolist()) == ("cross_entropy", 4, y.tolist())
    assert load_table(npz(tmp_path, x=X, y=y), loss="mse").y.dtype == torch.float32
    assert load_table(npz(tmp_path, x=X, y=y[:, None])).loss == "mse"
    whole = load_table(npz(tmp_path, x=X, y=y.astype(float)), loss="cross_entropy")
    assert whole.y.tolist() == y.tolist()
    assert load_table(npz(tmp_path, x=X, y=y[:, None]), loss="cross_entropy").y.tolist() == y.tolist()


class Payload:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_pickles_are_refused(tmp_path):
    path = npz(tmp_path, x=np.array([Payload()] * 6, dtype=object), y=Y)
    with pytest.raises(ValueError, match=r"x: got unreadable data in data.npz .* Python objects are refused"):
        load_table(path)
    path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"'data.npz', which is no .npz archive"):
        load_table(path)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"x": X, "z": Y}, ValueError, "got arrays x, z, expected x and y; y is missing"),
        ({"x": X, "y": Y[:3]}, ValueError, "x, y: got 6 and 3 samples"),
        ({"x": X, "y": Y, "x_test": X}, ValueError, "x_test, y_test: got one without the other"),
        ({"x": np.where(X > 1, np.nan, X), "y": Y}, ValueError, "missing or infinite values in column x0"),
        ({"x": X * 1e300, "y": Y}, ValueError, "x: got NaN or infinite"),
        ({"x": X.astype(str), "y": Y}, TypeError, "x: got dtype <U"),
        ({"x": X, "y": Y * 1j}, TypeError, "y: got dtype complex128"),
        ({"x": X, "y": np.array([0, 1, 2, 3, 4, 70])}, ValueError, "y: got labels up to 70 in 6 samples"),
        ({"x": X, "y": np.array([0, 1, -1, 0, 1, 1])}, ValueError, "y: got class indices from -1 to 1"),
    ],
)
def test_npz_errors(tmp_path, arrays, error, message):
    with pytest.raises(error, match=re.escape(message)):
        load_table(npz(tmp_path, **arrays))


def test_truncated_npz(tmp_path):
    path = npz(tmp_path, x=X, y=Y)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-40])
    with pytest.raises(ValueError, match=r"no .npz archive or a damaged one"):
        load_table(path)
    data[200] ^= 255  # inside x: the checksum of the archive finds it
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x: got unreadable data in data.npz"):
        load_table(path)


# ---- .csv


def test_csv(tmp_path):
    path = table(tmp_path, '\ufeffa, b,"c, d",e\n1,2,3.5,4\n\n5,6e0,7,8\n')
    task = load_table(path, ["e", "b"])
    assert task.x.tolist() == [[1, 3.5], [5, 7]]
    assert task.y.tolist() == [[4, 2], [8, 6]]
    assert task.loss == "mse"
    assert torch.equal(load_table(**task.settings).x, task.x)
    assert load_table(path, "a", loss="mse").y.tolist() == [[1], [5]]
    assert load_table(path, "c, d").y.tolist() == [[3.5], [7]]


def test_no_text_is_made_for_a_line_that_is_read(tmp_path, monkeypatch):
    counts, expect = [], validation.expect
    monkeypatch.setattr(validation, "expect", lambda *args: counts.append(args) or expect(*args))
    for rows in (10, 1000):
        counts.clear()
        load_table(table(tmp_path, "a,b\n" + "1,2.5\n" * rows), "b")
        assert len(counts) < 100


def test_names_of_columns_from_an_iterator(tmp_path):
    path = tmp_path / "trees.csv"
    path.write_text("height,girth,volume\n70,8.3,10.3\n65,8.6,10.4\n")
    task = load_table(path, iter(["volume"]), iter(["girth"]))
    assert (task.x.tolist(), task.d_out) == ([[70.0], [65.0]], 1)
    assert (task.settings["targets"], task.settings["ignore"]) == (["volume"], ["girth"])


def test_csv_labels(tmp_path):
    path = table(tmp_path, "a,b\n1,0\n2,1\n3,1\n")
    assert load_table(path, "b").y.tolist() == [0, 1, 1]
    assert load_table(path, "b").loss == "cross_entropy"
    assert load_table(path, "b", loss="mse").y.tolist() == [[0], [1], [1]]
    assert load_table(table(tmp_path, "a,b\n1,0\n2,1.0\n"), "b").loss == "mse"
    with pytest.raises(ValueError, match=re.escape("y: got ndarray of shape (2, 1)")):
        load_table(table(tmp_path, "a,b\n1,0\n2,1.5\n"), "b", loss="cross_entropy")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    data=st.integers(2, 4).flatmap(
        lambda k: st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=k, max_size=k), min_size=1, max_size=6)
    )
)
def test_csv_round_trip(data, tmp_path_factory):
    names = [f"c{i}" for i in range(len(data[0]))]
    lines = [",".join(names)] + [",".join(map(repr, row)) for row in data]
    task = load_table(table(tmp_path_factory.mktemp("csv"), "\n".join(lines)), names[0])
    assert task.loss == "mse"
    assert torch.cat([task.y, task.x], 1).tolist() == data


@pytest.mark.parametrize(
    ("text", "targets", "message"),
    [
        ("a,b\n1,2\n", None, "targets: got none, expected the columns of data.csv that make up y, among a, b"),
        ("alpha,b\n1,2\n", "alhpa", "targets: got 'alhpa', expected columns of data.csv, which has alpha, b; did you"),
        ("a,b\n1,2\n", ["a", "b"], "targets: got every column"),
        ("a,b\n1,2\n", ["a", "a"], "expected each column once"),
        ("a,a\n1,2\n", "a", "got columns a, a, expected different names"),
        ("a,b\n1,2\n\n3\n", "a", "data.csv, line 4: got 1 cells, expected 2 as in the header"),
        ("a,b\n1,2\n3,4,5\n", "a", "data.csv, line 3: got 3 cells"),
        ("a,b\n1,2\n\n3,x\n", "a", "data.csv: got text in column b, expected numbers (line 4: 'x')"),
        ("a,b\n1,2\n3,x\n", "b", "data.csv, line 3, column 'b': got 'x' among numbers, expected numbers only, or text"),
        ("a,b\n1,\n", "a", "missing or infinite values in column b (1 of 1 rows)"),
        ("a,b\n1,nan\n2,inf\n", "a", "missing or infinite values in column b (2 of 2 rows)"),
        ("a,b\n", "a", "got 1 rows"),
        ("", "a", "got 0 rows"),
        ('a,b\n1,"2\n', "a", "no CSV file in UTF-8"),
    ],
)
def test_csv_errors(tmp_path, text, targets, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_table(table(tmp_path, text), targets)


def test_other_errors(tmp_path):
    with pytest.raises(MissingDataError, match=r"absent.csv"):
        load_table(tmp_path / "absent.csv", "a")
    with pytest.raises(ValueError, match=re.escape("path: got 'data.parquet', expected a file name ending in .npz")):
        load_table(tmp_path / "data.parquet")
    with pytest.raises(ValueError, match=re.escape("targets, ignore: got y, expected none for")):
        load_table(npz(tmp_path, x=X, y=Y), "y")
    with pytest.raises(ValueError, match="loss: got 'mae'"):
        load_table(npz(tmp_path, x=X, y=Y), loss="mae")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no CSV file in UTF-8"):
        load_table(binary, "a")


def test_text_classes_and_columns_left_out(tmp_path):
    path = table(tmp_path, "id,a,kind\nu,1,oak\nv,2,elm\nw,3,oak\n")
    task = load_table(path, "kind", "id")
    assert (task.loss, task.classes, task.class_names) == ("cross_entropy", 2, ("elm", "oak"))
    assert (task.x.tolist(), task.y.tolist()) == ([[1], [2], [3]], [1, 0, 1])
    assert load_table(**task.settings).y.tolist() == task.y.tolist()
    with pytest.raises(ValueError, match="loss: got 'mse', expected 'cross_entropy' for classes given as text"):
        load_table(path, "kind", "id", loss="mse")
    with pytest.raises(ValueError, match=r"data.csv: got text in column id, expected numbers"):
        load_table(path, "kind")
    with pytest.raises(ValueError, match="got text in column id, kind"):
        load_table(path, ["id", "kind"])


def test_true_and_false_are_names_of_classes(tmp_path):
    task = load_table(table(tmp_path, "a,b\n1,True\n2,False\n3,True\n"), "b")
    assert (task.loss, task.class_names, task.y.tolist()) == ("cross_entropy", ("False", "True"), [1, 0, 1])
    task = load_table(table(tmp_path, "a,b\n1,True\n2,\n3,False\n"), "b", drop_missing=True)
    assert (task.class_names, task.x.tolist(), task.y.tolist()) == (("False", "True"), [[1], [3]], [1, 0])


def test_true_and_false_are_numbers_outside_of_classes(tmp_path):
    task = load_table(table(tmp_path, "a,b,c\nTrue,1,2.5\n,2,3.5\nFalse,3,4.5\n"), "c", drop_missing=True)
    assert task.x.tolist() == [[1, 1], [0, 3]]
    task = load_table(table(tmp_path, "a,b,c\n1,true,2\n2,,3\n3,false,4\n"), ["b", "c"], drop_missing=True)
    assert task.y.tolist() == [[1, 2], [0, 4]]
    with pytest.raises(ValueError, match="got text in column a"):
        load_table(table(tmp_path, "a,b\nTrue,1\n,2\nmaybe,3\n"), "b", drop_missing=True)


def test_rows_with_gaps_are_left_out_where_asked(tmp_path):
    path = table(tmp_path, "a,b,kind\n1,NA,0\n2,5,1\n3,6,\n4,inf,1\n5,7,0\n")
    with pytest.raises(ValueError, match=r"column b \(2 of 5 rows\), kind \(1 of 5 rows\)"):
        load_table(path, "kind")
    task = load_table(path, "kind", drop_missing=True)
    assert (task.loss, task.x.tolist(), task.y.tolist()) == ("cross_entropy", [[2, 5], [5, 7]], [1, 0])
    found = read_table(path, "kind", drop_missing=True)
    assert (found.dropped, found.rows.tolist(), found.columns) == (3, [1, 4], ("a", "b"))
    assert found.inputs.index.tolist() == [1, 4]
    with pytest.raises(ValueError, match=r"got 2 row\(s\) that are complete, expected at least 3"):
        read_table(path, "kind", drop_missing=True, min_rows=3)


def test_named_tasks_are_tables_too():
    found, task = read_table("s-shapes"), load_table("s-shapes")
    assert found.name == task.name
    np.testing.assert_array_equal(found.x, task.x.numpy())
    assert found.inputs.columns.tolist() == [f"x{i}" for i in range(task.d_in)]
    with pytest.raises(ValueError, match="did you mean 's-shapes'"):
        load_table("s-shape")
