"""F8 (Jacot2023a, appendix D.1): Jacobians of kernel ridge regression have full rank, those of the network rank k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure as Picture
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core.axes import OKABE_ITO, dress
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.figures.harness.measurement import held_out, relative_error
from bnrank.measures.jacobian import Jacobian
from bnrank.networks import MLP
from bnrank.reporting import Section
from bnrank.tasks import Task, low_rank_map
from bnrank.theory.kernels import jacobian_ranks, select
from bnrank.training import train

__all__ = ["FIGURE", "Predictor", "claims", "make"]

RTOL = 1e-10  # of a kernel's singular values that count, relative to the largest
GAP = 20  # s_k / s_{k+1} of a network that has rank k, as in F1
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
NETWORK = "network"
TITLES = {"rbf": "Gaussian kernel", "laplace": "Laplace kernel", "matern32": "Matern kernel, 3/2"}


@dataclass(frozen=True)
class Predictor:
    """What was fitted to F1's data, and its Jacobians.

    Attributes
    ----------
    name : str
        "network" or the kernel's.
    noise : float
        Standard deviation of the noise in every entry of y.
    values : ndarray
        Singular values of the Jacobian, (points, min(d_in, d_out)), descending.
    expected : int
        The rank that theory gives: that of the task for the network, T16's for a kernel.
    error, cost : float
        Mean of ||f(x) - y||^2 over that of ||y - mean||^2, on test samples without noise and on the training samples.
    about : str
        What it was fitted with.
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
        return np.asarray((self.values > RTOL * self.values[:, :1]).sum(1))

    def gaps(self, rank: int) -> NDArray[np.float64]:
        """s_k / s_{k+1}, (points,); values below 1e-16 of the largest are rounding and taken as that."""
        floor = 1e-16 * self.values[:, 0]
        return np.asarray(self.values[:, rank - 1] / np.maximum(self.values[:, rank], floor))

    @property
    def effective(self) -> float:
        """Participation ratio (sum s^2)^2 / sum s^4, median over points: the rank, were all values that count equal."""
        squares = self.values**2
        return float(np.median(squares.sum(1) ** 2 / (squares**2).sum(1)))

    def beyond(self, rank: int) -> float:
        """Share of ||Jf||_F^2 in the singular values after the k-th, median over points."""
        squares = self.values**2
        return float(np.median(squares[:, rank:].sum(1) / squares.sum(1)))


def make(
    folder: Path,
    progress: bool,
    *,
    rank: int,
    depth: int,
    width: int,
    samples: int,
    steps: int,
    noises: Sequence[float],
    kernels: Sequence[str],
    points: int,
) -> Outcome:
    """Fit kernels and a network to F1's data without and with noise in y; take Jacobians at test inputs."""
    fitted = []
    for noise in noises:
        task = low_rank_map(samples, 50, 50, latent=15, rank=rank, width=100, noise=noise, n_test=500)
        places = held_out(task)[0][:points]
        fitted.append(_network(folder / f"noise-{noise:g}", progress, task, noise, depth, width, steps, places))
        fitted += [_kernel(task, noise, kernel, places) for kernel in kernels]
    text = (
        "Jacobians at test inputs. Ridge and length scale of the kernels are chosen by five-fold cross-validation. "
        "Numerically full rank says little by itself: the participation ratio is (sum s^2)^2 / sum s^4, and the share "
        f"beyond k = {rank} that of ||Jf||_F^2 in s_{rank + 1}, s_{rank + 2}, ..."
    )
    section = Section("Fits", text=text, rows=[_row(p, rank) for p in fitted])
    caption = "Singular values of Jf at test inputs: median, and least to largest over the inputs."
    pictures = {"jacobian-spectra": draw(fitted, rank)}
    return Outcome("F8", claims(fitted, rank), (section,), pictures, captions={"jacobian-spectra": caption})


