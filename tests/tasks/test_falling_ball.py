"""The falling ball: its images against plain sums, its motion, translations, seeds, bad input."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

from bnrank.tasks import ball_images, falling_ball


def plain_image(position, size, width):
    """The periodic bump, pixel by pixel and lattice point by lattice point."""
    d = len(position)
    image = np.zeros((size,) * d)
    reach = math.ceil((12 * width + max(map(abs, position))) / size) + 1
    for pixel in np.ndindex(*image.shape):
        for m in itertools.product(range(-reach, reach + 1), repeat=d):
            apart = sum((pixel[k] - position[k] - m[k] * size) ** 2 for k in range(d))
            image[pixel] += math.exp(-apart / (2 * width**2))
    return image


@pytest.mark.parametrize(
    ("position", "size", "width"),
    [((2.3,), 7, 1.1), ((-9.75,), 6, 0.4), ((100.5,), 5, 3.0), ((1.25, 4.5), 6, 0.9), ((-0.1, 17.0), 4, 2.0)],
)
def test_images_against_a_plain_sum(position, size, width):
    image = ball_images(torch.tensor(position, dtype=torch.float64), size, width)
    np.testing.assert_allclose(image.numpy(), plain_image(position, size, width), atol=1e-12)


def test_rows_come_first_and_any_shape_of_positions_goes():
    positions = torch.tensor([[[1.0, 3.0], [0.0, 0.0]]])
    images = ball_images(positions, 5, 0.5)
    assert images.shape == (1, 2, 5, 5)
    assert images.dtype == torch.float32
    assert np.unravel_index(int(images[0, 0].argmax()), (5, 5)) == (1, 3)
    assert ball_images(positions[..., :1].double(), 5).dtype == torch.float64


def test_position_is_phase():
    """At every frequency the Fourier coefficient turns by the angle that the ball has moved."""
    at = torch.tensor([[0.0], [0.7], [3.9]], dtype=torch.float64)
    coefficients = torch.fft.fft(ball_images(at, 16, 1.5))[:, :5]
    turned = coefficients / coefficients[:1]
    expected = torch.exp(-2j * math.pi * at * torch.arange(5) / 16)
    torch.testing.assert_close(turned[:, :4], expected[:, :4], atol=1e-4, rtol=0)  # aliases are below that here


@pytest.mark.parametrize("dimensions", [1, 2])
def test_frames_follow_the_law_of_motion(dimensions):
    """Every frame is the ball at 2 q_t - q_{t-1} + g, from the two positions of the input."""
    task = falling_ball(6, 7, dimensions, 3, 0.8, 3, width=1.0, n_test=2)
    z = task.truth.latents
    cosine, sine, velocity = z[:, :dimensions], z[:, dimensions : 2 * dimensions], z[:, 2 * dimensions :]
    torch.testing.assert_close(cosine**2 + sine**2, torch.ones_like(cosine))
    now = torch.atan2(sine, cosine) * 7 / (2 * math.pi)
    before = now - velocity
    fall = torch.tensor([0.8, 0.0][:dimensions], dtype=torch.float64)
    following = task.y.reshape(6, 3, *[7] * dimensions)
    for i in range(6):
        frames = [before[i], now[i]]
        for _ in range(3):
            frames.append(2 * frames[-1] - frames[-2] + fall)
        shown = [plain_image(frame.tolist(), 7, 1.0) for frame in frames]
        np.testing.assert_allclose(task.x[i].numpy(), shown[:2], atol=1e-6)
        np.testing.assert_allclose(following[i].numpy(), shown[2:], atol=1e-6)


def test_translations_of_the_torus_are_exact():
    """Moving the ball by whole pixels moves all frames by them; the latents say where it is."""
    task = falling_ball(5, 8, 2, seed=1, within="pixel")
    z = task.truth.latents.clone()
    for axis, pixels in ((0, 3), (1, 6)):
        angle = torch.atan2(z[:, 2 + axis], z[:, axis]) + 2 * math.pi * pixels / 8
        z[:, axis], z[:, 2 + axis] = angle.cos(), angle.sin()
    torch.testing.assert_close(task.truth.x_of_latents(z), task.x.roll((3, 6), (2, 3)), atol=1e-6, rtol=0)
    moved = task.y.reshape(5, 2, 8, 8).roll((3, 6), (2, 3)).flatten(1)
    torch.testing.assert_close(task.truth.y_of_latents(z), moved, atol=1e-6, rtol=0)
    assert torch.equal(task.truth.x_of_latents(task.truth.latents_test), task.x_test)
    assert torch.equal(task.truth.y_of_latents(task.truth.latents_test), task.y_test)


def test_ranges_and_shapes():
    task = falling_ball(2000, 10, 1, speed=1.5, within="pixel", n_test=500)
    assert task.truth.rank == 2
    assert task.x.shape == (2000, 2, 10)
    assert task.y.shape == (2000, 20)
    assert task.x.dtype == task.y.dtype == torch.float32
    assert task.truth.latents.shape == (2000, 3)

    def positions(z):
        return torch.remainder(torch.atan2(z[:, 1], z[:, 0]) * 10 / (2 * math.pi), 10)

    inside, everywhere = positions(task.truth.latents), positions(task.truth.latents_test)
    assert 0.99 < float(inside.max()) < 1
    assert float(everywhere.max()) > 9.9
    assert 1.49 < float(task.truth.latents[:, 2].abs().max()) < 1.5
    plane = falling_ball(1000, 6, n_test=0)
    assert plane.truth.rank == 4
    assert plane.x_test is None
    assert plane.x.shape == (1000, 2, 6, 6)
    assert 2.9 < float(plane.truth.latents[:, 4:].abs().max()) < 3  # half the torus
    assert float(positions(task.truth.latents).std()) == pytest.approx(1 / math.sqrt(12), rel=0.05)


def test_seed():
    state = torch.get_rng_state()
    a, b, c = falling_ball(4, seed=1), falling_ball(4, seed=1), falling_ball(4, seed=2)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y_test, b.y_test)
    assert not torch.equal(a.x, c.x)
    assert torch.equal(falling_ball(4, seed=1, n_test=7).x, a.x)
    assert torch.equal(torch.get_rng_state(), state)
    assert a.settings["size"] == 16


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"n": 0}, ValueError, "n: got 0"),
        ({"size": 1}, ValueError, "size: got 1"),
        ({"dimensions": 3}, ValueError, "dimensions: got 3, expected 1 or 2"),
        ({"dimensions": 1.0}, TypeError, "dimensions: got 1.0"),
        ({"frames": 0}, ValueError, "frames: got 0"),
        ({"gravity": math.nan}, ValueError, "gravity: got nan"),
        ({"speed": -1.0}, ValueError, "speed: got -1.0"),
        ({"width": 0.0}, ValueError, "width: got 0.0"),
        ({"within": "pixels"}, ValueError, "within: got 'pixels' (str), expected one of 'image', 'pixel'"),
        ({"n_test": -1}, ValueError, "n_test: got -1"),
        ({"seed": -1}, ValueError, "seed: got -1"),
    ],
)
def test_bad_arguments(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        falling_ball(**arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([1.0], 5), TypeError, "positions: got [1.0]"),
        ((torch.tensor([1]), 5), TypeError, "positions: got Tensor of shape (1,)"),
        ((torch.ones(4, 3), 5), ValueError, "positions: got shape (4, 3), expected (..., 1) or (..., 2)"),
        ((torch.tensor(1.0), 5), ValueError, "positions: got shape ()"),
        ((torch.ones(4, 1), 1), ValueError, "size: got 1"),
        ((torch.ones(4, 1), 5, -1.0), ValueError, "width: got -1.0"),
    ],
)
def test_bad_positions(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        ball_images(*arguments)
