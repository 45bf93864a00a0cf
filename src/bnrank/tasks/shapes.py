"""Shapes: classes in the plane, two linearly separable classes, points on a circle, a ball on a torus."""

import math

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, Truth, normal, streams, uniform

FRAMES_IN = 2  # determine position and velocity
WITHIN = ("image", "pixel")
HEIGHTS = ("uniform", "normal")
MAX_WIDTH = 1000  # of a bump, in units of the size of the image; wider ones are flat


def inverted_s(t: Tensor) -> Tensor:
    """Return the points (sin(pi t) / 2, t) of a mirrored letter S, shape (..., 2), for heights t in [-1, 1].

    The curve bulges to the right in the upper half and to the left in the lower half. Beyond, its ends turn back.

    Raises
    ------
    TypeError
        If ``t`` is not a floating-point tensor.

    Examples
    --------
    >>> import torch
    >>> inverted_s(torch.tensor([-0.5, 0.0, 0.5]))
    tensor([[-0.5000, -0.5000],
            [ 0.0000,  0.0000],
            [ 0.5000,  0.5000]])
    """
    floating = isinstance(t, Tensor) and validation.dense(t, "t").is_floating_point()
    validation.expect(floating, "t", validation.describe(t), "a floating-point torch.Tensor", TypeError)
    return torch.stack([torch.sin(math.pi * t) / 2, t], -1)


def s_shapes(
    n: int = 400,
    classes: int = 4,
    noise: float = 0.05,
    seed: int = 0,
    *,
    n_test: int = 400,
    spacing: float = 0.6,
    heights: str = "uniform",
) -> Task:
    """Return classes on identical inverted S shapes, translated along the x-axis (F2; Jacot2023a Figure 2).

    A sample of class c is inverted_s(t) + (spacing (c - (classes - 1) / 2), 0) + noise N(0, I_2) with random t; sample
    i has class i mod ``classes``. The S shapes are :func:`inverted_s` (the source gives no formula); at the default
    spacing no straight line separates two neighbors, while curves that never meet do: tripoints are a property of the
    network, not of the data.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n`` at least ``classes``, ``n_test`` may be 0.
    classes : int
        Number of classes, at least 2.
    noise : float
        Standard deviation of the noise in each coordinate.
    seed : int
        Training and test samples come from separate streams of it.
    spacing : float
        Distance between neighboring shapes. From 0.69 on, slanted straight lines separate them where noise is 0.
    heights : "uniform" or "normal"
        Distribution of t. "uniform": on [-1, 1]; every shape reaches from the bottom to the top of the data's bounding
        box. "normal": N(0, 1/4); shapes thin out, and end at different heights inside the box.

    Returns
    -------
    Task
        x (n, 2), float32, y (n,) class indices, loss "cross_entropy".

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.s_shapes(n=200)
    >>> task.x.shape, task.classes, task.y[:5].tolist()
    (torch.Size([200, 2]), 4, [0, 1, 2, 3, 0])
    """
    settings = dict(locals())
    classes = validation.integer(classes, "classes", 2)
    n, n_test = validation.integer(n, "n", classes), validation.integer(n_test, "n_test", 0)
    noise = validation.number(noise, "noise", 0.0)
    spacing = validation.number(spacing, "spacing", 0.0, strict=True)
    validation.choice(heights, "heights", HEIGHTS)
    validation.largest_fits(8 * (n + n_test), {"n": n, "n_test": n_test})

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % classes
        x = inverted_s(2 * uniform(generator, count) - 1 if heights == "uniform" else normal(generator, count) / 2)
        x = x + noise * normal(generator, count, 2)
        x[:, 0] += spacing * (labels.double() - (classes - 1) / 2)
        return x.float(), labels

    train, test = streams(seed, 2)
    x, y = draw(n, train)
    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(x, y, x_test, y_test, "cross_entropy", "s_shapes", classes, settings=settings)


def separable(n: int = 100, d: int = 10, margin: float = 0.5, seed: int = 0, *, n_test: int = 0) -> Task:
    """Return two classes separated by the plane orthogonal to a known unit vector u, with a known margin (F13).

    x = z - <z, u> u + y (|<z, u>| + margin) u with z from N(0, I_d), y = -1, +1, -1, ... and u a random unit vector, so
    that y <u, x> >= margin for every sample. The direction of the maximum margin may differ from u.

    Parameters
    ----------
    n, n_test : int
        Number of training samples, at least 2, and of test samples.
    d : int
        Dimension.
    margin : float
        Smallest distance of a sample from the plane, > 0.
    seed : int
        u, training and test samples come from separate streams of it.

    Returns
    -------
    Task
        x (n, d), float32, y (n, 1), -1 or +1, loss "logistic". ``settings["direction"]`` holds u, d numbers. Rounded to
        float32, y <u, x> may be less than the margin by 1e-6 of ||x||.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch, bnrank
    >>> task = bnrank.tasks.separable(n=50, d=4, margin=0.5)
    >>> u = torch.tensor(task.settings["direction"], dtype=torch.float64)
    >>> bool((task.y[:, 0] * (task.x.double() @ u) > 0.4999).all())
    True
    """
    n, d, n_test = validation.integer(n, "n", 2), validation.integer(d, "d"), validation.integer(n_test, "n_test", 0)
    margin = validation.number(margin, "margin", 0.0, strict=True)
    validation.largest_fits(2 * (n + n_test) * d + d, {"n": n, "n_test": n_test, "d": d})
    of_direction, train, test = streams(seed, 3)
    u = normal(of_direction, d)
    u /= u.norm()

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        y = 2.0 * (torch.arange(count, dtype=torch.float64) % 2) - 1
        z = normal(generator, count, d)
        along = z @ u
        x = z + torch.outer(y * (along.abs() + margin) - along, u)
        return x.float(), y.float().unsqueeze(1)

    settings = {"n": n, "d": d, "margin": margin, "seed": seed, "n_test": n_test, "direction": tuple(u.tolist())}
    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(*draw(n, train), x_test, y_test, "logistic", "separable", settings=settings)


