"""Minima of F4's problem followed in the depth: R0, R1 and R2 of the norm, and which statements say something.

From a finished network, layers that are the identity on the narrowest hidden layer are inserted behind it, which
leaves the function unchanged, and the deeper network is finished. So the minima of all depths belong to one branch:
trained anew at every depth, they would differ by the basins that the trainings end in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnrank
from benchmarks.against.trials import markdown
from benchmarks.finished import finish
from benchmarks.landscape import NEAR_ONE
from bnrank.figures.f04_norm_and_depth.figure import RANK, RIDGE, Settings
from bnrank.figures.harness.training import mlp
from bnrank.theory import cost

STATEMENTS = ("T13", "T14", "T15", "T21", "T22", "T23", "T24", "T25", "T26")
FIELDS = ("depth", "loss", "norm", "residual", "kind", "ranks", "middle")
FITTED = 4  # depths that an expansion needs
LIVE = 1e-9  # activations at or below this are those of dead neurons


@dataclass(frozen=True)
class Minimum:
    """A finished network of one depth.

    Attributes
    ----------
    depth : int
        L.
    loss, norm : float
        C + lambda ||theta||^2, and ||theta||^2.
    residual : float
        Relative gradient.
    kind : str
        Kind of point.
    ranks : tuple of int
        Numbers of singular values above 0.5, by layer.
    middle : tuple of float
        The largest singular values of the middle weight.
    net : bnrank.MLP or None
        The network; None where it was not stored.
    numbers : dict
        All that is stored of the finished network.
    """

    depth: int
    loss: float
    norm: float
    residual: float
    kind: str
    ranks: tuple[int, ...]
    middle: tuple[float, ...]
    net: bnrank.MLP | None
    numbers: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return what is stored: all but the network."""
        return {name: getattr(self, name) for name in FIELDS} | self.numbers

    @classmethod
    def of(cls, row: dict[str, Any]) -> Minimum:
        """Return the minimum of a row that was stored."""
        known = {name: row[name] for name in FIELDS}
        return cls(**known | {"ranks": tuple(row["ranks"]), "middle": tuple(row["middle"])}, net=None, numbers=row)


def deeper(net: bnrank.MLP, x: torch.Tensor, layers: int) -> bnrank.MLP:
    """Return the same function on x with more layers: identities on the live neurons of the narrowest hidden layer."""
    weights, biases = ([p.detach().double() for p in some] for some in (net.weights, net.biases))
    value, alive = x.double(), []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        value = torch.relu(value @ weight.T + bias)
        alive.append(value.amax(0) > LIVE)
    at = min(range(len(alive)), key=lambda i: (int(alive[i].sum()), abs(2 * i + 1 - len(alive))))
    for _ in range(layers):
        weights.insert(at + 1, torch.diag(alive[at].double()))
        biases.insert(at + 1, torch.zeros(len(alive[at]), dtype=torch.float64))
    found = bnrank.MLP([weights[0].shape[1], *(len(weight) for weight in weights)]).double()
    with torch.no_grad():
        for parameter, new in zip([*found.weights, *found.biases], [*weights, *biases], strict=True):
            parameter.copy_(new)
    return found


