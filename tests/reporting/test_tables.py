import io

import numpy as np
import pytest
import rich.console

from bnrank._core import text
from bnrank.reporting import tables

ROWS = [{"layer": 1, "name": "a|b"}, {"layer": 12, "name": "[bold]x[/bold]", "rank": float("nan")}]


def test_the_table_shows_the_cells_as_they_are():
    _, cells = text.grid(ROWS)
    console = rich.console.Console(file=io.StringIO(), width=200)
    console.print(text.table(ROWS, title="[red]t[/red]"))
    shown = console.file.getvalue()
    for line in cells:
        for entry in line:
            assert entry in shown  # square brackets are text, not rich's markup
    assert "[red]t[/red]" in shown


def test_missing_and_nan_cells_are_dashes():
    assert text.grid(ROWS)[1] == [["1", "a|b", "–"], ["12", "[bold]x[/bold]", "–"]]


def test_numbers_are_right_aligned():
    assert [column.justify for column in text.table(ROWS).columns] == ["right", "left", "left"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (np.float64("nan"), "–"),
        (np.bool_(False), "no"),
        (np.int64(3), "3"),
        (1e-9, "1e-09"),
        ([1, 2.5], "1, 2.5"),
    ],
)
def test_cell(value, shown):
    assert text.cell(value) == shown


def test_member_rows_give_the_last_values_before_a_member_stopped(history):
    row = tables.member_rows(history)[2]
    cost = history["cost"].values[2]
    end = np.flatnonzero(np.isfinite(cost))[-1]
    assert end < len(cost) - 1
    assert row["cost"] == cost[end]
    assert row["last step"] == history["step"].values[end]
    assert row["status"] == "diverged"


def test_layer_and_skipped_rows(profile):
    rows = tables.layer_rows(profile)
    assert [row["rank of W"] for row in rows] == profile["weight_rank"].values.tolist()
    assert rows[0]["name"] == "layers.0"
    assert tables.noted_rows(profile, "skipped") == [
        {"name": "norm1", "type": "BatchNorm1d", "reason": "not positively homogeneous"}
    ]


def test_claim_rows(claims):
    assert [row["result"] for row in tables.claim_rows(claims)] == ["pass", "fail", "not decided"]


def test_thousands_are_numbers_and_lists_are_not():
    assert text.numeric_columns(["a", "b", "c"], [["19,920", "1, 2", "–"], ["8", "3", "–"]]) == [True, False, False]
