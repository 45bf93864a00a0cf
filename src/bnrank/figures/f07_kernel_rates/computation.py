"""The computation of F7: test errors of kernels and of deep networks against the number of samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Matern
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from bnrank.figures.harness.intervals import interval
from bnrank.figures.harness.training import held_out, mlp, relative_error, train_recorded
from bnrank.tasks import Task, TorusTarget, composition, torus_map
from bnrank.tasks.kernel_targets import torus_targets
from bnrank.theory.kernels import Selected, select

Array = NDArray[np.float64]

SMOOTHNESS = 1.5  # nu of the Matern kernel; its eigenvalues on the d-torus go like ||m||^{-2 nu - d}
LENGTH = 2.0  # its length scale, the diameter of one circle
RIDGE = 1e-11  # there is no noise; enough for Cholesky
RIDGES = (1e-6, 1e-3, 0.1, 1.0)
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
KERNELS = ("rbf", "laplace")
Predict = Callable[[Tensor], Any]
Fit = Callable[[Task], Predict]


@dataclass(frozen=True)
class Settings:
    """Settings of F7.

    Attributes
    ----------
    dims, alphas, sizes, draws, n_test
        Targets of prescribed decay: dimensions, exponents, numbers of samples, draws, test samples.
    inners, d_in, sizes_composition, seeds
        Compositions: inner dimensions, inputs, numbers of samples, seeds.
    depth, width, ridge, steps
        Of the networks and their training.
    ridges_control : tuple of float
        Of the networks on the torus.
    """

    dims: tuple[int, ...] = (1, 2, 3, 4)
    alphas: tuple[float, ...] = (2.0, 3.0)
    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 6
    n_test: int = 1000
    inners: tuple[int, ...] = (1, 2)
    d_in: int = 10
    sizes_composition: tuple[int, ...] = (100, 400, 800, 1600)
    seeds: tuple[int, ...] = (10, 11, 12)
    depth: int = 6
    width: int = 100
    ridge: float = 2e-3
    steps: int = 600
    ridges_control: tuple[float, ...] = (1e-4, 1e-5)


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
        Settings of the method.
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
    tail : ndarray
        Sum of |beta_k|^2 over k > N, (sizes,): the error predicted by the source.
    missing : float
        Part of the target beyond the cutoff over ``tail`` at the largest N.
    """

    d: int = 1
    alpha: float = 1.0
    tail: Array | None = None
    missing: float = 0.0

    @property
    def expected(self) -> float:
        """The predicted exponent, alpha / d."""
        return self.alpha / self.d


def decay_courses(
    d: int, alphas: Sequence[float], sizes: Sequence[int], draws: Sequence[int], n_test: int
) -> list[Decay]:
    """Return the courses of kernel ridge regression on targets on the d-torus, one for each alpha."""
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
        tail = np.array([target.beyond(n) for n in sizes])
        share = float(target.missing / tail[-1])
        name = f"d = {d}, alpha = {target.alpha:g}"
        result.append(Decay(name, np.array(sizes, float), found, "", d, target.alpha, tail, share))
    return result


def on_composition(folder: Path, progress: bool, inner: int, settings: Settings) -> tuple[Course, Course]:
    """Return the courses of networks and of cross-validated kernels on compositions of an inner dimension.

    With ``inner`` = d_in there is no bottleneck; h then has a lower frequency, so that its argument varies as much as
    with inner = 1.
    """
    s, largest = settings, max(settings.sizes_composition)
    frequency = 2.0 / s.d_in**0.5 if inner == s.d_in else 2.0
    tasks = {seed: composition(largest, s.d_in, inner=inner, seed=seed, frequency=frequency) for seed in s.seeds}
    fits: list[Selected] = []

    def fit(part: Task) -> Predict:
        fits.append(select(part.x, part.y, KERNELS, ridges=RIDGES, scales=SCALES, folds=3))
        return fits[-1].predict

    deep, kernel = _compare(folder, progress, f"inner-{inner}", tasks, fit, s, [s.ridge])
    edges = sum(bool(best.at_edge) for best in fits)
    edge = f"; at an edge of its grid in {edges} of {len(fits)} fits" if edges else ""
    chosen = " or ".join(sorted({best.kernel for best in fits}))
    about = f"depth {s.depth}, width {s.width}, ridge {s.ridge:g}"
    return replace(deep, about=about), replace(kernel, about=f"{chosen}, by cross-validation{edge}")


def on_torus_control(folder: Path, progress: bool, settings: Settings) -> tuple[Course, Course]:
    """Return the courses of networks and of the kernel of known rate on a target of prescribed decay on the 2-torus.

    Among networks with several ridges, the one with the lowest *test* error counts, which favors the networks.
    """
    s = settings
    tasks = {seed: torus_map(max(s.sizes_composition), 2, s.alphas[:1], seed) for seed in s.seeds[:1]}

    def fit(part: Task) -> Predict:
        model = KernelRidge(alpha=RIDGE, kernel=Matern(LENGTH, nu=SMOOTHNESS)).fit(part.x.numpy(), part.y.numpy())
        return lambda x: model.predict(x.numpy())

    deep, kernel = _compare(folder, progress, "torus", tasks, fit, s, s.ridges_control)
    ridges = ", ".join(f"{ridge:g}" for ridge in s.ridges_control)
    about = f"depth {s.depth}, width {s.width}, best on test samples of ridges {ridges}"
    return replace(deep, about=about), replace(
        kernel, about=f"Matern {SMOOTHNESS:g}, length {LENGTH:g}, ridge {RIDGE:g}"
    )


def _compare(
    folder: Path, progress: bool, name: str, tasks: Mapping[int, Task], fit: Fit, s: Settings, ridges: Sequence[float]
) -> tuple[Course, Course]:
    """Return the courses of networks (best over the given ridges) and of a kernel, over the sizes of the tasks."""
    sizes = s.sizes_composition
    deep, kernel = np.empty((2, len(tasks), len(sizes)))
    members: dict[str, Any] = {"ridge": list(ridges), "members": len(ridges), "seed": [0] * len(ridges)}
    for row, (seed, task) in enumerate(tasks.items()):
        x, y = held_out(task)
        for column, n in enumerate(sizes):
            part, out = first(task, n), folder / f"{name}-seed-{seed}-n-{n}"
            net = mlp(part, s.depth, s.width)
            run = train_recorded(net, part, out, progress, steps=s.steps, records=10, **members)
            with torch.no_grad():
                deep[row, column] = min(relative_error(run.network(i)(x.float()), y) for i in range(len(ridges)))
            kernel[row, column] = relative_error(fit(part)(x), y)
    return Course("network", np.array(sizes, float), deep), Course("kernel", np.array(sizes, float), kernel)


def first(task: Task, n: int) -> Task:
    """Return the task with its first n training samples."""
    settings = {**task.settings, "first": n}
    return Task(task.x[:n], task.y[:n], task.x_test, task.y_test, name=task.name, settings=settings)