def branch(
    task: bnrank.Task, net: bnrank.MLP, ridge: float, depths: Sequence[int], max_minutes: float | None = None
) -> Iterator[Minimum]:
    """Finish a network of the first depth, and follow the minimum through the others, which increase."""
    for depth in depths:
        net = deeper(net, task.x, depth - len(net.weights)) if depth > len(net.weights) else net
        done, numbers = finish(net, task, ridge, max_minutes, births=False)
        net = done.network
        values = [torch.linalg.svdvals(weight.detach()) for weight in net.weights]
        yield Minimum(
            *(depth, done.loss, sum(float(p.detach().square().sum()) for p in net.parameters())),
            *(done.stationarity.residual, done.stationarity.kind),
            tuple(int((some > NEAR_ONE).sum()) for some in values),
            tuple(values[depth // 2][:4].tolist()),
            net,
            numbers,
        )


def range_of_one_rank(found: Sequence[Minimum]) -> list[Minimum]:
    """Return the last minima, as long as their smallest rank is that of the deepest."""
    last = len(found)
    while last and min(found[last - 1].ranks) == min(found[-1].ranks):
        last -= 1
    return list(found[last:])


def expansions(found: Sequence[Minimum], ridge: float) -> dict[str, cost.Expansion]:
    """Return the expansions of ||theta||^2, and of (C + lambda ||theta||^2) / lambda, over depths of one rank.

    The function changes with the depth, and its norm with it; the derivative of the minimal loss in the depth is
    lambda times that of the norm for a fixed function (envelope theorem), so the second is closer to R(f; L).
    """
    depths = [one.depth for one in found]
    return {
        "norm": cost.expand(depths, [one.norm for one in found]),
        "loss / lambda": cost.expand(depths, [one.loss / ridge for one in found]),
    }


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of the expansions of stored branches, a row per seed, and how many points are stationary."""
    rows = [row for row in rows if "id" not in row]
    lines, every = [], sorted({row["depth"] for row in rows})
    for seed in dict.fromkeys(row["seed"] for row in rows):
        some = range_of_one_rank([Minimum.of(row) for row in rows if row["seed"] == seed])
        cells = ["–"] * 6
        if len(some) >= FITTED:
            found = expansions(some, RIDGE).values()
            intervals = [f"{one.R0:.3f} [{one.R0_interval[0]:.3f}, {one.R0_interval[1]:.3f}]" for one in found]
            further = [[f"{one.R1:.1f}", f"{one.R2:.1f}"] for one in found]
            cells = [intervals[0], *further[0], intervals[1], *further[1]]
        part = "" if [one.depth for one in some] == every else f" (depths {some[0].depth} to {some[-1].depth})"
        lines.append([f"{seed}{part}", *cells])
    headings = ["seed", "R0 of ‖θ‖²", "R1", "R2", "R0 of (C + λ‖θ‖²) / λ", "R1", "R2"]
    small = sum(row["residual"] < 1e-9 for row in rows)
    said = (
        f"Depths {every[0]} to {every[-1]}: {small} of {len(rows)} points have a relative gradient below 1e-9, and the "
        f"largest is {max(row['residual'] for row in rows):.0e}."
    )
    return f"{markdown(headings, lines)}\n\n{said}"


def statements(found: Minimum, task: bnrank.Task, ridge: float) -> list[dict[str, Any]]:
    """Return rows to store: what the statements about minima say at this depth; sides are None where there are none."""
    rows = []
    for one in bnrank.check(found.net, task.x, task.y, ridge, only=STATEMENTS).verdicts:
        sides = {name: None if math.isnan(side) else side for name, side in (("left", one.left), ("right", one.right))}
        rows.append({"depth": found.depth, "id": one.id, "name": one.name, "label": one.label, **sides})
    return rows


def judged(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of what the statements say of stored minima, a row per statement, and which do not apply."""
    rows = [row for row in rows if "id" in row]
    depths, lines, others = sorted({row["depth"] for row in rows}), [], []
    for of, name in dict.fromkeys((row["id"], row["name"]) for row in rows):
        own = sorted((row for row in rows if (row["id"], row["name"]) == (of, name)), key=itemgetter("depth"))
        if any(row["left"] is None for row in own):
            others.append(f"{of} ({name}): {own[0]['label']}")
            continue
        cells = [f"{row['left']:.4g} of {row['right']:.4g}" for row in own]
        lines.append([of, name, *cells, own[-1]["label"]])
    headings = [
        "id",
        "statement",
        *(f"left of right, depth {depth}" for depth in depths),
        f"verdict, depth {depths[-1]}",
    ]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    return f"{markdown(headings, lines)}\n\nSeed {seeds}. Not in the table: {'; '.join(others) or 'none'}."


def draw(branches: dict[int, list[Minimum]], ridge: float, path: Path) -> None:
    """Write a picture: singular values of the middle weight, and growth of the loss per layer, against the depth."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.6), layout="constrained")
    for number, (seed, found) in enumerate(branches.items()):
        color, depths = f"C{number}", np.array([one.depth for one in found])
        for place in range(3):
            left.plot(depths, [one.middle[place] for one in found], "o-", ms=3.5, lw=1, color=color)
        slopes = np.diff([one.loss / ridge for one in found]) / np.diff(depths)
        right.plot((depths[1:] + depths[:-1]) / 2, slopes, "o-", ms=3.5, lw=1, color=color, label=f"seed {seed}")
    left.axhline(1, color="0.6", lw=0.8)
    left.set(xlabel="depth L", ylabel="largest singular values of the middle weight", ylim=(0, None))
    right.axhline(RANK, color="0.6", lw=0.8)
    right.set(xlabel="depth L", ylabel="growth of (C + λ‖θ‖²) / λ per layer")
    right.legend(frameon=False)
    depths = np.array([one.depth for found in branches.values() for one in found])
    for axes in (left, right):
        axes.set_xticks(np.arange(depths.min(), depths.max() + 1, max(2, (depths.max() - depths.min()) // 4)))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(
    seeds: Sequence[int],
    depths: Sequence[int],
    max_minutes: float | None,
    picture: Path | None,
    append: Callable[[dict[str, Any]], None],
) -> None:
    """Follow a branch per seed of F4's networks; print and append its minima, print expansions and statements; draw."""
    of = Settings()
    task = bnrank.tasks.low_rank_map(rank=RANK, y_norm_squared=of.y_norm_squared)
    branches: dict[int, list[Minimum]] = {}
    for seed in seeds:
        run = bnrank.train(mlp(task, depths[0], of.width), task, ridge=RIDGE, steps=of.steps, seed=seed, progress=False)
        branches[seed] = []
        for one in branch(task, run.network(0), RIDGE, depths, max_minutes):
            branches[seed].append(one)
            append({"seed": seed, **one.row()})
            middle = ", ".join(f"{value:.4f}" for value in one.middle)
            print(
                f"seed {seed}, depth {one.depth}: loss {one.loss:.8f}, norm {one.norm:.5f}, relative gradient "
                f"{one.residual:.1e}, ranks {list(one.ranks)}, middle {middle}, {one.kind}",
                flush=True,
            )
        some = range_of_one_rank(branches[seed])
        if len(some) >= FITTED:
            for name, found in expansions(some, RIDGE).items():
                print(
                    f"seed {seed}, {name}, depths {some[0].depth} to {some[-1].depth}: "
                    f"R0 {found.R0:.4f} [{found.R0_interval[0]:.4f}, {found.R0_interval[1]:.4f}], "
                    f"R1 {found.R1:.3f}, R2 {found.R2:.3f}; {found.reason}",
                    flush=True,
                )
    if picture is not None:
        draw(branches, RIDGE, picture)
    said = [
        {"seed": seeds[0], **row}
        for one in (branches[seeds[0]][0], branches[seeds[0]][-1])
        for row in statements(one, task, RIDGE)
    ]
    for row in said:
        append(row)
    print(judged(said), flush=True)
