"""Denoising measured on maps for which it is known."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from bnrank.measures.noise import Denoising, denoising, distances_to_samples
from bnrank.measures.spectra import effective_rank
from bnrank.networks.mlp import MLP, from_layers


def linear(matrix):
    return from_layers([torch.as_tensor(matrix, dtype=torch.float64)])


def test_a_projection_takes_away_what_is_off_the_line_and_keeps_what_is_along_it():
    x = torch.zeros(400, 2).double()
    x[:, 0] = torch.linspace(-1, 1, 400)
    found = denoising(linear([[1, 0], [0, 0]]), x, 0.2, distance=lambda points: points[:, 1].abs(), seed=3)
    noise = found.noisy - x
    assert float(noise.std()) == pytest.approx(0.2, rel=0.1)
    assert found.ratio == 0
    torch.testing.assert_close(found.before, noise[:, 1].abs())
    torch.testing.assert_close(found.kept, noise[:, 0].abs() / noise.norm(dim=1))
    torch.testing.assert_close(found.outputs[:, 0], found.noisy[:, 0])


@pytest.mark.parametrize("scale", [0.0, 0.25, 1.0, 3.0])
def test_scaled_identity_about_the_origin(scale):
    """At x = 0 the distance to the sample itself is scaled, and so is the noise."""
    found = denoising(linear(scale * np.eye(3)), torch.zeros(50, 3), 0.5)
    torch.testing.assert_close(found.after, scale * found.before)
    torch.testing.assert_close(found.kept, torch.full((50,), scale).double())
    assert found.ratio == pytest.approx(scale)


def test_ratio_is_of_medians_and_halfway_between_two_of_an_even_number():
    before, after = torch.tensor([1.0, 2.0, 4.0, 100.0]).double(), torch.tensor([50.0, 1.0, 3.0, 1.0]).double()
    points = torch.zeros(4, 1).double()
    assert Denoising(points, points, before, after, before).ratio == pytest.approx(2 / 3)


def test_modules_on_images_are_flattened_and_left_alone():
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 6)).train()
    x, state = torch.randn(5, 1, 2, 3), torch.get_rng_state()
    found = denoising(net, x, 0.1, seed=2)
    assert found.noisy.shape == found.outputs.shape == (5, 6)
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)
    expected = found.noisy @ net[2].weight.double().T + net[2].bias.double()
    torch.testing.assert_close(found.outputs, expected)
    torch.testing.assert_close(found.after, (expected - x.flatten(1)).norm(dim=1))
    plain = x.flatten(1).double() @ net[2].weight.double().T + net[2].bias.double()
    noise = (found.noisy - x.flatten(1)).norm(dim=1)
    torch.testing.assert_close(found.kept, (expected - plain).norm(dim=1) / noise)
    assert torch.equal(denoising(net, x, 0.1, seed=2).noisy, found.noisy)
    assert not torch.equal(denoising(net, x, 0.1, seed=3).noisy, found.noisy)


def test_the_noise_is_not_what_a_network_of_the_same_seed_was_drawn_from():
    """Noise along the rows of the weights would come out larger than noise of any other seed."""
    net = MLP([40, 60, 40], seed=5)
    noise = denoising(net, torch.zeros(60, 40), 1.0, seed=5).noisy
    rows = net.weights[0].detach().double()
    cosines = (noise * rows).sum(1) / (noise.norm(dim=1) * rows.norm(dim=1))
    assert abs(float(cosines.mean())) < 0.1


def test_nearest_sample_against_a_loop():
    points, x = torch.randn(20, 4).double(), torch.randn(30, 4).double()
    expected = torch.stack([min((p - q).norm() for q in x) for p in points])
    torch.testing.assert_close(distances_to_samples(points, x), expected)


def test_nearest_sample_far_from_the_origin():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-8, 9, (60, 4), generator=generator).double()
    points = x + torch.tensor([2.0**-20, 0, 0, 0])
    torch.testing.assert_close(
        distances_to_samples(points + 2.0**20, x + 2.0**20), torch.full((60,), 2.0**-20).double()
    )


def test_effective_rank():
    assert effective_rank(torch.ones(7)).item() == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 1.0])).item() == pytest.approx(16 / 10)
    assert effective_rank(np.zeros((2, 3))).tolist() == [0, 0]
    for scale in (1e-320, 1e-200, 1e200):
        assert effective_rank(scale * np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])).tolist() == [2, 0]
    assert effective_rank(np.array([[3.0, 1.0], [3e200, 1e200], [3e-200, 1e-200]])).tolist() == pytest.approx([1.6] * 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: denoising(linear(np.eye(2)), torch.ones(3, 2), 0), ValueError, "std: got 0"),
        (lambda: denoising(linear(np.eye(2)), torch.ones(3, 3), 1.0), ValueError, "x: got shape (3, 3)"),
        (lambda: denoising(linear(np.ones((3, 2))), torch.ones(3, 2), 1.0), ValueError, "net: got 3 outputs"),
        (lambda: denoising(linear(np.eye(2)), torch.ones(3, 2), 1.0, seed=-1), ValueError, "seed: got -1"),
        (
            lambda: denoising(linear(np.eye(2)), torch.ones(3, 2), 1.0, distance=lambda points: points),
            ValueError,
            "distance: got Tensor of shape (3, 2)",
        ),
        (lambda: distances_to_samples(torch.ones(2, 3), torch.ones(2, 2)), ValueError, "points: got shape (2, 3)"),
        (lambda: effective_rank(torch.tensor([1.0, -1.0])), ValueError, "values: got"),
        (lambda: effective_rank(torch.tensor([1.0, torch.nan])), ValueError, "values: got"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
