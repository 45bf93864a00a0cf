"""docs/functions.md is true: its code runs as written, in order, and prints what the text says."""

import math

import pytest

from pages import run_page


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    return run_page("functions.md", tmp_path_factory.mktemp("functions"))


@pytest.mark.slow
def test_the_page(after):
    assert [v.status for v in after["linear"]] == ["holds"] * 5
    assert after["linear"][2].slack == pytest.approx(0, abs=0.01)
    assert after["corner"].interpolates
    assert after["corner"].norm > 6 + math.log(2)
    assert after["verdicts"].ok
    assert [after["tradeoff"].rank(depth) for depth in (4, 40, 400)] == [2, 1, 0]