def circle(points: int = 8, dtype: torch.dtype = torch.float32) -> Task:
    """Return T40's data: x_j = (sin, cos)(2 pi j / N) with outputs y_j = -(-1)^j, j = 0, ..., N - 1.

    The source (Bantzis2025 Example 1) prescribes G_j = (-1)^j, the gradient of the cost with respect to the output
    at zero output. That is ``G = -task.y``, shape (N, 1); the escape speeds of T40, such as 1/2 and sqrt(2) - 1,
    belong to it. The gradient of the task's own loss (mean squares, docs/theory/notation.md) is -2 y / N = (2 / N) G:
    the same escape directions, with speeds 2 / N times as large. Row j is point j; the source counts from 1 to N,
    and its point N is row 0.

    The points are exact up to one rounding: zeros are 0, and points that are mirror images in an axis or a diagonal
    have bitwise equal coordinates. This matters because optimal first-layer kinks pass through the data.

    Parameters
    ----------
    points : int
        N, an even number.
    dtype : torch.dtype
        Floating-point type of x and y.

    Returns
    -------
    Task
        x (N, 2), y (N, 1), loss "mse".

    Raises
    ------
    TypeError, ValueError
        If ``points`` is not an even integer of at least 2, or ``dtype`` is not floating point.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.circle()
    >>> (-task.y).flatten().int().tolist()
    [1, -1, 1, -1, 1, -1, 1, -1]
    >>> task.x[[0, 2, 4, 6]].int().tolist()
    [[0, 1], [1, 0], [0, -1], [-1, 0]]
    """
    points = validation.integer(points, "points", 2, 10**6)
    validation.expect(not points % 2, "points", f"{points}", "an even number: the signs alternate around the circle")
    dtype = validation.dtype(dtype)
    x = torch.tensor([_circle_point(j, points) for j in range(points)], dtype=torch.float64).to(dtype)
    y = torch.tensor([[(-1.0) ** (j + 1)] for j in range(points)], dtype=dtype)
    return Task(x, y, name="circle", settings={"points": points, "dtype": str(dtype).removeprefix("torch.")})


def _circle_point(j: int, n: int) -> tuple[float, float]:
    """Return (sin, cos)(2 pi j / n) from the first octant, so that symmetric points agree bitwise."""
    octant, rest = divmod(8 * j, n)  # the angle is (octant + rest / n) pi / 4
    rest = n - rest if octant % 2 else rest  # odd octants run backwards
    a = math.pi / 4 * (rest / n)
    s, c = (math.sqrt(0.5), math.sqrt(0.5)) if rest == n else (math.sin(a), math.cos(a))
    x, y = [(s, c), (c, s), (c, -s), (s, -c), (-s, -c), (-c, -s), (-c, s), (-s, c)][octant]
    return x + 0.0, y + 0.0  # no -0.0


def ball_images(positions: Tensor, size: int, width: float = 1.5) -> Tensor:
    """Return images of a ball at given positions on a torus, (..., size) or (..., size, size).

    The image is the periodic Gaussian bump sum_m exp(-||u - q - m size||^2 / (2 width^2)) at pixel u, m over the whole
    lattice Z^d, for the ball's position q. It is smooth, has height 1 if it is narrow relative to the torus, and shifts
    by whole pixels if q does. Its Fourier coefficient at w is proportional to exp(-2 pi i <w, q> / size), up to
    aliases: position is phase.

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
    widest = MAX_WIDTH * size
    validation.expect(width <= widest, "width", f"{width:g}", f"at most {MAX_WIDTH} times the size, {widest}")
    floating = isinstance(positions, Tensor) and positions.is_floating_point()
    validation.expect(floating, "positions", validation.describe(positions), "a floating-point torch.Tensor", TypeError)
    positions = validation.dense(positions, "positions")
    shape = tuple(positions.shape)
    validation.expect(shape[-1:] in ((1,), (2,)), "positions", f"shape {shape}", "(..., 1) or (..., 2)")
    validation.allocation(3 * positions.numel() // shape[-1] * size ** shape[-1] + 3 * size, "size", size)
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

    A translation of the torus translates all images, exactly if it is by whole pixels. For networks that commute with
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

    As a manifold the state has 2 d dimensions; a piecewise linear network that represents the angles of positions
    linearly needs two dimensions for each.

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
    sizes = {"n": n, "n_test": n_test, "size": size, "frames": frames}
    validation.largest_fits(6 * max(n, n_test) * (frames + FRAMES_IN) * size**d, sizes)
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
