"""Images of a ball that falls on a torus."""

import math

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, Truth, streams, uniform

FRAMES_IN = 2  # determine position and velocity
WITHIN = ("image", "pixel")


def ball_images(positions: Tensor, size: int, width: float = 1.5) -> Tensor:
    """Return images of a ball at given positions on a torus, (..., size) or (..., size, size).

    The image is the periodic Gaussian bump sum_m exp(-||u - q - m size||^2 / (2 width^2)) at pixel u, m over the whole
    lattice Z^d, for the ball's position q: smooth, of height 1 if it is narrow against the torus, and moved by whole
    pixels as q is. Its Fourier coefficient at w is proportional to exp(-2 pi i <w, q> / size), up to aliases: position
    is phase.

    Parameters
    ----------
    positions : Tensor
        q in pixels, (..., 1) for images in one dimension or (..., 2), row first; taken modulo ``size``.
    size : int
        Pixels in each dimension, at least 2.
    width : float
        Standard deviation of the bump in pixels.

    Returns
    -------
    Tensor
        In the precision of ``positions``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> ball_images(torch.tensor([[0.0], [1.5]]), 4, 0.5).round(decimals=2)
    tensor([[1.0000, 0.1400, 0.0000, 0.1400],
            [0.0100, 0.6100, 0.6100, 0.0100]])
    """
    size, width = validation.integer(size, "size", 2), validation.number(width, "width", 0.0, strict=True)
    floating = isinstance(positions, Tensor) and positions.is_floating_point()
    validation.expect(floating, "positions", positions, "a floating-point torch.Tensor", TypeError)
    shape = tuple(positions.shape)
    validation.expect(shape[-1:] in ((1,), (2,)), "positions", f"shape {shape}", "(..., 1) or (..., 2)")
    pixels = torch.arange(size, dtype=positions.dtype, device=positions.device)
    apart = torch.remainder(pixels - positions.unsqueeze(-1), size)  # (..., d, size)
    reach = math.ceil(10 * width / size)
    bumps = torch.zeros_like(apart)
    for m in range(-reach - 1, reach + 1):
        bumps = bumps + torch.exp(-((apart + m * size) ** 2) / (2 * width**2))
    if positions.shape[-1] == 1:
        return bumps[..., 0, :]
    return bumps[..., 0, :, None] * bumps[..., 1, None, :]


def falling_ball(
    n: int = 300,
    size: int = 16,
    dimensions: int = 2,
    frames: int = 2,
    gravity: float = 1.0,
    seed: int = 0,
    *,
    speed: float | None = None,
    width: float = 1.5,
    within: str = "image",
    n_test: int = 300,
) -> Task:
    """Return images of a ball that falls under gravity on a torus: two frames in, the next ones out (F6; Jacot2023c).

    The ball's position q_t (pixels, modulo ``size``, not rounded to pixels) at the times t = -1, 0, 1, ... follows

        q_{t+1} = 2 q_t - q_{t-1} + g,    that is    q_t = q_0 + t v + g t (t + 1) / 2,    v = q_0 - q_{-1},

    where g is ``gravity`` along the first axis (the rows of an image, downwards) and 0 along the other. The input is
    the images (:func:`ball_images`) at t = -1 and 0, the output those at t = 1, ..., ``frames``. One following frame
    depends on q_1 alone, two or more on the whole state (q_0, v).

    A translation of the torus translates all images alike, and by whole pixels exactly: for networks that commute with
    translations, samples whose balls start within one pixel (``within``) carry as much information as samples
    everywhere in the image.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    size : int
        Pixels in each dimension.
    dimensions : 1 or 2
        d: a ring of pixels or a square torus of them.
    frames : int
        Following frames to predict.
    gravity : float
        g, in pixels per frame^2.
    seed : int
        Training and test samples come from separate streams of it.
    speed : float, optional
        Largest velocity along each axis, in pixels per frame; v is uniform on [-speed, speed]^d. Default: size / 2,
        where the two positions of the input are independent of each other.
    width : float
        Standard deviation of the ball in pixels.
    within : "image" or "pixel"
        q_0 of the training samples is uniform on the torus, or on [0, 1)^d. Test samples always cover the torus.

    Returns
    -------
    Task
        x (n, 2, size) or (n, 2, size, size), earlier frame first, y (n, frames * size^d), float32, loss "mse".
        ``truth.latents`` is (n, 3 d), float64: the cosines and the sines of the angles 2 pi q_0 / size, one per axis
        each, then v in pixels per frame. ``truth.rank`` is 2 d, the number of state variables (positions and
        velocities): 4 in two dimensions.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Notes
    -----
    The source specifies neither the ball nor the sizes nor the number of frames.

    As a manifold the state has 2 d dimensions; a piecewise linear network that carries the angles of positions linearly
    needs two numbers for each.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.falling_ball(n=5, size=8)
    >>> task.x.shape, task.y.shape, task.truth.rank
    (torch.Size([5, 2, 8, 8]), torch.Size([5, 128]), 4)
    """
    settings = dict(locals())
    n, n_test = validation.integer(n, "n"), validation.integer(n_test, "n_test", 0)
    size, frames = validation.integer(size, "size", 2), validation.integer(frames, "frames")
    d = validation.integer(dimensions, "dimensions")
    validation.expect(d <= 2, "dimensions", f"{d}", "1 or 2")
    gravity = validation.number(gravity, "gravity")
    speed = size / 2 if speed is None else validation.number(speed, "speed", 0.0)
    width = validation.number(width, "width", 0.0, strict=True)
    within = validation.choice(within, "within", WITHIN)
    fall = torch.tensor([gravity, 0.0][:d], dtype=torch.float64)

    def latents(count: int, extent: float, generator: torch.Generator) -> Tensor:
        drawn = uniform(generator, count, 2, d)
        angle = 2 * math.pi * extent * drawn[:, 0] / size
        return torch.cat([angle.cos(), angle.sin(), speed * (2 * drawn[:, 1] - 1)], 1)

    def images(z: Tensor, times: range) -> Tensor:
        cosine, sine, velocity = z.double().split(d, 1)
        start = torch.atan2(sine, cosine) * size / (2 * math.pi)
        t = torch.tensor(times, dtype=torch.float64)[:, None]
        return ball_images(start[:, None] + t * velocity[:, None] + t * (t + 1) / 2 * fall, size, width)

    def x_of(z: Tensor) -> Tensor:
        return images(z, range(1 - FRAMES_IN, 1)).float()

    def y_of(z: Tensor) -> Tensor:
        return images(z, range(1, frames + 1)).flatten(1).float()

    train, test = streams(seed, 2)
    z = latents(n, size if within == "image" else 1, train)
    z_test = latents(n_test, size, test)
    return Truth(2 * d, z, z_test, x_of, y_of).task("falling_ball", settings)
