"""docs/tutorials/practitioner.md is true: its code runs as written, in order, and gives what the text says."""

import pytest
import torch

from pages import run_page


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    return run_page("tutorials/practitioner.md", tmp_path_factory.mktemp("practitioner"))


@pytest.mark.slow
def test_four_singular_values_stand_apart_in_the_middle_layers(after):
    middle = after["spectra"].sel(layer=[2, 3, 4, 5]).values
    assert (middle[:, 3] > 2.5 * middle[:, 4]).all()


@pytest.mark.slow
def test_the_network_is_cut_to_a_sixteenth_with_its_accuracy_kept(after):
    certificate = after["small"].certificate
    assert certificate.met
    assert 12 < certificate.parameters_before / certificate.parameters < 21
    accuracy = certificate.held_out_accuracy
    assert abs(accuracy.after - accuracy.before) < 0.021  # four images of 197
    assert accuracy.before > 0.95
    assert certificate.held_out.samples == 197
    correct = (after["model"](after["x_test"]).argmax(1) == after["y_test"]).double().mean()
    assert accuracy.before == pytest.approx(float(correct))


@pytest.mark.slow
def test_more_tolerance_leaves_fewer_parameters_and_keeps_the_accuracy(after):
    counts, accuracies = zip(*after["exchange"].values(), strict=True)
    assert list(counts) == sorted(counts, reverse=True)
    assert 6.5 < 47910 / counts[0] < 10.5
    assert 22 < 47910 / counts[-1] < 37
    for accuracy in accuracies:
        assert accuracy.before > 0.96
        assert accuracy.after > accuracy.before - 0.026  # five images of 200: training rounds otherwise elsewhere


@pytest.mark.slow
def test_the_saved_network_is_the_compressed_one(after):
    with torch.no_grad():
        difference = after["fresh"](after["x_test"]) - after["small"].network(after["x_test"])
    assert not difference.any()
    assert {"small.safetensors", "small.html", "profile.html"} <= after["files"]
