"""Small data sets: classes in the plane, two classes that a plane separates, points on a circle."""

import math

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, normal, streams, uniform


def inverted_s(t: Tensor) -> Tensor:
    """Return the points (sin(pi t) / 2, t) of a mirrored letter S, shape (..., 2), for heights t in [-1, 1].

    The curve bulges to the right in the upper half and to the left in the lower half.

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
    floating = isinstance(t, Tensor) and t.is_floating_point()
    validation.expect(floating, "t", t, "a floating-point torch.Tensor", TypeError)
    return torch.stack([torch.sin(math.pi * t) / 2, t], -1)


def s_shapes(
    n: int = 400, classes: int = 4, noise: float = 0.05, seed: int = 0, *, n_test: int = 400, spacing: float = 0.6
) -> Task:
    """Return classes on identical inverted S shapes, translated along the x-axis (F2; Jacot2023a Figure 2).

    A sample of class c is inverted_s(t) + (spacing (c - (classes - 1) / 2), 0) + noise N(0, I_2) with t uniform on
    [-1, 1]; sample i has class i mod ``classes``. The S shapes are :func:`inverted_s` (the source gives no formula);
    at the default spacing no straight line separates two neighbors, while curves that never meet do: tripoints
    are a choice of the network, not of the data.

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

    Returns
    -------
    Task
        x (n, 2), float32, y (n,) class numbers, loss "cross_entropy".

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

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % classes
        x = inverted_s(2 * uniform(generator, count) - 1)
        x = x + noise * normal(generator, count, 2)
        x[:, 0] += spacing * (labels.double() - (classes - 1) / 2)
        return x.float(), labels

    train, test = streams(seed, 2)
    x, y = draw(n, train)
    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(x, y, x_test, y_test, "cross_entropy", "s_shapes", classes, settings=settings)


def separable(n: int = 100, d: int = 10, margin: float = 0.5, seed: int = 0, *, n_test: int = 0) -> Task:
    """Return two classes that the plane orthogonal to a known unit vector u separates with a known margin (F13).

    x = z - <z, u> u + y (|<z, u>| + margin) u with z from N(0, I_d), y = -1, +1, -1, ... and u a random unit vector, so
    that y <u, x> >= margin for every sample. The maximum margin may belong to another direction.

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
    belong to it. The gradient of the task's own loss (mean squares, docs/theory.md) is -2 y / N = (2 / N) G:
    the same escape directions, with speeds 2 / N times as large. Row j is point j; the source counts from 1 to N,
    and its point N is row 0.

    The points are exact up to one rounding: zeros are 0, and points that are mirror images in an axis or a diagonal
    have coordinates equal bit by bit. It matters, as optimal first-layer kinks pass through the data.

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
        If ``points`` is not an even integer of at least 2, or ``dtype`` not of floating point.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.circle()
    >>> (-task.y).flatten().int().tolist()
    [1, -1, 1, -1, 1, -1, 1, -1]
    >>> task.x[[0, 2, 4, 6]].int().tolist()
    [[0, 1], [1, 0], [0, -1], [-1, 0]]
    """
    points = validation.integer(points, "points", 2)
    validation.expect(not points % 2, "points", f"{points}", "an even number: the signs alternate around the circle")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype: got {dtype!r}, expected a floating-point torch.dtype")
    x = torch.tensor([_circle_point(j, points) for j in range(points)], dtype=torch.float64).to(dtype)
    y = torch.tensor([[(-1.0) ** (j + 1)] for j in range(points)], dtype=dtype)
    return Task(x, y, name="circle", settings={"points": points, "dtype": str(dtype).removeprefix("torch.")})


def _circle_point(j: int, n: int) -> tuple[float, float]:
    """Return (sin, cos)(2 pi j / n) from the first octant, so that symmetric points agree to the bit."""
    octant, rest = divmod(8 * j, n)  # the angle is (octant + rest / n) pi / 4
    rest = n - rest if octant % 2 else rest  # odd octants run backwards
    a = math.pi / 4 * (rest / n)
    s, c = (math.sqrt(0.5), math.sqrt(0.5)) if rest == n else (math.sin(a), math.cos(a))
    x, y = [(s, c), (c, s), (c, -s), (s, -c), (-s, -c), (-c, -s), (-c, s), (-s, c)][octant]
    return x + 0.0, y + 0.0  # no -0.0
