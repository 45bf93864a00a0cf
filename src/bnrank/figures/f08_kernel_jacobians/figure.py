"""F8 (Jacot2023a, appendix D.1): Jacobians of kernel ridge regression have full rank, those of the network rank k."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import linalg
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, at_least, below, equals, prefixed
from bnrank.figures.harness.drawing import color, label, panels
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import held_out, mlp, relative_error, train_recorded
from bnrank.measures.jacobian import Jacobian
from bnrank.reporting import Section
from bnrank.tasks import Task, low_rank_map
from bnrank.theory.kernels import jacobian_ranks, select
from bnrank.training import Run

RTOL = 1e-10  # of a kernel's singular values that count, relative to the largest
GAP = 20  # s_k / s_{k+1} of a network that has rank k, as in F1
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
NETWORK = "network"
TITLES = {"rbf": "Gaussian kernel", "laplace": "Laplace kernel", "matern32": "Matern kernel, 3/2"}


@dataclass(frozen=True)
class Settings:
    """Settings of F8: rank of the task, networks, deviations of the noise in y, kernels, points of Jacobians."""

    rank: int = 4
    depth: int = 13
    width: int = 100
    samples: int = 500
    steps: int = 800
    noises: tuple[float, ...] = (0.0, 0.1)
    kernels: tuple[str, ...] = ("rbf", "laplace")
    points: int = 50


@dataclass(frozen=True)
class Predictor:
    """A network or kernel fitted to F1's data, and its Jacobians.

    Attributes
    ----------
    name : str
        "network" or the kernel's.
    noise : float
        Standard deviation of the noise in every entry of y.
    values : ndarray
        Singular values of the Jacobian, (points, min(d_in, d_out)), descending.
    expected : int
        The predicted rank: that of the task for the network, T16's for a kernel.
    error, cost : float
        Mean of ||f(x) - y||^2 over that of ||y - mean||^2, on test samples without noise and on the training samples.
    about : str
        Settings of the fit.
    """

    name: str
    noise: float
    values: NDArray[np.float64]
    expected: int
    error: float
    cost: float
    about: str

    @property
    def ranks(self) -> NDArray[np.int_]:
        """Number of singular values above 1e-10 of the largest, (points,)."""
        return np.asarray(linalg.rank(self.values, RTOL))

    def gaps(self, rank: int) -> NDArray[np.float64]:
        """s_k / s_{k+1}, (points,); s_{k+1} is at least 1e-16 s_1, since smaller values are round-off."""
        floor = 1e-16 * self.values[:, 0]
        return np.asarray(self.values[:, rank - 1] / np.maximum(self.values[:, rank], floor))

    @property
    def effective(self) -> float:
        """Participation ratio (sum s^2)^2 / sum s^4, median over points: the rank if all nonzero values were equal."""
        return float(np.median(linalg.effective_rank(self.values**2)))

    def beyond(self, rank: int) -> float:
        """Share of ||Jf||_F^2 in the singular values after the k-th, median over points."""
        squares = self.values**2
        return float(np.median(squares[:, rank:].sum(1) / squares.sum(1)))


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Fit kernels and a network to F1's data without and with noise in y, and take Jacobians at test inputs."""
    s, rank = settings, settings.rank
    fitted = []
    ahead([partial(_trained, s, noise, folder, False) for noise in s.noises], progress)
    for noise in s.noises:
        task, run = _trained(s, noise, folder, progress)
        fitted.append(_network(run, task, noise, s))
        fitted += [_kernel(task, noise, kernel, held_out(task)[0][: s.points]) for kernel in s.kernels]
    text = (
        "Jacobians at test inputs. Ridge and length scale of the kernels are chosen by five-fold cross-validation. "
        "Numerically full rank says little by itself: the participation ratio is (sum s^2)^2 / sum s^4, and the share "
        f"beyond k = {rank} that of ||Jf||_F^2 in s_{rank + 1}, s_{rank + 2}, ..."
    )
    section = Section("Fits", text=text, rows=[_row(p, rank) for p in fitted])
    captions = {"jacobian-spectra": "Singular values of Jf at test inputs: median and range over the inputs."}
    pictures = {"jacobian-spectra": draw(fitted, rank)}
    return Outcome(claims=claims(fitted, rank), sections=(section,), pictures=pictures, captions=captions)


def _trained(settings: Settings, noise: float, folder: Path, progress: bool) -> tuple[Task, Run]:
    s = settings
    task = low_rank_map(s.samples, 50, 50, latent=15, rank=s.rank, width=100, noise=noise, n_test=500)
    net, out = mlp(task, s.depth, s.width), folder / f"noise-{noise:g}"
    return task, train_recorded(net, task, out, progress, ridge=0.05 / s.depth, steps=s.steps, seed=0)


def _network(run: Run, task: Task, noise: float, settings: Settings) -> Predictor:
    s, ridge = settings, 0.05 / settings.depth
    trained, (x, y) = run.network(), held_out(task)
    with torch.no_grad():
        error, cost = relative_error(trained(x), y), relative_error(trained(task.x), task.y)
    values = Jacobian(trained, x[: s.points]).singular_values.double().numpy()
    about = f"depth {s.depth}, width {s.width}, ridge {ridge:.3g}"
    return Predictor(NETWORK, noise, values, s.rank, error, cost, about)


