"""The minima that trainings from several seeds end in: how many differ, their ranks and losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bnrank
from benchmarks.finished import finish

SAME_LOSS = 1e-7  # relative difference of losses of one minimum
SAME_FUNCTION = 1e-5  # relative difference of its outputs
NEAR_ONE = 0.5  # singular values of the weights above this count: in a bottleneck they are near 1 or small
RANK_RTOL = 1e-4  # singular values of Jacobians below this times the largest do not count
PROBES = 500  # inputs on which functions are compared, beside the samples
FIELDS = ("seed", "before", "loss", "residual", "kind", "rank", "jacobian", "live", "kinks")
SKETCH = 16  # random projections of the outputs that are stored, enough to tell functions apart


@dataclass(frozen=True)
class End:
    """Where the training from one seed ended.

    Attributes
    ----------
    seed : int
        The seed.
    before, loss : float
        C + lambda ||theta||^2 of the trained and of the finished network.
    residual : float
        Its relative gradient.
    kind : str
        The kind of point.
    rank : int
        The rank of the bottleneck: the smallest number of singular values above 0.5 of a weight matrix.
    jacobian : int
        The largest rank of the Jacobian over the samples.
    live : tuple of int
        Live neurons per hidden layer.
    kinks : int
        Number of kinks.
    outputs : Tensor
        At the samples and at random inputs, (n, d_out), or random projections of them.
    numbers : dict
        All that is stored of the finished network.
    """

    seed: int
    before: float
    loss: float
    residual: float
    kind: str
    rank: int
    jacobian: int
    live: tuple[int, ...]
    kinks: int
    outputs: Tensor
    numbers: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return what is stored: all but the outputs, of which there are projections."""
        generator = torch.Generator().manual_seed(0)
        flat = self.outputs.double().flatten()
        directions = torch.randn(SKETCH, len(flat), generator=generator, dtype=torch.float64)
        sketch = (directions @ flat / len(flat) ** 0.5).tolist()
        own = {name: getattr(self, name) for name in FIELDS}
        return own | self.numbers | {"sketch": [float(f"{value:.10g}") for value in sketch]}

    @classmethod
    def of(cls, row: dict[str, Any]) -> "End":
        """Return the end of a row that was stored."""
        outputs = torch.tensor(row["sketch"], dtype=torch.float64)
        known = {name: row[name] for name in FIELDS}
        return cls(**known | {"live": tuple(row["live"])}, outputs=outputs, numbers=row)


def problem() -> tuple[bnrank.Task, bnrank.MLP, float]:
    """Return the problem: a map of rank 2 from 4 to 4 dimensions at 40 samples, depth 6, width 6."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=3, rank=2, width=12, seed=0)
    return task, bnrank.MLP([4, 6, 6, 6, 6, 6, 4]), 1e-2


def end(task: bnrank.Task, net: bnrank.MLP, ridge: float, seed: int, max_minutes: float | None = None) -> End:
    """Return where the training from a seed ends."""
    run = bnrank.train(net, task, ridge=ridge, steps=1000, seed=seed, progress=False)
    done, numbers = finish(run.network(0), task, ridge, max_minutes)
    at = done.stationarity
    ranks = [int((torch.linalg.svdvals(w.detach()) > NEAR_ONE).sum()) for w in done.network.weights]
    x = task.x.double()
    scale, generator = x.std(0), torch.Generator().manual_seed(0)
    random = torch.randn(PROBES, x.shape[1], generator=generator, dtype=torch.float64) * scale + x.mean(0)
    with torch.no_grad():
        outputs = done.network(torch.cat([x, random]))
    jacobian = bnrank.Jacobian(done.network, x, kink_rtol=None).rank(RANK_RTOL).rank
    return End(
        *(seed, done.loss_before, done.loss, at.residual, at.kind, min(ranks)),
        *(jacobian, at.live, len(at.slopes), outputs, numbers),
    )


def distinct(ends: Sequence[End]) -> list[list[End]]:
    """Return groups of ends of the same loss and function, up to rounding, the lowest loss first."""
    groups: list[list[End]] = []
    for one in sorted(ends, key=lambda e: e.loss):
        for group in groups:
            first = group[0]
            close = abs(one.loss - first.loss) <= SAME_LOSS * first.loss
            if close and float((one.outputs - first.outputs).norm()) <= SAME_FUNCTION * float(first.outputs.norm()):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def table(groups: Sequence[Sequence[End]]) -> str:
    """Return a Markdown table, one row per minimum."""
    lines = ["| loss | seeds | rank | Jacobian rank | live neurons | kinks | kind |", f"|{' --- |' * 7}"]
    for group in groups:
        at, kinds = group[0], sorted({e.kind for e in group})
        live = ", ".join(str(n) for n in at.live)
        cells = f"{at.loss:.8f}", len(group), at.rank, at.jacobian, live, at.kinks, "; ".join(kinds)
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of stored ends, and how many points differ."""
    ends = [End.of(row) for row in rows]
    groups = distinct(ends)
    worst = max(one.residual for one in ends)
    said = f"{len(groups)} different points of {len(ends)} seeds, with relative gradients of at most {worst:.0e}."
    return f"{table(groups)}\n\n{said}"


def draw(groups: Sequence[Sequence[End]], path: Path) -> None:
    """Write a picture: the losses of all seeds, trained and finished, by minimum and rank, up to twice the lowest."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
    far = [group for group in groups if group[0].loss > 2 * groups[0][0].loss]
    groups = [group for group in groups if group[0].loss <= 2 * groups[0][0].loss]
    ranks = sorted({group[0].rank for group in groups})
    colors = dict(zip(ranks, plt.get_cmap("viridis")(np.linspace(0.1, 0.85, len(ranks))), strict=True))
    position = 0
    for group in groups:
        places = np.arange(position, position + len(group))
        position += len(group)
        axes.scatter(places, [e.before for e in group], marker="_", color="0.6", s=60)
        axes.plot(places, [e.loss for e in group], "o-", color=colors[group[0].rank], ms=6)
    axes.scatter([], [], marker="_", color="0.6", s=60, label="trained, 1,000 evaluations")
    for rank in ranks:
        axes.plot([], [], "o-", color=colors[rank], label=f"finished, rank {rank}")
    above = ", ".join(f"{len(group)} of rank {group[0].rank} at {group[0].loss:.3g}" for group in far)
    axes.set_xlabel("seeds, by final loss; connected points are one minimum" + (f"; not shown: {above}" if far else ""))
    axes.set_ylabel("C + λ‖θ‖²")
    axes.set_xticks([])
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(
    first: int, last: int, max_minutes: float, picture: Path | None, append: Callable[[dict[str, Any]], None]
) -> None:
    """Print and append where the trainings from seeds end, print the distinct minima, and draw them."""
    task, net, ridge = problem()
    ends = []
    for seed in range(first, last):
        ends.append(end(task, net, ridge, seed, max_minutes))
        at = ends[-1]
        append(at.row())
        print(
            f"seed {seed}: loss {at.before:.8f} -> {at.loss:.10f}, relative gradient {at.residual:.1e}, "
            f"rank {at.rank}, Jacobian rank {at.jacobian}, live {list(at.live)}, {at.kinks} kinks, {at.kind}",
            flush=True,
        )
    groups = distinct(ends)
    print(f"\n{len(groups)} distinct points of {len(ends)} seeds\n\n{table(groups)}")
    if picture is not None:
        draw(groups, picture)
