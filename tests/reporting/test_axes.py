"""Axes of charts: upright ticks, few enough for a narrow page, at whole numbers."""

import pytest

from bnrank.reporting.charts.parts import count_axis, step_axis

DIGIT, NARROW = 8, 300  # width of a digit at 13 pixels, and of a chart on a page of 400


@pytest.mark.parametrize("count", [1, 2, 13, 14, 15, 40, 99, 100, 152, 999, 1000, 4096])
@pytest.mark.parametrize("first", [0, 1])
def test_ticks_of_counts_are_upright_and_fit_side_by_side(count, first):
    axis = count_axis("layer", count, first)
    ticks = range(axis["tick0"], first + count, axis["dtick"])
    assert axis["tickangle"] == 0
    assert axis["tickformat"] == "d"
    assert axis["range"] == [first - 0.5, first + count - 0.5]
    assert 1 <= len(ticks) <= 14
    assert sum(len(str(tick)) * DIGIT for tick in ticks) <= NARROW


def test_every_tick_is_shown_where_there_is_room():
    assert count_axis("layer", 14)["dtick"] == 1
    assert count_axis("layer", 15)["dtick"] == 2


def test_ticks_of_steps_are_upright_and_few():
    axis = step_axis([0, 10, 5000])
    assert (axis["tickangle"], axis["range"]) == (0, [0, 5000])
    assert axis["nticks"] <= 5
    assert "range" not in step_axis([3])
