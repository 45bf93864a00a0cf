"""What `python -m benchmarks.outliers` plants is what its text says, and the report counts what differs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.outliers import __main__ as program
from benchmarks.outliers import judging, tables


@pytest.mark.parametrize("kind", tables.KINDS)
def test_outliers_are_as_many_and_as_far_as_said(kind):
    x, y, far_x, far_y, k = tables.planted(kind, 8, 0)
    again = tables.planted(kind, 8, 0)
    assert np.array_equal(far_x, again[2])
    assert np.array_equal(far_y, again[3])
    assert k == 3
    plain, other = (x, far_x) if "of x" in kind or "in x" in kind else (y, far_y)
    assert np.array_equal(x, far_x) or np.array_equal(y, far_y)
    changed = plain != other
    if "values" in kind:
        assert changed.mean() == pytest.approx(0.05, abs=0.01)
    else:
        assert changed.any(axis=1).sum() == 15
    away = (other - plain.mean(axis=0)) / plain.std(axis=0)
    if "typos" in kind:
        assert changed.sum() == 15
        assert all(value == -999 or value in 1000 * plain for value in other[changed])
    else:
        assert np.abs(away[changed]).min() > 9.9
        assert np.abs(away[changed]).max() < 101
    assert ((away[changed] > 0).all() if "above" in kind else (away[changed] < 0).any()) or "typos" in kind


@pytest.mark.parametrize("kind", tables.CLEAN)
def test_tables_without_outliers_are_drawn_anew(kind):
    x, y = tables.clean(kind, 0, 0)
    assert len(x) == len(y)
    assert np.isfinite(x).all()
    assert not np.array_equal(x, tables.clean(kind, 1, 0)[0])
    assert np.array_equal(x, tables.clean(kind, 0, 0)[0])


def test_a_fit_is_judged_and_a_rerun_resumes(tmp_path, capsys, monkeypatch):
    small = {"family": "linear", "k": 2, "d": 4, "noise": 0.1, "n": 25}
    monkeypatch.setattr(tables, "PLANTED", [small])
    words = ["--tables", "1", "--clean", "0", "--kinds", "rows of y", "--both", "--out", str(tmp_path / "found.jsonl")]
    program.main(words)
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [(line["cell"]["kind"], line["cell"]["robust"]) for line in lines] == [
        ("none", True),
        ("rows of y", True),
        ("rows of y", False),
    ]
    assert lines[1]["result"]["planted"]
    assert lines[2]["result"]["rows"] == []
    assert "| rows of y | False | 1 |" in capsys.readouterr().out
    monkeypatch.setattr(judging, "measure", None)
    program.main(words)


def test_changed_counts_and_missed_rows_are_counted():
    cell = {"number": 0, "seed": 1, "truth": 2, "undetermined": False, "score": 0.9}
    results = [
        cell | {"kind": "none", "robust": True, "count": 2, "rows": []},
        cell | {"kind": "rows of y", "robust": True, "count": 1, "rows": [3, 4], "planted": [4, 5, 6]},
    ]
    text = judging.report(results)
    assert "| rows of y | True | 1 | 1 | 0 | 0 | 2 | 1 | 0.90 |" in text
    assert "1 of 1 counts changed" in text


def test_unknown_kinds_are_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["--kinds", "rows of z"])
    assert "unknown kind 'rows of z', expected some of rows of y" in capsys.readouterr().err
