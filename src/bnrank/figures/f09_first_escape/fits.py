"""Part of F9: the rank of the network at each plateau, and the smallest rank that fits its loss."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnrank.figures.harness.ahead import kept
from bnrank.figures.harness.claims import Claim, is_true
from bnrank.networks import MLP
from bnrank.reporting import Section
from bnrank.tasks import Task, handwritten_digits
from bnrank.theory.rank_bounds import rank
from bnrank.training import Adam, Record, train
from bnrank.training.gradient_flow import Flow
from bnrank.training.plateaus import Plateau

SAMPLES = 500  # images on which ranks are measured
OUTPUT_RTOL = 0.01  # of the largest output: the accuracy of the factorization
RANKS = (1, 2)  # of the narrow networks
WIDTH, MEMBERS, BATCH = 50, 6, 100  # of the narrow networks
SECOND, THIRD, END = "plateau 2", "plateau 3", "end"


@dataclass(frozen=True)
class Fits:
    """The least losses of networks whose last hidden layer has k neurons.

    Attributes
    ----------
    bound : tuple of float
        For k = 0 and 1 a lower bound on the loss of any such network, and 0 for k = 2 and more, where none is known.
    found : tuple of float
        The least loss of trained networks, for the same k.
    """

    bound: tuple[float, ...]
    found: tuple[float, ...]

    def smallest(self, loss: float) -> tuple[int, float]:
        """Return bounds of the smallest k that reaches a loss: of all networks, and of those found (inf: none did)."""
        low = next(k for k, least in enumerate(self.bound) if least <= loss)
        high = next((float(k) for k, least in enumerate(self.found) if least <= loss), float("inf"))
        return low, high


@dataclass(frozen=True)
class Stage:
    """A network on a plateau or at the end: its loss and the bracket of its rank."""

    name: str
    loss: float
    lower: int
    upper: int


def one_neuron(shares: Sequence[float] | np.ndarray) -> float:
    """Return a lower bound on the cross-entropy of softmax(v z), with a z >= 0 per sample, for classes of these shares.

    All outputs of a bias-free ReLU network whose last hidden layer has one neuron are of this form. A sample of class c
    has the loss log sum_j exp(z (v_j - v_c)), at least log #{j: v_j >= v_c} for every z >= 0. The m-th largest entry
    of v counts at least m, so the mean is least if the m-th largest share goes with log m.

    Examples
    --------
    >>> round(one_neuron([0.5, 0.5]), 4)  # log(2) / 2: one class is certain, the other as likely as not
    0.3466
    """
    p = np.sort(np.asarray(shares, dtype=float))[::-1]
    return float(p @ np.log(np.arange(1, len(p) + 1)) / p.sum())


def narrow(task: Task, k: int, steps: int, width: int = WIDTH, seed: int = 0) -> float:
    """Return the least loss of networks with two wide hidden layers and then k neurons, over several starts.

    Layers of k neurons that pass on their inputs, which are not negative, make such a network as deep as wanted, of
    the same function: rank k from the third layer on.
    """
    net = MLP([task.d_in, width, width, k, task.d_out], bias=False)
    run = train(
        net,
        task,
        members=MEMBERS,
        seed=seed,
        optimizer=Adam(3e-3, schedule="cosine"),
        batch_size=min(BATCH, task.n),
        steps=steps,
        record=Record(steps, top_k=1),
        progress=False,
    )
    return float(np.nanmin(run.history["cost"].values[:, -1]))


def least(images: int | None, k: int, steps: int, folder: Path) -> float:
    """Return `narrow` on handwritten digits, kept in a folder."""
    return float(kept(folder / f"narrow-{k}.json", lambda: narrow(handwritten_digits(images), k, steps)))


def calls(images: int | None, steps: int, folder: Path) -> list[Callable[[], float]]:
    """Return the calls of `least` for every rank."""
    return [partial(least, images, k, steps, folder) for k in RANKS]


def fits(task: Task, steps: int, folder: Path, images: int | None) -> Fits:
    """Return lower bounds and the least losses found of rank 0, 1 and 2 on the images of a task."""
    shares = np.bincount(task.y.numpy(), minlength=task.d_out) / task.n
    zero = float(np.log(task.d_out))
    return Fits((zero, one_neuron(shares), 0.0), (zero, *(call() for call in calls(images, steps, folder))))


def stages(flow: Flow, found: Sequence[Plateau], task: Task) -> list[Stage]:
    """Return the networks stored nearest to the middle of each plateau that is left, and the last one."""
    rows = np.array(flow.network_rows)
    result = []
    for name, first, last in [
        *((f"plateau {p.number}", p.begin_row, p.end_row) for p in found if p.left),
        (END, -1, -1),
    ]:
        nearest = -1 if name == END else int(np.abs(rows - (first + last) / 2).argmin())
        if name == END or first <= rows[nearest] <= last:
            net = flow.networks[nearest]
            bracket = rank(net, task.x[:SAMPLES], output_rtol=OUTPUT_RTOL)
            result.append(Stage(name, whole_loss(net, task), bracket.lower, bracket.upper))
    return result


def whole_loss(net: Any, task: Task, size: int = 2000) -> float:
    """Return the cross-entropy of a network on all images, in blocks."""
    total, dtype = 0.0, next(net.parameters()).dtype
    with torch.no_grad():
        for x, y in zip(task.x.split(size), task.y.split(size), strict=True):
            total += float(torch.nn.functional.cross_entropy(net(x.to(dtype)), y, reduction="sum"))
    return total / task.n


def claims(networks: Iterable[Sequence[Stage]], fitted: Fits) -> tuple[Claim, ...]:
    """Return the claims that every network has the smallest rank that fits: 1, then 2, and 2 or more at the end.

    Not every network has a third plateau; those that have one need rank 2 there, and at least one must have one.
    """
    every = [{stage.name: stage for stage in stages} for stages in networks]
    second = [stages[SECOND] for stages in every if SECOND in stages]
    third = [stages[THIRD] for stages in every if THIRD in stages]
    last = [stages[END] for stages in every]

    def all_of(
        name: str, stages: Sequence[Stage], passed: Sequence[bool], shown: Sequence[object], wanted: str
    ) -> Claim:
        every_one = len(stages) == len(every) and all(passed)
        return is_true(name, every_one, ", ".join(map(str, shown)) or "none", wanted)

    at_second, at_end = ([fitted.smallest(stage.loss) for stage in stages] for stages in (second, last))
    return (
        all_of(
            "rank of the networks on the second plateau",
            second,
            [(stage.lower, stage.upper) == (1, 1) for stage in second],
            [f"{stage.lower} to {stage.upper}" for stage in second],
            "1",
        ),
        all_of(
            "the smallest rank that fits the loss there",
            second,
            [fit == (1, 1) for fit in at_second],
            [f"{low} to {high:.0f}" for low, high in at_second],
            "1",
        ),
        is_true(
            "rank of the networks on a third plateau, where there is one",
            third and all((stage.lower, stage.upper) == (2, 2) for stage in third),
            ", ".join(f"{stage.lower} to {stage.upper}" for stage in third) or "none",
            "2",
        ),
        all_of(
            "the smallest rank that fits the loss at the end",
            last,
            [low >= 2 for low, _ in at_end],
            [f"at least {low}" for low, _ in at_end],
            "2 or more",
        ),
        all_of(
            "rank of the networks at the end",
            last,
            [stage.lower >= 2 for stage in last],
            [f"{stage.lower} to {stage.upper}" for stage in last],
            "2 or more",
        ),
    )


def section(networks: Mapping[int, Sequence[Stage]], fitted: Fits) -> Section:
    """Return the table of ranks: a row per network and plateau."""
    table: list[dict[str, object]] = []
    for seed, stages in networks.items():
        for stage in stages:
            low, high = fitted.smallest(stage.loss)
            fit = f"{low} to {high:.0f}" if np.isfinite(high) else f"at least {low}"
            row = {"seed": seed, "network": stage.name, "loss": stage.loss, "rank": f"{stage.lower} to {stage.upper}"}
            table.append({**row, "smallest rank with this loss": fit})
    text = (
        f"The rank is that of a function that agrees with the network to {OUTPUT_RTOL:.0%} of its largest output on "
        f"{SAMPLES} images. The smallest rank is that of networks whose last hidden layer has k neurons. With k = 1 "
        f"their loss is at least {fitted.bound[1]:.4g} (proved), and {fitted.found[1]:.4g} was reached; "
        f"with k = 2, {fitted.found[2]:.4g}; with k = 0 it is {fitted.bound[0]:.4g}."
    )
    return Section("Rank at the plateaus", text=text, rows=table)
