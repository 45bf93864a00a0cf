"""One output: the number of linear combinations of the inputs, its interval, and the combinations themselves."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.linalg import subspace_angles

from bnrank.discovery import BottleneckClassifier, BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators import directions
from bnrank.discovery.estimators.bottleneck import InputDirections
from bnrank.discovery.estimators.counts import sample_losses
from bnrank.reporting.findings import found_blocks

QUICK = {"ridges": [0.01, 0.003], "n_networks": 1}


@pytest.fixture(scope="module")
def table():
    """y of two oblique directions in six columns of different units, 10 percent noise."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(300, 6)) * [1, 10, 0.1, 1, 1, 5] + 7
    u = (x - 7) / [1, 10, 0.1, 1, 1, 5] @ np.linalg.qr(generator.normal(size=(6, 2)))[0]
    y = np.abs(u[:, 0]) + 0.7 * np.abs(u[:, 1])
    return pd.DataFrame(x, columns=list("abcdef")), y + 0.1 * y.std() * generator.normal(size=300), u


@pytest.fixture(scope="module")
def fitted(table):
    return BottleneckRegressor(**QUICK).fit(table[0], table[1])


def test_the_number_of_combinations_is_the_headline(fitted):
    assert fitted.n_input_directions_ == 2
    low, high = fitted.n_input_directions_interval_
    assert low == 2 <= high <= 3
    assert not fitted.input_directions_undetermined_
    lines = str(fitted.summary()).splitlines()
    assert lines[0] == "BottleneckRegressor: 300 rows, 6 inputs, 1 output"
    assert lines[1] == f"y depends on 2 linear combinations of the inputs (interval 2 to {high}), model: network"
    assert lines[2].strip() == fitted.input_directions_reason_
    assert "components" not in str(fitted.summary()).split("\nterms\n")[0]
    frame = fitted.summary().to_frame()
    assert frame[["n_input_directions", "directions_low", "directions_high"]].values.tolist() == [[2, 2, high]]


def test_combinations_are_in_units_of_the_inputs_uncorrelated_and_of_variance_one(fitted, table):
    x, _, u = table
    found = x.to_numpy() @ fitted.input_directions_.T
    assert np.allclose(np.cov(found.T, bias=True), np.eye(2), atol=1e-6)
    assert np.rad2deg(subspace_angles(found - found.mean(0), u - u.mean(0))).max() < 6
    weights = fitted.summary().input_weights
    assert np.allclose(weights, fitted.input_directions_ * x.to_numpy().std(0))
    assert (weights[[0, 1], np.abs(weights).argmax(axis=1)] > 0).all()
    first = "abcdef"[np.abs(weights[0]).argmax()]
    assert f"{first} (+" in str(fitted.summary())


def test_held_out_losses_are_those_of_networks_that_see_only_their_first_directions(fitted, table, monkeypatch):
    """The slow version projects row by row; it is compared inside of a fit, where the networks of the folds are."""
    seen = []
    fast = directions.held_out_by_number

    def both(path, ridge):
        seen.append((fast(path, ridge), slow(path, ridge)))
        return seen[-1][0]

    def slow(path, ridge):
        data, losses = path.data, np.zeros((7, len(path.data.x)))
        for fit in (fit for fit in path.fits if fit.fold is not None and fit.ridge == ridge):
            known, out = path.splits.known[fit.fold], path.splits.out[fit.fold]
            x = torch.from_numpy(data.x[known])
            found, center, mean = InputDirections(fit.network, x), data.x[known].mean(0), data.y[known].mean(0)
            for row in np.flatnonzero(out):
                u = (data.x[row] - center) @ found.down.numpy()
                for j in range(7):
                    seen_x = center + u[:j] @ found.up.numpy()[:j]
                    made = fit.network.double()(torch.from_numpy(seen_x)[None]).detach().numpy()
                    losses[j, row] = sample_losses(made, data.y[row : row + 1] - mean, 0)[0]
        return losses

    monkeypatch.setattr(directions, "held_out_by_number", both)
    again = BottleneckRegressor(**QUICK).fit(table[0], table[1])
    ((made, expected),) = seen
    np.testing.assert_allclose(made, expected, atol=1e-8)
    np.testing.assert_allclose(again.input_held_out_, expected.mean(axis=1), atol=1e-8)
    assert [t.directions for t in again.stability_ if t.considered] == [2] * sum(t.considered for t in again.stability_)


