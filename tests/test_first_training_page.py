"""docs/tutorials/first_training.md is true: its code runs as written, in order, and gives what the text says."""

import pytest

from pages import run_page


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    return run_page("tutorials/first_training.md", tmp_path_factory.mktemp("first_training"))


@pytest.mark.slow
def test_two_numbers_pass_through_the_middle(after):
    assert (after["rank"].lower, after["rank"].upper) == (2, 2)
    assert after["z"].shape == (300, 2)
    assert (after["profile"].weight_rank.values == 2).sum() >= 3
    assert after["profile"].weight_rank.values[0] > 15


@pytest.mark.slow
def test_no_statement_is_violated(after):
    assert after["verdicts"].counts["violated"] == 0
    assert after["verdicts"].counts["holds"] > 20


@pytest.mark.slow
def test_the_reports_are_written(after):
    assert after["files"] == {"report.html", "verdicts.html", "best.safetensors"}
    assert not (after["again"](after["task"].x) - after["best"](after["task"].x)).any()
