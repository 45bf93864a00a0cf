"""Two classes that a plane separates."""

from __future__ import annotations

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks._random import streams
from bnrank.tasks.task import Task

__all__ = ["separable"]


def separable(n: int = 100, d: int = 10, margin: float = 0.5, seed: int = 0, *, n_test: int = 0) -> Task:
    """Draw two classes that the plane orthogonal to a known unit vector u separates with a known margin (F13).

    x = z - <z, u> u + y (|<z, u>| + margin) u with z from N(0, I_d), y = -1, +1, -1, ... and u a random unit vector, so
    that y <u, x> >= margin for every sample. The widest margin there is may belong to another direction.

    Parameters
    ----------
    n, n_test : int
        Number of training samples, at least 2, and of test samples.
    d : int
        Dimension.
    margin : float
        Least distance of a sample from the plane, > 0.
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
    u = torch.randn(d, generator=of_direction, dtype=torch.float64)
    u /= u.norm()

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        y = 2.0 * (torch.arange(count, dtype=torch.float64) % 2) - 1
        z = torch.randn(count, d, generator=generator, dtype=torch.float64)
        along = z @ u
        x = z + torch.outer(y * (along.abs() + margin) - along, u)
        return x.float(), y.float().unsqueeze(1)

    settings = {"n": n, "d": d, "margin": margin, "seed": seed, "n_test": n_test, "direction": tuple(u.tolist())}
    x_test, y_test = draw(n_test, test) if n_test else (None, None)
    return Task(*draw(n, train), x_test, y_test, "logistic", "separable", settings=settings)
