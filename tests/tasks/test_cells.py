"""Files from elsewhere: separators, decimal commas, texts as categories, groups."""

import csv
import io
import re

import numpy as np
import pytest

from bnrank.tasks import load_table, read_table

GERMAN = """Größe;Art;"Menge; netto";Charge
1,5;Eiche;-2,25e1;A
;"Ulme ";3;B
2,0;Eiche;4,5;"A"
,5;Buche;6,0;B
3;Eiche;1e1;B
4;Eiche;0;A
"""


def table(folder, text, encoding="utf-8"):
    path = folder / "data.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_german_numbers_texts_and_gaps(tmp_path):
    path = table(tmp_path, GERMAN, "utf-8-sig")
    found = read_table(path, "Menge; netto", decimal=",", one_hot=True, groups="Charge", drop_missing=True)
    assert found.columns == ("Größe", "Art=Eiche")  # no elm is left, and beech is no oak
    assert found.x.tolist() == [[1.5, 1], [2, 1], [0.5, 0], [3, 1], [4, 1]]
    assert found.outputs.to_numpy().tolist() == [[-22.5], [4.5], [6], [10], [0]]
    assert (found.groups.tolist(), found.rows.tolist(), found.dropped) == (list("AABBA"), [0, 2, 3, 4, 5], 1)
    task = load_table(path, "Menge; netto", "Charge", sep=";", decimal=",", one_hot=True, drop_missing=True)
    assert task.x.tolist() == found.x.tolist()
    assert load_table(**task.settings).x.tolist() == task.x.tolist()
    assert load_table(path, "Art", "Charge", decimal=",", drop_missing=True).class_names == ("Buche", "Eiche")


@pytest.mark.parametrize("sep", [",", ";", "|", "\t"])
@pytest.mark.parametrize("decimal", [".", ","])
def test_cells_are_those_of_the_csv_module(tmp_path, sep, decimal):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(20, 2)).round(4)
    kinds = rng.choice(['a"b', "c,d", "e;f", "g|h", "line\nbreak", "ä"], 20)
    file = io.StringIO()
    writer = csv.writer(file, delimiter=sep)
    writer.writerow(["x", "kind", "y"])
    for (a, b), kind in zip(numbers, kinds, strict=True):
        writer.writerow([str(a).replace(".", decimal), kind, str(b).replace(".", decimal)])
    found = read_table(table(tmp_path, file.getvalue()), "y", sep=sep, decimal=decimal, one_hot=True)
    slow = [[float(kind == level) for level in sorted(set(kinds))] for kind in kinds]
    assert found.columns == ("x", *(f"kind={level}" for level in sorted(set(kinds))))
    np.testing.assert_array_equal(found.x, np.column_stack([numbers[:, 0], slow]))
    np.testing.assert_array_equal(found.y[:, 0], numbers[:, 1])


def test_spaces_hide_no_gap(tmp_path):
    found = read_table(table(tmp_path, 'a,b,c\n1," ",x\n2, 3.5 ,y \n4,5,y\n'), "b", one_hot=True, drop_missing=True)
    assert (found.x.tolist(), found.columns, found.y.tolist()) == ([[2, 1], [4, 1]], ("a", "c=y"), [[3.5], [5]])


def test_names_of_rows_are_no_input(tmp_path):
    found = read_table(table(tmp_path, '"","mpg","cyl"\n"Mazda RX4",21,6\n"Datsun 710",22.8,4\n'), "mpg")
    assert (found.columns, found.x.tolist()) == (("cyl",), [[6], [4]])
    with pytest.raises(ValueError, match="expected different names for all"):
        read_table(table(tmp_path, "a,b,\n1,2,3\n"), "a")


def test_true_and_false_are_no_categories(tmp_path):
    found = read_table(table(tmp_path, "a,b,y\nTrue,yes,1.5\nFalse,no,2.5\n"), "y", one_hot=True)
    assert (found.columns, found.x.tolist()) == (("a", "b=yes"), [[1, 1], [0, 0]])


