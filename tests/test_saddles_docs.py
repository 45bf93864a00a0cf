"""docs/saddles.md is true: its code runs as written, in order, and prints what the text says."""

import re
import warnings
from pathlib import Path

import pytest

from bnrank import figures

TEXT = (Path(__file__).parents[1] / "docs" / "saddles.md").read_text()


@pytest.fixture(scope="module")
def after():
    """Names that the blocks leave behind, run one after the other in one namespace."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(block, "docs/saddles.md", "exec"), names)
    return names


def test_find_gives_a_speed_that_the_front_door_agrees_on(after):
    bnrank, way = after["bnrank"], after["way"]
    assert way.speed == pytest.approx(bnrank.escape.speed(way.network, after["x"], after["g"]), rel=1e-9)
    assert after["first"].speed <= way.speed * (1 + 1e-6)


def test_the_circle_has_the_speeds_named(after):
    assert after["one"].exact
    assert after["one"].lower == pytest.approx(2**0.5 - 1, abs=1e-9)
    assert after["best"].speed == pytest.approx(0.5, abs=5e-4)
    assert after["deep"].depth == 8


def test_the_escape_time_is_predicted_to_a_percent(after):
    flow = after["flow"]
    assert flow.handover is not None
    assert after["first"].observed == pytest.approx(after["first"].predicted, rel=0.01)
    assert len(flow.plateaus) >= 2


def test_the_verdicts_are_not_violated(after):
    assert after["verdicts"].ok
    assert "holds (vacuous)" in {v.label for v in after["verdicts"]}


def test_new_neurons_join_in_the_first_layer(after):
    assert after["joins"].kappa > 0
    assert after["joins"].layer == 1


def test_the_figures_named_exist():
    named = re.findall(r"`bnrank reproduce (\w+)`", TEXT)
    assert named
    for name in named:
        figures.find(name)
