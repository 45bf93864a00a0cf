"""The computation of F7: test errors of kernels and of deep networks against the number of samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Matern
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from bnrank.figures.f07_kernel_rates.field import field_kernel, random_field
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.intervals import interval
from bnrank.figures.harness.training import held_out, mlp, relative_error, train_recorded
from bnrank.tasks import Task, TorusTarget, composition, torus_map
from bnrank.tasks.kernel_targets import torus_targets
from bnrank.theory.kernels import Selected, select
from bnrank.training import Run

Array = NDArray[np.float64]

SMOOTHNESS = 1.5  # nu of the Matern kernel; its eigenvalues on the d-torus go like ||m||^{-2 nu - d}
LENGTH = 2.0  # its length scale, the diameter of one circle
RIDGE = 1e-11  # there is no noise; enough for Cholesky
FIELD = 1  # alpha of the random field: its kernel is that of Laplace, and the rate N^{-1/d_in}
RIDGES = (1e-6, 1e-3, 0.1)
SCALES = (0.25, 1.0, 4.0, 16.0)
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
        Compositions and controls: inner dimensions, inputs, numbers of samples, seeds of data and networks.
    turn : int
        Number of samples up to which the error on the control of squares falls more slowly, and from which it falls
        faster.
    depth, width, ridge, steps
        Of the networks and their training.
    """

    dims: tuple[int, ...] = (1, 2, 3, 4)
    alphas: tuple[float, ...] = (2.0, 3.0)
    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 6
    n_test: int = 1000
    inners: tuple[int, ...] = (1, 2)
    d_in: int = 10
    sizes_composition: tuple[int, ...] = (100, 200, 400, 800, 1600)
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    turn: int = 800
    depth: int = 6
    width: int = 100
    ridge: float = 2e-3
    steps: int = 400


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
        """Exponents p of error ~ N^{-p}, fitted in logarithms by least squares, one for each draw.

        Errors above 1, worse than predicting the mean of y, count as 1: a network that memorizes few samples has a
        large initial error, which would inflate its exponent.
        """
        logs = np.log(np.clip(self.errors, 1e-300, 1)).T
        return np.asarray(-np.polyfit(np.log(self.sizes), logs, 1)[0])

    @property
    def middle(self) -> Array:
        """Geometric mean of the errors over draws, (sizes,)."""
        return np.asarray(np.exp(np.log(np.maximum(self.errors, 1e-300)).mean(0)))

    @property
    def exponent(self) -> tuple[float, float, float]:
        """Mean of the exponents over draws and the ends of its 95 percent interval (Student's t)."""
        return interval(self.exponents)

    def within(self, least: float, most: float) -> "Course":
        """Return the course over the numbers of samples from least to most."""
        kept = (self.sizes >= least) & (self.sizes <= most)
        return Course(self.name, self.sizes[kept], self.errors[:, kept], self.about)

    def faster(self, other: "Course") -> tuple[float, float, float]:
        """Mean and 95 percent interval of the exponents less those of another course, draw by draw."""
        return interval(self.exponents - other.exponents)


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

    With ``inner`` = d_in there is no bottleneck, but every output is a function of one sum of squares.
    """
    s = settings
    tasks = {seed: _composition(s, seed, inner) for seed in s.seeds}
    fits: list[Selected] = []

    def fit(part: Task) -> Predict:
        fits.append(select(part.x, part.y, KERNELS, ridges=RIDGES, scales=SCALES, folds=3))
        return fits[-1].predict

    deep, kernel = _compare(folder, progress, f"inner-{inner}", tasks, fit, s)
    edges = sum(bool(best.at_edge) for best in fits)
    edge = f"; at an edge of its grid in {edges} of {len(fits)} fits" if edges else ""
    chosen = " or ".join(sorted({best.kernel for best in fits}))
    return deep, replace(kernel, about=f"{chosen}, by cross-validation{edge}")


def on_field(folder: Path, progress: bool, settings: Settings) -> tuple[Course, Course]:
    """Return the courses of networks and of the best predictor on random fields, on the inputs of the compositions.

    Conditional on the samples, the mean of a Gaussian field is kernel regression with its own kernel: no method has a
    smaller expected error. Nothing is hidden in the field that a network could find.
    """
    s, length = settings, settings.d_in**0.5
    tasks = {seed: random_field(_composition(s, seed, 1), FIELD, length, seed) for seed in s.seeds}

    def fit(part: Task) -> Predict:
        model = KernelRidge(alpha=RIDGE, kernel=field_kernel(FIELD, length)).fit(part.x.numpy(), part.y.numpy())
        return lambda x: model.predict(x.numpy())

    deep, kernel = _compare(folder, progress, "field", tasks, fit, s)
    return deep, replace(kernel, about=f"Laplace, length {length:.3g}, that of the field")


def _composition(s: Settings, seed: int, inner: int) -> Task:
    frequency = 2.0 / inner**0.5  # so that the argument of every cosine varies as much for every inner dimension
    return composition(max(s.sizes_composition), s.d_in, inner=inner, seed=seed, frequency=frequency)


def _compare(
    folder: Path, progress: bool, name: str, tasks: Mapping[int, Task], fit: Fit, s: Settings
) -> tuple[Course, Course]:
    """Return the courses of networks and of a kernel, over sizes; a seed is that of the task and of the network."""
    sizes = np.array(s.sizes_composition, float)
    deep, kernel = np.empty((2, len(tasks), len(sizes)))
    each = [(seed, first(task, n)) for seed, task in tasks.items() for n in s.sizes_composition]
    ahead([partial(_network, part, folder, name, s, seed, False) for seed, part in each], progress)
    for row, (seed, task) in enumerate(tasks.items()):
        x, y = held_out(task)
        for column, n in enumerate(s.sizes_composition):
            part = first(task, n)
            run = _network(part, folder, name, s, seed, progress)
            with torch.no_grad():
                deep[row, column] = relative_error(run.network()(x.float()), y)
            kernel[row, column] = relative_error(fit(part)(x), y)
    about = f"depth {s.depth}, width {s.width}, ridge {s.ridge:g}"
    return Course("network", sizes, deep, about), Course("kernel", sizes, kernel)


def _network(part: Task, folder: Path, name: str, s: Settings, seed: int, progress: bool) -> Run:
    """Return the run of a network on the first samples of a task."""
    net, out = mlp(part, s.depth, s.width), folder / f"{name}-seed-{seed}-n-{part.n}"
    return train_recorded(net, part, out, progress, steps=s.steps, records=10, ridge=s.ridge, seed=seed)


def first(task: Task, n: int) -> Task:
    """Return the task with its first n training samples."""
    settings = {**task.settings, "first": n}
    return Task(task.x[:n], task.y[:n], task.x_test, task.y_test, name=task.name, settings=settings)