def test_missing_groups_are_gaps_and_numbers_name_groups(tmp_path):
    path = table(tmp_path, "a,plate,y\n1,7,0.5\n2,,1.5\n3,8,2.5\n")
    with pytest.raises(ValueError, match=r"missing or infinite values in column plate \(1 of 3 rows\)"):
        read_table(path, "y", groups="plate")
    found = read_table(path, "y", groups="plate", drop_missing=True)
    assert (found.columns, found.x.tolist(), len(set(found.groups))) == (("a",), [[1], [3]], 2)


@pytest.mark.parametrize(
    ("cells", "groups"),
    [
        (["7", "8B", "8"], ["7", "8B", "8"]),
        (["1.10", "1.1", " 1.1 "], ["1.10", "1.1", "1.1"]),
        (["007", "7", "7.0"], ["007", "7", "7.0"]),
        (["1e3", "1000", "True"], ["1e3", "1000", "True"]),
        (["01.02", '"1,5"', "1.5"], ["01.02", "1,5", "1.5"]),
    ],
)
@pytest.mark.parametrize("decimal", [".", ","])
def test_groups_are_told_apart_as_they_are_written(tmp_path, cells, groups, decimal):
    path = table(tmp_path, "plate ,a,y\n" + "".join(f"{cell},{i},{i + 1}\n" for i, cell in enumerate(cells)))
    found = read_table(path, "y", groups="plate", sep=",", decimal=decimal)
    assert found.groups.tolist() == groups
    assert (found.columns, found.x.tolist(), found.y.ravel().tolist()) == (("a",), [[0], [1], [2]], [1, 2, 3])


def test_blank_groups_are_missing_and_the_others_stay_texts(tmp_path):
    path = table(tmp_path, "a,plate,y\n1,7,0.5\n2, ,1.5\n3,07,2.5\n")
    found = read_table(path, "y", groups="plate", drop_missing=True)
    assert (found.groups.tolist(), found.rows.tolist()) == (["7", "07"], [0, 2])


