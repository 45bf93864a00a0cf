"""docs/tutorials/scientist.md is true: its code runs as written, in order, and finds what the text says."""

import pytest
import torch

from pages import run_page


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    return run_page("tutorials/scientist.md", tmp_path_factory.mktemp("scientist"))


@pytest.mark.slow
def test_two_numbers_are_found_and_are_the_temperature_and_the_concentration(after):
    found = after["found"]
    assert found.n_components_ == 2
    assert tuple(found.n_components_interval_) == (2, 2)
    assert not found.undetermined_
    assert after["fit"].score(after["z"][400:], after["concentration"][400:]) > 0.95
    temperature = after["KNeighborsRegressor"](8, weights="distance").fit(after["z"][:400], after["temperature"][:400])
    assert temperature.score(after["z"][400:], after["temperature"][400:]) > 0.95


@pytest.mark.slow
def test_heater_and_coolant_move_the_first_and_feed_and_solvent_the_second(after):
    first, second = after["summary"].sensitivity
    knobs = after["knobs"]
    assert {knobs[i] for i in first.argsort()[-2:]} == {"heater", "coolant"}
    assert {knobs[i] for i in second.argsort()[-2:]} == {"feed", "solvent"}


@pytest.mark.slow
def test_five_directions_of_the_settings_do_nothing(after):
    assert after["alone"].dimension == 5
    assert after["alone"].status == "undetermined"
    assert after["alone"].interval[0] == 5
    assert after["alone"].interval[1] > 5  # how many more, processors that round differently see differently


@pytest.mark.slow
def test_rotations_are_found_and_leave_costs_alone(after):
    symmetric, costs, starts, moved = after["symmetric"], after["Costs"](), after["starts"], after["moved"]
    assert symmetric.dimension == 10
    assert symmetric.quotient_dimension == 2
    assert (moved - starts).norm() > 1
    torch.testing.assert_close(costs(moved.double()), costs(starts.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_saved_fit_predicts_the_same(after):
    found, x = after["found"], after["x"][400:]
    assert after["predicted"] == pytest.approx(found.predict(x))
    inputs = torch.tensor(x.to_numpy())
    with torch.no_grad():
        net = after["net"](inputs.to(next(after["net"].parameters()).dtype))
    assert net.numpy() == pytest.approx(found.predict(x), abs=1e-5)
    assert {"found.html", "found.safetensors"} <= after["files"]
