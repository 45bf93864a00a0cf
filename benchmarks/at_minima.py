"""Verdicts of the statements about local minima on finished networks, as a section of docs/verdicts.md."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import bnrank
from bnrank.theory.verdicts import Verdict

IDS = ("T13", "T14", "T15", "T21", "T22", "T23", "T24", "T25", "T26", "T50")
PROBLEMS = ((4, 1), (4, 2), (6, 1), (6, 2), (8, 1), (8, 2), (12, 1))  # depths and planted ranks
WIDTH, N, RIDGE = 6, 30, 0.04  # the ridge is divided by the depth
HEADING, NEXT = "## At real minima", "## The statements"


@dataclass(frozen=True)
class Checked:
    """A finished network and the verdicts on it.

    Attributes
    ----------
    depth, rank : int
        Depth and planted rank.
    done : Finished
        The finished network.
    verdicts : tuple of Verdict
        Those of the statements about minima.
    seconds : float
        Processor time of training and finishing.
    """

    depth: int
    rank: int
    done: bnrank.training.Finished
    verdicts: tuple[Verdict, ...]
    seconds: float


def checked(depth: int, rank: int, seed: int = 0, max_minutes: float | None = None) -> Checked:
    """Return the verdicts on a network of this depth, finished on a task of this planted rank."""
    began, ridge = time.process_time(), RIDGE / depth
    task = bnrank.tasks.low_rank_map(n=N, d_in=3, d_out=3, latent=2, rank=rank, width=10, seed=seed)
    net = bnrank.MLP([3, *[WIDTH] * (depth - 1), 3])
    run = bnrank.train(net, task, ridge=ridge, steps=1000, seed=seed, progress=False)
    done = bnrank.finish(run.network(0), task, ridge, max_minutes=max_minutes, progress=False)
    seconds = time.process_time() - began
    verdicts = bnrank.check(done.network, task.x, task.y, ridge, only=IDS).verdicts
    return Checked(depth, rank, done, verdicts, seconds)


def section(found: Sequence[Checked], command: str) -> str:
    """Return the section of the page."""
    lines = [
        HEADING,
        "",
        f"Written by `{command}`. Maps of planted rank on {N} samples, width {WIDTH}, $\\lambda = {RIDGE:g} / L$,",
        "trained for 1,000 evaluations and finished with `bnrank.finish`. The last column has the singular values",
        "above 0.05 of the middle weight (T27: those of the bottleneck are near 1).",
        "",
        "| depth | rank | relative gradient | kind | loss | live neurons | kinks | middle singular values |",
        f"|{' --- |' * 8}",
    ]
    for one in found:
        at, weights = one.done.stationarity, one.done.network.weights
        values = torch.linalg.svdvals(weights[one.depth // 2].detach())
        middle = ", ".join(f"{float(v):.3g}" for v in values if v > 0.05)
        live = ", ".join(str(n) for n in at.live)
        cells = (one.depth, one.rank, f"{at.residual:.1e}", at.kind, f"{at.loss:.6f}", live, len(at.slopes), middle)
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    lines += ["", "| id | statement | depth, rank | verdict | left | right | slack |", f"|{' --- |' * 7}"]
    for number, first in enumerate(found[0].verdicts):
        for one in found:
            verdict = one.verdicts[number]
            sides = [_shown(value) for value in (verdict.left, verdict.right, verdict.slack)]
            label = verdict.label if not math.isnan(verdict.left) else f"{verdict.label}: {_short(verdict.reason)}"
            cells = (first.id, first.name, f"{one.depth}, {one.rank}", label, *sides)
            lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join([*lines, "", ""])


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _short(reason: str) -> str:
    return reason.replace("|", "\\|").split(";")[0]


def write(page: Path, text: str) -> None:
    """Replace the section of the page, or insert it before the table of statements."""
    whole = page.read_text(encoding="utf-8")
    before, _, after = whole.partition(NEXT)
    page.write_text(before.partition(HEADING)[0] + text + NEXT + after, encoding="utf-8")


def main(page: Path | None, max_minutes: float) -> None:
    """Check all problems, print the section, and write it to the page."""
    found = []
    for depth, rank in PROBLEMS:
        found.append(checked(depth, rank, max_minutes=max_minutes))
        at = found[-1].done
        print(f"depth {depth}, rank {rank}: {found[-1].seconds:.1f} s of processor, {at.kind}, {at.reason}", flush=True)
    text = section(found, "python -m benchmarks.minima --verdicts docs/verdicts.md")
    print(text)
    if page is not None:
        write(page, text)