def test_categories_may_be_numbers_in_part(tmp_path):
    path = table(tmp_path, "visits,dose,y\n1,1.10,1\n2,1.1,2\n5+,high,3\n5+,1.1,4\n1,,5\n2,high,6\n")
    found = read_table(path, "y", one_hot=True, drop_missing=True)
    assert found.columns == ("visits=1", "visits=2", "visits=5+", "dose=1.1", "dose=1.10", "dose=high")
    assert found.x.tolist() == [
        [1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 1]
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'5\\+' among numbers"):
        read_table(path, "visits", "dose")  # classes


@pytest.mark.parametrize("code", ["01.02", "1.02"])
def test_codes_with_dots_are_categories_beside_decimal_commas(tmp_path, code):
    lines = [f"0,{i};{code if i % 2 else 'A'};{i}" for i in range(4)]
    path = table(tmp_path, "\n".join(["x;kind;y", *lines]))
    found = read_table(path, "y", decimal=",", one_hot=True)
    assert found.columns == ("x", "kind=A")
    assert found.x.tolist() == [[0, 1], [0.1, 0], [0.2, 1], [0.3, 0]]
    task = load_table(path, "kind", decimal=",") if code == "01.02" else None
    assert task is None or task.class_names == ("01.02", "A")


def test_dates_alone_are_categories_beside_decimal_commas(tmp_path):
    path = table(tmp_path, "day;y\n01.02;1\n02.02;2\n01.02;3\n02.02;4\n")
    assert read_table(path, "y", decimal=",", one_hot=True).columns == ("day=02.02",)


def test_numbers_with_the_other_mark_are_no_numbers_beside_blanks(tmp_path):
    with pytest.raises(ValueError, match="expected the decimal mark ','"):
        read_table(table(tmp_path, 'a;y\n1.5;1\n" ";2\n2.5;3\n'), "y", decimal=",", drop_missing=True)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GERMAN, {}, "line 2: got 3 cells, expected 1 as in the header; its cells are separated by ';' (option sep)"),
        ("a;b\n1;2\n", {}, "got one column, 'a;b', expected several; its cells are separated by ';' (option sep)"),
        ("a;b\n1,5;2\n2,5;3\n", {"sep": ";", "targets": "b"}, "(line 2: '1,5'); expected the decimal mark '.' (option"),
        (
            "a;b\n1;2,5\n2;3,5\n",
            {"sep": ";", "targets": "b"},
            "line 2, column 'b': got '2,5' among numbers, expected the",
        ),
        (
            "a;b\n1;2,5\n1.5;3\n",
            {"decimal": ",", "targets": "b"},
            "(line 3: '1.5'); expected the decimal mark ',' (opt",
        ),
        (
            "a;b\n1;2,5\n1;x\n",
            {"decimal": ",", "targets": "b"},
            "line 3, column 'b': got 'x' among numbers, expected num",
        ),
        ("a,b\n1,2\n", {"sep": ":"}, "sep: got ':' (str), expected one of ',', ';', '|'"),
        ("a,b\n1,2\n", {"decimal": "'"}, "decimal: got"),
        ("a,b,c\n1,2,u\n1,3,u\n", {"targets": "b", "groups": "d"}, "groups: got 'd', expected columns of data.csv"),
        (
            "a,b,c\n1,2,u\n",
            {"targets": "b", "groups": "b"},
            "targets, ignore, groups: got b, b, expected each column once",
        ),
        ("a,b,c\n1,2,u\n", {"targets": "b", "ignore": "c", "groups": "c"}, "got b, c, c, expected each column once"),
        (
            "a;b\n" + "".join(f"{i}{mark}5;{i}\n" for i, mark in enumerate(".,.,.")),
            {"targets": "b", "one_hot": True, "sep": ";"},
            "line 3, column 'a': got '1,5' among numbers, expected the decimal mark '.'",
        ),
        (
            "a,b\n" + "".join(f"{i or 'x'},{i}\n" for i in range(9)),
            {"targets": "b", "one_hot": True},
            "got 9 different texts in column a of 9 rows ('x' on line 2 among numbers), expected at most 4",
        ),
        (
            "a,b\n" + "".join(f"t{i},{i}\n" for i in range(9)),
            {"targets": "b", "one_hot": True},
            "9 different texts in col",
        ),
        ("a,b,b=z\nu,y,1\nv,z,0\nv,y,1\nu,z,0\n", {"targets": "a", "one_hot": True}, "columns b=z, b=z, expected diff"),
        ("a,b\nu,1\nv,2\n", {"targets": "b", "one_hot": 3}, "one_hot: got 3 (int), expected True or False"),
        ("a,b\n1,2\n", {"targets": "b", "groups": 3}, "groups: got 3 (int), expected a text"),
    ],
)
def test_errors_say_what_to_do(tmp_path, text, options, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        read_table(table(tmp_path, text), **options)


def test_arrays_have_no_cells(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((3, 2)), y=np.ones((3, 1)))
    for options in ({"sep": ","}, {"decimal": ","}, {"one_hot": True}, {"groups": "a"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: got .*, expected none for"):
            read_table(tmp_path / "data.npz", **options)


def test_a_column_of_weights_is_no_input(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,w,y,plate\n1,0.5,2,p\n2,,3,p\n3,2,1,q\n")
    with pytest.raises(ValueError, match=r"column w \(1 of 3 rows\)"):
        read_table(path, "y", weights="w", groups="plate")
    found = read_table(path, "y", weights="w", groups="plate", drop_missing=True)
    assert (found.columns, found.x.tolist(), found.weights.tolist()) == (("a",), [[1], [3]], [0.5, 2])
    assert (found.weight, found.groups.tolist()) == ("w", ["p", "q"])
    for wrong, message in (
        ({"weights": "z"}, "^weights: got 'z', expected columns"),
        ({"weights": "plate", "drop_missing": True}, "got text in column plate"),
        ({"weights": "y"}, "^targets, ignore, weights: got .* expected each column once"),
        ({"weights": 3}, "^weights: got 3"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            read_table(path, "y", **({"ignore": "w"} if wrong["weights"] == "plate" else {}) | wrong)