def test_a_linear_table_has_one_and_noise_has_none():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5))
    linear = BottleneckRegressor(**QUICK).fit(x, x[:, 0] - x[:, 1] + 0.5 * generator.normal(size=200))
    assert (linear.model_, linear.n_input_directions_, linear.n_input_directions_interval_) == ("linear", 1, (1, 1))
    assert np.argsort(-np.abs(linear.input_directions_[0]))[:2].tolist() in ([0, 1], [1, 0])
    with pytest.warns(NothingFoundWarning):
        noise = BottleneckRegressor().fit(x, generator.normal(size=200))
    assert noise.n_input_directions_ == 0
    assert noise.input_directions_.shape == (0, 5)
    assert "no linear combination of the inputs was found that y depends on (interval 0" in str(noise.summary())


def test_two_classes_by_the_sign_of_a_product():
    x = np.random.default_rng(1).normal(size=(250, 4))
    found = BottleneckClassifier(**QUICK).fit(x, np.where(x[:, 0] * x[:, 1] > 0, "same", "other"))
    assert found.n_input_directions_ == 2
    assert np.abs(found.summary().input_weights[:, 2:]).max() < 0.2
    assert str(found.summary()).splitlines()[1].startswith("y depends on 2 linear combinations of the inputs")


def test_a_count_that_is_undetermined_leaves_the_directions_undetermined():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 2))
    found = BottleneckRegressor().fit(x, x[:, 0])
    assert found.undetermined_
    assert found.input_directions_undetermined_
    assert "(undetermined, interval 0 to 1)" in str(found.summary())
    assert "undetermined: so is the number of components (only 8 rows differ" in str(found.summary())


@pytest.mark.parametrize("kind", [BottleneckRegressor, BottleneckClassifier])
def test_a_component_that_was_requested_makes_no_relation_of_noise(kind, tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(120, 4)), generator.normal(size=120)
    with pytest.warns(NothingFoundWarning, match="nothing was found"):
        found = kind(1).fit(x, y if kind is BottleneckRegressor else y > 0)
    assert (found.n_components_, found.n_components_interval_, found.undetermined_) == (1, (0, 1), True)
    low, high = found.n_input_directions_interval_
    assert low == 0 < found.n_input_directions_ <= high
    assert found.input_directions_undetermined_
    lines = str(found.summary()).splitlines()
    assert lines[1].startswith("no linear combination of the inputs was found that y depends on (undetermined, ")
    assert f"(undetermined, interval 0 to {high})" in lines[1]
    assert lines[2].endswith(
        "nothing was found: on held-out rows the component(s) requested (1) predict no better than the mean"
    )
    (headline, how, *_) = found_blocks(found.summary(), "found")
    assert headline.text.startswith(
        "It is undetermined on how many linear combinations of the 4 inputs y depends: 0 to"
    )
    assert how.mark == "warn"


def test_components_requested_of_several_outputs_of_noise_are_undetermined():
    generator = np.random.default_rng(1)
    with pytest.warns(NothingFoundWarning):
        found = BottleneckRegressor(2).fit(generator.normal(size=(120, 4)), generator.normal(size=(120, 3)))
    assert (found.n_components_, found.n_components_interval_, found.undetermined_) == (2, (0, 2), True)
    assert found.state_undetermined_
    headline, how, *_ = found_blocks(found.summary(), "found")
    assert (headline.text.split(" variables")[0], how.mark) == ("It is undetermined how many", "warn")


def test_saved_directions_return(fitted, tmp_path):
    again = BottleneckRegressor.load(fitted.save(tmp_path / "found.safetensors"))
    assert np.array_equal(again.input_directions_, fitted.input_directions_)
    assert again.n_input_directions_interval_ == fitted.n_input_directions_interval_
    assert str(again.summary()) == str(fitted.summary())