def _kernel(task: Task, noise: float, kernel: str, places: Tensor) -> Predictor:
    best = select(task.x, task.y, [kernel], ridges=RIDGES, scales=SCALES, center=False)
    found = jacobian_ranks(task.x, task.y, kernel, best.ridge, length_scale=best.length_scale, points=places, rtol=RTOL)
    x, y = held_out(task)
    error, cost = relative_error(best.predict(x), y), relative_error(best.predict(task.x), task.y)
    edge = f", at the edge of the grid: {' and '.join(best.at_edge)}" if best.at_edge else ""
    about = f"length scale {best.length_scale:.3g}, ridge {best.ridge:g}{edge}"
    return Predictor(kernel, noise, found.singular_values.numpy(), int(found.expected.max()), error, cost, about)


def claims(fitted: Sequence[Predictor], rank: int) -> tuple[Claim, ...]:
    """Return the claims of T16 on the kernels and of F1 on the network, without noise and with it."""
    result: list[Claim] = []
    ratio = f"s_{rank} / s_{rank + 1}"
    for noise in dict.fromkeys(p.noise for p in fitted):
        networks = [p for p in fitted if p.noise == noise and p.name == NETWORK]
        kernels = [p for p in fitted if p.noise == noise and p.name != NETWORK]
        full = min(p.expected for p in kernels)
        deficit = min(int(p.ranks.min() - p.expected) for p in kernels)
        gap = min(float(p.gaps(rank).min()) for p in networks)
        none = max(float(np.median(p.gaps(rank))) for p in kernels)
        error = max(p.error for p in networks) / min(p.error for p in kernels)
        these = (
            equals(f"kernels' smallest rank over points, less T16's min(rank X, rank Y) = {full}", deficit, 0),
            at_least(f"network's {ratio}, smallest over points", gap, GAP),
            below(f"no such gap in kernels: {ratio}, median over points, largest of the kernels", none, GAP),
            below("test error of the network over that of the best kernel (not in the source)", error, 1),
        )
        result += prefixed(f"noise {noise:g} in y" if noise else "no noise", these)
    return tuple(result)


def draw(fitted: Sequence[Predictor], rank: int) -> Picture:
    """Draw the spectra: all values on a logarithmic axis, and the first ones on a linear one."""
    noises = list(dict.fromkeys(p.noise for p in fitted))
    picture, rows = panels(2, len(noises), (5.6 * len(noises), 7.6), sharey="row")
    for top, bottom, noise in zip(*rows, noises, strict=True):
        here = [p for p in fitted if p.noise == noise]
        for i, p in enumerate(here):
            shares = np.maximum(p.values / p.values[:, :1], 1e-17)
            index = np.arange(1, shares.shape[1] + 1)
            name = f"network of depth {p.about.split()[1].rstrip(',')}" if p.name == NETWORK else TITLES.get(p.name)
            for ax, last in ((top, len(index)), (bottom, 15)):
                j, band, middle = index[:last], shares[:, :last], np.median(shares, 0)[:last]
                mark = "o" if ax is bottom or p.name == NETWORK else None
                ax.fill_between(j, band.min(0), band.max(0), color=color(i), alpha=0.18, lw=0)
                ax.plot(j, middle, color=color(i), lw=2.0, marker=mark, markersize=4, label=name or p.name)
        for ax in (top, bottom):
            ax.axvline(rank + 0.5, color="0.4", linestyle=":", linewidth=1.3)
        what = f"noise of deviation {noise:g} in y" if noise else "no noise in y"
        label(top, "", "", f"All singular values; {what}", log="y", ylim=(1e-17, 3))
        label(bottom, "index j", "", f"The first 15; dotted: after k = {rank}", ylim=(0, 1.05))
        top.axhspan(1e-17, 1e-15, color="0.88", zorder=0)
        top.text(49, 1.6e-16, "rounding", ha="right", va="center", fontsize=9, color="0.3")
    for row in rows:
        row[0].set_ylabel(r"$s_j(Jf)\,/\,s_1(Jf)$ at test inputs")
    rows[1][-1].legend(frameon=False, fontsize=9.5, loc="upper right")
    return picture


def _row(p: Predictor, rank: int) -> dict[str, object]:
    return {
        "noise in y": p.noise,
        "fit": p.name,
        "with": p.about,
        "rank expected": p.expected,
        f"rank at {RTOL:g}, smallest": int(p.ranks.min()),
        "largest": int(p.ranks.max()),
        f"s_{rank}/s_{rank + 1}, median": float(np.median(p.gaps(rank))),
        "s_last/s_1, median": float(np.median(p.values[:, -1] / p.values[:, 0])),
        "participation ratio": p.effective,
        f"share beyond {rank}": p.beyond(rank),
        "relative test error": p.error,
        "relative training error": p.cost,
    }


FIGURE = Figure(
    "F8",
    "kernel-jacobians",
    "Kernel ridge regression uses every input dimension, a deep network as many as the task has",
    "Jacot2023a, appendix D.1, on the data of Figure 1",
    "Jacobians of kernel ridge regression of full rank min(d_in, d_out) almost everywhere, those of the network of "
    "rank k",
    {"quick": Settings(), "paper": Settings(steps=10_000, kernels=("rbf", "laplace", "matern32"), points=500)},
    make,
    gigabytes={"quick": 0.6, "paper": 0.8},
)
