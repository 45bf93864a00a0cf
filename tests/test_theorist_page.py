"""docs/tutorials/theorist.md is true: its code runs as written, in order, and prints what the text says."""

import pytest

from pages import run_page


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    return run_page("tutorials/theorist.md", tmp_path_factory.mktemp("theorist"))


@pytest.mark.slow
def test_the_rank_of_the_cross_is_bracketed_by_one_and_two(after):
    assert (after["rank"].lower, after["rank"].upper) == (1, 2)
    assert after["rank"].complete


@pytest.mark.slow
def test_the_cost_counts_the_rank(after):
    law = after["law"]
    assert abs(law.R0 - 1) < 0.07
    assert law.R0_interval[0] < 1 < law.R0_interval[1]
    for low, norm, high in zip(after["lower"], after["norms"], after["upper"], strict=True):
        assert low < high <= norm * (1 + 1e-9)


@pytest.mark.slow
def test_statements_hold_on_the_network_of_least_norm(after):
    assert sum(v.status == "holds" for v in after["verdicts"]) > 15
    assert not [v for v in after["verdicts"] if v.status == "violated"]


@pytest.mark.slow
def test_two_neurons_in_the_first_layer_and_one_after_it(after):
    assert after["one"].upper == pytest.approx(2**0.5 - 1, abs=1e-6)
    for depth, way in after["ways"].items():
        assert way.speed == pytest.approx(0.5, abs=1e-6)
        assert len(way.weight_rank_one) == depth
        assert way.weight_rank_one[0] == pytest.approx(0.5, abs=1e-3)
        assert max(way.weight_rank_one[1:]) < 1e-6
