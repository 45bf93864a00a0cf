"""Data for autoencoders, y = x: a known curve in the plane, and the inputs of any other task."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.latent_maps import ShallowReLU
from bnrank.tasks.task import Task, Truth, normal, streams

DRAWS = 1000  # attempts to draw a g that is injective on the range of the samples
PIECE = 1 << 20  # entries per block
SAME = 1e-12  # corners closer than this, relative to the largest coordinate, are identified


def planar_curve(
    n: int = 200, width: int = 20, seed: int = 0, *, n_test: int = 200, x_norm_squared: float = 1.0
) -> Task:
    """Return points of a random piecewise linear curve in the plane, with y = x (F3; Jacot2023a appendix F).

    x = g(z), z ~ N(0, 1), g: R -> R^2, g(z) = c (W2 relu(w1 z + b1) + b2) with w1, b1 and W2 of N(0, 1) entries. The
    source specifies only "a random ReLU network". b2 centers the training samples at 0 and c sets their mean squared
    norm. g is redrawn until the curve does not cross itself on the range of the samples: T17 requires an injective g,
    and no function of rank 1 is the identity on a curve that crosses itself.

    Parameters
    ----------
    n, n_test : int
        Number of training samples, at least 2, and of test samples, which may be 0.
    width : int
        Inner width of g, the largest number of corners.
    seed : int
        g and the latents come from separate streams of it.
    x_norm_squared : float
        Mean of ||x||^2 over the training samples.

    Returns
    -------
    Task
        x (n, 2), float32, y = x, loss "mse", truth of rank 1. ``truth.x_of_latents`` is g as a :class:`ShallowReLU`,
        with b2 as a last neuron that is constant; :func:`polyline` gives the corners of the curve.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or no curve without a crossing was found.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.planar_curve(n=50, seed=1)
    >>> task.x.shape, task.y is task.x, task.truth.rank, round(float(task.x.square().sum(1).mean()), 5)
    (torch.Size([50, 2]), True, 1, 1.0)
    """
    settings = dict(locals())
    n, n_test = validation.integer(n, "n", 2), validation.integer(n_test, "n_test", 0)
    width = validation.integer(width, "width")
    validation.largest_fits(2 * (n + n_test) * (width + 2), {"n": n, "n_test": n_test, "width": width})
    target = validation.number(x_norm_squared, "x_norm_squared", 0.0, strict=True)
    for_g, for_z, for_z_test = streams(seed, 3)
    z = normal(for_z, n, 1).float()
    z_test = normal(for_z_test, n_test, 1).float()
    seen = torch.cat([z, z_test])
    lower, upper = float(seen.min()), float(seen.max())
    for _ in range(DRAWS):
        g = _curve(width, z.double(), target, for_g)
        if g is not None and not crosses_itself(polyline(g, lower, upper)):
            break
    else:
        found = f"{width}, for which none of {DRAWS} curves was free of crossings"
        raise ValueError(f"width: got {found}, expected another width or fewer samples")
    x, x_test = g(z), g(z_test) if n_test else None
    return Task(x, x, x_test, x_test, name="planar_curve", truth=Truth(1, z, z_test, g, g), settings=settings)


def autoencoder(task: Task) -> Task:
    """Return the task of reproducing the inputs of a task: y = x, flattened, with the loss "mse" (F3).

    Where the task has x = g(z) for m real latents, with g a :class:`ShallowReLU`, the true rank of the new task is m
    (T17; Jacot2023a section 5), assuming that g is injective. Other tasks have no ``truth``: their x is not a function
    of the latents, or the latents are angles (a circle is not a line: the rank of its identity is 2, not 1).

    Parameters
    ----------
    task : Task
        Any task; its outputs are ignored.

    Returns
    -------
    Task
        x and y are the inputs, (N, d_in), and so are x_test and y_test where there are test data.

    Raises
    ------
    TypeError
        If it is not a task.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.autoencoder(bnrank.tasks.digits(n=100))
    >>> task.name, task.loss, task.d_in, task.d_out
    ('digits, autoencoder', 'mse', 64, 64)
    """
    if not isinstance(task, Task):
        raise TypeError(f"task: got {validation.describe(task)}, expected a bnrank.tasks.Task")
    expected = "none: only bnrank.train and bnrank.sweep weight samples"
    validation.expect(task.weights is None, "task", "a task with weights", expected)
    x = task.x.flatten(1)
    x_test = None if task.x_test is None else task.x_test.flatten(1)
    truth = task.truth
    if truth is not None:
        truth = replace(truth, rank=truth.latents.shape[1], y_of_latents=truth.x_of_latents) if _made(task) else None
    name, settings = f"{task.name}, autoencoder", {**task.settings, "y": "x"}
    return Task(x, x, x_test, x_test, name=name, truth=truth, settings=settings)


def polyline(g: ShallowReLU, lower: float, upper: float) -> Tensor:
    """Return the corners of the curve z -> g(z) of a scalar z in [lower, upper], its two ends included.

    Between two of them g is affine: a neuron w z + b of the hidden layer changes at z = -b / w.

    Parameters
    ----------
    g : ShallowReLU
        Of one latent.
    lower, upper : float
        The range of z, ``lower`` below ``upper``.

    Returns
    -------
    Tensor
        (corners, d), float64, in the order of z.

    Raises
    ------
    TypeError, ValueError
        If g has more than one latent, or the range is empty.

    Examples
    --------
    >>> import torch
    >>> g = ShallowReLU(torch.tensor([[1.0], [-1.0]]).double(), torch.zeros(2).double(), torch.eye(2).double())
    >>> polyline(g, -2.0, 3.0)
    tensor([[0., 2.],
            [0., 0.],
            [3., 0.]], dtype=torch.float64)
    """
    validation.expect(isinstance(g, ShallowReLU), "g", validation.describe(g), "a bnrank.tasks.ShallowReLU", TypeError)
    validation.expect(g.w1.shape[1] == 1, "g", f"a function of {g.w1.shape[1]} latents", "one")
    lower, upper = validation.number(lower, "lower"), validation.number(upper, "upper")
    largest = max(-lower, upper)
    validation.expect(largest < 1e100, "upper" if upper == largest else "lower", f"{largest:g}", "below 1e100 in size")
    validation.expect(lower < upper, "lower, upper", f"{lower:g} and {upper:g}", "the first below the second")
    w, b = g.w1.double().flatten(), g.b1.double()
    corners = -b[w != 0] / w[w != 0]
    corners = torch.unique(corners[(corners > lower) & (corners < upper)])  # sorted
    ends = torch.tensor([lower, upper], dtype=torch.float64, device=w.device)
    return g(torch.cat([ends[:1], corners, ends[1:]]).unsqueeze(1))


def crosses_itself(corners: Tensor) -> bool:
    """Return whether a polygonal line in the plane intersects itself, so that z -> the point at z is not injective.

    Consecutive corners that agree up to rounding, 1e-12 of the largest coordinate, count as an intersection.
    Consecutive sides share a corner and are not tested; parallel sides are assumed not to intersect.

    Parameters
    ----------
    corners : Tensor
        (corners, 2), in order.

    Raises
    ------
    TypeError, ValueError
        If they are fewer than two, or not in the plane.

    Examples
    --------
    >>> import torch
    >>> corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, -1.0]])
    >>> crosses_itself(corners), crosses_itself(corners[:3])
    (True, False)
    """
    corners = validation.samples(corners, "corners", features=2, minimum=2).double()
    start, side = corners[:-1], corners[1:] - corners[:-1]
    if bool((side.norm(dim=1) <= SAME * corners.abs().max()).any()):
        return True

    def cross(a: Tensor, b: Tensor) -> Tensor:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]

    between = start[None, :] - start[:, None]  # from the start of i to that of j
    turn = cross(side[:, None], side[None, :])
    of_i, of_j = cross(between, side[None, :]) / turn, cross(between, side[:, None]) / turn  # NaN, inf: parallel
    meet = (of_i >= 0) & (of_i <= 1) & (of_j >= 0) & (of_j <= 1)
    return bool(meet.triu(2).any())


def distances_to_polyline(x: Tensor, corners: Tensor) -> Tensor:
    """Return the Euclidean distance of points to a polygonal line: the minimum over its segments, ends included.

    Parameters
    ----------
    x : Tensor
        Points, (N, d).
    corners : Tensor
        (corners, d), in order, at least two.

    Returns
    -------
    Tensor
        (N,), float64.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit.

    Examples
    --------
    >>> import torch
    >>> line = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])
    >>> distances_to_polyline(torch.tensor([[1.0, 0.5], [-3.0, 4.0], [3.0, 1.0]]), line)
    tensor([0.5000, 5.0000, 1.0000], dtype=torch.float64)
    """
    corners = validation.samples(corners, "corners", minimum=2).double()
    x = validation.samples(x, "x", features=corners.shape[1]).double()
    found = _distances(x, corners)
    extreme = ~((found > 1e-150) & (found < 1e150)) & (x != 0).any(1)  # squares may have left the range of floats
    for i in extreme.nonzero().flatten():
        size = max(float(x.detach()[i].abs().max()), float(corners.detach().abs().max()))
        scale = 2.0 ** (math.frexp(size)[1] - 1)
        found[i] = scale * _distances(x[i : i + 1] / scale, corners / scale)[0]
    return found


def _distances(x: Tensor, corners: Tensor) -> Tensor:
    start, side = corners[:-1], corners[1:] - corners[:-1]
    length = side.square().sum(1)
    found = []
    for part in x.split(max(1, PIECE // side.numel())):
        away = part[:, None] - start
        along = ((away * side).sum(2) / length.clamp(min=torch.finfo(torch.float64).tiny)).clamp(0, 1)
        found.append((away - along[..., None] * side).norm(dim=2).min(1).values)
    return torch.cat(found)


def _curve(width: int, z: Tensor, target: float, generator: torch.Generator) -> ShallowReLU | None:
    """Return a random g, centered and scaled on z; None where it is constant there."""
    w1, b1, w2 = normal(generator, width, 1), normal(generator, width), normal(generator, 2, width)
    mean = ShallowReLU(w1, b1, w2)(z).mean(0)
    one = torch.ones(1, dtype=torch.float64)
    g = ShallowReLU(torch.cat([w1, 0 * one[:, None]]), torch.cat([b1, one]), torch.cat([w2, -mean[:, None]], 1))
    size = float(g(z).square().sum(1).mean())
    return replace(g, w2=g.w2 * (target / size) ** 0.5) if size > 0 else None


def _made(task: Task) -> bool:
    """Return whether x is a shallow ReLU network of all latents, with no more latents than inputs."""
    truth = task.truth
    if truth is None or not isinstance(truth.x_of_latents, ShallowReLU):
        return False
    g, d = truth.x_of_latents, task.d_in
    if not truth.latents.shape[1] == g.w1.shape[1] <= d or len(g.w2) != d:
        return False
    given = [(truth.latents, task.x)] + ([] if task.x_test is None else [(truth.latents_test, task.x_test)])
    close = [len(z) == len(x) and ((g(z) - x.flatten(1)).abs() <= 1e-5 * x.abs().max()).all() for z, x in given]
    return all(close)
