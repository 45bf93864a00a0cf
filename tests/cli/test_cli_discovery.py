"""`bnrank discover` as a user types it."""

import csv
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

import bnrank
from bnrank.discovery import BottleneckRegressor
from bnrank.discovery.estimators import keeping

pytestmark = pytest.mark.filterwarnings("error")

ROWS = 60
QUICK = ("--ridges", "0.01", "--depth", 4, "--steps", 60, "--members", 1, "--quiet")


@pytest.fixture
def table(tmp_path):
    """Write a .csv: three columns that depend on one combination of three others, a name and classes."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 3))
    y = (x[:, :1] - x[:, 1:2]) * np.array([1.0, 2.0, -1.0])

    def write(name="trees.csv", rows=ROWS, **cells):
        """Write the first rows, with other texts in some cells: ``girth=(3, "")``."""
        header = ["id", "height", "girth", "age", "p", "q", "r", "wood", "rings"]
        body = [
            [
                f"t{i}",
                *map(repr, [*x[i].tolist(), *y[i].tolist()]),
                "oak" if x[i, 0] > 0 else "elm",
                str(int(x[i, 0] > 0)),
            ]
            for i in range(rows)
        ]
        for column, (row, text) in cells.items():
            body[row][header.index(column)] = text
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *body])
        return x, y

    return write


def flat(text):
    return re.sub(r"\s+", " ", text)


NAMED = ("--ignore", "id,wood,rings")


def test_discover_finds_the_count_and_writes_page_estimator_and_coordinates(tmp_path, command, table):
    _, y = table()
    files = ("--out", "found.html", "--save", "found.safetensors", "--coordinates", "z.csv")
    done = command("discover", "trees.csv", "--targets", "p,q,r", *NAMED, *QUICK, *files)
    assert done.code == 0, done.error
    assert "components: 1 (interval 1 to 1; at most 3 detectable), model: linear" in done.out
    assert re.search(r"1 +\S+ +(height|girth) \(0\.\d+\), (height|girth) \(0\.\d+\), age", done.out)
    assert "bnrank.load('found.safetensors')" in done.out
    again = bnrank.load(tmp_path / "found.safetensors")
    assert isinstance(again, BottleneckRegressor)
    assert again.feature_names_in_.tolist() == ["height", "girth", "age"]
    with (tmp_path / "z.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["row", "z1"]
    assert [int(row[0]) for row in rows] == list(range(ROWS))
    z = np.array([float(row[1]) for row in rows])
    assert abs(np.corrcoef(z, y[:, 0])[0, 1]) == pytest.approx(1)
    page = (tmp_path / "found.html").read_text()
    assert "girth" in page
    assert "What p, q, r depend on" in page


def test_discover_looks_for_symmetries_where_asked(tmp_path, command, table):
    table()
    done = command("discover", "trees.csv", "--targets", "p,q,r", *NAMED, *QUICK, "--symmetries")
    assert done.code == 0, done.error
    assert "2 infinitesimal symmetries (approximate)" in done.out  # of a model learned from data
    assert "in the model f: exact" in done.out
    assert "in the data: within the held-out error" in done.out
    assert "age" in done.out.split("infinitesimal")[1]
    assert "infinitesimal" in (tmp_path / "discover.html").read_text()
    assert "infinitesimal" not in command("discover", "trees.csv", "--targets", "p,q,r", *NAMED, *QUICK).out


@pytest.fixture
def swings(tmp_path):
    """Write a table of pendulums, L in cm."""
    rng = np.random.default_rng(0)
    length, gravity, mass = np.exp(rng.uniform(-1, 1, (3, 90)))
    period = 2 * np.pi * np.sqrt(length / gravity) * (1 + 0.01 * rng.normal(size=90))
    rows = np.column_stack([100 * length, gravity, mass, period])
    np.savetxt(tmp_path / "swings.csv", rows, delimiter=",", header="L,g,m,T", comments="")
    return "discover", "swings.csv", "--targets", "T", "--quiet"


def test_discover_prints_dimensionless_groups_with_units(tmp_path, command, swings):
    pytest.importorskip("pint")
    done = command(*swings, "--units", "L=cm, g=m/s^2,m=kg,T=s")
    assert done.code == 0, done.error
    assert re.search(r"y is a power law: y = 6\.\d+ L\^\(1/2\) / g\^\(1/2\) \(SI base units\)", done.out)
    page = (tmp_path / "discover.html").read_text()
    assert "Power products of the inputs" in page
    assert "L^(1/2) / g^(1/2)" in page
    plain = command(*swings, "--power-products")
    assert re.search(r"y is a power law: y = 0\.6\d+ L\^\(1/2\) / g\^\(1/2\)\n", plain.out)
    assert "power law" not in command(*swings).out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--units", "L=cm,g=m/s^2,m=kg"], "--units: got none for T"),
        (["--units", "L=cm,g=m/s^2,T=s"], "--units: got none for m"),
        (["--units", "L,g=m/s^2,m=kg,T=s"], "--units: got 'L', expected COLUMN=UNIT"),
        (["--units", "L=cm,g=m/s^2,m=bogon,T=s"], "--units: got 'bogon'"),
        (["--units", "L=cm,g=m/s^2,m=kg,T=bogon"], "--units: got 'bogon'"),
        (["--units", "L=cm", "--kind", "classifier"], "--units: got --kind classifier"),
        (["--power-products", "--kind", "autoencoder"], "--power-products: got --kind autoencoder"),
        (["--power-products", "--targets", "T,m"], "--power-products: got target columns T, m"),
    ],
)
def test_bad_units_are_named_before_anything_is_fitted(tmp_path, command, swings, options, message):
    pytest.importorskip("pint")
    done = command(*swings, *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.error
    assert not (tmp_path / "discover.html").exists()


def test_text_is_classes_and_whole_numbers_are_said_to_be_taken_for_them(command, table):
    table()
    done = command("discover", "trees.csv", "--targets", "wood", "--ignore", "id,rings,p,q,r", *QUICK)
    assert (done.code, "BottleneckClassifier" in done.out, "--kind" in done.out) == (0, True, False), done.error
    done = command("discover", "trees.csv", "--targets", "rings", "--ignore", "id,wood,p,q,r", *QUICK)
    assert "rings has 2 different whole numbers, read as classes; --kind regressor" in done.out
    assert "BottleneckClassifier" in done.out
    done = command(
        "discover", "trees.csv", "--targets", "rings", "--ignore", "id,wood,p,q,r", "--kind", "regressor", *QUICK
    )
    assert (done.code, "BottleneckRegressor" in done.out, "--kind" in done.out) == (0, True, False)


def test_whole_numbers_that_hardly_repeat_are_no_classes(command, tmp_path):
    """A table of 16 years, each with its own number of people employed."""
    years = np.arange(16)
    pairs = zip(2.5 * years + np.sin(years), 60323 + 700 * years, strict=True)
    rows = [f"{income},{people}" for income, people in pairs]
    (tmp_path / "jobs.csv").write_text("\n".join(["income,people", *rows]))
    done = command("discover", "jobs.csv", "--targets", "people", *QUICK)
    assert "people has 16 different whole numbers, read as quantities; --kind classifier" in done.out
    assert (done.code, "BottleneckRegressor" in done.out) == (0, True), done.error


def test_an_autoencoder_takes_all_columns_and_no_targets(command, table):
    table()
    done = command("discover", "trees.csv", "--kind", "autoencoder", *NAMED, *QUICK)
    assert done.code == 0, done.error
    assert f"BottleneckAutoencoder: {ROWS} rows, 6 inputs" in done.out


def test_discover_reads_arrays_and_says_where_nothing_was_found(tmp_path, command):
    generator = np.random.default_rng(1)
    np.savez(tmp_path / "noise.npz", x=generator.normal(size=(80, 2, 2)), y=generator.normal(size=(80, 3)))
    done = command("discover", "noise.npz", *QUICK, "--symmetries", "--coordinates", "z.csv")
    assert done.code == 0, done.error
    assert "80 rows, 4 inputs, 3 outputs" in done.out
    assert "nothing was found" in done.out
    assert "symmetries: not searched" in done.out
    assert not (tmp_path / "z.csv").exists()


def test_a_column_of_weights(tmp_path, command):
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(ROWS, 3)), rng.integers(0, 4, ROWS) / 2
    y = x @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(ROWS, 2))
    columns = np.column_stack([x, y, weights]).round(5)
    np.savetxt(tmp_path / "t.csv", columns, delimiter=",", header="a,b,c,p,q,w", comments="")
    ask = ("discover", "t.csv", *QUICK)
    done = command(*ask, "--targets", "p,q", "--weights", "w", "--save", "e.safetensors")
    assert done.code == 0, done.error
    assert f"BottleneckRegressor: {(weights > 0).sum()} rows, 3 inputs, 2 outputs" in done.out
    assert f"{(weights == 0).sum()} of {ROWS} rows have weight 0" in done.out
    found = bnrank.load(tmp_path / "e.safetensors")
    x, y, weights = np.split(columns, [3, 5], axis=1)
    score = r2_score(y, found.predict(pd.DataFrame(x, columns=["a", "b", "c"])), sample_weight=weights[:, 0])
    assert found.summary().score == pytest.approx(score)
    refused = command(*ask, "--kind", "autoencoder", "--weights", "w")
    assert "--weights: got a column for an autoencoder, expected none" in flat(refused.error)
    refused = command(*ask, "--targets", "p", "--ignore", "q", "--power-products", "--weights", "w")
    assert "--weights: got a column for power products, expected none" in flat(refused.error)
    columns[3, 5] = -1
    np.savetxt(tmp_path / "t.csv", columns, delimiter=",", header="a,b,c,p,q,w", comments="")
    refused = command(*ask, "--targets", "p,q", "--weights", "w")
    assert f"--weights: got negative weights (1 of {ROWS} rows), expected at least 0" in flat(refused.error)


def test_german_tables_with_texts_and_groups(tmp_path, command):
    rng = np.random.default_rng(0)
    subject = rng.permutation(np.repeat(np.arange(15), 4))
    x, y = (rng.normal(size=(15, d))[subject] + 0.02 * rng.normal(size=(ROWS, d)) for d in (3, 2))  # unrelated
    kinds = rng.choice(["Eiche", "Ulme", "Buche"], ROWS)
    rows = [[f"Tier {s}", *x[i].round(5), kinds[i], *y[i].round(5)] for i, s in enumerate(subject)]
    with (tmp_path / "tiere.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerows(
            [["Tier", "a", "b", "c", "Art", "p", "q"], *([str(v).replace(".", ",") for v in row] for row in rows)]
        )
    ask = ("discover", "tiere.csv", "--decimal", ",", "--targets", "p,q", "--one-hot", *QUICK)
    done = command(*ask, "--groups", "Tier")
    assert done.code == 0, done.error
    assert f"BottleneckRegressor: {ROWS} rows, 6 inputs, 2 outputs" in done.out
    assert "nothing was found" in done.out
    assert "rows of a group were held out together: 15 groups" in done.out
    assert "rows of a group" not in command(*ask, "--sep", ";", "--ignore", "Tier").out
    assert "--groups: got 'Tir', expected columns" in flat(command(*ask, "--groups", "Tir").error)
    assert "DATA tiere.csv: got text in column Art" in flat(
        command(*(word for word in ask if word != "--one-hot"), "--groups", "Tier").error
    )


@pytest.mark.slow
def test_the_examples_of_help_find_the_planted_count(tmp_path, command):
    examples = re.findall(r"Example: bnrank (.*)", command("discover", "--help").out)
    assert len(examples) == 2
    for example in examples:
        done = command(*example.strip(" │").split(), *QUICK, "--steps", 200)
        assert done.code == 0, done.error
        assert f"components: {bnrank.tasks.low_rank_map().truth.rank} (interval 2 to " in done.out
    assert (tmp_path / "z.csv").exists()


def test_an_interrupted_discovery_writes_what_it_knows_and_goes_on(tmp_path, command, monkeypatch):
    x = np.random.default_rng(0).normal(size=(90, 2))
    np.savez(tmp_path / "bent.npz", x=x, y=np.abs(x[:, :1]) * [1.0, -2.0])
    train, calls = keeping.training.train, []

    def interrupted(*arguments, **options):
        calls.append(options["out"])
        run = train(*arguments, **options)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run

    monkeypatch.setattr(keeping.training, "train", interrupted)
    ask = ("discover", "bent.npz", *QUICK, "--steps", 100, "--keep", "kept")
    done = command(*ask)
    assert done.code == 130
    assert "Interrupted; rerun to resume from kept" in done.out
    assert "undetermined: partial result" in flat(done.out)
    assert "partial result" in (tmp_path / "discover.html").read_text()
    done = command(*ask)
    assert (done.code, "partial" in done.out) == (0, False), done.error
    assert calls[4:8] == calls[:4]


def test_columns_that_count_the_rows_are_said(tmp_path, command, table):
    table()
    with (tmp_path / "trees.csv").open() as file:
        header, *body = csv.reader(file)
    counts = {"from 0": range(ROWS), "one": range(1, ROWS + 1), "two": range(2, ROWS + 2), "down": range(ROWS)[::-1]}
    rows = [[*row, *map(str, more)] for row, more in zip(body, zip(*counts.values(), strict=True), strict=True)]
    rows[4][1] = ""
    with (tmp_path / "counted.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*header, *counts], *rows])
    ask = ("discover", "counted.csv", "--targets", "p,q,r", "--drop-missing", *QUICK)
    done = command(*ask, *NAMED)
    assert done.code == 0, done.error
    said = [line for line in done.out.splitlines() if "counts the rows" in line]
    option = "'id,wood,rings,from 0,one'"
    assert said == [f"column '{name}' counts the rows; --ignore {option} leaves it out" for name in ("from 0", "one")]
    assert "counts the rows" not in command(*ask, "--ignore", option.strip("'")).out


def test_arrays_that_count_the_rows_have_no_names_to_ignore(tmp_path, command, table):
    x, y = table()
    np.savez(tmp_path / "counted.npz", x=np.column_stack([x, np.arange(ROWS)]), y=y)
    done = command("discover", "counted.npz", *QUICK)
    assert done.code == 0, done.error
    assert [line for line in done.out.splitlines() if "counts" in line] == ["column 'x3' counts the rows"]


def test_missing_values_are_named_by_column_and_left_out_where_asked(tmp_path, command, table):
    _, y = table("gaps.csv", girth=(3, ""), q=(5, "NA"), p=(7, "inf"))
    ask = ("discover", "gaps.csv", "--targets", "p,q,r", *NAMED, *QUICK)
    done = command(*ask)
    assert done.code == 2
    where = f"girth (1 of {ROWS} rows), p (1 of {ROWS} rows), q (1 of {ROWS} rows)"
    assert f"missing or infinite values in column {where}" in flat(done.error)
    done = command(*ask, "--drop-missing", "--coordinates", "z.csv")
    assert done.code == 0, done.error
    assert f"3 of {ROWS} rows with missing values are dropped" in done.out
    rows = np.loadtxt(tmp_path / "z.csv", delimiter=",", skiprows=1)
    kept = [i for i in range(ROWS) if i not in (3, 5, 7)]
    assert rows[:, 0].tolist() == kept
    assert abs(np.corrcoef(rows[:, 1], y[kept, 2])[0, 1]) == pytest.approx(1)


def test_whole_numbers_stay_classes_where_rows_with_gaps_are_left_out(command, table):
    table("gaps.csv", rings=(3, ""))
    done = command("discover", "gaps.csv", "--targets", "rings", "--ignore", "id,wood,p,q,r", "--drop-missing", *QUICK)
    assert "BottleneckClassifier" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.csv", "--targets", "p"), "nothing.csv', expected an existing file"),
        (("trees.csv",), "targets: got none, expected the columns of trees.csv that make up y, among id, height"),
        (("trees.csv", "--targets", "hight"), "did you mean 'height'"),
        (("trees.csv", "--targets", "p", "--ignore", "idd"), "ignore: got 'idd'"),
        (("trees.csv", "--targets", "p", "--ignore", "p"), "expected each column once"),
        (("trees.csv", "--targets", "p"), "text in column id, wood, expected numbers"),
        (("trees.csv", "--targets", "p", "--kind", "regresor"), "did you mean 'regressor'"),
        (("trees.csv", "--targets", "p", "--kind", ""), "kind: got '' (str), expected one of"),
        (("trees.csv", "--targets", "p,q", *NAMED, "--kind", "classifier"), "got 2 columns, expected one column"),
        (("trees.csv", "--targets", "p", *NAMED, "--components", "two"), "components: got 'two'"),
        (("trees.csv", "--targets", "p", *NAMED, "--ridges", "0.1;1"), "ridges: got '0.1;1'"),
        (("trees.csv", "--targets", "p", "--save", "found.pkl"), "save: got 'found.pkl'"),
        (("trees.csv", "--targets", "p", "--coordinates", "no/z.csv"), "expected a path in a folder that exists"),
        (("one.csv", "--targets", "p", *NAMED), "one.csv: got 1 row(s), expected at least 2"),
        (("long.csv", "--targets", "b"), "long.csv, line 3: got 3 cells, expected 2"),
        (("wide.csv", "--targets", "b"), "wide.csv, line 2: got 3 cells, expected 2"),
        (("twice.csv", "--targets", "b"), "got columns a, b, a, expected different names"),
        (("only_x.npz",), "got arrays x, expected x and y; y is missing"),
        (("only_x.npz", "--targets", "b"), "expected none for only_x.npz"),
        (("broken.npz",), "no .npz archive"),
        (("objects.npz",), "arrays of Python objects are refused"),
    ],
)
def test_errors_of_discover_are_one_message(tmp_path, command, table, arguments, message):
    table()
    table("one.csv", rows=1)
    (tmp_path / "long.csv").write_text("a,b\n1,2\n1,2,3\n")
    (tmp_path / "wide.csv").write_text("a,b\n1,2,3\n1,2,3\n")
    (tmp_path / "twice.csv").write_text("a,b,a\n1,2,3\n1,2,3\n")
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    np.savez(tmp_path / "only_x.npz", x=np.ones((5, 2)))
    np.savez(tmp_path / "objects.npz", x=np.array([{}, 1], dtype=object), y=np.ones(2))
    done = command("discover", *arguments)
    assert done.code == 2
    assert message in flat(done.error)
    assert "Traceback" not in done.error
    assert not (tmp_path / "discover.html").exists()
