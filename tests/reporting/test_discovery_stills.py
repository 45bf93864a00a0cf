"""The still pictures of what discovery found."""

import matplotlib.colors
import numpy as np
import pytest

from bnrank.discovery import BottleneckRegressor
from bnrank.reporting import plots

from .conftest import make_summary


def test_the_still_picture_shows_the_summary():
    summary = make_summary(3, d_in=4, d_out=6)
    loss, dots, heat = plots.discovered(summary, output=2, coordinates=(3, 1))
    np.testing.assert_array_equal(loss.lines[0].get_ydata(), summary.held_out)
    np.testing.assert_array_equal(dots.collections[0].get_offsets().data, summary.coordinates[:, [2, 0]])
    np.testing.assert_array_equal(dots.collections[0].get_array(), summary.observed[:, 2])
    np.testing.assert_array_equal(heat.images[0].get_array(), summary.sensitivity.T)
    assert (dots.get_xlabel(), dots.get_ylabel()) == ("z3", "z1")
    assert [label.get_text() for label in heat.get_yticklabels()] == list(summary.inputs)


def test_the_still_picture_of_one_coordinate_of_classes_and_of_nothing():
    one = make_summary(1, d_out=2)
    dots = plots.discovered(one, output=1)[1]
    np.testing.assert_array_equal(dots.collections[0].get_offsets().data, np.c_[one.coordinates, one.observed[:, 1]])
    labeled = make_summary(2, classes=("a", "b", "c"))
    groups = plots.discovered(labeled)[1].collections
    assert [len(group.get_offsets()) for group in groups] == [(labeled.observed == c).sum() for c in "abc"]
    colors = [matplotlib.colors.to_hex(group.get_facecolor()[0]) for group in groups]
    assert colors == [color.lower() for color in plots.OKABE_ITO[:3]]
    line = plots.discovered(make_summary(1, classes=("a", "b")))[1]
    assert [label.get_text() for label in line.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in plots.discovered(make_summary(0))[1].texts] == ["nothing was found"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"found": 3}, TypeError, "found: got"),
        ({"found": BottleneckRegressor()}, ValueError, "not fitted"),
        ({"output": 3}, ValueError, "output: got 3"),
        ({"coordinates": (1, 4)}, ValueError, "coordinates: got"),
    ],
)
def test_bad_arguments_of_the_still_picture(arguments, error, words):
    with pytest.raises(error, match=words):
        plots.discovered(**{"found": make_summary()} | arguments)


# ---- in a browser ---------------------------------------------------------------------------------------------------
