"""docs/films.md is true: its code runs as written, in order, and finds what the text says."""

import pytest

from pages import run_page


@pytest.mark.slow
def test_the_pendulum_has_two_state_variables_and_the_camera_four(tmp_path):
    after = run_page("films.md", tmp_path)
    found = after["found"]
    assert found.state_dimension_ == 2
    assert found.state_dimension_interval_ == (2, 2)
    assert not found.undetermined_
    assert after["fit"].score(after["z"][2100:], after["known"][2100:]) > 0.95
    assert found.predict(after["films"][:1]).shape == (7, 2, 32, 32)
    assert "films.html" in after["files"]
    assert after["panned"].state_dimension_ == 4
    assert after["panned"].state_dimension_interval_ == (3, 4)