def _network(
    folder: Path, progress: bool, task: Task, noise: float, depth: int, width: int, steps: int, places: Tensor
) -> Predictor:
    net = MLP([task.d_in, *[width] * (depth - 1), task.d_out])
    ridge = 0.05 / depth
    every = max(1, steps // 20)
    run = train(net, task, ridge=ridge, steps=steps, seed=0, record=every, out=folder, progress=progress)
    trained, (x, y) = run.network(), held_out(task)
    with torch.no_grad():
        error, cost = relative_error(trained(x), y), relative_error(trained(task.x), task.y)
    values = Jacobian(trained, places).singular_values.double().numpy()
    assert task.truth is not None
    return Predictor(
        NETWORK, noise, values, task.truth.rank, error, cost, f"depth {depth}, width {width}, ridge {ridge:.3g}"
    )


def _kernel(task: Task, noise: float, kernel: str, places: Tensor) -> Predictor:
    best = select(task.x, task.y, [kernel], ridges=RIDGES, scales=SCALES, center=False)
    found = jacobian_ranks(task.x, task.y, kernel, best.ridge, length_scale=best.length_scale, points=places, rtol=RTOL)
    x, y = held_out(task)
    error, cost = relative_error(best.predict(x), y), relative_error(best.predict(task.x), task.y)
    edge = f", at the edge of the grid: {' and '.join(best.at_edge)}" if best.at_edge else ""
    about = f"length scale {best.length_scale:.3g}, ridge {best.ridge:g}{edge}"
    return Predictor(kernel, noise, found.singular_values.numpy(), found.expected, error, cost, about)


def claims(fitted: Sequence[Predictor], rank: int) -> tuple[Claim, ...]:
    """Measure what T16 says of the kernels, and F1 of the network, without noise and with it."""
    result = []
    for noise in dict.fromkeys(p.noise for p in fitted):
        words = f"noise {noise:g} in y" if noise else "no noise"
        networks = [p for p in fitted if p.noise == noise and p.name == NETWORK]
        kernels = [p for p in fitted if p.noise == noise and p.name != NETWORK]
        least = min(int(p.ranks.min() - p.expected) for p in kernels)
        gap = min(float(p.gaps(rank).min()) for p in networks)
        full = min(p.expected for p in kernels)
        none = max(float(np.median(p.gaps(rank))) for p in kernels)
        ratio = max(p.error for p in networks) / min(p.error for p in kernels)
        result += [
            Claim(
                f"{words}: kernels' least rank over points, less T16's min(rank X, rank Y) = {full}",
                least == 0,
                least,
                "0",
            ),
            Claim(f"{words}: network's s_{rank} / s_{rank + 1}, least over points", gap >= GAP, gap, f">= {GAP}"),
            Claim(
                f"{words}: no such gap in kernels: s_{rank} / s_{rank + 1}, median over points, largest of the kernels",
                none < GAP,
                none,
                f"< {GAP}",
            ),
            Claim(
                f"{words}: test error of the network over that of the best kernel (not in the source)",
                ratio < 1,
                ratio,
                "< 1",
            ),
        ]
    return tuple(result)


def draw(fitted: Sequence[Predictor], rank: int) -> Picture:
    """Draw the spectra: all values on a logarithmic axis, and the first ones on a linear one."""
    noises = list(dict.fromkeys(p.noise for p in fitted))
    picture = Picture(figsize=(5.6 * len(noises), 7.6), layout="constrained")
    rows = picture.subplots(2, len(noises), squeeze=False, sharey="row")
    for above, below, noise in zip(*rows, noises, strict=True):
        here = [p for p in fitted if p.noise == noise]
        for i, p in enumerate(here):
            shares = np.maximum(p.values / p.values[:, :1], 1e-17)
            index = np.arange(1, shares.shape[1] + 1)
            label = f"network of depth {p.about.split()[1].rstrip(',')}" if p.name == NETWORK else TITLES.get(p.name)
            for ax, last in ((above, len(index)), (below, 15)):
                ax.fill_between(
                    index[:last], shares.min(0)[:last], shares.max(0)[:last], color=OKABE_ITO[i], alpha=0.18, lw=0
                )
                ax.plot(
                    index[:last],
                    np.median(shares, 0)[:last],
                    color=OKABE_ITO[i],
                    linewidth=2.0,
                    marker="o" if ax is below or p.name == NETWORK else None,
                    markersize=4,
                    label=label or p.name,
                )
        for ax in (above, below):
            ax.axvline(rank + 0.5, color="0.4", linestyle=":", linewidth=1.3)
        what = f"noise of deviation {noise:g} in y" if noise else "no noise in y"
        dress(above, "", "", f"All singular values; {what}")
        dress(below, "index j", "", f"The first 15; dotted: after k = {rank}")
        above.set_yscale("log")
        above.set_ylim(1e-17, 3)
        below.set_ylim(0, 1.05)
        above.axhspan(1e-17, 1e-15, color="0.88", zorder=0)
        above.text(49, 1.6e-16, "rounding", ha="right", va="center", fontsize=9, color="0.3")
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
        f"rank at {RTOL:g}, least": int(p.ranks.min()),
        "largest": int(p.ranks.max()),
        f"s_{rank}/s_{rank + 1}, median": float(np.median(p.gaps(rank))),
        "s_last/s_1, median": float(np.median(p.values[:, -1] / p.values[:, 0])),
        "participation ratio": p.effective,
        f"share beyond {rank}": p.beyond(rank),
        "relative test error": p.error,
        "relative training error": p.cost,
    }


_COMMON = {"rank": 4, "depth": 13, "width": 100, "samples": 500, "noises": (0.0, 0.1)}

FIGURE = Figure(
    "F8",
    "kernel-jacobians",
    "Kernel ridge regression uses every input dimension, a deep network as many as the task has",
    "Jacot2023a, appendix D.1, on the data of Figure 1",
    "Jacobians of kernel ridge regression of full rank min(d_in, d_out) almost everywhere, those of the network of "
    "rank k",
    {
        "quick": {**_COMMON, "steps": 800, "kernels": ("rbf", "laplace"), "points": 50},
        "paper": {**_COMMON, "steps": 10_000, "kernels": ("rbf", "laplace", "matern32"), "points": 500},
    },
    make,
    gigabytes={"quick": 0.6, "paper": 0.8},
)
