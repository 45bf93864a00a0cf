"""Random small problems finished to stationary points: python -m benchmarks.minima --seeds 0 50.

With --landscape, one problem from many seeds: how many minima, of which ranks and losses. With --figure F1 or F4, the
networks of these figures. With --expansion, minima of F4's problem followed through depths 8 to 24.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from torch import nn

import bnrank
from benchmarks import at_minima, continuation, landscape
from bnrank.figures.f01_bottleneck_spectra.figure import Settings as Spectra
from bnrank.figures.f04_norm_and_depth.figure import RANK, RIDGE
from bnrank.figures.f04_norm_and_depth.figure import Settings as Depths
from bnrank.figures.harness.training import mlp


def draw(seed: int) -> tuple[bnrank.Task, bnrank.MLP, float]:
    """Return a task of low rank, with noise or not, a network of depth 3 to 6 and width 5 to 20, and a ridge."""
    rng = np.random.default_rng(seed)
    depth, width, n = int(rng.integers(3, 7)), int(rng.integers(5, 21)), int(rng.integers(20, 101))
    d_in, d_out = int(rng.integers(2, 9)), int(rng.integers(1, 9))
    latent = int(rng.integers(1, min(d_in, 4) + 1))
    rank = int(rng.integers(1, min(latent, d_out) + 1))
    ridge, noise = float(10 ** rng.uniform(-3.5, -1.7)), float(rng.choice([0.0, 0.1]))
    sizes = {"n": n, "d_in": d_in, "d_out": d_out, "latent": latent, "rank": rank}
    task = bnrank.tasks.low_rank_map(**sizes, width=20, seed=seed, noise=noise)
    return task, bnrank.MLP([d_in, *[width] * (depth - 1), d_out]), ridge


def figures(name: str, depths: Sequence[int]) -> Iterator[tuple[str, nn.Module, bnrank.Task, float]]:
    """Return name, trained network, task and ridge: the best member of F1, or the first seed of F4 at every depth."""
    if name == "F1":
        spectra, task = Spectra(), bnrank.tasks.bottleneck_spectra_map(rank=Spectra().rank)
        ridge = 0.05 / spectra.depth
        net = mlp(task, spectra.depth, spectra.width)
        options = {"steps": spectra.steps, "members": spectra.members, "seed": 0}
        run = bnrank.train(net, task, ridge=ridge, progress=False, **options)
        yield "F1", run.network(int(run.summary.loss.argmin("member"))), task, ridge
        return
    of = Depths()
    task = bnrank.tasks.low_rank_map(rank=RANK, y_norm_squared=of.y_norm_squared)
    for depth in depths:
        net = mlp(task, depth, of.width)
        run = bnrank.train(net, task, ridge=RIDGE, steps=of.steps, seed=of.seeds[0], progress=False)
        yield f"F4 at depth {depth}", run.network(0), task, RIDGE


def finish_figures(name: str, depths: Sequence[int], max_minutes: float, births: bool) -> None:
    """Print what the networks of a figure end at."""
    for label, net, task, ridge in figures(name, depths):
        began = time.process_time()
        done = bnrank.finish(net, task, ridge, births=births, max_minutes=max_minutes, progress=False)
        used = time.process_time() - began
        before = f"{label}: loss {done.loss_before:.8f} before, {used:.0f} s of processor, {done.seconds:.0f} s"
        print(f"{before}, {done.reason}\n{done.stationarity}", flush=True)


def main() -> None:
    """Print a line per problem and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 50), metavar=("FIRST", "END"))
    parser.add_argument("--max-minutes", type=float, default=5.0)
    parser.add_argument("--landscape", action="store_true", help="one problem from every seed")
    parser.add_argument("--picture", type=Path, help="with --landscape or --expansion, its file")
    parser.add_argument("--expansion", action="store_true", help="follow F4's minima of --seeds from depth 8 to 24")
    parser.add_argument("--verdicts", type=Path, help="check statements on finished networks, and write them to a page")
    parser.add_argument("--figure", choices=("F1", "F4"), help="finish networks of a figure")
    parser.add_argument("--depths", type=int, nargs="+", default=(8, 12, 16, 20), help="with --figure F4")
    parser.add_argument("--no-births", action="store_true", help="with --figure, do not add neurons")
    given = parser.parse_args()
    if given.figure:
        finish_figures(given.figure, given.depths, given.max_minutes, not given.no_births)
        return
    if given.expansion:
        continuation.main(range(*given.seeds), range(8, 25, 2), given.max_minutes, given.picture)
        return
    if given.verdicts:
        at_minima.main(given.verdicts, given.max_minutes)
        return
    if given.landscape:
        landscape.main(*given.seeds, given.max_minutes, given.picture)
        return
    rows = []
    for seed in range(*given.seeds):
        task, net, ridge = draw(seed)
        run = bnrank.train(net, task, ridge=ridge, steps=1000, seed=seed, progress=False)
        began = time.process_time()
        done = bnrank.finish(run.network(0), task, ridge, max_minutes=given.max_minutes, progress=False)
        at = done.stationarity
        rows.append((time.process_time() - began, at.residual, at.kind, done.loss <= done.loss_before))
        births = max((birth.lower for birth in at.births), default=0.0)
        print(
            f"seed {seed}: widths {net.widths}, N {task.n}, ridge {ridge:.2g}: {rows[-1][0]:.1f} s of processor, "
            f"relative gradient {at.residual:.1e}, loss {done.loss_before:.8f} -> {done.loss:.8f}, "
            f"{len(at.slopes)} kinks, largest new neuron {births:.4f}, {at.kind}; {done.reason}",
            flush=True,
        )
    reached = sum(residual <= 1e-8 for _, residual, _, _ in rows)
    seconds = statistics.median(row[0] for row in rows)
    print(f"{reached} of {len(rows)} at 1e-8; median {seconds:.1f} s; loss never above: {all(row[3] for row in rows)}")
    for kind in sorted({row[2] for row in rows}):
        print(f"  {kind}: {sum(row[2] == kind for row in rows)}")


if __name__ == "__main__":
    main()
