"""What F7 computes: test errors of kernels and of deep networks against the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.gaussian_process.kernels import Matern
from sklearn.kernel_ridge import KernelRidge

from bnrank.figures.harness.measurement import held_out, relative_error
from bnrank.networks import MLP
from bnrank.tasks import Task, TorusTarget, composition, torus_map
from bnrank.tasks.kernel_targets import torus_targets
from bnrank.theory.kernels import select
from bnrank.training import train

__all__ = ["Course", "Decay", "decay_courses", "network_errors", "on_composition", "on_torus_control"]

Array = NDArray[np.float64]

SMOOTHNESS = 1.5  # nu of the Matern kernel; its eigenvalues on the d-torus go like ||m||^{-2 nu - d}
LENGTH = 2.0  # its length scale, the diameter of one circle
RIDGE = 1e-11  # there is no noise: only what Cholesky needs
RIDGES = (1e-6, 1e-3, 0.1, 1.0)
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
KERNELS = ("rbf", "laplace")


@dataclass(frozen=True)
class Course:
    """Test errors of one method on one kind of task.

    Attributes
    ----------
    name : str
        The method.
    sizes : ndarray
        Numbers of samples N, (sizes,).
    errors : ndarray
        Mean of ||f(x) - y||^2 over that of ||y - mean||^2 on test samples, (draws, sizes).
    about : str
        What was chosen.
    """

    name: str
    sizes: Array
    errors: Array
    about: str = ""

    @property
    def exponents(self) -> Array:
        """Exponents p of error ~ N^{-p}, fitted in logarithms by least squares, one for each draw."""
        logs = np.log(np.maximum(self.errors, 1e-300)).T
        return np.asarray(-np.polyfit(np.log(self.sizes), logs, 1)[0])

    @property
    def middle(self) -> Array:
        """Geometric mean of the errors over draws, (sizes,)."""
        return np.asarray(np.exp(np.log(np.maximum(self.errors, 1e-300)).mean(0)))

    @property
    def exponent(self) -> tuple[float, float, float]:
        """Mean of the exponents over draws and the ends of its 95 percent interval (Student's t)."""
        return interval(self.exponents)


@dataclass(frozen=True)
class Decay(Course):
    """Errors of kernel ridge regression on a target with coefficients ||m||^{-alpha-d}.

    Attributes
    ----------
    d, alpha : int, float
        Of the target.
    least : ndarray
        Sum of |beta_k|^2 over k > N, (sizes,): what the source takes the error for.
    missing : float
        Part of the target beyond the cutoff over ``least`` at the largest N.
    """

    d: int = 1
    alpha: float = 1.0
    least: Array | None = None
    missing: float = 0.0

    @property
    def expected(self) -> float:
        """The exponent of theory, alpha / d."""
        return self.alpha / self.d


def interval(values: Array) -> tuple[float, float, float]:
    """Return mean, and ends of its 95 percent interval; infinite ones for a single value.

    By Student's t: the bootstrap of three to six values is too narrow.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, -np.inf, np.inf
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return mean, mean - half, mean + half


def decay_courses(
    d: int, alphas: Sequence[float], sizes: Sequence[int], draws: Sequence[int], n_test: int
) -> list[Decay]:
    """Fit kernel ridge regressions to targets on the d-torus, one course for each alpha."""
    errors = np.empty((len(alphas), len(draws), len(sizes)))
    for row, seed in enumerate(draws):
        task = torus_map(max(sizes), d, tuple(alphas), seed, n_test=n_test)
        x, y, (x_test, y_test) = task.x.numpy(), task.y.numpy(), (t.numpy() for t in held_out(task))
        for column, n in enumerate(sizes):
            model = KernelRidge(alpha=RIDGE, kernel=Matern(LENGTH, nu=SMOOTHNESS)).fit(x[:n], y[:n])
            apart = ((model.predict(x_test) - y_test) ** 2).mean(0)
            errors[:, row, column] = apart / y_test.var(0)
    cutoff = int(task.settings["cutoff"])
    targets: list[TorusTarget] = torus_targets(d, alphas, cutoff, torch.Generator().manual_seed(0))
    result = []
    for target, found in zip(targets, errors, strict=True):
        least = np.array([target.beyond(n) for n in sizes])
        share = float(target.missing / least[-1])
        name = f"d = {d}, alpha = {target.alpha:g}"
        result.append(Decay(name, np.array(sizes, float), found, "", d, target.alpha, least, share))
    return result


def on_composition(
    folder: Path, progress: bool, inner: int, *, d_in: int, sizes: Sequence[int], seeds: Sequence[int], **network: float
) -> tuple[Course, Course]:
    """Fit networks and the kernels that cross-validation chooses to compositions; return the courses of both.

    With ``inner`` = ``d_in`` nothing small is hidden; h is then slower, so that its argument varies as with inner = 1.
    """
    deep, kernel = np.empty((2, len(seeds), len(sizes)))
    chosen: set[str] = set()
    edges = 0
    frequency = 2.0 / d_in**0.5 if inner == d_in else 2.0
    for row, seed in enumerate(seeds):
        task = composition(max(sizes), d_in, inner=inner, seed=seed, frequency=frequency)
        for column, n in enumerate(sizes):
            part = first(task, n)
            out = folder / f"inner-{inner}-seed-{seed}-n-{n}"
            deep[row, column] = network_errors(out, progress, part, ridges=[network["ridge"]], **_shape(network))[0]
            best = select(part.x, part.y, KERNELS, ridges=RIDGES, scales=SCALES, folds=3)
            chosen.add(best.kernel)
            edges += bool(best.at_edge)
            kernel[row, column] = relative_error(best.predict(held_out(part)[0]), held_out(part)[1])
    about = f"depth {network['depth']:g}, width {network['width']:g}, ridge {network['ridge']:g}"
    return (
        Course("network", np.array(sizes, float), deep, about),
        Course(
            "kernel",
            np.array(sizes, float),
            kernel,
            f"{' or '.join(sorted(chosen))}, by cross-validation{_at_edge(edges, kernel.size)}",
        ),
    )


def on_torus_control(
    folder: Path,
    progress: bool,
    *,
    alpha: float,
    sizes: Sequence[int],
    seeds: Sequence[int],
    ridges: Sequence[float],
    depth: int,
    width: int,
    steps: int,
) -> tuple[Course, Course]:
    """Fit networks and the kernel of known rate to a target of prescribed decay on the 2-torus.

    Of the networks with several ridges the one of least *test* error counts, which favors them.
    """
    deep, kernel = np.empty((2, len(seeds), len(sizes)))
    for row, seed in enumerate(seeds):
        task = torus_map(max(sizes), 2, (alpha,), seed)
        for column, n in enumerate(sizes):
            part = first(task, n)
            out = folder / f"torus-seed-{seed}-n-{n}"
            found = network_errors(out, progress, part, ridges=ridges, depth=depth, width=width, steps=steps)
            deep[row, column] = min(found)
            model = KernelRidge(alpha=RIDGE, kernel=Matern(LENGTH, nu=SMOOTHNESS)).fit(part.x.numpy(), part.y.numpy())
            kernel[row, column] = relative_error(model.predict(held_out(part)[0].numpy()), held_out(part)[1])
    about = f"depth {depth}, width {width}, best on test samples of ridges {', '.join(f'{r:g}' for r in ridges)}"
    return (
        Course("network", np.array(sizes, float), deep, about),
        Course("kernel", np.array(sizes, float), kernel, f"Matern {SMOOTHNESS:g}, length {LENGTH:g}, ridge {RIDGE:g}"),
    )


def network_errors(
    folder: Path, progress: bool, task: Task, *, ridges: Sequence[float], depth: int, width: int, steps: int
) -> list[float]:
    """Train one network for each ridge; return relative test errors."""
    net = MLP([task.d_in, *[width] * (depth - 1), task.d_out])
    every = max(1, steps // 10)
    run = train(
        net,
        task,
        ridge=list(ridges),
        steps=steps,
        members=len(ridges),
        seed=[0] * len(ridges),
        record=every,
        out=folder,
        progress=progress,
    )
    x, y = held_out(task)
    with torch.no_grad():
        return [relative_error(run.network(i)(x.float()), y) for i in range(len(ridges))]


def first(task: Task, n: int) -> Task:
    """Return the task with its first n training samples."""
    settings = {**task.settings, "first": n}
    return Task(task.x[:n], task.y[:n], task.x_test, task.y_test, name=task.name, settings=settings)


def _at_edge(count: int, fits: int) -> str:
    return f"; at an edge of its grid in {count} of {fits} fits" if count else ""


def _shape(network: dict[str, float]) -> dict[str, int]:
    return {name: int(network[name]) for name in ("depth", "width", "steps")}
