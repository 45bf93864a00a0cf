"""Gradient descent on a rank-one factorization: its costs depend on two statistics of the initial vector (F5)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.tasks.task import Task, Truth, normal, streams, uniform

STARTS = ("even", "gaussian")


@dataclass(frozen=True, eq=False)
class RankOneFactorization:
    """Gradient descent on C(v) = ||v v^T - (w w^T + E)||_F^2, with ||w|| = 1.

    Its gradient is 4 ||v||^2 v - 2 (A + A^T) v with A = w w^T + E. With E = 0 a step is

        v' = v - 4 lr (||v||^2 v - (w^T v) w),

    which commutes with rotations about w and with v -> -v. Of the summary statistics u = ((w^T v)^2, ||P v||^2),
    P = I - w w^T, and r = u_0 + u_1 = ||v||^2 it therefore makes

        u_0' = u_0 (1 - 4 lr (r - 1))^2,  u_1' = u_1 (1 - 4 lr r)^2,  C = r^2 - 2 u_0 + 1,

    exactly, at any step size (Jacot2023b section 5 has the limit of small steps). Everything is computed in float64
    and returned in the dtype it is given; differentiable.

    Attributes
    ----------
    w : Tensor
        Unit vector, (d,), float64.
    across : Tensor
        A unit vector orthogonal to w, (d,), float64: where :meth:`representative` puts ||P v||.
    error : Tensor
        E, (d, d), float64.
    lr : float
        Step size.

    Examples
    --------
    >>> import torch
    >>> descent = rank_one_factorization(d=3, lr=0.1)
    >>> u = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    >>> v = descent.representative(u)
    >>> torch.allclose(descent.statistics(descent.step(v)), descent.step_statistics(u), atol=1e-15)
    True
    >>> descent.cost(v), descent.cost_of_statistics(u)
    (tensor([0.5625], dtype=torch.float64), tensor([0.5625], dtype=torch.float64))
    """

    w: Tensor
    across: Tensor
    error: Tensor
    lr: float

    def cost(self, v: Tensor) -> Tensor:
        """Return C(v), (...,), for v (..., d)."""
        z = _double(v, "v", len(self.w))
        target = torch.outer(self.w, self.w) + self.error
        product = torch.einsum("...i,ij,...j->...", z, target, z)
        return (z.square().sum(-1) ** 2 - 2 * product + target.square().sum()).to(v.dtype)

    def step(self, v: Tensor) -> Tensor:
        """Return v after one step, (..., d)."""
        z = _double(v, "v", len(self.w))
        along = (z @ self.w).unsqueeze(-1) * self.w
        noise = z @ (self.error + self.error.T) / 2
        return (z - 4 * self.lr * (z.square().sum(-1, keepdim=True) * z - along - noise)).to(v.dtype)

    def trajectory(self, v: Tensor, steps: int) -> Tensor:
        """Return v(0), ..., v(steps), (..., steps + 1, d)."""
        states = [_double(v, "v", len(self.w))]
        validation.allocation((validation.integer(steps, "steps", 0) + 1) * (v.numel() + 64), "steps", steps)
        for _ in range(steps):
            states.append(self.step(states[-1]))
        return torch.stack(states, -2).to(v.dtype)

    def statistics(self, v: Tensor) -> Tensor:
        """Return u = ((w^T v)^2, ||(I - w w^T) v||^2), (..., 2), for v (..., d)."""
        z = _double(v, "v", len(self.w))
        along = z @ self.w
        rest = z - along.unsqueeze(-1) * self.w
        return torch.stack([along.square(), rest.square().sum(-1)], -1).to(v.dtype)

    def representative(self, u: Tensor) -> Tensor:
        """Return sqrt(u_0) w + sqrt(u_1) q with q = ``across``, (..., d): one v with the statistics u."""
        root = _double(u, "u", 2).sqrt()
        return (root[..., :1] * self.w + root[..., 1:] * self.across).to(u.dtype)

    def step_statistics(self, u: Tensor) -> Tensor:
        """Return u after one step, (..., 2); exact for E = 0, up to O(||E||) otherwise."""
        s = _double(u, "u", 2)
        r = s.sum(-1)
        along, rest = (1 - 4 * self.lr * (r - 1)).square(), (1 - 4 * self.lr * r).square()
        return (s * torch.stack([along, rest], -1)).to(u.dtype)

    def cost_of_statistics(self, u: Tensor) -> Tensor:
        """Return C, (...,), for u (..., 2); exact for E = 0, up to O(||E||) otherwise."""
        s = _double(u, "u", 2)
        return (s.sum(-1).square() - 2 * s[..., 0] + 1).to(u.dtype)


def rank_one_factorization(d: int = 6, lr: float = 0.03, noise: float = 0.0, seed: int = 0) -> RankOneFactorization:
    """Return w, uniform on the unit sphere, and E, with i.i.d. entries N(0, (noise/d)^2), so E||E||_F^2 = noise^2.

    The same ``d``, ``noise`` and ``seed`` give the w and E of :func:`matrix_factorization`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> descent = rank_one_factorization(d=4, seed=3)
    >>> round(descent.w.norm().item(), 12), abs(round((descent.w @ descent.across).item(), 12))
    (1.0, 0.0)
    """
    d = validation.integer(d, "d", 2)
    lr = validation.number(lr, "lr", 0.0, strict=True)
    noise = validation.number(noise, "noise", 0.0)
    validation.allocation(d * (d + 2), "d", d)
    for_w, for_across, for_error = streams(seed, 3)
    w, across = normal(for_w, d), normal(for_across, d)
    w = w / w.norm()
    across = across - (across @ w) * w
    error = normal(for_error, d, d) * (noise / d)
    return RankOneFactorization(w, across / across.norm(), error, lr)


def matrix_factorization(
    n: int = 1000,
    d: int = 6,
    steps: int = 20,
    lr: float = 0.03,
    noise: float = 0.0,
    seed: int = 0,
    *,
    n_test: int = 500,
    start: str = "even",
    radius: float = 1.8,
    y_variance: float | None = 1.0,
) -> Task:
    """Return the task of F5: from v(0) to (C(v(1)), ..., C(v(T))) along gradient descent, of bottleneck rank 2.

    C(v) = ||v v^T - (w w^T + E)||_F^2; see :class:`RankOneFactorization`. With E = 0 the map is invariant under
    rotations about w and under v -> -v; it factors through u = ((w^T v)^2, ||(I - w w^T) v||^2), and through no
    fewer variables if T >= 2 (T17; Jacot2023b section 5, which does not specify d, T, the step size, the start and N).
    The source has C(v(1)), ..., C(v(T)) in the text; its slides (Jacot2023c) add C(v(0)) and omit the squares in u.

    Parameters
    ----------
    n, n_test : int
        Number of training and of test samples; ``n_test`` may be 0.
    d : int
        Dimension of v, at least 2. Orbits have d - 2 dimensions.
    steps : int
        T, the number of steps and of outputs.
    lr : float
        Step size; 4 lr ||v(0)||^2 < 1 for all samples, so that ||(I - w w^T) v|| shrinks without overshooting.
    noise : float
        Root mean square of ||E||_F; E enters both training and test data. With E the map is invariant up to
        O(||E||) only, and there is no ``truth``.
    seed : int
        w, E, the training and the test starts come from separate streams of it.
    start : "even" or "gaussian"
        "even": v(0) = r (cos(phi) w + sin(phi) q), r uniform in (0, radius), phi uniform in (0, pi), q uniform on the
        unit sphere orthogonal to w: covers the plane of |w^T v| and ||(I - w w^T) v|| evenly in r and phi, for every d.
        "gaussian": v(0) ~ N(0, I radius^2 / (3 d)), with the same mean of ||v(0)||^2; for large d nearly all starts are
        then nearly orthogonal to w.
    radius : float
        See ``start``.
    y_variance : float or None
        Variance of an output over the training samples, mean over outputs, reached by one scalar for all of them.
        None leaves the costs as they are.

    Returns
    -------
    Task
        x = v(0) (n, d), y (n, steps), float32, loss "mse". ``truth`` (for noise = 0): rank 2 (1 for one step), latents
        u, ``y_of_latents`` through the exact map of u. x is not a function of u: ``x_of_latents`` returns one point
        of the orbit, with the same y.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import torch
    >>> task = matrix_factorization(n=100, d=10, steps=5)
    >>> task.x.shape, task.y.shape, task.truth.rank
    (torch.Size([100, 10]), torch.Size([100, 5]), 2)
    >>> u = task.truth.latents
    >>> torch.allclose(task.truth.y_of_latents(u), task.y, atol=1e-5)
    True
    """
    settings = dict(locals())
    n, n_test = validation.integer(n, "n"), validation.integer(n_test, "n_test", 0)
    steps, d = validation.integer(steps, "steps"), validation.integer(d, "d", 2)
    sizes = {"n": n, "n_test": n_test, "d": d, "steps": steps}
    validation.largest_fits(max(n, n_test) * (steps + 1) * d + (n + n_test) * (d + steps), sizes)
    start = validation.choice(start, "start", STARTS)
    radius = validation.number(radius, "radius", 0.0, strict=True)
    descent = rank_one_factorization(d, lr, noise, seed)
    _, _, _, for_x, for_x_test = streams(seed, 5)
    x, x_test = (_starts(descent, count, start, radius, g).float() for count, g in ((n, for_x), (n_test, for_x_test)))
    largest = float(torch.cat([x, x_test]).double().square().sum(1).max())
    if 4 * descent.lr * largest >= 1:
        raise ValueError(
            f"lr: got {descent.lr:g}, expected below 1 / (4 max ||v(0)||^2) = {0.25 / largest:.3g} for the starts "
            "drawn, so that steps do not overshoot; give a smaller lr or radius"
        )
    y, y_test = (descent.cost(descent.trajectory(v.double(), steps)[:, 1:]) for v in (x, x_test))
    scale = 1.0
    if y_variance is not None:
        variance = validation.number(y_variance, "y_variance", 0.0, strict=True)
        drawn = float(y.var(0, correction=0).mean())
        if drawn == 0:
            raise ValueError("y_variance: the costs are the same for all samples, expected n of at least 2, or None")
        scale = float((variance / drawn) ** 0.5)
    truth = None
    if not noise:
        y_of_latents = partial(_costs_of_statistics, descent, steps=steps, scale=scale)
        latents, latents_test = descent.statistics(x), descent.statistics(x_test)
        truth = Truth(min(2, steps), latents, latents_test, descent.representative, y_of_latents)
    test: dict[str, Any] = {"x_test": x_test, "y_test": (scale * y_test).float()} if n_test else {}
    return Task(x, (scale * y).float(), **test, name="matrix_factorization", truth=truth, settings=settings)


def _double(value: Tensor, name: str, n: int) -> Tensor:
    if (
        not isinstance(value, Tensor)
        or not validation.dense(value, name).is_floating_point()
        or value.ndim < 1
        or value.shape[-1] != n
    ):
        raise ValueError(f"{name}: got {validation.describe(value)}, expected floating point (..., {n})")
    return value.double()


def _starts(descent: RankOneFactorization, count: int, start: str, radius: float, generator: torch.Generator) -> Tensor:
    d = len(descent.w)
    if start == "gaussian":
        return normal(generator, count, d) * (radius / (3 * d) ** 0.5)
    r, phi = uniform(generator, 2, count, 1)
    q = normal(generator, count, d)
    q = q - (q @ descent.w).unsqueeze(-1) * descent.w
    q = q / q.norm(dim=1, keepdim=True)
    return radius * r * ((torch.pi * phi).cos() * descent.w + (torch.pi * phi).sin() * q)


def _costs_of_statistics(descent: RankOneFactorization, u: Tensor, *, steps: int, scale: float) -> Tensor:
    """Return the scaled costs after 1, ..., T steps, (..., T), for u (..., 2)."""
    costs, s = [], _double(u, "u", 2)
    for _ in range(steps):
        s = descent.step_statistics(s)
        costs.append(descent.cost_of_statistics(s))
    return (scale * torch.stack(costs, -1)).to(u.dtype)
